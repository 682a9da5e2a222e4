//! Group-relative advantage: the reward in comparison with its own group.

use super::per_group::per_group;
use super::singleton::zero_where_not_finite;
use super::statistics::Moments;
use super::{
    AdvantageBatch, AdvantageEstimator, AdvantageState, Column, Estimate, Result, Scale, SingletonAdvantage,
    StatisticsUnit,
};
use crate::entry::{Entry, Family};
use crate::ragged::Ragged;
use crate::settings;
use crate::whole_step::WholeStep;

pub(super) const ENTRY: Entry = Entry {
    name: "grpo",
    family: Family::Advantage,
    formula: "A_i = (R_i - mean(R)) / (std(R) + epsilon) over the scored members of the group",
    source: "Shao et al., DeepSeekMath, arXiv 2402.03300, section 4.1.2",
    degenerate: &[
        "unscored members are left out of the statistics and get 0",
        "a uniform group (max == min) gets exactly 0, and so does one with fewer than two scored members of several",
        "a group of one gets 0, or its raw reward with `singleton: raw`",
        "with `statistics: turn` a member counts once for each of its turns, and at least once",
    ],
    known_as: &[
        ("verl", "algorithm.adv_estimator=grpo"),
        ("verl", "algorithm.adv_estimator=grpo_vectorized"),
        ("TRL", "scale_rewards=group|batch|none"),
        ("EasyR1", "algorithm.adv_estimator=grpo"),
    ],
    differences: &[
        "verl and TRL compute the deviation of a uniform group in floating point, so that rounding noise \
            over epsilon can become an advantage; here it is zero",
        "verl keeps the raw reward of a singleton (`singleton: raw`), TRL gives 0; TRL's epsilon is 1e-4",
        "verl's vectorised form works in single precision and, before 0.9.1, used a variance of at least 1e-6",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// GRPO's advantage: `A_i = (r_i - mean(r)) / (std(r) + epsilon)` over the scored members of the group.
    ///
    /// Source: Shao et al., "DeepSeekMath", arXiv 2402.03300, section 4.1.2; without the division: Liu et
    /// al., "Understanding R1-Zero-like training" (Dr. GRPO), arXiv 2503.20783. The paper leaves `ddof` and
    /// `epsilon` open; the named constructors give what each package computes.
    /// Shapes: rewards `[P][G]`, groups of any size, to advantages `[P][G]`. By turns also the mask `[B][T]`,
    /// and turns `[B][T]` if given, otherwise each run of unmasked tokens is a turn. Linear in the number of
    /// trajectories.
    ///
    /// Degenerate cases:
    /// - unscored members (NaN) are left out of the statistics and get 0;
    /// - a uniform group (max == min of its scored members) gets exactly 0;
    /// - a group of several members of which at most one is scored gets 0;
    /// - a group of one member follows [`SingletonAdvantage`];
    /// - by turns ([`StatisticsUnit::Turn`]) a member without any token of the policy counts once;
    /// - [`Scale::Batch`] with fewer than `ddof + 1` scored rewards in the batch gives 0.
    ///
    /// # Differs from
    /// verl and TRL, which compute the deviation of a uniform group in floating point. Three rewards of 0.1
    /// then differ from their mean by one unit in the last place, and float32 noise over `epsilon` gives
    /// advantages of up to 3e-4; here they are zero.
    ///
    /// ```
    /// use tamis_core::advantage::{AdvantageBatch, AdvantageEstimator, Advantages, Grpo};
    /// use tamis_core::ragged::Ragged;
    ///
    /// let rewards = Ragged::from_rows([vec![1.0, 0.0, 1.0, 0.0], vec![0.1, 0.1, 0.1]]);
    /// let Advantages::PerTrajectory(advantages) =
    ///     Grpo { epsilon: 0.0, ddof: 0, ..Grpo::verl() }.advantages(&AdvantageBatch::of_rewards(&rewards))?
    /// else { unreachable!() };
    /// // Mean 1/2, population deviation 1/2.
    /// assert_eq!(advantages.row(0), [1.0, -1.0, 1.0, -1.0]);
    /// assert_eq!(advantages.row(1), [0.0; 3]);
    /// # Ok::<(), tamis_core::advantage::AdvantageError>(())
    /// ```
    #[derive(Copy)]
    pub struct Grpo {
        /// Rewards whose deviation divides the advantages.
        scale: Scale = Scale::Group;
        /// Delta degrees of freedom of the deviation: 1 divides by n - 1 (verl, TRL), 0 by n.
        ddof: u8 = 1, Between(0.0, 1.0);
        /// Number added to the deviation that divides the advantage (1e-6 in verl, 1e-4 in TRL).
        epsilon: f64 = 1e-6, NonNegative;
        /// Advantage of a trajectory that is the only one of its group.
        singleton: SingletonAdvantage = SingletonAdvantage::Zero;
        /// Unit that counts once in mean and deviation: an episode, or each of its turns.
        statistics: StatisticsUnit = StatisticsUnit::Episode;
    }
}

impl Grpo {
    /// The form of verl's `grpo`: sample deviation, epsilon 1e-6, a singleton keeps its raw reward.
    pub fn verl() -> Self {
        Self {
            scale: Scale::Group,
            ddof: 1,
            epsilon: 1e-6,
            singleton: SingletonAdvantage::Raw,
            statistics: StatisticsUnit::Episode,
        }
    }

    /// The form of TRL's default: sample deviation, epsilon 1e-4, a singleton gets 0.
    pub fn trl() -> Self {
        Self {
            scale: Scale::Group,
            ddof: 1,
            epsilon: 1e-4,
            singleton: SingletonAdvantage::Zero,
            statistics: StatisticsUnit::Episode,
        }
    }

    /// Dr. GRPO: centred, without a divisor.
    pub fn dr_grpo() -> Self {
        Self { scale: Scale::None, ..Self::verl() }
    }

    /// Advantages `[P][G]` of a batch that has been checked.
    pub(crate) fn of_batch(&self, batch: &AdvantageBatch<'_>) -> Ragged<f64> {
        let turns: Option<Vec<usize>> = (self.statistics == StatisticsUnit::Turn)
            .then(|| (0..batch.num_trajectories()).map(|i| batch.num_turns(i).max(1)).collect());
        self.of(batch.rewards, turns.as_deref())
    }

    /// Advantages of rewards `[P][G]` that have been checked. In the statistics each reward counts `weights`
    /// \[B\] times, or once if there are no weights.
    pub(crate) fn of(&self, rewards: &Ragged<f64>, weights: Option<&[usize]>) -> Ragged<f64> {
        let weighted = |rewards: &[f64], weights: &[usize]| {
            Moments::weighted(|| rewards.iter().copied().zip(weights.iter().copied()))
        };
        // For the whole batch, so that it is computed once; unused with the other scales.
        let batch_deviation = match self.scale {
            Scale::Batch => weights
                .map_or_else(|| Moments::of(rewards.values()), |weights| weighted(rewards.values(), weights))
                .deviation(self.ddof),
            Scale::Group | Scale::None => 0.0,
        };
        let divisor_of = |deviation: f64| match self.scale {
            Scale::Group => deviation + self.epsilon,
            Scale::Batch => batch_deviation + self.epsilon,
            Scale::None => 1.0,
        };
        let advantages = per_group(
            rewards,
            |reward| self.singleton.advantage(reward) / divisor_of(1.0),
            |group| {
                let moments = weights.map_or(group.moments, |weights| {
                    weighted(group.rewards, &weights[group.first..group.first + group.rewards.len()])
                });
                let (mean, divisor) = (moments.mean, divisor_of(moments.deviation(self.ddof)));
                move |reward| (reward - mean) / divisor
            },
        );
        zero_where_not_finite(advantages)
    }
}

impl AdvantageEstimator for Grpo {
    fn whole_step(&self) -> Option<WholeStep> {
        (self.scale == Scale::Batch).then_some(WholeStep::BatchScale)
    }

    fn needs(&self) -> &'static [Column] {
        match self.statistics {
            StatisticsUnit::Episode => &[],
            StatisticsUnit::Turn => &[Column::Mask],
        }
    }

    fn uses(&self) -> &'static [Column] {
        match self.statistics {
            StatisticsUnit::Episode => &[],
            StatisticsUnit::Turn => &[Column::Turns],
        }
    }

    fn divisor(&self) -> Option<Scale> {
        Some(self.scale)
    }

    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        Ok(Estimate::per_trajectory(self.of_batch(batch), state))
    }
}
