//! RAGEN's rollout filter, as its filtering document means it (2026-01): `top_p` is a softmax nucleus,
//! `top_k` a count, and a rollout that keeps nothing is tried again.

use crate::key::Rule;
use crate::translator::Translator;

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

/// The rollout filter, and what becomes of a round that keeps nothing.
pub(super) const ROLLOUT_FILTER: Rule = Rule::new(2, "rollout filter", rollout_filter);

/// Sets the filter that RAGEN's keys name, and what becomes of a round that keeps nothing.
fn rollout_filter(t: &mut Translator) {
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

/// Score that groups are ranked by.
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

/// One round a step, trained on what it leaves. A round that leaves nothing is tried again up to ten times,
/// or the step is given up where the later key for that is set.
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
