//! Group-relative advantage: the reward measured against its own group.

use serde::{Deserialize, Serialize};

use super::statistics::Moments;
use super::{AdvantageBatch, AdvantageError, AdvantageEstimator, Advantages};
use crate::entry::{Entry, Family};
use crate::ragged::Ragged;

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "grpo",
    family: Family::Advantage,
    meaning: "the reward measured against its own group",
    formula: "A_i = (R_i - mean(R)) / (std(R) + epsilon) over the scored members of the group",
    source: "Shao et al., DeepSeekMath, arXiv 2402.03300, section 4.1.2",
    defaults: &[("scale", "group"), ("ddof", "1"), ("epsilon", "1e-6"), ("singleton", "zero")],
    degenerate: &[
        "unscored members are outside the statistics and get 0",
        "a uniform group (max == min) gets exactly 0, and so does one with fewer than two scored members of several",
        "a group of one gets 0, or its raw reward with `singleton: raw_reward`",
    ],
    known_as: &[
        ("verl", "algorithm.adv_estimator=grpo"),
        ("TRL", "scale_rewards=group|batch|none"),
        ("EasyR1", "algorithm.adv_estimator=grpo"),
    ],
    differences: &[
        "verl and TRL compute the deviation of a uniform group in floating point, so that rounding noise over epsilon can become an advantage; here it is zero",
        "verl keeps the raw reward of a singleton, TRL gives 0; TRL's epsilon is 1e-4",
    ],
};

/// What the centred reward is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// The deviation of its own group (GRPO; TRL `scale_rewards="group"`, verl `norm_adv_by_std_in_grpo=True`).
    Group,
    /// One deviation of all scored rewards of the batch (TRL `scale_rewards="batch"`).
    Batch,
    /// Nothing (Dr. GRPO; TRL `scale_rewards="none"`, verl `norm_adv_by_std_in_grpo=False`).
    None,
}

/// What a group of one member gets: it has no one to be compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Singleton {
    /// Its own reward, taken as mean 0 and deviation 1, so divided by `1 + epsilon` where the scale is [`Scale::Group`] (verl).
    RawReward,
    /// Zero (TRL).
    Zero,
}

/// GRPO's advantage: `A_i = (r_i - mean(r)) / (std(r) + epsilon)` over the scored members of the group.
///
/// Source: Shao et al., "DeepSeekMath", arXiv 2402.03300, section 4.1.2; without the division: Liu et al., "Understanding
/// R1-Zero-like training" (Dr. GRPO), arXiv 2503.20783. The paper leaves `ddof` and `epsilon` open; the named constructors give
/// what each package computes.
///
/// Shapes: rewards `[P][G]`, groups of any size, to advantages `[P][G]`. Linear in the number of trajectories.
///
/// Degenerate cases:
/// - unscored members (NaN) are outside the statistics and get 0;
/// - a uniform group (max == min of its scored members) gets exactly 0;
/// - a group of several members of which at most one is scored gets 0;
/// - a group of one member follows [`Singleton`];
/// - [`Scale::Batch`] with fewer than `ddof + 1` scored rewards in the batch gives 0.
///
/// # Differs from
/// verl and TRL compute the deviation of a uniform group in floating point. Three rewards of 0.1 then differ from their mean by
/// one unit in the last place, and float32 noise over `epsilon` gives advantages of up to 3e-4; here they are zero.
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grpo {
    /// What the centred reward is divided by.
    pub scale: Scale,
    /// Delta degrees of freedom of the deviation: 0 population, 1 sample (verl, TRL).
    pub ddof: u8,
    /// Added to the deviation; at least 0. verl 1e-6, TRL 1e-4.
    pub epsilon: f64,
    /// What a group of one member gets.
    pub singleton: Singleton,
}

impl Grpo {
    /// What verl's `grpo` computes: sample deviation, epsilon 1e-6, a singleton keeps its raw reward.
    pub fn verl() -> Self {
        Self { scale: Scale::Group, ddof: 1, epsilon: 1e-6, singleton: Singleton::RawReward }
    }

    /// What TRL computes by default: sample deviation, epsilon 1e-4, a singleton gets 0.
    pub fn trl() -> Self {
        Self { scale: Scale::Group, ddof: 1, epsilon: 1e-4, singleton: Singleton::Zero }
    }

    /// Dr. GRPO: centred, not divided.
    pub fn dr_grpo() -> Self {
        Self { scale: Scale::None, ..Self::verl() }
    }

    fn check(&self, rewards: &Ragged<f64>) -> Result<(), AdvantageError> {
        if !(self.epsilon >= 0.0 && self.epsilon.is_finite()) {
            return Err(AdvantageError::Setting {
                setting: "epsilon",
                value: self.epsilon,
                expected: "a finite number of at least 0",
            });
        }
        if self.ddof > 1 {
            return Err(AdvantageError::Setting {
                setting: "ddof",
                value: f64::from(self.ddof),
                expected: "0 (population) or 1 (sample)",
            });
        }
        for (group, rewards_g) in rewards.rows().enumerate() {
            if let Some(trajectory) = rewards_g.iter().position(|reward| reward.is_infinite()) {
                return Err(AdvantageError::InfiniteReward {
                    group,
                    trajectory,
                    reward: rewards_g[trajectory],
                });
            }
        }
        Ok(())
    }
}

impl AdvantageEstimator for Grpo {
    fn name(&self) -> &'static str {
        "grpo"
    }

    fn advantages(&self, batch: &AdvantageBatch<'_>) -> Result<Advantages, AdvantageError> {
        let rewards = batch.rewards;
        self.check(rewards)?;
        // Of the whole batch, so that it is computed once; unused under the other scales.
        let batch_deviation = match self.scale {
            Scale::Batch => Moments::of(rewards.values()).deviation(self.ddof),
            Scale::Group | Scale::None => 0.0,
        };
        let mut advantages = rewards.clone();
        for group in 0..advantages.num_rows() {
            let advantages_g = advantages.row_mut(group);
            let divisor_of = |deviation: f64| match self.scale {
                Scale::Group => deviation + self.epsilon,
                Scale::Batch => batch_deviation + self.epsilon,
                Scale::None => 1.0,
            };
            if let ([reward], Singleton::RawReward) = (&mut *advantages_g, self.singleton) {
                *reward /= divisor_of(1.0);
                *reward = finite_or_zero(*reward);
                continue;
            }
            let moments = Moments::of(advantages_g);
            if moments.is_uniform() {
                advantages_g.fill(0.0);
                continue;
            }
            let divisor = divisor_of(moments.deviation(self.ddof));
            for reward in advantages_g {
                *reward = finite_or_zero((*reward - moments.mean) / divisor);
            }
        }
        Ok(Advantages::PerTrajectory(advantages))
    }
}

/// 0 for an unscored member, and where a deviation that underflowed to 0 meets an epsilon of 0.
fn finite_or_zero(advantage: f64) -> f64 {
    if advantage.is_finite() { advantage } else { 0.0 }
}
