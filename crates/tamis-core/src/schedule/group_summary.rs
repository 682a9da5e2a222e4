//! The numbers of a scored group that scheduling goes by.

use serde::{Deserialize, Serialize};

use super::Spent;
use crate::filter::{GroupStatistics, OutcomeScale};
use crate::group::Group;

/// Facts about a completed group beside the metric of its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GroupFacts {
    /// Turns and completion tokens of all members.
    #[serde(flatten)]
    pub spent: Spent,
    /// Completion tokens of attempts at members that were given up and made again.
    #[serde(default)]
    pub num_lost_tokens: u64,
    /// Turns of such attempts.
    #[serde(default)]
    pub num_lost_turns: u64,
    /// Whether all members' texts are the same.
    pub is_identical_in_text: bool,
}

impl GroupFacts {
    /// Of a group.
    pub fn of(group: &Group) -> Self {
        Self {
            spent: group.trajectories.iter().map(Spent::of).sum(),
            is_identical_in_text: group.is_identical_in_text(),
            ..Self::default()
        }
    }

    /// What was generated for attempts at members that were given up and made again.
    pub fn lost(&self) -> Spent {
        Spent { tokens: self.num_lost_tokens, turns: self.num_lost_turns }
    }
}

/// What the members came to with which a group was begun, where the others were begun only because these
/// differ.
/// Of all groups together these members alone say without bias how often prompts are solved: groups with
/// others are those whose first members differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstMembers {
    /// Those of them with a metric.
    pub num_scored: u32,
    /// Those of them that are correct; `None` where the metric does not say.
    pub num_correct: Option<u32>,
}

impl FirstMembers {
    /// Of the first `first` members of a whole group, by the filter's metric of its members \[n\]; `None`
    /// where these are all of them.
    pub fn of(values: &[f64], first: usize, scale: Option<OutcomeScale>) -> Option<Self> {
        let values = values.get(..first).filter(|begun| begun.len() < values.len())?;
        let statistics = GroupStatistics::of(values, scale);
        Some(Self {
            num_scored: statistics.num_scored as u32,
            num_correct: statistics.num_correct.map(|correct| correct as u32),
        })
    }
}

/// The scheduler's memory of a scored group: a few numbers; the trajectories stay with the driver.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GroupSummary {
    /// Members.
    pub num_trajectories: u32,
    /// Members with a metric.
    pub num_scored: u32,
    /// Members that are correct; `None` where the metric does not say.
    pub num_correct: Option<u32>,
    /// The same of the members with which it was begun; `None` where these are all that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<FirstMembers>,
    /// Turns and completion tokens of all members.
    #[serde(flatten)]
    pub spent: Spent,
    /// Mean of the metric; `None` where no member has one.
    pub mean: Option<f64>,
    /// Standard deviation, ddof 0.
    pub std: Option<f64>,
    /// The smallest; `None` where no member has one.
    #[serde(default)]
    pub min: Option<f64>,
    /// The largest.
    #[serde(default)]
    pub max: Option<f64>,
    /// Whether all members' texts are the same.
    pub is_identical_in_text: bool,
}

impl GroupSummary {
    /// Of a group's metric and what else is known of it.
    pub fn of(statistics: &GroupStatistics, facts: GroupFacts) -> Self {
        // JSON, in which the machine is saved, has no NaN.
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

    /// The members that say how often its prompt is solved: those with a metric, and how many are correct.
    pub(super) fn unbiased(&self) -> (u32, Option<u32>) {
        match self.first {
            Some(FirstMembers { num_scored, num_correct }) => (num_scored, num_correct),
            None => (self.num_scored, self.num_correct),
        }
    }

    /// Statistics that a filter judges by.
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
