//! The entropy bonus.
//!
//! Its coefficient is constant, or adapts after each update to keep the entropy near a target. The
//! coefficient is then a state that checkpoints save.

use serde::{Deserialize, Serialize};

use super::aggregation::Aggregation;
use super::error::{ObjectiveError, in_range};
use crate::entry::{Entry, Family};
use crate::setting::Ranged as _;
use crate::settings;

pub(super) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "entropy_bonus",
        family: Family::Entropy,
        meaning: "Rewards entropy with a constant coefficient.",
        formula: "- coef * aggregated H_t",
        source: "Williams and Peng, Connection Science 3 (1991)",
        defaults: &["objective.entropy.coefficient", "objective.entropy.aggregation"],
        degenerate: &["nothing to train on: 0"],
        known_as: &[("verl", "actor.entropy_coeff"), ("TRL", "entropy_coef")],
        differences: &[
            "TRL uses the token mean of the micro-batch whatever the loss uses (`aggregation: token-mean`)",
        ],
    },
    Entry {
        name: "adaptive_entropy",
        family: Family::Entropy,
        meaning: "Adapts the coefficient of the entropy bonus to a target entropy; the bonus applies only while entropy is at or below it.",
        formula: "after each optimizer batch coef += delta if H <= target, otherwise -= delta, within [min, max]; \
            used: coef if the last H <= target, otherwise 0",
        source: "He et al., Skywork Open Reasoner 1, arXiv 2505.22312, section 4.3",
        defaults: &[
            "objective.entropy.adaptive.min",
            "objective.entropy.adaptive.max",
            "objective.entropy.adaptive.delta",
            "objective.entropy.adaptive.target",
        ],
        degenerate: &[
            "a batch with nothing to train on does not change the state",
            "the first batch has the bonus",
        ],
        known_as: &[("TRL", "use_adaptive_entropy with entropy_coef_min, _max, _delta, entropy_target")],
        differences: &["the entropy is that of the optimizer batch over all ranks, like TRL's window"],
    },
];

settings! {
    /// A coefficient that keeps the entropy near a target (Skywork-OR1, arXiv 2505.22312). Each update moves
    /// it by `delta` towards the target, and the bonus applies only while the entropy is at or below the
    /// target.
    #[derive(Copy)]
    pub struct AdaptiveEntropy {
        /// Smallest coefficient of the entropy bonus.
        min: f64 = 0.0;
        /// Largest coefficient of the entropy bonus.
        max: f64 = 1.0;
        /// Change of the coefficient in one update.
        delta: f64 = 0.005, NonNegative;
        /// Target of the entropy, in nats per token.
        target: f64 = 0.2;
    }
}

/// The coefficient of the entropy bonus, saved in checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EntropyState {
    /// The coefficient of the next optimizer batch, if the bonus applies.
    pub coef: f64,
    /// Token mean of the entropy in the last batch, in nats; 0 before the first.
    pub last: f64,
}

/// Rewards entropy: `- coef · aggregated H_t`, so that the policy does not collapse to few answers.
///
/// The derivative with respect to each token's entropy is `-coef · w_i`; the learner carries it through to
/// the logits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntropyBonus {
    /// The coefficient; a negative one penalises entropy.
    pub coef: f64,
    /// Aggregation of entropies; `None`: that of the policy loss (verl). TRL uses `token-mean` whatever the
    /// loss uses.
    #[serde(default)]
    pub aggregation: Option<Aggregation>,
    /// Adapts the coefficient, with `coef` as its first value. `None`: constant.
    #[serde(default)]
    pub adaptive: Option<AdaptiveEntropy>,
}

impl EntropyBonus {
    /// Whether the settings are in range.
    pub(crate) fn check(&self) -> Result<(), ObjectiveError> {
        in_range("entropy.coef", self.coef, self.coef.is_finite(), "a finite number")?;
        let Some(adaptive) = self.adaptive else { return Ok(()) };
        adaptive.check_ranges()?;
        in_range(
            "entropy.adaptive.min",
            adaptive.min,
            adaptive.min <= adaptive.max,
            "a number of at most `max`",
        )
    }

    /// A constant coefficient, aggregated like the policy loss.
    pub fn constant(coef: f64) -> Self {
        Self { coef, aggregation: None, adaptive: None }
    }

    /// State at the start of a run.
    pub fn initial(&self) -> EntropyState {
        EntropyState { coef: self.coef, last: 0.0 }
    }

    /// The coefficient that the next optimizer batch uses.
    pub fn coefficient(&self, state: EntropyState) -> f64 {
        match self.adaptive {
            None => self.coef,
            Some(adaptive) if state.last <= adaptive.target => state.coef,
            Some(_) => 0.0,
        }
    }

    /// State after an optimizer batch with this token mean of the entropy; unchanged if it is NaN (nothing
    /// was trained on).
    #[must_use]
    pub fn update(&self, state: EntropyState, entropy: f64) -> EntropyState {
        match self.adaptive {
            Some(AdaptiveEntropy { min, max, delta, target }) if !entropy.is_nan() => {
                let moved = if entropy <= target { state.coef + delta } else { state.coef - delta };
                EntropyState { coef: moved.max(min).min(max), last: entropy }
            }
            _ => state,
        }
    }
}
