//! Why a simulation cannot be made.

use std::path::PathBuf;

use tamis_config::SimulatedPolicy;
use tamis_core::schedule::{ScheduleError, SettingsError};
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
    /// A batch of too many completions.
    #[error(
        "a batch of {groups} groups of {members} is {} completions, and a simulation has at most {most} in a batch",
        groups.saturating_mul(*members)
    )]
    BatchTooLarge {
        /// Groups of a batch.
        groups: usize,
        /// n.
        members: usize,
        /// Completions, at most.
        most: usize,
    },
    /// A policy that has too many completions in flight.
    #[error(
        "the policy `{policy}` keeps {slots} slots full with {groups} groups of {members} in flight, and a simulation has \
         at most {most} completions in flight"
    )]
    TooManyInFlight {
        /// The policy.
        policy: SimulatedPolicy,
        /// Slots of all servers.
        slots: usize,
        /// Groups in flight.
        groups: usize,
        /// n.
        members: usize,
        /// Completions, at most.
        most: usize,
    },
    /// One completion can be larger than the cache.
    #[error(
        "`simulate.servers.kv_tokens` {kv_tokens} cannot hold one completion: a prompt of {prompt} tokens and up to {longest} \
         tokens after it"
    )]
    CacheTooSmall {
        /// Tokens of the cache.
        kv_tokens: usize,
        /// Tokens of a prompt.
        prompt: usize,
        /// Tokens after which a completion is cut.
        longest: usize,
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

    /// Whether it concerns one policy, and others can be simulated.
    pub(crate) fn is_of_one_policy(&self) -> bool {
        let is_pool = |source: &ScheduleError| {
            matches!(source, ScheduleError::Settings(SettingsError::PoolFilter { .. }))
        };
        match self {
            Self::TooManyInFlight { .. } => true,
            Self::Schedule { source, .. } => is_pool(source),
            _ => false,
        }
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
            Self::BatchTooLarge { .. } => {
                "lower `data.train_batch_size` or `rollout.n`: costs of a batch an eighth as large are nearly the same"
                    .to_owned()
            }
            Self::TooManyInFlight { policy, .. } => format!(
                "lower `simulate.servers.slots` or `simulate.servers.count`, or name other policies than `{policy}` with \
                 `simulate.policies`"
            ),
            Self::CacheTooSmall { prompt, longest, .. } => format!(
                "set `simulate.servers.kv_tokens: {}` or more, or lower `rollout.max_response_length`",
                prompt + longest
            ),
            Self::Schedule { source: ScheduleError::Settings(SettingsError::PoolFilter { .. }), .. } => {
                "name policies that have rounds with `simulate.policies`, such as `verl`, `nemo_rl`, `rounds_carry` and \
                 `deficit`; an empty list takes all that have"
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
