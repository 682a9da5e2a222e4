//! GSPO: the clipped ratio of the whole trajectory.

use serde::{Deserialize, Serialize};

use super::super::ObjectiveError;
use super::super::columns::Real;
use super::clip::clipped;
use super::trajectory::{Token, TokenLoss, Trajectory};
use super::{Importance, Loss, bounds, positive};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "gspo",
    family: Family::PolicyLoss,
    meaning: "the clipped ratio with one ratio per trajectory, the geometric mean of its tokens' ratios; form `token` lets every token answer for its own advantage",
    formula: "s = exp(mean_t d); l = max(-A·s, -A·clamp(s, 1 - low, 1 + high)); form token: s_t = sg(s)·p_t/sg(p_t)",
    source: "Zheng et al., GSPO, arXiv 2507.18071, eq. 5 and 6; token form: eq. 13 and 14",
    defaults: &[
        ("objective.loss.clip_low", "3e-4"),
        ("objective.loss.clip_high", "4e-4"),
        ("objective.loss.form", "sequence"),
        ("objective.loss.log_ratio_limit", "10"),
    ],
    degenerate: &[
        "a trajectory without a token to train on contributes nothing",
        "with one token it is the clipped ratio of that token",
    ],
    known_as: &[
        ("verl", "actor.policy_loss.loss_mode=gspo"),
        ("TRL", "importance_sampling_level=sequence (form sequence), sequence_token (form token)"),
    ],
    differences: &[
        "with one advantage and no weight per token the two forms have the same gradient",
        "the paper has no bound on log s (`log_ratio_limit: off`); verl's is 10, and it computes the form `token` and always aggregates by seq-mean-token-mean",
    ],
};

/// Which gradient GSPO has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GspoForm {
    /// The trajectory's ratio moves with every one of its tokens (eq. 6).
    #[default]
    Sequence,
    /// Every token carries the trajectory's ratio as a constant times its own probability (eq. 13).
    Token,
}

/// Group sequence policy optimisation.
///
/// `s = exp(mean_t d)` over the unmasked tokens, `l_t = max(-A·s, -A·clamp(s, 1 - clip_low, 1 + clip_high))`
/// for each of them. Derivative: `-A·s` where the unclipped branch is the larger, spread evenly over the
/// tokens (form `sequence`) or each to its own (form `token`).
///
/// Source: Zheng et al., arXiv 2507.18071.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gspo {
    /// How far s may fall below 1 where the advantage is negative; in `[0, 1]` (paper 3e-4).
    pub clip_low: f64,
    /// How far s may rise above 1 where the advantage is positive; at least 0 (paper 4e-4).
    pub clip_high: f64,
    /// Which gradient.
    #[serde(default)]
    pub form: GspoForm,
    /// `log s` is at most this, with derivative 0 above: verl 10.
    #[serde(default)]
    pub log_ratio_limit: Option<f64>,
}

impl Loss for Gspo {
    fn check(&self) -> Result<(), ObjectiveError> {
        bounds(self.clip_low, self.clip_high)?;
        positive("loss.log_ratio_limit", self.log_ratio_limit)
    }

    fn importance(&self, _setting: Importance) -> Importance {
        match self.form {
            GspoForm::Sequence => Importance::Sequence,
            GspoForm::Token => Importance::SequenceToken,
        }
    }

    fn log_ratio_limits(&self) -> (f64, f64) {
        (f64::NEG_INFINITY, self.log_ratio_limit.unwrap_or(f64::INFINITY))
    }

    fn sequence<T: Real>(&self, trajectory: &mut Trajectory<'_, T>) {
        let limits = self.log_ratio_limits();
        trajectory.through_ratio(limits, |&Token { log_ratio, ratio, advantage, .. }| {
            let token = clipped(ratio, advantage, self.clip_low, self.clip_high);
            TokenLoss { dloss: if log_ratio > limits.1 { 0.0 } else { token.dloss }, ..token }
        });
    }
}
