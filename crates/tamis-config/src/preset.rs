//! The named algorithms: what each sets, and what a user overrode of it.

use std::fmt;
use std::sync::OnceLock;

use serde_json::Value as Json;

use crate::render::flow;
use crate::schema::{Config, Preset};
use crate::setting::Setting;
use crate::source::{Origin, Source, SourceKind};
use crate::tree::{Node, Value};
use crate::yaml;

/// The settings of a preset, as commented YAML.
pub const fn preset_yaml(preset: Preset) -> &'static str {
    match preset {
        Preset::Grpo => include_str!("../presets/grpo.yaml"),
        Preset::Dapo => include_str!("../presets/dapo.yaml"),
        Preset::DapoPaper => include_str!("../presets/dapo_paper.yaml"),
        Preset::DrGrpo => include_str!("../presets/dr_grpo.yaml"),
        Preset::Rloo => include_str!("../presets/rloo.yaml"),
        Preset::ReinforcePlusPlus => include_str!("../presets/reinforce_plus_plus.yaml"),
        Preset::ReinforcePlusPlusBaseline => include_str!("../presets/reinforce_plus_plus_baseline.yaml"),
        Preset::Remax => include_str!("../presets/remax.yaml"),
        Preset::Opo => include_str!("../presets/opo.yaml"),
        Preset::Gpg => include_str!("../presets/gpg.yaml"),
        Preset::Bnpo => include_str!("../presets/bnpo.yaml"),
        Preset::Gspo => include_str!("../presets/gspo.yaml"),
        Preset::Gmpo => include_str!("../presets/gmpo.yaml"),
        Preset::Cispo => include_str!("../presets/cispo.yaml"),
        Preset::Sapo => include_str!("../presets/sapo.yaml"),
        Preset::Ppo => include_str!("../presets/ppo.yaml"),
    }
}

/// The parsed settings of a preset.
pub(crate) fn preset_tree(preset: Preset) -> &'static Node {
    static TREES: OnceLock<Vec<Node>> = OnceLock::new();
    let trees = TREES.get_or_init(|| {
        Preset::ALL
            .iter()
            .map(|&preset| {
                let source = Source::new(SourceKind::Preset(preset.as_str()), preset_yaml(preset));
                yaml::parse(&source).unwrap_or_else(|_| Node::empty_map(Origin::start_of(&source)))
            })
            .collect()
    });
    let index = Preset::ALL.iter().position(|&other| other == preset).unwrap_or_default();
    &trees[index]
}

/// Whether a preset adds a soft overlong punishment to the rewards.
pub(crate) fn adds_overlong(preset: Preset) -> bool {
    preset_tree(preset).get("reward").is_some_and(|rewards| !overlong_rewards(rewards).is_empty())
}

/// The places of soft overlong punishments in a list of rewards.
pub(crate) fn overlong_rewards(rewards: &Node) -> Vec<usize> {
    let Value::List(items) = &rewards.value else { return Vec::new() };
    let is_overlong = |item: &Node| {
        item.get("kind")
            .is_some_and(|kind| matches!(&kind.value, Value::Scalar { text, .. } if text == "soft_overlong"))
    };
    items.iter().enumerate().filter(|(_, item)| is_overlong(item)).map(|(index, _)| index).collect()
}

/// One setting of the preset that the user's configuration replaces.
#[derive(Debug, Clone, PartialEq)]
pub struct PresetDifference {
    /// The preset.
    pub of: Preset,
    /// The key.
    pub key: String,
    /// What the preset sets.
    pub preset: Json,
    /// What the run has.
    pub value: Json,
    /// Where that was written.
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

/// A value in a few words: of a filter or a reward what it is, not all of its settings.
fn brief(key: &str, value: &Json) -> String {
    let text = |name: &str| value.get(name).and_then(Json::as_str);
    match (value, text("kind")) {
        (Json::Null, _) => "none".to_owned(),
        (_, Some(kind)) if key == "filter" => {
            format!("{kind} on {}", text("metric").unwrap_or("the raw outcome"))
        }
        (_, Some(kind)) => match text("name").filter(|name| *name != kind) {
            Some(name) => format!("{name} ({kind})"),
            None => kind.to_owned(),
        },
        _ => flow(value),
    }
}

/// What of the configuration's preset is overridden. `tree` is the merged tree that the configuration was
/// read from.
pub(crate) fn differences(config: &Config, tree: &Node) -> Vec<PresetDifference> {
    let Some(preset) = config.preset else { return Vec::new() };
    let mut differences = Vec::new();
    collect(preset, "", preset_tree(preset), &config.to_json(), tree, &mut differences);
    if let Some(Node { value: Value::List(items), .. }) = preset_tree(preset).get("reward") {
        for item in items {
            let kind = item.get("kind").map(Node::to_json);
            let own = config
                .reward
                .iter()
                .enumerate()
                .find(|(_, reward)| Some(reward.kind.as_str().into()) == kind);
            let Some((index, reward)) = own else { continue };
            let key = format!("reward.{index}");
            let origin = tree.at(&key).map(|node| node.origin.clone());
            if origin.as_ref().is_some_and(Origin::is_from_user) {
                let value = reward.to_json();
                differences.push(PresetDifference { of: preset, key, preset: item.to_json(), value, origin });
            }
        }
    }
    differences
}

fn collect(
    of: Preset,
    path: &str,
    preset: &Node,
    value: &Json,
    tree: &Node,
    differences: &mut Vec<PresetDifference>,
) {
    match &preset.value {
        Value::Map(entries) if value.is_object() => {
            for entry in entries.iter().filter(|entry| !(path.is_empty() && entry.key == "reward")) {
                let inner = value.get(&entry.key).unwrap_or(&Json::Null);
                collect(of, &crate::tree::join(path, &entry.key), &entry.node, inner, tree, differences);
            }
        }
        _ => {
            let wanted = preset.to_json();
            if !same(&wanted, value) {
                let origin = tree.at(path).map(|node| node.origin.clone());
                differences.push(PresetDifference {
                    of,
                    key: path.to_owned(),
                    preset: wanted,
                    value: value.clone(),
                    origin,
                });
            }
        }
    }
}

/// Equality that takes 1 and 1.0 for the same.
fn same(left: &Json, right: &Json) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => left.to_bits() == right.to_bits(),
        _ => left == right,
    }
}
