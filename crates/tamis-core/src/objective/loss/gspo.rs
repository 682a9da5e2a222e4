//! GSPO: the clipped ratio of the whole trajectory.

use super::super::columns::Real;
use super::super::importance::Importance;
use super::clip::clipped;
use super::formula::Loss;
use super::trajectory::{Token, TokenLoss, TrajectoryLoss};
use crate::entry::{Entry, Family};
use crate::{choice, settings};

pub(super) const ENTRY: Entry = Entry {
    name: "gspo",
    family: Family::PolicyLoss,
    formula: "s = exp(mean_t d); l = max(-A·s, -A·clamp(s, 1 - clip_low, 1 + clip_high)); form token: s_t = sg(s)·p_t/sg(p_t)",
    source: "Zheng et al., GSPO, arXiv 2507.18071, eq. 5 and 6; token form: eq. 13 and 14",
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
        "the paper has no bound on log s (`log_ratio_limit: off`); verl's is 10, and it computes the form \
            `token` and always aggregates by seq-mean-token-mean",
    ],
    ..Entry::REGISTERED
};

choice! {
    /// Tokens with respect to which the trajectory's ratio is differentiated.
    pub enum GspoForm {
        /// All tokens of the trajectory: each token contributes to every token's loss (eq. 6).
        Sequence = "sequence",
        /// Only the token itself: each token contributes only to its own loss (GSPO-token, eq. 13; verl).
        Token = "token",
    }
}

settings! {
    /// Group sequence policy optimisation.
    ///
    /// `s = exp(mean_t d)` over the unmasked tokens, and
    /// `l_t = max(-A·s, -A·clamp(s, 1 - clip_low, 1 + clip_high))` for each of them. Derivative: `-A·s` if
    /// the unclipped branch is the larger. The form `sequence` spreads it evenly over the tokens; the form
    /// `token` gives each token its own.
    ///
    /// Source: Zheng et al., arXiv 2507.18071.
    #[derive(Copy)]
    pub struct Gspo {
        /// How far the trajectory's ratio may fall below 1 if the advantage is negative.
        clip_low: f64 = 3e-4, Between(0.0, 1.0);
        /// How far the trajectory's ratio may rise above 1 if the advantage is positive.
        clip_high: f64 = 4e-4, NonNegative;
        /// Tokens with respect to which the trajectory's ratio is differentiated.
        form: GspoForm = GspoForm::Sequence;
        /// Bound on the logarithm of the trajectory's ratio, with derivative 0 beyond it (verl 10). Null: no
        /// bound, as in TRL.
        log_ratio_limit: Option<f64> = Some(10.0), Positive;
    }
}

impl Loss for Gspo {
    fn is_constant_weight(&self) -> bool {
        self.form == GspoForm::Token
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

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        let limits = self.log_ratio_limits();
        trajectory.through_ratio(limits, |&Token { log_ratio, ratio, advantage, .. }| {
            let token = clipped(ratio, advantage, self.clip_low, self.clip_high);
            TokenLoss { dloss: if log_ratio > limits.1 { 0.0 } else { token.dloss }, ..token }
        });
    }
}
