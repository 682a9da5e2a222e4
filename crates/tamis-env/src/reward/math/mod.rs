//! `math`: the last `\boxed{}` against the ground truth, by exact value.
//!
//! Numbers, fractions, percentages, roots and polynomials are compared exactly (never in floating point:
//! `0.333` is not `1/3`), tuples and intervals entry by entry, sets and lists in any order; what cannot be
//! read as mathematics is compared as text. See [`latex`] for the forms that are read. A value beyond 128-bit
//! integers is compared as text.

pub mod latex;
pub mod polynomial;

use tamis_data::prompt::Prompt;

use super::boxed::last_boxed;
use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::gsm8k::answer_part;
use super::settings::{BuildError, RewardContext, RewardSettings};

tamis_core::settings! {
    /// `score` and `acc` are 1 where the last `\boxed{}` of the completion equals the ground truth, otherwise
    /// 0 (also without a box, or with one that does not close). No answer where the ground truth is missing,
    /// empty, or several words of prose.
    ///
    /// The ground truth may be an answer or a solution that ends in a box of its own.
    #[derive(Copy)]
    pub struct Math {}
}

/// The part of a ground truth that is compared: the inside of its last box, otherwise the answer of a GSM8K
/// solution, or all of it.
pub fn gold(truth: &str) -> &str {
    last_boxed(truth).or_else(|| answer_part(truth)).unwrap_or(truth)
}

/// Whether a completion is right; `None` where the ground truth is no answer.
pub fn verify(completion: &str, truth: &str) -> Option<bool> {
    let gold = latex::read(gold(truth))?;
    Some(last_boxed(completion).and_then(latex::read).is_some_and(|answer| answer == gold))
}

impl RewardSettings for Math {
    fn build(&self, _context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        Ok(Box::new(*self))
    }

    fn is_verifier(&self) -> bool {
        true
    }
}

