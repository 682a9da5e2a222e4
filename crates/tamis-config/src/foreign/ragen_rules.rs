//! Keys of RAGEN that mean something only together. Its rollout filter is taken as its filtering document means it (2026-01): `top_p` is a
//! softmax nucleus, `top_k` a count, and a rollout that keeps nothing is tried again.

use super::Owner;
use super::critic_rules::RAGEN_MINI;
use super::translate::Translator;

const STRATEGY: &str = "actor_rollout_ref.rollout.rollout_filter_strategy";
const VALUE: &str = "actor_rollout_ref.rollout.rollout_filter_value";
const RATIO: &str = "actor_rollout_ref.rollout.rollout_filter_ratio";
const ZERO: &str = "actor_rollout_ref.rollout.rollout_filter_include_zero";
const METRIC: &str = "actor_rollout_ref.rollout.rollout_filter_metric";
const TYPE: &str = "actor_rollout_ref.rollout.rollout_filter_type";
const MODE: &str = "actor_rollout_ref.rollout.rollout_filter_top_p_prob_mode";
const EPS: &str = "actor_rollout_ref.rollout.rollout_filter_selection_eps";
const LOW: &str = "actor_rollout_ref.rollout.rollout_filter_percentile_low";
const HIGH: &str = "actor_rollout_ref.rollout.rollout_filter_percentile_high";
const EMPTY: &str = "actor_rollout_ref.rollout.rollout_filter_empty_stop_steps";

/// The keys from which the filter follows, the most telling first.
const FILTER: [&str; 10] = [STRATEGY, VALUE, RATIO, ZERO, METRIC, TYPE, MODE, EPS, LOW, HIGH];

/// Sets the filter that RAGEN's keys name, and what becomes of a round that keeps nothing.
pub(super) fn rollout_filter(t: &mut Translator) {
    let given = if t.find(VALUE).is_some() { VALUE } else { RATIO };
    let value = t.number(given);
    let strategy = t.text(STRATEGY).unwrap_or_else(|| "top_p".to_owned());
    let zero = t.flag(ZERO, true);
    let keeps_all = strategy == "top_p" && value.is_none_or(|value| value >= 1.0);
    if keeps_all && zero {
        t.set(&FILTER, "filter", "null");
        for key in FILTER.into_iter().chain([EMPTY]) {
            t.no_effect(key, "with the value 1 and include_zero every group is kept");
        }
        return;
    }
    let by_variance =
        t.text(METRIC).is_none_or(|metric| matches!(metric.as_str(), "reward_variance" | "reward_std"));
    if keeps_all && by_variance {
        for (ours, value) in
            [("filter.kind", "variance"), ("filter.metric", "seq_reward"), ("filter.singleton", "drop")]
        {
            t.set(&[ZERO], ours, value);
        }
        empty_rounds(t, &[ZERO]);
        for key in FILTER {
            t.no_effect(key, "every group with a spread is kept");
        }
        return;
    }
    if !selection(t, &strategy, value, given) {
        return;
    }
    score(t);
    let include = if zero { "true" } else { "false" };
    t.set(&[ZERO, STRATEGY, VALUE, RATIO], "filter.include_zero", include);
    empty_rounds(t, &[STRATEGY, VALUE, RATIO, METRIC, TYPE]);
    for key in FILTER {
        t.no_effect(key, "this strategy does not look at it");
    }
}

