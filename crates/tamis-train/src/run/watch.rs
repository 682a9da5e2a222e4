//! Shows the dispatcher's progress to the person who watches.

use std::time::{Duration, Instant};

use tamis_core::figure::counted;
use tamis_core::schedule::RoundReport;
use tamis_rollout::Observer;

use super::generated::GeneratedBatch;
use tamis_run::log::progress::{Console, duration};
use tamis_run::log::run_log::LineKind;

/// Prints lines and moves the bar while a step is collected.
pub(super) struct StepWatch<'a> {
    pub(super) progress: &'a Console,
    pub(super) group_size: usize,
    /// Groups that the step trains on.
    pub(super) target: u64,
    /// Those of a streaming step that are ready.
    pub(super) ready: u64,
    /// The round that is generated, and its prompts.
    pub(super) round: (u64, usize),
    /// When the round began, or what is collected of a streaming step.
    pub(super) began: Instant,
    /// Whether the time of the step is still to be estimated.
    pub(super) is_to_estimate: bool,
    /// Passes of the learner over a batch, if the built-in engine learns.
    pub(super) native_epochs: Option<usize>,
}

/// Groups must finish for so long before their pace is used for an estimate.
const EARLIEST_ESTIMATE: Duration = Duration::from_secs(20);
/// A shorter time needs no estimate.
const SHORT: Duration = Duration::from_secs(60);
/// Time of learning from a token over that of sampling it on the built-in engine, about: 1.76 in the
/// quickstart (`timing_s/update_actor` and `perf/total_num_tokens` against `timing_s/gen` and
/// `tokens/generated`), and 1.3 with longer prompts. An update is three forward passes' worth of work;
/// sampling does one a token, in smaller products.
const LEARNING: f64 = 1.5;

impl StepWatch<'_> {
    /// Estimates once in a session how long a step will take, and names keys that make it shorter.
    fn estimate(&mut self, finished: u64, of: u64) {
        let elapsed = self.began.elapsed();
        if !self.is_to_estimate || finished == 0 || elapsed < EARLIEST_ESTIMATE {
            return;
        }
        self.is_to_estimate = false;
        let trained = self.target.min(of);
        let learning = self.native_epochs.map(|epochs| LEARNING * epochs as f64 * trained as f64 / of as f64);
        if let Some(text) = estimate(elapsed, finished, of, self.group_size, learning) {
            self.progress.say(&text);
        }
    }
}

/// The estimated time of a step of one round, from its finished groups; `None` if it is short. `learning` is
/// the time of learning divided by that of the round, if it is known.
fn estimate(
    elapsed: Duration,
    finished: u64,
    of: u64,
    group_size: usize,
    learning: Option<f64>,
) -> Option<String> {
    let round = elapsed.mul_f64(of as f64 / finished as f64);
    let (step, then) = match learning.map(|times| round.mul_f64(times)) {
        Some(learning) => (round + learning, format!("about {} of learning", duration(learning))),
        None => (round, "learning comes on top".to_owned()),
    };
    (step >= SHORT).then(|| {
        format!(
            "a step takes about {}: {} for this round ({}, {} each) at its pace so far, and {then}; smaller values of \
             data.train_batch_size, data.gen_batch_size, rollout.n or rollout.max_response_length make it shorter",
            duration(step),
            duration(round),
            counted(of, "prompt"),
            counted(group_size, "completion")
        )
    })
}

impl Observer for StepWatch<'_> {
    fn round_begins(&mut self, _step: u64, round: u64, num_prompts: usize) {
        self.round = (round, num_prompts);
        self.began = Instant::now();
        self.groups_finished(0);
    }

    fn groups_finished(&mut self, finished: usize) {
        let (round, num_prompts) = self.round;
        self.progress.stage(&format!("generating round {round}: {finished}/{num_prompts}"));
        self.estimate(finished as u64, num_prompts as u64);
    }

    fn round_complete(&mut self, report: &RoundReport) {
        let batch = GeneratedBatch::of_round(&report.tally);
        self.progress.note(LineKind::Info, &batch.line(report.round, self.group_size));
        if report.is_filtered {
            self.progress.note(LineKind::Info, &batch.verdicts());
            self.progress.detail(&report.to_string());
        }
    }

    fn groups_ready(&mut self, _step: u64, num_groups: usize) {
        self.ready += num_groups as u64;
        self.progress.stage(&format!("generating: {}/{} groups ready", self.ready, self.target));
        self.estimate(self.ready, self.target);
    }

    fn epoch_begins(&mut self, epoch: u64) {
        self.progress.say(&format!("epoch {} begins", epoch + 1));
    }

    fn warn(&mut self, message: &str) {
        self.progress.warn(message);
    }
}

/// Keeps only warnings, to print them later.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_round_is_estimated_and_a_short_one_is_not() {
        assert_eq!(estimate(Duration::from_secs(20), 40, 64, 8, None), None);
        // 32 seconds, and as long again for learning.
        assert!(estimate(Duration::from_secs(20), 40, 64, 8, Some(1.0)).is_some());
        let text = estimate(Duration::from_secs(30), 40, 64, 8, Some(1.5)).expect("two minutes");
        assert!(
            text.starts_with(
                "a step takes about 2m 00s: 48s for this round (64 prompts, 8 completions each)"
            ),
            "{text}"
        );
        assert!(
            text.contains(", and about 1m 12s of learning; smaller values of data.train_batch_size"),
            "{text}"
        );
        let text = estimate(Duration::from_secs(30), 4, 64, 1, None).expect("eight minutes");
        assert!(
            text.starts_with(
                "a step takes about 8m 00s: 8m 00s for this round (64 prompts, 1 completion each)"
            ),
            "{text}"
        );
        assert!(text.contains(", and learning comes on top; "), "{text}");
    }
}
