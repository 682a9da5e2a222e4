//! A server slowed down for tests: completions of lognormal lengths, steps that take as long as a larger
//! model's.

use std::time::{Duration, Instant};

use tamis_core::random::{Key, Purpose};
use tamis_model::CompletionEnd;

use super::engine::Job;

/// How a server is slowed down. What it generates is of no use but for tests of what waits for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowDown {
    /// A step takes at least this long, whatever runs.
    pub step: Duration,
    /// And this much more for each sample that runs.
    pub per_sample: Duration,
    /// Median and sigma of the completions' lengths in tokens, at least 1 and at most what was asked for;
    /// `None` leaves them as they are.
    pub lengths: Option<(f64, f64)>,
}

impl SlowDown {
    /// Gives a job the length that its first key draws, in place of its end tokens and stop strings.
    pub(super) fn choose_length(&self, job: &mut Job) {
        let (Some((median, sigma)), Some(key)) = (self.lengths, job.keys.first()) else { return };
        let normal = Key::new(key.bits(u64::MAX), Purpose::Served).normal(0);
        let length = (median * (sigma * normal).exp()).round().max(1.0);
        job.params.max_new_tokens = (length as usize).min(job.params.max_new_tokens);
        job.params.stop_token_ids.clear();
        job.form = None;
    }

    /// Why a completion ended, as if its length had been its own.
    pub(super) fn reason(&self, finish: CompletionEnd) -> CompletionEnd {
        match finish {
            CompletionEnd::Length if self.lengths.is_some() => CompletionEnd::Stop,
            other => other,
        }
    }

    /// Waits until a step that began then has taken its time.
    pub(super) fn stretch(&self, begun: Instant, num_running: usize) {
        let wanted = self.step + self.per_sample * u32::try_from(num_running).unwrap_or(u32::MAX);
        std::thread::sleep(wanted.saturating_sub(begun.elapsed()));
    }
}
