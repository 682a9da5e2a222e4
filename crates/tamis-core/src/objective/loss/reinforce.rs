//! REINFORCE and GPG: the log-probability times the advantage, without a ratio.

use super::super::columns::Real;
use super::formula::Loss;
use super::trajectory::{TokenLoss, TrajectoryLoss, UNLIMITED};
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "reinforce",
        family: Family::PolicyLoss,
        formula: "l = -A·logprob",
        source: "Williams, Machine Learning 8 (1992); as a baseline for LLMs: Ahmadian et al., arXiv 2402.14740",
        degenerate: &["only the gradient of the loss has a meaning, not its value"],
        known_as: &[("verl", "rollout_correction.loss_type=reinforce in bypass mode")],
        differences: &[
            "old log-probabilities are used only in the metrics; off-policy weights come from `objective.correction`",
        ],
        ..Entry::REGISTERED
    },
    Entry {
        name: "gpg",
        family: Family::PolicyLoss,
        formula: "l = -A·logprob",
        source: "Chu et al., GPG: a simple and strong reinforcement learning baseline, arXiv 2504.02546",
        degenerate: &["only the gradient of the loss has a meaning, not its value"],
        known_as: &[("verl", "actor.policy_loss.loss_mode=gpg")],
        differences: &["the same loss as `reinforce`; GPG differs in its advantage"],
        ..Entry::REGISTERED
    },
];

settings! {
    /// The plain policy gradient: `l = -A·logprob`, derivative `-A`.
    #[derive(Copy)]
    pub struct Reinforce {}
}

impl Loss for Reinforce {
    fn is_plain_gradient(&self) -> bool {
        true
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        trajectory.through_logprob(UNLIMITED, |token| TokenLoss {
            loss: -token.advantage * token.logprob,
            dloss: -token.advantage,
            ..TokenLoss::default()
        });
    }
}
