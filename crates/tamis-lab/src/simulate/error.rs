//! Why a simulation cannot be made.

use std::path::PathBuf;

use tamis_config::SimulatedPolicy;
use tamis_core::figure::shortest;
use tamis_core::schedule::{ScheduleError, SettingsError};
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
        "the policy `{policy}` has {groups} groups of {members} in flight, and a simulation at most {most} completions"
    )]
    TooManyInFlight {
        /// The policy.
        policy: SimulatedPolicy,
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
        match self {
            Self::Rollouts(error) => error.is_usage(),
            Self::NoPassRate { .. } | Self::OneSample { .. } => false,
            _ => true,
        }
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
            Self::BatchTooLarge { .. } => {
                "lower `data.train_batch_size` or `rollout.n`: costs of a batch an eighth as large are nearly the same"
                    .to_owned()
            }
            Self::TooManyInFlight { policy, .. } => {
                let keys = match policy {
                    SimulatedPolicy::PrimeRl => "`simulate.servers.slots` or `simulate.servers.count`",
                    SimulatedPolicy::Configured => "`schedule.rounds_in_flight`",
                    _ => "`rollout.n`",
                };
                format!("lower {keys}, or name other policies than `{policy}` with `simulate.policies`")
            }
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
        })
    }
}
