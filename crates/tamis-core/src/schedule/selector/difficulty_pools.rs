//! Pools of hard and easy prompts, by the pass rate of the latest group. Each pool has its own rate of
//! drawing.

use super::{InclusionWeights, PromptHistory, PromptSelection};
use crate::random::Key;
use crate::settings;

settings! {
    /// Takes a prompt with the rate of its pool: hard and easy prompts sometimes, all others always.
    ///
    /// A prompt is in the hard pool if the pass rate of its latest group is at most `hard_up_to`, and in the
    /// easy pool if that is at least `easy_from`. A prompt without a history is in neither. It leaves its
    /// pool with the next group whose pass rate is outside the pool's range. By default the pools hold the
    /// prompts whose latest group was uniform.
    ///
    /// # Differs from
    /// prime-rl's `difficulty_pool` (pools up to 0.25 and from 0.75, weights 0.2) draws with replacement, in
    /// proportion to the weights; here a pass over the data takes each prompt at most once.
    #[derive(Copy)]
    pub struct DifficultyPools {
        /// Largest pass rate of the hard pool.
        hard_up_to: f64 = 0.0, Between(0.0, 1.0);
        /// Smallest pass rate of the easy pool.
        easy_from: f64 = 1.0, Between(0.0, 1.0);
        /// Probability with which a prompt of the hard pool is taken.
        hard_rate: f64 = 0.2, Between(0.001, 1.0);
        /// Probability with which a prompt of the easy pool is taken.
        easy_rate: f64 = 0.2, Between(0.001, 1.0);
        /// How the loss uses the probability with which a prompt was taken.
        correction: InclusionWeights = InclusionWeights::Biased;
    }
}

impl DifficultyPools {
    /// Whether a prompt is taken; `key` is the key of the draw.
    pub fn select(&self, history: Option<&PromptHistory>, key: Key) -> PromptSelection {
        let inclusion = match history.map(|history| history.latest) {
            Some(rate) if rate <= self.hard_up_to => self.hard_rate,
            Some(rate) if rate >= self.easy_from => self.easy_rate,
            _ => 1.0,
        };
        PromptSelection::with_probability(inclusion, key.uniform(0))
    }
}
