//! `length`: a penalty outside a range of lengths.

use super::error::RewardError;
use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::settings::{BuildError, Nature, RewardContext, RewardSettings};

tamis_core::settings! {
    /// The range of [`Length`].
    #[derive(Copy)]
    pub struct LengthSettings {
        /// Shortest length without penalty, in tokens.
        min_length: usize = 0;
        /// Longest length without penalty, in tokens. Null: `rollout.max_response_length`.
        max_length: Option<usize> = None, AtLeast(1.0);
        /// Distance from the range, in tokens, at which the penalty is full.
        scale: usize = 1, AtLeast(1.0);
    }
}

impl RewardSettings for LengthSettings {
    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        let max_length = self.max_length.unwrap_or(context.max_length);
        Ok(Box::new(Length::new(self.min_length as u64, max_length as u64, self.scale as u64)?))
    }

    fn nature(&self) -> Nature {
        Nature::SHAPING
    }

    fn fill_lengths(&mut self, limit: usize) {
        self.max_length.get_or_insert(limit);
    }
}

/// `score` is 0 for completions of `min..=max` tokens and falls linearly outside, to −1 at a distance of
/// `scale` tokens and beyond. Shaping.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    min: u64,
    max: u64,
    scale: u64,
}

impl Length {
    /// All in tokens; `min <= max`, `scale` at least 1 (1: anything outside the range scores −1).
    pub fn new(min: u64, max: u64, scale: u64) -> Result<Self, RewardError> {
        let fail = |expected, actual: String| Err(RewardError::parameter("length", expected, &actual));
        if min > max {
            return fail("min <= max", format!("min {min}, max {max}"));
        }
        if scale == 0 {
            return fail("a scale of at least 1 token", scale.to_string());
        }
        Ok(Self { min, max, scale })
    }

    /// The penalty of a completion of `length` tokens.
    pub fn penalty(self, length: u64) -> f64 {
        let distance = self.min.saturating_sub(length) + length.saturating_sub(self.max);
        if distance == 0 { 0.0 } else { -(distance.min(self.scale) as f64 / self.scale as f64) }
    }
}

impl RewardFunction for Length {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        batch.iter().map(|input| RewardOutcome::score(self.penalty(input.num_written() as u64))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let length = Length::new(10, 20, 4).unwrap();
        let penalties: Vec<f64> = [0, 8, 10, 20, 21, 24, 1000].map(|tokens| length.penalty(tokens)).to_vec();
        assert_eq!(penalties, [-1.0, -0.5, 0.0, 0.0, -0.25, -1.0, -1.0]);
        insta::assert_snapshot!(Length::new(3, 2, 1).unwrap_err(), @"reward `length` needs min <= max, got min 3, max 2");
        insta::assert_snapshot!(Length::new(1, 2, 0).unwrap_err(), @"reward `length` needs a scale of at least 1 token, got 0");
    }
}
