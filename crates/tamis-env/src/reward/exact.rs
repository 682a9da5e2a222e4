//! `exact`: the completion is the ground truth.

use tamis_data::prompt::Prompt;

use super::as_written::as_written;
use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::settings::{BuildError, Nature, RewardContext, RewardSettings};

tamis_core::settings! {
    /// `score` and `acc` are 1 if completion and ground truth are the same text without white space at both
    /// ends, otherwise 0. No answer if the prompt has no ground truth. Nothing else is normalised: `.5` is
    /// not `0.5` here (see `number`).
    #[derive(Copy)]
    pub struct Exact {}
}

impl RewardSettings for Exact {
    fn build(&self, _context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        Ok(Box::new(*self))
    }

    fn nature(&self) -> Nature {
        Nature::VERIFIER
    }
}

impl RewardFunction for Exact {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let judge = |input: &RewardInput<'_>| match &input.prompt.ground_truth {
            None => RewardOutcome::NoAnswer,
            Some(gold) => {
                let is_correct = input.completion.trim() == gold.trim();
                RewardOutcome::verified(f64::from(u8::from(is_correct)), is_correct)
            }
        };
        batch.iter().map(judge).collect()
    }

    fn votes(&self, batch: &[RewardInput<'_>]) -> Option<Vec<String>> {
        Some(batch.iter().map(|input| input.completion.trim().to_owned()).collect())
    }

    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        prompt.ground_truth.iter().map(|truth| as_written(truth).to_owned()).collect()
    }
}
