//! An advantage, a loss and a filter that tamis does not have, written as if they were part of it.
//! `docs/adding-an-algorithm.md` explains this file.
//!
//! ```text
//! cargo run -p tamis-core --example new_algorithm
//! ```

use tamis_core::advantage::{
    AdvantageBatch, AdvantageError, AdvantageEstimator, AdvantageState, Advantages, Estimate,
};
use tamis_core::entry::{Entry, Family};
use tamis_core::filter::{DropReason, Filter, GroupStatistics, OutcomeScale, Verdict, judge_columns};
use tamis_core::objective::Real;
use tamis_core::objective::loss::{Loss, Token, TokenLoss, TrajectoryLoss, UNLIMITED};
use tamis_core::ragged::Ragged;
use tamis_core::{settings, tagged};

// [advantage]
settings! {
    /// The rank of a reward within its group, from -1 for the worst to 1 for the best; equal rewards share a
    /// rank.
    pub struct Rank {
        /// Power of the rank's size: above 1, the middle of a group counts less.
        power: f64 = 1.0, Positive;
    }
}

impl AdvantageEstimator for Rank {
    fn compute(
        &self,
        batch: &AdvantageBatch<'_>,
        state: &AdvantageState,
    ) -> Result<Estimate, AdvantageError> {
        let of_group = |rewards_g: &[f64]| -> Vec<f64> {
            // NaN is unscored: left out of the ranking, and without an advantage.
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

// [loss]
settings! {
    /// The clipped ratio with a floor: a ratio below it counts as the floor, and its token is not trained on.
    #[derive(Copy)]
    pub struct ClipFloor {
        /// How far the ratio may be from 1.
        clip: f64 = 0.2, Between(0.0, 1.0);
        /// Lower limit of the ratio.
        floor: f64 = 0.1, Between(0.0, 1.0);
    }
}

impl ClipFloor {
    /// `max(-A·r, -A·clamp(r, 1 - clip, 1 + clip))` with `r = max(ratio, floor)`, and the derivative of that
    /// with respect to the log-probability.
    fn of(&self, token: &Token) -> TokenLoss {
        let ratio = token.ratio.max(self.floor);
        let free = -token.advantage * ratio;
        let held = -token.advantage * ratio.clamp(1.0 - self.clip, 1.0 + self.clip);
        let is_clipped = held > free;
        // The derivative of the ratio is the ratio, or 0 if the clip or the floor applies.
        let is_held = is_clipped || token.ratio < self.floor;
        TokenLoss {
            loss: free.max(held),
            dloss: if is_held { 0.0 } else { free },
            is_clipped,
            ..TokenLoss::default()
        }
    }
}

impl Loss for ClipFloor {
    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        trajectory.through_ratio(UNLIMITED, |token| self.of(token));
    }
}
// [/loss]

// [entry]
/// The catalogue's entry.
pub(crate) const ENTRY: Entry = Entry {
    name: "clip_floor",
    family: Family::PolicyLoss,
    formula: "l = max(-A·r, -A·clamp(r, 1 - clip, 1 + clip)), r = max(ratio, floor)",
    source: "the example of docs/adding-an-algorithm.md",
    degenerate: &["a token whose ratio is below the floor has a loss, but no gradient"],
    differences: &["verl's `vanilla` and TRL's `grpo` have no floor"],
    ..Entry::REGISTERED
};
// [/entry]

// [filter]
settings! {
    /// Keeps a group whose best member reaches a score.
    pub struct Solved {
        /// The score.
        least: f64 = 1.0;
    }
}

impl Filter for Solved {
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
    /// How advantages are computed from rewards.
    pub enum Advantage: AdvantageEstimator, default Rank {
        /// The rank of the reward within its group.
        Rank(Rank) = "rank",
    }
}

tagged! {
    /// The loss of a token.
    pub enum PolicyLoss, default ClipFloor {
        /// The clipped ratio, with `floor` as its lower limit.
        ClipFloor(ClipFloor) = "clip_floor",
    }
}

tagged! {
    /// How a group is judged.
    pub enum GroupFilter: Filter, default Solved {
        /// Kept if the best member reaches `least`.
        Solved(Solved) = "solved",
    }
}
// [/registration]

/// Reads the algorithms from a configuration, and applies them.
///
/// # Errors
/// The results differ from those on the page.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    // As a configuration writes them:
    // `objective: {advantage: {kind: rank, power: 2}, loss: {kind: clip_floor, floor: 0.25}}`,
    // `filter: {kind: solved}`.
    let advantage: Advantage = serde_json::from_str(r#"{"kind": "rank", "power": 2.0}"#)?;
    let filter: GroupFilter = serde_json::from_str(r#"{"kind": "solved"}"#)?;

    let rewards = Ragged::from_rows([vec![0.0, 0.5, 1.0], vec![0.0, 0.0, f64::NAN]]);
    let (verdicts, _) = judge_columns(&*filter, None, rewards.values(), &[0, 3, 6])?;
    assert_eq!(verdicts, [Verdict::Kept, Verdict::Dropped(DropReason::BelowRange)]);

    let advantages = advantage.advantages(&AdvantageBatch::of_rewards(&rewards))?;
    assert_eq!(advantages.values(), [-1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);

    let PolicyLoss::ClipFloor(loss) = serde_json::from_str(r#"{"kind": "clip_floor", "floor": 0.25}"#)?;
    loss.check()?;
    assert_eq!((ENTRY.name, ENTRY.family), (PolicyLoss::ClipFloor(loss).as_str(), Family::PolicyLoss));
    let of = |ratio: f64, advantage| {
        let log_ratio = ratio.ln();
        let (logprob, old, behaviour) = (log_ratio - 1.0, -1.0, f64::NAN);
        let token = Token { logprob, old, behaviour, log_ratio, ratio, advantage, is_selected: false };
        let TokenLoss { loss, dloss, .. } = loss.of(&token);
        (loss, dloss)
    };
    // Free, above the clip, below the floor; and with a negative advantage only the clip applies.
    assert_eq!([of(0.5, 1.0), of(2.0, 1.0), of(0.125, 1.0)], [(-0.5, -0.5), (-1.2, 0.0), (-0.25, 0.0)]);
    assert_eq!([of(2.0, -1.0), of(0.125, -1.0)], [(2.0, 2.0), (0.8, 0.0)]);
    Ok(())
}
