//! RAGEN's own keys; the others are verl's.
//!
//! ```text
//! tags -> played: which environments, if any -> environments: kind and settings of each (env_type, symbols)
//! n_groups -> shares: how many levels each environment has
//! agent_proxy, es_manager -> episodes: turns, actions, rewards; context: what a turn sees
//! ```

mod context;
mod env_type;
mod environments;
mod episodes;
mod filter;
mod played;
mod rules;
mod shares;
mod symbols;
mod tags;

pub(super) use episodes::PLAYED_DEFAULTS;
pub(super) use rules::SIZES;
pub(super) use rules::defaults;

use super::key::Becomes::{By, Key, NoEffect, Unless};
use super::key::{ForeignKey, key};

const FILTER: &str = "filter filter.kind filter.p filter.k filter.fraction";
const GENERATION: &str = "RAGEN does not read it: its engine takes what `actor_rollout_ref.rollout` says";
const NO_PENALTY: &str = "a penalty of this kind is not there: `environment.prompting.format_penalty` is";
const ANY_SIZE: &str = "a batch may be of any size: nothing is copied or left out to fit it";

/// Defaults of RAGEN's base configuration where it has others than verl: its key, its default, ours, and the
/// value of ours.
pub(super) const DEFAULTS: &[(&str, &str, &str, &str)] = &[
    ("es_manager.train.env_groups", "8", "data.train_batch_size", "8"),
    ("es_manager.train.group_size", "16", "rollout.n", "16"),
    ("actor_rollout_ref.rollout.response_length", "400", "rollout.max_response_length", "400"),
    ("actor_rollout_ref.actor.clip_ratio_high", "0.28", "objective.loss.clip_high", "0.28"),
    ("actor_rollout_ref.actor.entropy_coeff", "0.001", "objective.entropy.coefficient", "0.001"),
    ("seed.train", "10000", "run.seed", "10000"),
    ("trainer.total_training_steps", "200", "train.total_steps", "200"),
    ("trainer.save_freq", "100", "checkpoint.save_freq", "100"),
];

/// As [`DEFAULTS`], where there are validation prompts.
pub(super) const VALIDATION_DEFAULTS: &[(&str, &str, &str, &str)] = &[
    ("trainer.test_freq", "10", "validate.test_freq", "10"),
    ("actor_rollout_ref.rollout.val_kwargs.temperature", "0.5", "validate.temperature", "0.5"),
];

/// Early stops that RAGEN always has; the second where there are validation prompts.
pub(super) const STOPS: [(&str, &str, &str, &str); 2] = [
    (
        "a stop where rewards no longer vary",
        "always on",
        "train.early_stop.reward_collapse",
        "{form: steps, baseline_steps: 10, window: 10, share: 0.1}",
    ),
    (
        "a stop where validation fails",
        "always on",
        "train.early_stop.low_success",
        "{floor: 0.01, patience: 5}",
    ),
];

