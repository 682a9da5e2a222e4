//! The reference policy: its pass, and the divergence from it in the reward.

use std::time::{Duration, Instant};

use tamis_core::group::{Group, Trajectory};
use tamis_core::objective::{KlEstimator, KlState, kl};
use tamis_core::ragged::Ragged;
use tamis_rollout::{DispatchError, Record, Reference, ReferencePass};

use crate::assemble::objective::Divergence;
use crate::assemble::recipe::Recipe;
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::micro_batch::{MicroBatch, logprobs, sequences};
use crate::learner::old_logprobs::OldLogprobs;
use crate::learner::{Learner, LearnerSequence, Network, Pass};

/// The reference pass before the filter.
pub(crate) struct BeforeFilter<'a> {
    learner: &'a mut dyn Learner,
    network: Network,
    estimator: KlEstimator,
    coefficient: f64,
    micro_batch: MicroBatch,
    time: &'a mut Duration,
}

impl<'a> BeforeFilter<'a> {
    /// Only if the filter looks at rewards after KL: groups that are dropped otherwise cost no forward
    /// pass.
    pub(crate) fn of(
        recipe: &Recipe,
        reward_kl: Option<KlState>,
        learner: &'a mut dyn Learner,
        time: &'a mut Duration,
    ) -> Option<Self> {
        let Divergence::InReward { estimator, controller } = recipe.divergence else { return None };
        if recipe.sieve.filter.is_none() || !recipe.sieve.looks_at_final_reward() {
            return None;
        }
        let coefficient = reward_kl.unwrap_or_else(|| controller.initial()).coef;
        Some(Self {
            learner,
            network: recipe.reference(),
            estimator,
            coefficient,
            micro_batch: recipe.update.micro_batch,
            time,
        })
    }
}

impl Reference for BeforeFilter<'_> {
    fn pass(&mut self, groups: &[&Group]) -> Result<Option<ReferencePass>, DispatchError> {
        let clock = Instant::now();
        let failed = |error: RunError| DispatchError::Reference { source: Box::new(error) };
        let sequences = sequences(groups);
        let passed =
            logprobs(self.learner, self.network, &sequences, self.micro_batch).and_then(|reference| {
                Ok((reference, known_logprobs(self.learner, groups, &sequences, self.micro_batch)?))
            });
        let (logprobs, old) = match passed {
            Ok(passed) => passed,
            Err(Halt::Interrupted) => return Ok(None),
            Err(Halt::Failed(error)) => return Err(failed(RunError::from(error))),
        };
        let rewards = groups.iter().flat_map(|group| &group.trajectories).map(|trajectory| trajectory.reward);
        let penalty = penalty(self.estimator, self.coefficient, groups, &old, &logprobs);
        let penalty = penalty.map_err(failed)?;
        *self.time += clock.elapsed();
        Ok(Some(ReferencePass { final_rewards: penalty.off(rewards), logprobs }))
    }
}

