//! The clipped ratio of PPO with separate bounds, the dual clip and the cap on the unclipped branch.

use serde::{Deserialize, Serialize};

use super::super::exponential::exp;
use super::super::precision::Precision;
use super::super::{ObjectiveError, in_range};
use super::kernel::{At, Kernel, Token, clamp};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "clip",
    family: Family::PolicyLoss,
    meaning: "the clipped ratio of PPO, with separate bounds, dual clip and a cap on the unclipped branch",
    formula: "l = max(-A·min(r, cap), -A·clamp(r, 1 - low, 1 + high)), and at most -A·dual where A < 0",
    source: "Schulman et al., arXiv 1707.06347, eq. 7; clip-higher: DAPO, arXiv 2503.14476, eq. 8; dual clip: arXiv 1912.09729, eq. 5; cap: INTELLECT-2, arXiv 2505.07291",
    defaults: &[
        ("objective.loss.clip_low", "0.2"),
        ("objective.loss.clip_high", "0.2"),
        ("objective.loss.dual_clip", "3"),
        ("objective.loss.delta", "null"),
        ("objective.loss.log_ratio_limit", "20"),
    ],
    degenerate: &["without a token to train on the loss is 0 and so are its derivatives"],
    known_as: &[
        ("verl", "actor.policy_loss.loss_mode=vanilla"),
        ("TRL", "loss_type=grpo|bnpo|dr_grpo|dapo with epsilon, epsilon_high, delta"),
    ],
    differences: &[
        "verl's dual clip is 3 unless set, and 10 in its DAPO recipe; the papers of PPO and GRPO have none",
    ],
};

/// Clipped surrogate loss of one token.
///
/// With `d = logprob - old`, `r = exp(clamp(d, ±log_ratio_limit))` and `c = clamp(r, 1 - low, 1 + high)`:
/// `l = max(-A·min(r, cap), -A·c)`, and where `A < 0` and a dual clip is set `l = min(l, -A·dual)`.
///
/// Derivative with respect to the log-probability: `-A·r` where the unclipped branch is the larger and not capped or limited, else
/// 0. Where both branches are equal the derivative is half of each, which inside the bounds is the whole of either.
///
/// Source: Schulman et al., arXiv 1707.06347, eq. 7; separate bounds ("clip-higher"): DAPO, arXiv 2503.14476, eq. 8; dual clip:
/// Ye et al., arXiv 1912.09729, eq. 5; cap: INTELLECT-2, arXiv 2505.07291, section 3.4 (TRL `delta`).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clip {
    /// How far the ratio may fall below 1 where the advantage is negative; in `[0, 1]`.
    pub low: f64,
    /// How far the ratio may rise above 1 where the advantage is positive; at least 0.
    pub high: f64,
    /// Dual clip: the loss of a token with negative advantage is at most `-A·dual`; above 1 (verl `clip_ratio_c`).
    #[serde(default)]
    pub dual: Option<f64>,
    /// The ratio of the unclipped branch is at most this; above 0 (TRL `delta`). Binds only where the advantage is negative, or
    /// where it is below `1 + high`.
    #[serde(default)]
    pub cap: Option<f64>,
    /// `d` is clamped to plus and minus this, with derivative 0 outside: verl 20; TRL has none.
    #[serde(default)]
    pub log_ratio_limit: Option<f64>,
}

impl Clip {
    /// Symmetric bounds and nothing else, as the PPO and GRPO papers write it.
    pub fn symmetric(epsilon: f64) -> Self {
        Self { low: epsilon, high: epsilon, dual: None, cap: None, log_ratio_limit: None }
    }

    /// What verl's `vanilla` computes with these bounds: log-ratio clamped to ±20, dual clip `dual` (its default is 3).
    pub fn verl(low: f64, high: f64, dual: f64) -> Self {
        Self { low, high, dual: Some(dual), cap: None, log_ratio_limit: Some(20.0) }
    }

    /// Whether the settings are in range.
    pub(super) fn check(&self) -> Result<(), ObjectiveError> {
        in_range("clip.low", self.low, (0.0..=1.0).contains(&self.low), "a number from 0 to 1")?;
        in_range(
            "clip.high",
            self.high,
            self.high >= 0.0 && self.high.is_finite(),
            "a number of at least 0",
        )?;
        if let Some(dual) = self.dual {
            in_range("clip.dual", dual, dual > 1.0 && dual.is_finite(), "a number above 1")?;
        }
        for (setting, value) in [("clip.cap", self.cap), ("clip.log_ratio_limit", self.log_ratio_limit)] {
            if let Some(value) = value {
                in_range(setting, value, value > 0.0 && value.is_finite(), "a number above 0")?;
            }
        }
        Ok(())
    }