pub(super) const KEYS: &[ForeignKey] = &[
    key("model_path", "", Key("model.path")),
    key("seed.train", "10000", Key("run.seed")),
    key("seed.val", "123", NoEffect("`run.seed` keys every draw, those of validation too")),
    key("ppo_mini_batch_size", "32", By(rules::SIZES, "train.ppo_mini_batch_size")),
    key("micro_batch_size_per_gpu", "4", Key("train.micro_batch_size")),
    key(
        "log_prob_micro_batch_size_per_gpu",
        "4",
        NoEffect("the log-probabilities of generation are kept: there is no second pass"),
    ),
    key(
        "enable_response_mask",
        "True",
        Unless(&["True", "true"], "only completions are trained on, never prompts"),
    ),
    key("grpo_advantage_length_weight", "False", By(rules::SHAPINGS, "objective.shaping")),
    key("lora.rank", "0", By(rules::ADAPTER, "learner.backend learner.lora")),
    key("lora.alpha", "64", By(rules::ADAPTER, "learner.lora")),
    key("lora.target_modules", "all-linear", By(rules::ADAPTER, "learner.lora")),
    key("lora.*", "", NoEffect("an adapter has a rank, a scale and layers, and nothing else")),
    key("system.*", "", NoEffect("devices and machines are set up by the sections `learner` and `cluster`")),
    key(
        "collapse_detection.*",
        "",
        NoEffect(
            "its measures need every completion scored under every prompt; tamis logs its own, collapse/*, in every step",
        ),
    ),
    key("actor_rollout_ref.rollout.rollout_filter_strategy", "top_p", By(filter::ROLLOUT_FILTER, FILTER)),
    key("actor_rollout_ref.rollout.rollout_filter_value", "1.0", By(filter::ROLLOUT_FILTER, FILTER)),
    key("actor_rollout_ref.rollout.rollout_filter_ratio", "", By(filter::ROLLOUT_FILTER, FILTER)),
    key(
        "actor_rollout_ref.rollout.rollout_filter_include_zero",
        "True",
        By(filter::ROLLOUT_FILTER, "filter filter.include_zero"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_metric",
        "reward_variance",
        By(filter::ROLLOUT_FILTER, "filter filter.metric filter.score filter.ddof"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_type",
        "largest",
        By(filter::ROLLOUT_FILTER, "filter filter.prefer"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_top_p_prob_mode",
        "softmax",
        By(filter::ROLLOUT_FILTER, "filter filter.mass"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_selection_eps",
        "0.01",
        By(filter::ROLLOUT_FILTER, "filter filter.slack"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_percentile_low",
        "0.0",
        By(filter::ROLLOUT_FILTER, "filter filter.low"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_percentile_high",
        "1.0",
        By(filter::ROLLOUT_FILTER, "filter filter.high"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_empty_stop_steps",
        "",
        By(filter::ROLLOUT_FILTER, "schedule.on_empty_round train.early_stop.empty_steps"),
    ),
    key("actor_rollout_ref.actor.filter_loss_scaling", "none", By(rules::SHAPINGS, "objective.shaping")),
    key("es_manager.train.env_groups", "8", Key("data.train_batch_size")),
    key("es_manager.train.group_size", "16", By(rules::SIZES, "rollout.n train.ppo_mini_batch_size")),
    key(
        "es_manager.val.env_groups",
        "512",
        By(episodes::EPISODES, "environment.val_size validate.max_prompts"),
    ),
    key("es_manager.val.group_size", "1", Key("validate.n")),
    key("es_manager.format_penalty", "-0.1", By(episodes::EPISODES, "environment.prompting.format_penalty")),
    key("es_manager.step_penalty", "0.0", Unless(&["0", "0.0"], NO_PENALTY)),
    key("es_manager.think_quality_penalty", "0.0", Unless(&["0", "0.0"], NO_PENALTY)),
    key(
        "es_manager.train.env_configs.tags",
        "[CoordSokoban]",
        By(environments::ENVIRONMENT, "data.task environment.kind environment.name more_environments"),
    ),
    key(
        "es_manager.train.env_configs.n_groups",
        "[8]",
        By(environments::ENVIRONMENT, "environment.train_size more_environments"),
    ),
    key(
        "es_manager.val.env_configs.tags",
        "[CoordSokoban]",
        By(environments::ENVIRONMENT, "more_environments"),
    ),
    key(
        "es_manager.val.env_configs.n_groups",
        "[512]",
        By(environments::ENVIRONMENT, "environment.val_size more_environments"),
    ),
    key(
        "actor_rollout_ref.rollout.tp_size_check",
        "True",
        NoEffect("devices and machines are set up by the sections `learner` and `cluster`"),
    ),
    key("agent_proxy.max_turn", "5", By(episodes::EPISODES, "environment.prompting.max_turns")),
    key("agent_proxy.context_window_mode", "full", By(episodes::EPISODES, "environment.context")),
    key("agent_proxy.max_context_window", "-1", By(episodes::EPISODES, "environment.max_context_window")),
    key(
        "agent_proxy.without_history",
        "False",
        By(episodes::EPISODES, "environment.context environment.max_context_window"),
    ),
    key("agent_proxy.enable_summary_memory", "False", By(episodes::EPISODES, "environment.context")),
    key(
        "agent_proxy.use_turn_scores",
        "False",
        By(episodes::EPISODES, "environment.prompting.format_penalty"),
    ),
    key("agent_proxy.action_sep", "||", By(episodes::EPISODES, "environment.prompting.action_separator")),
    key(
        "agent_proxy.max_actions_per_turn",
        "2",
        By(episodes::EPISODES, "environment.prompting.max_actions_per_turn"),
    ),
    key("agent_proxy.enable_think", "True", By(episodes::EPISODES, "environment.prompting.think")),
    key("agent_proxy.batch_adjust_mode", "copy", NoEffect(ANY_SIZE)),
    key("agent_proxy.batch_adjust_empty_stop_steps", "5", NoEffect(ANY_SIZE)),
    key(
        "agent_proxy.reward_normalization.method",
        "identity",
        Unless(&["identity"], "rewards are compared within groups by the advantage: normalise there"),
    ),
    key(
        "agent_proxy.reward_normalization.grouping",
        "state",
        NoEffect("`identity` leaves rewards as they are"),
    ),
    key("ctx_manager.generation.gen_config.response_length", "", NoEffect(GENERATION)),
    key("ctx_manager.generation.gen_config.temperature", "", NoEffect(GENERATION)),
    key("ctx_manager.generation.gen_config.top_p", "", NoEffect(GENERATION)),
    key("ctx_manager.generation.gen_config.top_k", "", NoEffect(GENERATION)),
    key("ctx_manager.generation.gen_config.kwargs", "null", NoEffect(GENERATION)),
    key(
        "custom_envs.*",
        "",
        By(
            environments::ENVIRONMENT,
            "environment.kind environment.prompting.max_actions environment.prompting.max_tokens \
             environment.prompting.instruction",
        ),
    ),
    key(
        "actor_rollout_ref.actor.micro_batch_size_per_gpu",
        "",
        NoEffect("ppo_micro_batch_size_per_gpu says it"),
    ),
    key("actor_rollout_ref.actor.use_ref", "True", NoEffect("the reference is run where a KL is on")),
    key(
        "actor_rollout_ref.actor.grpo_advantage_length_weight",
        "False",
        By(rules::SHAPINGS, "objective.shaping"),
    ),
    key(
        "actor_rollout_ref.rollout.val_kwargs.logprobs",
        "",
        NoEffect("log-probabilities are kept of the tokens that were sampled, of no others"),
    ),
    key(
        "actor_rollout_ref.rollout.gradient_analysis_num_buckets",
        "6",
        By(rules::GRADIENT_ANALYSIS, "train.gradient_analysis.buckets"),
    ),
    key(
        "actor_rollout_ref.rollout.gradient_analysis_bucket_mode",
        "quantile",
        By(rules::GRADIENT_ANALYSIS, "train.gradient_analysis.edges"),
    ),
    key("output.*", "", NoEffect("rollouts are written to the run folder, as `rollout.save` says")),
    key("trainer.log_group_rv_table", "False", NoEffect("rollout files hold the scores of every group")),
    key("algorithm.bi_level_gae", "False", By(rules::BI_LEVEL_GAE, "objective.advantage.kind")),
    key("algorithm.high_level_gamma", "0.95", Key("objective.advantage.turn_gamma")),
    key(
        "algorithm.zero_task_advantage",
        "False",
        Unless(&["False", "false"], "switching the task's advantage off is not there"),
    ),
    key("algorithm.soft_advantage_reweight", "False", By(rules::SHAPINGS, "objective.shaping")),
    key("trainer.local_log_dir", "results/", NoEffect("logs are in the run folder, `run.dir/run.name`")),
    key(
        "trainer.validation_steps",
        "1",
        NoEffect("every validation prompt is used, up to `validate.max_prompts`"),
    ),
    key(
        "trainer.generations_to_log_to_wandb.*",
        "",
        NoEffect("`validate.num_samples_shown` says how many are printed"),
    ),
    key("trainer.gradient_analysis_mode", "False", By(rules::GRADIENT_ANALYSIS, "train.gradient_analysis")),
    key(
        "trainer.gradient_analysis_every",
        "50",
        By(rules::GRADIENT_ANALYSIS, "train.gradient_analysis.every"),
    ),
    key(
        "trainer.gradient_analysis_num_buckets",
        "6",
        By(rules::GRADIENT_ANALYSIS, "train.gradient_analysis.buckets"),
    ),
    key(
        "trainer.gradient_analysis_bucket_mode",
        "quantile",
        By(rules::GRADIENT_ANALYSIS, "train.gradient_analysis.edges"),
    ),
    key(
        "trainer.gradient_analysis_only",
        "False",
        Unless(&["False", "false"], "a run that measures and does not train is not there"),
    ),
    key(
        "trainer.exit_after_gradient_analysis",
        "False",
        Unless(
            &["False", "false"],
            "a run that ends after a measurement is not there: set `train.total_steps`",
        ),
    ),
];
