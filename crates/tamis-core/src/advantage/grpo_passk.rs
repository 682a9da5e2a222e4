//! The pass@k advantage: only the best of a group is rewarded, with its lead over the second.

use super::per_group::per_group;
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Estimate, Result, Scale, SingletonAdvantage,
};
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "grpo_passk",
    family: Family::Advantage,
    formula: "A_best = (R_best - R_second) / (std(R) + epsilon), A_i = 0 otherwise, over the scored members of the group",
    source: "Tang et al., Optimizing language models for inference time objectives, arXiv 2503.19595, section 3.2",
    degenerate: &[
        "if two share the best reward the lead is 0, and so is every advantage: a mixed group such as 1, 1, 0, 0 has no signal",
        "unscored members are left out and get 0; with fewer than two scored members of several all get 0",
        "a group of one gets 0, or its raw reward with `singleton: raw`",
    ],
    known_as: &[
        ("verl", "algorithm.adv_estimator=grpo_passk"),
        ("EasyR1", "algorithm.adv_estimator=grpo_passk"),
    ],
    differences: &[
        "verl refuses a group of one",
        "advantages of a group do not sum to zero; filters that drop uniform groups keep tied ones",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// Pass@k advantage with k = G: `R_best - R_second`, divided by `std + epsilon` unless `divide` is off,
    /// for the best member; 0 for the rest.
    ///
    /// Source: Tang et al., arXiv 2503.19595, section 3.2 (leave-one-out of the maximum); verl `grpo_passk`.
    ///
    /// Shapes: rewards `[P][G]` to advantages `[P][G]`, linear. Degenerate cases: ties for the best give 0
    /// throughout; unscored members are outside; a group of one follows [`SingletonAdvantage`].
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, GrpoPassk};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[0.5, 3.0, 1.0], [1.0, 1.0, 0.0]]);
    /// let passk = GrpoPassk { divide: false, ..GrpoPassk::default() };
    /// let advantages = passk.advantages(&AdvantageBatch::of_rewards(&rewards))?;
    /// assert_eq!(advantages.values(), [0.0, 2.0, 0.0, 0.0, 0.0, 0.0]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct GrpoPassk {
        /// Divide the lead by the group's deviation.
        divide: bool = true;
        /// Delta degrees of freedom of the deviation: 1 divides by n - 1 (verl, TRL), 0 by n.
        ddof: u8 = 1, Between(0.0, 1.0);
        /// Number added to the deviation that divides the advantage (1e-6 in verl, 1e-4 in TRL).
        epsilon: f64 = 1e-6, NonNegative;
        /// Advantage of a trajectory that is the only one of its group.
        singleton: SingletonAdvantage = SingletonAdvantage::Zero;
    }
}

impl AdvantageEstimator for GrpoPassk {
    fn divisor(&self) -> Option<Scale> {
        Some(if self.divide { Scale::Group } else { Scale::None })
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let advantages = per_group(
            batch.rewards,
            |reward| self.singleton.advantage(reward),
            |group| {
                let (mut best, mut second) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
                for &reward in group.rewards {
                    if reward > best {
                        (second, best) = (best, reward);
                    } else if reward > second {
                        second = reward;
                    }
                }
                let deviation = group.moments.deviation(self.ddof);
                let lead = (best - second) / if self.divide { deviation + self.epsilon } else { 1.0 };
                move |reward| if reward >= best { lead } else { 0.0 }
            },
        );
        Ok(Estimate::per_trajectory(advantages, state))
    }
}
