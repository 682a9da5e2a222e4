//! Why an objective cannot be evaluated.

use thiserror::Error;

use crate::fault::Fault;
use crate::setting::OutOfRange;

/// An objective cannot be evaluated on these columns, or has a setting out of range.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ObjectiveError {
    /// A setting of the loss or of the adaptive entropy outside its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// Columns that are missing or do not fit together.
    #[error(transparent)]
    Fault(#[from] Fault),
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
    /// A loss whose ratio does not have this level.
    #[error("policy loss `{loss}` has no importance `{importance}`; leave it at `token`")]
    Importance {
        /// Name of the loss.
        loss: &'static str,
        /// Name of the level.
        importance: &'static str,
    },
    /// A loss that needs another aggregation.
    #[error("policy loss `{loss}` with aggregation `{aggregation}`; expected `{expected}`")]
    Aggregation {
        /// Name of the loss.
        loss: &'static str,
        /// Name of the aggregation.
        aggregation: &'static str,
        /// The aggregation that it needs.
        expected: &'static str,
    },
}

/// `Ok` if `fine`, otherwise the setting as an error.
pub(crate) fn in_range(
    setting: &'static str,
    value: f64,
    fine: bool,
    expected: &'static str,
) -> Result<(), ObjectiveError> {
    if fine { Ok(()) } else { Err(ObjectiveError::Setting { setting, value, expected }) }
}
