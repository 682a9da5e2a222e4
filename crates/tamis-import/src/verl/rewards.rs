//! verl's reward functions and its overlong penalty, in all of their spellings.

use crate::translator::Translator;
use tamis_config::tree::parse_float;

/// Keys of the user's reward function, the newest spelling first.
const FUNCTIONS: [&str; 2] = ["reward.custom_reward_function", "custom_reward_function"];

const MANAGERS: [&str; 2] = ["reward.reward_manager.name", "reward_model.reward_manager"];

const WORKERS: [&str; 2] = ["reward.num_workers", "reward_model.num_workers"];

/// Keys of the overlong penalty.
const OVERLONG: [&str; 4] = [
    "reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward_model.overlong_buffer",
    "custom_reward_function.overlong_buffer",
];

/// The maximum length from which it is counted back.
const LIMITS: [&str; 3] = [
    "reward.reward_kwargs.max_resp_len",
    "reward_model.reward_kwargs.max_resp_len",
    "reward_model.max_resp_len",
];

/// Reward functions and the overlong penalty.
pub(crate) fn rewards(t: &mut Translator) {
    reward_model(t);
    let function = FUNCTIONS.iter().find(|prefix| t.text(&format!("{prefix}.path")).is_some());
    if let Some(prefix) = function {
        custom_function(prefix, t);
    }
    for prefix in FUNCTIONS {
        let reason = match function {
            Some(other) => format!("{other}.path names the function"),
            None => "there is no custom reward function".to_owned(),
        };
        t.no_effect(&format!("{prefix}.path"), "null leaves the verifiers of the data");
        t.no_effect(&format!("{prefix}.name"), &reason);
        for key in below(&format!("{prefix}.reward_kwargs."), t) {
            t.no_effect(&key, &reason);
        }
    }
    for key in WORKERS {
        t.no_effect(key, "the built-in verifiers are run in the trainer's own threads (`run.threads`)");
    }
    overlong(t);
}

/// Switch and path of the reward model, the newest spelling first.
const MODELS: [(&str, &str); 2] = [
    ("reward.reward_model.enable", "reward.reward_model.model_path"),
    ("reward_model.enable", "reward_model.model.path"),
];
/// Number of texts in one pass.
const MODEL_BATCHES: [&str; 2] = ["reward_model.micro_batch_size_per_gpu", "reward_model.micro_batch_size"];
/// Longest text that it reads.
const MODEL_LENGTH: &str = "reward_model.max_length";

/// A reward model replaces the verifiers of the data.
fn reward_model(t: &mut Translator) {
    let Some((switch, path)) = MODELS.into_iter().find(|(switch, _)| t.flag(switch, false)) else {
        for key in MODELS.iter().flat_map(|(switch, path)| [*switch, *path]).chain(MODEL_BATCHES) {
            t.no_effect(key, "there is no reward model");
        }
        t.no_effect(MODEL_LENGTH, "there is no reward model");
        return;
    };
    if let Some(prefix) = FUNCTIONS.iter().find(|prefix| t.text(&format!("{prefix}.path")).is_some()) {
        let reason = format!(
            "{prefix}.path names a function too, which in verl asks the model itself: write both under `reward`, as \
             `kind: python` and `kind: model` with their weights"
        );
        t.refuse(switch, reason);
        return;
    }
    let Some(model) = t.text(path) else {
        t.refuse(switch, format!("{path} does not say which model"));
        return;
    };
    let mut item = serde_json::json!({"kind": "model", "path": model});
    if let Some(key) = MODEL_BATCHES.into_iter().find(|key| t.text(key).is_some()) {
        item["batch_size"] = serde_json::json!(whole(key, t));
        t.part_of(key, switch);
    }
    if let Some(length) = whole(MODEL_LENGTH, t) {
        // verl keeps the first tokens.
        item["max_length"] = serde_json::json!(length);
        item["overlong"] = serde_json::json!("right");
        t.part_of(MODEL_LENGTH, switch);
    }
    t.set(&[switch], "reward", &serde_json::Value::Array(vec![item]).to_string());
    t.remark(switch, "PyTorch loads it, which the `python` of the reward has to have");
    t.part_of(path, switch);
    for key in MODELS.iter().flat_map(|(switch, path)| [*switch, *path]).chain(MODEL_BATCHES) {
        t.no_effect(key, &format!("{switch} and {path} say it"));
    }
    t.no_effect(MODEL_LENGTH, "null leaves the model's own limit");
}

fn whole(key: &str, t: &mut Translator) -> Option<u64> {
    let number: Option<u64> = t.text(key)?.parse().ok();
    if number.is_none() {
        t.bad_value(key, "a whole number");
    }
    number
}

fn below(prefix: &str, t: &Translator) -> Vec<String> {
    t.given.iter().map(|given| &given.key).filter(|key| key.starts_with(prefix)).cloned().collect()
}

fn custom_function(prefix: &str, t: &mut Translator) {
    let (path, name) = (format!("{prefix}.path"), format!("{prefix}.name"));
    let arguments = format!("{prefix}.reward_kwargs.");
    let function = t.text(&name).unwrap_or_else(|| "compute_score".to_owned());
    let mut kwargs = serde_json::Map::new();
    for given in &t.given {
        if let Some(name) = given.key.strip_prefix(&arguments) {
            insert(&mut kwargs, name, given.node.to_json());
        }
    }
    let mut item = serde_json::json!({
        "kind": "python", "path": t.text(&path), "function": function, "style": "verl",
    });
    if !kwargs.is_empty() {
        item["kwargs"] = serde_json::Value::Object(kwargs);
    }
    let workers = WORKERS.iter().find_map(|key| Some((*key, t.number(key)?)));
    if let Some((_, number)) = workers {
        item["num_processes"] = serde_json::json!(number);
    }
    t.set(&[&path], "reward", &serde_json::Value::Array(vec![item]).to_string());
    t.part_of(&name, &path);
    for key in below(&arguments, t) {
        t.part_of(&key, &path);
    }
    if let Some((key, _)) = workers {
        t.part_of(key, &path);
    }
}

