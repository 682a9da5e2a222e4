//! The clipped ratio of PPO with separate bounds, the dual clip and the cap on the unclipped branch.

use super::super::columns::Real;
use super::super::exponential::{clamp, exp};
use super::formula::{Loss, limits};
use super::trajectory::{Token, TokenLoss, TrajectoryLoss};
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "clip",
    family: Family::PolicyLoss,
    formula: "l = max(-A·min(r, delta), -A·clamp(r, 1 - clip_low, 1 + clip_high)), and at most -A·dual_clip if A < 0",
    source: "Schulman et al., arXiv 1707.06347, eq. 7; clip-higher: DAPO, arXiv 2503.14476, eq. 8; dual \
        clip: arXiv 1912.09729, eq. 5; `delta`: INTELLECT-2, arXiv 2505.07291",
    degenerate: &["without a token to train on the loss is 0 and so are its derivatives"],
    known_as: &[
        ("verl", "actor.policy_loss.loss_mode=vanilla"),
        ("TRL", "loss_type=grpo|bnpo|dr_grpo|dapo with epsilon, epsilon_high, delta"),
    ],
    differences: &[
        "verl's dual clip is 3 by default, and 10 in its DAPO recipe; the papers of PPO and GRPO have none",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// Clipped surrogate loss of one token.
    ///
    /// With `d = logprob - old`, `r = exp(clamp(d, ±log_ratio_limit))` and
    /// `c = clamp(r, 1 - clip_low, 1 + clip_high)`: `l = max(-A·min(r, delta), -A·c)`. If `A < 0` and a dual
    /// clip is set, `l = min(l, -A·dual_clip)`.
    ///
    /// Derivative with respect to the log-probability: `-A·r` if the larger branch moves with the ratio and
    /// the ratio is within its limit, otherwise 0.
    ///
    /// Source: Schulman et al., arXiv 1707.06347, eq. 7; separate bounds ("clip-higher"): DAPO, arXiv
    /// 2503.14476, eq. 8; dual clip: Ye et al., arXiv 1912.09729, eq. 5; `delta`: INTELLECT-2, arXiv
    /// 2505.07291, section 3.4 (TRL).
    #[derive(Copy)]
    pub struct Clip {
        /// How far the ratio may fall below 1 if the advantage is negative.
        clip_low: f64 = 0.2, Between(0.0, 1.0);
        /// How far the ratio may rise above 1 if the advantage is positive.
        clip_high: f64 = 0.2, NonNegative;
        /// Bound on the loss if the advantage is negative, as a multiple of `-A` (verl `clip_ratio_c`). Null:
        /// no bound.
        dual_clip: Option<f64> = Some(3.0), GreaterThan(1.0);
        /// Largest ratio of the unclipped branch: TRL's two-sided clip. Null: no bound.
        delta: Option<f64> = None, GreaterThan(1.0);
        /// Bound on `logp - old` inside the exponential, in nats, with derivative 0 beyond it (verl 20).
        /// Null: no bound, as in TRL.
        log_ratio_limit: Option<f64> = Some(20.0), Positive;
    }
}

/// `max(-A·r, -A·clamp(r, 1 - low, 1 + high))` and its derivative: only the clip.
pub(super) fn clipped(ratio: f64, advantage: f64, low: f64, high: f64) -> TokenLoss {
    let free = -advantage * ratio;
    let held = -advantage * clamp(ratio, (1.0 - low, 1.0 + high));
    let is_clipped = held > free;
    TokenLoss {
        loss: if is_clipped { held } else { free },
        dloss: if is_clipped { 0.0 } else { free },
        is_clipped,
        is_low: is_clipped && advantage < 0.0,
        is_high: is_clipped && advantage > 0.0,
        ..TokenLoss::default()
    }
}

impl Clip {
    /// Only symmetric bounds, as in the PPO and GRPO papers.
    pub fn symmetric(epsilon: f64) -> Self {
        Self { clip_low: epsilon, clip_high: epsilon, dual_clip: None, delta: None, log_ratio_limit: None }
    }

    /// The form of verl's `vanilla` with these bounds: log-ratio clamped to ±20, dual clip (its default is
    /// 3).
    pub fn verl(clip_low: f64, clip_high: f64, dual_clip: f64) -> Self {
        Self { clip_low, clip_high, dual_clip: Some(dual_clip), delta: None, log_ratio_limit: Some(20.0) }
    }

    /// One token, given `logprob - old`: the loss, its derivative, and which bounds were active.
    ///
    /// ```
    /// use tamis_core::objective::Clip;
    /// let clip = Clip { clip_high: 0.28, ..Clip::symmetric(0.2) };
    /// // A good token whose probability has doubled: clipped at 1.28, no more to gain.
    /// let token = clip.token(2_f64.ln(), 1.0);
    /// assert_eq!((token.loss, token.dloss), (-1.28, 0.0));
    /// // A bad one: not clipped, pushed down.
    /// let token = clip.token(2_f64.ln(), -1.0);
    /// assert_eq!((token.loss, token.dloss), (2.0, 2.0));
    /// ```
    pub fn token(&self, log_ratio: f64, advantage: f64) -> TokenLoss {
        let limit = self.log_ratio_limit.unwrap_or(f64::INFINITY);
        self.of(log_ratio, exp(log_ratio.clamp(-limit, limit)), advantage)
    }

