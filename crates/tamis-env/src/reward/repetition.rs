//! `repetition`: a penalty on repeated n-grams of tokens.

use std::collections::HashSet;

use super::{RewardError, RewardFunction, RewardInput, RewardOutcome};

/// `score = (1 − unique / total) · max_penalty` over the n-grams of completion tokens (TRL's
/// `get_repetition_penalty_reward`, 1.16.0, after Yeo et al. 2025, arXiv 2502.03373, appendix B.6): 0 where
/// no n-gram repeats or the completion is shorter than n, at worst `max_penalty`. Shaping.
#[derive(Debug, Clone, Copy)]
pub struct Repetition {
    ngram_size: usize,
    max_penalty: f64,
}

impl Repetition {
    /// `ngram_size` at least 1, `max_penalty` at most 0 (TRL's defaults: 3 and −1).
    pub fn new(ngram_size: usize, max_penalty: f64) -> Result<Self, RewardError> {
        let fail =
            |expected, actual: String| Err(RewardError::Parameter { kind: "repetition", expected, actual });
        if ngram_size == 0 {
            return fail("an ngram_size of at least 1", ngram_size.to_string());
        }
        if !(max_penalty.is_finite() && max_penalty <= 0.0) {
            return fail("a max_penalty of at most 0", tamis_core::figure::shortest(max_penalty));
        }
        Ok(Self { ngram_size, max_penalty })
    }

    /// The penalty of a token sequence.
    pub fn penalty(self, token_ids: &[u32]) -> f64 {
        let total = (token_ids.len() + 1).saturating_sub(self.ngram_size);
        if total == 0 {
            return 0.0;
        }
        let unique: HashSet<&[u32]> = token_ids.windows(self.ngram_size).collect();
        (1.0 - unique.len() as f64 / total as f64) * self.max_penalty
    }
}

impl RewardFunction for Repetition {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        batch.iter().map(|input| RewardOutcome::score(self.penalty(input.completion_ids))).collect()
    }

    fn is_shaping(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_vectors() {
        for case in tamis_golden::cases("trl_reward_repetition") {
            let ids: Vec<u32> = tamis_golden::numbers(&case["inputs"]["completion_ids"])
                .iter()
                .map(|&id| id as u32)
                .collect();
            let ngram_size = case["params"]["ngram_size"].as_u64().unwrap() as usize;
            let max_penalty = case["params"]["max_penalty"].as_f64().unwrap();
            let penalty = Repetition::new(ngram_size, max_penalty).unwrap().penalty(&ids);
            let expected = case["outputs"]["reward"].as_f64().unwrap();
            tamis_golden::assert_close(case["name"].as_str().unwrap(), &[penalty], &[expected], 1e-12, 1e-12);
        }
    }

    #[test]
    fn errors() {
        insta::assert_snapshot!(Repetition::new(0, -1.0).unwrap_err(), @"reward `repetition` needs an ngram_size of at least 1, got 0");
        insta::assert_snapshot!(Repetition::new(3, 0.5).unwrap_err(), @"reward `repetition` needs a max_penalty of at most 0, got 0.5");
    }
}
