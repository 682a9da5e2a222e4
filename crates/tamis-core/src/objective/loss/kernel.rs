//! How a policy loss goes over a trajectory: block by block, each stage a straight loop over slices, so that it vectorises.
//!
//! ```text
//! columns ── log_ratio ── ratio ── loss and derivative per token ── weight ── sums in eight lanes
//! ```
//!
//! The first stage puts harmless numbers at masked tokens (log-ratio 0, advantage 0, weight 0), which every loss answers with 0 and no
//! bound reached; so no later stage looks at the mask. Sums run in eight lanes by position in the trajectory: a fixed order, whatever
//! the processor's vectors, and so the same bits everywhere.

use multiversion::multiversion;

use super::super::accumulator::SequenceSums;
use super::super::columns::{Real, Row, RowAdvantage};
use super::super::exponential::{HIGHEST, LOWEST, exp, exp_bounded};
use super::super::selection::Selection;
use super::Importance;

/// Tokens of a block: all of its arrays stay in the first-level cache.
pub(crate) const BLOCK: usize = 256;

/// Eight running sums; token t of a trajectory goes to lane t mod 8.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lanes([f64; 8]);

impl Lanes {
    pub(crate) const ZERO: Self = Self([0.0; 8]);

    /// Adds values whose first belongs to lane 0.
    #[inline(always)]
    pub(crate) fn add(&mut self, values: &[f64]) {
        self.add_mapped(values, |value| value);
    }

    #[inline(always)]
    fn add_mapped(&mut self, values: &[f64], map: impl Fn(f64) -> f64) {
        let mut lanes = self.0;
        let (chunks, rest) = values.as_chunks::<8>();
        for chunk in chunks {
            for (lane, &value) in lanes.iter_mut().zip(chunk) {
                *lane += map(value);
            }
        }
        for (lane, &value) in lanes.iter_mut().zip(rest) {
            *lane += map(value);
        }
        self.0 = lanes;
    }

    /// The sum of all.
    #[inline(always)]
    pub(crate) fn total(self) -> f64 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
}

/// Smallest and largest of what was seen, lane by lane; NaN is passed over.
#[derive(Clone, Copy)]
struct Extremes {
    low: [f64; 8],
    high: [f64; 8],
}

impl Extremes {
    const NONE: Self = Self { low: [f64::INFINITY; 8], high: [f64::NEG_INFINITY; 8] };

    #[inline(always)]
    fn add(&mut self, values: &[f64]) {
        let (mut lows, mut highs) = (self.low, self.high);
        let (chunks, rest) = values.as_chunks::<8>();
        let mut one = |chunk: &[f64]| {
            for ((low, high), &value) in lows.iter_mut().zip(&mut highs).zip(chunk) {
                *low = if value < *low { value } else { *low };
                *high = if value > *high { value } else { *high };
            }
        };
        for chunk in chunks {
            one(chunk);
        }
        one(rest);
        (self.low, self.high) = (lows, highs);
    }

    fn low(&self) -> f64 {
        self.low.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn high(&self) -> f64 {
        self.high.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }
}

/// What a policy loss is given of one token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    /// Log-probability; 0 where the loss does not read it ([`Kernel::LOGPROB`]).
    pub(crate) logprob: f64,
    /// `logprob - old`, or its mean over the trajectory; before the limits.
    pub(crate) log_ratio: f64,
    /// `exp(log_ratio)`, within the limits.
    pub(crate) ratio: f64,
    pub(crate) advantage: f64,
    /// Chosen by the selection over the optimizer batch.
    pub(crate) selected: bool,
}

/// What a policy loss makes of one token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    pub(crate) loss: f64,
    /// With respect to the log-probability, or to the log-ratio of the trajectory ([`Kernel::THROUGH_RATIO`]).
    pub(crate) dloss: f64,
    pub(crate) is_clipped: bool,
    pub(crate) is_dual: bool,
    pub(crate) is_low: bool,
    pub(crate) is_high: bool,
}

impl Token {
    /// A token with no bounds.
    #[inline(always)]
    pub(crate) fn new(loss: f64, dloss: f64) -> Self {
        Self { loss, dloss, is_clipped: false, is_dual: false, is_low: false, is_high: false }
    }
}

/// A policy loss per token, its settings resolved to plain numbers. `token` has no branch that depends on the data.
pub(crate) trait Kernel: Copy {
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

