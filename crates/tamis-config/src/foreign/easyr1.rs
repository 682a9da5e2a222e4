//! EasyR1's keys, those of its fork with dynamic sampling among them, with their defaults.

use super::Becomes::{Key, NoEffect, Rule as By, Unless};
use super::{ForeignKey, Rule};

const DEVICES: &str = "the native engine runs on the CPU of one machine";
const ENGINE: &str = "the native engine generates, and needs no tuning of memory or parallelism";

const fn key(key: &'static str, default: &'static str, becomes: super::Becomes) -> ForeignKey {
    ForeignKey { key, default, becomes }
}

pub(super) const KEYS: &[ForeignKey] = &[
    // data
    key("data.train_files", "", Key("data.train")),
    key("data.val_files", "", Key("data.val")),
    key("data.prompt_key", "prompt", Key("data.columns.prompt")),
    key("data.answer_key", "answer", Key("data.columns.ground_truth")),
    key("data.image_key", "", NoEffect("there are no images in text tasks")),
    key("data.video_key", "", NoEffect("there are no videos in text tasks")),
    key("data.image_dir", "", NoEffect("there are no images in text tasks")),
    key("data.rollout_batch_size", "512", Key("data.train_batch_size")),
    key("data.mini_rollout_batch_size", "", Key("data.gen_batch_size")),
    key("data.val_batch_size", "", NoEffect("validation prompts are generated as there is room")),
    key("data.max_prompt_length", "512", Key("data.max_prompt_length")),
    key("data.max_response_length", "512", Key("rollout.max_response_length")),
    key(
        "data.format_prompt",
        "null",
        Unless(&["null", "None", ""], "apply the template to the prompts of the file"),
    ),
    key(
        "data.override_chat_template",
        "null",
        Unless(&["null", "None", ""], "write it to a file and set `model.chat_template`"),
    ),
    key("data.filter_overlong_prompts", "True", By(Rule::LongPrompts, "data.overlong_prompts")),
    key("data.filter_overlong_prompts_workers", "", NoEffect("prompts are measured as they are read")),
    key("data.shuffle", "True", Key("data.shuffle")),
    key("data.seed", "", NoEffect("`run.seed` keys every draw, the order of the data too")),
    key("data.min_pixels", "", NoEffect("there are no images in text tasks")),
    key("data.max_pixels", "", NoEffect("there are no images in text tasks")),
    // algorithm
    key("algorithm.adv_estimator", "grpo", By(Rule::Advantage, "objective.advantage.estimator preset")),
    key("algorithm.gamma", "1.0", NoEffect("the reward is one number per trajectory, at its end")),
    key("algorithm.lam", "1.0", NoEffect("group-relative advantages have no critic")),
    key(
        "algorithm.use_dynamic_sample",
        "false",
        By(
            Rule::DynamicSample,
            "filter.kind filter.metric schedule.refill schedule.on_limit schedule.on_exhausted schedule.surplus",
        ),
    ),
    key(
        "algorithm.dynamic_sample_max_gen_batches",
        "3",
        By(Rule::DynamicSample, "schedule.max_num_gen_batches"),
    ),
    key(
        "algorithm.online_filtering",
        "false",
        By(Rule::OnlineFiltering, "filter.kind filter.bounds schedule.on_limit schedule.on_empty_round"),
    ),
    key("algorithm.filter_key", "overall", By(Rule::OnlineFiltering, "filter.metric")),
    key("algorithm.filter_low", "0.01", By(Rule::OnlineFiltering, "filter.low")),
    key("algorithm.filter_high", "0.99", By(Rule::OnlineFiltering, "filter.high")),
    key("trainer.max_try_make_batch", "20", By(Rule::OnlineFiltering, "schedule.max_num_gen_batches")),
    key("algorithm.disable_kl", "false", By(Rule::EasyKl, "objective.kl.in")),
    key("algorithm.use_kl_loss", "false", By(Rule::EasyKl, "objective.kl.in")),
    key("algorithm.kl_penalty", "kl", By(Rule::EasyKl, "objective.kl.estimator")),
    key("algorithm.kl_coef", "1e-3", By(Rule::EasyKl, "objective.kl.coefficient")),
    key("algorithm.kl_type", "fixed", By(Rule::EasyKl, "objective.kl.adaptive")),
    key("algorithm.kl_horizon", "10000", By(Rule::EasyKl, "objective.kl.adaptive")),
    key("algorithm.kl_target", "0.1", By(Rule::EasyKl, "objective.kl.adaptive")),
    key(
        "algorithm.keep_neg_ratio",
        "1.0",
        Unless(
            &["1", "1.0"],
            "dropping single trajectories of a group is not there: groups are kept or dropped whole",
        ),
    ),
    key(
        "algorithm.keep_pos_ratio",
        "1.0",
        Unless(
            &["1", "1.0"],
            "dropping single trajectories of a group is not there: groups are kept or dropped whole",
        ),
    ),
    key(
        "algorithm.compute_new_adv",
        "false",
        Unless(
            &["false", "False"],
            "dropping single trajectories of a group is not there: groups are kept or dropped whole",
        ),
    ),
    // worker
    key("worker.actor.global_batch_size", "256", Key("train.ppo_mini_batch_size")),
    key("worker.actor.micro_batch_size_per_device_for_update", "", Key("train.micro_batch_size")),
    key(
        "worker.actor.micro_batch_size_per_device_for_experience",
        "",
        NoEffect("the log-probabilities of generation are kept: there is no second pass"),
    ),
    key("worker.actor.max_grad_norm", "1.0", Key("train.optimizer.max_grad_norm")),
    key("worker.actor.clip_ratio_low", "0.2", Key("objective.loss.clip_low")),
    key("worker.actor.clip_ratio_high", "0.3", Key("objective.loss.clip_high")),
    key("worker.actor.clip_ratio_dual", "3.0", Key("objective.loss.dual_clip")),
    key("worker.actor.loss_type", "default", Unless(&["default"], "only the clipped surrogate is there yet")),
    key("worker.actor.loss_avg_mode", "token", By(Rule::LossAverage, "objective.aggregation")),
    key("worker.actor.ppo_epochs", "1", Key("train.ppo_epochs")),
    key("worker.actor.model.model_path", "", Key("model.path")),
    key("worker.actor.model.enable_gradient_checkpointing", "true", Key("model.recompute_activations")),
    key("worker.actor.model.*", "", NoEffect("the model is read as it is")),
    key("worker.actor.optim.lr", "1e-6", Key("train.optimizer.learning_rate")),
    key("worker.actor.optim.betas", "[0.9, 0.999]", Key("train.optimizer.betas")),
    key("worker.actor.optim.weight_decay", "0.01", Key("train.optimizer.weight_decay")),
    key("worker.actor.optim.lr_warmup_ratio", "0.0", By(Rule::LrSchedule, "train.lr_schedule.warmup_steps")),
    key("worker.actor.optim.lr_warmup_steps", "", By(Rule::LrSchedule, "train.lr_schedule.warmup_steps")),
    key("worker.actor.optim.min_lr_ratio", "", By(Rule::LrSchedule, "train.lr_schedule.min_ratio")),
    key("worker.actor.optim.lr_scheduler_type", "constant", By(Rule::LrSchedule, "train.lr_schedule.kind")),
    key("worker.actor.optim.*", "", NoEffect("the optimizer is AdamW")),
    key("worker.actor.fsdp.*", "", NoEffect(DEVICES)),
    key("worker.actor.offload.*", "", NoEffect(DEVICES)),
    key("worker.actor.*", "", NoEffect("sequences are ragged here, on one device")),
    key("worker.rollout.n", "1", Key("rollout.n")),
    key("worker.rollout.temperature", "1.0", Key("rollout.temperature")),
    key("worker.rollout.top_p", "1.0", Key("rollout.top_p")),
    key("worker.rollout.top_k", "-1", By(Rule::TopK, "rollout.top_k")),
    key("worker.rollout.val_override_config.n", "1", Key("validate.n")),
    key("worker.rollout.val_override_config.temperature", "", Key("validate.temperature")),
    key("worker.rollout.val_override_config.top_p", "", Key("validate.top_p")),
    key("worker.rollout.*", "", NoEffect(ENGINE)),
    key("worker.ref.*", "", NoEffect("the reference is run with the trainer's own micro-batches")),
    key("worker.critic.*", "", NoEffect("group-relative advantages have no critic")),
    key(
        "worker.reward.reward_function",
        "null",
        Unless(
            &["null", "None", ""],
            "EasyR1's signature is not known here: wrap it as verl's `compute_score` and name it under `reward` with `kind: python`",
        ),
    ),
    key("worker.reward.*", "", NoEffect("the reward functions are under `reward`")),
    key("worker.hybrid_engine", "true", NoEffect("generation and training share the weights")),
    // trainer
    key("trainer.total_epochs", "15", Key("train.total_epochs")),
    key("trainer.max_steps", "", Key("train.total_steps")),
    key("trainer.save_freq", "-1", Key("checkpoint.save_freq")),
    key("trainer.save_limit", "", Key("checkpoint.keep_last")),
    key(
        "trainer.save_model_only",
        "false",
        NoEffect("checkpoints hold weights, optimizer and scheduler, always"),
    ),
    key(
        "trainer.save_checkpoint_path",
        "",
        NoEffect("checkpoints are in the run folder, `run.dir/run.name`"),
    ),
    key("trainer.load_checkpoint_path", "", NoEffect("a run is resumed with `tamis train --resume RUN_DIR`")),
    key("trainer.find_last_checkpoint", "", NoEffect("a run is resumed with `tamis train --resume RUN_DIR`")),
    key("trainer.val_freq", "-1", Key("validate.test_freq")),
    key("trainer.val_before_train", "true", Key("validate.before_train")),
    key("trainer.val_only", "false", Unless(&["false", "False"], "use `tamis eval`")),
    key("trainer.val_generations_to_log", "0", Key("validate.num_samples_shown")),
    key("trainer.logger", "[console, wandb]", By(Rule::Loggers, "run.loggers")),
    key("trainer.project_name", "easy_r1", By(Rule::Names, "run.dir")),
    key("trainer.experiment_name", "demo", By(Rule::Names, "run.name")),
    key("trainer.n_gpus_per_node", "8", NoEffect(DEVICES)),
    key("trainer.nnodes", "1", NoEffect(DEVICES)),
    key("trainer.critic_warmup", "0", NoEffect("group-relative advantages have no critic")),
    key("trainer.ray_timeline", "", NoEffect(DEVICES)),
];
