//! `math_dapo`: verl's verifier of the DAPO recipe.
//!
//! Reference: `verl.utils.reward_score.math_dapo`, 0.9.1. Only the last 300 characters count. The answer is
//! the text after the last `Answer:` (any case) up to the end of the line. It is normalised as in Lewkowycz
//! et al. 2022 (Minerva, appendix D.1) and compared with the normalised ground truth. Without an `Answer:` it
//! is the inside of the last `\boxed{}` in the last 100 characters, compared without normalisation. Without
//! either it is `[INVALID]`. The normalisation is textual and also changes words (`a ` of `banana `), as in
//! verl.

use std::sync::LazyLock;

use regex::Regex;
use tamis_data::prompt::Prompt;

use super::as_written::as_written;
use super::boxed::{last_boxed, last_chars};
use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::gsm8k::answer_part;
use super::settings::{BuildError, Nature, RewardContext, RewardSettings};

/// Number of characters from the end that count.
const CLIP_CHARS: usize = 300;
/// Number of characters from the end that are searched for a box.
const BOX_CHARS: usize = 100;
/// Stands for an answer that was not found.
const INVALID: &str = "[INVALID]";

const SUBSTITUTIONS: [(&str, &str); 10] = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
];

const REMOVED: [&str; 40] = [
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    "\"",
];
/// Removed last.
const REMOVED_DOTS: &str = "\\dots";

/// Python's `\s` and `str.strip` count the four information separators as white space.
fn is_python_space(letter: char) -> bool {
    letter.is_whitespace() || ('\x1c'..='\x1f').contains(&letter)
}

#[expect(clippy::unwrap_used, reason = "a constant pattern; every test compiles it")]
static ANSWER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)Answer[\s\x1c-\x1f]*:[\s\x1c-\x1f]*([^\n]+)").unwrap());

/// Pattern and replacement, applied in order.
#[expect(clippy::unwrap_used, reason = "constant patterns; every test compiles them")]
static REWRITES: LazyLock<[(Regex, &str); 7]> = LazyLock::new(|| {
    [
        (r"(.*?)(\$)(.*?)(\$)(.*)", "$$${3}$$"),
        (r"\\text\{(.*?)\}", "${1}"),
        (r"\\textbf\{(.*?)\}", "${1}"),
        (r"\\overline\{(.*?)\}", "${1}"),
        (r"\\boxed\{(.*)\}", "${1}"),
        (r"frac([^{])(.)", "frac{${1}}{${2}}"),
        (r"sqrt([^{])", "sqrt{${1}}"),
    ]
    .map(|(pattern, replacement)| (Regex::new(pattern).unwrap(), replacement))
});

/// Characters beyond decimal digits that Python's `str.isdigit` accepts (Unicode Numeric_Type=Digit).
fn is_python_digit(letter: char) -> bool {
    #[expect(clippy::unwrap_used, reason = "a constant pattern; every test compiles it")]
    static DIGIT: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"^[\p{Nd}\u{b2}\u{b3}\u{b9}\u{1369}-\u{1371}\u{19da}\u{2070}\u{2074}-\u{2079}\u{2080}-\u{2089}\u{2460}-\u{2468}\u{2474}-\u{247c}\u{2488}-\u{2490}\u{24ea}\u{24f5}-\u{24fd}\u{24ff}\u{2776}-\u{277e}\u{2780}-\u{2788}\u{278a}-\u{2792}\u{10a40}-\u{10a43}\u{10e60}-\u{10e68}\u{11052}-\u{1105a}\u{1f100}-\u{1f10a}]$",
        )
        .unwrap()
    });
    letter.is_ascii_digit() || (!letter.is_ascii() && DIGIT.is_match(letter.encode_utf8(&mut [0; 4])))
}

/// Minerva's normal form of a final answer.
pub fn normalize(answer: &str) -> String {
    let mut text = answer.rsplit('=').next().unwrap_or_default().to_owned();
    for (before, after) in SUBSTITUTIONS {
        text = text.replace(before, after);
    }
    for removed in REMOVED.into_iter().chain([REMOVED_DOTS]) {
        text = text.replace(removed, "");
    }
    for (pattern, replacement) in REWRITES.iter() {
        text = pattern.replace_all(&text, *replacement).into_owned();
    }
    text = text.replace('$', "");
    let without_commas = text.replace(',', "");
    if !without_commas.is_empty() && without_commas.chars().all(is_python_digit) {
        text = without_commas;
    }
    text.trim_matches(is_python_space).to_owned()
}

/// Whether a completion is right, and the answer that was found in it.
pub fn verify(completion: &str, truth: &str) -> (bool, Option<String>) {
    let tail = last_chars(completion, CLIP_CHARS);
    let boxed = || last_boxed(last_chars(tail, BOX_CHARS));
    let answer = ANSWER.captures_iter(tail).last().and_then(|found| found.get(1));
    let answer = normalize(answer.map_or(INVALID, |found| found.as_str()));
    if answer == INVALID
        && let Some(boxed) = boxed()
    {
        return (boxed == truth, Some(boxed.to_owned()));
    }
    (answer == normalize(truth), Some(answer))
}

tamis_core::settings! {
    /// `score` is 1 or −1, `acc` 1 or 0. No answer if the prompt has no ground truth.
    #[derive(Copy)]
    pub struct MathDapo {}
}

impl RewardSettings for MathDapo {
    fn build(&self, _context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        Ok(Box::new(*self))
    }

    fn nature(&self) -> Nature {
        Nature::VERIFIER
    }
}

impl RewardFunction for MathDapo {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let judge = |input: &RewardInput<'_>| match &input.prompt.ground_truth {
            None => RewardOutcome::NoAnswer,
            Some(truth) => {
                let truth = answer_part(truth).unwrap_or(truth);
                let (is_correct, _) = verify(input.completion, truth);
                RewardOutcome::verified(if is_correct { 1.0 } else { -1.0 }, is_correct)
            }
        };
        batch.iter().map(judge).collect()
    }

    fn votes(&self, batch: &[RewardInput<'_>]) -> Option<Vec<String>> {
        let answer = |input: &RewardInput<'_>| {
            let truth = input.prompt.ground_truth.as_deref().unwrap_or_default();
            verify(input.completion, truth).1.unwrap_or_default()
        };
        Some(batch.iter().map(answer).collect())
    }

    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        let wrap = |truth: &String| {
            let truth = answer_part(truth).unwrap_or(truth);
            format!("Answer: {}", as_written(truth))
        };
        prompt.ground_truth.iter().map(wrap).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_vectors() {
        for case in tamis_golden::cases("verl_score_math_dapo") {
            let name = &case["name"];
            let solution = case["inputs"]["solution"].as_str().unwrap();
            let truth = case["inputs"]["ground_truth"].as_str().unwrap();
            assert_eq!(
                normalize(truth),
                case["outputs"]["normalized_ground_truth"].as_str().unwrap(),
                "{name}"
            );
            let expected = &case["outputs"]["default"];
            let (is_correct, answer) = verify(solution, truth);
            assert_eq!(Some(is_correct), expected["acc"].as_bool(), "{name}");
            assert_eq!(answer.as_deref(), expected["pred"].as_str(), "{name}");
            let score = if is_correct { 1.0 } else { -1.0 };
            assert_eq!(Some(score), expected["score"].as_f64(), "{name}");
        }
    }
}
