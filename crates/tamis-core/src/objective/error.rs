//! Why an objective cannot be evaluated.

use thiserror::Error;

use crate::ragged::ColumnError;
use crate::setting::OutOfRange;

/// An objective cannot be evaluated on these columns, or has a setting out of range.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ObjectiveError {
    /// A setting of the loss or of the adaptive entropy outside its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// Columns that do not fit together.
    #[error(transparent)]
    Columns(#[from] ColumnError),
    /// A column that the objective needs was not given.
    #[error("column `{column}` is missing; {needed_by} needs it")]
    Missing {
        /// Name of the column.
        column: &'static str,
        /// The part of the objective that needs it.
        needed_by: &'static str,
    },
    /// A setting outside its range.
    #[error("objective setting `{setting}` is {}; expected {expected}", crate::figure::shortest(*.value))]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The value given.
        value: f64,
        /// The value expected.
        expected: &'static str,
    },
    /// A loss whose ratio has no such level.
    #[error("policy loss `{loss}` has no importance `{importance}`; leave it at `token`")]
    Importance {
        /// Name of the loss.
        loss: &'static str,
        /// Name of the level.
        importance: &'static str,
    },
    /// A loss that is not itself under that aggregation.
    #[error("policy loss `{loss}` with aggregation `{aggregation}`; expected `{expected}`")]
    Aggregation {
        /// Name of the loss.
        loss: &'static str,
        /// Name of the aggregation.
        aggregation: &'static str,
        /// The one that belongs to it.
        expected: &'static str,
    },
    /// A trajectory was recorded outside the batch or twice.
    #[error(
        "trajectory {index} of an optimizer batch of {num_sequences} {}",
        if *.recorded { "was recorded twice" } else { "does not exist" }
    )]
    SequenceIndex {
        /// Place in the optimizer batch.
        index: usize,
        /// Trajectories in it.
        num_sequences: usize,
        /// Whether the place exists and was taken.
        recorded: bool,
    },
}

/// `Ok` where `fine`, otherwise the setting as an error.
pub(crate) fn in_range(
    setting: &'static str,
    value: f64,
    fine: bool,
    expected: &'static str,
) -> Result<(), ObjectiveError> {
    if fine { Ok(()) } else { Err(ObjectiveError::Setting { setting, value, expected }) }
}
