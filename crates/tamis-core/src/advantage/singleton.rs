//! Groups of one member, which have no one to be compared with.

use serde::{Deserialize, Serialize};

use crate::ragged::Ragged;

/// What a group of one member gets.
///
/// A group of several members of which only one is scored is none: its members get 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Singleton {
    /// Its own reward, as if the baseline were 0 (verl; its GRPO takes the deviation as 1, so there the reward over `1 + epsilon`).
    RawReward,
    /// Zero (TRL).
    #[default]
    Zero,
}

impl Singleton {
    /// What the only member of a group gets for its reward; 0 where that is NaN.
    pub(crate) fn advantage(self, reward: f64) -> f64 {
        match self {
            Self::RawReward if !reward.is_nan() => reward,
            Self::RawReward | Self::Zero => 0.0,
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
