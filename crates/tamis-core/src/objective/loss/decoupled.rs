//! Decoupled PPO: the policy that sampled, and the policy near which the step stays, are different.

use super::super::columns::Real;
use super::super::exponential::{LARGEST, LOWEST, clamp, exp};
use super::clip::Clip;
use super::formula::Loss;
use super::trajectory::{TokenLoss, TrajectoryLoss};
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "decoupled",
    family: Family::PolicyLoss,
    formula: "l = min(exp(old - behaviour), weight_cap)·clip(logprob - old)",
    source: "Hilton et al., Batch size-invariance for policy optimization, arXiv 2110.00641, eq. 3; \
        asynchronous training: AReaL, arXiv 2505.24298, eq. 5",
    degenerate: &["it is `clip` if sampler and proximal policy agree"],
    known_as: &[
        ("AReaL", "use_decoupled_loss"),
        ("verl", "rollout_correction preset decoupled_token_is (weight_cap 2)"),
    ],
    differences: &[
        "the weight is per token, with `weight_cap` its upper bound; `objective.correction` gives the other forms",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// The clipped ratio to the proximal policy, weighted by the ratio of that to the behaviour policy.
    #[derive(Copy)]
    pub struct Decoupled {
        /// How far the ratio may fall below 1 if the advantage is negative.
        clip_low: f64 = 0.2, Between(0.0, 1.0);
        /// How far the ratio may rise above 1 if the advantage is positive.
        clip_high: f64 = 0.2, NonNegative;
        /// Bound on the loss if the advantage is negative, as a multiple of `-A` (verl `clip_ratio_c`). Null:
        /// no bound.
        dual_clip: Option<f64> = Some(3.0), GreaterThan(1.0);
        /// Largest ratio of the policy at the start of the step to the one that sampled. Null: no bound.
        weight_cap: Option<f64> = None, Positive;
        /// Bound on `logp - old` inside the exponential, in nats, with derivative 0 beyond it (verl 20).
        /// Null: no bound, as in TRL.
        log_ratio_limit: Option<f64> = Some(20.0), Positive;
    }
}

impl Decoupled {
    fn clip(&self) -> Clip {
        let Self { clip_low, clip_high, dual_clip, log_ratio_limit, .. } = *self;
        Clip { clip_low, clip_high, dual_clip, delta: None, log_ratio_limit }
    }
}

impl Loss for Decoupled {
    fn weighs_behaviour(&self) -> bool {
        true
    }

    fn has_importance_levels(&self) -> bool {
        true
    }

    fn is_gradient_on_policy(&self) -> bool {
        self.weight_cap.is_none_or(|cap| cap >= 1.0)
    }

    fn log_ratio_limits(&self) -> (f64, f64) {
        self.clip().log_ratio_limits()
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        let (clip, cap) = (self.clip(), self.weight_cap.unwrap_or(f64::INFINITY));
        trajectory.through_ratio(self.log_ratio_limits(), |token| {
            let found = clip.of(token.log_ratio, token.ratio, token.advantage);
            // Finite, whatever the sampler reported; 1 if it reported nothing.
            let weight = exp(clamp(token.old - token.behaviour, (LOWEST, LARGEST)));
            let weight = if token.behaviour.is_nan() { 1.0 } else { weight.min(cap) };
            TokenLoss { loss: found.loss * weight, dloss: found.dloss * weight, ..found }
        });
    }
}
