//! The critic: the weights that it begins with, and how it is trained.

use std::num::NonZeroUsize;

use tamis_config::{Config, ModelSource};
use tamis_core::random::{Key, Purpose};
use tamis_model::{AdamWConfig, Model, TransformerConfig};

use super::policy::Companion;
use super::{learning_rate, settings};
use crate::checkpoint::{Coverage, verify};
use crate::error::AssembleError;
use crate::learner::critic::CriticSettings;
use crate::learner::learning_rate::LearningRate;
use crate::learner::micro_batch::MicroBatch;

/// Settings for the training of a run's critic.
#[derive(Debug, Clone, Copy)]
pub struct CriticPlan {
    /// Settings of the critic's updates.
    pub settings: CriticSettings,
    /// The critic's learning rate over steps.
    pub learning_rate: LearningRate,
    /// Number of first steps in which only the critic learns.
    pub warmup_steps: u64,
}

/// The plan, if the advantages need a critic. Its mini-batches are cut like the policy's.
pub fn plan(config: &Config, micro_batch: MicroBatch) -> Option<CriticPlan> {
    let critic = &config.critic;
    config.has_critic().then(|| CriticPlan {
        settings: CriticSettings {
            mini_batch_size: NonZeroUsize::new(config.critic_mini_batch_size()).unwrap_or(NonZeroUsize::MIN),
            epochs: config.critic_epochs(),
            shuffle: config.train.shuffle_mini_batches.then(|| Key::new(config.run.seed, Purpose::Critic)),
            micro_batch,
            loss: config.value_loss(),
        },
        learning_rate: learning_rate(critic.optimizer.learning_rate, &critic.lr_schedule),
        warmup_steps: critic.warmup_steps as u64,
    })
}

/// The critic's shape, before anything is allocated for it; `None` without one. It is the policy's if no
/// checkpoint is named.
pub fn shape(
    config: &Config,
    policy: &TransformerConfig,
) -> Result<Option<TransformerConfig>, AssembleError> {
    if !config.has_critic() {
        return Ok(None);
    }
    let Some(path) = config.critic.model.path.as_ref().map(ModelSource::folder) else {
        return Ok(Some(policy.critic()));
    };
    let critic = Companion {
        key: "critic.model.path",
        name: "critic",
        without: "the critic then begins with the policy's layers",
    };
    Ok(Some(critic.shape(&path, config, policy)?.critic()))
}

/// Constants of the critic's optimizer and the largest norm of its gradient; `None` without a critic.
pub(super) fn optimizer(config: &Config) -> Option<(AdamWConfig, Option<f64>)> {
    let constants = config.critic.optimizer.constants;
    config.has_critic().then(|| (settings::optimizer(constants), constants.max_grad_norm))
}

/// The critic that `critic.model.path` names; `None` if it begins with the policy's layers.
pub(super) fn load_named(config: &Config) -> Result<Option<Model>, AssembleError> {
    match &config.critic.model.path {
        Some(path) if config.has_critic() => {
            let path = path.folder();
            verify(&path, Coverage::ForUse)?;
            Ok(Some(Model::load_critic(&path)?))
        }
        _ => Ok(None),
    }
}
