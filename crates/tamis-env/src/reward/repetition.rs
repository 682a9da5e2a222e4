//! `repetition`: a penalty on repeated n-grams of tokens.

use std::collections::HashSet;

use super::error::RewardError;
use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::settings::{BuildError, Conflict, Nature, RewardContext, RewardSettings};

tamis_core::settings! {
    /// `score = (1 − unique / total) · max_penalty` over the n-grams of completion tokens (TRL's
    /// `get_repetition_penalty_reward`, 1.16.0, after Yeo et al. 2025, arXiv 2502.03373, appendix B.6): 0 if
    /// no n-gram repeats or the completion is shorter than n, and never below `max_penalty`. Shaping.
    #[derive(Copy)]
    pub struct Repetition {
        /// Number of tokens of an n-gram.
        ngram_size: usize = 3, AtLeast(1.0);
        /// The score if everything repeats; not above 0.
        max_penalty: f64 = -1.0;
    }
}

impl RewardSettings for Repetition {
    fn build(&self, _context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        let fail =
            |expected, actual: String| Err(RewardError::parameter("repetition", expected, &actual).into());
        if self.ngram_size == 0 {
            return fail("an ngram_size of at least 1", "0".to_owned());
        }
        if !(self.max_penalty.is_finite() && self.max_penalty <= 0.0) {
            return fail("a max_penalty of at most 0", tamis_core::figure::shortest(self.max_penalty));
        }
        Ok(Box::new(*self))
    }

    fn nature(&self) -> Nature {
        Nature::SHAPING
    }

    fn conflicts(&self, path: &str, _limit: usize) -> Vec<Conflict> {
        let (key, value) = (format!("{path}.max_penalty"), self.max_penalty);
        let message = format!("`{key}` is {value}: a penalty is 0 or less");
        let conflict = Conflict { keys: vec![key], message, hint: format!("write {}", -value) };
        (value > 0.0).then_some(conflict).into_iter().collect()
    }
}

impl Repetition {
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
            let penalty = Repetition { ngram_size, max_penalty }.penalty(&ids);
            let expected = case["outputs"]["reward"].as_f64().unwrap();
            tamis_golden::assert_close(case["name"].as_str().unwrap(), &[penalty], &[expected], 1e-12, 1e-12);
        }
    }

    #[test]
    fn errors() {
        let error = |ngram_size, max_penalty| {
            Repetition { ngram_size, max_penalty }.build(&RewardContext::alone("r", 8)).err().unwrap()
        };
        insta::assert_snapshot!(error(0, -1.0), @"reward `repetition` needs an ngram_size of at least 1, got 0");
        insta::assert_snapshot!(error(3, 0.5), @"reward `repetition` needs a max_penalty of at most 0, got 0.5");
    }
}
