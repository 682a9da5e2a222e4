//! Rewards and reward models.

use super::NULL;
use crate::foreign::key::Becomes::{By, NoEffect, Unless};
use crate::foreign::key::{ForeignKey, key};
use crate::foreign::verl::rewards;

const LOGGED: &str = "every reward function's score is logged, that of this one too";
const MANAGER: &str =
    "reward managers are not code of the user: name the function in custom_reward_function.path";
const KWARGS: &str = "none of the reward managers that tamis knows takes this argument";
const LOADED: &str = "a reward model is loaded in one process, with the settings of `kind: model`";
const SANDBOX: &str = "code is not run in a sandbox service: name a function of your own that calls it in custom_reward_function.path";

pub(super) const KEYS: &[ForeignKey] = &[
    key("reward.custom_reward_function.path", "null", By(rewards::REWARDS, "reward")),
    key("reward.custom_reward_function.name", "compute_score", By(rewards::REWARDS, "reward")),
    key("reward.custom_reward_function.reward_kwargs.*", "", By(rewards::REWARDS, "reward")),
    key("reward.num_workers", "8", By(rewards::REWARDS, "reward")),
    key("reward.reward_manager.name", "naive", By(rewards::REWARDS, "reward")),
    key("reward.reward_manager.source", "register", Unless(&["register", "null", "None"], MANAGER)),
    key("reward.reward_manager.module.path", "null", Unless(NULL, MANAGER)),
    key(
        "reward.reward_manager.module.name",
        "custom_reward_manager",
        NoEffect("no module is named to look in"),
    ),
    key("reward.reward_kwargs.overlong_buffer_cfg.enable", "False", By(rewards::REWARDS, "reward")),
    key("reward.reward_kwargs.overlong_buffer_cfg.len", "0", By(rewards::REWARDS, "reward")),
    key("reward.reward_kwargs.overlong_buffer_cfg.penalty_factor", "0.0", By(rewards::REWARDS, "reward")),
    key("reward.reward_kwargs.overlong_buffer_cfg.log", "False", NoEffect(LOGGED)),
    key("reward.reward_kwargs.max_resp_len", "", By(rewards::REWARDS, "reward")),
    key("reward.reward_kwargs.*", "", Unless(&[], KWARGS)),
    key("reward.reward_model.enable", "False", By(rewards::REWARDS, "reward")),
    key("reward.reward_model.model_path", "null", By(rewards::REWARDS, "reward")),
    key("reward.reward_model.*", "", NoEffect(LOADED)),
    key("reward.sandbox_fusion.url", "null", Unless(NULL, SANDBOX)),
    key("reward.sandbox_fusion.*", "", NoEffect("code is not run in a sandbox service")),
    key("custom_reward_function.path", "null", By(rewards::REWARDS, "reward")),
    key("custom_reward_function.name", "compute_score", By(rewards::REWARDS, "reward")),
    key("custom_reward_function.reward_kwargs.*", "", By(rewards::REWARDS, "reward")),
    key("custom_reward_function.overlong_buffer.enable", "False", By(rewards::REWARDS, "reward")),
    key("custom_reward_function.overlong_buffer.len", "0", By(rewards::REWARDS, "reward")),
    key("custom_reward_function.overlong_buffer.penalty_factor", "0.0", By(rewards::REWARDS, "reward")),
    key("custom_reward_function.overlong_buffer.log", "False", NoEffect(LOGGED)),
    key("reward_model.num_workers", "", By(rewards::REWARDS, "reward")),
    key("reward_model.reward_manager", "naive", By(rewards::REWARDS, "reward")),
    key("reward_model.reward_loop_source", "", Unless(&["register", "null", "None"], MANAGER)),
    key("reward_model.reward_loop_module_path", "", Unless(NULL, MANAGER)),
    key("reward_model.reward_loop_class_name", "", NoEffect("no module is named to look in")),
    key("reward_model.launch_reward_fn_async", "", NoEffect("rewards are computed while others generate")),
    key("reward_model.reward_kwargs.overlong_buffer_cfg.enable", "False", By(rewards::REWARDS, "reward")),
    key("reward_model.reward_kwargs.overlong_buffer_cfg.len", "0", By(rewards::REWARDS, "reward")),
    key(
        "reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor",
        "0.0",
        By(rewards::REWARDS, "reward"),
    ),
    key("reward_model.reward_kwargs.overlong_buffer_cfg.log", "False", NoEffect(LOGGED)),
    key("reward_model.reward_kwargs.max_resp_len", "", By(rewards::REWARDS, "reward")),
    key("reward_model.reward_kwargs.*", "", Unless(&[], KWARGS)),
    key("reward_model.overlong_buffer.enable", "False", By(rewards::REWARDS, "reward")),
    key("reward_model.overlong_buffer.len", "0", By(rewards::REWARDS, "reward")),
    key("reward_model.overlong_buffer.penalty_factor", "0.0", By(rewards::REWARDS, "reward")),
    key("reward_model.overlong_buffer.log", "False", NoEffect(LOGGED)),
    key("reward_model.max_resp_len", "", By(rewards::REWARDS, "reward")),
    key("reward_model.enable", "False", By(rewards::REWARDS, "reward")),
    key("reward_model.sandbox_fusion.url", "null", Unless(NULL, SANDBOX)),
    key("reward_model.sandbox_fusion.*", "", NoEffect("code is not run in a sandbox service")),
    key("reward_model.model.path", "", By(rewards::REWARDS, "reward")),
    key(
        "reward_model.model.input_tokenizer",
        "",
        NoEffect("the reward model's own tokenizer and chat template read the text of prompt and completion"),
    ),
    key("reward_model.model.*", "", NoEffect(LOADED)),
    key("reward_model.rollout.*", "", NoEffect(LOADED)),
    key("reward_model.megatron.*", "", NoEffect(LOADED)),
    key("reward_model.profiler.*", "", NoEffect(LOADED)),
    key("reward_model.strategy", "", NoEffect(LOADED)),
    key("reward_model.use_reward_loop", "", NoEffect(LOADED)),
    key("reward_model.enable_resource_pool", "", NoEffect(LOADED)),
    key("reward_model.n_gpus_per_node", "", NoEffect(LOADED)),
    key("reward_model.nnodes", "", NoEffect(LOADED)),
    key("reward_model.micro_batch_size", "", By(rewards::REWARDS, "reward")),
    key("reward_model.micro_batch_size_per_gpu", "", By(rewards::REWARDS, "reward")),
    key("reward_model.max_length", "", By(rewards::REWARDS, "reward")),
    key("reward_model.use_dynamic_bsz", "", NoEffect(LOADED)),
    key("reward_model.forward_max_token_len_per_gpu", "", NoEffect(LOADED)),
    key("reward_model.ulysses_sequence_parallel_size", "", NoEffect(LOADED)),
    key("sandbox_fusion.url", "null", Unless(NULL, SANDBOX)),
    key("sandbox_fusion.max_concurrent", "", NoEffect("code is not run in a sandbox service")),
    key("sandbox_fusion.memory_limit_mb", "", NoEffect("code is not run in a sandbox service")),
];
