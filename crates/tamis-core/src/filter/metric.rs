//! Metrics: the number per trajectory that a filter uses.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::OutcomeScale;
use crate::fault;
use crate::fault::Fault;
use crate::group::{Group, Trajectory};

/// A metric by name.
///
/// | name | per trajectory |
/// |---|---|
/// | `seq_reward` | the reward before any KL penalty (verl: `token_level_scores` summed) |
/// | `seq_final_reward`, `token_level_rewards` | the reward after the KL penalty, summed over tokens; equal to `seq_reward` if KL is not in the reward |
/// | `length` | tokens that the policy produced |
/// | `entropy` | mean token entropy, in nats, if the run computes it |
/// | any other name | the score of that name; a trajectory without it is unscored |
///
/// A score whose name is one of the above is available as `scores.NAME`.
///
/// A KL penalty differs between any two sampled sequences: under `seq_final_reward` with KL in the reward
/// hardly any group is uniform. A shaped reward (length penalty, format bonus) likewise separates members
/// that are all wrong. The raw outcome (`acc`) is the metric to filter on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Metric {
    /// The score of this name.
    Score(String),
    /// The reward before KL.
    SeqReward,
    /// The reward after KL.
    SeqFinalReward,
    /// Token-level rewards, summed; the same number as [`Metric::SeqFinalReward`].
    TokenLevelRewards,
    /// Tokens that the policy produced.
    Length,
    /// Mean token entropy.
    Entropy,
}

/// Names that do not belong to a score.
const BUILT_IN: [&str; 5] = ["seq_reward", "seq_final_reward", "token_level_rewards", "length", "entropy"];

impl From<String> for Metric {
    fn from(name: String) -> Self {
        match name.as_str() {
            "seq_reward" => Self::SeqReward,
            "seq_final_reward" => Self::SeqFinalReward,
            "token_level_rewards" => Self::TokenLevelRewards,
            "length" => Self::Length,
            "entropy" => Self::Entropy,
            _ => match name.strip_prefix("scores.") {
                Some(score) => Self::Score(score.to_owned()),
                None => Self::Score(name),
            },
        }
    }
}

impl From<&str> for Metric {
    fn from(name: &str) -> Self {
        Self::from(name.to_owned())
    }
}

impl From<Metric> for String {
    fn from(metric: Metric) -> Self {
        metric.to_string()
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Score(name) if BUILT_IN.contains(&name.as_str()) || name.starts_with("scores.") => {
                write!(formatter, "scores.{name}")
            }
            Self::Score(name) => formatter.write_str(name),
            Self::SeqReward => formatter.write_str("seq_reward"),
            Self::SeqFinalReward => formatter.write_str("seq_final_reward"),
            Self::TokenLevelRewards => formatter.write_str("token_level_rewards"),
            Self::Length => formatter.write_str("length"),
            Self::Entropy => formatter.write_str("entropy"),
        }
    }
}

/// Metrics that a run will have, as known from its configuration before anything is generated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AvailableMetrics {
    /// Names of the scores that the reward functions provide, in order.
    pub scores: Vec<String>,
    /// Whether token entropies are computed before the filter.
    pub entropy: bool,
}

impl AvailableMetrics {
    /// Every name a filter may use: scores first, then the built-in ones.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.scores.iter().map(|score| Metric::Score(score.clone()).to_string()).collect();
        names.extend(
            BUILT_IN.iter().filter(|name| **name != "entropy" || self.entropy).map(ToString::to_string),
        );
        names
    }
}

/// The reward after the KL penalty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FinalReward<'a> {
    /// KL is not in the reward: it is the trajectory's reward.
    IsReward,
    /// One number per trajectory, groups concatenated \[B\].
    Column(&'a [f64]),
}

/// Metrics that a group does not carry itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExtraColumns<'a> {
    /// The reward after KL. A run with KL in the reward must give the column; otherwise `seq_final_reward`
    /// would be wrong.
    pub final_reward: FinalReward<'a>,
    /// Mean token entropy of each trajectory \[B\], which replaces the trajectories' own.
    pub entropy: Option<&'a [f64]>,
}

impl ExtraColumns<'_> {
    /// No KL in the reward and no entropies.
    pub const NONE: ExtraColumns<'static> =
        ExtraColumns { final_reward: FinalReward::IsReward, entropy: None };
}

/// A metric does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MetricError {
    /// No score and no built-in metric has this name.
    #[error("there is no metric `{name}`; this run has {}{}", list_names(available), suggestion(nearest.as_deref()))]
    Unknown {
        /// The requested name.
        name: String,
        /// The available names.
        available: Vec<String>,
        /// The most similar of them, if one is similar.
        nearest: Option<String>,
    },
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}

