//! Decoupled PPO: the policy that sampled and the policy that the step stays near to are two.

use serde::{Deserialize, Serialize};

use super::super::ObjectiveError;
use super::super::columns::Real;
use super::super::exponential::{LARGEST, LOWEST, clamp, exp};
use super::trajectory::{TokenLoss, Trajectory};
use super::{Clip, Loss, positive};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "decoupled",
    family: Family::PolicyLoss,
    meaning: "decoupled PPO: clips against the proximal policy (`old`), weighs by what separates it from the policy that sampled (`behaviour`)",
    formula: "l = min(exp(old - behaviour), weight_cap)·clip(logprob - old)",
    source: "Hilton et al., Batch size-invariance for policy optimization, arXiv 2110.00641, eq. 3; asynchronous training: AReaL, arXiv 2505.24298, eq. 5",
    defaults: &[
        ("objective.loss.clip_low", "0.2"),
        ("objective.loss.clip_high", "0.2"),
        ("objective.loss.dual_clip", "3"),
        ("objective.loss.weight_cap", "null"),
        ("objective.loss.log_ratio_limit", "20"),
    ],
    degenerate: &["where sampler and proximal policy agree it is `clip`"],
    known_as: &[
        ("AReaL", "use_decoupled_loss"),
        ("verl", "rollout_correction preset decoupled_token_is (weight_cap 2)"),
    ],
    differences: &[
        "the weight is per token, with `weight_cap` its upper bound; `objective.correction` gives the other forms",
    ],
};

/// The clipped ratio to the proximal policy, weighted by the ratio of that to the behaviour policy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decoupled {
    /// As [`Clip::clip_low`].
    pub clip_low: f64,
    /// As [`Clip::clip_high`].
    pub clip_high: f64,
    /// As [`Clip::dual_clip`].
    #[serde(default)]
    pub dual_clip: Option<f64>,
    /// Upper bound of `exp(old - behaviour)`; above 0. `None`: none.
    #[serde(default)]
    pub weight_cap: Option<f64>,
    /// As [`Clip::log_ratio_limit`].
    #[serde(default)]
    pub log_ratio_limit: Option<f64>,
}

impl Decoupled {
    fn clip(&self) -> Clip {
        let Self { clip_low, clip_high, dual_clip, log_ratio_limit, .. } = *self;
        Clip { clip_low, clip_high, dual_clip, delta: None, log_ratio_limit }
    }
}

impl Loss for Decoupled {
    fn check(&self) -> Result<(), ObjectiveError> {
        self.clip().check()?;
        positive("loss.weight_cap", self.weight_cap)
    }

    fn has_importance_levels(&self) -> bool {
        true
    }

    fn log_ratio_limits(&self) -> (f64, f64) {
        self.clip().log_ratio_limits()
    }

    fn sequence<T: Real>(&self, trajectory: &mut Trajectory<'_, T>) {
        let (clip, cap) = (self.clip(), self.weight_cap.unwrap_or(f64::INFINITY));
        trajectory.through_ratio(self.log_ratio_limits(), |token| {
            let found = clip.of(token.log_ratio, token.ratio, token.advantage);
            // Finite, whatever the sampler said; 1 where the sampler said nothing.
            let weight = exp(clamp(token.old - token.behaviour, (LOWEST, LARGEST)));
            let weight = if token.behaviour.is_nan() { 1.0 } else { weight.min(cap) };
            TokenLoss { loss: found.loss * weight, dloss: found.dloss * weight, ..found }
        });
    }
}
