//! The keep rate from steps whose log shows only that their last batch filled them, as verl prints it.
//!
//! A step took M batches of G prompts. The first M - 1 kept S groups together, S < T, and the last one kept
//! the missing T - S or more. Counting only the first batches is biased, because a batch that keeps few
//! groups is followed by another one. The likelihood of keep rate k is that of S among (M - 1) G, times
//! P(Bin(G, k) >= T - S). It is log-concave in k.

use super::keep_rate::KeepEstimate;
use crate::cost::rounds::ln_at_least;

/// Twice the log likelihood ratio that is exceeded in a tenth of cases: the quantile of a chi-square with one
/// degree of freedom.
const RATIO: f64 = 2.705_543_454;
/// Steps of the search in an interval.
const CUTS: usize = 45;
/// The golden section: the share of an interval that remains after a step.
const LEFT: f64 = 0.618_033_988_749_895;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FilledStep {
    pub(super) step: u64,
    /// Generated batches, M.
    pub(super) batches: usize,
    /// Groups kept by all batches but the last, S.
    pub(super) kept: usize,
    /// Target number of groups, T.
    pub(super) target: usize,
    /// Prompts per batch, G.
    pub(super) generated: usize,
}

impl FilledStep {
    /// Whether such a step can occur.
    pub(super) fn is_possible(self) -> bool {
        self.kept <= (self.batches - 1).saturating_mul(self.generated)
            && self.target <= self.kept.saturating_add(self.generated)
    }

    pub(super) fn judged(self) -> usize {
        self.batches * self.generated
    }

    fn log_likelihood(self, keep: f64) -> f64 {
        let failed = (self.batches - 1) * self.generated - self.kept;
        let power = |count: usize, base: f64| if count == 0 { 0.0 } else { count as f64 * base.ln() };
        let filled = ln_at_least(self.generated, keep, self.target - self.kept);
        power(self.kept, keep) + power(failed, 1.0 - keep) + filled
    }

    /// Expected number of groups that the step kept, at a keep rate.
    pub(super) fn expected(self, keep: f64) -> f64 {
        let missing = self.target - self.kept;
        // E[X; X >= r] = G k P(Bin(G - 1, k) >= r - 1).
        let share =
            ln_at_least(self.generated - 1, keep, missing - 1) - ln_at_least(self.generated, keep, missing);
        let last = self.generated as f64 * keep * share.exp();
        self.kept as f64 + if last.is_finite() { last } else { missing as f64 }
    }
}

/// The keep rate of maximum likelihood, with the 90 % interval of the likelihood ratio. Each step must be
/// [possible](FilledStep::is_possible), and its target must exceed what its first batches kept.
pub(super) fn keep_rate(steps: &[FilledStep]) -> KeepEstimate {
    let of = |keep: f64| steps.iter().map(|step| step.log_likelihood(keep)).sum::<f64>();
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    let mut inner = [1.0 - LEFT, LEFT];
    let mut found = inner.map(of);
    for _ in 0..CUTS {
        if found[0] < found[1] {
            low = inner[0];
            inner = [inner[1], low + LEFT * (high - low)];
            found = [found[1], of(inner[1])];
        } else {
            high = inner[1];
            inner = [high - LEFT * (high - low), inner[0]];
            found = [of(inner[0]), found[0]];
        }
    }
    let value = f64::midpoint(low, high);
    let least = of(value) - RATIO / 2.0;
    // The point between the value and an end at which the likelihood falls below the ratio.
    let bound = |end: f64| {
        if of(end) >= least {
            return end;
        }
        let (mut inside, mut outside) = (value, end);
        for _ in 0..CUTS {
            let middle = f64::midpoint(inside, outside);
            if of(middle) >= least { inside = middle } else { outside = middle }
        }
        inside
    };
    KeepEstimate { value, low: Some(bound(0.0)), high: Some(bound(1.0)) }
}

#[cfg(test)]
mod tests {
    use tamis_core::random::{Key, Purpose};

    use super::*;

    /// Simulated steps at a keep rate.
    fn sampled(number: u64, [target, generated]: [usize; 2], keep: f64, seed: u64) -> Vec<FilledStep> {
        let key = Key::new(seed, Purpose::Init);
        (0..number)
            .map(|step| {
                let (mut kept, mut batches) = (0, 0);
                loop {
                    batches += 1;
                    let key = key.with(step).with(batches as u64);
                    let of_batch = (0..generated as u64).filter(|draw| key.uniform(*draw) < keep).count();
                    if kept + of_batch >= target {
                        return FilledStep { step, batches, kept, target, generated };
                    }
                    kept += of_batch;
                }
            })
            .collect()
    }

    #[test]
    fn a_known_keep_rate_is_found() {
        for (sizes, keep) in [([64, 64], 0.41), ([64, 96], 0.62), ([32, 128], 0.1), ([16, 16], 0.9)] {
            let (mut inside, mut mean, mut naive) = (0, 0.0, 0.0);
            for seed in 0..200 {
                let steps = sampled(25, sizes, keep, seed);
                let found = keep_rate(&steps);
                inside += u32::from(found.low.unwrap() <= keep && keep <= found.high.unwrap());
                mean += found.value / 200.0;
                let judged: usize = steps.iter().map(|step| (step.batches - 1) * sizes[1]).sum();
                naive += steps.iter().map(|step| step.kept).sum::<usize>() as f64 / judged as f64 / 200.0;
                // The expected kept groups give the same rate.
                let all: usize = steps.iter().map(|step| step.judged()).sum();
                let kept: f64 = steps.iter().map(|step| step.expected(found.value)).sum();
                assert!((kept / all as f64 - found.value).abs() < 1e-6, "{sizes:?} {keep}");
            }
            assert!((mean - keep).abs() < 0.01 * keep, "{sizes:?} {keep}: {mean}");
            assert!(naive < keep, "{sizes:?} {keep}: {naive}");
            // 180 of 200, within three standard deviations.
            assert!((167..=193).contains(&inside), "{sizes:?} {keep}: {inside} of 200");
        }
    }

    #[test]
    fn ends_of_the_scale_are_finite() {
        // Every batch kept everything, or one batch filled the step: a keep rate of 1 fits.
        let full = FilledStep { step: 1, batches: 2, kept: 8, target: 16, generated: 8 };
        let one = FilledStep { step: 1, batches: 1, kept: 0, target: 4, generated: 8 };
        for step in [full, one] {
            let found = keep_rate(&[step]);
            assert!(found.value > 0.999 && found.high == Some(1.0) && found.low < Some(0.95), "{found:?}");
        }
        // After a hundred batches without a kept group, one batch kept some.
        let rare = keep_rate(&[FilledStep { step: 1, batches: 101, kept: 0, target: 1, generated: 10 }]);
        assert!(rare.value > 0.0 && rare.value < 0.002, "{rare:?}");
        assert!(full.is_possible() && !FilledStep { generated: 7, ..full }.is_possible());
        // Probabilities that underflow.
        for (target, generated, keep) in [(8000, 4096, 0.98), (15_600, 4096, 0.95), (300_000, 1 << 18, 0.4)] {
            let found = keep_rate(&sampled(5, [target, generated], keep, 3));
            assert!((found.value - keep).abs() < 0.01, "{keep}: {found:?}");
        }
    }
}
