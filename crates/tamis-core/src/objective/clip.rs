//! The clipped ratio of PPO with separate bounds, the dual clip and the cap on the unclipped branch.

use serde::{Deserialize, Serialize};

use super::ObjectiveError;
use super::accumulator::SequenceSums;
use super::columns::{Real, Row};
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
    pub(crate) fn check(&self) -> Result<(), ObjectiveError> {
        let range = |setting, value: f64, fine: bool, expected| {
            if fine { Ok(()) } else { Err(ObjectiveError::Setting { setting, value, expected }) }
        };
        range("clip.low", self.low, (0.0..=1.0).contains(&self.low), "a number from 0 to 1")?;
        range("clip.high", self.high, self.high >= 0.0 && self.high.is_finite(), "a number of at least 0")?;
        if let Some(dual) = self.dual {
            range("clip.dual", dual, dual > 1.0 && dual.is_finite(), "a number above 1")?;
        }
        if let Some(cap) = self.cap {
            range("clip.cap", cap, cap > 0.0 && cap.is_finite(), "a number above 0")?;
        }
        if let Some(limit) = self.log_ratio_limit {
            range("clip.log_ratio_limit", limit, limit > 0.0 && limit.is_finite(), "a number above 0")?;
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
        let limited = self.log_ratio_limit.is_some_and(|limit| log_ratio.abs() > limit);
        let log_ratio = match self.log_ratio_limit {
            Some(limit) if limited => limit.copysign(log_ratio),
            _ => log_ratio,
        };
        let ratio = log_ratio.exp();
        let slope = if limited { 0.0 } else { -advantage * ratio };
        let (low, high) = (1.0 - self.low, 1.0 + self.high);
        let (unclipped_ratio, unclipped_slope) = match self.cap {
            Some(cap) if ratio > cap => (cap, 0.0),
            _ => (ratio, slope),
        };
        let clipped_ratio = if ratio < low {
            low
        } else if ratio > high {
            high
        } else {
            ratio
        };
        let clipped_slope = if clipped_ratio.to_bits() == ratio.to_bits() { slope } else { 0.0 };
        let (unclipped, clipped) = (-advantage * unclipped_ratio, -advantage * clipped_ratio);
        let is_clipped = clipped > unclipped;
        let (mut loss, mut dloss) = if is_clipped {
            (clipped, clipped_slope)
        } else if unclipped > clipped {
            (unclipped, unclipped_slope)
        } else {
            // Equal, or NaN, which must not vanish.
            (unclipped, 0.5 * (unclipped_slope + clipped_slope))
        };
        let mut is_dual = false;
        if let Some(dual) = self.dual
            && advantage < 0.0
            && loss > -advantage * dual
        {
            (loss, dloss, is_dual) = (-advantage * dual, 0.0, true);
        }
        ClippedToken {
            loss,
            dloss,
            log_ratio,
            ratio,
            is_clipped,
            is_dual,
            is_low: advantage < 0.0 && unclipped_ratio < low,
            is_high: advantage > 0.0 && unclipped_ratio > high,
        }
    }

    /// Adds a trajectory's weighted policy loss to its sums and derivatives.
    pub(crate) fn sequence<T: Real>(
        &self,
        row: &Row<'_, T>,
        scale: f64,
        dlogprob_t: &mut [f64],
        sums: &mut SequenceSums,
    ) {
        let mut loss = 0.0;
        for t in 0..row.mask.len() {
            if !row.mask[t] {
                continue;
            }
            let logprob: f64 = row.logprob[t].into();
            // Without old log-probabilities the policy is its own old one: 0 here, NaN where the log-probability is not finite.
            let log_ratio = logprob - row.old.map_or(logprob, |old| old[t].into());
            let token = self.token(log_ratio, row.advantage.at(t));
            let weight = row.weight.map_or(1.0, |weight| weight[t].into());
            loss += weight * token.loss;
            dlogprob_t[t] += scale * (weight * token.dloss);
            sums.add_ratio(&token);
        }
        sums.policy_loss = scale * loss;
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
        assert_eq!((token.loss.to_bits(), token.dloss.to_bits()), (1_f64.exp().to_bits(), 0_f64.to_bits()));
        assert_eq!(token.log_ratio.to_bits(), 1_f64.to_bits());
        // The bound itself is inside.
        assert_eq!(clip.token(1.0, -1.0).dloss.to_bits(), 1_f64.exp().to_bits());
    }
}
