//! KL-Cov: tokens whose update would cost the most entropy are kept near the old policy.

use super::super::columns::{Columns, Real};
use super::super::covariance::{covariances, share_of};
use super::formula::{Loss, OwnMetric};
use super::trajectory::{TokenLoss, TrajectoryLoss, UNLIMITED};
use crate::entry::{Entry, Family};
use crate::random::Key;
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "kl_cov",
    family: Family::PolicyLoss,
    formula: "l = -A·r, + cov_coefficient·|d| for the max(1, floor(share·N)) tokens of largest cov_t",
    source: "Cui et al., The entropy mechanism of reinforcement learning, arXiv 2505.22617, eq. 13 and 14",
    degenerate: &["equal covariances: the first in batch order", "at d = 0 the penalty has derivative 0"],
    known_as: &[("verl", "actor.policy_loss.loss_mode=kl_cov with kl_cov_ratio, ppo_kl_coef")],
    differences: &[
        "the largest are those of the whole optimizer batch; verl handles every micro-batch by itself",
        "verl's configuration sets coef 0.1, its recipe 1",
        "verl logs the mean of |d| as actor/ppo_kl; here that is actor/ppo_kl_abs and actor/ppo_kl stays the mean of -d",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// The plain ratio, and a penalty on the tokens that
    /// [`Objective::select`](super::super::Objective::select) chose.
    #[derive(Copy)]
    pub struct KlCov {
        /// Share of the tokens of an optimizer batch that pay the penalty; at least one token.
        share: f64 = 2e-4, Probability;
        /// Penalty per nat of distance from the policy at the start of the step, for the chosen tokens.
        cov_coefficient: f64 = 1.0, NonNegative;
    }
}

impl KlCov {
    /// The tokens of the batch that pay: those of largest covariance, and the first of equal ones. In no
    /// particular order.
    pub fn largest<T: Real>(&self, columns: &Columns<'_, T>) -> Vec<usize> {
        let mut ranked: Vec<(f64, usize)> =
            covariances(columns).map(|(t, _, covariance)| (covariance, t)).collect();
        let count = share_of(self.share, columns).min(ranked.len());
        if count < ranked.len() {
            ranked.select_nth_unstable_by(count, |left, right| {
                right.0.total_cmp(&left.0).then(left.1.cmp(&right.1))
            });
            ranked.truncate(count);
        }
        ranked.into_iter().map(|(_, t)| t).collect()
    }
}

impl Loss for KlCov {
    fn needs_selection(&self) -> bool {
        true
    }

    fn own_metric(&self) -> Option<OwnMetric> {
        Some(OwnMetric::PerToken("actor/ppo_kl_abs"))
    }

    fn select<T: Real>(&self, columns: &Columns<'_, T>, _key: Key) -> Vec<usize> {
        self.largest(columns)
    }

    fn pulls_without_advantage(&self) -> bool {
        self.cov_coefficient > 0.0
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        trajectory.through_ratio(UNLIMITED, |token| {
            let distance = token.log_ratio.abs();
            let sign = if distance > 0.0 { token.log_ratio.signum() } else { 0.0 };
            let cost = if token.is_selected { self.cov_coefficient } else { 0.0 };
            let slope = -token.advantage * token.ratio;
            TokenLoss {
                loss: slope + cost * distance,
                dloss: slope + cost * sign,
                is_clipped: token.is_selected,
                own: distance,
                ..TokenLoss::default()
            }
        });
    }
}
