//! The input of an estimator: rewards, and the further columns that some estimators need.

use std::borrow::Cow;

use super::error::missing;
use super::{Advantages, Column, Generated, Result};
use crate::fault;
use crate::ragged::Ragged;

/// One of several rewards.
#[derive(Debug, Clone, Copy)]
pub struct Component<'a> {
    /// Name of the score (`acc`, `format`).
    pub name: &'a str,
    /// Weight of the score in the sum.
    pub weight: f64,
    /// Reward of each trajectory `[P][G]`; NaN: no answer.
    pub rewards: &'a Ragged<f64>,
}

/// The columns that an estimator may use. Columns beyond the rewards are optional. An estimator that needs
/// one lists it ([`AdvantageEstimator::needs`](super::AdvantageEstimator::needs)) and refuses a batch without
/// it.
///
/// Trajectories are counted through the groups: trajectory i of `[B]` is the i-th value of `rewards`, B =
/// P·G. Every per-token column has one row per trajectory, of the same length T, masked tokens included. At
/// masked tokens, and anywhere in an unscored trajectory, values may be anything, including NaN. Rewards are
/// the exception: masked tokens may have them.
#[derive(Debug, Clone, Copy)]
pub struct AdvantageBatch<'a> {
    /// Reward of each trajectory, one row per group `[P][G]`; NaN: unscored.
    pub rewards: &'a Ragged<f64>,
    /// Tokens trained on of each trajectory \[B\]. Not needed if the mask is given.
    pub lengths: Option<&'a [usize]>,
    /// Mask of the tokens that the policy produced `[B][T]`; `false` for tool and environment output.
    pub mask: Option<&'a Ragged<bool>>,
    /// Rewards per token `[B][T]` (process rewards, KL penalties). `None`: the trajectory's reward is at its
    /// last unmasked token.
    pub token_rewards: Option<&'a Ragged<f64>>,
    /// Rewards per turn `[B][turns]`.
    pub turn_rewards: Option<&'a Ragged<f64>>,
    /// Turn of each token `[B][T]`, not decreasing within a trajectory. `None`: each run of unmasked tokens
    /// is a turn.
    pub turns: Option<&'a Ragged<u32>>,
    /// Values of a critic `[B][T]`.
    pub values: Option<&'a Ragged<f64>>,
    /// Entropy of the policy at the start of the step, in nats `[B][T]`.
    pub entropy: Option<&'a Ragged<f64>>,
    /// Log-probability under the policy at the start of the step `[B][T]`.
    pub old_logprobs: Option<&'a Ragged<f64>>,
    /// Log-probability of the same tokens under the same policy with the gold answer in the prompt `[B][T]`.
    pub gold_logprobs: Option<&'a Ragged<f64>>,
    /// Log-probability of the same tokens under the teacher, after the same text `[B][T]`.
    pub teacher_logprobs: Option<&'a Ragged<f64>>,
    /// Σ over the vocabulary of squared probabilities `[B][T]`.
    pub sum_pi_squared: Option<&'a Ragged<f64>>,
    /// Importance weights of the rollout correction `[B][T]`.
    pub rollout_weights: Option<&'a Ragged<f64>>,
    /// The rewards whose weighted sum is `rewards` \[K\].
    pub components: Option<&'a [Component<'a>]>,
    /// Reward of a greedy completion of each prompt \[P\]; NaN: unscored.
    pub greedy_rewards: Option<&'a [f64]>,
    /// Statistics of all groups of the step before filtering.
    pub generated: Option<Generated<'a>>,
    /// Advantages that were computed elsewhere, for the estimator `python`.
    pub given: Option<&'a Advantages>,
}

/// Marks the last unmasked token of every turn. If the turn of each token \[T\] is not known, each run of
/// unmasked tokens is a turn.
pub(super) fn turn_ends(mask_t: &[bool], turns_t: Option<&[u32]>, ends: &mut Vec<usize>) {
    ends.clear();
    let mut previous: Option<usize> = None;
    for t in (0..mask_t.len()).filter(|&t| mask_t[t]) {
        if let Some(before) = previous {
            let is_new = match turns_t {
                Some(turns_t) => turns_t[before] != turns_t[t],
                None => before + 1 < t,
            };
            if is_new {
                ends.push(before);
            }
        }
        previous = Some(t);
    }
    ends.extend(previous);
}

