//! KL-Cov: the tokens whose update would cost the most entropy are held near the old policy.

use serde::{Deserialize, Serialize};

use super::super::{ObjectiveError, in_range};
use super::kernel::{At, Kernel, Token};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "kl_cov",
    family: Family::PolicyLoss,
    meaning: "the plain ratio without a clip; the tokens of highest covariance between advantage and log-probability pay for their distance from the old policy",
    formula: "l = -A·r, + coef·|d| for the max(1, floor(share·N)) tokens of largest cov_t",
    source: "Cui et al., The entropy mechanism of reinforcement learning, arXiv 2505.22617, eq. 13 and 14",
    defaults: &[("objective.loss.share", "2e-4"), ("objective.loss.cov_coefficient", "1")],
    degenerate: &["equal covariances: the first in batch order", "at d = 0 the penalty has derivative 0"],
    known_as: &[("verl", "actor.policy_loss.loss_mode=kl_cov with kl_cov_ratio, ppo_kl_coef")],
    differences: &[
        "the largest are those of the whole optimizer batch; verl takes every micro-batch by itself",
        "verl's configuration sets coef 0.1, its recipe 1",
        "verl logs the mean of |d| as actor/ppo_kl; here that is actor/ppo_kl_abs and actor/ppo_kl stays the mean of -d",
    ],
};

/// The plain ratio, and a penalty on the tokens that [`Objective::select`](super::super::Objective::select) chose.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KlCov {
    /// How many pay, as a share of the batch's tokens; at least one. In `(0, 1]`.
    pub share: f64,
    /// What one nat of distance costs; at least 0.
    pub coef: f64,
}

impl KlCov {
    pub(super) fn check(&self) -> Result<(), ObjectiveError> {
        in_range(
            "kl_cov.share",
            self.share,
            self.share > 0.0 && self.share <= 1.0,
            "a share above 0, at most 1",
        )?;
        in_range(
            "kl_cov.coef",
            self.coef,
            self.coef >= 0.0 && self.coef.is_finite(),
            "a number of at least 0",
        )
    }
}

impl Kernel for KlCov {
    type Number = f64;

    const SELECTS: bool = true;

    #[inline(always)]
    fn token(&self, at: At<f64>) -> Token<f64> {
        let sign = if at.log_ratio > 0.0 { 1.0 } else { 0.0 } - if at.log_ratio < 0.0 { 1.0 } else { 0.0 };
        let coef = if at.selected { self.coef } else { 0.0 };
        let slope = -at.advantage * at.ratio;
        Token {
            is_clipped: at.selected,
            ..Token::new(slope + coef * at.log_ratio.abs(), slope + coef * sign)
        }
    }
}
