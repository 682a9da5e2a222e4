//! The value loss of a critic.
//!
//! It is half the squared distance of a value to its return, and may be clipped around the old value. It is
//! weighted by the same aggregations as a policy loss. Like every objective it returns a value and
//! derivatives.

use serde::{Deserialize, Serialize};

use super::aggregation::{Aggregation, GroupCounts, LengthDivisors, Normalisers};
use super::columns::{Real, ValueColumns};
use super::error::{ObjectiveError, in_range};
use crate::entry::{Entry, Family};
use crate::fault::Fault;
use crate::ragged::{check_length, num_tokens};

pub(super) const ENTRIES: [Entry; 3] = [
    Entry {
        name: "value_loss",
        family: Family::Critic,
        meaning: "Squared error of the critic; the value is kept near its old one.",
        formula: "l = max((v - R)^2, (clamp(v, old - clip, old + clip) - R)^2) / 2",
        source: "Schulman et al.'s PPO code; verl compute_value_loss",
        defaults: &["critic.cliprange_value", "critic.aggregation"],
        degenerate: &["nothing to train on: 0", "without a bound it is (v - R)^2 / 2"],
        known_as: &[("verl", "critic.cliprange_value, critic.loss_agg_mode"), ("TRL", "cliprange_value")],
        differences: &[
            "TRL multiplies it by vf_coef because policy and critic share an optimizer; here the critic has its own",
        ],
    },
    Entry {
        name: "critic_warmup",
        family: Family::Critic,
        meaning: "In the first steps only the critic learns, so that untrained values do not move the policy.",
        formula: "policy updates in step s only if s > warmup_steps; steps and learning rates count from the first one",
        source: "verl trainer.critic_warmup",
        defaults: &["critic.warmup_steps"],
        degenerate: &["as many steps as the run has are refused: the policy would never be trained"],
        known_as: &[("verl", "trainer.critic_warmup")],
        differences: &[
            "verl updates the policy from step warmup on (`critic_warmup <= global_step`), so that 1 has no effect; here 1 is one step without updates",
            "the policy's learning-rate schedule advances in these steps; verl's advances with its updates",
        ],
    },
    Entry {
        name: "explained_variance",
        family: Family::Critic,
        meaning: "Share of the variance of the returns that the critic's values explain.",
        formula: "1 - Var(R - v) / Var(R) over the unmasked tokens of the batch, v from before its update",
        source: "verl critic/vf_explained_var",
        defaults: &[],
        degenerate: &[
            "not logged if the returns do not vary by more than rounding (a deviation up to 1e-12 of the largest)",
        ],
        known_as: &[("verl", "critic/vf_explained_var")],
        differences: &["verl divides by Var(R) + 1e-5"],
    },
];

/// `1 - Var(R - v) / Var(R)` over the unmasked tokens: 1 for a perfect critic, 0 for one that predicts the
/// same value everywhere, negative for a worse one. NaN if nothing is unmasked or if the returns do not vary.
/// They do not vary if their standard deviation is at most 1e-12 times the largest of them: additions leave
/// this much of equal returns, and it is no scale on which a critic can be measured.
///
/// Shapes: all \[N\]; the shortest counts. Source: verl `critic/vf_explained_var`.
///
/// ```
/// use tamis_core::objective::explained_variance;
/// let mask = [true, true, true];
/// assert_eq!(explained_variance(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], &mask), 1.0);
/// assert_eq!(explained_variance(&[2.0, 2.0, 2.0], &[1.0, 2.0, 3.0], &mask), 0.0);
/// assert!(explained_variance(&[2.0, 2.0], &[1.0, 1.0], &mask).is_nan());
/// assert!(explained_variance(&[2.0, 3.0], &[0.3, 0.1 + 0.2], &mask).is_nan());
/// ```
pub fn explained_variance<T: Real>(values: &[T], returns: &[T], mask: &[bool]) -> f64 {
    let unmasked = || {
        let pairs = values.iter().zip(returns).zip(mask).filter(|(_, on)| **on);
        pairs.map(|((&value, &target), _)| (value.into(), target.into()))
    };
    let count = unmasked().count() as f64;
    // Relative to the first: the sum of many equal numbers is rounded, the sum of their differences is not.
    let variance = |of: fn((f64, f64)) -> f64| {
        let first = unmasked().next().map_or(0.0, of);
        let mean = unmasked().map(|pair| of(pair) - first).sum::<f64>() / count;
        unmasked().map(|pair| (of(pair) - first - mean).powi(2)).sum::<f64>() / count
    };
    let largest = unmasked().fold(0.0_f64, |largest, (_, target)| largest.max(target.abs()));
    let total = variance(|(_, target)| target);
    if total > (1e-12 * largest).powi(2) {
        1.0 - variance(|(value, target)| target - value) / total
    } else {
        f64::NAN
    }
}