impl<'a> AdvantageBatch<'a> {
    /// A batch with only outcome rewards.
    pub fn of_rewards(rewards: &'a Ragged<f64>) -> Self {
        Self {
            rewards,
            lengths: None,
            mask: None,
            token_rewards: None,
            turn_rewards: None,
            turns: None,
            values: None,
            entropy: None,
            old_logprobs: None,
            gold_logprobs: None,
            teacher_logprobs: None,
            sum_pi_squared: None,
            rollout_weights: None,
            components: None,
            greedy_rewards: None,
            generated: None,
            given: None,
        }
    }

    /// B.
    pub fn num_trajectories(&self) -> usize {
        self.rewards.num_values()
    }

    /// Whether a column is available.
    pub fn has(&self, column: Column) -> bool {
        match column {
            Column::Lengths => self.lengths.is_some() || self.mask.is_some(),
            Column::Mask => self.mask.is_some(),
            Column::TurnRewards => self.turn_rewards.is_some(),
            Column::Turns => self.turns.is_some(),
            Column::Components => self.components.is_some(),
            Column::GreedyRewards => self.greedy_rewards.is_some(),
            Column::Generated => self.generated.is_some(),
            Column::Given => self.given.is_some(),
            _ => self.numbers(column).is_some(),
        }
    }

