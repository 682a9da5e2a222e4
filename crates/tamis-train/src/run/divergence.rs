//! Checks for weights and moments that are not finite, and for finite weights whose logits are not finite.

use tamis_core::fault;
use tamis_core::figure::{agreed, counted};
use tamis_core::group::Group;
use tamis_model::LOGITS_NOT_FINITE;
use tamis_rollout::Record;

use super::Run;
use crate::assemble::recipe::Recipe;
use crate::error::RunError;
use crate::interrupt::Halt;
use crate::learner::micro_batch::{forward_all, sequences};
use crate::learner::{Changing, LearnerError, Network, NotFinite, RunLearner, logits_hint};
use tamis_run::directory::RunDirectory;

/// Keys of the learning rates that a diagnosis names.
pub(crate) const POLICY_RATE: &str = "train.optimizer.learning_rate";
const CRITIC_RATE: &str = "critic.optimizer.learning_rate";

/// Weights or moments that are not finite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Diverged {
    /// The weights or moments, for messages.
    what: &'static str,
    tensor: String,
    learning_rate: &'static str,
}

impl Diverged {
    pub(crate) fn error(self, directory: &RunDirectory, step: u64) -> RunError {
        let kept = match directory.list_checkpoints() {
            Ok(mut kept) => kept.pop().map(|last| last.path),
            Err(error) => return error.into(),
        };
        let Self { what, tensor, learning_rate } = self;
        let hint = if let Some(kept) = kept {
            format!(
                "step not saved; {0} holds the state before it: begin a new run from its weights (`model.path: {0}`) with a lower \
                 {learning_rate}, and look for a reward or an advantage without bound",
                kept.display()
            )
        } else {
            // Before reinforcement learning there are no checkpoints.
            let keep = if step > 0 { "; checkpoint.save_freq above 0 keeps states from before" } else { "" };
            format!("nothing was saved: begin a new run with a lower {learning_rate}{keep}")
        };
        let fault = fault!(
            "{what} hold numbers that are not finite after step {step}, the first in tensor `{tensor}`: training has diverged"
        );
        RunError::Fault(fault.with_hint(hint))
    }
}

/// Finds the first weights or moments of policy and critic that are not finite. `learning_rate` is the key of
/// the policy's learning rate.
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

/// Refuses weights and moments that are not finite: nothing is generated with them, and no earlier state is
/// overwritten with them.
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

/// Whether the policy's logits are finite on a trajectory that it was just trained on. The update may be the
/// run's last, and nothing else would check the weights before they are saved. Call it before they are
/// published: servers on the learner's GPU sleep until then.
pub(super) fn gives_numbers(
    recipe: &Recipe,
    learner: &mut dyn RunLearner,
    trained: &[Record],
) -> Result<bool, Halt<RunError>> {
    let Some(Record { group, .. }) = trained.first() else { return Ok(true) };
    let with_tokens = group.trajectories.iter().find(|trajectory| !trajectory.token_ids.is_empty());
    let Some(trajectory) = with_tokens else { return Ok(true) };
    let group = Group { trajectories: vec![trajectory.clone()], ..group.clone() };
    let micro_batch = recipe.update.micro_batch;
    let columns = forward_all(learner, Network::Policy, &sequences(&[&group]), micro_batch, 1.0)?;
    Ok(columns.logprobs.iter().all(|logprob| logprob.is_finite()))
}

impl Run {
    /// Refuses to save weights whose logits were not finite after the last step.
    pub(super) fn check_logits(&self) -> Result<(), RunError> {
        if self.gives_numbers {
            return Ok(());
        }
        Err(self.logits_error("on a trajectory of the last batch", self.state.step))
    }

    /// The error for a policy whose logits are not finite after a step. `place` is what showed it.
    pub(super) fn logits_error(&self, place: &str, step: u64) -> RunError {
        match self.recorder.directory.list_checkpoints() {
            Ok(mut kept) => {
                let kept = kept.pop().map(|last| last.path);
                let hint = logits_hint(Some(step), kept.as_deref());
                RunError::Fault(fault!("{LOGITS_NOT_FINITE} ({place}, after step {step})").with_hint(hint))
            }
            Err(error) => error.into(),
        }
    }

    pub(super) fn tell_skipped_updates(&self) {
        let learning = &self.state.learning;
        for (of, count) in
            [("", learning.skipped_updates), (" of the critic", learning.skipped_critic_updates)]
        {
            if count > 0 {
                self.recorder.progress.warn(&format!(
                    "the last {}{of} {} left out because of gradients that were not finite: what is saved is the state before",
                    counted(count, "update"),
                    agreed(count, "was", "were")
                ));
            }
        }
    }
}