/// Puts a value into a mapping, at a path of names with dots between them.
fn insert(kwargs: &mut serde_json::Map<String, serde_json::Value>, path: &str, value: serde_json::Value) {
    let Some((name, rest)) = path.split_once('.') else {
        kwargs.insert(path.to_owned(), value);
        return;
    };
    let inner = kwargs.entry(name).or_insert_with(|| serde_json::json!({}));
    if !inner.is_object() {
        *inner = serde_json::json!({});
    }
    if let Some(inner) = inner.as_object_mut() {
        insert(inner, rest, value);
    }
}

/// DAPO's soft overlong penalty: over the last `len` tokens before `max_resp_len` the reward falls by
/// `penalty_factor`.
fn overlong(t: &mut Translator) {
    let spellings = |field: &str| OVERLONG.map(|form| format!("{form}.{field}"));
    let first = |keys: &[String], t: &Translator| keys.iter().find(|key| t.find(key).is_some()).cloned();
    let (switches, lengths, factors) = (spellings("enable"), spellings("len"), spellings("penalty_factor"));
    let limits = LIMITS.map(str::to_owned);
    let (switch, length, factor) = (first(&switches, t), first(&lengths, t), first(&factors, t));
    let limit = first(&limits, t);
    let keys: Vec<String> = [&switch, &length, &factor, &limit].into_iter().flatten().cloned().collect();
    let Some(leading) = keys.first().cloned() else { return };
    let is_on_below = !t.lower.overlong_rewards.is_empty() || t.is_overlong_in_preset();
    let is_on = match &switch {
        Some(switch) => t.flag(switch, false),
        None => is_on_below && (length.is_some() || factor.is_some()),
    };
    let manager = MANAGERS.iter().find_map(|key| t.text(key));
    let ignored = manager.as_deref().filter(|manager| is_on && *manager != "dapo");
    if let Some(manager) = ignored {
        let reason = format!("only verl's reward manager `dapo` reads it, and this is `{manager}`");
        none_has_effect(&keys, &reason, t);
    } else if is_on {
        let said_length = length.as_ref().and_then(|key| t.text(key));
        // verl's default length is 0, by which it divides.
        let has_length = match &said_length {
            Some(length) => parse_float(length) != Some(0.0),
            None => is_on_below,
        };
        if !has_length {
            let key = length.as_ref().filter(|_| said_length.is_some()).unwrap_or(&leading);
            let field = key.rsplit_once('.').map_or("", |(prefix, _)| prefix);
            t.refuse(
                key,
                format!(
                    "verl's `{field}.len` is 0 unless it is given, and it divides by it: give the length"
                ),
            );
            return;
        }
        let buffer = said_length.unwrap_or_else(|| "null".to_owned());
        let said_factor = factor.and_then(|key| t.number(&key));
        // With verl's default factor nothing is subtracted.
        let factor = said_factor.unwrap_or(if is_on_below { 1.0 } else { 0.0 });
        let limit = limit
            .and_then(|key| t.text(&key))
            .filter(|limit| Some(limit) != t.text("data.max_response_length").as_ref());
        let limit = limit.map(|limit| format!(", max_length: {limit}")).unwrap_or_default();
        let settings =
            format!("kind: soft_overlong, form: verl, buffer: {buffer}{limit}, penalty_factor: {factor}");
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        match t.lower.overlong_rewards.clone().first() {
            Some(index) => t.set(&keys, &format!("reward.{index}"), &format!("{{{settings}, weight: 1.0}}")),
            None => t.append(&keys, "reward", &format!("{{name: overlong, {settings}}}")),
        }
        let mut warnings = Vec::new();
        if factor == 0.0 {
            let owner = if said_factor.is_none() { ", verl's default" } else { "" };
            warnings.push(format!("warning: penalty_factor is 0{owner}: nothing is taken off"));
        }
        if manager.is_none() && t.whole {
            warnings.push(
                "warning: no reward manager is named, and verl's default `naive` reads none of this; here it is in force".to_owned(),
            );
        }
        if !warnings.is_empty() {
            t.remark(&leading, &warnings.join("; "));
        }
        for key in keys {
            t.part_of(key, &leading);
        }
    } else if let Some(switch) = &switch {
        for index in t.lower.overlong_rewards.clone() {
            t.set(&[switch], &format!("reward.{index}.weight"), "0.0");
        }
        if t.lower.overlong_rewards.is_empty() && t.is_overlong_in_preset() {
            t.append(&[switch], "reward", "{name: overlong, kind: soft_overlong, weight: 0.0}");
            t.remark(switch, "that of the preset is measured, and not added to the reward");
        }
        let reason = format!("{switch} is false");
        t.no_effect(switch, "there is no overlong penalty");
        none_has_effect(&keys, &reason, t);
    } else {
        for key in &keys {
            let prefix = OVERLONG.iter().find(|prefix| key.starts_with(&format!("{prefix}.")));
            let switch =
                prefix.map_or("the overlong buffer's enable".to_owned(), |prefix| format!("{prefix}.enable"));
            t.no_effect(key, &format!("{switch} is not True"));
        }
    }
    for spellings in [&switches[..], &lengths, &factors, &limits] {
        if let Some(used) = first(spellings, t) {
            none_has_effect(spellings, &format!("{used} sets it"), t);
        }
    }
}

fn none_has_effect(keys: &[String], reason: &str, t: &mut Translator) {
    for key in keys {
        t.no_effect(key, reason);
    }
}