/// The critic's loss of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueToken {
    /// The loss.
    pub loss: f64,
    /// Its derivative with respect to the value.
    pub slope: f64,
    /// Whether the clipped branch is strictly the larger.
    pub is_clipped: bool,
}

/// Squared error of the critic, `+ coef · aggregated l_t`; the value is kept near its old one.
/// `l = max((v - R)², (clamp(v, old ± clip) - R)²) / 2`, v the value, R the return. Derivative with respect
/// to the value: `v - R` if the unclipped branch is the larger or the value is within the bounds, half
/// of `v - R` (the mean of the two slopes) if the value is beyond its bounds and both branches are equal, and
/// 0 otherwise.
///
/// Source: Schulman et al.'s PPO code; verl `compute_value_loss`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueTerm {
    /// The coefficient.
    pub coef: f64,
    /// Distance by which the value may move from its old one before the clipped branch counts; above 0 (verl
    /// 0.5). `None`: no clip.
    #[serde(default)]
    pub clip: Option<f64>,
    /// Aggregation of tokens.
    pub aggregation: Aggregation,
    /// Divisors that two aggregations use for the tokens of a trajectory.
    #[serde(default)]
    pub divisors: LengthDivisors,
}

impl ValueTerm {
    /// A squared error of coefficient 1.
    pub fn of(clip: Option<f64>, aggregation: Aggregation) -> Self {
        Self { coef: 1.0, clip, aggregation, divisors: LengthDivisors::default() }
    }

    /// Whether the settings are in range.
    ///
    /// # Errors
    /// [`ObjectiveError::Setting`] with the first that is not.
    pub fn check(&self) -> Result<(), ObjectiveError> {
        in_range("value.coef", self.coef, self.coef.is_finite(), "a finite number")?;
        if let Some(clip) = self.clip {
            in_range("value.clip", clip, clip > 0.0 && clip.is_finite(), "a number above 0")?;
        }
        self.divisors.check()
    }

    /// One token's loss.
    ///
    /// ```
    /// use tamis_core::objective::{Aggregation, ValueTerm, ValueToken};
    /// let term = ValueTerm::of(Some(0.5), Aggregation::TokenMean);
    /// // From 0 to 2, return 3: clipped at 0.5, so the loss is 2.5²/2 and the gradient is 0.
    /// assert_eq!(term.token(2.0, 0.0, 3.0), ValueToken { loss: 3.125, slope: 0.0, is_clipped: true });
    /// // Return 0: the unclipped error is the larger, so the gradient is not 0.
    /// assert_eq!(term.token(2.0, 0.0, 0.0), ValueToken { loss: 2.0, slope: 2.0, is_clipped: false });
    /// ```
    #[inline]
    pub fn token(&self, value: f64, old: f64, target: f64) -> ValueToken {
        let error = value - target;
        let Some(clip) = self.clip else {
            return ValueToken { loss: 0.5 * error * error, slope: error, is_clipped: false };
        };
        let (low, high) = (old - clip, old + clip);
        let within = value >= low && value <= high;
        let held = if value < low {
            low
        } else if value > high {
            high
        } else {
            value
        };
        let held_error = held - target;
        let (unclipped, clipped) = (error * error, held_error * held_error);
        let held_slope = if within { held_error } else { 0.0 };
        if clipped > unclipped {
            ValueToken { loss: 0.5 * clipped, slope: held_slope, is_clipped: true }
        } else if unclipped > clipped {
            ValueToken { loss: 0.5 * unclipped, slope: error, is_clipped: false }
        } else {
            ValueToken { loss: 0.5 * unclipped, slope: 0.5 * (error + held_slope), is_clipped: false }
        }
    }