impl RewardFunction for Math {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let judge = |input: &RewardInput<'_>| {
            let Some(truth) = &input.prompt.ground_truth else { return RewardOutcome::NoAnswer };
            match verify(input.completion, truth) {
                None => RewardOutcome::NoAnswer,
                Some(is_correct) => RewardOutcome::verified(f64::from(u8::from(is_correct)), is_correct),
            }
        };
        batch.iter().map(judge).collect()
    }

    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        prompt.ground_truth.iter().map(|truth| format!("\\boxed{{{}}}", gold(truth))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::after_think::AfterThink;
    use crate::reward::cosine::{Cosine, CosineSchedule};
    use crate::reward::test_prompt;
    use proptest::prelude::*;

    fn is_equal(answer: &str, truth: &str) -> bool {
        verify(&format!("\\boxed{{{answer}}}"), truth).unwrap()
    }

    #[test]
    fn equal_answers() {
        for (answer, truth) in [
            ("4", "4.0"),
            (".5", "0.50"),
            ("\\frac12", "0.5"),
            ("\\dfrac{2}{4}", "1/2"),
            ("-\\frac{1}{2}", "\\frac{-1}{2}"),
            ("1\\frac{1}{2}", "3/2"),
            ("50\\%", "\\frac{1}{2}"),
            ("1,000", "1000"),
            ("12{,}345.6", "$12,345.60$"),
            ("\\$5.00", "5"),
            ("4\\text{ cm}^2", "4"),
            ("90^\\circ", "90"),
            ("5 dollars", "5"),
            ("x=5", "5"),
            ("5", "x = 5"),
            ("f(x)=x^2+2x+1", "(x+1)^2"),
            ("\\sqrt{8}", "2\\sqrt2"),
            ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"),
            ("\\sqrt[3]{27}", "3"),
            ("2\\pi r", "2r\\pi"),
            ("10^{3}", "1000"),
            ("2^{-1}", "0.5"),
            ("3\\times 10^2", "300"),
            ("\\left(1, 2\\right)", "(1,2)"),
            ("\\{2,1\\}", "\\{1,2\\}"),
            ("2, 1", "1,2"),
            ("[1,\\infty)", "[1, \\infty)"),
            ("(-\\infty,-1)\\cup(1,2)", "(1,2) \\cup (-\\infty,-1)"),
            ("x \\in [0,1]", "[0,1]"),
            ("\\text{(B)}", "B"),
            ("\\text{Friday}", "friday"),
            ("\\mathrm{no\\ solution}", "\\text{no solution}"),
            ("−3", "-3"),
            ("99999999999999999999999999999999999999999999", "99999999999999999999999999999999999999999999"),
            ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
        ] {
            assert!(
                is_equal(answer, truth),
                "{answer} = {truth}: {:?}, {:?}",
                latex::read(answer),
                latex::read(truth)
            );
        }
    }

    #[test]
    fn different_answers() {
        for (answer, truth) in [
            ("0.333", "1/3"),
            ("4\\%", "4"),
            ("(2,1)", "(1,2)"),
            ("(1,2)", "[1,2)"),
            ("\\{1\\}", "\\{1,2\\}"),
            ("3.14159", "\\pi"),
            ("x+1", "x-1"),
            ("2x", "x^2"),
            ("1/0", "1"),
            ("", "1"),
            ("act", "cat"),
            ("1,00", "100"),
            ("\\frac{1}{2", "\\frac{1}{2}"),
            ("170141183460469231731687303715884105728", "-170141183460469231731687303715884105728"),
        ] {
            assert!(
                !is_equal(answer, truth),
                "{answer} and {truth}: {:?}, {:?}",
                latex::read(answer),
                latex::read(truth)
            );
        }
        assert_eq!(verify("\\boxed{1}", ""), None);
        assert_eq!(verify("\\boxed{1}", "no gold here"), None);
        assert_eq!(verify("1", "1"), Some(false));
        assert_eq!(verify("\\boxed{1} \\boxed{2", "1"), Some(false));
        assert_eq!(verify("\\boxed{\\frac{1}{2}}", "so we get $\\boxed{0.5}$."), Some(true));
    }

    /// Whether both sides are plain numbers or fractions, on which we promise to agree.
    fn is_numeric(completion: &str, truth: &str) -> bool {
        let is_number = |text: &str| match latex::read(text) {
            Some(latex::MathValue::Number(value)) => value.as_rational().is_some(),
            _ => false,
        };
        completion.matches("\\boxed{").count() == 1
            && last_boxed(completion).is_some_and(is_number)
            && is_number(truth)
    }

    #[test]
    fn reference_vectors() {
        let (mut num_numeric, mut num_matched) = (0, 0);
        for case in tamis_golden::cases("trl_reward_accuracy") {
            let name = case["name"].as_str().unwrap();
            let truth = case["inputs"]["solution"].as_str().unwrap();
            let prompt = test_prompt(truth);
            let ids = vec![0; case["inputs"]["completion_length"].as_u64().unwrap() as usize];
            let schedule =
                CosineSchedule::with_max_length(case["params"]["cosine_max_len"].as_u64().unwrap());
            let functions: [(&str, &str, Box<dyn RewardFunction>); 3] = [
                ("accuracy", "completion", Box::new(Math {})),
                ("reasoning_accuracy", "reasoning_completion", Box::new(AfterThink::new(Box::new(Math {})))),
                ("cosine", "completion", Box::new(Cosine::new(Box::new(Math {}), schedule).unwrap())),
            ];
            for (output, input, function) in functions {
                let completion = case["inputs"][input].as_str().unwrap();
                let input = RewardInput { completion_ids: &ids, ..RewardInput::text(&prompt, completion) };
                let ours = function.score(&[input])[0].get("score");
                let theirs = case["outputs"][output].as_f64();
                let matches = match (ours, theirs) {
                    (Some(ours), Some(theirs)) => (ours - theirs).abs() < 1e-12,
                    (ours, theirs) => ours.is_none() && theirs.is_none(),
                };
                num_numeric += usize::from(is_numeric(completion, truth));
                num_matched += usize::from(matches);
                if !matches {
                    assert!(!is_numeric(completion, truth), "{name} {output}: {ours:?}, expected {theirs:?}");
                    let reason = match completion.matches("\\boxed{").count() {
                        0 => "math-verify also reads answers outside a box",
                        1 => "symbolic mathematics beyond polynomials and square roots",
                        _ => "math-verify takes several boxes as one answer, we take the last",
                    };
                    println!("out of scope: {name} {output} `{completion}` against `{truth}`: {reason}");
                }
            }
        }
        println!("{num_matched} matched, {num_numeric} of them numbers or fractions");
        assert!(num_numeric > 0);
    }

    #[test]
    fn a_megabyte_is_read_at_once() {
        let start = std::time::Instant::now();
        for unit in ["\\boxed{", "{", "}", "\\frac", "$", "(", "-", "9", "\\text{a}", "x^", "{,}", " ", "é"]
        {
            let text = unit.repeat(1_000_000 / unit.len());
            let _ = verify(&text, "1");
            let _ = verify(&format!("\\boxed{{{text}}}"), &text);
        }
        assert!(start.elapsed().as_secs_f64() < 5.0, "{:?}", start.elapsed());
    }

    proptest! {
        #[test]
        fn any_text_is_judged_without_panic(text in "\\PC{0,80}", truth in "\\PC{0,40}") {
            let _ = verify(&format!("\\boxed{{{text}}}"), &truth);
            let _ = latex::read(&text);
        }

        #[test]
        fn any_latex_is_judged_without_panic(
            parts in proptest::collection::vec(proptest::sample::select(vec![
                "\\frac", "{", "}", "(", ")", "[", "]", "\\{", "\\}", "1", "23", ".5", "x", "ab", "\\pi", "\\sqrt", "^", "%", ",", "-", "+",
                "*", "/", "=", "\\in ", "\\cup", "\\text{", " ", "é", "\\", "9999999999999",
            ]), 0..40),
        ) {
            let text: String = parts.concat();
            let _ = latex::read(&text);
            // Whatever it says, it says it twice; a text that is prose, empty or leaves its box aside.
            if let Some(value) = latex::read(&text) {
                prop_assert_eq!(Some(value), latex::read(&format!(" {text} ")));
            }
        }
    }
}
