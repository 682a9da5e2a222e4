//! Group policy gradient: centred rewards, scaled up because some trajectories have no signal.

use super::per_group::per_group;
use super::singleton::finite_or_zero;
use super::{AdvantageBatch, AdvantageEstimator, AdvantageState, Estimate, Result, SingletonAdvantage};
use crate::entry::{Entry, Family};
use crate::whole_step::WholeStep;
use crate::{choice, settings};

pub(super) const ENTRY: Entry = Entry {
    name: "gpg",
    family: Family::Advantage,
    formula: "A_i = alpha·(R_i - mean(R)) / divisor, alpha = B / (trajectories in groups whose rewards differ)",
    source: "Chu et al., GPG: a simple and strong reinforcement learning baseline, arXiv 2504.02546",
    degenerate: &[
        "unscored members are left out of the mean and of both counts, and get 0",
        "a uniform group (max == min) gets exactly 0; if all groups are uniform alpha is 1",
        "a group of one gets 0, or alpha times its raw reward with `singleton: raw`",
    ],
    known_as: &[("verl", "algorithm.adv_estimator=gpg")],
    differences: &[
        "verl divides by the number of rewards that are not 0 instead (`gpg_alpha: nonzero_rewards`), so \
            that with rewards of -1 and 1 alpha is always 1",
    ],
    ..Entry::REGISTERED
};

choice! {
    /// How GPG's factor alpha is computed.
    pub enum GpgAlpha {
        /// All trajectories over those in groups whose rewards differ (the paper's valid samples).
        MixedGroups = "mixed_groups",
        /// All trajectories over those with a reward other than 0, including those in uniform groups (verl).
        NonzeroRewards = "nonzero_rewards",
    }
}

settings! {
    /// `A_i = alpha·(R_i - mean(R)) / divisor`, with `alpha` = scored trajectories of the batch over those
    /// with a gradient.
    ///
    /// Source: Chu et al., arXiv 2504.02546. If a share of the groups is uniform, the mean over the batch
    /// shrinks the gradient of the rest, and alpha undoes that.
    ///
    /// Shapes: rewards `[P][G]` to advantages `[P][G]`, linear. Alpha depends on the whole batch. Degenerate
    /// cases: unscored members are left out and get 0; uniform groups get exactly 0; if the divisor of alpha
    /// is 0, alpha is 1 (with [`GpgAlpha::NonzeroRewards`]: the batch over 1); a group of one follows
    /// [`SingletonAdvantage`].
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, Gpg};
    /// use tamis_core::ragged::Ragged;
    /// let rewards = Ragged::from_rows([[1.0, 0.0], [1.0, 1.0]]);
    /// // Two of four trajectories have a gradient: alpha 2.
    /// assert_eq!(Gpg::default().advantages(&AdvantageBatch::of_rewards(&rewards))?.values(), [1.0, -1.0, 0.0, 0.0]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct Gpg {
        /// How GPG's factor alpha is computed.
        gpg_alpha: GpgAlpha = GpgAlpha::MixedGroups;
        /// Divisor of the centred reward (verl's `f_norm`).
        divisor: f64 = 1.0, Positive;
        /// Advantage of a trajectory that is the only one of its group.
        singleton: SingletonAdvantage = SingletonAdvantage::Zero;
    }
}

impl AdvantageEstimator for Gpg {
    fn whole_step(&self) -> Option<WholeStep> {
        Some(WholeStep::ShareWithoutSignal)
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        let mut mixed = 0_usize;
        let mut advantages = per_group(
            batch.rewards,
            |reward| self.singleton.advantage(reward),
            |group| {
                mixed += group.moments.count;
                let mean = group.moments.mean;
                move |reward| finite_or_zero(reward - mean)
            },
        );
        // A group of one that keeps its reward has a gradient too.
        mixed += advantages.rows().filter(|row| matches!(row, [only] if only.abs() > 0.0)).count();
        let scored = batch.rewards.values().iter().filter(|reward| !reward.is_nan());
        let num_scored = scored.clone().count() as f64;
        let alpha = match self.gpg_alpha {
            GpgAlpha::MixedGroups if mixed == 0 => 1.0,
            GpgAlpha::MixedGroups => num_scored / mixed as f64,
            GpgAlpha::NonzeroRewards => {
                num_scored / scored.filter(|&&reward| reward != 0.0).count().max(1) as f64
            }
        };
        let factor = alpha / self.divisor;
        for group in 0..advantages.num_rows() {
            for advantage in advantages.row_mut(group) {
                *advantage *= factor;
            }
        }
        Ok(Estimate::per_trajectory(advantages, state))
    }
}
