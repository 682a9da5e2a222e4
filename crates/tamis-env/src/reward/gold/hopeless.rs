//! Functions from which nothing can be learned, and the likely cause.

use serde_json::Value;
use tamis_data::prompt::Prompt;

use super::FunctionGold;
use super::rivals::ANOTHER;

impl FunctionGold {
    /// Whether nothing could be learned from it. A function of tamis is hopeless if it reads the ground truth
    /// and accepts none. An external one may expect a form of the answer that was not tried, or judge
    /// something else. It is hopeless if it scores no gold answer, or if it [rejects](Self::rejects_all) all.
    pub fn is_hopeless(&self) -> bool {
        let is_hopeless = if self.is_external {
            self.scores_none() || self.rejects_all()
        } else {
            self.reads_gold == Some(true) && self.accepted == 0
        };
        self.is_rewarded && is_hopeless
    }

    /// Whether the function failed on every gold answer.
    pub fn fails_on_all(&self) -> bool {
        self.failed == self.checked
    }

    /// Whether no gold answer has a score. If the function never failed, another one with a weight may score
    /// them: `None` means that a function does not apply.
    pub fn scores_none(&self) -> bool {
        self.failed + self.unanswered == self.checked && (self.failed > 0 || self.is_alone)
    }

    /// Whether an external function that uses the ground truth scores no answer above 0, and gold answers no
    /// higher than those of other prompts. Ground truths that are no short answers, such as tests of
    /// programs, prove nothing: they are no completions.
    pub fn rejects_all(&self) -> bool {
        self.is_external
            && self.uses_gold == Some(true)
            && self.are_answers
            && self.spread.is_some_and(|spread| spread.max <= 0.0)
            && self.rivals.iter().any(|rival| rival.what == ANOTHER && rival.num_prompts > 0)
    }
}

/// The column that holds the ground truth of every prompt as a number. Functions of Python get it as such.
pub(super) fn number_column(prompts: &[&Prompt]) -> Option<String> {
    let is_number = |prompt: &Prompt, value: Option<&Value>| {
        value.is_some_and(|value| value.is_number() && prompt.ground_truth == Some(value.to_string()))
    };
    let first = prompts.first()?;
    let holds = |name: &str| prompts.iter().all(|prompt| is_number(prompt, prompt.columns.get(name)));
    let nested = |prompt: &&Prompt| {
        is_number(prompt, prompt.columns.get("reward_model").and_then(|model| model.get("ground_truth")))
    };
    let column = first.columns.keys().find(|name| holds(name)).cloned();
    column.or_else(|| prompts.iter().all(nested).then(|| "ground_truth".to_owned()))
}

