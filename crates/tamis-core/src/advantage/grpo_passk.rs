//! The pass@k advantage: only the best of a group is rewarded, by its lead over the second.

use serde::{Deserialize, Serialize};

use super::error::{not_negative, zero_or_one};
use super::per_group::per_group;
use super::{AdvantageBatch, AdvantageError, AdvantageEstimator, AdvantageState, Estimate, Singleton};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "grpo_passk",
    family: Family::Advantage,
    meaning: "the best of a group gets its lead over the second, all others nothing",
    formula: "A_best = (R_best - R_second) / (std(R) + epsilon), A_i = 0 else, over the scored members of the group",
    source: "Tang et al., Optimizing language models for inference time objectives, arXiv 2503.19595, section 3.2",
    defaults: &[
        ("objective.advantage.norm_by_std", "true"),
        ("objective.advantage.ddof", "1"),
        ("objective.advantage.epsilon", "1e-6"),
        ("objective.advantage.singleton", "zero"),
    ],
    degenerate: &[
        "where two share the best reward the lead is 0, and so is every advantage: a mixed group such as 1, 1, 0, 0 carries no signal",
        "unscored members are outside and get 0; with fewer than two scored members of several all get 0",
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
};

/// Pass@k advantage with k = G: `R_best - R_second`, divided by `std + epsilon` unless `divide` is off, for the best member; 0 for the rest.
///
/// Source: Tang et al., arXiv 2503.19595, section 3.2 (leave-one-out of the maximum); verl `grpo_passk`.
///
/// Shapes: rewards `[P][G]` to advantages `[P][G]`, linear. Degenerate cases: ties for the best give 0 throughout; unscored members are
/// outside; a group of one follows [`Singleton`].
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrpoPassk {
    /// Whether the lead is divided by the group's deviation.
    pub divide: bool,
    /// Delta degrees of freedom of the deviation: 0 population, 1 sample.
    pub ddof: u8,
    /// Added to the deviation; at least 0.
    pub epsilon: f64,
    /// What a group of one member gets.
    pub singleton: Singleton,
}

impl Default for GrpoPassk {
    fn default() -> Self {
        Self { divide: true, ddof: 1, epsilon: 1e-6, singleton: Singleton::Zero }
    }
}

impl AdvantageEstimator for GrpoPassk {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn check(&self) -> Result<(), AdvantageError> {
        not_negative("epsilon", self.epsilon)?;
        zero_or_one("ddof", self.ddof)
    }

    fn compute(
        &self,
        batch: &AdvantageBatch<'_>,
        state: &AdvantageState,
    ) -> Result<Estimate, AdvantageError> {
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
