//! Initial state of a run's critic, and a run that ends before its policy was trained.

use tamis_config::Config;
use tamis_core::figure::counted;

use super::Run;
use crate::error::AssembleError;
use crate::learner::{CopyTo, LearnerError};

/// Refuses a warm-up that lasts as long as the epochs do. The number of steps in an epoch is known only once
/// the prompts are. Every step uses up at least a batch of them, or what is left of an epoch.
pub(super) fn check_warm_up(config: &Config, num_prompts: usize) -> Result<(), AssembleError> {
    let (warmup, batch) = (config.critic.warmup_steps, config.data.train_batch_size);
    let Some(epochs) = config.train.total_epochs.filter(|_| config.has_critic()) else { return Ok(()) };
    let most = num_prompts.div_ceil(batch.max(1)).saturating_mul(epochs);
    if warmup == 0 || warmup < most {
        return Ok(());
    }
    Err(AssembleError::setting(
        format!(
            "`critic.warmup_steps` ({warmup}) is not below the number of steps, at most {most} with \
             `train.total_epochs` ({epochs}) of {num_prompts} prompts: \
             the policy would never be trained"
        ),
        format!("use fewer than {most} steps, or train for longer (`train.total_epochs`)"),
    ))
}

impl Run {
    /// A critic with the policy's layers, if one is needed and neither a checkpoint nor the configuration has
    /// one.
    pub(super) fn keep_critic(&mut self) -> Result<(), LearnerError> {
        if self.recipe.critic.is_none() {
            return Ok(());
        }
        if self.workers.learner.info().critic.is_none() {
            self.workers.learner.copy_policy(CopyTo::Critic)?;
        }
        if let Some(critic) = self.workers.learner.info().critic {
            let from = match &self.recipe.config.critic.model.path {
                Some(path) => path.to_string(),
                None => "the policy's layers".to_owned(),
            };
            let age = match self.state.critic.map_or(0, |critic| critic.version) {
                0 => format!("starts from {from}"),
                version => format!("trained in {}", counted(version, "step")),
            };
            self.recorder.progress.say(&format!("critic: {} parameters, {age}", critic.num_parameters));
        }
        Ok(())
    }

    /// Reports that a run ends in the critic's warm-up: its policy is the one it began with.
    pub(super) fn tell_untrained_policy(&self, steps: u64) {
        if let Some(plan) = self.recipe.critic.filter(|_| steps > 0 && !self.recipe.trains_policy(steps)) {
            self.recorder.progress.warn(&format!(
                "the policy was never trained: {} the critic's warm-up (critic.warmup_steps is {}); set fewer, or train for longer",
                if steps == 1 { "the only step of the run is".to_owned() } else { format!("all {steps} steps of the run are") },
                plan.warmup_steps
            ));
        }
    }
}
