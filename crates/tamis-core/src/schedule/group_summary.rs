//! The numbers of a scored group that scheduling uses.

use serde::{Deserialize, Serialize};

use super::Spent;
use crate::filter::{GroupStatistics, OutcomeScale};
use crate::group::Group;

/// Facts about a completed group besides the metric of its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GroupFacts {
    /// Turns and completion tokens of all members.
    #[serde(flatten)]
    pub spent: Spent,
    /// Completion tokens of aborted and retried attempts at members.
    #[serde(default)]
    pub num_lost_tokens: u64,
    /// Turns of such attempts.
    #[serde(default)]
    pub num_lost_turns: u64,
    /// Whether all members' texts are the same.
    pub is_identical_in_text: bool,
}

impl GroupFacts {
    /// Facts about a group.
    pub fn of(group: &Group) -> Self {
        Self {
            spent: group.trajectories.iter().map(Spent::of).sum(),
            is_identical_in_text: group.is_identical_in_text(),
            ..Self::default()
        }
    }

    /// Turns and tokens of aborted and retried attempts at members.
    pub fn lost(&self) -> Spent {
        Spent { tokens: self.num_lost_tokens, turns: self.num_lost_turns }
    }
}

/// The results of the members with which a group was begun, if the others were begun only because these
/// differ. Over all groups, only these members give an unbiased estimate of how often prompts are solved:
/// groups with further members are those whose first members differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstMembers {
    /// Those of them with a metric.
    pub num_scored: u32,
    /// Those of them that are correct; `None` if the metric has no outcomes.
    pub num_correct: Option<u32>,
}

impl FirstMembers {
    /// The first `first` members of a whole group, from the filter's metric of its members \[n\]; `None` if
    /// these are all of them.
    pub fn of(values: &[f64], first: usize, scale: Option<OutcomeScale>) -> Option<Self> {
        let values = values.get(..first).filter(|begun| begun.len() < values.len())?;
        let statistics = GroupStatistics::of(values, scale);
        Some(Self {
            num_scored: statistics.num_scored as u32,
            num_correct: statistics.num_correct.map(|correct| correct as u32),
        })
    }
}

/// The scheduler's record of a scored group: a few numbers. The trajectories stay with the driver.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GroupSummary {
    /// Members.
    pub num_trajectories: u32,
    /// Members with a metric.
    pub num_scored: u32,
    /// Members that are correct; `None` if the metric has no outcomes.
    pub num_correct: Option<u32>,
    /// The same for the members with which it was begun; `None` if these are all its members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<FirstMembers>,
    /// Turns and completion tokens of all members.
    #[serde(flatten)]
    pub spent: Spent,
    /// Mean of the metric; `None` if no member has one.
    pub mean: Option<f64>,
    /// Standard deviation, ddof 0.
    pub std: Option<f64>,
    /// The smallest; `None` if no member has one.
    pub min: Option<f64>,
    /// The largest.
    pub max: Option<f64>,
    /// Whether all members' texts are the same.
    pub is_identical_in_text: bool,
}

impl GroupSummary {
    /// From a group's statistics and other facts.
    pub fn of(statistics: &GroupStatistics, facts: GroupFacts) -> Self {
        // The machine is saved as JSON, which has no NaN.
        let finite = |value: f64| value.is_finite().then_some(value);
        Self {
            num_trajectories: statistics.size as u32,
            num_scored: statistics.num_scored as u32,
            num_correct: statistics.num_correct.map(|correct| correct as u32),
            first: None,
            spent: facts.spent,
            mean: finite(statistics.mean),
            std: finite(statistics.std),
            min: finite(statistics.min),
            max: finite(statistics.max),
            is_identical_in_text: facts.is_identical_in_text,
        }
    }

    /// The members that estimate without bias how often the prompt is solved.
    pub(super) fn unbiased(&self) -> FirstMembers {
        self.first.unwrap_or(FirstMembers { num_scored: self.num_scored, num_correct: self.num_correct })
    }

    /// Statistics by which a filter judges.
    pub fn statistics(&self) -> GroupStatistics {
        let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
        GroupStatistics {
            size: self.num_trajectories as usize,
            num_scored: self.num_scored as usize,
            num_correct: self.num_correct.map(|correct| correct as usize),
            mean: number(self.mean),
            std: number(self.std),
            min: number(self.min),
            max: number(self.max),
        }
    }
}