    fn token(&self, at: At) -> Token;
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

/// Block arrays, made once for many trajectories.
pub(crate) struct Scratch {
    pub(crate) logprob: [f64; BLOCK],
    pub(crate) log_ratio: [f64; BLOCK],
    pub(crate) ratio: [f64; BLOCK],
    pub(crate) advantage: [f64; BLOCK],
    pub(crate) weight: [f64; BLOCK],
    pub(crate) loss: [f64; BLOCK],
    pub(crate) selected: [bool; BLOCK],
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let zero = [0.0; BLOCK];
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

/// The blocks of T tokens.
pub(crate) fn blocks(length: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..length).step_by(BLOCK).map(move |start| start..length.min(start + BLOCK))
}

/// `left - right` per token, 0 where masked.
#[inline(always)]
pub(crate) fn differences<T: Real>(mask: Option<&[bool]>, left: &[T], right: &[T], into: &mut [f64]) {
    match mask {
        None => {
            for ((into, &left), &right) in into.iter_mut().zip(left).zip(right) {
                *into = left.into() - right.into();
            }
        }
        Some(mask) => {
            for (((into, &left), &right), &on) in into.iter_mut().zip(left).zip(right).zip(mask) {
                let difference = left.into() - right.into();
                *into = if on { difference } else { 0.0 };
            }
        }
    }
}

/// A column in double precision, 0 where masked.
#[inline(always)]
pub(crate) fn widened<T: Real>(mask: Option<&[bool]>, values: &[T], into: &mut [f64]) {
    match mask {
        None => {
            for (into, &value) in into.iter_mut().zip(values) {
                *into = value.into();
            }
        }
        Some(mask) => {
            for ((into, &value), &on) in into.iter_mut().zip(values).zip(mask) {
                let value: f64 = value.into();
                *into = if on { value } else { 0.0 };
            }
        }
    }
}

/// Within the bounds; NaN stays.
#[inline(always)]
pub(crate) fn clamp(value: f64, (low, high): (f64, f64)) -> f64 {
    let value = if value > high { high } else { value };
    if value < low { low } else { value }
}

/// Advantages of a block, 0 where masked.
#[inline(always)]
fn advantages(
    mask: Option<&[bool]>,
    advantage: RowAdvantage<'_>,
    block: &std::ops::Range<usize>,
    into: &mut [f64],
) {
    match (advantage, mask) {
        (RowAdvantage::Same(same), None) => into.fill(same),
        (RowAdvantage::Same(same), Some(mask)) => {
            for (into, &on) in into.iter_mut().zip(mask) {
                *into = if on { same } else { 0.0 };
            }
        }
        (RowAdvantage::PerToken(column), mask) => widened(mask, &column[block.clone()], into),
    }
}

/// Weights of a block: the weight column, the correction for the sampler, and 0 where masked or left out. The advantages are ready.
#[inline(always)]
fn weights<T: Real>(
    row: &Row<'_, T>,
    mask: Option<&[bool]>,
    column: Option<&[T]>,
    pass: &Pass,
    block: &std::ops::Range<usize>,
    advantage: &[f64],
    into: &mut [f64],
) {
    match column {
        Some(weight) => widened(mask, &weight[block.clone()], into),
        None => into.fill(1.0),
    }
    if let (Some(cap), Some(behaviour)) = (pass.proximal_cap, row.behaviour) {
        let old = &row.old.unwrap_or(row.logprob)[block.clone()];
        for (t, into) in into.iter_mut().enumerate() {
            let on = mask.is_none_or(|mask| mask[t]);
            let behaviour: f64 = behaviour[block.start + t].into();
            let weight = exp(old[t].into() - behaviour);
            let weight = if weight > cap { cap } else { weight };
            let weight = if behaviour.is_nan() { 1.0 } else { weight };
            *into = if on { *into * weight } else { 0.0 };
        }
    }
    if pass.off_policy {
        for (into, &advantage) in into.iter_mut().zip(advantage) {
            *into = if advantage < 0.0 { 0.0 } else { *into };
        }
    }
    if let Some(flags) = row.selection {
        for (into, &flags) in into.iter_mut().zip(&flags[block.clone()]) {
            *into = if flags & Selection::LEFT_OUT == 0 { *into } else { 0.0 };
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
    dlogprob_t: &mut [f64],
    sums: &mut SequenceSums,
    scratch: &mut Scratch,
) {
    let all = pass.tokens == row.mask.len();
    let mask_of = |block: &std::ops::Range<usize>| (!all).then(|| &row.mask[block.clone()]);
    let old = row.old.unwrap_or(row.logprob);
    let limits = kernel.limits();
    let inner = (limits.0.max(LOWEST), limits.1.min(HIGHEST));
    let column = row.weight.filter(|_| K::WEIGHTED);
    let is_weighted =
        column.is_some() || pass.off_policy || pass.proximal_cap.is_some() || row.selection.is_some();
    let per_trajectory = pass.importance != Importance::Token;

    let (mut log_ratios, mut ratios, mut losses) = (Lanes::ZERO, Lanes::ZERO, Lanes::ZERO);
    let mut extremes = Extremes::NONE;
    let mut counts = [0_u64; 4];
    let mut slopes = Lanes::ZERO;
    let mut mean = (0.0, 1.0);
    if per_trajectory {
        for block in blocks(row.mask.len()) {
            let log_ratio = &mut scratch.log_ratio[..block.len()];
            differences(mask_of(&block), &row.logprob[block.clone()], &old[block.clone()], log_ratio);
            log_ratios.add(log_ratio);
        }
        let log_ratio = log_ratios.total() / pass.tokens as f64;
        mean = (log_ratio, exp(clamp(log_ratio, limits)));
    }
    for block in blocks(row.mask.len()) {
        let n = block.len();
        let mask = mask_of(&block);
        let log_ratio = &mut scratch.log_ratio[..n];
        let ratio = &mut scratch.ratio[..n];
        if per_trajectory {
            log_ratio.fill(mean.0);
            ratio.fill(mean.1);
            if let Some(mask) = mask {
                for ((log_ratio, ratio), &on) in log_ratio.iter_mut().zip(&mut *ratio).zip(mask) {
                    (*log_ratio, *ratio) = if on { mean } else { (0.0, 1.0) };
                }
            }
        } else {
            differences(mask, &row.logprob[block.clone()], &old[block.clone()], log_ratio);
            for (ratio, &log_ratio) in ratio.iter_mut().zip(&*log_ratio) {
                *ratio = exp_bounded(clamp(log_ratio, inner));
            }
            log_ratios.add_mapped(log_ratio, |log_ratio| clamp(log_ratio, limits));
            ratios.add(ratio);
            match mask {
                None => extremes.add(log_ratio),
                Some(mask) => {
                    for (&log_ratio, &on) in log_ratio.iter().zip(mask) {
                        if on {
                            extremes.add(&[log_ratio]);
                        }
                    }
                }
            }
        }
        let advantage = &mut scratch.advantage[..n];
        advantages(mask, row.advantage, &block, advantage);
        let logprob = &mut scratch.logprob[..n];
        if K::LOGPROB {
            widened(mask, &row.logprob[block.clone()], logprob);
        }
        let selected = &mut scratch.selected[..n];
        if K::SELECTS {
            match row.selection {
                Some(flags) => {
                    for ((t, selected), &flags) in selected.iter_mut().enumerate().zip(&flags[block.clone()])
                    {
                        *selected = flags & Selection::BY_COVARIANCE != 0 && mask.is_none_or(|mask| mask[t]);
                    }
                }
                None => selected.fill(false),
            }
        }
        let loss = &mut scratch.loss[..n];
        let derivative = &mut dlogprob_t[block.clone()];
        tokens(&kernel, [logprob, log_ratio, ratio, advantage], selected, loss, derivative, &mut counts);
        if is_weighted {
            let weight = &mut scratch.weight[..n];
            weights(row, mask, column, pass, &block, advantage, weight);
            for ((loss, derivative), &weight) in loss.iter_mut().zip(&mut *derivative).zip(&*weight) {
                *loss *= weight;
                *derivative *= weight;
            }
        }
        losses.add(loss);
        if per_trajectory && K::THROUGH_RATIO && pass.importance == Importance::Sequence {
            slopes.add(derivative);
        } else {
            for derivative in derivative {
                *derivative *= pass.scale;
            }
        }
    }
    let tokens = pass.tokens as f64;
    if per_trajectory && K::THROUGH_RATIO && pass.importance == Importance::Sequence {
        let slope = pass.scale * (slopes.total() / tokens);
        for (derivative, &on) in dlogprob_t.iter_mut().zip(row.mask) {
            *derivative = if on { slope } else { 0.0 };
        }
    }
    [sums.clipped, sums.dual, sums.low, sums.high] = counts.map(|count| count as u32);
    sums.policy_loss = pass.scale * losses.total();
    sums.old_kl = -log_ratios.total();
    if per_trajectory {
        sums.ratio = mean.1 * tokens;
        (sums.ratio_min, sums.ratio_max) = (mean.1, mean.1);
    } else {
        // Masked tokens were counted as ratio 1.
        sums.ratio = ratios.total() - (row.mask.len() - pass.tokens) as f64;
        (sums.ratio_min, sums.ratio_max) =
            (exp(clamp(extremes.low(), limits)), exp(clamp(extremes.high(), limits)));
    }
    sums.old_kl_k3 = (sums.ratio - tokens) + sums.old_kl;
}

/// The loss and its derivative of every token of a block.
#[inline(always)]
fn tokens<K: Kernel>(
    kernel: &K,
    [logprob, log_ratio, ratio, advantage]: [&[f64]; 4],
    selected: &[bool],
    loss: &mut [f64],
    derivative: &mut [f64],
    counts: &mut [u64; 4],
) {
    let n = loss.len();
    let (logprob, log_ratio, ratio) = (&logprob[..n], &log_ratio[..n], &ratio[..n]);
    let (advantage, selected, derivative) = (&advantage[..n], &selected[..n], &mut derivative[..n]);
    let (mut clipped, mut dual, mut low, mut high) = (0_u64, 0_u64, 0_u64, 0_u64);
    for t in 0..n {
        let token = kernel.token(At {
            logprob: if K::LOGPROB { logprob[t] } else { 0.0 },
            log_ratio: log_ratio[t],
            ratio: ratio[t],
            advantage: advantage[t],
            selected: K::SELECTS && selected[t],
        });
        loss[t] = token.loss;
        derivative[t] = token.dloss;
        clipped += u64::from(token.is_clipped);
        dual += u64::from(token.is_dual);
        low += u64::from(token.is_low);
        high += u64::from(token.is_high);
    }
    for (count, more) in counts.iter_mut().zip([clipped, dual, low, high]) {
        *count += more;
    }
}
