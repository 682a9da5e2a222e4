//! Dr. GRPO's advantage: centred on the group, without a divisor.

use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Estimate, Grpo, Result, Scale, SingletonAdvantage,
};
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "dr_grpo",
    family: Family::Advantage,
    formula: "A_i = R_i - mean(R) over the scored members of the group",
    source: "Liu et al., Understanding R1-Zero-like training, arXiv 2503.20783, section 3.2",
    degenerate: &[
        "unscored members are left out of the mean and get 0",
        "a uniform group (max == min) gets exactly 0, and so does one with fewer than two scored members of several",
        "a group of one gets 0, or its raw reward with `singleton: raw`",
    ],
    known_as: &[
        ("verl", "algorithm.adv_estimator=grpo with norm_adv_by_std_in_grpo=False"),
        ("TRL", "scale_rewards=none"),
    ],
    differences: &[
        "it is `grpo` with `scale: none`; the other half of the paper, the constant divisor of the loss, is an \
            aggregation (`preset: dr_grpo` sets both)",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// [`Grpo`] with [`Scale::None`]: `A_i = R_i - mean(R)`.
    ///
    /// Source: Liu et al., arXiv 2503.20783, section 3.2. Shapes, cost and degenerate cases as [`Grpo`].
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, DrGrpo};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0, 0.0, 0.0, 0.0]]);
    /// let advantages = DrGrpo::default().advantages(&AdvantageBatch::of_rewards(&rewards))?;
    /// assert_eq!(advantages.values(), [0.75, -0.25, -0.25, -0.25]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct DrGrpo {
        /// Advantage of a trajectory that is the only one of its group.
        singleton: SingletonAdvantage = SingletonAdvantage::Zero;
    }
}

impl AdvantageEstimator for DrGrpo {
    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let grpo = Grpo { scale: Scale::None, singleton: self.singleton, ..Grpo::default() };
        Ok(Estimate::per_trajectory(grpo.of_batch(batch), state))
    }
}