/// Log-probabilities under the policy as the step begins: those of generation, or those of a pass if
/// the sampler of one of the groups returned none.
pub(crate) fn known_logprobs(
    learner: &mut dyn Learner,
    groups: &[&Group],
    sequences: &[LearnerSequence<'_>],
    micro_batch: MicroBatch,
) -> Pass<OldLogprobs> {
    if groups.iter().flat_map(|group| &group.trajectories).all(Trajectory::has_logprobs) {
        return Ok(OldLogprobs::AsSampled);
    }
    logprobs(learner, Network::Before, sequences, micro_batch).map(OldLogprobs::Recomputed)
}

/// Log-probabilities of all trajectories of the batch under the reference, one row each `[B][T]`: those
/// that the filter needed before, and those of a `pass` over the other groups, if there are any (all
/// groups if the filter needs none; groups that a checkpoint carried). The reference does not change,
/// and a row does not depend on its neighbours: either way the numbers are the same.
pub(crate) fn reference_column<E>(
    trained: &[Record],
    pass: impl FnOnce(&[&Group]) -> Result<Ragged<f32>, E>,
) -> Result<Ragged<f32>, E> {
    let missing: Vec<&Group> =
        trained.iter().filter(|record| record.reference.is_none()).map(|record| &record.group).collect();
    let passed = if missing.is_empty() { Ragged::default() } else { pass(&missing)? };
    let mut passed = passed.rows();
    let mut column = Ragged::default();
    for record in trained {
        match &record.reference {
            Some(reference) => reference.rows().for_each(|row| column.push_row(row.iter().copied())),
            None => passed
                .by_ref()
                .take(record.group.trajectories.len())
                .for_each(|row| column.push_row(row.iter().copied())),
        }
    }
    Ok(column)
}

/// The KL penalty of some groups.
pub(crate) struct Penalty {
    /// For each trajectory \[B\].
    pub(crate) of_trajectories: Vec<f64>,
    /// Penalty of each token \[N\].
    pub(crate) of_tokens: Vec<f64>,
    /// Mean divergence per token.
    pub(crate) mean_kl: f64,
}

impl Penalty {
    /// The rewards that are left `[B]`.
    pub(crate) fn off(&self, rewards: impl IntoIterator<Item = f64>) -> Vec<f64> {
        rewards.into_iter().zip(&self.of_trajectories).map(|(reward, penalty)| reward - penalty).collect()
    }
}

pub(crate) fn penalty(
    estimator: KlEstimator,
    coefficient: f64,
    groups: &[&Group],
    old: &OldLogprobs,
    reference: &Ragged<f32>,
) -> Result<Penalty, RunError> {
    let trajectories: Vec<_> = groups.iter().flat_map(|group| &group.trajectories).collect();
    let token_scores =
        Ragged::from_rows(trajectories.iter().map(|trajectory| vec![0.0; trajectory.token_ids.len()]));
    let mask: Vec<bool> =
        trajectories.iter().flat_map(|trajectory| trajectory.loss_mask.iter().copied()).collect();
    let old: Vec<f32> = old.rows(groups).flatten().copied().collect();
    let penalty = kl::in_reward(estimator, coefficient, &token_scores, &mask, &old, reference.values())?;
    Ok(Penalty {
        of_trajectories: penalty.penalties,
        of_tokens: penalty.token_rewards.iter().map(|reward| -reward).collect(),
        mean_kl: penalty.mean_kl,
    })
}

#[cfg(test)]
mod tests {
    use tamis_rollout::{Fate, Generation};

    use super::*;
    use crate::support::{group, prepared, prompt, trajectory};

    /// A group of two completions, of one token and of two, with or without the reference's numbers.
    fn record(id: u64, reference: Option<[f32; 3]>) -> Record {
        Record {
            group: group(id, vec![trajectory(vec![true], 0.0), trajectory(vec![true; 2], 0.0)]),
            prompt: prepared(prompt(id, "")),
            step: 1,
            round: 1,
            values: Vec::new(),
            final_rewards: None,
            logged: Vec::new(),
            reference: reference.map(|[a, b, c]| Ragged::from_rows([vec![a], vec![b, c]])),
            fate: Fate::Trained,
            kept_in: None,
            generation: Generation::default(),
            inclusion: 1.0,
        }
    }

    #[test]
    fn a_group_takes_one_reference_pass() {
        let mut passed = Vec::new();
        let mut column = |records: &[Record]| {
            reference_column(records, |groups| {
                let ids: Vec<u64> = groups.iter().map(|group| group.id.0).collect();
                let rows =
                    ids.iter().flat_map(|&id| [vec![id as f32], vec![id as f32 + 0.25, id as f32 + 0.5]]);
                let rows = Ragged::from_rows(rows.collect::<Vec<_>>());
                passed.push(ids);
                Ok::<_, ()>(rows)
            })
            .unwrap()
        };
        // The filter needed all of them: none is passed again.
        let all = [record(1, Some([-1.0, -2.0, -3.0])), record(2, Some([-4.0, -5.0, -6.0]))];
        assert_eq!(column(&all).values(), [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]);
        // Between two of them one that a checkpoint carried.
        let carried =
            [record(1, Some([-1.0, -2.0, -3.0])), record(5, None), record(2, Some([-4.0, -5.0, -6.0]))];
        assert_eq!(column(&carried).values(), [-1.0, -2.0, -3.0, 5.0, 5.25, 5.5, -4.0, -5.0, -6.0]);
        // The filter needed none.
        assert_eq!(column(&[record(3, None), record(4, None)]).num_rows(), 4);
        assert_eq!(column(&[]).num_rows(), 0);
        assert_eq!(passed, [vec![5], vec![3, 4]]);
    }
}
