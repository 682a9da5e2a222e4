//! DPPO: tokens whose probability has moved too far, by a divergence instead of a ratio, are left out.

use serde::{Deserialize, Serialize};

use super::super::exponential::exp;
use super::super::{ObjectiveError, in_range};
use super::kernel::{At, Kernel, Token};
use crate::entry::{Entry, Family};

/// The catalogue's entries.
pub(super) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "dppo_tv",
        family: Family::PolicyLoss,
        meaning: "the policy gradient weighted by the truncated ratio, without tokens whose probability has moved further than a bound in the direction of their advantage",
        formula: "l = -A·sg(min(r, ratio_cap))·logprob where p - p_old <= high (A > 0) or >= -low (else), 0 elsewhere",
        source: "Qi et al., Rethinking the trust region in LLM reinforcement learning (DPPO), arXiv 2602.04879, binary total variation",
        defaults: &[
            ("objective.loss.clip_low", "0.2"),
            ("objective.loss.clip_high", "0.2"),
            ("objective.loss.max_ratio", "20"),
            ("objective.loss.log_ratio_limit", "20"),
        ],
        degenerate: &["a token at its old probability is always trained on"],
        known_as: &[(
            "verl",
            "actor.policy_loss.loss_mode=dppo_tv with clip_ratio_low, clip_ratio_high, clip_ratio_c",
        )],
        differences: &[
            "0.2 is verl's bound where none is given; verl's example (examples/dppo_trainer) takes 0.15, measured from the policy that sampled (bypass)",
            "verl's code defaults to a cap of 20, its configuration to 3",
        ],
    },
    Entry {
        name: "dppo_kl",
        family: Family::PolicyLoss,
        meaning: "as dppo_tv, with the binary Kullback-Leibler divergence as the measure",
        formula: "l = -A·sg(min(r, ratio_cap))·logprob where KL(p_old || p) <= bound or p moves back towards p_old, 0 elsewhere; KL = p_old·ln(p_old/p) + (1 - p_old)·ln((1 - p_old)/(1 - p))",
        source: "Qi et al., Rethinking the trust region in LLM reinforcement learning (DPPO), arXiv 2602.04879, binary KL",
        defaults: &[
            ("objective.loss.clip_low", "0.2"),
            ("objective.loss.clip_high", "0.2"),
            ("objective.loss.max_ratio", "20"),
            ("objective.loss.log_ratio_limit", "20"),
        ],
        degenerate: &["a token at its old probability is always trained on"],
        known_as: &[(
            "verl",
            "actor.policy_loss.loss_mode=dppo_kl with clip_ratio_low, clip_ratio_high, clip_ratio_c",
        )],
        differences: &[
            "0.2 is verl's bound where none is given; verl's example (examples/dppo_trainer) takes 0.05",
            "1e-8 is added to both complements inside the logarithm, as in verl, so that certain tokens are defined",
        ],
    },
];

/// Divergence proximal policy optimisation, for either measure. The ratio and the choice of tokens are constants; derivative
/// `-A·min(r, ratio_cap)` where the token is trained on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dppo {
    /// Bound on the divergence where the advantage is not positive; at least 0.
    pub low: f64,
    /// Bound where it is positive; at least 0.
    pub high: f64,
    /// The ratio's upper bound; above 0.
    pub ratio_cap: f64,
    /// `d` is clamped to plus and minus this inside the ratio; verl 20.
    #[serde(default)]
    pub log_ratio_limit: Option<f64>,
}

impl Dppo {
    pub(super) fn check(&self) -> Result<(), ObjectiveError> {
        for (setting, value) in [("dppo.low", self.low), ("dppo.high", self.high)] {
            in_range(setting, value, value >= 0.0 && value.is_finite(), "a number of at least 0")?;
        }
        in_range("dppo.ratio_cap", self.ratio_cap, self.ratio_cap > 0.0, "a number above 0")?;
        self.log_ratio_limit.map_or(Ok(()), |limit| {
            in_range("dppo.log_ratio_limit", limit, limit > 0.0 && limit.is_finite(), "a number above 0")
        })
    }

    fn limits(&self) -> (f64, f64) {
        let limit = self.log_ratio_limit.unwrap_or(f64::INFINITY);
        (-limit, limit)
    }

    #[inline(always)]
    fn answer(&self, at: At<f64>, is_held: bool) -> Token<f64> {
        let is_capped = at.ratio > self.ratio_cap;
        let ratio = if is_capped { self.ratio_cap } else { at.ratio };
        let slope = if is_held { 0.0 } else { -at.advantage * ratio };
        Token { is_clipped: is_held, is_dual: is_capped & !is_held, ..Token::new(slope * at.logprob, slope) }
    }
}

/// By total variation.
#[derive(Clone, Copy)]
pub(super) struct DppoTv(pub(super) Dppo);

impl Kernel for DppoTv {
    type Number = f64;

    const LOGPROB: bool = true;
    const THROUGH_RATIO: bool = false;

    fn limits(&self) -> (f64, f64) {
        self.0.limits()
    }

    #[inline(always)]
    fn token(&self, at: At<f64>) -> Token<f64> {
        let moved = exp(at.logprob) - exp(at.logprob - at.log_ratio);
        // A NaN is held by nothing, and so seen.
        let is_held = if at.advantage > 0.0 { moved > self.0.high } else { moved < -self.0.low };
        self.0.answer(at, is_held)
    }
}

/// By the divergence.
#[derive(Clone, Copy)]
pub(super) struct DppoKl(pub(super) Dppo);

impl Kernel for DppoKl {
    type Number = f64;

    const LOGPROB: bool = true;
    const THROUGH_RATIO: bool = false;

    fn limits(&self) -> (f64, f64) {
        self.0.limits()
    }

    #[inline(always)]
    fn token(&self, at: At<f64>) -> Token<f64> {
        let (new, old) = (exp(at.logprob), exp(at.logprob - at.log_ratio));
        let divergence = -old * at.log_ratio + (1.0 - old) * ((1.0 - old + 1e-8) / (1.0 - new + 1e-8)).ln();
        let is_held = if at.advantage > 0.0 {
            (divergence > self.0.high) & (new > old)
        } else {
            (divergence > self.0.low) & (new < old)
        };
        self.0.answer(at, is_held)
    }
}
