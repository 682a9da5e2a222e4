//! EasyR1's keys, those of its fork with dynamic sampling and of older versions among them, with their
//! defaults.

mod rules;

pub(super) use rules::defaults;

use super::key::Becomes::{By, Key, NoEffect, Unless};
use super::key::{ForeignKey, key};
use super::shared::images;

const DEVICES: &str = "it sets up GPUs or several machines, and tamis trains on the CPU of one";
const ENGINE: &str =
    "it tunes the engine that samples in verl: that of tamis, and the servers that a run starts, do without";
const PYTORCH: &str = "it tunes PyTorch, and tamis trains with an engine of its own";
const RAGGED: &str = "it is about padding, and tamis keeps every sequence at its own length";
const KEPT: &str = "the native engine's log-probabilities are the learner's, bit for bit; of what servers \
    sampled the learner computes them in its own micro-batches";
const EXTERNAL: &str = "nothing that lies beside a model is run";
const ADAPTERS: &str = "all weights are trained; there are no adapters";
const ADAMW: &str = "the optimizer is AdamW, with moments in f32";
const VIDEOS: &str = "there are no videos in text tasks";
const CRITIC_WARMUP: &str = "critic.lr_schedule.warmup_steps";
/// Values that a switch may have which is refused otherwise.
const OFF: &[&str] = &["False", "false"];
/// Values that an option may have which is refused otherwise.
const NONE: &[&str] = &["null", "None", ""];

