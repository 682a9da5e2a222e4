//! The first stage of a policy loss: log-ratios and ratios of a block, with their sum and extremes.

#![expect(
    clippy::inline_always,
    reason = "compiled for the machine's vectors only inside the kernel's own function"
)]

use super::super::columns::Real;
use super::super::exponential::{exp_reduced, reduced};
use super::super::precision::Precision;
use super::kernel::{BLOCK, LANES, Lanes, clamp};

/// The first tokens of a slice that is shorter than a chunk, and harmless ones after them.
#[inline(always)]
fn padded<T: Copy>(rest: &[T], otherwise: T) -> [T; LANES] {
    let mut chunk = [otherwise; LANES];
    chunk[..rest.len()].copy_from_slice(rest);
    chunk
}

/// What the first stage finds in a trajectory: the sum of log-ratios within the limits; before the limits the smallest and the largest,
/// lane by lane, which pass over NaN.
pub(super) struct Ratios<F> {
    pub(super) sums: Lanes,
    low: [F; LANES],
    high: [F; LANES],
}

impl<F: Precision> Ratios<F> {
    pub(super) const NONE: Self =
        Self { sums: Lanes::ZERO, low: [F::INFINITY; LANES], high: [F::NEG_INFINITY; LANES] };

    /// Log-ratios (before the limits) and ratios of a block; up to the next whole chunk they are 0 and 1. `scale` is overwritten.
    ///
    /// Returns whether all of them are small: within the limits, and near enough to 0 that the exponential needs no reduction, which most
    /// blocks are. The bits are those that the longer way would give.
    #[inline(always)]
    pub(super) fn block<T: Real>(
        &mut self,
        mask: Option<&[bool]>,
        (logprob, old): (&[T], &[T]),
        limits: (F, F),
        log_ratio: &mut [F; BLOCK],
        ratio: &mut [F; BLOCK],
        scale: &mut [F; BLOCK],
    ) -> bool {
        let mut part =
            Differences { sums: [F::ZERO; LANES], low: [F::INFINITY; LANES], high: [F::NEG_INFINITY; LANES] };
        // Whole vectors, whatever their number per turn of a loop.
        let end = BLOCK.min(logprob.len().next_multiple_of(4 * LANES));
        {
            let (logprobs, logprob) = logprob.as_chunks::<LANES>();
            let (olds, old) = old.as_chunks::<LANES>();
            let (log_ratios, full) = (log_ratio.as_chunks_mut().0, logprobs.len());
            let chunks = logprobs.iter().zip(olds).zip(&mut *log_ratios);
            match mask {
                None => {
                    for ((logprob, old), log_ratio) in chunks {
                        part.chunk(|_| true, logprob, old, log_ratio);
                    }
                }
                Some(mask) => {
                    for (((logprob, old), log_ratio), mask) in chunks.zip(mask.as_chunks::<LANES>().0) {
                        part.chunk(|i| mask[i], logprob, old, log_ratio);
                    }
                }
            }
            if !logprob.is_empty() {
                let is_on = match mask {
                    None => std::array::from_fn(|i| i < logprob.len()),
                    Some(mask) => padded(mask.as_chunks::<LANES>().1, false),
                };
                let (logprob, old) = (padded(logprob, logprob[0]), padded(old, logprob[0]));
                part.chunk(|i| is_on[i], &logprob, &old, &mut log_ratios[full]);
            }
        }
        let within = (clamp(-F::REDUCED, limits), clamp(F::REDUCED, limits));
        let is_small =
            part.low.iter().all(|&low| low >= within.0) & part.high.iter().all(|&high| high <= within.1);
        if is_small {
            for (ratio, &log_ratio) in ratio[..end].iter_mut().zip(&log_ratio[..end]) {
                *ratio = exp_reduced(log_ratio, F::ONE);
            }
            self.sums.add_part(part.sums);
        } else {
            let into = ratio[..end].iter_mut().zip(&mut scale[..end]);
            for ((ratio, scale), &log_ratio) in into.zip(&log_ratio[..end]) {
                (*ratio, *scale) = reduced(clamp(log_ratio, limits));
            }
            for (ratio, &scale) in ratio[..end].iter_mut().zip(&scale[..end]) {
                *ratio = exp_reduced(*ratio, scale);
            }
            let mut sums = [F::ZERO; LANES];
            for chunk in &log_ratio.as_chunks::<LANES>().0[..logprob.len().div_ceil(LANES)] {
                for (sum, &log_ratio) in sums.iter_mut().zip(chunk) {
                    *sum += clamp(log_ratio, limits);
                }
            }
            self.sums.add_apart(sums);
        }
        for i in 0..LANES {
            self.low[i] = if part.low[i] < self.low[i] { part.low[i] } else { self.low[i] };
            self.high[i] = if part.high[i] > self.high[i] { part.high[i] } else { self.high[i] };
        }
        is_small
    }

    pub(super) fn low(&self) -> f64 {
        self.low.iter().map(|&low| low.into()).fold(f64::INFINITY, f64::min)
    }

    pub(super) fn high(&self) -> f64 {
        self.high.iter().map(|&high| high.into()).fold(f64::NEG_INFINITY, f64::max)
    }
}

/// Of one block, before the limits.
struct Differences<F> {
    sums: [F; LANES],
    low: [F; LANES],
    high: [F; LANES],
}

impl<F: Precision> Differences<F> {
    #[inline(always)]
    fn chunk<T: Real>(
        &mut self,
        is_on: impl Fn(usize) -> bool,
        logprob: &[T; LANES],
        old: &[T; LANES],
        log_ratio: &mut [F; LANES],
    ) {
        for i in 0..LANES {
            let difference = F::of(logprob[i].into()) - F::of(old[i].into());
            let on = is_on(i);
            let (least, most) = if on { (difference, difference) } else { (F::INFINITY, F::NEG_INFINITY) };
            let difference = if on { difference } else { F::ZERO };
            log_ratio[i] = difference;
            self.sums[i] += difference;
            self.low[i] = if least < self.low[i] { least } else { self.low[i] };
            self.high[i] = if most > self.high[i] { most } else { self.high[i] };
        }
    }
}