    /// One trajectory: its sums, and one derivative per token, 0 at masked tokens. `scale` is the weight of
    /// each token.
    pub(crate) fn sequence<T: Real>(
        &self,
        mask_t: &[bool],
        values: &ValueColumns<'_, T>,
        scale: f64,
        dvalue_t: &mut [T],
    ) -> ValueSums {
        let mut sums = ValueSums::default();
        for (t, derivative) in dvalue_t.iter_mut().enumerate() {
            *derivative = T::ZERO;
            if !mask_t[t] {
                continue;
            }
            let value = values.value[t].into();
            let token = self.token(value, values.old[t].into(), values.returns[t].into());
            let ValueToken { loss, slope, is_clipped } = token;
            sums.tokens += 1;
            sums.loss += loss;
            sums.value += value;
            *derivative = T::of(scale * (self.coef * slope));
            sums.clipped += u32::from(is_clipped);
        }
        sums.loss *= scale;
        sums
    }

    /// Derivatives \[N\] and sums \[B\] of some trajectories of an optimizer batch, for a critic that is a
    /// model of its own: one micro-batch, or all of it. `normalisers` count the *whole* optimizer batch, so
    /// the bits are the same however it is cut. Both vectors are overwritten; linear in N.
    ///
    /// # Errors
    /// Columns whose lengths do not fit together, settings out of range. NaN is not an error: the learner's
    /// check of the gradient finds it.
    ///
    /// ```
    /// use tamis_core::objective::{
    ///     Aggregation, CriticColumns, Normalisers, ValueColumns, ValueMetrics, ValueTerm,
    /// };
    /// let term = ValueTerm::of(None, Aggregation::TokenMean);
    /// let values = ValueColumns { value: &[1.0, 2.0, 9.0], old: &[1.0, 1.0, 0.0], returns: &[0.0, 4.0, 0.0] };
    /// let columns = CriticColumns {
    ///     offsets: &[0, 2, 3],
    ///     mask: &[true, true, false],
    ///     values,
    ///     group_tokens: None,
    ///     group_sequences: None,
    /// };
    /// let normalisers = Normalisers { tokens: 2.0, sequences: 1.0, groups: 1.0, dp_size: 1.0 };
    /// let (mut derivatives, mut sums) = (Vec::new(), Vec::new());
    /// term.evaluate(&columns, &normalisers, &mut derivatives, &mut sums)?;
    /// // Errors 1 and -2 over two tokens; the masked one is left out.
    /// assert_eq!(derivatives, [0.5, -1.0, 0.0]);
    /// let metrics = ValueMetrics::of(&sums);
    /// assert_eq!((metrics.loss, metrics.value_mean, metrics.clip_share), (1.25, 1.5, 0.0));
    /// # Ok::<(), tamis_core::objective::ObjectiveError>(())
    /// ```
    pub fn evaluate<T: Real>(
        &self,
        columns: &CriticColumns<'_, T>,
        normalisers: &Normalisers,
        derivatives: &mut Vec<T>,
        sums: &mut Vec<ValueSums>,
    ) -> Result<(), ObjectiveError> {
        self.check()?;
        columns.check()?;
        derivatives.resize(columns.mask.len(), T::ZERO);
        sums.clear();
        let base = columns.offsets.first().copied().unwrap_or(0);
        for (i, pair) in columns.offsets.windows(2).enumerate() {
            let tokens = pair[0] - base..pair[1] - base;
            let mask_t = &columns.mask[tokens.clone()];
            let length = mask_t.iter().filter(|&&on| on).count();
            let group = GroupCounts {
                tokens: columns.group_tokens.map(|column| column[i]),
                sequences: columns.group_sequences.map(|column| column[i]),
            };
            let weight = || self.aggregation.weight(length, group, normalisers, &self.divisors);
            let scale = if length > 0 { weight()? } else { 0.0 };
            let values = columns.values.cut(&tokens);
            sums.push(self.sequence(mask_t, &values, scale, &mut derivatives[tokens]));
        }
        Ok(())
    }
}

