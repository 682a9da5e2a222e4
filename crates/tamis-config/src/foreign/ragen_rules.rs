//! Keys of RAGEN that mean something only together.

use super::Owner;
use super::translate::Translator;

pub(super) fn rollout_filter(t: &mut Translator) {
    const STRATEGY: &str = "actor_rollout_ref.rollout.rollout_filter_strategy";
    const VALUE: &str = "actor_rollout_ref.rollout.rollout_filter_value";
    const RATIO: &str = "actor_rollout_ref.rollout.rollout_filter_ratio";
    const ZERO: &str = "actor_rollout_ref.rollout.rollout_filter_include_zero";
    const METRIC: &str = "actor_rollout_ref.rollout.rollout_filter_metric";
    let all = [STRATEGY, VALUE, RATIO, ZERO, METRIC];
    let value = if t.find(VALUE).is_some() { t.number(VALUE) } else { t.number(RATIO).or(Some(1.0)) };
    let is_top_p = t.text(STRATEGY).is_none_or(|strategy| strategy == "top_p");
    let by_variance =
        t.text(METRIC).is_none_or(|metric| matches!(metric.as_str(), "reward_variance" | "reward_std"));
    let keeps_all = is_top_p && value.is_some_and(|value| value >= 1.0);
    if keeps_all && t.flag(ZERO, true) {
        t.set(&all, "filter", "null");
        for key in all {
            t.no_effect(key, "with the value 1 and include_zero every group is kept");
        }
        return;
    }
    if keeps_all && by_variance {
        for (ours, value) in [
            ("filter.kind", "variance"),
            ("filter.metric", "seq_reward"),
            ("filter.singleton", "drop"),
            ("schedule.refill", "false"),
            ("schedule.on_empty_round", "skip"),
        ] {
            t.set(&[ZERO], ours, value);
        }
        for key in all {
            t.no_effect(key, "every group with a spread is kept");
        }
        return;
    }
    if let Some(key) = t.first_given(&all) {
        t.refuse(
            &key,
            "filters over the pool of a round (top_p, top_k, min_p) are not there yet; what there is of RAGEN is \
             rollout_filter_value=1.0 with rollout_filter_include_zero=False, which drops the groups without spread",
        );
    }
}

/// Groups of RAGEN, and its mini-batches: verl multiplies `ppo_mini_batch_size` by its own `rollout.n`, which is 1 in RAGEN, so there it
/// counts trajectories.
pub(super) fn sizes(t: &mut Translator) {
    const GROUP: &str = "es_manager.train.group_size";
    const MINI: [&str; 2] = ["ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"];
    const LENGTH: &str = "actor_rollout_ref.rollout.response_length";
    let group = t.number(GROUP);
    if let Some(group) = group {
        t.set(&[GROUP], "rollout.n", &group.to_string());
    }
    if let Some(length) = t.text(LENGTH) {
        t.set(&[LENGTH], "rollout.max_response_length", &length);
    }
    let given = t.first_given(&MINI);
    let trajectories = match &given {
        Some(key) => t.number(key),
        None if t.whole => Some(32.0),
        None => None,
    };
    let Some(trajectories) = trajectories else { return };
    let Some(group) = group.or(if t.whole { Some(16.0) } else { None }) else {
        if let Some(key) = given {
            t.refuse(&key, "in RAGEN it counts trajectories: give es_manager.train.group_size beside it, or train.ppo_mini_batch_size in prompts");
        }
        return;
    };
    let prompts = trajectories / group;
    match given {
        Some(key) if prompts.fract() != 0.0 || prompts < 1.0 => {
            t.refuse(
                &key,
                format!(
                    "it counts trajectories, which come in groups of {group}: take a multiple of {group}"
                ),
            );
        }
        Some(key) => {
            t.set(&[&key], "train.ppo_mini_batch_size", &prompts.to_string());
            t.remark(
                &key,
                &format!(
                    "it counts trajectories there and prompts here: {trajectories} in groups of {group}"
                ),
            );
        }
        None if prompts.fract() == 0.0 && prompts >= 1.0 => {
            t.default(Owner::Ragen, MINI[0], "train.ppo_mini_batch_size", &prompts.to_string());
            t.remark(MINI[0], &format!("RAGEN's default of 32 trajectories, in groups of {group}"));
        }
        None => t.absent(
            Owner::Ragen,
            MINI[0],
            &[("train.ppo_mini_batch_size", "null")],
            &format!(
                "RAGEN's default of 32 trajectories is no number of groups of {group}: one update a step"
            ),
        ),
    }
    for key in MINI {
        t.part_of(key, MINI[0]);
    }
}
