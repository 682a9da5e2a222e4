//! The fields of TRL's `GRPOConfig` and of the `TrainingArguments` under it, with their defaults there.

use super::Becomes::{Key, NoEffect, Rule as By, Unless};
use super::{ForeignKey, Rule};

const DEVICES: &str = "the native engine runs on the CPU of one machine";
const F32: &str = "computation is in f32";
const EXACT: &str = "generation and training agree bit for bit here, there is nothing to correct";
const ENGINE: &str = "the native engine generates";

const fn key(key: &'static str, default: &'static str, becomes: super::Becomes) -> ForeignKey {
    ForeignKey { key, default, becomes }
}

pub(super) const KEYS: &[ForeignKey] = &[
    // what is trained on what
    key("model_name_or_path", "", Key("model.path")),
    key("dataset_name", "", Key("data.train")),
    key("output_dir", "", By(Rule::Names, "run.dir run.name")),
    key("run_name", "", By(Rule::Names, "run.name")),
    key("seed", "42", Key("run.seed")),
    key("data_seed", "", NoEffect("`run.seed` keys every draw, the order of the data too")),
    key("shuffle_dataset", "True", Key("data.shuffle")),
    key("max_prompt_length", "", Key("data.max_prompt_length")),
    key("chat_template_kwargs", "", Key("data.chat_template_kwargs")),
    // sampling
    key("num_generations", "8", Key("rollout.n")),
    key("num_generations_eval", "", Key("validate.n")),
    key("max_completion_length", "512", Key("rollout.max_response_length")),
    key("temperature", "1.0", Key("rollout.temperature")),
    key("top_p", "1.0", Key("rollout.top_p")),
    key("top_k", "0", By(Rule::TopK, "rollout.top_k")),
    key("min_p", "", By(Rule::TopK, "rollout.min_p")),
    key("repetition_penalty", "1.0", Key("rollout.repetition_penalty")),
    key("use_vllm", "False", NoEffect(ENGINE)),
    key("vllm_importance_sampling_correction", "True", NoEffect(EXACT)),
    key("vllm_importance_sampling_mode", "", NoEffect(EXACT)),
    key("vllm_importance_sampling_cap", "", NoEffect(EXACT)),
    key("vllm_importance_sampling_clip_max", "", NoEffect(EXACT)),
    key("vllm_importance_sampling_clip_min", "", NoEffect(EXACT)),
    key("vllm_mode", "", NoEffect(ENGINE)),
    key("vllm_server_host", "", NoEffect(ENGINE)),
    key("vllm_server_port", "", NoEffect(ENGINE)),
    key("vllm_gpu_memory_utilization", "", NoEffect(ENGINE)),
    key("vllm_tensor_parallel_size", "", NoEffect(ENGINE)),
    key("vllm_max_model_length", "", NoEffect(ENGINE)),
    key("vllm_enable_sleep_mode", "", NoEffect(ENGINE)),
    key("generation_kwargs", "null", Unless(&["null", "None", "{}"], "set the keys of `rollout`")),
    key("cache_implementation", "", NoEffect(ENGINE)),
    key("max_tool_calling_iterations", "", NoEffect("there are no tools")),
    // batches
    key(
        "per_device_train_batch_size",
        "8",
        By(Rule::TrlBatch, "data.train_batch_size train.ppo_mini_batch_size train.micro_batch_size"),
    ),
    key(
        "gradient_accumulation_steps",
        "1",
        By(Rule::TrlBatch, "data.train_batch_size train.ppo_mini_batch_size"),
    ),
    key("steps_per_generation", "", By(Rule::TrlBatch, "data.train_batch_size")),
    key("generation_batch_size", "", By(Rule::TrlBatch, "data.train_batch_size")),
    key("per_device_eval_batch_size", "", NoEffect("validation prompts are generated as there is room")),
    key("num_iterations", "1", Key("train.ppo_epochs")),
    // objective
    key("beta", "0.0", By(Rule::TrlKl, "objective.kl.in objective.kl.coefficient objective.kl.estimator")),
    key(
        "epsilon",
        "0.2",
        By(Rule::TrlClip, "objective.loss.clip_low objective.loss.clip_high objective.loss.dual_clip"),
    ),
    key("epsilon_high", "", By(Rule::TrlClip, "objective.loss.clip_high")),
    key("delta", "", Key("objective.loss.delta")),
    key("loss_type", "dapo", By(Rule::TrlLoss, "objective.aggregation")),
    key(
        "scale_rewards",
        "group",
        By(
            Rule::TrlScale,
            "objective.advantage.scale objective.advantage.norm_by_std objective.advantage.epsilon",
        ),
    ),
    key("mask_truncated_completions", "False", Key("objective.masks.truncated")),
    key("entropy_coef", "0.0", Key("objective.entropy.coefficient")),
    key(
        "use_adaptive_entropy",
        "False",
        Unless(&["False", "false"], "an adaptive entropy bonus is not there yet"),
    ),
    key("importance_sampling_level", "token", Unless(&["token"], "sequence-level ratios are not there yet")),
    key(
        "multi_objective_aggregation",
        "sum_then_normalize",
        Unless(&["sum_then_normalize"], "rewards are summed first"),
    ),
    key("top_entropy_quantile", "1.0", Unless(&["1", "1.0"], "masking by entropy is not there yet")),
    key(
        "off_policy_mask_threshold",
        "null",
        Unless(&["null", "None"], "masking by divergence is not there yet"),
    ),
    key("use_bias_correction_kl", "False", Unless(&["False", "false"], "the corrected KL is not there yet")),
    key("sync_ref_model", "False", Unless(&["False", "false"], "a moving reference is not there yet")),
    key("ref_model_mixup_alpha", "", NoEffect("a moving reference is not there yet")),
    key("ref_model_sync_steps", "", NoEffect("a moving reference is not there yet")),
    key("reward_funcs", "", By(Rule::TrlRewards, "reward")),
    key("reward_weights", "", By(Rule::TrlRewards, "reward")),
    // optimizer
    key("learning_rate", "1e-6", Key("train.optimizer.learning_rate")),
    key("weight_decay", "0.0", Key("train.optimizer.weight_decay")),
    key("adam_beta1", "0.9", By(Rule::LrSchedule, "train.optimizer.betas")),
    key("adam_beta2", "0.999", By(Rule::LrSchedule, "train.optimizer.betas")),
    key("adam_epsilon", "1e-8", Key("train.optimizer.epsilon")),
    key("max_grad_norm", "1.0", Key("train.optimizer.max_grad_norm")),
    key("optim", "adamw_torch_fused", NoEffect("the optimizer is AdamW")),
    key("lr_scheduler_type", "linear", By(Rule::LrSchedule, "train.lr_schedule.kind")),
    key("warmup_steps", "0", By(Rule::LrSchedule, "train.lr_schedule.warmup_steps")),
    key("warmup_ratio", "0.0", By(Rule::LrSchedule, "train.lr_schedule.warmup_steps")),
    key("num_train_epochs", "3", Key("train.total_epochs")),
    key("max_steps", "-1", By(Rule::TrlIntervals, "train.total_steps")),
    key("gradient_checkpointing", "True", Key("model.recompute_activations")),
    key("gradient_checkpointing_kwargs", "", NoEffect(ENGINE)),
    key("bf16", "", NoEffect(F32)),
    key("fp16", "", NoEffect(F32)),
    key("tf32", "", NoEffect(F32)),
    key("disable_dropout", "", NoEffect("there is no dropout")),
    key("use_peft", "False", Unless(&["False", "false"], "all weights are trained; there are no adapters")),
    key("deepspeed", "", NoEffect(DEVICES)),
    key("fsdp", "", NoEffect(DEVICES)),
    key("use_cpu", "", NoEffect(DEVICES)),
    key("ds3_gather_for_generation", "", NoEffect(DEVICES)),
    key("use_liger_kernel", "", NoEffect(DEVICES)),
    key("torch_compile", "", NoEffect(DEVICES)),
    key("dataloader_num_workers", "", NoEffect("data is read in the trainer's own process")),
    key("remove_unused_columns", "False", NoEffect("every column is handed to rewards")),
    // when
    key("eval_strategy", "no", By(Rule::TrlIntervals, "validate.test_freq")),
    key("eval_steps", "", By(Rule::TrlIntervals, "validate.test_freq")),
    key("eval_on_start", "False", Key("validate.before_train")),
    key("save_strategy", "steps", By(Rule::TrlIntervals, "checkpoint.save_freq")),
    key("save_steps", "500", By(Rule::TrlIntervals, "checkpoint.save_freq")),
    key("save_total_limit", "", Key("checkpoint.keep_last")),
    key("logging_steps", "10", NoEffect("every step is logged")),
    key("logging_strategy", "", NoEffect("every step is logged")),
    key("log_completions", "False", NoEffect("`rollout.save` writes every trajectory")),
    key("num_completions_to_print", "", NoEffect("`validate.num_samples_shown` samples are printed")),
    key("report_to", "none", By(Rule::Loggers, "run.loggers")),
    key("push_to_hub", "False", Unless(&["False", "false"], "checkpoints stay in the run folder")),
    key("resume_from_checkpoint", "", NoEffect("a run is resumed with `tamis train --resume RUN_DIR`")),
];
