//! DPPO: leaves out tokens whose probability has moved too far, measured by a divergence instead of a ratio.

use super::super::columns::Real;
use super::super::exponential::exp;
use super::formula::{Loss, limits};
use super::trajectory::{Token, TokenLoss, TrajectoryLoss};
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "dppo_tv",
        family: Family::PolicyLoss,
        formula: "l = -A·sg(min(r, max_ratio))·logprob if p - p_old <= clip_high (A > 0) or >= -clip_low (otherwise); else 0",
        source: "Qi et al., Rethinking the trust region in LLM reinforcement learning (DPPO), arXiv 2602.04879, binary total variation",
        degenerate: &["a token at its old probability is always trained on"],
        known_as: &[(
            "verl",
            "actor.policy_loss.loss_mode=dppo_tv with clip_ratio_low, clip_ratio_high, clip_ratio_c",
        )],
        differences: &[
            "0.2 is verl's default bound; verl's example (examples/dppo_trainer) uses 0.15, \
                measured from the policy that sampled (bypass)",
            "verl's code defaults to a cap of 20, its configuration to 3",
        ],
        ..Entry::REGISTERED
    },
    Entry {
        name: "dppo_kl",
        family: Family::PolicyLoss,
        formula: "l = -A·sg(min(r, max_ratio))·logprob if KL(p_old || p) <= bound or p moves back towards \
            p_old, 0 elsewhere; KL = p_old·ln(p_old/p) + (1 - p_old)·ln((1 - p_old)/(1 - p))",
        source: "Qi et al., Rethinking the trust region in LLM reinforcement learning (DPPO), arXiv 2602.04879, binary KL",
        degenerate: &["a token at its old probability is always trained on"],
        known_as: &[(
            "verl",
            "actor.policy_loss.loss_mode=dppo_kl with clip_ratio_low, clip_ratio_high, clip_ratio_c",
        )],
        differences: &[
            "0.2 is verl's default bound; verl's example (examples/dppo_trainer) uses 0.05",
            "1e-8 is added to both complements inside the logarithm, as in verl, so that certain tokens are defined",
        ],
        ..Entry::REGISTERED
    },
];

settings! {
    /// Divergence proximal policy optimisation by total variation: the bound applies to the change of the
    /// token's probability.
    ///
    /// The ratio and the choice of tokens are constants; derivative `-A·min(r, max_ratio)` if the token is
    /// trained on.
    #[derive(Copy)]
    pub struct DppoTv {
        /// Largest divergence of a token from the policy at the start of the step if the advantage is not
        /// positive.
        clip_low: f64 = 0.2, Between(0.0, 1.0);
        /// Largest divergence of a token from the policy at the start of the step if the advantage is
        /// positive.
        clip_high: f64 = 0.2, NonNegative;
        /// Largest ratio by which a token is weighted.
        max_ratio: f64 = 20.0, Positive;
        /// Bound on `logp - old` inside the exponential, in nats, with derivative 0 beyond it (verl 20).
        /// Null: no bound, as in TRL.
        log_ratio_limit: Option<f64> = Some(20.0), Positive;
    }
}

settings! {
    /// Divergence proximal policy optimisation by the binary Kullback-Leibler divergence; otherwise as
    /// [`DppoTv`].
    #[derive(Copy)]
    pub struct DppoKl {
        /// Largest divergence of a token from the policy at the start of the step if the advantage is not
        /// positive.
        clip_low: f64 = 0.2, Between(0.0, 1.0);
        /// Largest divergence of a token from the policy at the start of the step if the advantage is
        /// positive.
        clip_high: f64 = 0.2, NonNegative;
        /// Largest ratio by which a token is weighted.
        max_ratio: f64 = 20.0, Positive;
        /// Bound on `logp - old` inside the exponential, in nats, with derivative 0 beyond it (verl 20).
        /// Null: no bound, as in TRL.
        log_ratio_limit: Option<f64> = Some(20.0), Positive;
    }
}

/// `l = -A·sg(min(r, max_ratio))·logprob`, or 0 if the token is left out.
fn truncated(token: &Token, is_held: bool, max_ratio: f64) -> TokenLoss {
    if is_held {
        return TokenLoss { is_clipped: true, ..TokenLoss::default() };
    }
    let is_capped = token.ratio > max_ratio;
    let slope = -token.advantage * if is_capped { max_ratio } else { token.ratio };
    TokenLoss { loss: slope * token.logprob, dloss: slope, is_dual: is_capped, ..TokenLoss::default() }
}

impl Loss for DppoTv {
    fn is_constant_weight(&self) -> bool {
        true
    }

    fn log_ratio_limits(&self) -> (f64, f64) {
        limits(self.log_ratio_limit)
    }

    fn is_gradient_on_policy(&self) -> bool {
        self.max_ratio >= 1.0
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        trajectory.through_logprob(self.log_ratio_limits(), |token| {
            let moved = exp(token.logprob) - exp(token.old);
            // A NaN is within every bound, and so is detected.
            let is_held = if token.advantage > 0.0 { moved > self.clip_high } else { moved < -self.clip_low };
            truncated(token, is_held, self.max_ratio)
        });
    }
}

impl Loss for DppoKl {
    fn is_constant_weight(&self) -> bool {
        true
    }

    fn log_ratio_limits(&self) -> (f64, f64) {
        limits(self.log_ratio_limit)
    }

    fn is_gradient_on_policy(&self) -> bool {
        self.max_ratio >= 1.0
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        trajectory.through_logprob(self.log_ratio_limits(), |token| {
            let (new, old) = (exp(token.logprob), exp(token.old));
            let others = ((1.0 - old + 1e-8) / (1.0 - new + 1e-8)).ln();
            let divergence = -old * token.log_ratio + (1.0 - old) * others;
            let is_held = if token.advantage > 0.0 {
                divergence > self.clip_high && new > old
            } else {
                divergence > self.clip_low && new < old
            };
            truncated(token, is_held, self.max_ratio)
        });
    }
}
