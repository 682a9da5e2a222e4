//! What a run remembers of a prompt.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::group::{PolicyVersion, PromptId};

/// The two ways in which the outcome of a group can be uniform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// All scored members are correct.
    Easy,
    /// No scored member is correct.
    Hard,
}

impl Side {
    /// The side of a group from its numbers of correct and of scored members; `None` if it is mixed or has no
    /// scored member.
    pub fn of(num_correct: u32, num_scored: u32) -> Option<Self> {
        match num_correct {
            _ if num_scored == 0 => None,
            0 => Some(Self::Hard),
            all if all == num_scored => Some(Self::Easy),
            _ => None,
        }
    }
}

/// The results of one prompt's groups; the latest counts most.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptHistory {
    /// Groups seen.
    pub num_groups: u64,
    /// Correct members; a group's share fades with its age.
    pub correct: f64,
    /// Members that are not correct, counted in the same way.
    pub wrong: f64,
    /// Version that dispatched the latest group.
    pub version: PolicyVersion,
    /// If the latest group was uniform: its side, and how many groups in a row were uniform on it.
    pub uniform: Option<(Side, u32)>,
    /// Share of the latest group's scored members that are correct.
    pub latest: f64,
}

/// The counts of a history as valued at a later version.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FadedCounts {
    /// Members that are correct.
    pub correct: f64,
    /// Members that are not.
    pub wrong: f64,
}

impl PromptHistory {
    /// The counts as valued at a version: each version of age multiplies them by `memory`.
    pub fn faded(&self, version: PolicyVersion, memory: f64) -> FadedCounts {
        let age = version.0.saturating_sub(self.version.0);
        let left = memory.powf(age as f64);
        FadedCounts { correct: self.correct * left, wrong: self.wrong * left }
    }

    /// Records a group by its numbers of correct and of scored members. A group without a scored member
    /// changes nothing.
    pub fn observe(&mut self, num_correct: u32, num_scored: u32, version: PolicyVersion, memory: f64) {
        if num_scored == 0 {
            return;
        }
        // Groups may finish in another order than that of their dispatch.
        let latest = self.version.max(version);
        let faded = self.faded(latest, memory);
        let left = memory.powf((latest.0 - version.0) as f64);
        self.correct = faded.correct + left * f64::from(num_correct.min(num_scored));
        self.wrong = faded.wrong + left * f64::from(num_scored.saturating_sub(num_correct));
        self.version = latest;
        self.num_groups += 1;
        self.latest = f64::from(num_correct.min(num_scored)) / f64::from(num_scored);
        self.uniform = Side::of(num_correct, num_scored).map(|side| match self.uniform {
            Some((before, times)) if before == side => (side, times.saturating_add(1)),
            _ => (side, 1),
        });
    }
}

/// The histories of all prompts that have been generated from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PromptHistories(BTreeMap<PromptId, PromptHistory>);

impl PromptHistories {
    /// The history of one prompt; `None` before its first group.
    pub fn get(&self, prompt: PromptId) -> Option<&PromptHistory> {
        self.0.get(&prompt)
    }

    /// Records a group of a prompt.
    pub fn observe(
        &mut self,
        prompt: PromptId,
        num_correct: u32,
        num_scored: u32,
        version: PolicyVersion,
        memory: f64,
    ) {
        if num_scored > 0 {
            self.0.entry(prompt).or_default().observe(num_correct, num_scored, version, memory);
        }
    }

    /// Prompts with a history, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (PromptId, &PromptHistory)> {
        self.0.iter().map(|(id, history)| (*id, history))
    }

    /// Number of prompts with a history.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no prompt has a history.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
