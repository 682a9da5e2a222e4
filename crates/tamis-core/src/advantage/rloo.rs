//! Leave-one-out: the reward in comparison with the mean of the others.

use super::per_group::per_group;
use super::{AdvantageBatch, AdvantageEstimator, AdvantageState, Estimate, Result, SingletonAdvantage};
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "rloo",
    family: Family::Advantage,
    formula: "A_i = R_i - mean(R_j, j != i) = n/(n - 1)·(R_i - mean(R)) over the n scored members of the group",
    source: "Ahmadian et al., Back to basics, arXiv 2402.14740, section 2.2; Kool et al., Buy 4 REINFORCE samples, 2019",
    degenerate: &[
        "unscored members are left out of the mean of the others and get 0",
        "a uniform group (max == min) gets exactly 0, and so does one with fewer than two scored members of several",
        "a group of one gets 0, or its raw reward with `singleton: raw`",
    ],
    known_as: &[
        ("verl", "algorithm.adv_estimator=rloo"),
        ("verl", "algorithm.adv_estimator=rloo_vectorized"),
        ("EasyR1", "algorithm.adv_estimator=rloo"),
    ],
    differences: &[
        "verl's `rloo` keeps the raw reward of a singleton (`singleton: raw`), its `rloo_vectorized` gives 0",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// REINFORCE leave-one-out: `A_i = n/(n - 1)·(R_i - mean(R))`, n the scored members of the group.
    /// Unbiased, not divided by a deviation.
    ///
    /// Source: Ahmadian et al., arXiv 2402.14740, section 2.2. Shapes: rewards `[P][G]` to advantages
    /// `[P][G]`, linear. Degenerate cases: unscored members are left out and get 0; uniform groups get
    /// exactly 0; a group of one follows [`SingletonAdvantage`].
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, Rloo};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0, 0.0, 0.5]]);
    /// let advantages = Rloo::default().advantages(&AdvantageBatch::of_rewards(&rewards))?;
    /// // The others' means: 1/4, 3/4, 1/2.
    /// assert_eq!(advantages.values(), [0.75, -0.75, 0.0]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct Rloo {
        /// Advantage of a trajectory that is the only one of its group.
        singleton: SingletonAdvantage = SingletonAdvantage::Zero;
    }
}

impl AdvantageEstimator for Rloo {
    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let advantages = per_group(
            batch.rewards,
            |reward| self.singleton.advantage(reward),
            |group| {
                let (mean, count) = (group.moments.mean, group.moments.count as f64);
                move |reward| count / (count - 1.0) * (reward - mean)
            },
        );
        Ok(Estimate::per_trajectory(advantages, state))
    }
}
