//! Groups of one member, which have no one to be compared with.

use crate::choice;
use crate::ragged::Ragged;

choice! {
    /// The advantage in a group of one trajectory.
    ///
    /// A group of several members of which only one is scored is none: its members get 0.
    pub enum SingletonAdvantage {
        /// Zero: such a group has nothing to be compared with (TRL).
        Zero = "zero",
        /// The reward itself, as if the baseline were 0 (verl; its GRPO takes the deviation as 1, so there
        /// the reward over `1 + epsilon`).
        Raw = "raw",
    }
}

impl SingletonAdvantage {
    /// Advantage of the only member of a group, given its reward; 0 where that is NaN.
    pub(crate) fn advantage(self, reward: f64) -> f64 {
        match self {
            Self::Raw if !reward.is_nan() => reward,
            Self::Raw | Self::Zero => 0.0,
        }
    }
}

/// 0 for what an unscored member left behind as NaN, and for what overflowed.
pub(crate) fn finite_or_zero(advantage: f64) -> f64 {
    if advantage.is_finite() { advantage } else { 0.0 }
}

/// [`finite_or_zero`] of every advantage.
pub(crate) fn zero_where_not_finite(mut advantages: Ragged<f64>) -> Ragged<f64> {
    for row in 0..advantages.num_rows() {
        for advantage in advantages.row_mut(row) {
            *advantage = finite_or_zero(*advantage);
        }
    }
    advantages
}
