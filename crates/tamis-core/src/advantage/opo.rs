//! The variance-minimising baseline under the length approximation: the group's mean reward weighted by
//! length.

use super::per_group::per_group;
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, Result, SingletonAdvantage,
};
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "opo",
    family: Family::Advantage,
    formula: "A_i = R_i - sum_j(L_j·R_j) / sum_j(L_j) over the scored members of the group, L the tokens trained on",
    source: "Hao et al., On-policy RL with optimal reward baseline, arXiv 2505.23585",
    degenerate: &[
        "unscored members are left out of the mean and get 0",
        "a uniform group (max == min) gets exactly 0, and so does one with fewer than two scored members of several",
        "if no scored member has a token the plain mean is taken",
        "a group of one gets 0, or its raw reward with `singleton: raw`",
    ],
    known_as: &[("verl", "algorithm.adv_estimator=opo")],
    differences: &["verl keeps the raw reward of a singleton (`singleton: raw`)"],
    ..Entry::REGISTERED
};

settings! {
    /// `A_i = R_i - Σ_j L_j·R_j / Σ_j L_j` over the scored members, `L_j` the tokens trained on.
    ///
    /// Source: Hao et al., arXiv 2505.23585: the optimal baseline weights rewards by the squared norm of each
    /// trajectory's score function, which is assumed to grow with its length. The advantages weighted by
    /// length sum to zero within a group.
    ///
    /// Shapes: rewards `[P][G]` and lengths \[B\] to advantages `[P][G]`, linear. Degenerate cases: unscored
    /// members are left out and get 0; uniform groups get exactly 0; groups without a token use the plain
    /// mean; a group of one follows [`SingletonAdvantage`].
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, Opo};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0, 0.0]]);
    /// let batch = AdvantageBatch { lengths: Some(&[1, 3]), ..AdvantageBatch::of_rewards(&rewards) };
    /// // Baseline 1·1/4.
    /// assert_eq!(Opo::default().advantages(&batch)?.values(), [0.75, -0.25]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct Opo {
        /// Advantage of a trajectory that is the only one of its group.
        singleton: SingletonAdvantage = SingletonAdvantage::Zero;
    }
}

impl AdvantageEstimator for Opo {
    fn needs(&self) -> &'static [Column] {
        &[Column::Lengths]
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let advantages = per_group(
            batch.rewards,
            |reward| self.singleton.advantage(reward),
            |group| {
                let (mut rewards, mut tokens) = (0.0, 0.0);
                for (i, &reward) in group.rewards.iter().enumerate().filter(|(_, reward)| !reward.is_nan()) {
                    let length = batch.length(group.first + i) as f64;
                    rewards += length * reward;
                    tokens += length;
                }
                let baseline = if tokens > 0.0 { rewards / tokens } else { group.moments.mean };
                move |reward| reward - baseline
            },
        );
        Ok(Estimate::per_trajectory(advantages, state))
    }
}
