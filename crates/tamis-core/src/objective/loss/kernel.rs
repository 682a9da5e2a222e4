//! How a policy loss goes over a trajectory: block by block, each stage a straight loop over slices, so that it vectorises.
//!
//! ```text
//! columns ── log-ratio, ratio and their sums ── loss and derivative per token, weight, scale and their sums
//! ```
//!
//! The first stage puts harmless numbers at masked tokens (log-ratio 0, advantage 0, weight 0), which every loss answers with 0 and no
//! bound reached; so no later stage looks at the mask. Sums run in eight lanes by position in the trajectory, within a block in the
//! kernel's precision and from block to block in double: a fixed order, whatever the processor's vectors, and so the same bits
//! everywhere. A stage handles eight tokens at a time in a loop of constant length, which the compiler turns into vectors.

use multiversion::multiversion;

use super::super::accumulator::SequenceSums;
use super::super::columns::{Real, Row, RowAdvantage};
use super::super::exponential::{exp, exp_m1};
use super::super::precision::Precision;
use super::super::selection::Selection;
use super::Importance;
use super::found::{Factors, Found, Tokens};
use super::ratios::Ratios;

/// Tokens of a block: all of its arrays stay in the first-level cache.
pub(crate) const BLOCK: usize = 256;

/// Tokens handled side by side.
pub(crate) const LANES: usize = 8;

/// Eight running sums; token t of a trajectory goes to lane t mod 8.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lanes([f64; LANES]);

impl Lanes {
    pub(crate) const ZERO: Self = Self([0.0; 8]);

    /// Adds a block of values whose first belongs to lane 0.
    #[inline(always)]
    pub(crate) fn add<F: Precision>(&mut self, values: &[F]) {
        let mut part = [F::ZERO; LANES];
        let (chunks, rest) = values.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &value) in part.iter_mut().zip(chunk) {
                *lane += value;
            }
        }
        for (lane, &value) in part.iter_mut().zip(rest) {
            *lane += value;
        }
        self.add_apart(part);
    }

    /// Adds the sums of a block.
    #[inline(always)]
    pub(super) fn add_part<F: Precision>(&mut self, part: [F; LANES]) {
        for (lane, part) in self.0.iter_mut().zip(part) {
            *lane += part.into();
        }
    }

    /// The same, not inlined: seeing the conversion, the compiler would form the sums of a short loop two by two, not eight by eight.
    #[inline(never)]
    pub(super) fn add_apart<F: Precision>(&mut self, part: [F; LANES]) {
        self.add_part(part);
    }

    /// The sum of all.
    #[inline(always)]
    pub(crate) fn total(self) -> f64 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
}

/// What a policy loss is given of one token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At<F> {
    /// Log-probability; 0 where the loss does not read it ([`Kernel::LOGPROB`]).
    pub(crate) logprob: F,
    /// `logprob - old`, or its mean over the trajectory; before the limits. 0 where the loss never reads it ([`Kernel::QUICK`]).
    pub(crate) log_ratio: F,
    /// `exp(log_ratio)`, within the limits; always finite.
    pub(crate) ratio: F,
    /// The log-ratio is beyond the limits.
    pub(crate) is_limited: bool,
    pub(crate) advantage: F,
    /// The advantage is above 0: known before the loop where all tokens share one.
    pub(crate) is_good: bool,
    /// It is below 0.
    pub(crate) is_bad: bool,
    /// Chosen by the selection over the optimizer batch.
    pub(crate) selected: bool,
}

impl<F: Precision> At<F> {
    /// A token of a loss that reads neither log-probabilities nor a selection.
    pub(crate) fn new(log_ratio: F, ratio: F, is_limited: bool, advantage: F) -> Self {
        let (is_good, is_bad) = (advantage > F::ZERO, advantage < F::ZERO);
        Self { logprob: F::ZERO, log_ratio, ratio, is_limited, advantage, is_good, is_bad, selected: false }
    }
}

