//! The groups of a step.

use tamis_core::group::Group;
use tamis_core::schedule::StepReport;
use tamis_rollout::Record;

/// The groups of a step, as they were collected for it.
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
    /// Attempts at it that were given up.
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

    /// The trained groups \[P\].
    pub(crate) fn groups(&self) -> Vec<&Group> {
        self.trained.iter().map(|record| &record.group).collect()
    }

    /// Their sizes \[P\].
    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.trained.iter().map(|record| record.group.trajectories.len()).collect()
    }

    /// Everything whose generation ended in the step, in all of its attempts and before any filter.
    pub(crate) fn generated_records(&self) -> Vec<&Record> {
        let all = self.trained.iter().chain(&self.others).chain(&self.carried_out);
        generated_records(self.report.step, all)
    }
}

/// Those of some records whose generation ended in a step: what an earlier one kept was counted in that, and
/// a copy with what it is a copy of.
pub(crate) fn generated_records<'a>(step: u64, records: impl Iterator<Item = &'a Record>) -> Vec<&'a Record> {
    let is_new = |record: &&Record| record.kept_in.is_none_or(|kept_in| kept_in == step);
    let is_generated = |record: &&Record| !record.is_copy() && !record.group.trajectories.is_empty();
    records.filter(|record| is_new(record) && is_generated(record)).collect()
}
