//! Attempts at a step. What an attempt generates is counted with the attempt that trains, even if it ends
//! without training.

use std::time::Instant;

use tamis_core::schedule::StepReport;
use tamis_rollout::{Collected, Dispatcher, Record};

use super::early::Early;
use crate::credit::batch::StepBatch;
use tamis_run::metrics::timings::Timings;

/// The present step, from the beginning of its first attempt.
#[derive(Debug)]
pub(super) struct Attempts {
    /// When the first attempt began.
    pub(super) began: Instant,
    /// Time of each stage, summed over all attempts.
    pub(super) timings: Timings,
    /// Groups that left the scheduling machine in attempts that were abandoned.
    pub(super) given_up: Vec<Record>,
    pub(super) num_given_up: usize,
    /// The part of the step that was trained on before the step was complete.
    pub(super) early: Early,
    report: Option<StepReport>,
}

impl Attempts {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            timings: Timings::new(),
            given_up: Vec::new(),
            num_given_up: 0,
            early: Early::default(),
            report: None,
        }
    }

    /// Keeps what an attempt without training generated.
    pub(super) fn give_up(&mut self, collected: Collected) {
        self.report = Some(self.whole(&collected.report));
        self.given_up.extend(collected.others);
        self.num_given_up += 1;
    }

    /// The batch of the step: what all of its attempts generated, and what was trained on early. `dispatcher`
    /// holds the groups that the last attempt carried on.
    pub(super) fn batch(&mut self, collected: Collected, dispatcher: &Dispatcher) -> (StepBatch, Early) {
        let report = self.whole(&collected.report);
        let is_carried = |record: &&Record| collected.carried_out.contains(&record.group.id);
        let carried_out = dispatcher.held().filter(is_carried).cloned().collect();
        let mut others = collected.others;
        others.append(&mut self.given_up);
        let (mut trained, mut early) = (collected.trained, std::mem::take(&mut self.early));
        early.give(&mut trained);
        (StepBatch { trained, others, carried_out, report, num_given_up: self.num_given_up }, early)
    }

    /// The report of the step: that of its last attempt, plus everything that earlier attempts generated.
    fn whole(&self, last: &StepReport) -> StepReport {
        let Some(earlier) = &self.report else { return *last };
        let mut whole = StepReport { rounds: earlier.rounds + last.rounds, ..*last };
        whole.all = earlier.all;
        whole.all.append(&last.all);
        whole.accounting = earlier.accounting;
        whole.accounting.append(&last.accounting);
        whole
    }
}
