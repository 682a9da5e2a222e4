//! Slows a server down for tests: completions with lognormal lengths, and steps as slow as a larger model's.

use std::time::{Duration, Instant};

use tamis_core::random::{Key, Purpose};
use tamis_model::CompletionEnd;

/// Slows a server down, for tests and benchmarks of its clients. The generated texts are not meaningful.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowDown {
    /// A step takes at least this long.
    pub step: Duration,
    /// Additional time of a step for each running sample.
    pub per_sample: Duration,
    /// Median and sigma of the completions' lengths in tokens, at least 1 and at most the requested length.
    /// `None` does not change them.
    pub lengths: Option<(f64, f64)>,
}

impl SlowDown {
    /// The length drawn with the first key of a job, at most `longest`; `None` if lengths are not changed.
    pub(crate) fn draw_length(&self, keys: &[Key], longest: usize) -> Option<usize> {
        let ((median, sigma), key) = self.lengths.zip(keys.first())?;
        let normal = Key::new(key.bits(u64::MAX), Purpose::Served).normal(0);
        let length = (median * (sigma * normal).exp()).round().max(1.0);
        Some((length as usize).min(longest))
    }

    /// Why a completion ended, as if the drawn length were its own.
    pub(crate) fn reason(&self, finish: CompletionEnd) -> CompletionEnd {
        match finish {
            CompletionEnd::Length if self.lengths.is_some() => CompletionEnd::Stop,
            other => other,
        }
    }

    /// Waits until a step that began at `begun` has taken its time.
    pub(crate) fn stretch(&self, begun: Instant, num_running: usize) {
        let wanted = self.step + self.per_sample * u32::try_from(num_running).unwrap_or(u32::MAX);
        std::thread::sleep(wanted.saturating_sub(begun.elapsed()));
    }
}
