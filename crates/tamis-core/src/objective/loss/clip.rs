//! The clipped ratio of PPO with separate bounds, the dual clip and the cap on the unclipped branch.

use serde::{Deserialize, Serialize};

use super::super::exponential::exp;
use super::super::{ObjectiveError, in_range};
use super::kernel::{At, Kernel, Token};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "clip",
    family: Family::PolicyLoss,
    meaning: "the clipped ratio of PPO, with separate bounds, dual clip and a cap on the unclipped branch",
    formula: "l = max(-A·min(r, cap), -A·clamp(r, 1 - low, 1 + high)), and at most -A·dual where A < 0",
    source: "Schulman et al., arXiv 1707.06347, eq. 7; clip-higher: DAPO, arXiv 2503.14476, eq. 8; dual clip: arXiv 1912.09729, eq. 5; cap: INTELLECT-2, arXiv 2505.07291",
    defaults: &[
        ("low", "0.2"),
        ("high", "0.2"),
        ("dual", "null"),
        ("cap", "null"),
        ("log_ratio_limit", "20"),
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
        let kernel = self.kernel();
        let limited = log_ratio.clamp(-kernel.limit, kernel.limit);
        let ratio = exp(limited);
        let token = kernel.token(At { logprob: 0.0, log_ratio, ratio, advantage, selected: false });
        let Token { loss, dloss, is_clipped, is_dual, is_low, is_high } = token;
        ClippedToken { loss, dloss, log_ratio: limited, ratio, is_clipped, is_dual, is_low, is_high }
    }

    pub(super) fn kernel(&self) -> ClipKernel {
        let or_none = |bound: Option<f64>| bound.unwrap_or(f64::INFINITY);
        ClipKernel {
            dual: or_none(self.dual),
            cap: or_none(self.cap),
            limit: or_none(self.log_ratio_limit),
            ..ClipKernel::bounds(self.low, self.high)
        }
    }
}

/// The clip with its bounds as ratios; what is not set is infinite and never reached.
#[derive(Clone, Copy)]
pub(super) struct ClipKernel {
    low: f64,
    high: f64,
    dual: f64,
    cap: f64,
    limit: f64,
}

impl ClipKernel {
    /// The clipped ratio and nothing else.
    pub(super) fn bounds(low: f64, high: f64) -> Self {
        let none = f64::INFINITY;
        Self { low: 1.0 - low, high: 1.0 + high, dual: none, cap: none, limit: none }
    }
}

impl Kernel for ClipKernel {
    fn limits(&self) -> (f64, f64) {
        (-self.limit, self.limit)
    }

    #[inline(always)]
    fn token(&self, At { log_ratio, ratio, advantage, .. }: At) -> Token {
        let slope = if log_ratio.abs() > self.limit { 0.0 } else { -advantage * ratio };
        let is_capped = ratio > self.cap;
        let unclipped_ratio = if is_capped { self.cap } else { ratio };
        let unclipped_slope = if is_capped { 0.0 } else { slope };
        let (is_below, is_above) = (ratio < self.low, ratio > self.high);
        let clipped_ratio = if is_below { self.low } else { ratio };
        let clipped_ratio = if is_above { self.high } else { clipped_ratio };
        let clipped_slope = if is_below | is_above { 0.0 } else { slope };
        let (unclipped, clipped) = (-advantage * unclipped_ratio, -advantage * clipped_ratio);
        let is_clipped = clipped > unclipped;
        let loss = if is_clipped { clipped } else { unclipped };
        // Equal, or NaN, which must not vanish: half of each.
        let dloss =
            if unclipped > clipped { unclipped_slope } else { 0.5 * (unclipped_slope + clipped_slope) };
        let dloss = if is_clipped { clipped_slope } else { dloss };
        let (is_good, is_bad) = (advantage > 0.0, advantage < 0.0);
        let bound = -advantage * self.dual;
        let is_dual = is_bad & (loss > bound);
        Token {
            loss: if is_dual { bound } else { loss },
            dloss: if is_dual { 0.0 } else { dloss },
            is_clipped,
            is_dual,
            is_low: is_bad & (unclipped_ratio < self.low),
            is_high: is_good & (unclipped_ratio > self.high),
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
        assert_eq!((token.loss.to_bits(), token.dloss.to_bits()), (exp(1.0).to_bits(), 0_f64.to_bits()));
        assert_eq!(token.log_ratio.to_bits(), 1_f64.to_bits());
        // The bound itself is inside.
        assert_eq!(clip.token(1.0, -1.0).dloss.to_bits(), exp(1.0).to_bits());
    }
}
