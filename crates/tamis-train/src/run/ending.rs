//! How a run ends: as planned, stopped early, or interrupted.

use std::path::PathBuf;

use tamis_core::early_stop::StopReason;
use tamis_core::schedule::RunEnd;
use thiserror::Error;

use crate::measure::validation::ValidationReport;

/// Where Ctrl-C ended what had not come to its first step.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unbegun {
    /// While a run was prepared.
    #[error("interrupted before the run began; nothing was changed")]
    NotBegun,
    /// While a resume was prepared.
    #[error(
        "interrupted before the run went on; its checkpoints are as they were, and at most what comes after the last of them was cut"
    )]
    NotResumed,
    /// Before there was anything to save.
    #[error("interrupted before the first checkpoint")]
    Unsaved {
        /// The run directory.
        run: PathBuf,
    },
}

impl Unbegun {
    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unsaved { run } => {
                Some(format!("begin it again from its start with `tamis train --resume {}`", run.display()))
            }
            Self::NotBegun | Self::NotResumed => None,
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// As planned.
    Finished(RunEnd),
    /// An early stop fired: saved, and no failure.
    StoppedEarly(StopReason),
    /// Ctrl-C: saved, and to be resumed.
    Interrupted,
}

/// A run that ended well.
#[derive(Debug, Clone)]
pub struct RunSummary {
    /// How it ended.
    pub ending: Ending,
    /// Steps trained.
    pub steps: u64,
    /// The run directory.
    pub run: PathBuf,
    /// The last checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// Validation before reinforcement learning.
    pub before: Option<ValidationReport>,
    /// Validation after the last step.
    pub after: Option<ValidationReport>,
}
