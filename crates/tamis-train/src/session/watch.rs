//! Passes what the shell sees on to the person who watches.

use tamis_core::schedule::RoundReport;
use tamis_env::reward::Scored;
use tamis_rollout::Observer;

use crate::batch_metrics::{Summary, accuracy};
use crate::progress::Progress;

/// Speaks and moves the bar while a step is collected.
pub(super) struct Watch<'a> {
    pub(super) progress: &'a Progress,
    pub(super) target: u64,
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

    fn epoch_begins(&mut self, epoch: u64) {
        self.progress.say(&format!("epoch {} begins", epoch + 1));
    }

    fn warn(&mut self, message: &str) {
        self.progress.warn(message);
    }
}