    /// The loss of a token with that ratio; `log_ratio` is that before the limit.
    #[inline]
    pub(super) fn of(&self, log_ratio: f64, ratio: f64, advantage: f64) -> TokenLoss {
        let (low, high) = (1.0 - self.clip_low, 1.0 + self.clip_high);
        let infinite = |bound: Option<f64>| bound.unwrap_or(f64::INFINITY);
        let (delta, dual) = (infinite(self.delta), infinite(self.dual_clip));
        let is_limited = log_ratio.abs() > infinite(self.log_ratio_limit);
        // Most tokens are within every bound: both branches are the plain ratio.
        if ratio >= low && ratio <= high.min(delta).min(dual) && !is_limited {
            let loss = -advantage * ratio;
            return TokenLoss { loss, dloss: loss, ..TokenLoss::default() };
        }
        let capped = if ratio > delta { delta } else { ratio };
        let (free, held) = (-advantage * capped, -advantage * clamp(ratio, (low, high)));
        let is_clipped = held > free;
        let loss = if is_clipped { held } else { free };
        let most = -advantage * dual;
        let is_dual = advantage < 0.0 && loss > most;
        // Not `ratio >= low && ...`: a NaN is within every bound, and so is detected.
        let is_held = if is_clipped { ratio < low || ratio > high } else { ratio > delta };
        TokenLoss {
            loss: if is_dual { most } else { loss },
            dloss: if is_held || is_dual || is_limited { 0.0 } else { -advantage * ratio },
            is_clipped,
            is_dual,
            is_low: is_clipped && advantage < 0.0 && ratio < low,
            is_high: is_clipped && advantage > 0.0,
            own: 0.0,
        }
    }
}

impl Loss for Clip {
    fn has_importance_levels(&self) -> bool {
        true
    }

    fn log_ratio_limits(&self) -> (f64, f64) {
        limits(self.log_ratio_limit)
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        let clip = *self;
        trajectory
            .through_ratio(self.log_ratio_limits(), |&Token { log_ratio, ratio, advantage, .. }| {
                clip.of(log_ratio, ratio, advantage)
            });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIP: Clip =
        Clip { clip_low: 0.2, clip_high: 0.28, dual_clip: None, delta: None, log_ratio_limit: None };

    #[test]
    fn tokens_by_hand() {
        let dual = Clip { dual_clip: Some(3.0), ..CLIP };
        let (capped, tight) = (Clip { delta: Some(2.0), ..CLIP }, Clip { delta: Some(1.1), ..CLIP });
        for (clip, ratio, advantage, loss, slope, bound) in [
            // A good token gains up to the high bound. Below the low one it is pulled back up.
            (CLIP, 1.25, 2.0, -2.5, -2.5, ""),
            (CLIP, 1.5, 2.0, -2.56, 0.0, "high"),
            (CLIP, 0.5, 2.0, -1.0, -1.0, ""),
            // A bad token gains down to the low bound. Above the high one it costs without bound.
            (CLIP, 1.25, -2.0, 2.5, 2.5, ""),
            (CLIP, 0.5, -2.0, 1.6, 0.0, "low"),
            (CLIP, 8.0, -2.0, 16.0, 16.0, ""),
            // The dual clip bounds that cost. It does not apply to a good token.
            (dual, 8.0, -2.0, 6.0, 0.0, "dual"),
            (dual, 2.5, -2.0, 5.0, 5.0, ""),
            (dual, 8.0, 2.0, -2.56, 0.0, "high"),
            // The cap holds the unclipped branch. Below 1 + high it stops a good token earlier than the clip.
            (capped, 8.0, -2.0, 4.0, 0.0, ""),
            (capped, 1.5, -2.0, 3.0, 3.0, ""),
            (tight, 1.5, 2.0, -2.2, 0.0, ""),
        ] {
            let token = clip.token(f64::ln(ratio), advantage);
            let case = format!("{clip:?}, ratio {ratio}, advantage {advantage}: {token:?}");
            assert!((token.loss - loss).abs() < 1e-14 && (token.dloss - slope).abs() < 1e-14, "{case}");
            let found = [(token.is_high, "high"), (token.is_low, "low"), (token.is_dual, "dual")];
            assert_eq!(found.map(|(is_bound, _)| is_bound), found.map(|(_, name)| name == bound), "{case}");
            if clip.delta.is_none() && bound != "dual" {
                assert_eq!(token.is_clipped, !bound.is_empty(), "{case}");
            }
        }
    }

    #[test]
    fn the_limit_holds_value_and_gradient() {
        let clip = Clip { log_ratio_limit: Some(1.0), ..Clip::symmetric(0.2) };
        let token = clip.token(3.0, -1.0);
        assert_eq!((token.loss.to_bits(), token.dloss.to_bits()), (exp(1_f64).to_bits(), 0_f64.to_bits()));
        // The bound itself is inside the range.
        assert_eq!(clip.token(1.0, -1.0).dloss.to_bits(), exp(1_f64).to_bits());
    }
}