fn list_names(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Entropies are not computed in this run.
fn no_entropy(available: &[String]) -> MetricError {
    let names = list_names(available);
    fault!("metric `entropy` needs token entropies, which this run does not compute; it has {names}").into()
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
}

/// The most similar name by Jaro-Winkler, if it is similar enough to be the one intended.
fn nearest(name: &str, available: &[String]) -> Option<String> {
    available
        .iter()
        .map(|candidate| (strsim::jaro_winkler(&name.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate.clone())
}

impl Metric {
    /// The default metric of a filter: the raw outcome `acc`, otherwise `score`.
    ///
    /// # Errors
    /// The rewards provide neither.
    pub fn default_of(available: &AvailableMetrics) -> Result<Self, MetricError> {
        ["acc", "score"]
            .into_iter()
            .find(|name| available.scores.iter().any(|score| score == name))
            .map(Self::from)
            .ok_or_else(|| fault!("the filter names no metric, and the rewards provide neither `acc` nor `score`; set `filter.metric` to \
                one of {}", list_names(&available.names())).into())
    }

    /// Checks that a run will have this metric, before anything is generated.
    ///
    /// # Errors
    /// [`MetricError::Unknown`], or a [`Fault`] for entropies that are not available, with the available
    /// names.
    pub fn check(&self, available: &AvailableMetrics) -> Result<(), MetricError> {
        match self {
            Self::Score(name) if !available.scores.contains(name) => {
                let names = available.names();
                Err(MetricError::Unknown {
                    name: name.clone(),
                    nearest: nearest(name, &names),
                    available: names,
                })
            }
            Self::Entropy if !available.entropy => Err(no_entropy(&available.names())),
            _ => Ok(()),
        }
    }

    /// The metric's values for wrong and correct; `None` for length and entropy, which have none.
    pub fn outcome_scale(&self) -> Option<OutcomeScale> {
        match self {
            Self::Length | Self::Entropy => None,
            _ => Some(OutcomeScale::default()),
        }
    }

    /// Whether the metric mixes other things into the outcome, so that a filter on it may keep groups with
    /// equal outcomes.
    pub fn is_shaped(&self) -> bool {
        matches!(self, Self::SeqReward | Self::SeqFinalReward | Self::TokenLevelRewards)
    }

    /// The number of one trajectory, if it has one: the value that a filter will see for it in its group,
    /// unless KL is in the reward.
    pub fn of_member(&self, trajectory: &Trajectory) -> Option<f64> {
        let value = match self {
            Self::Score(name) => trajectory.scores.get(name).map_or(f64::NAN, |score| score.value),
            Self::SeqReward | Self::SeqFinalReward | Self::TokenLevelRewards => trajectory.reward,
            Self::Length => trajectory.loss_mask.iter().filter(|produced| **produced).count() as f64,
            Self::Entropy => trajectory.entropy.unwrap_or(f64::NAN),
        };
        (!value.is_nan()).then_some(value)
    }

    /// One number per trajectory, groups concatenated \[B\]; NaN for a trajectory without one.
    ///
    /// # Errors
    /// A column is needed and missing, or is not \[B\] long.
    pub fn values(&self, groups: &[Group], extra: &ExtraColumns<'_>) -> Result<Vec<f64>, MetricError> {
        let trajectories = || groups.iter().flat_map(|group| &group.trajectories);
        let expected = groups.iter().map(|group| group.trajectories.len()).sum();
        let checked = |column: &[f64]| {
            if column.len() == expected {
                Ok(column.to_vec())
            } else {
                Err(fault!(
                    "column `{self}` has {actual} numbers for {expected} trajectories",
                    actual = column.len()
                )
                .into())
            }
        };
        let by = |value: &dyn Fn(&Trajectory) -> f64| {
            let mut values = Vec::with_capacity(expected);
            values.extend(trajectories().map(value));
            Ok(values)
        };
        let of_members = || by(&|trajectory| self.of_member(trajectory).unwrap_or(f64::NAN));
        match self {
            Self::Score(_) | Self::SeqReward | Self::Length => of_members(),
            Self::SeqFinalReward | Self::TokenLevelRewards => match extra.final_reward {
                FinalReward::IsReward => of_members(),
                FinalReward::Column(column) => checked(column),
            },
            Self::Entropy => match extra.entropy {
                Some(column) => checked(column),
                None if expected > 0 && trajectories().all(|trajectory| trajectory.entropy.is_none()) => {
                    Err(no_entropy(&BUILT_IN[..4].iter().map(ToString::to_string).collect::<Vec<_>>()))
                }
                None => of_members(),
            },
        }
    }
}
