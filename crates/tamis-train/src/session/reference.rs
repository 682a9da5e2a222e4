//! The reference policy: its pass, and the divergence from it in the reward.

use tamis_core::group::Group;
use tamis_core::objective::{KlController, KlEstimator, KlState, kl};
use tamis_core::ragged::Ragged;
use tamis_rollout::{Backend, Generator, GeneratorError, GroupRequest, Outcome, Sampling, ShellError};

use super::advantages::StepRewards;
use super::{RunError, Session};
use crate::assemble::objective::Divergence;
use crate::learner::{Learner, LearnerError};
use crate::metrics::Metrics;
use crate::micro_batch::{MicroBatch, pass_over, sequences};
use crate::native::NativeEngine;

/// The engine during a collection: generates, and runs the reference pass where the filter wants rewards after KL.
pub(super) struct WithReference<'a> {
    pub(super) engine: &'a mut NativeEngine,
    pub(super) penalty: Option<(KlEstimator, f64, MicroBatch)>,
}

impl Generator for WithReference<'_> {
    fn submit(&mut self, request: GroupRequest, sampling: &Sampling) -> Result<(), GeneratorError> {
        self.engine.submit(request, sampling)
    }

    fn poll(&mut self) -> Result<Vec<Outcome>, GeneratorError> {
        self.engine.poll()
    }

    fn abort(&mut self, ticket: u64) {
        self.engine.abort(ticket);
    }

    fn version(&self) -> tamis_core::group::PolicyVersion {
        self.engine.version()
    }

    fn take_num_generated_tokens(&mut self) -> u64 {
        self.engine.take_num_generated_tokens()
    }
}

impl Backend for WithReference<'_> {
    fn final_rewards(&mut self, groups: &[Group]) -> Result<Option<Vec<f64>>, ShellError> {
        let Some((estimator, coefficient, micro_batch)) = self.penalty else { return Ok(None) };
        let groups: Vec<&Group> = groups.iter().collect();
        let failed = |error: RunError| ShellError::Reference { reason: error.to_string() };
        let reference =
            reference_logprobs(self.engine, &groups, micro_batch).map_err(|error| match error {
                LearnerError::Interrupted => ShellError::Generator(GeneratorError::Interrupted),
                error => failed(RunError::Learner(error)),
            })?;
        let (rewards, ..) = penalised(estimator, coefficient, &groups, &reference).map_err(failed)?;
        Ok(Some(rewards))
    }
}

/// Log-probabilities of all trajectories under the reference, one row each `[B][T]`.
pub(super) fn reference_logprobs(
    engine: &mut NativeEngine,
    groups: &[&Group],
    micro_batch: MicroBatch,
) -> Result<Ragged<f32>, LearnerError> {
    pass_over(&sequences(groups), micro_batch, |sequences| engine.reference_logprobs(sequences))
}

/// Rewards after the KL penalty \[B\], what each token was charged with \[N\], and the mean divergence.
fn penalised(
    estimator: KlEstimator,
    coefficient: f64,
    groups: &[&Group],
    reference: &Ragged<f32>,
) -> Result<(Vec<f64>, Vec<f64>, f64), RunError> {
    let trajectories: Vec<_> = groups.iter().flat_map(|group| &group.trajectories).collect();
    let token_scores =
        Ragged::from_rows(trajectories.iter().map(|trajectory| vec![0.0; trajectory.token_ids.len()]));
    let mask: Vec<bool> =
        trajectories.iter().flat_map(|trajectory| trajectory.loss_mask.iter().copied()).collect();
    let old: Vec<f32> =
        trajectories.iter().flat_map(|trajectory| trajectory.logprobs.iter().copied()).collect();
    let penalty = kl::in_reward(estimator, coefficient, &token_scores, &mask, &old, reference.values())?;
    let rewards = trajectories
        .iter()
        .zip(&penalty.penalties)
        .map(|(trajectory, penalty)| trajectory.reward - penalty)
        .collect();
    let token_penalties = penalty.token_rewards.iter().map(|reward| -reward).collect();
    Ok((rewards, token_penalties, penalty.mean_kl))
}

impl Session {
    /// Rewards `[P][G]` that advantages are made of, and those after KL where it is in the reward \[B\].
    pub(super) fn final_rewards(
        &mut self,
        groups: &[&Group],
        reference: Option<&Ragged<f32>>,
        metrics: &mut Metrics,
    ) -> Result<(StepRewards, Option<Vec<f64>>), RunError> {
        let sizes: Vec<usize> = groups.iter().map(|group| group.trajectories.len()).collect();
        let plain: Vec<f64> =
            groups.iter().flat_map(|group| &group.trajectories).map(|trajectory| trajectory.reward).collect();
        let (values, finals, token_penalties) = match (self.divergence, reference) {
            (Divergence::InReward { estimator, controller }, Some(reference)) => {
                let state = self.reward_kl.unwrap_or_else(|| controller.initial());
                let (rewards, token_penalties, mean_kl) =
                    penalised(estimator, state.coef, groups, reference)?;
                metrics.set("actor/reward_kl_penalty", mean_kl);
                metrics.set("actor/reward_kl_penalty_coeff", state.coef);
                self.reward_kl = Some(moved(controller, state, mean_kl, plain.len()));
                (rewards.clone(), Some(rewards), Some(token_penalties))
            }
            _ => (plain, None, None),
        };
        let rows = Ragged::from_lengths(values, &sizes)
            .map_err(|error| RunError::Learner(LearnerError::Engine { reason: error.to_string() }))?;
        Ok((StepRewards { rewards: rows, token_penalties }, finals))
    }
}

fn moved(controller: KlController, state: KlState, mean_kl: f64, num_trajectories: usize) -> KlState {
    controller.updated(state, mean_kl, num_trajectories as f64)
}
