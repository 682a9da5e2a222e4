//! Divergence from the reference policy: estimators per token, controllers of the coefficient, as a loss term
//! or in the reward.
//!
//! Notation: `d = logprob - reference` of a sampled token.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::columns::{Real, Row};
use super::error::ObjectiveError;
use super::exponential::{LARGEST, LOWEST, clamp, exp, exp_m1};
use super::importance::Importance;
use super::loss::trajectory::sum;
use super::sequence_sums::SequenceSums;
use crate::choice;
use crate::entry::{Entry, Family};
use crate::ragged::{Ragged, check_length};

pub(super) const ENTRIES: [Entry; 4] = {
    const fn entry(
        name: &'static str,
        formula: &'static str,
        known_as: &'static [(&'static str, &'static str)],
        differences: &'static [&'static str],
    ) -> Entry {
        Entry {
            name,
            family: Family::Divergence,
            formula,
            source: "Schulman, Approximating KL divergence (2020); as a loss: Tang and Munos, arXiv 2506.09477",
            defaults: &[
                "objective.kl.in",
                "objective.kl.coefficient",
                "objective.kl.straight_through",
                "objective.kl.bias_corrected",
            ],
            degenerate: &["0 if the policy is the reference"],
            known_as,
            differences,
            ..Entry::REGISTERED
        }
    }
    [
        entry(
            "k1",
            "d = logprob - reference",
            &[("verl", "kl|k1")],
            &["as a loss its gradient has expectation zero; use it in the reward"],
        ),
        entry("abs", "|d|", &[("verl", "abs")], &[]),
        entry(
            "k2",
            "d^2 / 2",
            &[("verl", "mse|k2")],
            &["verl's trailing + (`straight_through: true`) gives any estimator this gradient"],
        ),
        entry(
            "k3",
            "exp(-d) - 1 + d",
            &[("verl", "low_var_kl|k3"), ("TRL", "beta; use_bias_correction_kl for `bias_corrected`")],
            &["a run bounds the value at 10 with derivative 0 beyond, as verl does; TRL does not"],
        ),
    ]
};

choice! {
    /// The estimator of the KL divergence, from `d = logp - ref` at the sampled token. Source: Schulman,
    /// "Approximating KL divergence" (2020).
    pub enum KlKind {
        /// Unbiased, of high variance, negative for half of the tokens: `d`.
        K1 = "k1",
        /// Biased, but its gradient as a loss is unbiased for the divergence: `d^2 / 2`.
        K2 = "k2",
        /// Unbiased and never negative: `exp(-d) + d - 1`, bounded at 10 with derivative 0 (verl).
        K3 = "k3",
        /// The distance of the log-probabilities: `|d|`.
        Abs = "abs",
    }
}

/// A divergence estimator, with the variations that other packages have.
///
/// The names are verl's: `kl`|`k1`, `abs`, `mse`|`k2`, `low_var_kl`|`k3`, each with an optional `+`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KlEstimator {
    /// The value.
    pub kind: KlKind,
    /// verl's `+`: the value of `kind` with the gradient of [`KlKind::K2`], which is `d` (straight-through).
    #[serde(default)]
    pub straight_through: bool,
    /// verl's bound on `k3`: at most 10, with derivative 0 there. (verl also clamps `d` to ±20 first, but the
    /// value is already above 10 there.) TRL has none.
    #[serde(default)]
    pub clamped: bool,
}

/// The name of no estimator.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "unknown KL estimator `{name}`; known are k1 (kl), abs, k2 (mse), k3 (low_var_kl), each also with a trailing +"
)]
pub struct UnknownKl {
    /// The value given.
    pub name: String,
}

impl FromStr for KlEstimator {
    type Err = UnknownKl;

