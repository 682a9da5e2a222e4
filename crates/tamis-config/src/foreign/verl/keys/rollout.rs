//! Rollouts and the servers that give them.

use super::{
    DEVICES, FALSE, KEPT, NO_CACHE, NO_MTP, NO_REPLAY, NO_TOOLS, NULL, ROUTER_REPLAY, ROUTERS, SEEDED, SHARED,
};
use crate::foreign::key::Becomes::{By, Key, NoEffect, Unless};
use crate::foreign::key::{ForeignKey, key};
use crate::foreign::shared::{images, run};
use crate::foreign::verl::rules;

const ENGINE: &str =
    "it tunes the engine that samples in verl: that of tamis, and the servers that a run starts, do without";

pub(super) const KEYS: &[ForeignKey] = &[
    key("actor_rollout_ref.rollout.name", "", By(rules::SERVERS, "rollout.backend rollout.launch")),
    key(
        "actor_rollout_ref.rollout.mode",
        "",
        NoEffect("completions are asked for one by one, as in verl's `async`"),
    ),
    key("actor_rollout_ref.rollout.n", "1", Key("rollout.n")),
    key("actor_rollout_ref.rollout.temperature", "1.0", Key("rollout.temperature")),
    key("actor_rollout_ref.rollout.top_p", "1", Key("rollout.top_p")),
    key("actor_rollout_ref.rollout.top_k", "-1", By(rules::TOP_K, "rollout.top_k")),
    key(
        "actor_rollout_ref.rollout.do_sample",
        "True",
        Unless(&["True", "true"], "a group of greedy completions has one text"),
    ),
    key("actor_rollout_ref.rollout.repetition_penalty", "1.0", Key("rollout.repetition_penalty")),
    key("actor_rollout_ref.rollout.max_num_seqs", "256", Key("rollout.max_num_seqs")),
    key("actor_rollout_ref.rollout.val_kwargs.n", "1", Key("validate.n")),
    key(
        "actor_rollout_ref.rollout.val_kwargs.temperature",
        "0",
        By(rules::VALIDATION, "validate.temperature"),
    ),
    key(
        "actor_rollout_ref.rollout.val_kwargs.do_sample",
        "False",
        By(rules::VALIDATION, "validate.temperature"),
    ),
    key("actor_rollout_ref.rollout.val_kwargs.top_p", "1.0", Key("validate.top_p")),
    key("actor_rollout_ref.rollout.val_kwargs.top_k", "-1", Unless(&["-1", "0"], "validation has no top-k")),
    key(
        "actor_rollout_ref.rollout.multi_turn.enable",
        "False",
        Unless(FALSE, "several turns are those of the section `environment`, such as `kind: tools`"),
    ),
    key(
        "actor_rollout_ref.rollout.multi_turn.*",
        "",
        NoEffect("several turns are those of the section `environment`, such as `kind: tools`"),
    ),
    key("actor_rollout_ref.rollout.calculate_log_probs", "", NoEffect(KEPT)),
    key("actor_rollout_ref.rollout.log_prob_micro_batch_size", "", NoEffect(KEPT)),
    key("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", "", NoEffect(KEPT)),
    key("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz", "", NoEffect(KEPT)),
    key("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", "", NoEffect(KEPT)),
    key("actor_rollout_ref.rollout.prompt_length", "", NoEffect("`data.max_prompt_length` says it")),
    key("actor_rollout_ref.rollout.response_length", "", NoEffect("`rollout.max_response_length` says it")),
    key(
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
        "2",
        By(rules::SERVERS, "rollout.launch.tensor_parallel"),
    ),
    key("actor_rollout_ref.rollout.data_parallel_size", "", NoEffect(DEVICES)),
    key("actor_rollout_ref.rollout.gpu_memory_utilization", "0.5", By(rules::SERVERS, "rollout.launch.args")),
    key("actor_rollout_ref.rollout.max_num_batched_tokens", "", By(rules::SERVERS, "rollout.launch.args")),
    key("actor_rollout_ref.rollout.max_model_len", "", By(rules::SERVERS, "rollout.launch.args")),
    key("actor_rollout_ref.rollout.enforce_eager", "", By(rules::SERVERS, "rollout.launch.args")),
    key("actor_rollout_ref.rollout.free_cache_engine", "True", By(rules::SERVERS, "rollout.sleep_level")),
    key("actor_rollout_ref.rollout.enable_chunked_prefill", "", By(rules::SERVERS, "rollout.launch.args")),
    key("actor_rollout_ref.rollout.enable_prefix_caching", "", By(rules::SERVERS, "rollout.launch.args")),
    key("actor_rollout_ref.rollout.load_format", "", NoEffect(ENGINE)),
    key("actor_rollout_ref.rollout.dtype", "", By(rules::SERVERS, "rollout.launch.args")),
    key("actor_rollout_ref.rollout.ignore_eos", "False", Unless(FALSE, "completions end at the end token")),
    key("actor_rollout_ref.rollout.disable_log_stats", "", NoEffect(ENGINE)),
    key(
        "actor_rollout_ref.rollout.agent.default_agent_loop",
        "single_turn_agent",
        Unless(&["single_turn_agent"], NO_TOOLS),
    ),
    key("actor_rollout_ref.rollout.agent.agent_loop_config_path", "null", Unless(NULL, NO_TOOLS)),
    key(
        "actor_rollout_ref.rollout.agent.custom_async_server.path",
        "null",
        Unless(NULL, "the native engine generates"),
    ),
    key("actor_rollout_ref.rollout.agent.custom_async_server.name", "", NoEffect(ENGINE)),
    key("actor_rollout_ref.rollout.agent.num_workers", "", NoEffect(ENGINE)),
    key("actor_rollout_ref.rollout.engine_kwargs.*", "", By(rules::SERVERS, "rollout.launch.args")),
    key(
        "actor_rollout_ref.rollout.checkpoint_engine.backend",
        "",
        NoEffect(
            "servers read weights from a folder; `publish.mode: nccl` sends them over NCCL to vLLM servers on GPUs of \
             their own",
        ),
    ),
    key("actor_rollout_ref.rollout.checkpoint_engine.*", "", NoEffect(SHARED)),
    key("actor_rollout_ref.rollout.update_weights_bucket_megabytes", "", NoEffect(SHARED)),
    key("actor_rollout_ref.rollout.layered_summon", "", NoEffect(SHARED)),
    key("actor_rollout_ref.rollout.cudagraph_capture_sizes", "", NoEffect(DEVICES)),
    key("actor_rollout_ref.rollout.disaggregation.*", "", NoEffect(DEVICES)),
    key("actor_rollout_ref.rollout.enable_sleep_mode", "", NoEffect(DEVICES)),
    key("actor_rollout_ref.rollout.multi_stage_wake_up", "", NoEffect(DEVICES)),
    key("actor_rollout_ref.rollout.expert_parallel_size", "", NoEffect(DEVICES)),
    key("actor_rollout_ref.rollout.pipeline_model_parallel_size", "", NoEffect(DEVICES)),
    key("actor_rollout_ref.rollout.n_gpus_per_node", "8", By(rules::SERVERS, "rollout.launch.replicas")),
    key("actor_rollout_ref.rollout.nnodes", "0", By(rules::SERVERS, "rollout.launch.replicas")),
    key("actor_rollout_ref.rollout.standalone_gpu_memory_utilization", "", NoEffect(DEVICES)),
    key("actor_rollout_ref.rollout.enable_rollout_routing_replay", "False", Unless(FALSE, ROUTER_REPLAY)),
    key("actor_rollout_ref.rollout.moe_load_balance_metrics_interval", "", NoEffect(ROUTERS)),
    key("actor_rollout_ref.rollout.full_determinism", "False", NoEffect(run::EQUAL_RUNS)),
    key("actor_rollout_ref.rollout.seed", "", NoEffect(SEEDED)),
    key(
        "actor_rollout_ref.rollout.logprobs_mode",
        "",
        NoEffect("log-probabilities are those of softmax(logits / temperature)"),
    ),
    key("actor_rollout_ref.rollout.mtp", "", NoEffect(NO_MTP)),
    key("actor_rollout_ref.rollout.mtp.*", "", NoEffect(NO_MTP)),
    key(
        "actor_rollout_ref.rollout.over_sample_rate",
        "0",
        NoEffect("every group is generated whole, none is cut off because others are done"),
    ),
    key("actor_rollout_ref.rollout.profiler.*", "", NoEffect(DEVICES)),
    key(
        "actor_rollout_ref.rollout.prometheus.*",
        "",
        NoEffect("figures go to metrics.jsonl and TensorBoard files"),
    ),
    key("actor_rollout_ref.rollout.qat", "", NoEffect("computation is in f32")),
    key("actor_rollout_ref.rollout.qat.*", "", NoEffect("computation is in f32")),
    key("actor_rollout_ref.rollout.quantization", "", By(rules::SERVERS, "rollout.launch.args")),
    key("actor_rollout_ref.rollout.quantization.*", "", NoEffect("computation is in f32")),
    key("actor_rollout_ref.rollout.quantization_config_file", "", NoEffect("computation is in f32")),
    key("actor_rollout_ref.rollout.limit_images", "", NoEffect(images::LIMIT)),
    key("actor_rollout_ref.rollout.router_config_path", "", NoEffect(ENGINE)),
    key("actor_rollout_ref.rollout.scheduling_policy", "", By(rules::SERVERS, "rollout.launch.args")),
    key("actor_rollout_ref.rollout.skip_tokenizer_init", "", NoEffect(ENGINE)),
    key("actor_rollout_ref.rollout.skip_rollout", "False", Unless(FALSE, NO_CACHE)),
    key("actor_rollout_ref.rollout.skip_dump_dir", "", NoEffect(NO_REPLAY)),
    key("actor_rollout_ref.rollout.skip.*", "", NoEffect(NO_REPLAY)),
    key("actor_rollout_ref.rollout.trace.*", "", NoEffect("`rollout.save` writes every trajectory")),
];
