//! Keys of EasyR1 and its fork that mean something only together.

use super::rules::{limit_text, quoted, set_controller, set_estimator};
use super::translate::Translator;

pub(super) fn dynamic_sample(t: &mut Translator) {
    const ENABLE: &str = "algorithm.use_dynamic_sample";
    const LIMIT: &str = "algorithm.dynamic_sample_max_gen_batches";
    if !t.flag(ENABLE, false) {
        if t.find(ENABLE).is_some() && t.find("algorithm.online_filtering").is_none() {
            t.set(&[ENABLE], "filter", "null");
        }
        t.no_effect(ENABLE, "that is the default");
        t.no_effect(LIMIT, "algorithm.use_dynamic_sample is false");
        return;
    }
    for (ours, value) in [
        ("filter.kind", "variance"),
        ("filter.metric", "seq_reward"),
        ("filter.singleton", "keep"),
        ("filter.tolerance", "0.0"),
        ("schedule.refill", "true"),
        ("schedule.on_limit", "use_partial"),
        ("schedule.on_empty_round", "retry"),
        ("schedule.on_exhausted", "use_partial"),
        ("schedule.surplus", "discard"),
        ("schedule.order", "dispatch"),
    ] {
        t.set(&[ENABLE], ours, value);
    }
    let limit = t.number(LIMIT).unwrap_or(3.0);
    t.set(&[LIMIT, ENABLE], "schedule.max_num_gen_batches", &limit_text(limit));
}

pub(super) fn online_filtering(t: &mut Translator) {
    const ENABLE: &str = "algorithm.online_filtering";
    const KEY: &str = "algorithm.filter_key";
    const LOW: &str = "algorithm.filter_low";
    const HIGH: &str = "algorithm.filter_high";
    const LIMIT: &str = "trainer.max_try_make_batch";
    if !t.flag(ENABLE, false) {
        t.no_effect(ENABLE, "no group is left out");
        for key in [KEY, LOW, HIGH, LIMIT] {
            t.no_effect(key, "algorithm.online_filtering is false");
        }
        return;
    }
    if t.flag("algorithm.use_dynamic_sample", false) {
        t.refuse(ENABLE, "algorithm.use_dynamic_sample is on too, and there is one filter");
        return;
    }
    for (ours, value) in [
        ("filter.kind", "mean_range"),
        ("filter.bounds", "open"),
        ("schedule.refill", "true"),
        ("schedule.on_limit", "error"),
        ("schedule.on_empty_round", "error"),
        ("schedule.on_exhausted", "next_epoch"),
        ("schedule.surplus", "discard"),
    ] {
        t.set(&[ENABLE], ours, value);
    }
    let metric = match t.text(KEY).as_deref() {
        None | Some("overall") => "seq_reward".to_owned(),
        // A reward function of EasyR1's gives these numbers itself; ours is the raw outcome.
        Some("accuracy" | "accuracy_normalized") if t.text("worker.reward.reward_function").is_none() => {
            "acc".to_owned()
        }
        Some(other) => other.to_owned(),
    };
    t.set(&[KEY, ENABLE], "filter.metric", &metric);
    let low = t.number(LOW).unwrap_or(0.01);
    let high = t.number(HIGH).unwrap_or(0.99);
    t.set(&[LOW, ENABLE], "filter.low", &low.to_string());
    t.set(&[HIGH, ENABLE], "filter.high", &high.to_string());
    let limit = t.number(LIMIT).unwrap_or(20.0);
    t.set(&[LIMIT, ENABLE], "schedule.max_num_gen_batches", &limit_text(limit));
}

pub(super) fn kl(t: &mut Translator) {
    const DISABLE: &str = "algorithm.disable_kl";
    const LOSS: &str = "algorithm.use_kl_loss";
    const PENALTY: &str = "algorithm.kl_penalty";
    const COEF: &str = "algorithm.kl_coef";
    const TYPE: &str = "algorithm.kl_type";
    const HORIZON: &str = "algorithm.kl_horizon";
    const TARGET: &str = "algorithm.kl_target";
    let all = [DISABLE, LOSS, PENALTY, COEF, TYPE, HORIZON, TARGET];
    if t.flag(DISABLE, false) {
        t.set(&[DISABLE], "objective.kl.in", "none");
        for key in all {
            t.no_effect(key, "algorithm.disable_kl is true");
        }
        return;
    }
    let place = if t.flag(LOSS, false) { "loss" } else { "reward" };
    t.set(&[LOSS, DISABLE, COEF, PENALTY], "objective.kl.in", place);
    let switch = t.first_given(&all).unwrap_or_default();
    set_estimator(t, PENALTY, &switch, "kl");
    if place == "reward" {
        set_controller(t, &switch, COEF, 0.001, [TYPE, HORIZON, TARGET]);
    } else {
        let coefficient = t.number(COEF).unwrap_or(0.001);
        t.set(&[COEF, &switch], "objective.kl.coefficient", &coefficient.to_string());
        for key in [TYPE, HORIZON, TARGET] {
            t.no_effect(key, "a KL in the loss has a fixed coefficient");
        }
    }
}

