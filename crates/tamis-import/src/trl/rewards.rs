//! TRL's reward functions.

use crate::translator::Translator;
use tamis_config::render::scalar;
use tamis_core::group::RESERVED_SCORES;

/// Our reward functions for the names in TRL's registry, with the sizes of TRL's script.
fn find_registered(name: &str) -> Option<&'static str> {
    Some(match name {
        "accuracy_reward" => "kind: math_verify",
        "think_format_reward" => "name: think_format, kind: think_format",
        "get_soft_overlong_punishment" => {
            "name: overlong, kind: soft_overlong, max_length: 1280, buffer: 256"
        }
        "get_cosine_scaled_reward" => "name: cosine, kind: cosine, max_length: 1000",
        "get_repetition_penalty_reward" => "name: repetition, kind: repetition",
        _ => return None,
    })
}

/// A reward that is a model, called as in TRL: by the last part of the model's name.
fn reward_model(name: &str, names: &mut Vec<String>) -> String {
    let tail = name.trim_end_matches('/').rsplit('/').next().unwrap_or(name);
    format!("name: {}, kind: model, path: {}", scalar(&free_name(tail, names)), scalar(name))
}

/// A name for the scores of a function: its own, unless tamis gives that to a score, or it is taken.
fn free_name(function: &str, taken: &mut Vec<String>) -> String {
    let is_reserved = |name: &str| RESERVED_SCORES.contains(&name);
    let needs_suffix = is_reserved(function) && !function.ends_with("reward");
    let name = if needs_suffix { format!("{function}_reward") } else { function.to_owned() };
    let mut names = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}_{number}")));
    let name = names.find(|name| !is_reserved(name) && !taken.contains(name)).unwrap_or(name);
    taken.push(name.clone());
    name
}

/// Reward functions and their weights.
pub(crate) fn rewards(t: &mut Translator) {
    const FUNCTIONS: &str = "reward_funcs";
    const WEIGHTS: &str = "reward_weights";
    const MODEL: &str = "reward_model_name_or_path";
    const LOADED: &str = "PyTorch loads a model, which the `python` of that reward has to have";
    const LIBRARY: &str = "the `python` of `math_verify` has to have that library (docs/rewards.md); `kind: math` needs none and \
        judges otherwise";
    const REGISTRY: &str = "accuracy_reward, think_format_reward, get_soft_overlong_punishment, \
        get_cosine_scaled_reward, get_repetition_penalty_reward";
    let list = |t: &Translator, key: &str| -> Vec<serde_json::Value> {
        match t.find(key).map(|given| given.node.to_json()) {
            Some(serde_json::Value::Array(items)) => items,
            Some(serde_json::Value::Null) | None => Vec::new(),
            Some(item) => vec![item],
        }
    };
    let functions = list(t, FUNCTIONS);
    let weights = list(t, WEIGHTS);
    let model = t.text(MODEL);
    if model.is_none() {
        t.no_effect(MODEL, "null names no model");
    }
    if functions.is_empty() && model.is_none() {
        t.no_effect(FUNCTIONS, "null leaves the default");
        if weights.is_empty() {
            t.no_effect(WEIGHTS, "null weighs all alike");
        } else {
            t.refuse(
                WEIGHTS,
                "the functions are not named: give `reward_funcs` too, or weights under `reward`",
            );
        }
        return;
    }
    let num_functions = functions.len() + usize::from(model.is_some());
    if !weights.is_empty() && weights.len() != num_functions {
        let reason = format!("{} weights for {num_functions} functions", weights.len());
        t.refuse(WEIGHTS, reason);
        return;
    }
    // TRL's script puts the model first.
    let first = usize::from(model.is_some());
    let weight_at = |index: usize| {
        weights.get(index).map_or_else(
            || "1.0".to_owned(),
            |weight| weight.as_str().map_or_else(|| weight.to_string(), str::to_owned),
        )
    };
    let mut items: Vec<String> = Vec::new();
    let mut remarks: Vec<&str> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        let name = function.as_str().unwrap_or_default();
        let own = name.strip_prefix("trl.rewards.").unwrap_or(name);
        let keys = if let Some(keys) = find_registered(own) {
            if own == "get_soft_overlong_punishment" {
                remarks.push("the overlong penalty has the lengths of TRL's script, 1280 and 256");
            }
            if own == "accuracy_reward" {
                remarks.push(LIBRARY);
            }
            // Without a name it is called as its kind.
            let (label, rest) = keys
                .strip_prefix("name: ")
                .and_then(|rest| rest.split_once(", "))
                .unwrap_or_else(|| (keys.trim_start_matches("kind: "), keys));
            let name = free_name(label, &mut names);
            if name == label { keys.to_owned() } else { format!("name: {}, {rest}", scalar(&name)) }
        } else if own == "reasoning_accuracy_reward" {
            t.refuse(
                FUNCTIONS,
                "`reasoning_accuracy_reward` is not there: import it in a file of your own and name that under `reward` with `kind: \
                 python`, `style: trl`",
            );
            return;
        } else if own.contains('/') {
            remarks.push(LOADED);
            reward_model(name, &mut names)
        } else if let Some((module, function)) = name.rsplit_once('.') {
            let path = format!("{}.py", module.replace('.', "/"));
            remarks.push("a module is looked for as a file from the folder that the command is started in");
            let name = free_name(function, &mut names);
            format!(
                "name: {}, kind: python, path: {}, function: {}, style: trl",
                scalar(&name),
                scalar(&path),
                scalar(function)
            )
        } else {
            let reason = format!(
                "{name:?} is no function of TRL's script, which has {REGISTRY}, or takes a dotted path such as my_module.my_reward"
            );
            t.refuse(FUNCTIONS, reason);
            return;
        };
        items.push(format!("{{{keys}, weight: {}}}", weight_at(first + index)));
    }
    if let Some(model) = &model {
        items.insert(0, format!("{{{}, weight: {}}}", reward_model(model, &mut names), weight_at(0)));
        remarks.push(LOADED);
    }
    t.set(&[FUNCTIONS, MODEL], "reward", &format!("[{}]", items.join(", ")));
    let leading = if functions.is_empty() { MODEL } else { FUNCTIONS };
    remarks.dedup();
    if !remarks.is_empty() {
        t.remark(leading, &remarks.join("; "));
    }
    t.part_of(MODEL, leading);
    t.part_of(WEIGHTS, leading);
}
