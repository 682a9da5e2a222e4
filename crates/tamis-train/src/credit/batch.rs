//! The groups of a step.

use tamis_core::group::{Group, Trajectory};
use tamis_core::ragged::Ragged;
use tamis_core::schedule::StepReport;
use tamis_rollout::Record;

use super::members::TrainedMembers;
use crate::learner::LearnerSequence;
use crate::learner::micro_batch::sequences;

#[derive(Debug, Clone)]
pub(crate) struct StepBatch {
    /// Groups to train on, in batch order; copies of them come last.
    pub(crate) trained: Vec<Record>,
    /// Every other group that left the machine, in all attempts at the step.
    pub(crate) others: Vec<Record>,
    /// Groups generated for the step and kept for a later one.
    pub(crate) carried_out: Vec<Record>,
    /// Numbers of the step, all attempts together.
    pub(crate) report: StepReport,
    /// Number of its aborted attempts.
    pub(crate) num_given_up: usize,
}

impl StepBatch {
    /// Groups of a step that is not complete, as a batch of their own.
    pub(crate) fn part(step: u64, trained: Vec<Record>) -> Self {
        Self {
            trained,
            others: Vec::new(),
            carried_out: Vec::new(),
            report: StepReport { step, ..StepReport::default() },
            num_given_up: 0,
        }
    }

    /// Everything whose generation ended in the step, in all of its attempts and before any filter.
    pub(crate) fn generated_records(&self) -> Vec<&Record> {
        let all = self.trained.iter().chain(&self.others).chain(&self.carried_out);
        generated_records(self.report.step, all)
    }
}

/// The groups that a step trains on, as its passes and its updates read them.
pub(crate) struct TrainedGroups<'a> {
    /// Their records in batch order \[P\].
    pub(crate) records: &'a [Record],
    /// The groups \[P\].
    pub(crate) groups: Vec<&'a Group>,
    /// Their trajectories as learner sequences \[B\].
    pub(crate) sequences: Vec<LearnerSequence<'a>>,
    /// Rewards as they are compared `[P][G]`; NaN for a member that is not compared.
    pub(crate) rewards: Ragged<f64>,
}

impl<'a> TrainedGroups<'a> {
    pub(crate) fn new(records: &'a [Record], members: &TrainedMembers<'_>) -> Self {
        let groups: Vec<&Group> = records.iter().map(|record| &record.group).collect();
        Self { records, sequences: sequences(&groups), rewards: members.rewards(), groups }
    }

    /// Sizes of the groups \[P\].
    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.groups.iter().map(|group| group.trajectories.len()).collect()
    }

    /// All of their trajectories \[B\].
    pub(crate) fn trajectories(&self) -> Vec<&'a Trajectory> {
        self.groups.iter().flat_map(|group| &group.trajectories).collect()
    }
}

/// The records among these whose generation ended in the given step. A record that an earlier step kept
/// was counted there, and a copy is counted with its original.
pub(crate) fn generated_records<'a>(step: u64, records: impl Iterator<Item = &'a Record>) -> Vec<&'a Record> {
    let is_new = |record: &&Record| record.kept_in.is_none_or(|kept_in| kept_in == step);
    let is_generated = |record: &&Record| !record.is_copy() && !record.group.trajectories.is_empty();
    records.filter(|record| is_new(record) && is_generated(record)).collect()
}
