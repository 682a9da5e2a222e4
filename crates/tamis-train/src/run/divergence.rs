//! Weights and moments that are no numbers any more.

use crate::error::RunError;
use crate::native::NativeEngine;
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
pub(crate) fn find_divergence(policy: &NativeEngine, learning_rate: &'static str) -> Option<Diverged> {
    let critic = policy.critic();
    let places = [
        ("the policy's weights", policy.model().non_finite(), learning_rate),
        ("the moments of the policy's optimizer", policy.optimizer().non_finite(), learning_rate),
        ("the critic's weights", critic.and_then(|critic| critic.model().non_finite()), CRITIC_RATE),
        (
            "the moments of the critic's optimizer",
            critic.and_then(|critic| critic.optimizer().non_finite()),
            CRITIC_RATE,
        ),
    ];
    places.into_iter().find_map(|(what, tensor, learning_rate)| {
        Some(Diverged { what, tensor: tensor?.to_owned(), learning_rate })
    })
}

/// Refuses weights and moments that are no numbers any more: nothing is generated with them, and nothing is
/// saved over those before.
pub(crate) fn check_finite(
    policy: &NativeEngine,
    directory: &RunDirectory,
    step: u64,
    learning_rate: &'static str,
) -> Result<(), RunError> {
    find_divergence(policy, learning_rate).map_or(Ok(()), |diverged| Err(diverged.error(directory, step)))
}
