//! Weights and moments that are no numbers any more, and finite weights whose logits are none.

use tamis_core::group::Group;

use super::Run;
use super::step::TrainedGroup;
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::micro_batch::{forward_all, sequences};
use crate::learner::{Changing, LearnerError, Network, NotFinite, RunLearner};
use tamis_run::directory::RunDirectory;

/// Keys of the learning rates that a diagnosis names.
pub(crate) const POLICY_RATE: &str = "train.optimizer.learning_rate";
const CRITIC_RATE: &str = "critic.optimizer.learning_rate";

/// Weights or moments that are no numbers any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Diverged {
    /// The weights or moments, for messages.
    what: &'static str,
    tensor: String,
    /// Key of the learning rate to lower.
    learning_rate: &'static str,
}

impl Diverged {
    /// The error of the run that it ends.
    pub(crate) fn error(self, directory: &RunDirectory, step: u64) -> RunError {
        let kept = match directory.list_checkpoints() {
            Ok(mut kept) => kept.pop().map(|last| last.path),
            Err(error) => return error.into(),
        };
        let Self { what, tensor, learning_rate } = self;
        RunError::Diverged { what, tensor, step, kept, learning_rate, run: directory.path().to_owned() }
    }
}

/// Finds the first weights or moments of policy and critic that are not finite; `learning_rate` is the key of
/// the policy's.
pub(crate) fn find_divergence(
    learner: &mut dyn RunLearner,
    learning_rate: &'static str,
) -> Result<Option<Diverged>, LearnerError> {
    let found = learner.find_not_finite()?;
    Ok(found.map(|NotFinite { what, tensor }| {
        let (what, learning_rate) = match what {
            Changing::Policy => ("the policy's weights", learning_rate),
            Changing::PolicyMoments => ("the moments of the policy's optimizer", learning_rate),
            Changing::Critic => ("the critic's weights", CRITIC_RATE),
            Changing::CriticMoments => ("the moments of the critic's optimizer", CRITIC_RATE),
        };
        Diverged { what, tensor, learning_rate }
    }))
}

/// Refuses weights and moments that are no numbers any more: nothing is generated with them, and nothing is
/// saved over those before.
pub(crate) fn check_finite(
    learner: &mut dyn RunLearner,
    directory: &RunDirectory,
    step: u64,
    learning_rate: &'static str,
) -> Result<(), RunError> {
    match find_divergence(learner, learning_rate)? {
        None => Ok(()),
        Some(diverged) => Err(diverged.error(directory, step)),
    }
}

/// One trajectory of a step, with its prompt.
pub(super) fn one_of(trained: &[TrainedGroup]) -> Option<Group> {
    let group = &trained.first()?.record.group;
    let trajectory = group.trajectories.iter().find(|trajectory| !trajectory.token_ids.is_empty())?;
    Some(Group { trajectories: vec![trajectory.clone()], ..group.clone() })
}

impl Run {
    /// Refuses to save weights that give no numbers on a trajectory of the last step. The update that made
    /// them is the last: nothing else has looked at them.
    pub(super) fn check_logits(&mut self) -> Result<(), Halt<RunError>> {
        let Some(group) = &self.last_trained else { return Ok(()) };
        let learner = &mut *self.workers.learner;
        let micro_batch = self.recipe.update.micro_batch;
        let columns = forward_all(learner, Network::Policy, &sequences(&[group]), micro_batch, 1.0)?;
        // It is no part of a step.
        learner.take_rank_balance();
        if columns.logprobs.iter().all(|logprob| logprob.is_finite()) {
            return Ok(());
        }
        Err(self.logits_error("on a trajectory of the last batch".to_owned()).into())
    }

    /// The error of a policy whose logits are not finite; `place` is what showed it.
    pub(super) fn logits_error(&self, place: String) -> RunError {
        match self.recorder.directory.list_checkpoints() {
            Ok(mut kept) => {
                let kept = kept.pop().map(|last| last.path);
                RunError::LogitsNotFinite { place, step: self.state.step, kept }
            }
            Err(error) => error.into(),
        }
    }

    /// Says that the last updates were none.
    pub(super) fn tell_skipped_updates(&self) {
        let learning = &self.state.learning;
        for (of, count) in
            [("", learning.skipped_updates), (" of the critic", learning.skipped_critic_updates)]
        {
            if count > 0 {
                self.recorder.progress.warn(&format!(
                    "the last {count} updates{of} were left out, for their gradients were not finite: what is saved is as \
                     it was before them"
                ));
            }
        }
    }
}
