//! Values of a preset that a configuration overrides.

use std::fmt;

use serde_json::Value as Json;
use tamis_core::setting::{Described as _, Shape};

use crate::preset::Preset;
use crate::render::{flow, json_of};
use crate::schema::{Config, RewardConfig};
use crate::source::Origin;
use crate::table;
use crate::tree::{MapEntry, Node, Value, join, with_brackets};

/// One setting of the preset that the user's configuration replaces.
#[derive(Debug, Clone, PartialEq)]
pub struct PresetDifference {
    /// The preset.
    pub of: Preset,
    /// The key.
    pub key: String,
    /// Value that the preset sets.
    pub preset: Json,
    /// Value in the run.
    pub value: Json,
    /// Place where that was written.
    pub origin: Option<Origin>,
}

impl fmt::Display for PresetDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, preset) = (brief(&self.key, &self.value), brief(&self.key, &self.preset));
        write!(f, "{}: {value} (preset {} has {preset}", self.key, self.of)?;
        if let Some(origin) = &self.origin {
            write!(f, "; {origin}")?;
        }
        f.write_str(")")
    }
}

/// A value in short form: a filter without all of its settings.
fn brief(key: &str, value: &Json) -> String {
    let text = |name: &str| value.get(name).and_then(Json::as_str);
    match (value, text("kind")) {
        (Json::Null, _) => "none".to_owned(),
        (_, Some(kind)) if key == "filter" => {
            format!("{kind} on {}", text("metric").unwrap_or("the raw outcome"))
        }
        _ => flow(value),
    }
}

/// Finds the values of the configuration's preset that are overridden. `tree` is the merged tree that the
/// configuration was read from.
pub(crate) fn differences(config: &Config, tree: &Node) -> Vec<PresetDifference> {
    let Some(preset) = config.preset else { return Vec::new() };
    let mut differences = Vec::new();
    let values = json_of(config);
    collect(preset, "", preset.settings(), &values, table::root(), tree, &mut differences);
    if let Some(Node { value: Value::List(items), .. }) = preset.settings().get("reward") {
        for item in items {
            let kind = item.get("kind").and_then(Node::as_text);
            let rewards = config.reward.iter().enumerate();
            let of_kind = rewards.into_iter().find(|(_, reward)| Some(reward.kind.as_str()) == kind);
            let Some((index, reward)) = of_kind else { continue };
            let path = format!("reward.{index}");
            collect(preset, &path, item, &json_of(reward), &RewardConfig::shape(), tree, &mut differences);
        }
    }
    differences
}

/// Lists the overridden parts of one setting of the preset; a section key by key. For a section of another
/// kind, it lists the kind and the keys that all kinds have.
fn collect(
    of: Preset,
    path: &str,
    preset: &Node,
    value: &Json,
    shape: &Shape,
    tree: &Node,
    differences: &mut Vec<PresetDifference>,
) {
    let mut list = |path: &str, preset: Json, value: &Json| {
        // A key that is not written has its value from the section around it.
        let around = |path: &str| tree.at(path.rsplit_once('.')?.0);
        let origin = tree.at(path).or_else(|| around(path)).map(|node| node.origin.clone());
        let key = with_brackets(path);
        differences.push(PresetDifference { of, key, preset, value: value.clone(), origin });
    };
    let (Value::Map(entries), true) = (&preset.value, value.is_object()) else {
        let wanted = preset.to_json();
        if !is_same(&wanted, value) {
            list(path, wanted, value);
        }
        return;
    };
    let mut entries: Vec<&MapEntry> =
        entries.iter().filter(|entry| !(path.is_empty() && entry.key == "reward")).collect();
    if let Shape::Tagged { common, default, .. } = shape.without_null() {
        let wanted = preset.get("kind").and_then(Node::as_text).or(*default);
        let kind = &value["kind"];
        if wanted != kind.as_str() {
            list(&join(path, "kind"), wanted.into(), kind);
            entries.retain(|entry| entry.key != "kind" && common.iter().any(|spec| spec.name == entry.key));
        }
    }
    for entry in entries {
        let inner = value.get(&entry.key).unwrap_or(&Json::Null);
        let shape = shape.of_key(&entry.key);
        collect(of, &join(path, &entry.key), &entry.node, inner, &shape, tree, differences);
    }
}

/// Equality in which 1 and 1.0 are the same.
pub(crate) fn is_same(left: &Json, right: &Json) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => left.to_bits() == right.to_bits(),
        _ => left == right,
    }
}
