//! From the configuration to the settings of engine, sampling, validation and update.

use std::num::NonZeroUsize;

use tamis_config::{Config, OptimizerConstants};
use tamis_core::random::{Key, Purpose};
use tamis_env::reward::TrainerState;
use tamis_model::AdamWConfig;
use tamis_rollout::{DispatcherSettings, SamplePurpose, Sampling};

use super::{critic, objective};
use crate::error::AssembleError;
use crate::learner::LearnerInfo;
use crate::learner::micro_batch::MicroBatch;
use crate::learner::update::UpdateSettings;
use crate::measure::validation::ValidationSettings;
use crate::native::EngineSettings;

pub(super) fn optimizer(constants: OptimizerConstants) -> AdamWConfig {
    let OptimizerConstants { betas: [beta1, beta2], epsilon, weight_decay, decay_norms_and_biases, .. } =
        constants;
    AdamWConfig { beta1, beta2, eps: epsilon, weight_decay, decay_norms_and_biases }
}

pub(crate) fn threads(config: &Config) -> usize {
    config.run.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get))
}

pub(super) fn engine_settings(config: &Config) -> EngineSettings {
    EngineSettings {
        threads: threads(config),
        temperature: config.rollout.temperature,
        max_grad_norm: config.train.optimizer.constants.max_grad_norm,
        recompute_activations: config.model.recompute_activations,
        max_num_seqs: config.rollout.max_num_seqs,
        max_open_samples: None,
        optimizer: optimizer(config.train.optimizer.constants),
        critic: critic::optimizer(config),
    }
}

pub(crate) fn sampling(config: &Config) -> Sampling {
    let rollout = &config.rollout;
    Sampling {
        temperature: rollout.temperature,
        top_k: (rollout.top_k > 0).then_some(rollout.top_k as u32),
        top_p: rollout.top_p,
        min_p: rollout.min_p,
        repetition_penalty: rollout.repetition_penalty,
        max_response_length: rollout.max_response_length,
        stop: rollout.stop.clone(),
        regex: rollout.regex.clone(),
    }
}

/// Sampling of the validation: the rollout's limits with its own temperature and truncation.
pub(crate) fn validation_settings(config: &Config) -> ValidationSettings {
    ValidationSettings {
        purpose: SamplePurpose::Validation,
        groups: DispatcherSettings {
            group_size: config.validate.n,
            sampling: Sampling {
                temperature: config.validate.temperature,
                top_p: config.validate.top_p,
                top_k: None,
                min_p: 0.0,
                ..sampling(config)
            },
            // Validation samples are not trained on.
            recomputes_logprobs: true,
            ..dispatcher_settings(config)
        },
        num_samples_shown: config.validate.num_samples_shown,
        keeps_samples: config.validate.save_samples,
    }
}

/// Steps that a run on so many prompts will have; see [`super::recipe::Recipe::planned_steps`].
pub(crate) fn planned_steps(config: &Config, num_prompts: usize) -> u64 {
    let train = &config.train;
    let of_epochs = |epochs: usize| (epochs * num_prompts).div_ceil(config.gen_batch_size().max(1));
    train.total_steps.or_else(|| train.total_epochs.map(of_epochs)).unwrap_or(0) as u64
}

/// Progress of the training, as reward functions see it (TRL's `trainer_state`).
pub(crate) fn trainer_state(
    config: &Config,
    num_prompts: usize,
    steps: u64,
    num_tokens: u64,
) -> TrainerState {
    let max_steps = planned_steps(config, num_prompts);
    let of_steps =
        || max_steps.saturating_mul(config.gen_batch_size() as u64).div_ceil(num_prompts.max(1) as u64);
    TrainerState {
        global_step: steps,
        max_steps,
        num_train_epochs: config.train.total_epochs.map_or_else(of_steps, |epochs| epochs as u64),
        num_input_tokens_seen: num_tokens,
        train_batch_size: (config.data.train_batch_size * config.rollout.n) as u64,
    }
}

pub(crate) fn dispatcher_settings(config: &Config) -> DispatcherSettings {
    DispatcherSettings {
        seed: config.run.seed,
        group_size: config.rollout.n,
        sampling: sampling(config),
        is_metric_unproven: false,
        recomputes_logprobs: false,
        hands_out_parts: false,
    }
}

pub(crate) fn update_settings(
    config: &Config,
    learner: &LearnerInfo,
) -> Result<UpdateSettings, AssembleError> {
    let train = &config.train;
    let mini = config.mini_batch_size();
    let tokens = config.micro_batch_tokens(learner.micro_batch_tokens);
    Ok(UpdateSettings {
        mini_batch_size: NonZeroUsize::new(mini).unwrap_or(NonZeroUsize::MIN),
        epochs: train.ppo_epochs,
        shuffle: train.shuffle_mini_batches.then(|| Key::new(config.run.seed, Purpose::MiniBatch)),
        micro_batch: match (train.micro_batch_size, train.balance_micro_batches) {
            (Some(size), _) => MicroBatch::Sequences(size),
            (None, Some(true)) => MicroBatch::Balanced(tokens),
            (None, Some(false)) => MicroBatch::Tokens(tokens),
            (None, None) => MicroBatch::ByRanks(tokens),
        },
        mask_truncated: config.objective.masks.truncated,
        correction: objective::correction(config)?,
        key: Key::new(config.run.seed, Purpose::Objective),
    })
}
