//! DRO: the policy gradient with a quadratic pull towards the old policy.

use super::super::columns::Real;
use super::formula::Loss;
use super::trajectory::{TokenLoss, TrajectoryLoss, UNLIMITED};
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "dro",
    family: Family::PolicyLoss,
    formula: "l = -A·logprob + (beta/2)·d²",
    source: "Richemond et al., Offline regularised reinforcement learning for LLM alignment, arXiv \
        2405.19107, eq. 11; per token as Kimi k1.5, arXiv 2501.12599, uses it",
    degenerate: &["without old log-probabilities d is 0 and it is `reinforce`"],
    known_as: &[("verl", "actor.policy_loss.loss_mode=dro with dro_beta")],
    differences: &[],
    ..Entry::REGISTERED
};

settings! {
    /// Direct reward optimisation. Derivative: `-A + beta·d`.
    #[derive(Copy)]
    pub struct Dro {
        /// Strength of the quadratic pull towards the old policy.
        beta: f64, NonNegative;
    }
}

impl Loss for Dro {
    fn pulls_without_advantage(&self) -> bool {
        self.beta > 0.0
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        trajectory.through_logprob(UNLIMITED, |token| {
            let pull = self.beta * token.log_ratio;
            TokenLoss {
                loss: 0.5 * pull * token.log_ratio - token.advantage * token.logprob,
                dloss: pull - token.advantage,
                ..TokenLoss::default()
            }
        });
    }
}
