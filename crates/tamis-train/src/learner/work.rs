//! Operations of the policy's updates, and the share of a device's peak that they take (MFU).

use serde::{Deserialize, Serialize};

use super::{LearnerSequence, Wave};

/// Floating-point operations of a forward and a backward pass, and how many a rank's device can do, as the
/// learner reports them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TrainingWork {
    /// Operations a second of a rank's device.
    pub peak: f64,
    /// Operations for each token of a prompt or a completion.
    pub token: f64,
    /// More operations for each token of a completion: the output head's.
    pub completion: f64,
    /// Operations for each pair of tokens that see each other: the attention's.
    pub pair: f64,
}

impl TrainingWork {
    /// Operations of a wave. A prompt counts once for its sequences on a rank, whether or not the learner
    /// computes it once.
    ///
    /// A prompt of P tokens has `P (P + 1) / 2` pairs, a completion of T tokens behind it
    /// `T P + T (T + 1) / 2`.
    fn of_wave(&self, wave: &Wave<'_>) -> f64 {
        let (mut tokens, mut completions, mut pairs) = (0.0, 0.0, 0.0);
        let mut previous: Option<(&LearnerSequence<'_>, u32)> = None;
        for (sequence, &rank) in wave.sequences.iter().zip(&wave.ranks) {
            let (prompt, completion) = (sequence.prompt.len() as f64, sequence.completion.len() as f64);
            if previous.is_none_or(|(before, of)| of != rank || !before.shares_prompt(sequence)) {
                tokens += prompt;
                pairs += prompt * (prompt + 1.0) / 2.0;
            }
            tokens += completion;
            completions += completion;
            pairs += completion * (prompt + f64::midpoint(completion, 1.0));
            previous = Some((sequence, rank));
        }
        self.token * tokens + self.completion * completions + self.pair * pairs
    }

    fn is_sound(&self) -> bool {
        let Self { peak, token, completion, pair } = *self;
        peak > 0.0 && [peak, token, completion, pair].iter().all(|one| one.is_finite() && *one >= 0.0)
    }
}

/// Operations that updates took, and how many the devices can do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkDone {
    /// Operations of the passes that optimizer steps came from.
    pub operations: f64,
    /// Operations a second of all ranks together.
    pub peak: f64,
}

impl WorkDone {
    /// Share of the peak in so many seconds; `None` without time or operations.
    pub fn utilization(&self, seconds: f64) -> Option<f64> {
        (seconds > 0.0 && self.operations > 0.0).then(|| self.operations / (seconds * self.peak))
    }
}

/// Counts the passes that a policy's updates are made of.
#[derive(Debug, Default)]
pub(crate) struct WorkTally {
    work: Option<TrainingWork>,
    num_ranks: usize,
    /// Of the held pass; of the passes in the gradient; of the steps since the last [`Self::take`].
    held: f64,
    gathered: f64,
    done: f64,
}

impl WorkTally {
    /// Counts for a learner that reported this, if it did. Numbers that are not finite count as no report.
    pub(crate) fn new(work: Option<TrainingWork>, num_ranks: usize) -> Self {
        Self { work: work.filter(TrainingWork::is_sound), num_ranks, ..Self::default() }
    }

    /// A pass is held.
    pub(crate) fn hold(&mut self, wave: &Wave<'_>) {
        self.held = self.work.map_or(0.0, |work| work.of_wave(wave));
    }

    /// The held pass was run back.
    pub(crate) fn add(&mut self) {
        self.gathered += std::mem::take(&mut self.held);
    }

    /// The gradient became a step.
    pub(crate) fn step(&mut self) {
        self.done += std::mem::take(&mut self.gathered);
    }

    /// The gradient was only measured.
    pub(crate) fn clear(&mut self) {
        self.gathered = 0.0;
    }

    /// The work since this was last called; `None` if operations or peak are not known.
    pub(crate) fn take(&mut self) -> Option<WorkDone> {
        let operations = std::mem::take(&mut self.done);
        self.work.map(|work| WorkDone { operations, peak: work.peak * self.num_ranks as f64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: TrainingWork = TrainingWork { peak: 1000.0, token: 600.0, completion: 60.0, pair: 12.0 };

    #[expect(clippy::float_cmp, reason = "whole numbers")]
    #[test]
    fn a_wave_by_hand() {
        let (prompt, other) = ([1_u32, 2, 3], [4_u32]);
        let wave = Wave {
            sequences: vec![
                LearnerSequence::of_text(&prompt, &[5, 6]),
                LearnerSequence::of_text(&prompt, &[7]),
                LearnerSequence::of_text(&other, &[8]),
            ],
            ranks: vec![0, 0, 0],
        };
        // Tokens: 3 + 2 + 1 and 1 + 1. Pairs: 6 in the first prompt, 2 * 3 + 3 and 3 + 1 behind it; then 1
        // and 2.
        assert_eq!(WORK.of_wave(&wave), 600.0 * 8.0 + 60.0 * 4.0 + 12.0 * (6.0 + 9.0 + 4.0 + 1.0 + 2.0));
        // On another rank the prompt is computed again.
        let apart = Wave { ranks: vec![0, 1, 1], ..wave };
        assert_eq!(WORK.of_wave(&apart), 600.0 * 11.0 + 60.0 * 4.0 + 12.0 * (12.0 + 9.0 + 4.0 + 1.0 + 2.0));
        assert_eq!(WORK.of_wave(&Wave::default()), 0.0);
    }

    #[test]
    fn only_passes_that_became_a_step_count() {
        let wave = Wave::of(&[LearnerSequence::of_text(&[1], &[2])]);
        // 2 tokens, 1 of them a completion's, 3 pairs.
        let once = 1200.0 + 60.0 + 36.0;
        let mut tally = WorkTally::new(Some(WORK), 2);
        let pass = |tally: &mut WorkTally| {
            tally.hold(&wave);
            tally.add();
        };
        pass(&mut tally);
        pass(&mut tally);
        tally.step();
        // The gradient of an analysis, and a held pass that is never run back.
        pass(&mut tally);
        tally.clear();
        tally.hold(&wave);
        tally.step();
        let done = tally.take().expect("it is known");
        assert_eq!(done, WorkDone { operations: 2.0 * once, peak: 2000.0 });
        // 2592 operations in 2 seconds, of 4000.
        assert_eq!(done.utilization(2.0), Some(0.648));
        assert_eq!(
            (done.utilization(0.0), tally.take().and_then(|none| none.utilization(2.0))),
            (None, None)
        );
    }

    #[test]
    fn nothing_is_invented() {
        let wave = Wave::of(&[LearnerSequence::of_text(&[1], &[2])]);
        let none = TrainingWork { peak: 0.0, ..WORK };
        for work in [None, Some(none), Some(TrainingWork { pair: f64::NAN, ..WORK })] {
            let mut tally = WorkTally::new(work, 1);
            tally.hold(&wave);
            tally.add();
            tally.step();
            assert_eq!(tally.take(), None);
        }
    }
}