/// Whether a ground truth is a short answer, which a completion may hold as it is.
pub(super) fn is_short_answer(truth: &str) -> bool {
    const LONGEST: usize = 60;
    let starts = ["{", "[", "assert ", "def "];
    !truth.contains('\n')
        && truth.chars().count() <= LONGEST
        && !starts.iter().any(|start| truth.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::gold::check_gold;
    use crate::reward::gold::tests::Made;
    use crate::reward::number::Number;
    use crate::reward::{NamedReward, RewardFailure, RewardOutcome, Rewards, test_prompt};

    fn numbers(range: std::ops::Range<u32>) -> Vec<Prompt> {
        range.map(|number| test_prompt(&number.to_string())).collect()
    }

    /// A function of a user that takes the ground truth and is hopeless, or not, by what it answers.
    fn outside(prompts: &[Prompt], others: usize, judge: Judgement) -> FunctionGold {
        let judged = Made::new(&["{}", "#### {}"], move |input, truth| judge(input.completion, truth));
        let other = |number: usize| NamedReward::verifier(&format!("other{number}"), Box::new(Number {}));
        let all = std::iter::once(judged.outside()).chain((0..others).map(other)).collect();
        let report = check_gold(prompts, &Rewards::new(all).unwrap()).unwrap();
        report.functions[0].clone()
    }

    type Judgement = fn(&str, &str) -> RewardOutcome;

    #[test]
    fn a_function_outside_that_scores_no_gold_answer_is_hopeless() {
        let none: Judgement = |_, _| RewardOutcome::NoAnswer;
        let fails: Judgement =
            |_, _| RewardOutcome::Failed(RewardFailure::Function { message: "NameError: foo".to_owned() });
        assert!(outside(&numbers(0..4), 0, none).is_hopeless());
        // `None` may mean that a function does not apply; one that fails is broken.
        assert!(!outside(&numbers(0..4), 1, none).is_hopeless());
        assert!(outside(&numbers(0..4), 1, fails).is_hopeless());
        let some: Judgement =
            |text, _| if text == "3" { RewardOutcome::verified(0.0, false) } else { RewardOutcome::NoAnswer };
        assert!(!outside(&numbers(0..4), 0, some).scores_none());
        // Equal failures are shown once, and all are counted.
        let text = outside(&numbers(0..4), 0, fails).to_string();
        assert_eq!(text.matches("NameError").count(), 1, "{text}");
        assert!(text.contains("4 failed"), "{text}");
    }

    #[test]
    fn a_function_outside_gets_as_many_ids_as_a_text_may_have() {
        // It divides by the number of tokens.
        let brief = Made::new(&["{}"], |input, _| match input.completion_ids.len() {
            0 => RewardOutcome::Failed(RewardFailure::Function { message: "division by zero".to_owned() }),
            length => RewardOutcome::score(1.0 / length as f64),
        });
        let prompts = ["12345678", "1"].map(test_prompt);
        let report = check_gold(&prompts, &Rewards::new(vec![brief.outside()]).unwrap()).unwrap();
        let spread = report.functions[0].spread.unwrap();
        assert_eq!((spread.min, spread.max), (0.5, 1.0));
    }

    #[test]
    fn a_function_outside_that_rejects_every_short_answer_is_hopeless() {
        let wrong: Judgement = |_, _| RewardOutcome::verified(0.0, false);
        assert!(outside(&numbers(0..4), 1, wrong).is_hopeless());
        let without_acc: Judgement = |_, _| RewardOutcome::score(0.0);
        assert!(outside(&numbers(0..4), 0, without_acc).is_hopeless());
        // Nothing is above a distance of 0, and the answers of other prompts are further away.
        let distance: Judgement = |text, truth| {
            let number = |text: &str| text.parse::<f64>().unwrap_or(1e6);
            RewardOutcome::verified(-(number(text) - number(truth)).abs(), false)
        };
        assert!(!outside(&numbers(0..4), 0, distance).is_hopeless());
        let right: Judgement =
            |text, truth| RewardOutcome::verified(f64::from(u8::from(text == truth)), text == truth);
        assert!(!outside(&numbers(0..4), 0, right).is_hopeless());
        // Tests of programs are no answers.
        let tests = ["assert f(1) == 2", "assert f(2) == 3"].map(test_prompt);
        assert!(!outside(&tests, 0, wrong).is_hopeless());
    }

    #[test]
    fn a_column_of_numbers_is_named() {
        let with =
            |columns: Value| Prompt { columns: columns.as_object().cloned().unwrap(), ..test_prompt("7") };
        let column = |columns: [Value; 2]| {
            let prompts = columns.map(with);
            number_column(&prompts.iter().collect::<Vec<_>>())
        };
        let label = serde_json::json!({"size": 3, "label": 7});
        assert_eq!(column([label.clone(), label.clone()]).as_deref(), Some("label"));
        assert_eq!(column([label, serde_json::json!({"label": "7"})]), None);
        let nested = serde_json::json!({"reward_model": {"ground_truth": 7}});
        assert_eq!(column([nested.clone(), nested]).as_deref(), Some("ground_truth"));
    }
}
