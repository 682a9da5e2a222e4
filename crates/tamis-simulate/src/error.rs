//! Why a simulation cannot be made.

use std::path::PathBuf;

use tamis_config::SimulatedPolicy;
use tamis_core::schedule::ScheduleError;
use tamis_data::records::RecordError;
use tamis_run::directory::FolderError;
use thiserror::Error;

/// A simulation cannot be made.
#[derive(Debug, Error)]
pub enum SimulateError {
    /// A histogram whose lists do not belong together.
    #[error(
        "`simulate.pass_rate` has {rates} rates and {counts} counts, {total} prompts in all: each rate needs a \
         count, and some must be above 0"
    )]
    Histogram {
        /// Number of rates.
        rates: usize,
        /// Number of counts.
        counts: usize,
        /// Their sum.
        total: f64,
    },
    /// There is nothing at this path.
    #[error("there is no file or folder {}", path.display())]
    NothingThere {
        /// The path.
        path: PathBuf,
    },
    /// A folder without rollouts.
    #[error("no rollouts are in {}", folder.display())]
    NoRollouts {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder cannot be listed.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A row cannot be read.
    #[error(transparent)]
    Records(#[from] RecordError),
    /// No row says which prompt it is of and what it came to.
    #[error("{}: no row has both a prompt and an outcome", path.display())]
    NoOutcome {
        /// The file or folder.
        path: PathBuf,
    },
    /// The settings of a policy contradict themselves.
    #[error("the policy `{policy}` cannot be simulated")]
    Schedule {
        /// The policy.
        policy: SimulatedPolicy,
        /// The contradiction.
        #[source]
        source: ScheduleError,
    },
}

impl SimulateError {
    /// Whether what was asked for is wrong, rather than what the files hold.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Folder(_) | Self::Records(_) | Self::NoOutcome { .. })
    }

    /// The fix, where one is known.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Histogram { .. } => {
                "write for example `pass_rate: {kind: histogram, rates: [0, 0.5, 1], counts: [20, 60, 20]}`"
                    .to_owned()
            }
            Self::NothingThere { .. } | Self::NoRollouts { .. } => {
                "`simulate.pass_rate.path` names a run directory, or a file of rollouts (Parquet or JSONL)"
                    .to_owned()
            }
            Self::NoOutcome { .. } => {
                "a prompt is read from `prompt_id`, `group_id`, `uid` or `group`, an outcome from \
                 `acc`, `score`, `metric_value` or `reward`"
                    .to_owned()
            }
            Self::Schedule { policy, .. } => {
                format!(
                    "name other policies than `{policy}` with `simulate.policies`, or change its settings"
                )
            }
            Self::Folder(_) | Self::Records(_) => return None,
        })
    }
}