    /// verl's names with verl's bounds.
    fn from_str(name: &str) -> Result<Self, UnknownKl> {
        let (base, straight_through) = match name.strip_suffix('+') {
            Some(base) => (base, true),
            None => (name, false),
        };
        let kind = match base {
            "k1" | "kl" => KlKind::K1,
            "abs" => KlKind::Abs,
            "k2" | "mse" => KlKind::K2,
            "k3" | "low_var_kl" => KlKind::K3,
            _ => return Err(UnknownKl { name: name.to_owned() }),
        };
        Ok(Self { kind, straight_through, clamped: true })
    }
}

/// The divergence at one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlToken {
    /// The estimate, in nats.
    pub value: f64,
    /// Its derivative with respect to the policy's log-probability.
    pub slope: f64,
}

impl KlEstimator {
    /// The estimator as its author wrote it: no bounds, its own gradient.
    pub fn plain(kind: KlKind) -> Self {
        Self { kind, straight_through: false, clamped: false }
    }

    /// The estimate of one token.
    ///
    /// ```
    /// use tamis_core::objective::{KlEstimator, KlKind, KlToken};
    /// let half = 0.5_f64.ln();
    /// // The reference assigns the token half the probability: d = ln 2.
    /// let KlToken { value, slope } = KlEstimator::plain(KlKind::K3).token(half, half + half);
    /// assert!((value - (0.5 - 1.0 + 2_f64.ln())).abs() < 1e-15);
    /// assert!((slope - 0.5).abs() < 1e-15);
    /// ```
    #[inline]
    pub fn token(&self, logprob: f64, reference: f64) -> KlToken {
        let d = logprob - reference;
        let (value, slope) = match self.kind {
            KlKind::K1 => (d, 1.0),
            KlKind::Abs => (d.abs(), if d == 0.0 { 0.0 } else { d.signum() }),
            KlKind::K2 => (0.5 * d * d, d),
            KlKind::K3 => {
                // exp(-d) - 1 without cancellation near 0.
                let growth = exp_m1(-d);
                let value = growth + d;
                if self.clamped && value > 10.0 { (10.0, 0.0) } else { (value, -growth) }
            }
        };
        KlToken { value, slope: if self.straight_through { d } else { slope } }
    }
}

/// Controller of the divergence's coefficient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum KlController {
    /// A constant coefficient.
    Fixed {
        /// The coefficient.
        coef: f64,
    },
    /// Proportional control, Ziegler et al., arXiv 1909.08593 section 2.2: after each optimizer batch
    /// `coef *= 1 + clamp(kl/target - 1, ±0.2)·n/horizon`, with n the number of trajectories seen.
    ///
    /// Degenerate: with `n > 5·horizon` one update can make the coefficient negative (in verl too); choose a
    /// horizon above that.
    Adaptive {
        /// Coefficient at the start.
        initial: f64,
        /// Divergence per token to maintain, in nats; above 0.
        target: f64,
        /// Number of trajectories over which the coefficient may change by a fifth of itself; above 0.
        horizon: f64,
    },
}

/// The coefficient of the divergence, saved in checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KlState {
    /// The coefficient of the next optimizer batch.
    pub coef: f64,
}

impl KlController {
    /// State at the start of a run.
    pub fn initial(&self) -> KlState {
        let (Self::Fixed { coef } | Self::Adaptive { initial: coef, .. }) = *self;
        KlState { coef }
    }

    /// State after a batch of `num_trajectories` whose mean divergence was `current`; unchanged if `current`
    /// is NaN (nothing was trained on).
    #[must_use]
    pub fn update(&self, state: KlState, current: f64, num_trajectories: f64) -> KlState {
        match *self {
            Self::Adaptive { target, horizon, .. } if !current.is_nan() => {
                let error = (current / target - 1.0).clamp(-0.2, 0.2);
                KlState { coef: state.coef * (1.0 + error * num_trajectories / horizon) }
            }
            _ => state,
        }
    }

