//! The reward less the mean of the whole batch. Groups are ignored, and one completion per prompt is enough.

use super::statistics::Moments;
use super::{AdvantageBatch, AdvantageEstimator, AdvantageState, Estimate, Result};
use crate::entry::{Entry, Family};
use crate::settings;
use crate::whole_step::WholeStep;

pub(super) const ENTRY: Entry = Entry {
    name: "batch_mean",
    family: Family::Advantage,
    formula: "A_i = R_i - mean(R), the mean over all scored trajectories of the batch",
    source: "OpenRLHF 0.11 `flash_reinforce` (pull request 1339); Williams, REINFORCE, Machine Learning 8, 1992",
    degenerate: &[
        "unscored trajectories are left out of the mean and get 0",
        "if all rewards of the batch are equal, or only one is scored, every advantage is 0; a uniform group is \
            not 0 unless the batch is",
        "groups of one are treated like any other",
    ],
    known_as: &[("OpenRLHF", "algo.advantage.estimator=flash_reinforce")],
    differences: &[],
    ..Entry::REGISTERED
};

settings! {
    /// `A_i = R_i - mean(R)` over the batch, not divided by a deviation.
    ///
    /// Source: OpenRLHF 0.11 `flash_reinforce`, meant for one completion per prompt.
    ///
    /// Shapes: rewards `[P][G]` to advantages `[P][G]`, linear in B. Degenerate cases: unscored trajectories
    /// get 0; a batch of equal rewards gives 0.
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, BatchMean};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0], [0.0], [0.0], [f64::NAN], [1.0]]);
    /// let advantages = BatchMean {}.advantages(&AdvantageBatch::of_rewards(&rewards))?;
    /// assert_eq!(advantages.values(), [0.5, -0.5, -0.5, 0.0, 0.5]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct BatchMean {}
}

impl AdvantageEstimator for BatchMean {
    fn whole_step(&self) -> Option<WholeStep> {
        Some(WholeStep::BatchMean)
    }

    fn baseline_beyond_group(&self) -> Option<&'static str> {
        Some("the whole batch")
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let rewards = batch.rewards.values();
        let moments = Moments::weighted(|| rewards.iter().map(|&reward| (reward, 1)));
        let centred = |&reward: &f64| {
            if reward.is_nan() || moments.is_uniform() { 0.0 } else { reward - moments.mean }
        };
        let advantages = batch.rewards.cut_alike(rewards.iter().map(centred).collect());
        Ok(Estimate::per_trajectory(advantages, state))
    }
}
