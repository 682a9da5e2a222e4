//! The fields of TRL's `GRPOConfig`, of the `TrainingArguments` under it and of its script, with their
//! defaults there; those that older versions had too.

mod batch;
mod learner;
mod objective;
mod optimizer;
mod rewards;
mod rules;
mod servers;

pub(super) use rules::defaults;

use super::key::Becomes::{By, Key, NoEffect, Unless};
use super::key::{ForeignKey, key};
use super::shared::run;

const DEVICES: &str = "devices and machines are set up by the sections `learner` and `cluster`";
const ONE: &str = "a run logs and counts over all ranks together, once";
const F32: &str =
    "trained weights and moments are held in f32; `learner.dtype` says what PyTorch computes in";
const ENGINE: &str = "the native engine generates";
const MOVING: &str = "it says how a reference moves (`sync_ref_model`), and none does yet";
/// Values that a switch may have which is refused otherwise.
const OFF: &[&str] = &["False", "false"];
/// Values that an option may have which is refused otherwise.
const NONE: &[&str] = &["null", "None", ""];

/// Fields that take several words on the command line.
pub(super) const LISTS: [&str; 9] = [
    "reward_funcs",
    "reward_weights",
    "report_to",
    "include_for_metrics",
    "label_names",
    "lora_target_modules",
    "lora_target_parameters",
    "lora_modules_to_save",
    "stop_strings",
];

/// Older names of fields, with the newer ones.
pub(super) const OLDER: [(&str, &str); 2] =
    [("evaluation_strategy", "eval_strategy"), ("per_gpu_train_batch_size", "per_device_train_batch_size")];

/// Switches whose default says no more than "not given".
pub(super) const SWITCHES: [&str; 4] = ["bf16", "tf32", "activation_checkpointing", "disable_tqdm"];

