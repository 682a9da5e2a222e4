//! DRO: the policy gradient with a quadratic pull towards the old policy.

use serde::{Deserialize, Serialize};

use super::super::{ObjectiveError, in_range};
use super::kernel::{At, Kernel, Token};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "dro",
    family: Family::PolicyLoss,
    meaning: "direct reward optimisation: the policy gradient, and a quadratic pull towards the policy that sampled",
    formula: "l = -A·logprob + (beta/2)·d²",
    source: "Richemond et al., Offline regularised reinforcement learning for LLM alignment, arXiv 2405.19107, eq. 11; per token as Kimi k1.5, arXiv 2501.12599, uses it",
    defaults: &[("objective.loss.beta", "required")],
    degenerate: &["without old log-probabilities d is 0 and it is `reinforce`"],
    known_as: &[("verl", "actor.policy_loss.loss_mode=dro with dro_beta")],
    differences: &[],
};

/// Direct reward optimisation. Derivative: `-A + beta·d`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dro {
    /// Strength of the pull; at least 0.
    pub beta: f64,
}

impl Dro {
    pub(super) fn check(self) -> Result<(), ObjectiveError> {
        in_range("dro.beta", self.beta, self.beta >= 0.0 && self.beta.is_finite(), "a number of at least 0")
    }
}

impl Kernel for Dro {
    type Number = f64;

    const LOGPROB: bool = true;
    const THROUGH_RATIO: bool = false;

    #[inline(always)]
    fn token(&self, at: At<f64>) -> Token<f64> {
        let pull = self.beta * at.log_ratio;
        Token::new(0.5 * pull * at.log_ratio - at.advantage * at.logprob, pull - at.advantage)
    }
}
