//! Why a simulation cannot be made.

use std::path::PathBuf;

use tamis_config::SimulatedPolicy;
use tamis_core::figure::shortest;
use tamis_core::schedule::ScheduleError;
use thiserror::Error;

use crate::advise::AdviseError;

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
    /// Rollouts cannot be read.
    #[error(transparent)]
    Rollouts(#[from] AdviseError),
    /// The outcome of rollouts does not say what is right.
    #[error("{}: `{outcome}` {}", path.display(), match values {
        Some((low, top)) => format!("is {} or {}: is {} right?", shortest(*low), shortest(*top), shortest(*top)),
        None => "has more than two values, which say of no member whether it is right".to_owned(),
    })]
    NoPassRate {
        /// The file or folder.
        path: PathBuf,
        /// Name of the outcome.
        outcome: String,
        /// Its values, where it has two.
        values: Option<(f64, f64)>,
    },
    /// Rollouts of one sample a prompt.
    #[error("{}: every prompt has one sample, which says nothing of how prompts differ", path.display())]
    OneSample {
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
        match self {
            Self::Rollouts(error) => error.is_usage(),
            Self::NoPassRate { .. } | Self::OneSample { .. } => false,
            Self::Histogram { .. } | Self::Schedule { .. } => true,
        }
    }

    /// The fix, where one is known.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Histogram { .. } => {
                "write for example `pass_rate: {kind: histogram, rates: [0, 0.5, 1], counts: [20, 60, 20]}`"
                    .to_owned()
            }
            Self::Rollouts(AdviseError::NothingThere { .. } | AdviseError::NoRollouts { .. }) => {
                "`simulate.pass_rate.path` names a run directory, or a file of rollouts (Parquet or JSONL)"
                    .to_owned()
            }
            Self::Rollouts(AdviseError::NoOutcome { .. }) => {
                "an outcome is read from `acc`, `accuracy`, `success`, `score` or `reward`".to_owned()
            }
            Self::Rollouts(error) => return error.hint(),
            Self::NoPassRate { .. } => {
                "give rows an `acc` of 1 where they are right and 0 where not, or say the rates: `pass_rate: {kind: \
                 histogram, rates: [0, 0.5, 1], counts: [20, 60, 20]}`"
                    .to_owned()
            }
            Self::OneSample { .. } => "sample each prompt 4 times or more".to_owned(),
            Self::Schedule { policy, .. } => {
                format!(
                    "name other policies than `{policy}` with `simulate.policies`, or change its settings"
                )
            }
        })
    }
}
