//! Weights and moments that are no numbers any more.

use crate::error::RunError;
use crate::learner::{Changing, LearnerError, NotFinite, RunLearner};
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
