//! REINFORCE++ with a group baseline: centred on the group, whitened over the batch.

use super::per_group::per_group;
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, Result, SingletonAdvantage,
    whitening,
};
use crate::entry::{Entry, Family};
use crate::settings;
use crate::whole_step::WholeStep;

pub(super) const ENTRY: Entry = Entry {
    name: "reinforce_plus_plus_baseline",
    family: Family::Advantage,
    formula: "D_i = R_i - mean(R) within the group, A_i = (D_i - mean(D)) / sqrt(var(D) + 1e-8) over the \
        batch, each D as often as its tokens",
    source: "Hu, REINFORCE++, arXiv 2501.03262, section 3 (REINFORCE++-baseline)",
    degenerate: &[
        "unscored members are left out of both statistics and get 0",
        "a uniform group gets -mean(D)/deviation, the same for all its members: 0 only if lengths and rewards are unrelated",
        "if all D of the batch are equal, or there are fewer than two tokens, every advantage is 0",
        "a group of one has D = 0, or its raw reward with `singleton: raw`",
    ],
    known_as: &[("verl", "algorithm.adv_estimator=reinforce_plus_plus_baseline")],
    differences: &[
        "verl keeps the raw reward of a singleton (`singleton: raw`), and adds 1e-8 to the number of tokens",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// `D_i = R_i - mean_group(R)`, whitened over the batch with every trajectory counted once per token.
    ///
    /// Source: Hu, arXiv 2501.03262; verl `reinforce_plus_plus_baseline`.
    ///
    /// Shapes: rewards `[P][G]` and lengths \[B\] to advantages `[P][G]`, linear in B. Degenerate cases:
    /// unscored members are left out and get 0; a batch without a difference gives 0; a group of one follows
    /// [`SingletonAdvantage`]; trajectories without tokens do not count.
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, ReinforcePlusPlusBaseline};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0, 0.0]]);
    /// let batch = AdvantageBatch { lengths: Some(&[1, 1]), ..AdvantageBatch::of_rewards(&rewards) };
    /// let advantages = ReinforcePlusPlusBaseline::default().advantages(&batch)?;
    /// // ±1/2 with sample variance 1/2.
    /// assert!((advantages.values()[0] - 0.5_f64.sqrt()).abs() < 1e-7);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct ReinforcePlusPlusBaseline {
        /// Whiten the centred rewards over the tokens of the batch: mean 0, deviation 1.
        whiten: bool = true;
        /// Advantage of a trajectory that is the only one of its group.
        singleton: SingletonAdvantage = SingletonAdvantage::Zero;
    }
}

impl AdvantageEstimator for ReinforcePlusPlusBaseline {
    fn whole_step(&self) -> Option<WholeStep> {
        self.whiten.then_some(WholeStep::Whitening)
    }

    fn needs(&self) -> &'static [Column] {
        &[Column::Lengths]
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let mut advantages = per_group(
            batch.rewards,
            |reward| self.singleton.advantage(reward),
            |group| {
                let mean = group.moments.mean;
                move |reward| reward - mean
            },
        );
        if self.whiten {
            whitening::by_length(&mut advantages, |i| batch.length(i));
        }
        Ok(Estimate::per_trajectory(advantages, state))
    }
}
