//! `gsm8k`: verl's verifier of GSM8K answers, strict and flexible, and a method that reads the last number in
//! ordinary text. Reference of the first two: `verl.utils.reward_score.gsm8k`, 0.9.1. Both use only the last
//! 300 characters.
//! - strict: the last `#### ` directly followed by an optional `-` and ASCII digits, points and commas;
//!   commas are removed.
//! - flexible: the last run of digits, points and commas (with an optional `-`) that is not a lone point,
//!   with its commas. If every run is a lone point, it is the first.
//!
//! The extracted text must equal the ground truth exactly: `72.` is not `72`.
//!
//! `last_number` uses the whole completion and compares values: `$1,024.00.` is `1024`.

use std::sync::LazyLock;

use regex::Regex;
use tamis_data::prompt::Prompt;

use super::as_written::as_written;
use super::boxed::last_chars;
use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::settings::{BuildError, Nature, RewardContext, RewardSettings};
use crate::rational::canonical_decimal;

/// Number of characters from the end that count.
const CLIP_CHARS: usize = 300;

#[expect(clippy::unwrap_used, reason = "a constant pattern; every test compiles it")]
static STRICT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"#### (-?[0-9.,]+)").unwrap());
#[expect(clippy::unwrap_used, reason = "a constant pattern; every test compiles it")]
static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"-?[0-9.,]+").unwrap());
/// A number in a sentence: a sign that follows no letter, digit or closing bracket, a currency, groups of
/// three digits, and a fraction. With an exponent it is no decimal number. A point without a digit after it
/// belongs to the sentence.
#[expect(clippy::unwrap_used, reason = "a constant pattern; every test compiles it")]
static WRITTEN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?x)
        (?: (?P<minus> ^[-\u{2212}] | [^\p{L}0-9)\]}][-\u{2212}] ) \\?[$\u{20ac}\u{a3}\u{a5}]? )?
        (?P<number>
            (?: [0-9]{1,3} (?: (?: , | \{,\} | \\, ) [0-9]{3} )+ \b | [0-9]+ ) (?: \.[0-9]+ )?
            | \.[0-9]+
        )
        (?P<more> (?: / | [eE][-+]? ) [0-9]+ )?",
    )
    .unwrap()
});

tamis_core::choice! {
    /// How a GSM8K answer is found in a completion.
    pub enum Gsm8kMethod {
        /// The last `#### number`, as verl's `strict` and lm-eval's `strict-match`.
        Strict = "strict",
        /// verl's `flexible`: the last run of digits, points and commas, compared as text.
        /// `The answer is 18.` is wrong because its run is `18.`; `1,024` is wrong too.
        Flexible = "flexible",
        /// The value of the last number, whatever text is around it: `The answer is $1,024.00.` is 1024. For
        /// chat models.
        LastNumber = "last_number",
    }
}

tamis_core::settings! {
    /// `score` is 1 for the right answer, `format_score` for another extracted answer, and 0 if there is
    /// none; `acc` is 1 or 0. No answer if the prompt has no ground truth, or with `last_number` one that is
    /// no number. A ground truth that is a whole GSM8K solution is reduced by [`gold`].
    #[derive(Copy)]
    pub struct Gsm8k {
        /// How the answer is found in the completion.
        method: Gsm8kMethod = Gsm8kMethod::Strict;
        /// The score of a wrong answer in the right format.
        format_score: f64 = 0.0;
    }
}

/// The answer of a completion.
pub fn extract(completion: &str, method: Gsm8kMethod) -> Option<String> {
    let tail = last_chars(completion, CLIP_CHARS);
    match method {
        Gsm8kMethod::Strict => {
            let number = STRICT.captures_iter(tail).last()?.get(1)?;
            Some(number.as_str().replace(',', ""))
        }
        Gsm8kMethod::Flexible => {
            let mut numbers = NUMBER.find_iter(tail).map(|found| found.as_str());
            let first = numbers.next()?;
            Some(numbers.filter(|number| *number != ".").last().unwrap_or(first).to_owned())
        }
        Gsm8kMethod::LastNumber => {
            let found = WRITTEN.captures_iter(completion).last()?;
            let number = found.name("number")?.as_str().replace([',', '{', '}', '\\'], "");
            let minus = if found.name("minus").is_some() { "-" } else { "" };
            let more = found.name("more").map_or("", |more| more.as_str());
            let written = format!("{minus}{number}{more}");
            Some(canonical_decimal(&written).unwrap_or(written))
        }
    }
}