/// A critic's optimizer batch, or a part of it; per-token columns are flat \[N\]. Nothing else is read at
/// tokens whose mask is `false`.
#[derive(Debug, Clone, Copy)]
pub struct CriticColumns<'a, T> {
    /// Offsets of the trajectories \[B + 1\].
    pub offsets: &'a [usize],
    /// Mask of the tokens that are trained on \[N\].
    pub mask: &'a [bool],
    /// Values, old values and returns \[N\].
    pub values: ValueColumns<'a, T>,
    /// Unmasked tokens of the trajectory's whole group in the optimizer batch \[B\], for `group-token-mean`.
    pub group_tokens: Option<&'a [f64]>,
    /// Trajectories with an unmasked token in the trajectory's whole group \[B\], for `group-seq-mean`.
    pub group_sequences: Option<&'a [f64]>,
}

impl<T> CriticColumns<'_, T> {
    /// Whether all lengths fit together.
    fn check(&self) -> Result<(), Fault> {
        let tokens = num_tokens(self.offsets)?;
        let sequences = self.offsets.len().saturating_sub(1);
        let given = |column: Option<&[f64]>| column.map_or(sequences, <[f64]>::len);
        for (column, expected, actual) in [
            ("mask", tokens, self.mask.len()),
            ("value", tokens, self.values.value.len()),
            ("old value", tokens, self.values.old.len()),
            ("returns", tokens, self.values.returns.len()),
            ("group_tokens", sequences, given(self.group_tokens)),
            ("group_sequences", sequences, given(self.group_sequences)),
        ] {
            check_length(column, expected, actual)?;
        }
        Ok(())
    }
}

/// Contributions of one trajectory to a critic's loss and metrics, each a sum over its unmasked tokens in
/// token order.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ValueSums {
    /// Unmasked tokens.
    pub tokens: u32,
    /// Of them, with the clipped branch active.
    pub clipped: u32,
    /// Weighted value loss, before the coefficient.
    pub loss: f64,
    /// Sum of the values.
    pub value: f64,
}

/// Value loss of an optimizer batch, and the metrics logged with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueMetrics {
    /// The loss as aggregated, before the coefficient; 0 if nothing is trained on.
    pub loss: f64,
    /// Share of unmasked tokens on the clipped branch; NaN if there are none.
    pub clip_share: f64,
    /// Mean value over unmasked tokens; NaN if there are none.
    pub value_mean: f64,
}

impl ValueMetrics {
    /// Sums the contributions of the trajectories of a whole optimizer batch, in order.
    pub fn of(sums: &[ValueSums]) -> Self {
        let (mut loss, mut value, mut tokens, mut clipped) = (0.0, 0.0, 0_u64, 0_u64);
        for row in sums {
            loss += row.loss;
            value += row.value;
            tokens += u64::from(row.tokens);
            clipped += u64::from(row.clipped);
        }
        let mean = |sum: f64| sum / tokens as f64;
        Self { loss, clip_share: mean(clipped as f64), value_mean: mean(value) }
    }

    /// Names as verl logs them.
    pub fn to_pairs(&self) -> [(&'static str, f64); 3] {
        [
            ("critic/vf_loss", self.loss),
            ("critic/vf_clipfrac", self.clip_share),
            ("critic/vpred_mean", self.value_mean),
        ]
    }
}