/// What a policy loss makes of one token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token<F> {
    pub(crate) loss: F,
    /// With respect to the log-probability, or to the log-ratio of the trajectory ([`Kernel::THROUGH_RATIO`]).
    pub(crate) dloss: F,
    pub(crate) is_clipped: bool,
    pub(crate) is_dual: bool,
    pub(crate) is_low: bool,
    pub(crate) is_high: bool,
}

impl<F> Token<F> {
    /// A token with no bounds.
    #[inline(always)]
    pub(crate) fn new(loss: F, dloss: F) -> Self {
        Self { loss, dloss, is_clipped: false, is_dual: false, is_low: false, is_high: false }
    }
}

/// A policy loss per token, its settings resolved to plain numbers. `token` has no branch that depends on the data.
pub(crate) trait Kernel: Copy {
    /// What it computes in.
    type Number: Precision;

    /// It never reads log-ratios, and is taken so often that it has loops of its own: for either sign of the advantage, and for ratios
    /// that no limit holds.
    const QUICK: bool = false;
    /// It reads the log-probability itself.
    const LOGPROB: bool = false;
    /// It asks which tokens were selected.
    const SELECTS: bool = false;
    /// Its derivative is that of the ratio: with one ratio per trajectory, every token moves it.
    const THROUGH_RATIO: bool = true;
    /// The weight column multiplies its loss.
    const WEIGHTED: bool = true;

    /// Bounds on the log-ratio inside the exponential.
    fn limits(&self) -> (f64, f64) {
        (f64::NEG_INFINITY, f64::INFINITY)
    }

    /// What depends on the advantage alone is worked out first: it is hoisted out of the loop where all tokens share one.
    fn token(&self, at: At<Self::Number>) -> Token<Self::Number>;
}

/// Settings of one trajectory's pass that are not the loss's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass {
    pub(crate) importance: Importance,
    /// What each token's loss is multiplied by.
    pub(crate) scale: f64,
    /// Unmasked tokens, at least 1.
    pub(crate) tokens: usize,
    /// The trajectory is too far off-policy: its tokens with negative advantage weigh nothing.
    pub(crate) off_policy: bool,
    /// Weigh each token by `exp(old - behaviour)`, at most this.
    pub(crate) proximal_cap: Option<f64>,
}

/// Block arrays of one precision.
pub(crate) struct Blocks<F> {
    pub(crate) logprob: [F; BLOCK],
    pub(crate) log_ratio: [F; BLOCK],
    pub(crate) ratio: [F; BLOCK],
    pub(crate) advantage: [F; BLOCK],
    pub(crate) weight: [F; BLOCK],
    pub(crate) loss: [F; BLOCK],
    pub(crate) selected: [bool; BLOCK],
}

impl<F: Precision> Blocks<F> {
    const fn new() -> Self {
        let zero = [F::ZERO; BLOCK];
        Self {
            logprob: zero,
            log_ratio: zero,
            ratio: zero,
            advantage: zero,
            weight: zero,
            loss: zero,
            selected: [false; BLOCK],
        }
    }
}

/// Block arrays, made once for many trajectories.
pub(crate) struct Scratch {
    pub(crate) single: Blocks<f32>,
    pub(crate) double: Blocks<f64>,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { single: Blocks::new(), double: Blocks::new() }
    }
}

/// Unmasked tokens.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn count(mask: &[bool]) -> usize {
    // In bytes, so that a vector holds many: no chunk has more than fits one.
    let count = |chunk: &[bool]| chunk.iter().fold(0_u8, |count, &on| count.wrapping_add(u8::from(on)));
    let (chunks, rest) = mask.as_chunks::<128>();
    chunks.iter().map(|chunk| usize::from(count(chunk))).sum::<usize>() + usize::from(count(rest))
}

/// The blocks of T tokens.
pub(crate) fn blocks(length: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..length).step_by(BLOCK).map(move |start| start..length.min(start + BLOCK))
}

