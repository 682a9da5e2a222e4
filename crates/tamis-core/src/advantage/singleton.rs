//! Groups of one member, which have nothing to be compared with.

use crate::choice;
use crate::ragged::Ragged;

choice! {
    /// The advantage in a group of one trajectory.
    ///
    /// This does not apply to a group of several members of which only one is scored: its members get 0.
    pub enum SingletonAdvantage {
        /// Zero: there is nothing to compare with (TRL).
        Zero = "zero",
        /// The reward itself, as if the baseline were 0 (verl; its GRPO uses a deviation of 1, which gives
        /// the reward over `1 + epsilon`).
        Raw = "raw",
    }
}

impl SingletonAdvantage {
    /// Advantage of the only member of a group, from its reward; 0 if that is NaN.
    pub(crate) fn advantage(self, reward: f64) -> f64 {
        match self {
            Self::Raw if !reward.is_nan() => reward,
            Self::Raw | Self::Zero => 0.0,
        }
    }
}

/// 0 for the NaN of an unscored member, and after an overflow.
pub(crate) fn finite_or_zero(advantage: f64) -> f64 {
    if advantage.is_finite() { advantage } else { 0.0 }
}

pub(crate) fn zero_where_not_finite(mut advantages: Ragged<f64>) -> Ragged<f64> {
    for row in 0..advantages.num_rows() {
        for advantage in advantages.row_mut(row) {
            *advantage = finite_or_zero(*advantage);
        }
    }
    advantages
}