pub(super) const KEYS: &[ForeignKey] = &[
    // what is trained on what
    key("model_name_or_path", "null", By(rules::MODEL, "model.path")),
    key("model_revision", "main", By(rules::MODEL, "model.path")),
    key(
        "model_init_kwargs",
        "null",
        NoEffect("a checkpoint is read as it is and computed in f32: its loader takes no options"),
    ),
    key("trust_remote_code", "False", NoEffect("nothing that lies beside a model is run")),
    key("dtype", "float32", NoEffect(F32)),
    key("torch_dtype", "null", NoEffect(F32)),
    key("attn_implementation", "null", By(learner::ATTENTION, "learner.attention")),
    key("use_peft", "False", By(learner::ADAPTER, "learner.backend learner.lora")),
    key("lora_r", "16", By(learner::ADAPTER, "learner.lora")),
    key("lora_alpha", "32", By(learner::ADAPTER, "learner.lora")),
    key("lora_dropout", "0.05", By(learner::ADAPTER, "learner.lora")),
    key("lora_target_modules", "null", By(learner::ADAPTER, "learner.lora")),
    key("lora_target_parameters", "null", By(learner::ADAPTER, "learner.lora")),
    key("lora_modules_to_save", "null", By(learner::ADAPTER, "learner.lora")),
    key("lora_task_type", "CAUSAL_LM", By(learner::ADAPTER, "learner.lora")),
    key("use_rslora", "False", By(learner::ADAPTER, "learner.lora")),
    key("use_dora", "False", By(learner::ADAPTER, "learner.lora")),
    key("load_in_8bit", "False", Unless(OFF, "weights are trained whole, in f32")),
    key("load_in_4bit", "False", Unless(OFF, "weights are trained whole, in f32")),
    key("bnb_4bit_quant_type", "nf4", NoEffect("weights are not quantised")),
    key("use_bnb_nested_quant", "False", NoEffect("weights are not quantised")),
    key("bnb_4bit_quant_storage", "null", NoEffect("weights are not quantised")),
    key("dataset_name", "null", By(rules::DATA, "data.train")),
    key("dataset_config", "null", By(rules::DATA, "data.train")),
    key("dataset_train_split", "train", By(rules::DATA, "data.train")),
    key("dataset_test_split", "test", By(rules::DATA, "data.val")),
    key("dataset_streaming", "False", NoEffect("files are read whole at the start")),
    key("datasets", "[]", By(rules::DATA, "data.train")),
    key("streaming", "False", NoEffect("files are read whole at the start")),
    key(
        "test_split_size",
        "null",
        Unless(NONE, "nothing is split off: write the validation rows to a file of their own, `data.val`"),
    ),
    key("ignore_bias_buffers", "False", NoEffect(DEVICES)),
    key("output_dir", "null", By(rules::NAMES, "run.dir run.name")),
    key("run_name", "null", By(rules::NAMES, "run.name")),
    key("seed", "42", Key("run.seed")),
    key("data_seed", "null", NoEffect("`run.seed` keys every draw, the order of the data too")),
    key("shuffle_dataset", "True", Key("data.shuffle")),
    key(
        "train_sampling_strategy",
        "random",
        NoEffect("TRL's GRPO does not read it: it draws by `shuffle_dataset`"),
    ),
    key(
        "length_column_name",
        "length",
        NoEffect("TRL's GRPO does not read it: it draws by `shuffle_dataset`"),
    ),
    key("group_by_length", "False", NoEffect("TRL's GRPO does not read it: it draws by `shuffle_dataset`")),
    key("max_prompt_length", "null", By(rules::PROMPTS, "data.max_prompt_length data.overlong_prompts")),
    key("chat_template_kwargs", "null", Key("data.chat_template_kwargs")),
    key("chat_template_path", "null", Key("model.chat_template")),
    key("remove_unused_columns", "False", NoEffect("every column is handed to rewards")),
    key(
        "pad_to_multiple_of",
        "auto",
        NoEffect("it is about padding, and tamis keeps every sequence at its own length"),
    ),
    key("label_names", "null", NoEffect("there are no labels: what is trained on is sampled")),
    // sampling
    key("num_generations", "8", Key("rollout.n")),
    key("num_generations_eval", "null", By(rules::VALIDATION, "validate.n")),
    key("max_completion_length", "512", Key("rollout.max_response_length")),
    key("temperature", "1.0", Key("rollout.temperature")),
    key("top_p", "1.0", Key("rollout.top_p")),
    key("top_k", "0", By(rules::SAMPLING, "rollout.top_k")),
    key("min_p", "null", By(rules::SAMPLING, "rollout.min_p")),
    key("repetition_penalty", "1.0", Key("rollout.repetition_penalty")),
    key(
        "generation_kwargs",
        "null",
        By(
            rules::GENERATION,
            "rollout.temperature rollout.top_p rollout.top_k rollout.min_p rollout.repetition_penalty \
                rollout.max_response_length rollout.stop rollout.server_parameters",
        ),
    ),
    key("stop_strings", "null", Key("rollout.stop")),
    key("cache_implementation", "null", NoEffect(ENGINE)),
    key("use_cache", "False", NoEffect("generation always keeps keys and values")),
    key("disable_dropout", "False", NoEffect("there is no dropout")),
    key("use_vllm", "False", By(servers::SERVERS, "rollout.backend rollout.launch rollout.servers")),
    key("vllm_mode", "colocate", By(servers::SERVERS, "rollout.launch rollout.servers")),
    key("vllm_model_impl", "vllm", By(servers::SERVERS, "rollout.launch.args")),
    key("vllm_enable_sleep_mode", "False", By(servers::SERVERS, "rollout.launch")),
    key("vllm_server_base_url", "null", By(servers::SERVERS, "rollout.servers")),
    key("vllm_server_host", "0.0.0.0", By(servers::SERVERS, "rollout.servers")),
    key("vllm_server_port", "8000", By(servers::SERVERS, "rollout.servers")),
    key("vllm_server_timeout", "240.0", By(servers::SERVERS, "rollout.server_startup_timeout")),
    key("vllm_group_port", "51216", By(servers::SERVERS, "rollout.launch")),
    key("vllm_gpu_memory_utilization", "0.3", By(servers::SERVERS, "rollout.launch.args")),
    key("vllm_max_model_length", "null", By(servers::SERVERS, "rollout.launch.args")),
    key("vllm_tensor_parallel_size", "1", By(servers::SERVERS, "rollout.launch.tensor_parallel")),
    key("vllm_device", "auto", By(servers::SERVERS, "rollout.launch")),
    key("vllm_dtype", "auto", By(servers::SERVERS, "rollout.launch.args")),
    key("vllm_enable_prefix_caching", "null", By(servers::SERVERS, "rollout.launch.args")),
    key("vllm_max_model_len", "null", By(servers::SERVERS, "rollout.launch.args")),
    key("vllm_structured_outputs_regex", "null", Key("rollout.regex")),
    key("vllm_guided_decoding_regex", "null", Key("rollout.regex")),
    key("vllm_importance_sampling_correction", "True", By(servers::SERVERS, "objective.correction.weights")),
    key(
        "vllm_importance_sampling_mode",
        "sequence_mask",
        By(servers::SERVERS, "objective.correction.weights"),
    ),
    key("vllm_importance_sampling_cap", "null", By(servers::SERVERS, "objective.correction.weights")),
    key("vllm_importance_sampling_clip_max", "3.0", By(servers::SERVERS, "objective.correction.weights")),
    key("vllm_importance_sampling_clip_min", "null", By(servers::SERVERS, "objective.correction.weights")),
    key(
        "use_transformers_continuous_batching",
        "False",
        NoEffect("a sequence starts as soon as another has ended, always"),
    ),
    key(
        "use_transformers_paged",
        "False",
        NoEffect("a sequence starts as soon as another has ended, always"),
    ),
    key("transformers_continuous_batching_config", "null", NoEffect(ENGINE)),
    key(
        "max_tool_calling_iterations",
        "null",
        NoEffect(
            "`environment` with `kind: tools` has tools, and `environment.prompting.max_turns` bounds their turns",
        ),
    ),
    // batches
    key(
        "per_device_train_batch_size",
        "8",
        By(batch::BATCH, "data.train_batch_size train.ppo_mini_batch_size train.micro_batch_size"),
    ),
    key(
        "per_gpu_train_batch_size",
        "null",
        By(batch::BATCH, "data.train_batch_size train.ppo_mini_batch_size train.micro_batch_size"),
    ),
    key("per_gpu_eval_batch_size", "null", NoEffect("validation prompts are generated as there is room")),
    key(
        "gradient_accumulation_steps",
        "1",
        By(batch::BATCH, "data.train_batch_size train.ppo_mini_batch_size"),
    ),
    key("steps_per_generation", "null", By(batch::BATCH, "data.train_batch_size")),
    key("generation_batch_size", "null", By(batch::BATCH, "data.train_batch_size")),
    key("num_processes", "1", By(batch::BATCH, "data.train_batch_size train.ppo_mini_batch_size")),
    key("accelerate_config", "null", NoEffect(DEVICES)),
    key("per_device_eval_batch_size", "8", NoEffect("validation prompts are generated as there is room")),
    key("num_iterations", "1", Key("train.ppo_epochs")),
    key(
        "auto_find_batch_size",
        "False",
        Unless(OFF, "TRL refuses it too: lower `train.micro_batch_tokens` where memory is short"),
    ),
    key("average_tokens_across_devices", "True", NoEffect(ONE)),
    // objective
    key(
        "beta",
        "0.0",
        By(
            objective::KL,
            "objective.kl.in objective.kl.coefficient objective.kl.estimator objective.kl.bias_corrected",
        ),
    ),
    key("use_bias_correction_kl", "True", By(objective::KL, "objective.kl.bias_corrected")),
    key(
        "epsilon",
        "0.2",
        By(objective::CLIP, "objective.loss.clip_low objective.loss.clip_high objective.loss.dual_clip"),
    ),
    key("epsilon_high", "null", By(objective::CLIP, "objective.loss.clip_high objective.loss.max_ratio")),
    key("delta", "null", Key("objective.loss.delta")),
    key("loss_type", "dapo", By(objective::LOSS, "objective.aggregation objective.loss.kind")),
    key(
        "scale_rewards",
        "group",
        By(
            objective::SCALE,
            "objective.advantage.scale objective.advantage.divide objective.advantage.epsilon",
        ),
    ),
    key("mask_truncated_completions", "False", Key("objective.masks.truncated")),
    key("entropy_coef", "0.0", Key("objective.entropy.coefficient")),
    key(
        "use_adaptive_entropy",
        "False",
        By(objective::ADAPTIVE_ENTROPY, "objective.entropy.adaptive objective.entropy.aggregation"),
    ),
    key("entropy_coef_min", "0.0", By(objective::ADAPTIVE_ENTROPY, "objective.entropy.adaptive")),
    key("entropy_coef_max", "1.0", By(objective::ADAPTIVE_ENTROPY, "objective.entropy.adaptive")),
    key("entropy_coef_delta", "0.005", By(objective::ADAPTIVE_ENTROPY, "objective.entropy.adaptive")),
    key("entropy_target", "0.2", By(objective::ADAPTIVE_ENTROPY, "objective.entropy.adaptive")),
    key("importance_sampling_level", "token", Key("objective.importance")),
    key("sapo_temperature_pos", "1.0", Key("objective.loss.tau_positive")),
    key("sapo_temperature_neg", "1.05", Key("objective.loss.tau_negative")),
    key("vespo_k_pos", "2.0", Key("objective.loss.k_positive")),
    key("vespo_lambda_pos", "3.0", Key("objective.loss.lambda_positive")),
    key("vespo_k_neg", "3.0", Key("objective.loss.k_negative")),
    key("vespo_lambda_neg", "2.0", Key("objective.loss.lambda_negative")),
    key(
        "multi_objective_aggregation",
        "sum_then_normalize",
        By(objective::SEVERAL_REWARDS, "objective.advantage.kind"),
    ),
    key("top_entropy_quantile", "1.0", By(objective::MASKS, "objective.masks.top_entropy")),
    key("off_policy_mask_threshold", "null", By(objective::MASKS, "objective.masks.off_policy")),
    key(
        "router_aux_loss_coef",
        "null",
        Unless(
            &["null", "None", "", "0", "0.0"],
            "no loss balances the routers of a mixture of experts: leave it out, a model without experts does not read it",
        ),
    ),
    key("cast_lm_head_to_fp32", "False", NoEffect(F32)),
    key("label_smoothing_factor", "0.0", NoEffect("TRL's GRPO does not read it: its loss has no labels")),
    key(
        "neftune_noise_alpha",
        "null",
        Unless(NONE, "no noise is added to embeddings: what is trained on is what was sampled"),
    ),
    key("sync_ref_model", "False", Unless(OFF, "a moving reference is not there yet")),
    key("ref_model_mixup_alpha", "0.6", NoEffect(MOVING)),
    key("ref_model_sync_steps", "512", NoEffect(MOVING)),
    key("reward_funcs", "null", By(rewards::REWARDS, "reward")),
    key("reward_weights", "null", By(rewards::REWARDS, "reward")),
    key("reward_model_name_or_path", "null", By(rewards::REWARDS, "reward")),
    // optimizer
    key("learning_rate", "1e-6", Key("train.optimizer.learning_rate")),
    key(
        "weight_decay",
        "0.0",
        By(optimizer::OPTIMIZER, "train.optimizer.weight_decay train.optimizer.decay_norms_and_biases"),
    ),
    key("adam_beta1", "0.9", By(optimizer::OPTIMIZER, "train.optimizer.betas")),
    key("adam_beta2", "0.999", By(optimizer::OPTIMIZER, "train.optimizer.betas")),
    key("adam_epsilon", "1e-8", Key("train.optimizer.epsilon")),
    key("max_grad_norm", "1.0", By(optimizer::OPTIMIZER, "train.optimizer.max_grad_norm")),
    key(
        "optim",
        "adamw_torch_fused",
        Unless(
            &[
                "adamw_torch_fused",
                "adamw_torch",
                "adamw_hf",
                "adamw_apex_fused",
                "adamw_torch_xla",
                "adamw_torch_npu_fused",
            ],
            "the optimizer is AdamW, with moments in f32",
        ),
    ),
    key(
        "optim_args",
        "null",
        Unless(NONE, "AdamW takes no further options: they are under `train.optimizer`"),
    ),
    key("optim_target_modules", "null", Unless(NONE, "all weights are trained")),
    key(
        "lr_scheduler_type",
        "linear",
        By(optimizer::LEARNING_RATE, "train.lr_schedule.kind train.lr_schedule.min_ratio"),
    ),
    key("lr_scheduler_kwargs", "null", By(optimizer::LEARNING_RATE, "train.lr_schedule.min_ratio")),
    key("warmup_steps", "0", By(optimizer::LEARNING_RATE, "train.lr_schedule.warmup_steps")),
    key("warmup_ratio", "0.0", By(optimizer::LEARNING_RATE, "train.lr_schedule.warmup_steps")),
    key("num_train_epochs", "3", By(batch::LENGTH, "train.total_epochs")),
    key("max_steps", "-1", By(batch::LENGTH, "train.total_steps")),
    key("gradient_checkpointing", "True", Key("model.recompute_activations")),
    key("activation_checkpointing", "null", Key("model.recompute_activations")),
    key(
        "gradient_checkpointing_kwargs",
        "null",
        NoEffect("activations are recomputed block by block, which has no options"),
    ),
    key(
        "activation_checkpointing_kwargs",
        "null",
        NoEffect("activations are recomputed block by block, which has no options"),
    ),
    key(
        "gradient_checkpointing_use_reentrant",
        "null",
        NoEffect("activations are recomputed block by block, which has no options"),
    ),
    key("bf16", "null", By(learner::PRECISION, "learner.dtype")),
    key("fp16", "False", By(learner::PRECISION, "learner.dtype")),
    key("bf16_full_eval", "False", NoEffect(F32)),
    key("fp16_full_eval", "False", NoEffect(F32)),
    key("tf32", "null", NoEffect(F32)),
    key("torch_compile", "False", NoEffect("it tunes PyTorch and changes no result")),
    key("torch_compile_backend", "null", NoEffect("it tunes PyTorch and changes no result")),
    key("torch_compile_mode", "null", NoEffect("it tunes PyTorch and changes no result")),
    key("use_liger_kernel", "False", NoEffect("it tunes PyTorch and changes no result")),
    key("use_liger_loss", "False", NoEffect("it tunes PyTorch and changes no result")),
    key("liger_kernel_config", "null", NoEffect("it tunes PyTorch and changes no result")),
    key("torch_empty_cache_steps", "null", NoEffect("it tunes PyTorch and changes no result")),
    key("deepspeed", "null", NoEffect(DEVICES)),
    key("fsdp", "null", NoEffect(DEVICES)),
    key("fsdp_config", "null", NoEffect(DEVICES)),
    key("use_cpu", "False", NoEffect(DEVICES)),
    key("ds3_gather_for_generation", "True", NoEffect(DEVICES)),
    key("accelerator_config", "null", NoEffect(DEVICES)),
    key("parallelism_config", "null", NoEffect(DEVICES)),
    key("ddp_find_unused_parameters", "null", NoEffect(DEVICES)),
    key("ddp_bucket_cap_mb", "null", NoEffect(DEVICES)),
    key("ddp_broadcast_buffers", "null", NoEffect(DEVICES)),
    key("ddp_static_graph", "null", NoEffect(DEVICES)),
    key("ddp_backend", "null", NoEffect(DEVICES)),
    key("ddp_timeout", "1800", NoEffect(DEVICES)),
    key("local_rank", "-1", NoEffect(DEVICES)),
    key("dataloader_num_workers", "0", NoEffect("data is read in the trainer's own process")),
    key("dataloader_pin_memory", "True", NoEffect("data is read in the trainer's own process")),
    key("dataloader_persistent_workers", "False", NoEffect("data is read in the trainer's own process")),
    key("dataloader_prefetch_factor", "null", NoEffect("data is read in the trainer's own process")),
    key("dataloader_multiprocessing_context", "null", NoEffect("data is read in the trainer's own process")),
    key("dataloader_in_order", "True", NoEffect("data is read in the trainer's own process")),
    key(
        "dataloader_drop_last",
        "False",
        NoEffect("TRL's GRPO does not read it: it always draws whole groups"),
    ),
    key("full_determinism", "False", NoEffect(run::EQUAL_RUNS)),
    key("debug", "", NoEffect("it looks into the trainer of transformers, which does not run here")),
    key(
        "skip_memory_metrics",
        "True",
        NoEffect("it measures the memory of the trainer of transformers, which does not run here"),
    ),
    // when
    key("eval_strategy", "no", By(batch::INTERVALS, "validate.test_freq")),
    key("evaluation_strategy", "no", By(batch::INTERVALS, "validate.test_freq")),
    key("eval_steps", "null", By(batch::INTERVALS, "validate.test_freq")),
    key("eval_delay", "0", Unless(&["0", "0.0"], "validation begins with its first interval")),
    key("eval_on_start", "False", By(rules::VALIDATION, "validate.before_train")),
    key(
        "do_train",
        "False",
        NoEffect("TRL's script does not read it: `eval_strategy` says whether there is validation"),
    ),
    key(
        "do_eval",
        "False",
        NoEffect("TRL's script does not read it: `eval_strategy` says whether there is validation"),
    ),
    key(
        "do_predict",
        "False",
        NoEffect("TRL's script does not read it: `eval_strategy` says whether there is validation"),
    ),
    key(
        "prediction_loss_only",
        "False",
        NoEffect("validation generates and scores, as TRL's GRPO does, and keeps no logits"),
    ),
    key(
        "eval_do_concat_batches",
        "True",
        NoEffect("validation generates and scores, as TRL's GRPO does, and keeps no logits"),
    ),
    key(
        "eval_use_gather_object",
        "False",
        NoEffect("validation generates and scores, as TRL's GRPO does, and keeps no logits"),
    ),
    key(
        "eval_accumulation_steps",
        "null",
        NoEffect("validation generates and scores, as TRL's GRPO does, and keeps no logits"),
    ),
    key(
        "include_for_metrics",
        "[]",
        NoEffect("validation generates and scores, as TRL's GRPO does, and keeps no logits"),
    ),
    key(
        "batch_eval_metrics",
        "False",
        NoEffect("validation generates and scores, as TRL's GRPO does, and keeps no logits"),
    ),
    key("save_strategy", "steps", By(batch::INTERVALS, "checkpoint.save_freq")),
    key("save_steps", "500", By(batch::INTERVALS, "checkpoint.save_freq")),
    key("save_total_limit", "null", By(rules::KEEP_LAST, "checkpoint.keep_last")),
    key("save_only_model", "False", NoEffect("a checkpoint holds all that a run needs to go on, always")),
    key("save_safetensors", "True", NoEffect("weights are saved as safetensors, always")),
    key("save_on_each_node", "False", NoEffect(DEVICES)),
    key("enable_jit_checkpoint", "False", NoEffect("a run can be killed at any instant")),
    key(
        "load_best_model_at_end",
        "False",
        Unless(OFF, "the last weights stay the last: `checkpoint.keep_best` keeps the best beside them"),
    ),
    key(
        "metric_for_best_model",
        "null",
        NoEffect("nothing is chosen by it (`load_best_model_at_end`): `checkpoint.keep_best` keeps the best"),
    ),
    key(
        "greater_is_better",
        "null",
        NoEffect("nothing is chosen by it (`load_best_model_at_end`): `checkpoint.keep_best` keeps the best"),
    ),
    key(
        "resume_from_checkpoint",
        "null",
        Unless(
            &["null", "None", "", "False", "false"],
            "a run goes on with `tamis train --resume RUN_DIR`; weights that TRL saved are a model, `model.path`",
        ),
    ),
    key("ignore_data_skip", "False", Unless(OFF, "a resumed run goes on with the data where it stood")),
    key("restore_callback_states_from_checkpoint", "False", NoEffect("there are no callbacks")),
    key(
        "overwrite_output_dir",
        "False",
        NoEffect("nothing is overwritten: a number is appended to the name of a run folder that is taken"),
    ),
    key("logging_steps", "10", NoEffect("every step is logged")),
    key("logging_dir", "null", NoEffect("logs are in the run folder, `run.dir/run.name`")),
    key("logging_strategy", "steps", NoEffect("every step is logged")),
    key("logging_first_step", "False", NoEffect("every step is logged")),
    key("log_on_each_node", "True", NoEffect(ONE)),
    key("logging_nan_inf_filter", "True", NoEffect("the loss is logged as it is")),
    key("include_num_input_tokens_seen", "no", NoEffect("tokens are always counted")),
    key("log_level", "passive", NoEffect("a run says what there is to say on stderr and in `run.log`")),
    key(
        "log_level_replica",
        "warning",
        NoEffect("a run says what there is to say on stderr and in `run.log`"),
    ),
    key("disable_tqdm", "null", NoEffect("without a terminal progress is plain lines")),
    key("log_completions", "False", NoEffect("`rollout.save` writes every trajectory")),
    key("log_unique_prompts", "False", NoEffect("`rollout.save` writes every trajectory")),
    key("wandb_log_unique_prompts", "null", NoEffect("`rollout.save` writes every trajectory")),
    key("log_multimodal", "True", NoEffect("rollout files name the images")),
    key("num_completions_to_print", "null", NoEffect("`validate.num_samples_shown` samples are printed")),
    key("log_completions_hub_repo", "null", Unless(NONE, "trajectories stay in the run folder")),
    key("report_to", "none", By(rules::LOGGERS, "run.loggers")),
    key("project", "huggingface", NoEffect("it is an option of the logger Trackio, which is not there yet")),
    key(
        "trackio_space_id",
        "null",
        NoEffect("it is an option of the logger Trackio, which is not there yet"),
    ),
    key(
        "trackio_bucket_id",
        "null",
        NoEffect("it is an option of the logger Trackio, which is not there yet"),
    ),
    key(
        "trackio_static_space_id",
        "null",
        NoEffect("it is an option of the logger Trackio, which is not there yet"),
    ),
    key("push_to_hub", "False", Unless(OFF, "checkpoints stay in the run folder")),
    key("hub_token", "null", NoEffect("checkpoints stay in the run folder (`push_to_hub`)")),
    key("hub_private_repo", "null", NoEffect("checkpoints stay in the run folder (`push_to_hub`)")),
    key("hub_model_id", "null", NoEffect("checkpoints stay in the run folder (`push_to_hub`)")),
    key("hub_strategy", "every_save", NoEffect("checkpoints stay in the run folder (`push_to_hub`)")),
    key("hub_always_push", "False", NoEffect("checkpoints stay in the run folder (`push_to_hub`)")),
    key("hub_revision", "null", NoEffect("checkpoints stay in the run folder (`push_to_hub`)")),
    key("env.*", "", NoEffect("variables of the environment are set where the command is started")),
];