    /// Whether the settings are in range.
    pub(crate) fn check(&self) -> Result<(), ObjectiveError> {
        let setting = |setting, value: f64, fine: bool, expected| {
            if fine { Ok(()) } else { Err(ObjectiveError::Setting { setting, value, expected }) }
        };
        match *self {
            Self::Fixed { coef } => setting("kl.coef", coef, coef.is_finite(), "a finite number"),
            Self::Adaptive { initial, target, horizon } => {
                setting("kl.initial", initial, initial.is_finite(), "a finite number")?;
                setting("kl.target", target, target > 0.0 && target.is_finite(), "a number above 0")?;
                setting("kl.horizon", horizon, horizon > 0.0 && horizon.is_finite(), "a number above 0")
            }
        }
    }
}

/// The divergence as a term of the loss: `+ coef · aggregated estimate`, under the aggregation of the policy
/// loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KlTerm {
    /// The estimator.
    pub estimator: KlEstimator,
    /// The coefficient.
    pub controller: KlController,
    /// Multiplies the estimate by the importance ratio, through which it is differentiated as well. This
    /// makes it unbiased if the samples come from an older policy. DeepSeek-V3.2, arXiv 2512.02556 eq. 7 (TRL
    /// `use_bias_correction_kl`).
    #[serde(default)]
    pub bias_corrected: bool,
}

/// Factors of a trajectory's divergence.
#[derive(Clone, Copy)]
pub(crate) struct KlPass {
    /// Factor of each token's estimate.
    pub(crate) scale: f64,
    pub(crate) coef: f64,
    /// The two policies of the ratio, if the estimate is multiplied by it.
    pub(crate) importance: Importance,
    /// Bounds on the log-ratio inside its exponential.
    pub(crate) limits: (f64, f64),
}

impl KlPass {
    /// The ratio within its bounds, and 1 if it moves with the log-ratio or 0 if a bound applies.
    fn ratio(&self, log_ratio: f64) -> (f64, f64) {
        // Ratios stay finite, so that a divergence of 0 stays 0.
        let finite = |limit: f64| clamp(limit, (LOWEST, LARGEST));
        let limits = (finite(self.limits.0), finite(self.limits.1));
        let is_held = log_ratio < limits.0 || log_ratio > limits.1;
        (exp(clamp(log_ratio, limits)), f64::from(!is_held))
    }
}

/// Adds a trajectory's divergence to its sums and derivatives. `sums.kl_loss` is before the coefficient.
pub(crate) fn sequence<T: Real>(
    term: &KlTerm,
    row: &Row<'_, T>,
    reference: &[T],
    pass: KlPass,
    dlogprob_t: &mut [T],
    sums: &mut SequenceSums,
) {
    let old = row.old.unwrap_or(row.logprob);
    let log_ratio = |t: usize| row.logprob[t].into() - old[t].into();
    let tokens = f64::from(sums.tokens);
    // One ratio for all tokens if the level is the trajectory's.
    let is_whole = term.bias_corrected && pass.importance != Importance::Token;
    let whole = is_whole.then(|| pass.ratio(sum(row.mask, log_ratio) / tokens));
    let is_spread = is_whole && pass.importance == Importance::Sequence;
    let mut kl = 0.0;
    for (t, _) in row.mask.iter().enumerate().filter(|(_, on)| **on) {
        let token = term.estimator.token(row.logprob[t].into(), reference[t].into());
        let KlToken { mut value, mut slope } = token;
        if term.bias_corrected {
            let (ratio, moves) = whole.unwrap_or_else(|| pass.ratio(log_ratio(t)));
            value *= ratio;
            // All tokens contribute to a trajectory's ratio; their shares are added below.
            slope = slope * ratio + if is_spread { 0.0 } else { moves * value };
        }
        kl += value;
        dlogprob_t[t] = T::of(dlogprob_t[t].into() + pass.scale * (pass.coef * slope));
    }
    if let (Some((_, moves)), true) = (whole, is_spread) {
        let slope = pass.scale * (pass.coef * (moves * kl / tokens));
        for (derivative, _) in dlogprob_t.iter_mut().zip(row.mask).filter(|(_, on)| **on) {
            *derivative = T::of((*derivative).into() + slope);
        }
    }
    sums.kl = kl;
    sums.kl_loss = pass.scale * kl;
}