/// `left - right` per token, 0 where masked.
#[inline(always)]
pub(crate) fn differences<T: Real, F: Precision>(
    mask: Option<&[bool]>,
    left: &[T],
    right: &[T],
    into: &mut [F],
) {
    let difference = |left: T, right: T| F::of(left.into()) - F::of(right.into());
    match mask {
        None => {
            for ((into, &left), &right) in into.iter_mut().zip(left).zip(right) {
                *into = difference(left, right);
            }
        }
        Some(mask) => {
            for (((into, &left), &right), &on) in into.iter_mut().zip(left).zip(right).zip(mask) {
                let difference = difference(left, right);
                *into = if on { difference } else { F::ZERO };
            }
        }
    }
}

/// A column in another precision, 0 where masked.
#[inline(always)]
pub(crate) fn converted<T: Precision, F: Precision>(mask: Option<&[bool]>, values: &[T], into: &mut [F]) {
    match mask {
        None => {
            for (into, &value) in into.iter_mut().zip(values) {
                *into = F::of(value.into());
            }
        }
        Some(mask) => {
            for ((into, &value), &on) in into.iter_mut().zip(values).zip(mask) {
                let value = F::of(value.into());
                *into = if on { value } else { F::ZERO };
            }
        }
    }
}

/// Within the bounds; NaN stays.
#[inline(always)]
pub(crate) fn clamp<F: PartialOrd>(value: F, (low, high): (F, F)) -> F {
    let value = if value > high { high } else { value };
    if value < low { low } else { value }
}

/// Advantages of a block, 0 where masked.
#[inline(always)]
fn advantages<F: Precision>(
    mask: Option<&[bool]>,
    advantage: RowAdvantage<'_>,
    block: &std::ops::Range<usize>,
    into: &mut [F],
) {
    match (advantage, mask) {
        (RowAdvantage::Same(same), None) => into.fill(F::of(same)),
        (RowAdvantage::Same(same), Some(mask)) => {
            let same = F::of(same);
            for (into, &on) in into.iter_mut().zip(mask) {
                *into = if on { same } else { F::ZERO };
            }
        }
        (RowAdvantage::PerToken(column), mask) => converted(mask, &column[block.clone()], into),
    }
}

/// Weights of a block: the weight column, the correction for the sampler, and 0 where masked or left out. The advantages are ready.
#[inline(always)]
fn weights<T: Real, F: Precision>(
    row: &Row<'_, T>,
    mask: Option<&[bool]>,
    column: Option<&[T]>,
    pass: &Pass,
    block: &std::ops::Range<usize>,
    advantage: &[F],
    into: &mut [F],
) {
    match column {
        Some(weight) => converted(mask, &weight[block.clone()], into),
        None => into.fill(F::ONE),
    }
    if let (Some(cap), Some(behaviour)) = (pass.proximal_cap, row.behaviour) {
        let old = &row.old.unwrap_or(row.logprob)[block.clone()];
        let cap = F::of(cap);
        for (t, into) in into.iter_mut().enumerate() {
            let on = mask.is_none_or(|mask| mask[t]);
            let behaviour: f64 = behaviour[block.start + t].into();
            let weight = exp(F::of(old[t].into()) - F::of(behaviour));
            let weight = if weight > cap { cap } else { weight };
            let weight = if behaviour.is_nan() { F::ONE } else { weight };
            *into = if on { *into * weight } else { F::ZERO };
        }
    }
    if pass.off_policy {
        for (into, &advantage) in into.iter_mut().zip(advantage) {
            *into = if advantage < F::ZERO { F::ZERO } else { *into };
        }
    }
    if let Some(flags) = row.selection {
        for (into, &flags) in into.iter_mut().zip(&flags[block.clone()]) {
            *into = if flags & Selection::LEFT_OUT == 0 { *into } else { F::ZERO };
        }
    }
}