/// Strategy and value; whether they could be followed.
fn selection(t: &mut Translator, strategy: &str, value: Option<f64>, given: &str) -> bool {
    let from = [STRATEGY, given];
    let share = value.filter(|value| *value > 0.0 && *value <= 1.0);
    match strategy {
        "top_p" => {
            let Some(p) = value.map_or(Some(1.0), |value| (value > 0.0).then_some(value.min(1.0))) else {
                t.refuse(given, "a share of the mass lies above 0");
                return false;
            };
            t.set(&from, "filter.kind", "top_p");
            t.set(&[given, STRATEGY], "filter.p", &p.to_string());
            let mode = t.text(MODE).unwrap_or_else(|| "softmax".to_owned());
            if !matches!(mode.as_str(), "softmax" | "linear") {
                t.bad_value(MODE, "softmax or linear");
                return false;
            }
            t.set(&[MODE, STRATEGY, given], "filter.mass", &mode);
            if mode == "linear" {
                let slack = t.number(EPS).unwrap_or(0.01);
                t.set(&[EPS, MODE], "filter.slack", &slack.to_string());
            } else {
                t.remark(STRATEGY, "the softmax nucleus, unless rollout_filter_top_p_prob_mode=linear");
            }
        }
        "top_k" | "top_k_abs" | "top_f" => {
            let count = value.filter(|value| *value >= 1.0 && value.fract() == 0.0 && strategy != "top_f");
            match (count, share) {
                (Some(count), _) => {
                    t.set(&from, "filter.kind", "top_k");
                    t.set(&[given, STRATEGY], "filter.k", &count.to_string());
                    t.remark(STRATEGY, "a count of groups, as in RAGEN's filtering document");
                }
                (None, Some(fraction)) if strategy != "top_k_abs" => {
                    t.set(&from, "filter.kind", "top_k");
                    t.set(&[given, STRATEGY], "filter.fraction", &fraction.to_string());
                    t.remark(STRATEGY, "a fraction of the round's groups, as RAGEN has it since 2026-01-25");
                }
                _ => {
                    let key = t.first_given(&[given, STRATEGY]).unwrap_or_default();
                    t.refuse(&key, "top_k takes a whole number of groups, or a fraction of them below 1");
                    return false;
                }
            }
        }
        "min_p" => {
            let Some(p) = share else {
                let key = t.first_given(&[given, STRATEGY]).unwrap_or_default();
                t.refuse(&key, "min_p takes a share of the best score, above 0 and at most 1");
                return false;
            };
            t.set(&from, "filter.kind", "min_p");
            t.set(&[given, STRATEGY], "filter.p", &p.to_string());
        }
        "percentile_range" => {
            t.set(&from, "filter.kind", "percentile");
            let (low, high) = (t.number(LOW).unwrap_or(0.0), t.number(HIGH).unwrap_or(1.0));
            t.set(&[LOW, STRATEGY], "filter.low", &low.to_string());
            t.set(&[HIGH, STRATEGY], "filter.high", &high.to_string());
        }
        "within_group" => {
            let Some(fraction) = share else {
                let key = t.first_given(&[given, STRATEGY]).unwrap_or_default();
                t.refuse(&key, "within_group takes a fraction of the members, above 0 and at most 1");
                return false;
            };
            t.set(&from, "filter.kind", "within_group");
            t.set(&[given, STRATEGY], "filter.fraction", &fraction.to_string());
            t.set(&from, "filter.metric", "seq_reward");
        }
        _ => {
            t.bad_value(STRATEGY, "top_p, top_k, top_k_abs, top_f, min_p, percentile_range or within_group");
            return false;
        }
    }
    true
}

/// What groups are ranked by.
fn score(t: &mut Translator) {
    if t.value_of("filter.kind").as_deref() == Some("within_group") {
        return;
    }
    let metric = t.text(METRIC).unwrap_or_else(|| "reward_variance".to_owned());
    let (ours, score) = match metric.to_lowercase().as_str() {
        "reward_variance" | "reward_std" => ("seq_reward", "deviation"),
        "reward" => ("seq_reward", "mean"),
        "reward_sum" => ("seq_reward", "sum"),
        "length" => ("length", "mean"),
        "entropy" => ("entropy", "mean"),
        "entropy_variance" | "entropy_std" => ("entropy", "deviation"),
        _ => {
            t.bad_value(METRIC, "reward_variance, reward, reward_sum, length, entropy or entropy_variance");
            return;
        }
    };
    let from = [METRIC, STRATEGY, VALUE, RATIO];
    t.set(&from, "filter.metric", ours);
    t.set(&from, "filter.score", score);
    if score == "deviation" {
        t.set(&from, "filter.ddof", "1");
    }
    let prefer = t.text(TYPE).unwrap_or_else(|| "largest".to_owned());
    if matches!(prefer.as_str(), "largest" | "smallest") {
        t.set(&[TYPE, STRATEGY, VALUE, RATIO], "filter.prefer", &prefer);
    } else {
        t.bad_value(TYPE, "largest or smallest");
    }
}

/// One round a step, trained on what it leaves. A round that leaves nothing is tried again up to ten times, or the step is given up where the
/// later key for that is set.
fn empty_rounds(t: &mut Translator, from: &[&str]) {
    t.set(from, "schedule.refill", "false");
    match t.number(EMPTY) {
        Some(steps) if steps >= 1.0 => {
            t.set(&[EMPTY], "schedule.on_empty_round", "skip");
            t.set(&[EMPTY], "train.early_stop.empty_steps.patience", &steps.to_string());
        }
        Some(_) => t.set(&[EMPTY], "schedule.on_empty_round", "skip"),
        None => t.set(from, "schedule.on_empty_round", "retry:9"),
    }
}