pub(super) fn rewards(t: &mut Translator) {
    const FUNCTION: &str = "worker.reward.reward_function";
    const NAME: &str = "worker.reward.reward_function_name";
    const KWARGS: &str = "worker.reward.reward_function_kwargs";
    const TYPE: &str = "worker.reward.reward_type";
    let mut kwargs = serde_json::Map::new();
    let mut others = vec![NAME.to_owned(), TYPE.to_owned()];
    for given in &t.given {
        if given.key == KWARGS {
            kwargs.extend(given.node.to_json().as_object().cloned().unwrap_or_default());
        } else if let Some(name) = given.key.strip_prefix(KWARGS).and_then(|rest| rest.strip_prefix('.')) {
            kwargs.insert(name.to_owned(), given.node.to_json());
        } else {
            continue;
        }
        others.push(given.key.clone());
    }
    let Some(text) = t.text(FUNCTION) else {
        t.no_effect(FUNCTION, "null leaves the default");
        for key in others {
            t.no_effect(&key, "there is no reward function");
        }
        return;
    };
    // `file.py:function`, as EasyR1 takes it apart.
    let (path, name) =
        text.rsplit_once(':').map_or((text.as_str(), None), |(path, name)| (path, Some(name.to_owned())));
    let name = name.or_else(|| t.text(NAME)).unwrap_or_else(|| "main".to_owned());
    let style = match t.text(TYPE).as_deref() {
        None | Some("batch" | "function") => "easyr1",
        Some("sequential") => "easyr1_sequential",
        Some(_) => {
            t.bad_value(TYPE, "batch or sequential");
            return;
        }
    };
    let mut item = serde_json::json!({"kind": "python", "path": path, "function": name, "style": style});
    if !kwargs.is_empty() {
        item["kwargs"] = serde_json::Value::Object(kwargs);
    }
    t.set(&[FUNCTION], "reward", &serde_json::Value::Array(vec![item]).to_string());
    for key in others {
        t.part_of(&key, FUNCTION);
    }
}

/// The policy's `loss_avg_mode`, or the critic's, into one of our aggregations.
pub(super) fn loss_average(key: &str, ours: &str, t: &mut Translator) {
    match t.text(key).as_deref() {
        None | Some("token") => t.set(&[key], ours, "token-mean"),
        Some("seq") => t.set(&[key], ours, "seq-mean-token-mean"),
        Some(_) => t.bad_value(key, "token or seq"),
    }
}

/// How long a run is: EasyR1's steps go before its epochs, which older versions call episodes.
pub(super) fn length(t: &mut Translator) {
    const MAX: &str = "trainer.max_steps";
    const EPOCHS: [&str; 2] = ["trainer.total_epochs", "trainer.total_episodes"];
    if let Some(steps) = t.text(MAX) {
        t.set(&[MAX], "train.total_steps", &steps);
        for key in EPOCHS {
            t.no_effect(key, "trainer.max_steps is given, and goes before it");
        }
    }
    t.no_effect(MAX, "null leaves it to the epochs");
    for key in EPOCHS {
        if let Some(epochs) = t.text(key).filter(|_| !t.has_set("train.total_steps")) {
            t.set(&[key], "train.total_epochs", &epochs);
        }
        t.no_effect(key, "null leaves the default");
    }
}

/// A chat template: a file, or the template itself in older versions.
pub(super) fn chat_template(t: &mut Translator) {
    for key in ["data.override_chat_template", "worker.rollout.chat_template"] {
        match t.text(key) {
            Some(text) if text.contains(['{', '\n']) => {
                t.refuse(key, "write it to a file and give its path");
            }
            Some(path) => t.set(&[key], "model.chat_template", &quoted(&path)),
            None => t.no_effect(key, "null leaves the model's own"),
        }
    }
}

/// The template around every prompt: a file, or the template itself in older versions. It and the chat template are always applied.
pub(super) fn format_prompt(t: &mut Translator) {
    for key in ["data.format_prompt", "data.format_prompt_path"] {
        match t.text(key) {
            Some(text) if text.contains(['{', '\n', ' ']) => {
                t.refuse(
                    key,
                    "write it to a file, with {{ content }} where the prompt stands, and give its path",
                );
            }
            Some(path) => t.set(&[key], "data.prompt_template", &quoted(&path)),
            None => t.no_effect(key, "null leaves prompts as they are"),
        }
    }
}
