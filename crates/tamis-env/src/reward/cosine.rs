//! `cosine`: a short correct answer scores more than a long one; a long wrong answer loses less than a short
//! one.

use std::f64::consts::PI;

use tamis_data::prompt::Prompt;

use super::error::RewardError;
use super::exact::Exact;
use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::settings::{BuildError, Nature, RewardContext, RewardSettings};

tamis_core::settings! {
    /// The schedule of [`Cosine`]. Its verifier is the first one of the configuration.
    #[derive(Copy)]
    pub struct CosineSettings {
        /// Score of a wrong answer of length 0.
        min_value_wrong: f64 = -1.0;
        /// Score of a wrong answer at full length.
        max_value_wrong: f64 = -0.5;
        /// Score of a right answer at full length.
        min_value_correct: f64 = 0.5;
        /// Score of a right answer of length 0.
        max_value_correct: f64 = 1.0;
        /// Length that counts as full, in tokens. Null: `rollout.max_response_length`.
        max_length: Option<usize> = None, AtLeast(1.0);
    }
}

impl CosineSettings {
    fn schedule(&self, limit: usize) -> CosineSchedule {
        CosineSchedule {
            max_length: self.max_length.unwrap_or(limit) as u64,
            min_value_wrong: self.min_value_wrong,
            max_value_wrong: self.max_value_wrong,
            min_value_correct: self.min_value_correct,
            max_value_correct: self.max_value_correct,
        }
    }
}

/// The verifier of a configuration with its name, or the error that there is none.
fn verifier_of<'a>(context: &RewardContext<'a>) -> Result<(&'a str, &'a dyn RewardSettings), BuildError> {
    context.verifier.ok_or_else(|| BuildError::Setting {
        message: format!(
            "reward `{}` scores by correctness and length, but no verifier decides what is correct",
            context.name
        ),
        hint: "add a verifier before it, such as `{kind: gsm8k, weight: 0}`".to_owned(),
    })
}

impl RewardSettings for CosineSettings {
    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        let (name, verifier) = verifier_of(context)?;
        let schedule = self.schedule(context.max_length);
        let function = Cosine::new(verifier.build(&context.with_name(name))?, schedule)?;
        if !verifier.nature().gives_acc {
            let expected = "a verifier that answers `acc`";
            return Err(RewardError::parameter("cosine", expected, "one that does not").into());
        }
        Ok(Box::new(function))
    }

    fn nature(&self) -> Nature {
        Nature { gives_acc: true, ..Nature::SHAPING }
    }

    fn check(&self, context: &RewardContext<'_>) -> Result<(), BuildError> {
        verifier_of(context)?;
        Cosine::new(Box::new(Exact {}), self.schedule(context.max_length))?;
        Ok(())
    }

    fn fill_lengths(&mut self, limit: usize) {
        self.max_length.get_or_insert(limit);
    }
}

/// The four ends of the schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CosineSchedule {
    /// Tokens at which the schedule ends; longer completions count as this long. At least 1.
    pub max_length: u64,
    /// A wrong answer of no tokens.
    pub min_value_wrong: f64,
    /// A wrong answer of `max_length` tokens.
    pub max_value_wrong: f64,
    /// A right answer of `max_length` tokens.
    pub min_value_correct: f64,
    /// A right answer of no tokens.
    pub max_value_correct: f64,
}

impl CosineSchedule {
    /// TRL's defaults: −1, −0.5, 0.5, 1.
    #[cfg(test)]
    pub(crate) fn with_max_length(max_length: u64) -> Self {
        Self {
            max_length,
            min_value_wrong: -1.0,
            max_value_wrong: -0.5,
            min_value_correct: 0.5,
            max_value_correct: 1.0,
        }
    }

    /// `low + (high − low) · (1 + cos(π · min(length / max_length, 1))) / 2`, where (low, high) are the
    /// correct pair, or the wrong pair swapped (TRL's `get_cosine_scaled_reward`, 1.16.0, after arXiv
    /// 2502.03373, equation 1).
    pub fn value(&self, is_correct: bool, length: u64) -> f64 {
        let progress = (length as f64 / self.max_length as f64).min(1.0);
        let (low, high) = if is_correct {
            (self.min_value_correct, self.max_value_correct)
        } else {
            (self.max_value_wrong, self.min_value_wrong)
        };
        low + 0.5 * (high - low) * (1.0 + (progress * PI).cos())
    }
}

