//! Errors of planning or running a sweep.

use tamis_config::ConfigErrors;
use tamis_run::durable::DiskError;

use crate::Fault;

/// A sweep could not be planned or run. The failure of one of its runs is not such an error.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// All errors in the sweep's file and in the configurations of its runs.
    #[error("{0}")]
    Configuration(ConfigErrors),
    /// Any other error.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<DiskError> for SweepError {
    fn from(error: DiskError) -> Self {
        Fault::from(error).into()
    }
}