/// The text that an answer is compared with; `None` if the method cannot compare with this ground truth.
fn expected(truth: &str, method: Gsm8kMethod) -> Option<String> {
    let gold = gold(truth);
    if method == Gsm8kMethod::LastNumber { canonical_decimal(&gold) } else { Some(gold) }
}

/// The ground truth of a GSM8K row: the text after the last `#### ` or, at the start of a line, `A: ` (the
/// form of OpenAI's model solutions), without commas. The text itself if it has neither.
///
/// ```
/// use tamis_env::reward::gsm8k::gold;
/// assert_eq!(gold("48/2 = <<48/2=24>>24\n#### 1,024"), "1024");
/// assert_eq!(gold("She makes 18.\nA: 18"), "18");
/// assert_eq!(gold("72"), "72");
/// ```
pub fn gold(text: &str) -> String {
    let after = text
        .rfind("#### ")
        .map(|place| place + 5)
        .or_else(|| text.rfind("\nA: ").map(|place| place + 4))
        .or_else(|| text.starts_with("A: ").then_some(3));
    after
        .and_then(|place| text.get(place..))
        .map_or_else(|| text.to_owned(), |tail| tail.trim().replace(',', ""))
}

/// The answer of a ground truth that is a whole GSM8K solution: the number that is its last line after
/// `#### `, unchanged. `None` if the text does not end in this way.
///
/// ```
/// use tamis_env::reward::gsm8k::answer_part;
/// assert_eq!(answer_part("48/2 = <<48/2=24>>24\n#### 1,024"), Some("1,024"));
/// assert_eq!(answer_part("72"), None);
/// assert_eq!(answer_part("#### is a heading"), None);
/// ```
pub fn answer_part(truth: &str) -> Option<&str> {
    let answer = truth.trim_end().lines().next_back()?.strip_prefix("#### ")?.trim();
    let is_number =
        STRICT.find(&format!("#### {answer}")).is_some_and(|found| found.len() == answer.len() + 5);
    is_number.then_some(answer)
}

impl RewardSettings for Gsm8k {
    fn build(&self, _context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        Ok(Box::new(*self))
    }

    fn nature(&self) -> Nature {
        Nature::VERIFIER
    }
}