/// `score` is the schedule's value at the completion's length in tokens; `acc` is the inner verifier's. No
/// answer if the verifier has none. It is shaping, because its score differs between answers that are all
/// wrong.
pub struct Cosine {
    verifier: Box<dyn RewardFunction>,
    schedule: CosineSchedule,
}

impl Cosine {
    /// `verifier` must answer `acc`.
    pub fn new(verifier: Box<dyn RewardFunction>, schedule: CosineSchedule) -> Result<Self, RewardError> {
        let fail = |expected, actual: String| Err(RewardError::parameter("cosine", expected, &actual));
        if schedule.max_length == 0 {
            return fail("a max_length of at least 1 token", "0".to_owned());
        }
        let values = [
            schedule.min_value_wrong,
            schedule.max_value_wrong,
            schedule.min_value_correct,
            schedule.max_value_correct,
        ];
        if let Some(value) = values.into_iter().find(|value| !value.is_finite()) {
            return fail("finite values", tamis_core::figure::shortest(value));
        }
        Ok(Self { verifier, schedule })
    }
}

impl RewardFunction for Cosine {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let outcomes = self.verifier.score(batch);
        let shape = |(outcome, input): (RewardOutcome, &RewardInput<'_>)| match outcome.get("acc") {
            Some(acc) => {
                let is_correct = acc >= 1.0;
                let value = self.schedule.value(is_correct, input.num_written() as u64);
                RewardOutcome::verified(value, is_correct)
            }
            None if matches!(outcome, RewardOutcome::Failed(_)) => outcome,
            None => RewardOutcome::NoAnswer,
        };
        outcomes.into_iter().zip(batch).map(shape).collect()
    }

    fn votes(&self, batch: &[RewardInput<'_>]) -> Option<Vec<String>> {
        self.verifier.votes(batch)
    }

    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        self.verifier.gold_completions(prompt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::command::CommandSettings;

    #[test]
    fn reference_vectors() {
        for case in tamis_golden::cases("trl_reward_cosine") {
            let parameter = |name: &str| case["params"][name].as_f64().unwrap();
            let schedule = CosineSchedule {
                max_length: case["params"]["max_len"].as_u64().unwrap(),
                min_value_wrong: parameter("min_value_wrong"),
                max_value_wrong: parameter("max_value_wrong"),
                min_value_correct: parameter("min_value_correct"),
                max_value_correct: parameter("max_value_correct"),
            };
            for (key, is_correct) in [("correct", true), ("wrong", false)] {
                let values: Vec<f64> = tamis_golden::numbers(&case["inputs"]["length"])
                    .iter()
                    .map(|&length| schedule.value(is_correct, length as u64))
                    .collect();
                let expected = tamis_golden::numbers(&case["outputs"][key]);
                tamis_golden::assert_close(key, &values, &expected, 1e-12, 1e-12);
            }
        }
    }

    #[test]
    fn errors() {
        let make =
            |verifier: Box<dyn RewardFunction>, schedule| Cosine::new(verifier, schedule).err().unwrap();
        insta::assert_snapshot!(make(Box::new(Exact {}), CosineSchedule::with_max_length(0)), @"reward `cosine` needs a max_length of at least 1 token, got 0");
        let settings = CosineSettings::default();
        let outside = CommandSettings { argv: vec!["cat".to_owned()], ..CommandSettings::default() };
        let context = RewardContext { verifier: Some(("judge", &outside)), ..RewardContext::alone("r", 8) };
        insta::assert_snapshot!(settings.build(&context).err().unwrap(), @"reward `cosine` needs a verifier that answers `acc`, got one that does not");
        let schedule =
            CosineSchedule { min_value_wrong: f64::INFINITY, ..CosineSchedule::with_max_length(8) };
        insta::assert_snapshot!(make(Box::new(Exact {}), schedule), @"reward `cosine` needs finite values, got inf");
    }
}
