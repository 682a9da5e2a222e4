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