/// Result of [`in_reward`].
#[derive(Debug, Clone, PartialEq)]
pub struct KlInReward {
    /// Token rewards after the penalty \[N\].
    pub token_rewards: Vec<f64>,
    /// Penalty of each trajectory, `coef · Σ_t m kl` \[B\]: subtracted from its outcome reward.
    pub penalties: Vec<f64>,
    /// Mean over trajectories of the masked token mean (verl `actor/reward_kl_penalty`). Fully masked
    /// trajectories count as 0; NaN without trajectories.
    pub mean_kl: f64,
}

/// The divergence as a penalty in the reward: `r_t - coef · m_t kl_t`, with the log-probabilities at the
/// start of the step.
///
/// Shapes: all columns have the same `[B][T]`; others are refused. Masked tokens keep their score. The caller
/// updates the coefficient afterwards: `controller.update(state, mean_kl, B)`. Source: Ouyang et al., arXiv
/// 2203.02155 eq. 2; verl `apply_kl_penalty`.
pub fn in_reward<T: Real>(
    estimator: KlEstimator,
    coef: f64,
    token_scores: &Ragged<f64>,
    mask: &[bool],
    old: &[T],
    reference: &[T],
) -> Result<KlInReward, ObjectiveError> {
    let expected = token_scores.num_values();
    for (column, actual) in [("mask", mask.len()), ("old", old.len()), ("reference", reference.len())] {
        check_length(column, expected, actual)?;
    }
    let mut token_rewards = token_scores.values().to_vec();
    let mut penalties = Vec::with_capacity(token_scores.num_rows());
    let mut means = 0.0;
    for pair in token_scores.offsets().windows(2) {
        let (mut sum, mut count) = (0.0, 0_usize);
        for t in pair[0]..pair[1] {
            if mask[t] {
                let KlToken { value, .. } = estimator.token(old[t].into(), reference[t].into());
                token_rewards[t] -= coef * value;
                sum += value;
                count += 1;
            }
        }
        penalties.push(coef * sum);
        if count > 0 {
            means += sum / count as f64;
        }
    }
    let mean_kl = means / penalties.len() as f64;
    Ok(KlInReward { token_rewards, penalties, mean_kl })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_verls() {
        for (name, kind) in [
            ("kl", KlKind::K1),
            ("k1", KlKind::K1),
            ("abs", KlKind::Abs),
            ("mse", KlKind::K2),
            ("k2", KlKind::K2),
            ("low_var_kl", KlKind::K3),
            ("k3", KlKind::K3),
        ] {
            let estimator = KlEstimator { kind, straight_through: false, clamped: true };
            assert_eq!(name.parse(), Ok(estimator));
            assert_eq!(format!("{name}+").parse(), Ok(KlEstimator { straight_through: true, ..estimator }));
        }
        assert!("full".parse::<KlEstimator>().is_err() && "+".parse::<KlEstimator>().is_err());
    }

    #[test]
    fn the_penalty_by_hand() {
        let scores = Ragged::from_rows([vec![0.0, 0.0, 1.0], vec![0.5], vec![]]);
        let mask = [true, false, true, false];
        let (old, reference) = ([-1.0, -1.0, -2.0, -1.0], [-2.0, f64::NAN, -2.5, 0.0]);
        let found =
            in_reward(KlEstimator::plain(KlKind::K1), 0.1, &scores, &mask, &old, &reference).expect("fits");
        assert_eq!(found.token_rewards, [-0.1, 0.0, 1.0 - 0.05, 0.5]);
        assert!((found.penalties[0] - 0.15).abs() < 1e-15);
        assert_eq!(found.penalties[1..], [0.0, 0.0]);
        // Token mean 0.75 of the first trajectory; the others count as 0.
        assert!((found.mean_kl - 0.25).abs() < 1e-15);
    }
}
