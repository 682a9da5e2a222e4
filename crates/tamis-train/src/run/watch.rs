//! Passes what the dispatcher sees on to the person who watches.

use tamis_core::schedule::RoundReport;
use tamis_rollout::Observer;

use super::generated::GeneratedBatch;
use tamis_run::log::progress::Console;
use tamis_run::log::run_log::LineKind;

/// Speaks and moves the bar while a step is collected.
pub(super) struct StepWatch<'a> {
    pub(super) progress: &'a Console,
    pub(super) group_size: usize,
    /// Groups that the step trains on.
    pub(super) target: u64,
    /// Those of a streaming step that are ready.
    pub(super) ready: u64,
    /// The round that is generated, and its prompts.
    pub(super) round: (u64, usize),
}

impl Observer for StepWatch<'_> {
    fn round_begins(&mut self, _step: u64, round: u64, num_prompts: usize) {
        self.round = (round, num_prompts);
        self.groups_finished(0);
    }

    fn groups_finished(&mut self, finished: usize) {
        let (round, num_prompts) = self.round;
        self.progress.stage(&format!("generating round {round}: {finished}/{num_prompts}"));
    }

    fn round_complete(&mut self, report: &RoundReport) {
        let batch = GeneratedBatch::of_round(&report.tally);
        self.progress.note(LineKind::Info, &batch.line(report.round, self.group_size));
        if report.is_filtered {
            self.progress.note(LineKind::Info, &batch.verdicts());
            self.progress.say(&report.to_string());
        }
    }

    fn groups_ready(&mut self, _step: u64, num_groups: usize) {
        self.ready += num_groups as u64;
        self.progress.stage(&format!("generating: {}/{} groups ready", self.ready, self.target));
    }

    fn epoch_begins(&mut self, epoch: u64) {
        self.progress.say(&format!("epoch {} begins", epoch + 1));
    }

    fn warn(&mut self, message: &str) {
        self.progress.warn(message);
    }
}

/// Keeps warnings alone, for who says them later.
pub(super) struct Warnings<'a>(pub(super) &'a mut Vec<String>);

impl Observer for Warnings<'_> {
    fn round_begins(&mut self, _step: u64, _round: u64, _num_prompts: usize) {}
    fn groups_finished(&mut self, _finished: usize) {}
    fn round_complete(&mut self, _report: &RoundReport) {}
    fn epoch_begins(&mut self, _epoch: u64) {}

    fn warn(&mut self, message: &str) {
        self.0.push(message.to_owned());
    }
}
