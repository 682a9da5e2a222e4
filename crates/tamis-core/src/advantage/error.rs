//! Why advantages cannot be computed from a batch.

use thiserror::Error;

use super::Column;
use crate::fault;
use crate::fault::Fault;
use crate::figure::shortest;
use crate::setting::OutOfRange;

/// Advantages cannot be computed from this batch.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum AdvantageError {
    /// A setting outside its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// A setting outside the range that the estimator's other settings leave.
    #[error("advantage setting `{setting}` is {}; expected {expected}", shortest(*.value))]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The value given.
        value: f64,
        /// The value expected.
        expected: &'static str,
    },
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A column that an estimator needs was not given.
pub(super) fn missing(column: Column, estimator: &str) -> AdvantageError {
    fault!("column `{}` is missing; `{estimator}` needs it: {}", column.name(), column.meaning()).into()
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

/// Result of an estimator or of a change to advantages.
pub type Result<T, E = AdvantageError> = std::result::Result<T, E>;