    /// One token: the loss, its derivative with respect to the log-probability, and which bounds were active.
    ///
    /// `log_ratio` is `logprob - old`.
    ///
    /// ```
    /// use tamis_core::objective::Clip;
    /// let clip = Clip { low: 0.2, high: 0.28, ..Clip::symmetric(0.2) };
    /// // A good token whose probability has doubled: clipped at 1.28, no more to gain.
    /// let token = clip.token(2_f64.ln(), 1.0);
    /// assert_eq!((token.loss, token.dloss), (-1.28, 0.0));
    /// // A bad one: not clipped, pushed down.
    /// let token = clip.token(2_f64.ln(), -1.0);
    /// assert_eq!((token.loss, token.dloss), (2.0, 2.0));
    /// ```
    #[inline]
    pub fn token(&self, log_ratio: f64, advantage: f64) -> ClippedToken {
        let kernel = self.kernel::<f64>();
        let limited = log_ratio.clamp(-kernel.limit, kernel.limit);
        let ratio = exp(limited);
        let token = kernel.token(At::new(log_ratio, ratio, log_ratio.abs() > kernel.limit, advantage));
        let Token { loss, dloss, is_clipped, is_dual, is_low, is_high } = token;
        ClippedToken { loss, dloss, log_ratio: limited, ratio, is_clipped, is_dual, is_low, is_high }
    }

    pub(super) fn kernel<F: Precision>(&self) -> ClipKernel<F> {
        let or_none = |bound: Option<f64>| bound.map_or(F::INFINITY, F::of);
        ClipKernel {
            dual: or_none(self.dual),
            cap: or_none(self.cap),
            limit: or_none(self.log_ratio_limit),
            ..ClipKernel::bounds(self.low, self.high)
        }
    }

    /// Bounds on the log-ratio.
    pub(super) fn limits(&self) -> (f64, f64) {
        let limit = self.log_ratio_limit.unwrap_or(f64::INFINITY);
        (-limit, limit)
    }
}

/// The clip with its bounds as ratios; what is not set is infinite and never reached.
#[derive(Clone, Copy)]
pub(super) struct ClipKernel<F> {
    low: F,
    high: F,
    dual: F,
    cap: F,
    limit: F,
}

impl<F: Precision> ClipKernel<F> {
    /// The clipped ratio and nothing else.
    pub(super) fn bounds(low: f64, high: f64) -> Self {
        let none = F::INFINITY;
        Self { low: F::of(1.0 - low), high: F::of(1.0 + high), dual: none, cap: none, limit: none }
    }
}

impl<F: Precision> Kernel for ClipKernel<F> {
    type Number = F;

    const QUICK: bool = true;

    fn limits(&self) -> (f64, f64) {
        (-self.limit.into(), self.limit.into())
    }

    /// All bounds together are one interval `least..=most` that holds the ratio, which one depends on the sign of the advantage:
    /// `max(-A·min(r, cap), -A·clamp(r, low, high))` is `-A·min(r, cap, high)` where A > 0 and `-A·clamp(r, low, max(cap, high))` where
    /// A < 0, and there the dual clip is one more upper bound. The derivative is `-A·r` where nothing holds the ratio.
    #[inline(always)]
    fn token(&self, At { ratio, is_limited, advantage, is_good, is_bad, .. }: At<F>) -> Token<F> {
        let is_wide = self.cap >= self.high;
        let (narrow, wide) = if is_wide { (self.high, self.cap) } else { (self.cap, self.high) };
        let top = if self.dual < wide { self.dual } else { wide };
        let most = if is_good { narrow } else { top };
        let least = if is_bad { self.low } else { F::NEG_INFINITY };
        // What is counted, as thresholds on the ratio.
        let low = if self.cap < self.low { F::INFINITY } else { self.low };
        let low = if is_bad { low } else { F::NEG_INFINITY };
        let high = if is_good & (self.cap > self.high) { self.high } else { F::INFINITY };
        let dual = if is_bad & (self.dual < wide) { self.dual } else { F::INFINITY };
        let capped = if is_bad & !is_wide { self.cap } else { F::INFINITY };

        let held = clamp(ratio, (least, most));
        // Not `held != ratio`: a NaN is held by nothing, and so seen.
        let is_held = (held < ratio) | (held > ratio) | is_limited;
        let slope = -advantage * ratio;
        let (is_low, is_high) = (ratio < low, ratio > high);
        Token {
            loss: -advantage * held,
            dloss: if is_held { F::ZERO } else { slope },
            is_clipped: is_low | is_high | (ratio > capped),
            is_dual: ratio > dual,
            is_low,
            is_high,
        }
    }
}

