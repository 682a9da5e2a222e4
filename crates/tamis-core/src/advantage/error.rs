//! Why advantages cannot be computed from a batch.

use thiserror::Error;

use super::Column;
use crate::figure::shortest;
use crate::setting::OutOfRange;

/// Advantages cannot be computed from this batch.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum AdvantageError {
    /// A reward is infinite: no statistic of its group means anything.
    #[error(
        "{name} of trajectory {trajectory} in group {group} is {reward}; rewards must be finite, or NaN for unscored"
    )]
    InfiniteReward {
        /// `reward`, or the name of the component.
        name: String,
        /// Row of the batch.
        group: usize,
        /// Place in the row.
        trajectory: usize,
        /// The reward.
        reward: f64,
    },
    /// The reward of a prompt's greedy completion is infinite.
    #[error("greedy reward of group {group} is {reward}; rewards must be finite, or NaN for unscored")]
    InfiniteGreedyReward {
        /// Row of the batch.
        group: usize,
        /// The reward.
        reward: f64,
    },
    /// A reward outside the range that the estimator is defined on.
    #[error(
        "reward of trajectory {trajectory} in group {group} is {}; `{estimator}` is defined for rewards from {} to {}",
        shortest(*.reward), shortest(*.low), shortest(*.high)
    )]
    RewardRange {
        /// Name of the estimator.
        estimator: &'static str,
        /// Row of the batch.
        group: usize,
        /// Place in the row.
        trajectory: usize,
        /// The reward.
        reward: f64,
        /// Lowest reward allowed.
        low: f64,
        /// Highest reward allowed.
        high: f64,
    },
    /// A setting outside its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// A setting outside the range that others of its estimator leave.
    #[error("advantage setting `{setting}` is {}; expected {expected}", shortest(*.value))]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The value given.
        value: f64,
        /// The value expected.
        expected: &'static str,
    },
    /// A column that the estimator needs was not given.
    #[error("column `{}` is missing; `{estimator}` needs it: {}", .column.name(), .column.meaning())]
    Missing {
        /// The column.
        column: Column,
        /// Name of the estimator.
        estimator: &'static str,
    },
    /// A column has another number of rows than the batch.
    #[error("column `{}` has {actual} rows; expected {expected}, one per {unit}", .column.name())]
    Rows {
        /// The column.
        column: Column,
        /// The unit of a row: trajectory or group.
        unit: &'static str,
        /// Rows that the batch needs.
        expected: usize,
        /// Rows that it has.
        actual: usize,
    },
    /// A row of a column has another length than the batch has there.
    #[error("row {row} of column `{}` has {actual} values; expected {expected}", .column.name())]
    RowLength {
        /// The column.
        column: Column,
        /// Row of the column.
        row: usize,
        /// Values that the batch needs.
        expected: usize,
        /// Values that it has.
        actual: usize,
    },
    /// Advantages that are to be shaped are not of this batch.
    #[error("advantages of {actual} trajectories; expected {expected}")]
    Advantages {
        /// Trajectories of the batch.
        expected: usize,
        /// Trajectories that have advantages.
        actual: usize,
    },
    /// A number that the estimator reads is NaN or infinite.
    #[error("column `{}` is {value} at token {token} of trajectory {trajectory}; expected a finite number", .column.name())]
    NotFinite {
        /// The column.
        column: Column,
        /// Row of the column.
        trajectory: usize,
        /// Place in the row.
        token: usize,
        /// The number.
        value: f64,
    },
}

/// Whether a setting is in range, as an error that names it.
pub(crate) fn in_range(
    setting: &'static str,
    value: f64,
    fine: bool,
    expected: &'static str,
) -> Result<(), AdvantageError> {
    if fine { Ok(()) } else { Err(AdvantageError::Setting { setting, value, expected }) }
}
