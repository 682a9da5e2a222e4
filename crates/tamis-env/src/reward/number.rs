//! `number`: the completion is the ground truth's number.

use tamis_data::prompt::Prompt;

use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::gsm8k::answer_part;
use super::settings::{BuildError, Nature, RewardContext, RewardSettings};
use crate::rational::canonical_decimal;

tamis_core::settings! {
    /// `score` and `acc` are 1 if the whole completion is one decimal number (see [`canonical_decimal`]) that
    /// equals the ground truth's, exactly and at any length: `.5` = `0.50`. Otherwise 0. No answer if the
    /// ground truth is missing or no decimal number.
    #[derive(Copy)]
    pub struct Number {}
}

impl RewardSettings for Number {
    fn build(&self, _context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        Ok(Box::new(*self))
    }

    fn nature(&self) -> Nature {
        Nature::VERIFIER
    }
}

impl RewardFunction for Number {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let judge = |input: &RewardInput<'_>| match input
            .prompt
            .ground_truth
            .as_deref()
            .and_then(|truth| canonical_decimal(answer_part(truth).unwrap_or(truth)))
        {
            None => RewardOutcome::NoAnswer,
            Some(gold) => {
                let is_correct = canonical_decimal(input.completion).is_some_and(|answer| answer == gold);
                RewardOutcome::verified(f64::from(u8::from(is_correct)), is_correct)
            }
        };
        batch.iter().map(judge).collect()
    }

    fn votes(&self, batch: &[RewardInput<'_>]) -> Option<Vec<String>> {
        let number = |input: &RewardInput<'_>| canonical_decimal(input.completion).unwrap_or_default();
        Some(batch.iter().map(number).collect())
    }

    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        prompt.ground_truth.iter().map(|truth| answer_part(truth).unwrap_or(truth).to_owned()).collect()
    }
}
