//! Keys of the learner. The other systems learn in PyTorch; here PyTorch is one of two engines.

use crate::translator::Translator;
use tamis_config::render::scalar;
use tamis_config::tree::Value;

const BACKEND: &str = "learner.backend";

/// The layers with an adapter, as YAML; `None` if the key's value names none. Without a value, `default` is
/// used.
pub(crate) fn layers(key: &str, default: &str, t: &Translator) -> Option<String> {
    let is_name = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
    let Some(given) = t.find(key).filter(|given| !given.node.is_null()) else {
        return Some(default.to_owned());
    };
    let words: Vec<String> = match &given.node.value {
        Value::List(items) => items.iter().filter_map(|item| item.as_text().map(str::to_owned)).collect(),
        _ => t.text(key).into_iter().collect(),
    };
    match words.as_slice() {
        [all] if all == "all-linear" => Some("null".to_owned()),
        names if !names.is_empty() && names.iter().all(|name| is_name(name)) => {
            Some(format!("[{}]", names.iter().map(|name| scalar(name)).collect::<Vec<_>>().join(", ")))
        }
        _ => None,
    }
}

/// A whole command for GPUs learns in PyTorch on them, unless a layer of ours says what learns.
pub(crate) fn on_gpus(t: &mut Translator) {
    let tree = t.lower.tree.as_ref();
    let is_said =
        |key: &&str| tree.and_then(|tree| tree.at(key)).is_some_and(|node| node.origin.is_from_user());
    if [BACKEND, "learner.url"].iter().any(is_said) {
        return;
    }
    for (key, least) in [("trainer.n_gpus_per_node", 1.0), ("num_processes", 2.0)] {
        if t.number(key).is_some_and(|number| number >= least) {
            t.set(&[key], BACKEND, "torch");
        }
    }
}

/// Whether the learner is PyTorch, over all layers.
pub(crate) fn is_torch(t: &Translator) -> bool {
    t.text_of(BACKEND).as_deref() == Some("torch")
}

/// Translates a key of PyTorch to ours if the learner is PyTorch. It has no effect on the native engine.
pub(crate) fn of_torch(key: &str, ours: &str, value: &str, native: &str, t: &mut Translator) {
    if is_torch(t) {
        t.set(&[key], ours, value);
    } else {
        t.no_effect(key, &format!("{native}; `learner.backend: torch` reads it, as `{ours}`"));
    }
}