/// What [`Clip::token`] finds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClippedToken {
    /// The loss.
    pub loss: f64,
    /// Its derivative with respect to the log-probability.
    pub dloss: f64,
    /// `d` after the limit.
    pub log_ratio: f64,
    /// `exp(d)` after the limit, before cap and clip.
    pub ratio: f64,
    /// The clipped branch is strictly the larger (verl `pg_clipfrac`).
    pub is_clipped: bool,
    /// The dual clip is strictly the smaller (verl `pg_clipfrac_lower`).
    pub is_dual: bool,
    /// Below the low bound with negative advantage (TRL `clip_ratio/low`).
    pub is_low: bool,
    /// Above the high bound with positive advantage (TRL `clip_ratio/high`).
    pub is_high: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loss and derivative of a ratio that is exact in floating point, to 1e-15.
    #[track_caller]
    fn expect(clip: Clip, ratio: f64, advantage: f64, loss: f64, dloss: f64) -> ClippedToken {
        let token = clip.token(ratio.ln(), advantage);
        assert!((token.loss - loss).abs() < 1e-14, "loss {} against {loss}", token.loss);
        assert!((token.dloss - dloss).abs() < 1e-14, "derivative {} against {dloss}", token.dloss);
        token
    }

    const CLIP: Clip = Clip { low: 0.2, high: 0.28, dual: None, cap: None, log_ratio_limit: None };

    #[test]
    fn a_good_token_gains_up_to_the_high_bound_and_loses_without_bound() {
        assert!(!expect(CLIP, 1.25, 2.0, -2.5, -2.5).is_clipped);
        let above = expect(CLIP, 1.5, 2.0, -2.56, 0.0);
        assert!(above.is_clipped && above.is_high && !above.is_low);
        // Below the low bound a good token is pulled back up: the unclipped branch is the larger loss.
        let below = expect(CLIP, 0.5, 2.0, -1.0, -1.0);
        assert!(!below.is_clipped && !below.is_low);
    }

    #[test]
    fn a_bad_token_gains_down_to_the_low_bound_and_loses_without_bound() {
        assert!(!expect(CLIP, 1.25, -2.0, 2.5, 2.5).is_clipped);
        let below = expect(CLIP, 0.5, -2.0, 1.6, 0.0);
        assert!(below.is_clipped && below.is_low && !below.is_high);
        let above = expect(CLIP, 8.0, -2.0, 16.0, 16.0);
        assert!(!above.is_clipped && !above.is_high && !above.is_dual);
    }

    #[test]
    fn the_dual_clip_bounds_what_a_bad_token_can_cost() {
        let clip = Clip { dual: Some(3.0), ..CLIP };
        assert!(expect(clip, 8.0, -2.0, 6.0, 0.0).is_dual);
        assert!(!expect(clip, 2.5, -2.0, 5.0, 5.0).is_dual);
        // A good token has no such bound.
        assert!(!expect(clip, 8.0, 2.0, -2.56, 0.0).is_dual);
    }

    #[test]
    fn the_cap_holds_the_unclipped_branch() {
        let clip = Clip { cap: Some(2.0), ..CLIP };
        expect(clip, 8.0, -2.0, 4.0, 0.0);
        expect(clip, 1.5, -2.0, 3.0, 3.0);
        // Below 1 + high it also stops a good token, earlier than the clip would.
        let tight = expect(Clip { cap: Some(1.1), ..CLIP }, 1.5, 2.0, -2.2, 0.0);
        assert!(!tight.is_high);
    }

    #[test]
    fn the_limit_holds_value_and_gradient() {
        let clip = Clip { log_ratio_limit: Some(1.0), ..Clip::symmetric(0.2) };
        let token = clip.token(3.0, -1.0);
        assert_eq!((token.loss.to_bits(), token.dloss.to_bits()), (exp(1_f64).to_bits(), 0_f64.to_bits()));
        assert_eq!(token.log_ratio.to_bits(), 1_f64.to_bits());
        // The bound itself is inside.
        assert_eq!(clip.token(1.0, -1.0).dloss.to_bits(), exp(1_f64).to_bits());
    }
}