/// Weights on finished advantages, in the order in which RAGEN multiplies by them. Two of them it applies to GRPO alone.
pub(super) fn shapings(t: &mut Translator) {
    const SOFT: &str = "algorithm.soft_advantage_reweight";
    const SCALING: &str = "actor_rollout_ref.actor.filter_loss_scaling";
    const LENGTHS: [&str; 2] =
        ["grpo_advantage_length_weight", "actor_rollout_ref.actor.grpo_advantage_length_weight"];
    const LIST: &str = "objective.shaping";
    // A whole command of RAGEN that names no estimator takes gae; among keys of ours it is ours that counts, of which grpo is the default.
    let is_grpo = t.text("algorithm.adv_estimator").map_or(!t.whole, |name| name == "grpo");
    if t.flag(SOFT, false) && is_grpo {
        t.append(&[SOFT], LIST, "{kind: soft_reweight, ddof: 1, epsilon: 1e-6}");
        t.remark(SOFT, "a group of one, whose weight is not a number in RAGEN, has weight 0");
    }
    match t.text(SCALING).as_deref() {
        None | Some("none") => t.no_effect(SCALING, "none scales nothing"),
        Some(by @ ("linear" | "sqrt")) => {
            t.append(&[SCALING], LIST, &format!("{{kind: filter_loss_scaling, by: {by}}}"));
            t.remark(
                SCALING,
                "the policy term is multiplied, which is the same for losses with the advantage as a factor; RAGEN multiplies the \
                 advantages",
            );
        }
        // RAGEN takes every other word for none, in silence.
        Some(_) => t.bad_value(SCALING, "none, linear or sqrt"),
    }
    if let Some(length) = LENGTHS.into_iter().find(|key| t.flag(key, false)).filter(|_| is_grpo) {
        t.append(&[length], LIST, "{kind: length_weight}");
        t.remark(length, "unscored trajectories are outside the mean length; RAGEN counts them, and adds 1e-6 to each length");
    }
    for key in [SOFT].into_iter().chain(LENGTHS) {
        let is_on = t.flag(key, false);
        t.no_effect(
            key,
            if is_on { "RAGEN does so with the estimator grpo alone" } else { "False weighs nothing" },
        );
    }
}

/// Gradients by reward deviation, of the filtered batch.
pub(super) fn gradient_analysis(t: &mut Translator) {
    const MODE: &str = "trainer.gradient_analysis_mode";
    const EVERY: &str = "trainer.gradient_analysis_every";
    const ALL_BUCKETS: [&str; 2] =
        ["trainer.gradient_analysis_num_buckets", "actor_rollout_ref.rollout.gradient_analysis_num_buckets"];
    const KINDS: [&str; 2] =
        ["trainer.gradient_analysis_bucket_mode", "actor_rollout_ref.rollout.gradient_analysis_bucket_mode"];
    const OURS: &str = "train.gradient_analysis";
    if !t.flag(MODE, false) {
        for key in [MODE, EVERY].into_iter().chain(ALL_BUCKETS).chain(KINDS) {
            t.no_effect(key, "without gradient_analysis_mode nothing is measured");
        }
        return;
    }
    let first = |keys: [&'static str; 2], t: &Translator| {
        keys.into_iter().find(|key| t.find(key).is_some()).unwrap_or(keys[0])
    };
    let (buckets_key, kind_key) = (first(ALL_BUCKETS, t), first(KINDS, t));
    let every = t.number(EVERY).unwrap_or(50.0);
    t.set(&[EVERY, MODE], &format!("{OURS}.every"), &every.to_string());
    t.part_of(MODE, OURS);
    match t.text(kind_key).as_deref() {
        None | Some("quantile") => {
            let buckets = t.number(buckets_key).unwrap_or(6.0);
            t.set(&[buckets_key, MODE], &format!("{OURS}.buckets"), &buckets.to_string());
            t.part_of(kind_key, OURS);
        }
        Some("fixed_rv") => {
            t.set(&[kind_key], &format!("{OURS}.edges"), "[0, 1, 2, 3, 4, 5]");
            t.no_effect(buckets_key, "fixed_rv has six buckets of width 1, the last without an end");
        }
        Some(_) => t.bad_value(kind_key, "quantile or fixed_rv"),
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
    critic_size(group.or(if t.whole { Some(16.0) } else { None }), t);
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

/// The critic's mini-batches count trajectories too.
fn critic_size(group: Option<f64>, t: &mut Translator) {
    if t.is_noted(RAGEN_MINI) {
        return;
    }
    let Some(trajectories) = t.number(RAGEN_MINI) else {
        t.no_effect(RAGEN_MINI, "null leaves the default");
        return;
    };
    match group.map(|group| trajectories / group) {
        Some(prompts) if prompts >= 1.0 && prompts.fract() == 0.0 => {
            t.set(&[RAGEN_MINI], "critic.ppo_mini_batch_size", &prompts.to_string());
            t.remark(RAGEN_MINI, "it counts trajectories there and prompts here");
        }
        _ => t.refuse(
            RAGEN_MINI,
            "in RAGEN it counts trajectories: give a multiple of es_manager.train.group_size, and that beside it",
        ),
    }
}
