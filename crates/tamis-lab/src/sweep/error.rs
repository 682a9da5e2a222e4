//! Why a sweep could not be planned or run.

use tamis_config::ConfigErrors;
use tamis_run::durable::DiskError;

use crate::Fault;

/// A sweep could not be planned or run. That one of its runs fails is none of these.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The file of the sweep, or the configuration of one of its runs, is wrong: everything at once.
    #[error("{0}")]
    Configuration(ConfigErrors),
    /// Everything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<DiskError> for SweepError {
    fn from(error: DiskError) -> Self {
        Fault::from(error).into()
    }
}
