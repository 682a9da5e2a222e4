//! The second stage of a policy loss: losses and derivatives of a block, with their sums and counts.

#![expect(
    clippy::inline_always,
    reason = "compiled for the machine's vectors only inside the kernel's own function"
)]

use super::super::columns::Real;
use super::super::precision::Precision;
use super::kernel::{At, BLOCK, Kernel, LANES, Lanes};

/// What the second stage reads of N tokens: a block, or a chunk of it.
pub(super) struct Tokens<'a, F, const N: usize> {
    pub(super) logprob: &'a [F; N],
    pub(super) log_ratio: &'a [F; N],
    pub(super) ratio: &'a [F; N],
    pub(super) selected: &'a [bool; N],
    /// Of the log-ratios.
    pub(super) limits: (F, F),
}

impl<F: Precision> Tokens<'_, F, BLOCK> {
    #[inline(always)]
    fn chunk(&self, c: usize) -> Tokens<'_, F, LANES> {
        Tokens {
            logprob: &self.logprob.as_chunks().0[c],
            log_ratio: &self.log_ratio.as_chunks().0[c],
            ratio: &self.ratio.as_chunks().0[c],
            selected: &self.selected.as_chunks().0[c],
            limits: self.limits,
        }
    }
}

/// What the losses of a chunk are multiplied by.
pub(super) struct Factors<F> {
    pub(super) advantage: [F; LANES],
    pub(super) is_good: [bool; LANES],
    pub(super) is_bad: [bool; LANES],
    pub(super) weight: [F; LANES],
}

impl<F: Precision> Factors<F> {
    /// Those of the first tokens; the rest counts for nothing.
    #[inline(always)]
    fn first(self, count: usize) -> Self {
        let mut only = self;
        for i in count..LANES {
            (only.advantage[i], only.weight[i]) = (F::ZERO, F::ZERO);
            (only.is_good[i], only.is_bad[i]) = (false, false);
        }
        only
    }

    #[inline(always)]
    pub(super) fn of(advantage: [F; LANES], weight: [F; LANES]) -> Self {
        let (is_good, is_bad) =
            (advantage.map(|advantage| advantage > F::ZERO), advantage.map(|advantage| advantage < F::ZERO));
        Self { advantage, is_good, is_bad, weight }
    }
}

/// What the second stage finds in a trajectory.
pub(super) struct Found {
    /// Of weighted losses.
    pub(super) losses: Lanes,
    /// Of `ratio - 1`: exact where the ratio is near 1, and 0 at masked tokens.
    pub(super) excesses: Lanes,
    /// Tokens clipped, dual, low, high.
    pub(super) counts: [[u32; LANES]; 4],
}

impl Found {
    pub(super) const NONE: Self =
        Self { losses: Lanes::ZERO, excesses: Lanes::ZERO, counts: [[0; LANES]; 4] };

    /// Losses and derivatives of a block; `factors` are those of a chunk. `SMALL`: no limit holds a ratio.
    #[inline(always)]
    pub(super) fn block<K: Kernel, T: Real, const SMALL: bool>(
        &mut self,
        kernel: &K,
        tokens: &Tokens<'_, K::Number, BLOCK>,
        factors: impl Fn(usize) -> Factors<K::Number>,
        scale: K::Number,
        derivative: &mut [T],
    ) {
        let zero = [K::Number::ZERO; LANES];
        let mut part = FoundPart { losses: zero, excesses: zero, counts: self.counts };
        let (derivatives, rest) = derivative.as_chunks_mut::<LANES>();
        let full = derivatives.len();
        for (c, derivative) in derivatives.iter_mut().enumerate() {
            part.chunk::<K, T, SMALL>(kernel, &tokens.chunk(c), &factors(c), scale, derivative);
        }
        if !rest.is_empty() {
            let mut last = [T::ZERO; LANES];
            part.chunk::<K, T, SMALL>(
                kernel,
                &tokens.chunk(full),
                &factors(full).first(rest.len()),
                scale,
                &mut last,
            );
            rest.copy_from_slice(&last[..rest.len()]);
        }
        self.losses.add_part(part.losses);
        self.excesses.add_part(part.excesses);
        self.counts = part.counts;
    }
}

/// [`Found`] in one block.
struct FoundPart<F> {
    losses: [F; LANES],
    excesses: [F; LANES],
    counts: [[u32; LANES]; 4],
}

impl<F: Precision> FoundPart<F> {
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "lane by lane through a dozen arrays")]
    fn chunk<K: Kernel<Number = F>, T: Real, const SMALL: bool>(
        &mut self,
        kernel: &K,
        tokens: &Tokens<'_, F, LANES>,
        factors: &Factors<F>,
        scale: F,
        derivative: &mut [T; LANES],
    ) {
        for i in 0..LANES {
            let token = kernel.token(At {
                logprob: if K::LOGPROB { tokens.logprob[i] } else { F::ZERO },
                log_ratio: if K::QUICK { F::ZERO } else { tokens.log_ratio[i] },
                is_limited: !SMALL
                    && ((tokens.log_ratio[i] < tokens.limits.0) | (tokens.log_ratio[i] > tokens.limits.1)),
                ratio: tokens.ratio[i],
                advantage: factors.advantage[i],
                is_good: factors.is_good[i],
                is_bad: factors.is_bad[i],
                selected: K::SELECTS && tokens.selected[i],
            });
            derivative[i] = T::of((token.dloss * factors.weight[i] * scale).into());
            self.losses[i] += token.loss * factors.weight[i];
            self.excesses[i] += tokens.ratio[i] - F::ONE;
            self.counts[0][i] += u32::from(token.is_clipped);
            self.counts[1][i] += u32::from(token.is_dual);
            self.counts[2][i] += u32::from(token.is_low);
            self.counts[3][i] += u32::from(token.is_high);
        }
    }
}
