//! RAGEN's own keys; the others are verl's.

use super::Becomes::{Key, NoEffect, Rule as By, Unless};
use super::{ForeignKey, Rule};

const fn key(key: &'static str, default: &'static str, becomes: super::Becomes) -> ForeignKey {
    ForeignKey { key, default, becomes }
}

const FILTER: &str = "filter filter.kind filter.p filter.k filter.fraction";
const TURNS: &str = "multi-turn environments are not there yet";

pub(super) const KEYS: &[ForeignKey] = &[
    key("actor_rollout_ref.rollout.rollout_filter_strategy", "top_p", By(Rule::RolloutFilter, FILTER)),
    key("actor_rollout_ref.rollout.rollout_filter_value", "1.0", By(Rule::RolloutFilter, FILTER)),
    key("actor_rollout_ref.rollout.rollout_filter_ratio", "", By(Rule::RolloutFilter, FILTER)),
    key(
        "actor_rollout_ref.rollout.rollout_filter_include_zero",
        "True",
        By(Rule::RolloutFilter, "filter filter.include_zero"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_metric",
        "reward_variance",
        By(Rule::RolloutFilter, "filter filter.metric filter.score filter.ddof"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_type",
        "largest",
        By(Rule::RolloutFilter, "filter filter.prefer"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_top_p_prob_mode",
        "softmax",
        By(Rule::RolloutFilter, "filter filter.mass"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_selection_eps",
        "0.01",
        By(Rule::RolloutFilter, "filter filter.slack"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_percentile_low",
        "0.0",
        By(Rule::RolloutFilter, "filter filter.low"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_percentile_high",
        "1.0",
        By(Rule::RolloutFilter, "filter filter.high"),
    ),
    key(
        "actor_rollout_ref.rollout.rollout_filter_empty_stop_steps",
        "",
        By(Rule::RolloutFilter, "schedule.on_empty_round train.early_stop.empty_steps"),
    ),
    key(
        "actor_rollout_ref.actor.filter_loss_scaling",
        "none",
        Unless(&["none"], "scaling the loss by the kept share is not there yet"),
    ),
    key("es_manager.train.env_groups", "8", Key("data.train_batch_size")),
    key("es_manager.train.group_size", "16", Key("rollout.n")),
    key("es_manager.*", "", Unless(&[], TURNS)),
    key("agent_proxy.max_turn", "5", Unless(&["1"], TURNS)),
    key("agent_proxy.*", "", NoEffect(TURNS)),
    key("ctx_manager.*", "", NoEffect(TURNS)),
    key("custom_envs.*", "", Unless(&[], TURNS)),
    key("algorithm.bi_level_gae", "False", Unless(&["False", "false"], "there is no critic yet")),
    key("algorithm.high_level_gamma", "0.95", NoEffect("there is no critic yet")),
    key(
        "algorithm.soft_advantage_reweight",
        "False",
        Unless(&["False", "false"], "weighting groups by their deviation is not there yet"),
    ),
];