/// Runs a loss over one trajectory: derivatives are written, not added; sums are filled in. Compiled for wider vectors too, where the
/// machine has them; without fused multiply-adds, so that the bits are the same.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn run<K: Kernel, T: Real>(
    kernel: K,
    row: &Row<'_, T>,
    pass: &Pass,
    dlogprob_t: &mut [T],
    sums: &mut SequenceSums,
    scratch: &mut Scratch,
) {
    let Blocks { logprob, log_ratio, ratio, advantage, weight, selected, .. } = K::Number::blocks(scratch);
    let all = pass.tokens == row.mask.len();
    let mask_of = |block: &std::ops::Range<usize>| (!all).then(|| &row.mask[block.clone()]);
    let old = row.old.unwrap_or(row.logprob);
    let limits = kernel.limits();
    // Ratios stay finite, so that an advantage of 0 stays 0.
    let bounds = (K::Number::LOWEST, K::Number::LARGEST);
    let inner = (clamp(K::Number::of(limits.0), bounds), clamp(K::Number::of(limits.1), bounds));
    let column = row.weight.filter(|_| K::WEIGHTED);
    let is_weighted =
        column.is_some() || pass.off_policy || pass.proximal_cap.is_some() || row.selection.is_some();
    let per_trajectory = pass.importance != Importance::Token;
    let through_all = per_trajectory && K::THROUGH_RATIO && pass.importance == Importance::Sequence;

    let mut ratios = Ratios::NONE;
    let mut found = Found::NONE;
    let mut mean = (0.0, 1.0);
    if per_trajectory {
        for block in blocks(row.mask.len()) {
            let log_ratio = &mut log_ratio[..block.len()];
            differences(mask_of(&block), &row.logprob[block.clone()], &old[block.clone()], log_ratio);
            ratios.sums.add(log_ratio);
        }
        let log_ratio = ratios.sums.total() / pass.tokens as f64;
        mean = (log_ratio, exp(clamp(clamp(log_ratio, limits), (f64::LOWEST, f64::LARGEST))));
    }
    let scale = if through_all { K::Number::ONE } else { K::Number::of(pass.scale) };
    for block in blocks(row.mask.len()) {
        let n = block.len();
        let mask = mask_of(&block);
        // Up to the next whole chunk there are tokens that count for nothing, like masked ones.
        let end = n.next_multiple_of(LANES);
        let mut is_small = false;
        if per_trajectory {
            let whole = (K::Number::of(mean.0), K::Number::of(mean.1));
            log_ratio.fill(whole.0);
            ratio.fill(whole.1);
            for t in (0..end).filter(|&t| t >= n || mask.is_some_and(|mask| !mask[t])) {
                (log_ratio[t], ratio[t]) = (K::Number::ZERO, K::Number::ONE);
            }
        } else {
            let columns = (&row.logprob[block.clone()], &old[block.clone()]);
            // The weights come later: until then their array is free.
            is_small = ratios.block(mask, columns, inner, log_ratio, ratio, weight);
        }
        if K::LOGPROB {
            converted(mask, &row.logprob[block.clone()], &mut logprob[..n]);
            logprob[n..end].fill(K::Number::ZERO);
        }
        if K::SELECTS {
            selected.fill(false);
            for ((t, selected), &flags) in selected
                .iter_mut()
                .enumerate()
                .zip(row.selection.map_or(&[][..], |flags| &flags[block.clone()]))
            {
                *selected = flags & Selection::BY_COVARIANCE != 0 && mask.is_none_or(|mask| mask[t]);
            }
        }
        let limits = (K::Number::of(limits.0), K::Number::of(limits.1));
        let block_of = Tokens { logprob, log_ratio, ratio, selected, limits };
        let derivative = &mut dlogprob_t[block.clone()];
        match row.advantage {
            RowAdvantage::Same(same) if K::QUICK && mask.is_none() && !is_weighted => {
                let (same, weight) = ([K::Number::of(same); LANES], [K::Number::ONE; LANES]);
                // Loops for either sign, and for ratios that no limit holds: what a loss does for other tokens is not in them.
                let (yes, no) = ([true; LANES], [false; LANES]);
                let good = |_| Factors { advantage: same, is_good: yes, is_bad: no, weight };
                let bad = |_| Factors { advantage: same, is_good: no, is_bad: yes, weight };
                if same[0] > K::Number::ZERO {
                    if is_small {
                        found.block::<K, T, true>(&kernel, &block_of, good, scale, derivative);
                    } else {
                        found.block::<K, T, false>(&kernel, &block_of, good, scale, derivative);
                    }
                } else if same[0] < K::Number::ZERO {
                    if is_small {
                        found.block::<K, T, true>(&kernel, &block_of, bad, scale, derivative);
                    } else {
                        found.block::<K, T, false>(&kernel, &block_of, bad, scale, derivative);
                    }
                } else {
                    let factors = |_| Factors::of(same, weight);
                    found.block::<K, T, false>(&kernel, &block_of, factors, scale, derivative);
                }
            }
            column_or_same => {
                advantages(mask, column_or_same, &block, &mut advantage[..n]);
                weights(row, mask, column, pass, &block, &advantage[..n], &mut weight[..n]);
                let (advantages, weights) = (advantage.as_chunks().0, weight.as_chunks().0);
                let factors = |chunk| Factors::of(advantages[chunk], weights[chunk]);
                found.block::<K, T, false>(&kernel, &block_of, factors, scale, derivative);
            }
        }
    }
    let tokens = pass.tokens as f64;
    if through_all {
        let mut slopes = Lanes::ZERO;
        for block in blocks(row.mask.len()) {
            slopes.add(&dlogprob_t[block]);
        }
        let slope = T::of(pass.scale * (slopes.total() / tokens));
        for (derivative, &on) in dlogprob_t.iter_mut().zip(row.mask) {
            *derivative = if on { slope } else { T::ZERO };
        }
    }
    [sums.clipped, sums.dual, sums.low, sums.high] =
        found.counts.map(|[a, b, c, d, e, f, g, h]| ((a + e) + (c + g)) + ((b + f) + (d + h)));
    sums.policy_loss = pass.scale * found.losses.total();
    sums.old_kl = -ratios.sums.total();
    if per_trajectory {
        sums.ratio = mean.1 * tokens;
        (sums.ratio_min, sums.ratio_max) = (mean.1, mean.1);
        let log_ratio = clamp(-sums.old_kl / tokens, (inner.0.into(), inner.1.into()));
        sums.old_kl_k3 = tokens * (exp_m1(log_ratio) - log_ratio);
    } else {
        let excess = found.excesses.total();
        sums.ratio = tokens + excess;
        let limited = |log_ratio: f64| exp(clamp(log_ratio, (inner.0.into(), inner.1.into())));
        (sums.ratio_min, sums.ratio_max) = (limited(ratios.low()), limited(ratios.high()));
        let limits = (inner.0.into(), inner.1.into());
        // The estimate is of the log-ratio that the ratio was taken of: with another it could be negative.
        let is_limited = ratios.low() < limits.0 || ratios.high() > limits.1;
        let log_ratios = if is_limited {
            limited_sum(row, old, limits, &mut scratch.double.log_ratio)
        } else {
            -sums.old_kl
        };
        sums.old_kl_k3 = excess - log_ratios;
    }
}

/// Sum of the log-ratios of a trajectory within limits.
fn limited_sum<T: Real>(
    row: &Row<'_, T>,
    old: &[T],
    limits: (f64, f64),
    log_ratio: &mut [f64; BLOCK],
) -> f64 {
    let mut sum = Lanes::ZERO;
    for block in blocks(row.mask.len()) {
        let log_ratio = &mut log_ratio[..block.len()];
        differences(Some(&row.mask[block.clone()]), &row.logprob[block.clone()], &old[block], log_ratio);
        log_ratio.iter_mut().for_each(|one| *one = clamp(*one, limits));
        sum.add(log_ratio);
    }
    sum.total()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_counted_whatever_their_length() {
        for length in [0, 1, 7, 127, 128, 129, 255, 256, 300, 1000] {
            let mask: Vec<bool> = (0..length).map(|t| t % 3 != 1).collect();
            assert_eq!(count(&mask), mask.iter().filter(|&&on| on).count(), "{length}");
            assert_eq!(count(&vec![true; length]), length);
        }
    }
}
