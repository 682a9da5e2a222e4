//! Keys of what learns: adapters, number formats, attention, the place of the reference. Those systems learn in
//! PyTorch; here PyTorch is one of two.

use crate::foreign::translator::{Translator, quote};
use crate::tree::Value;

const BACKEND: &str = "learner.backend";
const LORA: &str = "learner.lora";

/// A system's keys of an adapter.
pub(in crate::foreign) struct AdapterKeys {
    /// The key that leads: the switch, or the rank.
    pub leading: &'static str,
    /// Rank and its default.
    pub rank: (&'static str, f64),
    /// Scale and its default.
    pub alpha: (&'static str, f64),
    /// Layers that have one.
    pub targets: &'static str,
    /// Layers that have none where it is not given, as YAML.
    pub default_targets: &'static str,
    /// Keys that have no counterpart, each with the value that asks for nothing.
    pub refused: &'static [(&'static str, &'static [&'static str], &'static str)],
    /// Keys that make no difference, for a reason.
    pub ignored: &'static [(&'static str, &'static str)],
}

impl AdapterKeys {
    fn all(&self) -> impl Iterator<Item = &'static str> {
        let named = [self.leading, self.rank.0, self.alpha.0, self.targets];
        let refused = self.refused.iter().map(|(key, ..)| *key);
        named.into_iter().chain(refused).chain(self.ignored.iter().map(|(key, _)| *key))
    }
}

/// An adapter, which PyTorch alone trains; none where it `is_on` not.
pub(in crate::foreign) fn adapter(keys: &AdapterKeys, is_on: bool, t: &mut Translator) {
    let rank = t.number(keys.rank.0).unwrap_or(keys.rank.1);
    if !is_on || rank <= 0.0 {
        for key in keys.all() {
            t.no_effect(key, "there is no adapter: all weights are trained");
        }
        return;
    }
    for (key, allowed, reason) in keys.refused {
        match t.text(key) {
            Some(text) if !allowed.contains(&text.as_str()) => t.refuse(key, *reason),
            _ => t.no_effect(key, "it asks for nothing"),
        }
    }
    let Some(targets) = targets(keys, t) else { return };
    let alpha = t.number(keys.alpha.0).unwrap_or(keys.alpha.1);
    t.set(&[keys.leading], BACKEND, "torch");
    let lora = format!("{{rank: {rank}, alpha: {alpha}, targets: {targets}}}");
    t.set(&[keys.leading], LORA, &lora);
    t.remark(
        keys.leading,
        "an adapter is trained in PyTorch, which `learner.python` has to have (`scripts/install-torch`)",
    );
    for (key, reason) in keys.ignored {
        t.no_effect(key, reason);
    }
    for key in [keys.rank.0, keys.alpha.0, keys.targets] {
        t.part_of(key, keys.leading);
    }
}

/// The layers that have an adapter, as YAML; `None` where they are refused.
fn targets(keys: &AdapterKeys, t: &mut Translator) -> Option<String> {
    let is_name = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
    let Some(given) = t.find(keys.targets).filter(|given| !given.node.is_null()) else {
        return Some(keys.default_targets.to_owned());
    };
    let words: Vec<String> = match &given.node.value {
        Value::List(items) => items.iter().filter_map(|item| item.as_text().map(str::to_owned)).collect(),
        _ => t.text(keys.targets).into_iter().collect(),
    };
    match words.as_slice() {
        [all] if all == "all-linear" => Some("null".to_owned()),
        names if !names.is_empty() && names.iter().all(|name| is_name(name)) => {
            Some(format!("[{}]", names.iter().map(|name| quote(name)).collect::<Vec<_>>().join(", ")))
        }
        _ => {
            t.refuse(
                keys.targets,
                "layers are named by the ends of their names, as in [q_proj, v_proj], or all-linear",
            );
            None
        }
    }
}

/// Whether PyTorch learns, when all layers lie over each other.
pub(in crate::foreign) fn is_torch(t: &Translator) -> bool {
    t.text_of(BACKEND).as_deref() == Some("torch")
}

/// A key of PyTorch's that becomes one of ours where PyTorch learns, and nothing on the native engine.
pub(in crate::foreign) fn of_torch(key: &str, ours: &str, value: &str, native: &str, t: &mut Translator) {
    if is_torch(t) {
        t.set(&[key], ours, value);
    } else {
        t.no_effect(key, &format!("{native}; `learner.backend: torch` reads it, as `{ours}`"));
    }
}

/// Where the frozen reference waits between its passes.
pub(in crate::foreign) fn offload_reference(key: &str, t: &mut Translator) {
    if t.find(key).is_some() {
        let offloads = t.flag(key, false);
        let native = "the native engine has all models in the main memory";
        of_torch(key, "learner.offload_reference", &offloads.to_string(), native, t);
    }
}
