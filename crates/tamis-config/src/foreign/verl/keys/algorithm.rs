//! The algorithm: advantages, KL, filters.

use super::{FALSE, NULL};
use crate::foreign::key::Becomes::{By, Key, NoEffect, Unless};
use crate::foreign::key::{ForeignKey, key};
use crate::foreign::verl::{correction, objective, rules};

pub(super) const KEYS: &[ForeignKey] = &[
    key("algorithm.adv_estimator", "gae", By(objective::ADVANTAGE, "objective.advantage.kind preset")),
    key(
        "algorithm.norm_adv_by_std_in_grpo",
        "True",
        By(objective::ADVANTAGE, "objective.advantage.scale objective.advantage.divide"),
    ),
    key("algorithm.gamma", "1.0", Key("objective.advantage.gamma")),
    key("algorithm.lam", "1.0", Key("objective.advantage.lambda")),
    key(
        "algorithm.filter_groups.enable",
        "False",
        By(
            rules::FILTER_GROUPS,
            "filter.kind filter.singleton schedule.refill schedule.on_limit schedule.on_exhausted schedule.surplus",
        ),
    ),
    key("algorithm.filter_groups.metric", "reward", By(rules::FILTER_GROUPS, "filter.metric")),
    key(
        "algorithm.filter_groups.max_num_gen_batches",
        "0",
        By(rules::FILTER_GROUPS, "schedule.max_num_gen_batches"),
    ),
    key(
        "algorithm.filter_groups.max_inflight_gen_batches",
        "1",
        By(rules::FILTER_GROUPS, "schedule.rounds_in_flight"),
    ),
    key("algorithm.use_kl_in_reward", "False", By(rules::KL, "objective.kl.in")),
    key("algorithm.kl_penalty", "kl", By(rules::KL, "objective.kl.estimator")),
    key("algorithm.kl_ctrl.type", "fixed", By(rules::KL, "objective.kl.adaptive")),
    key("algorithm.kl_ctrl.kl_coef", "0.001", By(rules::KL, "objective.kl.coefficient")),
    key("algorithm.kl_ctrl.horizon", "10000", By(rules::KL, "objective.kl.adaptive")),
    key("algorithm.kl_ctrl.target_kl", "0.1", By(rules::KL, "objective.kl.adaptive")),
    key("algorithm.use_pf_ppo", "False", Unless(FALSE, "resampling by reward is not there yet")),
    key("algorithm.pf_ppo.*", "", NoEffect("nothing is resampled by reward")),
    key(
        "algorithm.rollout_correction.rollout_is",
        "null",
        By(correction::CORRECTION, "objective.correction.weights"),
    ),
    key(
        "algorithm.rollout_correction.rollout_is_threshold",
        "2.0",
        By(correction::CORRECTION, "objective.correction.weights"),
    ),
    key(
        "algorithm.rollout_correction.rollout_is_batch_normalize",
        "False",
        By(correction::CORRECTION, "objective.correction.weights"),
    ),
    key(
        "algorithm.rollout_correction.rollout_rs",
        "null",
        By(correction::CORRECTION, "objective.correction.rejections"),
    ),
    key(
        "algorithm.rollout_correction.rollout_rs_threshold",
        "null",
        By(correction::CORRECTION, "objective.correction.rejections"),
    ),
    key(
        "algorithm.rollout_correction.bypass_mode",
        "False",
        By(correction::CORRECTION, "objective.correction.preset"),
    ),
    key(
        "algorithm.rollout_correction.loss_type",
        "ppo_clip",
        By(correction::CORRECTION, "objective.loss.kind"),
    ),
    key(
        "algorithm.rollout_correction.rollout_rs_threshold_lower",
        "null",
        Unless(NULL, "write both bounds into rollout_rs_threshold, as `0.5_2.0`"),
    ),
    key(
        "algorithm.rollout_correction.rollout_token_veto_threshold",
        "null",
        Unless(
            NULL,
            "one token vetoes no trajectory here: `rollout_rs=seq_max_k2` rejects by the largest divergence",
        ),
    ),
    key("algorithm.gdpo_reward_keys", "null", By(objective::ADVANTAGE, "reward")),
    key("algorithm.gdpo_reward_weights", "null", By(objective::ADVANTAGE, "reward")),
    key(
        "algorithm.rollout_is",
        "",
        NoEffect("generation and training agree bit for bit here, there is nothing to correct"),
    ),
    key(
        "algorithm.gold_as_hint",
        "False",
        NoEffect("the estimator `cpo` always shows the gold answer, no other does"),
    ),
    key("actor_rollout_ref.actor.wrap_method", "seq_kl", By(objective::CPO_WRAP, "objective.advantage.wrap")),
    key("actor_rollout_ref.actor.pos_alpha", "0.0", Key("objective.advantage.pos_alpha")),
    key("actor_rollout_ref.actor.neg_alpha", "1.0", Key("objective.advantage.neg_alpha")),
    key(
        "actor_rollout_ref.actor.cpo_lambda",
        "2.0",
        NoEffect("the fork's `seq_kl` and `tok_kl` do not read it"),
    ),
    key(
        "actor_rollout_ref.actor.loss_position",
        "all",
        Unless(&["all"], "for the tokens of highest entropy set objective.masks.top_entropy: 0.2"),
    ),
];
