//! Why a sweep could not be planned or run.

use std::path::PathBuf;

use tamis_config::ConfigErrors;
use tamis_run::durable::DiskError;
use thiserror::Error;

/// A sweep could not be planned or run. That one of its runs fails is none of these.
#[derive(Debug, Error)]
pub enum SweepError {
    /// The file of the sweep, or the configuration of one of its runs, is wrong: everything at once.
    #[error("{0}")]
    Configuration(ConfigErrors),
    /// Names or values on the command line that the sweep does not have.
    #[error("{message}")]
    Arguments {
        /// The fault.
        message: String,
        /// The fix.
        hint: String,
    },
    /// Folders of runs that hold another configuration than the sweep has now: all of them.
    #[error("{} of another configuration than the sweep has now:\n{}", if runs.len() == 1 { "there is a run" } else { "there are runs" }, runs.join("\n"))]
    Mismatch {
        /// Each folder, with the keys that differ.
        runs: Vec<String>,
    },
    /// Another sweep works in the folder of results.
    #[error("begin a sweep in `{}`: {} works there", folder.display(), process.map_or_else(|| "another sweep, or a run that one left,".to_owned(), |id| format!("process {id}")))]
    Held {
        /// The folder of results.
        folder: PathBuf,
        /// The process, where its number could be read.
        process: Option<u32>,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The program itself cannot be found to start it again.
    #[error("find the program that runs, to start it for each run")]
    Program(#[source] std::io::Error),
}

impl SweepError {
    /// The fix, where one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Arguments { hint, .. } => Some(hint.clone()),
            Self::Mismatch { .. } => Some(
                "begin another sweep with `--date MMDD`, or move these folders away; `results` in the sweep's file names another place"
                    .to_owned(),
            ),
            Self::Held { .. } => Some(
                "wait until it has ended, or end it; a sweep of its own has a folder of its own (`results` in the sweep's file)"
                    .to_owned(),
            ),
            Self::Disk(error) => error.hint().map(str::to_owned),
            Self::Configuration(_) | Self::Program(_) => None,
        }
    }
}
