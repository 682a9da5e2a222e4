//! Passes what the dispatcher sees on to the person who watches.

use tamis_core::schedule::RoundReport;
use tamis_env::reward::Scored;
use tamis_rollout::Observer;

use crate::measure::batch_metrics::accuracy;
use tamis_run::log::progress::Progress;
use tamis_run::metrics::summary::Summary;

/// Speaks and moves the bar while a step is collected.
pub(super) struct Watch<'a> {
    pub(super) progress: &'a Progress,
    pub(super) target: u64,
    /// Groups of a streaming step that are ready.
    pub(super) ready: u64,
}

impl Observer for Watch<'_> {
    fn round_begins(&mut self, _step: u64, round: u64, num_prompts: usize) {
        self.progress.round(round, num_prompts);
    }

    fn groups_finished(&mut self, finished: usize, num_tokens: u64) {
        self.progress.groups_finished(finished, num_tokens);
    }

    fn scored(&mut self, scored: &[Scored]) {
        let accuracy = accuracy(scored.iter().map(|scored| &scored.scores));
        let rewards = Summary::of(scored.iter().map(|scored| scored.reward.value));
        self.progress.scored(accuracy, rewards.map(|summary| summary.mean));
    }

    fn round_complete(&mut self, report: &RoundReport) {
        self.progress.groups(report.num_accumulated as u64, self.target);
        if report.is_filtered {
            self.progress.say(&report.to_string());
        }
    }

    fn groups_ready(&mut self, _step: u64, num_groups: usize) {
        self.ready += num_groups as u64;
        self.progress.groups(self.ready, self.target);
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
    fn groups_finished(&mut self, _finished: usize, _num_tokens: u64) {}
    fn scored(&mut self, _scored: &[Scored]) {}
    fn round_complete(&mut self, _report: &RoundReport) {}
    fn epoch_begins(&mut self, _epoch: u64) {}

    fn warn(&mut self, message: &str) {
        self.0.push(message.to_owned());
    }
}
