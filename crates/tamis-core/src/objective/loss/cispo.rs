//! CISPO: the clipped ratio as a constant weight of the policy gradient.

use serde::{Deserialize, Serialize};

use super::super::ObjectiveError;
use super::super::columns::Real;
use super::trajectory::{TokenLoss, Trajectory};
use super::{Loss, OwnMetric, bounds, limits, positive};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "cispo",
    family: Family::PolicyLoss,
    meaning: "the policy gradient weighted by the clipped ratio, a constant: no token loses its gradient",
    formula: "l = -sg(clamp(r, bound))·A·logprob",
    source: "MiniMax, MiniMax-M1, arXiv 2506.13585, eq. 4 and 5",
    defaults: &[
        ("objective.loss.bound", "relative"),
        ("objective.loss.clip_low", "0.2"),
        ("objective.loss.clip_high", "0.2"),
        ("objective.loss.max_ratio", "5 (with `bound: absolute`)"),
        ("objective.loss.log_ratio_limit", "20"),
    ],
    degenerate: &["the value of the loss means nothing, only its gradient does"],
    known_as: &[
        ("verl", "actor.policy_loss.loss_mode=cispo with clip_ratio_low, clip_ratio_high (bound relative)"),
        ("TRL", "loss_type=cispo with epsilon_high (bound absolute)"),
    ],
    differences: &[
        "verl reads the bound relative to 1 on both sides, TRL as the largest ratio itself; TRL's default of 0.2 multiplies every token by at most 0.2",
    ],
};

/// How the bound on the ratio is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CispoBound {
    /// `clamp(r, 1 - clip_low, 1 + clip_high)`: the paper's notation, and verl's code.
    #[default]
    Relative,
    /// `min(r, max_ratio)`: TRL's code.
    Absolute,
}

/// Clipped importance-sampling weights. Derivative with respect to the log-probability: `-sg(clamp(r))·A`,
/// never 0 for a bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cispo {
    /// How the bound on the ratio is read.
    pub bound: CispoBound,
    /// How far the ratio may fall below 1, where the bound is relative; in `[0, 1]`, and 1 is no bound, as
    /// the paper trains.
    pub clip_low: f64,
    /// How far the ratio may rise above 1, where the bound is relative; at least 0.
    pub clip_high: f64,
    /// Largest ratio, where the bound is absolute; above 0 (ScaleRL takes 5).
    pub max_ratio: f64,
    /// `d` is clamped to plus and minus this; verl 20.
    #[serde(default)]
    pub log_ratio_limit: Option<f64>,
}

impl Loss for Cispo {
    fn check(&self) -> Result<(), ObjectiveError> {
        bounds(self.clip_low, self.clip_high)?;
        positive("loss.max_ratio", Some(self.max_ratio))?;
        positive("loss.log_ratio_limit", self.log_ratio_limit)
    }

    fn has_importance_levels(&self) -> bool {
        true
    }

    fn log_ratio_limits(&self) -> (f64, f64) {
        limits(self.log_ratio_limit)
    }

    fn own_metric(&self) -> Option<OwnMetric> {
        Some(OwnMetric::HighShare("cispo_clip_ratio"))
    }

    fn sequence<T: Real>(&self, trajectory: &mut Trajectory<'_, T>) {
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