pub(super) const KEYS: &[ForeignKey] = &[
    // data
    key("data.train_files", "", Key("data.train")),
    key("data.val_files", "", Key("data.val")),
    key("data.prompt_key", "prompt", Key("data.columns.prompt")),
    key("data.answer_key", "answer", Key("data.columns.ground_truth")),
    key("data.image_key", "images", By(images::COLUMN, "data.columns.images")),
    key("data.image_dir", "null", Key("data.image_folder")),
    key("data.min_pixels", "262144", NoEffect(images::BY_PROCESSOR)),
    key("data.max_pixels", "4194304", NoEffect(images::BY_PROCESSOR)),
    key("data.video_key", "videos", NoEffect(VIDEOS)),
    key("data.video_fps", "2.0", NoEffect(VIDEOS)),
    key("data.rollout_batch_size", "512", Key("data.train_batch_size")),
    key("data.mini_rollout_batch_size", "null", Key("data.gen_batch_size")),
    key("data.val_batch_size", "-1", NoEffect("validation prompts are generated as there is room")),
    key("data.max_prompt_length", "512", Key("data.max_prompt_length")),
    key("data.max_response_length", "512", Key("rollout.max_response_length")),
    key("data.format_prompt", "null", By(rules::FORMAT_PROMPT, "data.prompt_template")),
    key("data.format_prompt_path", "null", By(rules::FORMAT_PROMPT, "data.prompt_template")),
    key("data.override_chat_template", "null", By(rules::CHAT_TEMPLATE, "model.chat_template")),
    key("data.filter_overlong_prompts", "True", By(rules::LONG_PROMPTS, "data.overlong_prompts")),
    key("data.filter_overlong_prompts_workers", "16", NoEffect("prompts are measured as they are read")),
    key("data.shuffle", "True", Key("data.shuffle")),
    key("data.seed", "1", NoEffect("`run.seed` keys every draw, the order of the data too")),
    // algorithm
    key("algorithm.adv_estimator", "grpo", By(rules::ADVANTAGE, "objective.advantage.kind preset")),
    key("algorithm.gamma", "1.0", Key("objective.advantage.gamma")),
    key("algorithm.lam", "1.0", Key("objective.advantage.lambda")),
    key(
        "algorithm.use_dynamic_sample",
        "false",
        By(
            rules::DYNAMIC_SAMPLE,
            "filter.kind filter.metric schedule.refill schedule.on_limit schedule.on_exhausted schedule.surplus",
        ),
    ),
    key(
        "algorithm.dynamic_sample_max_gen_batches",
        "3",
        By(rules::DYNAMIC_SAMPLE, "schedule.max_num_gen_batches"),
    ),
    key(
        "algorithm.online_filtering",
        "false",
        By(rules::ONLINE_FILTERING, "filter.kind filter.bounds schedule.on_limit schedule.on_empty_round"),
    ),
    key("algorithm.filter_key", "overall", By(rules::ONLINE_FILTERING, "filter.metric")),
    key("algorithm.filter_low", "0.01", By(rules::ONLINE_FILTERING, "filter.low")),
    key("algorithm.filter_high", "0.99", By(rules::ONLINE_FILTERING, "filter.high")),
    key("trainer.max_try_make_batch", "20", By(rules::ONLINE_FILTERING, "schedule.max_num_gen_batches")),
    key("algorithm.disable_kl", "false", By(rules::KL, "objective.kl.in")),
    key("algorithm.use_kl_loss", "false", By(rules::KL, "objective.kl.in")),
    key("algorithm.kl_penalty", "kl", By(rules::KL, "objective.kl.estimator")),
    key("algorithm.kl_coef", "1e-3", By(rules::KL, "objective.kl.coefficient")),
    key("algorithm.kl_type", "fixed", By(rules::KL, "objective.kl.adaptive")),
    key("algorithm.kl_horizon", "10000.0", By(rules::KL, "objective.kl.adaptive")),
    key("algorithm.kl_target", "0.1", By(rules::KL, "objective.kl.adaptive")),
    key("algorithm.keep_neg_ratio", "1.0", By(rules::KEEP_RATIOS, "objective.shaping")),
    key("algorithm.keep_pos_ratio", "1.0", By(rules::KEEP_RATIOS, "objective.shaping")),
    key(
        "algorithm.compute_new_adv",
        "false",
        Unless(
            OFF,
            "advantages are those of the whole group: they are not computed anew once members are dropped",
        ),
    ),
    // worker
    key("worker.actor.strategy", "fsdp", NoEffect(DEVICES)),
    key("worker.actor.global_batch_size", "256", Key("train.ppo_mini_batch_size")),
    key("worker.actor.micro_batch_size_per_device_for_update", "4", Key("train.micro_batch_size")),
    key("worker.actor.micro_batch_size_per_device_for_experience", "16", NoEffect(KEPT)),
    key("worker.actor.max_grad_norm", "1.0", Key("train.optimizer.max_grad_norm")),
    key("worker.actor.clip_ratio_low", "0.2", Key("objective.loss.clip_low")),
    key("worker.actor.clip_ratio_high", "0.3", Key("objective.loss.clip_high")),
    key("worker.actor.clip_ratio_dual", "3.0", Key("objective.loss.dual_clip")),
    key("worker.actor.loss_type", "default", By(rules::LOSS, "objective.loss.kind objective.importance")),
    key("worker.actor.tau_positive", "1.0", Key("objective.loss.tau_positive")),
    key("worker.actor.tau_negative", "1.05", Key("objective.loss.tau_negative")),
    key("worker.actor.loss_avg_mode", "token", By(rules::LOSS_AVERAGE, "objective.aggregation")),
    key("worker.actor.loss_agg_mode", "token-mean", Key("objective.aggregation")),
    key("worker.actor.entropy_coeff", "0.0", Key("objective.entropy.coefficient")),
    key("worker.actor.ppo_epochs", "1", Key("train.ppo_epochs")),
    key("worker.actor.padding_free", "True", NoEffect(RAGGED)),
    key(
        "worker.actor.dynamic_batching",
        "True",
        NoEffect("`train.balance_micro_batches` evens micro-batches out; the update is the same"),
    ),
    key("worker.actor.ulysses_size", "1", NoEffect(DEVICES)),
    key("worker.actor.ulysses_sequence_parallel_size", "1", NoEffect(DEVICES)),
    key("worker.actor.use_torch_compile", "True", NoEffect(PYTORCH)),
    key("worker.actor.model.model_path", "null", Key("model.path")),
    key(
        "worker.actor.model.tokenizer_path",
        "null",
        Unless(NONE, "the tokenizer is the model's: put it into the folder of the model"),
    ),
    key(
        "worker.actor.model.override_config",
        "{}",
        Unless(&["{}", "null"], "edit the checkpoint's `config.json`"),
    ),
    key("worker.actor.model.override_config.*", "", Unless(&[], "edit the checkpoint's `config.json`")),
    key("worker.actor.model.enable_gradient_checkpointing", "true", Key("model.recompute_activations")),
    key("worker.actor.model.trust_remote_code", "True", NoEffect(EXTERNAL)),
    key("worker.actor.model.freeze_vision_tower", "false", By(rules::FREEZE_VISION, "learner.freeze_vision")),
    key("worker.actor.model.lora.rank", "0", Unless(&["0"], ADAPTERS)),
    key(
        "worker.actor.model.lora.alpha",
        "64",
        NoEffect("it is an option of adapters (`lora.rank`), and there are none"),
    ),
    key(
        "worker.actor.model.lora.target_modules",
        "all-linear",
        NoEffect("it is an option of adapters (`lora.rank`), and there are none"),
    ),
    key(
        "worker.actor.model.lora.exclude_modules",
        "null",
        NoEffect("it is an option of adapters (`lora.rank`), and there are none"),
    ),
    key("worker.actor.optim.lr", "1e-6", Key("train.optimizer.learning_rate")),
    key("worker.actor.optim.betas", "[0.9, 0.999]", Key("train.optimizer.betas")),
    key("worker.actor.optim.weight_decay", "0.01", Key("train.optimizer.weight_decay")),
    key("worker.actor.optim.strategy", "adamw", NoEffect(ADAMW)),
    key(
        "worker.actor.optim.lr_warmup_ratio",
        "0.0",
        By(rules::LEARNING_RATE, "train.lr_schedule.warmup_steps"),
    ),
    key(
        "worker.actor.optim.lr_warmup_steps",
        "null",
        By(rules::LEARNING_RATE, "train.lr_schedule.warmup_steps"),
    ),
    key("worker.actor.optim.min_lr_ratio", "null", By(rules::LEARNING_RATE, "train.lr_schedule.min_ratio")),
    key(
        "worker.actor.optim.lr_scheduler_type",
        "constant",
        By(rules::LEARNING_RATE, "train.lr_schedule.kind"),
    ),
    key("worker.actor.fsdp.*", "", NoEffect(DEVICES)),
    key("worker.actor.offload.*", "", NoEffect(DEVICES)),
    key("worker.rollout.name", "vllm", By(rules::SERVERS, "rollout.backend rollout.launch")),
    key("worker.rollout.n", "1", Key("rollout.n")),
    key("worker.rollout.temperature", "1.0", Key("rollout.temperature")),
    key("worker.rollout.top_p", "1.0", Key("rollout.top_p")),
    key("worker.rollout.top_k", "-1", By(rules::TOP_K, "rollout.top_k")),
    key("worker.rollout.seed", "1", NoEffect("`run.seed` keys every draw")),
    key("worker.rollout.limit_images", "0", NoEffect(images::LIMIT)),
    key("worker.rollout.dtype", "bf16", By(rules::SERVERS, "rollout.launch.args")),
    key("worker.rollout.ignore_eos", "False", Unless(OFF, "completions end at the end token")),
    key(
        "worker.rollout.do_sample",
        "True",
        Unless(&["True", "true"], "a group of greedy completions has one text"),
    ),
    key("worker.rollout.max_num_seqs", "256", Key("rollout.max_num_seqs")),
    key("worker.rollout.chat_template", "null", By(rules::CHAT_TEMPLATE, "model.chat_template")),
    key("worker.rollout.gpu_memory_utilization", "0.6", By(rules::SERVERS, "rollout.launch.args")),
    key("worker.rollout.enforce_eager", "False", By(rules::SERVERS, "rollout.launch.args")),
    key("worker.rollout.free_cache_engine", "False", NoEffect(ENGINE)),
    key("worker.rollout.enable_chunked_prefill", "False", By(rules::SERVERS, "rollout.launch.args")),
    key("worker.rollout.max_model_len", "null", By(rules::SERVERS, "rollout.launch.args")),
    key("worker.rollout.max_num_batched_tokens", "8192", By(rules::SERVERS, "rollout.launch.args")),
    key("worker.rollout.disable_log_stats", "True", NoEffect(ENGINE)),
    key("worker.rollout.tensor_parallel_size", "2", By(rules::SERVERS, "rollout.launch.tensor_parallel")),
    key("worker.rollout.disable_tqdm", "False", NoEffect("without a terminal progress is plain lines")),
    key("worker.rollout.val_override_config", "{}", NoEffect("it is empty")),
    key("worker.rollout.val_override_config.n", "1", Key("validate.n")),
    key("worker.rollout.val_override_config.temperature", "", Key("validate.temperature")),
    key("worker.rollout.val_override_config.top_p", "", Key("validate.top_p")),
    key("worker.rollout.val_override_config.top_k", "-1", Unless(&["-1", "0"], "validation has no top-k")),
    key("worker.ref.strategy", "fsdp", NoEffect(DEVICES)),
    key("worker.ref.fsdp.*", "", NoEffect(DEVICES)),
    key("worker.ref.offload.*", "", NoEffect(DEVICES)),
    key("worker.critic.strategy", "fsdp", NoEffect(DEVICES)),
    key("worker.critic.model.model_path", "null", By(rules::CRITIC, "critic.model.path")),
    key(
        "worker.critic.model.tokenizer_path",
        "null",
        Unless(NONE, "the tokenizer is the model's: put it into the folder of the model"),
    ),
    key(
        "worker.critic.model.override_config",
        "{}",
        Unless(&["{}", "null"], "edit the checkpoint's `config.json`"),
    ),
    key("worker.critic.model.override_config.*", "", Unless(&[], "edit the checkpoint's `config.json`")),
    key(
        "worker.critic.model.enable_gradient_checkpointing",
        "true",
        NoEffect("`model.recompute_activations` says it for both models"),
    ),
    key("worker.critic.model.trust_remote_code", "True", NoEffect(EXTERNAL)),
    key("worker.critic.model.freeze_vision_tower", "false", NoEffect("critics see text alone")),
    key("worker.critic.model.lora.rank", "0", Unless(&["0"], ADAPTERS)),
    key(
        "worker.critic.model.lora.alpha",
        "64",
        NoEffect("it is an option of adapters (`lora.rank`), and there are none"),
    ),
    key(
        "worker.critic.model.lora.target_modules",
        "all-linear",
        NoEffect("it is an option of adapters (`lora.rank`), and there are none"),
    ),
    key(
        "worker.critic.model.lora.exclude_modules",
        "null",
        NoEffect("it is an option of adapters (`lora.rank`), and there are none"),
    ),
    key("worker.critic.optim.lr", "1e-6", By(rules::CRITIC, "critic.optimizer.learning_rate")),
    key("worker.critic.optim.betas", "[0.9, 0.999]", By(rules::CRITIC, "critic.optimizer.betas")),
    key("worker.critic.optim.weight_decay", "0.01", By(rules::CRITIC, "critic.optimizer.weight_decay")),
    key("worker.critic.optim.lr_warmup_ratio", "0.0", By(rules::CRITIC, CRITIC_WARMUP)),
    key("worker.critic.optim.lr_warmup_steps", "null", By(rules::CRITIC, CRITIC_WARMUP)),
    key("worker.critic.optim.min_lr_ratio", "null", By(rules::CRITIC, "critic.lr_schedule.min_ratio")),
    key("worker.critic.optim.lr_scheduler_type", "constant", By(rules::CRITIC, "critic.lr_schedule.kind")),
    key("worker.critic.optim.strategy", "adamw", NoEffect(ADAMW)),
    key("worker.critic.max_grad_norm", "1.0", By(rules::CRITIC, "critic.optimizer.max_grad_norm")),
    key("worker.critic.global_batch_size", "256", By(rules::CRITIC, "critic.ppo_mini_batch_size")),
    key("worker.critic.ppo_epochs", "1", By(rules::CRITIC, "critic.ppo_epochs")),
    key("worker.critic.cliprange_value", "0.5", By(rules::CRITIC, "critic.cliprange_value")),
    key("worker.critic.loss_avg_mode", "token", By(rules::CRITIC, "critic.aggregation")),
    key(
        "worker.critic.micro_batch_size_per_device_for_update",
        "4",
        NoEffect("the critic is run with the policy's micro-batches"),
    ),
    key(
        "worker.critic.micro_batch_size_per_device_for_experience",
        "16",
        NoEffect("the critic is run with the policy's micro-batches"),
    ),
    key("worker.critic.padding_free", "False", NoEffect(RAGGED)),
    key(
        "worker.critic.dynamic_batching",
        "True",
        NoEffect("the critic is run with the policy's micro-batches"),
    ),
    key("worker.critic.ulysses_size", "1", NoEffect(DEVICES)),
    key("worker.critic.ulysses_sequence_parallel_size", "1", NoEffect(DEVICES)),
    key("worker.critic.fsdp.*", "", NoEffect(DEVICES)),
    key("worker.critic.offload.*", "", NoEffect(DEVICES)),
    key("worker.reward.reward_function", "null", By(rules::REWARDS, "reward")),
    key("worker.reward.reward_function_name", "main", By(rules::REWARDS, "reward")),
    key("worker.reward.reward_function_kwargs", "{}", By(rules::REWARDS, "reward")),
    key("worker.reward.reward_function_kwargs.*", "", By(rules::REWARDS, "reward")),
    key("worker.reward.reward_type", "batch", By(rules::REWARDS, "reward")),
    key(
        "worker.reward.score_function",
        "null",
        Unless(
            NONE,
            "its function took (response, ground_truth): wrap it as worker.reward.reward_function=FILE:score \
                with `def score(inputs): return [old(i['response'], i['ground_truth']) for i in inputs]`",
        ),
    ),
    key("worker.reward.score_function_name", "null", NoEffect("it goes with worker.reward.score_function")),
    key("worker.reward.score_function_kwargs", "null", NoEffect("it goes with worker.reward.score_function")),
    key("worker.reward.score_function_kwargs.*", "", NoEffect("it goes with worker.reward.score_function")),
    key(
        "worker.reward.skip_special_tokens",
        "true",
        NoEffect("special tokens are no part of a completion's text"),
    ),
    key(
        "worker.reward.num_cpus",
        "1",
        NoEffect("`num_processes` of the function under `reward` says how many processes it has"),
    ),
    key("worker.hybrid_engine", "true", NoEffect("generation and training share the weights")),
    // trainer
    key("trainer.total_epochs", "15", By(rules::LENGTH, "train.total_epochs")),
    key("trainer.total_episodes", "15", By(rules::LENGTH, "train.total_epochs")),
    key("trainer.max_steps", "null", By(rules::LENGTH, "train.total_steps")),
    key("trainer.save_freq", "-1", Key("checkpoint.save_freq")),
    key("trainer.save_limit", "-1", By(rules::KEEP_LAST, "checkpoint.keep_last")),
    key(
        "trainer.save_model_only",
        "false",
        NoEffect("a checkpoint holds all that a run needs to go on, always"),
    ),
    key(
        "trainer.save_checkpoint_path",
        "null",
        NoEffect("checkpoints are in the run folder, `run.dir/run.name`"),
    ),
    key(
        "trainer.load_checkpoint_path",
        "null",
        NoEffect("a run goes on with `tamis train --resume RUN_DIR`"),
    ),
    key(
        "trainer.find_last_checkpoint",
        "True",
        NoEffect("a run goes on with `tamis train --resume RUN_DIR`"),
    ),
    key("trainer.val_freq", "-1", Key("validate.test_freq")),
    key("trainer.val_before_train", "true", Key("validate.before_train")),
    key("trainer.val_only", "false", Unless(OFF, "use `tamis eval`")),
    key("trainer.val_generations_to_log", "0", Key("validate.num_samples_shown")),
    key("trainer.train_generations_to_log", "0", NoEffect("`rollout.save` writes every trajectory")),
    key("trainer.train_log_freq", "10", NoEffect("`rollout.save` writes every trajectory")),
    key("trainer.logger", "[console, wandb]", By(rules::LOGGERS, "run.loggers")),
    key("trainer.project_name", "easy_r1", By(rules::NAMES, "run.dir")),
    key("trainer.experiment_name", "demo", By(rules::NAMES, "run.name")),
    key("trainer.n_gpus_per_node", "8", By(rules::SERVERS, "rollout.launch.replicas")),
    key(
        "trainer.nnodes",
        "1",
        NoEffect("there is one machine: servers on others are started there, and named in `rollout.servers`"),
    ),
    key("trainer.critic_warmup", "0", By(rules::CRITIC, "critic.warmup_steps")),
    key("trainer.ray_timeline", "null", NoEffect(DEVICES)),
];
