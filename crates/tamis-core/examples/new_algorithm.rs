//! An advantage and a filter that tamis does not have, as they would be written into it:
//! `docs/adding-an-algorithm.md` walks through this file.
//!
//! ```text
//! cargo run -p tamis-core --example new_algorithm
//! ```

use tamis_core::advantage::{
    AdvantageBatch, AdvantageError, AdvantageEstimator, AdvantageState, Advantages, Estimate,
};
use tamis_core::filter::{
    DropReason, Filter, FilterError, GroupStatistics, OutcomeScale, Scope, Verdict, judge_columns,
};
use tamis_core::ragged::Ragged;
use tamis_core::{settings, tagged};

// [advantage]
settings! {
    /// The rank of a reward within its group, from -1 for the worst to 1 for the best; equal rewards share a
    /// rank.
    pub struct Rank {
        /// Power of the rank's size: above 1 the middle of a group counts less.
        power: f64 = 1.0, Positive;
    }
}

impl AdvantageEstimator for Rank {
    fn name(&self) -> &'static str {
        "rank"
    }

    fn check(&self) -> Result<(), AdvantageError> {
        if self.power > 0.0 && self.power.is_finite() {
            return Ok(());
        }
        Err(AdvantageError::Setting { setting: "power", value: self.power, expected: "a number above 0" })
    }

    fn compute(
        &self,
        batch: &AdvantageBatch<'_>,
        state: &AdvantageState,
    ) -> Result<Estimate, AdvantageError> {
        let of_group = |rewards_g: &[f64]| -> Vec<f64> {
            // NaN is unscored: outside the ranking, and without an advantage.
            let scored: Vec<f64> = rewards_g.iter().copied().filter(|reward| !reward.is_nan()).collect();
            let most = scored.len().max(2) as f64 - 1.0;
            let rank = |reward: f64| {
                let below = scored.iter().filter(|other| **other < reward).count() as f64;
                let above = scored.iter().filter(|other| **other > reward).count() as f64;
                (below - above) / most
            };
            let advantage = |reward: f64| rank(reward).signum() * rank(reward).abs().powf(self.power);
            rewards_g.iter().map(|&reward| if reward.is_nan() { 0.0 } else { advantage(reward) }).collect()
        };
        let advantages = Ragged::from_rows(batch.rewards.rows().map(of_group));
        Ok(Estimate {
            advantages: Advantages::PerTrajectory(advantages),
            returns: None,
            state: state.clone(),
        })
    }
}
// [/advantage]

// [filter]
settings! {
    /// Keeps a group whose best member reaches a score.
    pub struct Solved {
        /// The score.
        least: f64 = 1.0;
    }
}

impl Filter for Solved {
    fn name(&self) -> &'static str {
        "solved"
    }

    fn scope(&self) -> Scope {
        Scope::Point
    }

    fn check(&self) -> Result<(), FilterError> {
        Ok(())
    }

    fn rule(&self) -> String {
        format!("groups whose best member reaches {}", self.least)
    }

    fn judge(&self, groups: &[GroupStatistics], _scale: Option<OutcomeScale>) -> Vec<Verdict> {
        let verdict = |group: &GroupStatistics| match group {
            group if group.is_unscored() => Verdict::Dropped(DropReason::Unscored),
            group if group.max >= self.least => Verdict::Kept,
            _ => Verdict::Dropped(DropReason::BelowRange),
        };
        groups.iter().map(verdict).collect()
    }
}
// [/filter]

// [registration]
tagged! {
    /// How advantages are made of rewards.
    pub enum Advantage: AdvantageEstimator, default Rank {
        /// The rank of the reward within its group.
        Rank(Rank) = "rank",
    }
}

tagged! {
    /// How a group is judged.
    pub enum GroupFilter: Filter, default Solved {
        /// Kept where the best member reaches `least`.
        Solved(Solved) = "solved",
    }
}
// [/registration]

/// Reads both as a configuration would hold them, and applies them.
///
/// # Errors
/// Where they are not what the page says.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    // As a configuration writes them: `objective: {advantage: {kind: rank, power: 2}}`,
    // `filter: {kind: solved}`.
    let advantage: Advantage = serde_json::from_str(r#"{"kind": "rank", "power": 2.0}"#)?;
    let filter: GroupFilter = serde_json::from_str(r#"{"kind": "solved"}"#)?;

    let rewards = Ragged::from_rows([vec![0.0, 0.5, 1.0], vec![0.0, 0.0, f64::NAN]]);
    let (verdicts, _) = judge_columns(&*filter, None, rewards.values(), &[0, 3, 6])?;
    assert_eq!(verdicts, [Verdict::Kept, Verdict::Dropped(DropReason::BelowRange)]);

    let advantages = advantage.advantages(&AdvantageBatch::of_rewards(&rewards))?;
    assert_eq!(advantages.values(), [-1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    Ok(())
}