    /// A per-token column of numbers; `None` if it was not given or is no such column.
    fn numbers(&self, column: Column) -> Option<&'a Ragged<f64>> {
        match column {
            Column::TokenRewards => self.token_rewards,
            Column::Values => self.values,
            Column::Entropy => self.entropy,
            Column::OldLogprobs => self.old_logprobs,
            Column::GoldLogprobs => self.gold_logprobs,
            Column::TeacherLogprobs => self.teacher_logprobs,
            Column::SumPiSquared => self.sum_pi_squared,
            Column::RolloutWeights => self.rollout_weights,
            _ => None,
        }
    }

    /// A per-token column that an estimator needs.
    pub(crate) fn tokens(&self, column: Column, estimator: &'static str) -> Result<&'a Ragged<f64>> {
        self.numbers(column).ok_or_else(|| missing(column, estimator))
    }

    pub(crate) fn mask(&self, estimator: &'static str) -> Result<&'a Ragged<bool>> {
        self.mask.ok_or_else(|| missing(Column::Mask, estimator))
    }

    /// Tokens trained on of trajectory i, from the lengths or else the mask; 0 if neither is given.
    pub(crate) fn length(&self, i: usize) -> usize {
        match (self.lengths, self.mask) {
            (Some(lengths), _) => lengths[i],
            (None, Some(mask)) => mask.row(i).iter().filter(|&&on| on).count(),
            (None, None) => 0,
        }
    }

    /// Rewards of a component; NaN if the trajectory is unscored, which leaves it out of that component's
    /// statistics too.
    pub(crate) fn component(&self, component: &Component<'a>) -> Cow<'a, Ragged<f64>> {
        let (rewards, answers) = (self.rewards.values(), component.rewards.values());
        let is_outside = |(reward, answer): (&f64, &f64)| reward.is_nan() && !answer.is_nan();
        if !rewards.iter().zip(answers).any(is_outside) {
            return Cow::Borrowed(component.rewards);
        }
        let mut scored = component.rewards.clone();
        for group in 0..scored.num_rows() {
            for (answer, reward) in scored.row_mut(group).iter_mut().zip(self.rewards.row(group)) {
                if reward.is_nan() {
                    *answer = f64::NAN;
                }
            }
        }
        Cow::Owned(scored)
    }

    /// Number of turns of trajectory i that have an unmasked token; 0 if no mask is given.
    pub(crate) fn num_turns(&self, i: usize) -> usize {
        let mut ends = Vec::new();
        if let Some(mask) = self.mask {
            turn_ends(mask.row(i), self.turns.map(|turns| turns.row(i)), &mut ends);
        }
        ends.len()
    }

    /// Whether all lengths fit together, all needed columns are there, and everything that will be read is
    /// finite. Linear in what is checked.
    pub(crate) fn check(&self, estimator: &'static str, needs: &[Column], uses: &[Column]) -> Result<()> {
        if let Some(&column) = needs.iter().find(|&&column| !self.has(column)) {
            return Err(missing(column, estimator));
        }
        finite_rewards("reward", self.rewards)?;
        let rows = |column: Column, unit, expected: usize, actual: usize| {
            if expected == actual {
                Ok(())
            } else {
                Err(fault!(
                    "column `{}` has {actual} rows; expected {expected}, one per {unit}",
                    column.name()
                ))
            }
        };
        let (num_groups, num_trajectories) = (self.rewards.num_rows(), self.num_trajectories());
        if let Some(lengths) = self.lengths {
            rows(Column::Lengths, "trajectory", num_trajectories, lengths.len())?;
        }
        if let Some(mask) = self.mask {
            rows(Column::Mask, "trajectory", num_trajectories, mask.num_rows())?;
        }
        for &column in needs.iter().chain(uses) {
            match column {
                Column::Turns => {
                    if let Some(turns) = self.turns {
                        self.same_rows(column, turns.offsets())?;
                    }
                }
                Column::TurnRewards => {
                    if let Some(rewards) = self.turn_rewards {
                        rows(column, "trajectory", num_trajectories, rewards.num_rows())?;
                        self.finite(column, rewards, false)?;
                    }
                }
                Column::Components => {
                    for component in self.components.into_iter().flatten() {
                        rows(column, "group", num_groups, component.rewards.num_rows())?;
                        row_lengths(column, self.rewards.offsets(), component.rewards.offsets())?;
                        finite_rewards(&format!("reward `{}`", component.name), component.rewards)?;
                    }
                }
                Column::GreedyRewards => {
                    if let Some(rewards) = self.greedy_rewards {
                        rows(column, "group", num_groups, rewards.len())?;
                        if let Some(group) = rewards.iter().position(|reward| reward.is_infinite()) {
                            return Err(fault!("greedy reward of group {group} is {reward}; rewards must be finite, or NaN for unscored", reward = rewards[group]).into());
                        }
                    }
                }
                Column::Generated => {
                    if let Some(generated) = self.generated {
                        let expected = self.components.map_or(0, <[_]>::len);
                        rows(column, "component", expected, generated.components.len())?;
                    }
                }
                Column::Lengths | Column::Mask | Column::Given => {}
                _ => {
                    if let Some(numbers) = self.numbers(column) {
                        self.same_rows(column, numbers.offsets())?;
                        self.finite(column, numbers, column != Column::TokenRewards)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a per-token column has the same row lengths as the mask.
    fn same_rows(&self, column: Column, offsets: &[usize]) -> Result<()> {
        let (expected, actual) = (self.num_trajectories(), offsets.len() - 1);
        if expected != actual {
            return Err(fault!(
                "column `{}` has {actual} rows; expected {expected}, one per trajectory",
                column.name()
            )
            .into());
        }
        self.mask.map_or(Ok(()), |mask| row_lengths(column, mask.offsets(), offsets))
    }

    /// Whether everything that an estimator reads of a column is finite: the whole row of a scored
    /// trajectory, or its unmasked tokens.
    fn finite(&self, column: Column, numbers: &Ragged<f64>, only_unmasked: bool) -> Result<()> {
        for (trajectory, (reward, row)) in self.rewards.values().iter().zip(numbers.rows()).enumerate() {
            if reward.is_nan() {
                continue;
            }
            let is_read = |token: usize| match self.mask {
                Some(mask) if only_unmasked => mask.row(trajectory)[token],
                _ => true,
            };
            if let Some(token) = (0..row.len()).find(|&token| !row[token].is_finite() && is_read(token)) {
                return Err(fault!("column `{}` is {value} at token {token} of trajectory {trajectory}; expected a finite number", column.name(), value = row[token]).into());
            }
        }
        Ok(())
    }
}

fn row_lengths(column: Column, expected: &[usize], actual: &[usize]) -> Result<()> {
    if expected == actual {
        return Ok(());
    }
    let length = |pair: &[usize]| pair[1] - pair[0];
    for (row, (expected, actual)) in expected.windows(2).zip(actual.windows(2)).enumerate() {
        let (expected, actual) = (length(expected), length(actual));
        if expected != actual {
            return Err(fault!(
                "row {row} of column `{}` has {actual} values; expected {expected}",
                column.name()
            )
            .into());
        }
    }
    Ok(())
}

fn finite_rewards(name: &str, rewards: &Ragged<f64>) -> Result<()> {
    // One pass over the flat values; the group is looked up only if there is something to report. In chunks
    // without an early exit, so that it vectorises.
    let has_infinite = |chunk: &[f64]| chunk.iter().fold(false, |found, reward| found | reward.is_infinite());
    if !rewards.values().chunks(256).any(has_infinite) {
        return Ok(());
    }
    let Some(place) = rewards.values().iter().position(|reward| reward.is_infinite()) else {
        return Ok(());
    };
    let group = rewards.offsets().partition_point(|&offset| offset <= place) - 1;
    Err(fault!("{name} of trajectory {trajectory} in group {group} is {reward}; rewards must be finite, or NaN for unscored", trajectory = place - rewards.offsets()[group], reward = rewards.values()[place]).into())
}
