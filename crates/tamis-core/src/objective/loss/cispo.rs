//! CISPO: the clipped ratio as a constant weight of the policy gradient.

use super::super::columns::Real;
use super::formula::{Loss, OwnMetric, limits};
use super::trajectory::{TokenLoss, TrajectoryLoss};
use crate::entry::{Entry, Family};
use crate::{choice, settings};

pub(super) const ENTRY: Entry = Entry {
    name: "cispo",
    family: Family::PolicyLoss,
    formula: "l = -sg(clamp(r, bound))·A·logprob",
    source: "MiniMax, MiniMax-M1, arXiv 2506.13585, eq. 4 and 5",
    degenerate: &["only the gradient of the loss has a meaning, not its value"],
    known_as: &[
        ("verl", "actor.policy_loss.loss_mode=cispo with clip_ratio_low, clip_ratio_high (bound relative)"),
        ("TRL", "loss_type=cispo with epsilon_high (bound absolute)"),
    ],
    differences: &[
        "verl reads the bound relative to 1 on both sides, TRL reads it as the largest ratio; TRL's default of \
            0.2 multiplies every token by at most 0.2",
    ],
    ..Entry::REGISTERED
};

choice! {
    /// How CISPO bounds the ratio.
    pub enum CispoBound {
        /// Between `1 - clip_low` and `1 + clip_high` (the paper, verl).
        Relative = "relative",
        /// At most `max_ratio` (TRL).
        Absolute = "absolute",
    }
}

settings! {
    /// Clipped importance-sampling weights. Derivative with respect to the log-probability:
    /// `-sg(clamp(r))·A`, never 0 for a bound.
    #[derive(Copy)]
    pub struct Cispo {
        /// Form of the bound on the ratio.
        bound: CispoBound = CispoBound::Relative;
        /// How far the ratio may fall below 1; read with `bound: relative`. 1: no bound, as in the paper's
        /// training.
        clip_low: f64 = 0.2, Between(0.0, 1.0);
        /// How far the ratio may rise above 1; read with `bound: relative`.
        clip_high: f64 = 0.2, NonNegative;
        /// Largest ratio; read with `bound: absolute` (ScaleRL uses 5).
        max_ratio: f64 = 5.0, Positive;
        /// Bound on `logp - old` inside the exponential, in nats, with derivative 0 beyond it (verl 20).
        /// Null: no bound, as in TRL.
        log_ratio_limit: Option<f64> = Some(20.0), Positive;
    }
}

impl Loss for Cispo {
    fn idle_keys(&self) -> (&'static [&'static str], &'static str) {
        match self.bound {
            CispoBound::Relative => (&["max_ratio"], "the bound is `relative`"),
            CispoBound::Absolute => (&["clip_low", "clip_high"], "the bound is `absolute`"),
        }
    }

    fn has_importance_levels(&self) -> bool {
        true
    }

    fn is_constant_weight(&self) -> bool {
        true
    }

    fn log_ratio_limits(&self) -> (f64, f64) {
        limits(self.log_ratio_limit)
    }

    fn own_metric(&self) -> Option<OwnMetric> {
        Some(OwnMetric::HighShare("cispo_clip_ratio"))
    }

    fn is_gradient_on_policy(&self) -> bool {
        self.bound == CispoBound::Relative || self.max_ratio >= 1.0
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        let (low, high) = match self.bound {
            CispoBound::Relative => (1.0 - self.clip_low, 1.0 + self.clip_high),
            CispoBound::Absolute => (0.0, self.max_ratio),
        };
        trajectory.through_logprob(self.log_ratio_limits(), |token| {
            let (is_below, is_above) = (token.ratio < low, token.ratio > high);
            let slope = -token.ratio.clamp(low, high) * token.advantage;
            TokenLoss {
                loss: slope * token.logprob,
                dloss: slope,
                is_clipped: is_below || is_above,
                is_low: is_below && token.advantage < 0.0,
                is_high: is_above && token.advantage > 0.0,
                ..TokenLoss::default()
            }
        });
    }
}
