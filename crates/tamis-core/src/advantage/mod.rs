//! Advantages: how much better than its group a trajectory did.
//!
//! Rewards `[P][G]` come in as one row per group (NaN = unscored), an [`AdvantageEstimator`] turns them into [`Advantages`], and
//! the [objective](crate::objective) takes those as a column. One file per estimator, named by the field's term.

pub mod grpo;
pub mod statistics;

use thiserror::Error;

use crate::entry::Entry;
use crate::ragged::Ragged;

pub use grpo::{Grpo, Scale, Singleton};
pub use statistics::RewardStatistics;

/// The catalogue's entries of this module.
pub const ENTRIES: &[Entry] = &[grpo::ENTRY];

/// What an estimator may look at. Columns beyond the rewards are optional; an estimator that needs one says so in its error.
#[derive(Debug, Clone, Copy)]
pub struct AdvantageBatch<'a> {
    /// Reward of each trajectory, one row per group `[P][G]`; NaN: unscored.
    pub rewards: &'a Ragged<f64>,
}

impl<'a> AdvantageBatch<'a> {
    /// A batch of outcome rewards alone.
    pub fn of_rewards(rewards: &'a Ragged<f64>) -> Self {
        Self { rewards }
    }
}

/// What an estimator returns.
#[derive(Debug, Clone, PartialEq)]
pub enum Advantages {
    /// One number per trajectory `[P][G]`, the same for each of its tokens.
    PerTrajectory(Ragged<f64>),
    /// One number per token, one row per trajectory `[B][T]`.
    PerToken(Ragged<f64>),
}

/// Advantages cannot be computed from this batch.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum AdvantageError {
    /// A reward is infinite: no statistic of its group means anything.
    #[error(
        "reward of trajectory {trajectory} in group {group} is {reward}; rewards must be finite, or NaN for unscored"
    )]
    InfiniteReward {
        /// Row of the batch.
        group: usize,
        /// Place in the row.
        trajectory: usize,
        /// The reward.
        reward: f64,
    },
    /// A setting outside its range.
    #[error("advantage setting `{setting}` is {value}; expected {expected}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// What it was.
        value: f64,
        /// What it may be.
        expected: &'static str,
    },
}

/// A way to turn rewards into advantages.
pub trait AdvantageEstimator {
    /// The field's name of it, as in the configuration.
    fn name(&self) -> &'static str;

    /// One advantage per trajectory or per token, in the batch's order. Pure: the same batch gives the same bits.
    fn advantages(&self, batch: &AdvantageBatch<'_>) -> Result<Advantages, AdvantageError>;
}