impl RewardFunction for Gsm8k {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let judge = |input: &RewardInput<'_>| {
            let truth = input.prompt.ground_truth.as_deref();
            let Some(gold) = truth.and_then(|truth| expected(truth, self.method)) else {
                return RewardOutcome::NoAnswer;
            };
            match extract(input.completion, self.method) {
                None => RewardOutcome::verified(0.0, false),
                Some(answer) if answer == gold => RewardOutcome::verified(1.0, true),
                Some(_) => RewardOutcome::verified(self.format_score, false),
            }
        };
        batch.iter().map(judge).collect()
    }

    fn votes(&self, batch: &[RewardInput<'_>]) -> Option<Vec<String>> {
        let answer = |input: &RewardInput<'_>| extract(input.completion, self.method).unwrap_or_default();
        Some(batch.iter().map(answer).collect())
    }

    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        prompt.ground_truth.iter().map(|truth| format!("#### {}", as_written(&gold(truth)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::test_prompt;
    use serde_json::Value;
    use std::io::BufRead as _;

    fn outcome(function: Gsm8k, truth: &str, completion: &str) -> RewardOutcome {
        function.score(&[RewardInput::text(&test_prompt(truth), completion)]).remove(0)
    }

    #[test]
    fn reference_vectors() {
        for case in tamis_golden::cases("verl_score_gsm8k") {
            let name = &case["name"];
            let solution = case["inputs"]["solution"].as_str().unwrap();
            let truth = case["inputs"]["ground_truth"].as_str().unwrap();
            for (key, method) in [("strict", Gsm8kMethod::Strict), ("flexible", Gsm8kMethod::Flexible)] {
                let expected = &case["outputs"][key];
                assert_eq!(
                    extract(solution, method).as_deref(),
                    expected["extracted"].as_str(),
                    "{name} {key}"
                );
                for (field, format_score) in [("score", 0.0), ("score_with_format_0.1", 0.1)] {
                    let outcome = outcome(Gsm8k { method, format_score }, truth, solution);
                    assert_eq!(outcome.get("score"), expected[field].as_f64(), "{name} {key} {field}");
                }
            }
        }
    }

    #[test]
    fn the_last_number_is_read_as_people_write_it() {
        let says = |completion: &str| extract(completion, Gsm8kMethod::LastNumber).unwrap_or_default();
        for (completion, number) in [
            ("The answer is 18.", "18"),
            ("48/2 = 24, so 48 + 24 = 72", "72"),
            ("She makes $1,024.00 a week.", "1024"),
            ("**1,000,000**", "1000000"),
            (r"\boxed{1{,}024}", "1024"),
            (r"It is \(1\,024\).", "1024"),
            (r"$\boxed{\$18}$", "18"),
            ("18 eggs - that is all 3 of them ate", "3"),
            ("-5", "-5"),
            ("The change is −$5.50.", "-5.5"),
            ("10-3", "3"),
            ("(2)-3", "3"),
            ("half of it: .50", "0.5"),
            ("18%", "18"),
            ("007", "7"),
            ("3, 4", "4"),
            ("in 12,34", "34"),
            // No decimal numbers, and so no integer either.
            ("1/2", "1/2"),
            ("3e5", "3e5"),
            ("no number.", ""),
        ] {
            assert_eq!(says(completion), number, "{completion}");
        }
        let last = Gsm8k { method: Gsm8kMethod::LastNumber, format_score: 0.0 };
        let flexible = Gsm8k { method: Gsm8kMethod::Flexible, format_score: 0.0 };
        for (completion, truth) in
            [("The answer is 18.", "18"), ("It is 1,024", "x\n#### 1,024"), ("18.0", "18")]
        {
            assert_eq!(outcome(last, truth, completion).get("acc"), Some(1.0), "{completion}");
            assert_eq!(outcome(flexible, truth, completion).get("acc"), Some(0.0), "{completion}");
        }
        assert_eq!(outcome(last, "2", "1/2").get("acc"), Some(0.0));
        assert_eq!(outcome(last, "two", "2"), RewardOutcome::NoAnswer);
    }

    /// Golds of four digits and more too, in the sentences of a chat model.
    #[test]
    fn every_answer_of_gsm8k_is_read_in_a_sentence() {
        let Some(folder) = tamis_golden::data("gsm8k") else { return };
        let file = std::fs::File::open(folder.join("test.jsonl")).unwrap();
        let last = Gsm8k { method: Gsm8kMethod::LastNumber, format_score: 0.0 };
        let (mut num_rows, mut num_long) = (0, 0);
        for line in std::io::BufReader::new(file).lines() {
            let row: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let truth = row["answer"].as_str().unwrap();
            let written = truth.rsplit("#### ").next().unwrap().trim();
            let plain = written.replace(',', "");
            for answer in [written, &plain] {
                for completion in [
                    format!("The answer is {answer}."),
                    format!("So she earns **${answer}** a year."),
                    format!("\\[\\boxed{{{answer}}}\\]"),
                ] {
                    assert_eq!(outcome(last, truth, &completion).get("acc"), Some(1.0), "{completion}");
                }
            }
            num_rows += 1;
            num_long += usize::from(plain.trim_start_matches('-').len() >= 4);
        }
        assert_eq!((num_rows, num_long), (1319, 131));
    }

    #[test]
    fn model_solutions_of_gsm8k() {
        let Some(folder) = tamis_golden::data("gsm8k") else { return };
        let file = std::fs::File::open(folder.join("model_solutions.jsonl")).unwrap();
        let (mut num_solutions, mut flexible, mut strict) = (0, 0, 0);
        for line in std::io::BufReader::new(file).lines() {
            let row: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let truth = row["ground_truth"].as_str().unwrap();
            for (_, model) in row.as_object().unwrap().iter().filter(|(_, value)| value.is_object()) {
                let solution = model["solution"].as_str().unwrap();
                let is_correct = model["is_correct"].as_bool().unwrap();
                let says = |method| {
                    outcome(Gsm8k { method, format_score: 0.0 }, truth, solution).get("acc") == Some(1.0)
                };
                num_solutions += 1;
                flexible += usize::from(says(Gsm8kMethod::Flexible) == is_correct);
                strict += usize::from(says(Gsm8kMethod::Strict) == is_correct);
            }
        }
        assert_eq!((num_solutions, flexible, strict), (2640, 2640, 1654));
    }
}
