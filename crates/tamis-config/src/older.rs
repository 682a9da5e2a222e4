//! Configurations of before: the same settings under the names and in the form of then.
//!
//! Advantage, loss and filter had one section with the keys of all kinds, most of them without effect, and
//! `objective.advantage.kind` was called `estimator`. A run's own `config.yaml` of that form is read as it
//! was meant; `tamis config import old.yaml` prints any other in the form of today.

use std::path::Path;

use tamis_core::setting::{KeySpec, Shape};

use crate::path::PathText as _;
use crate::tree::{MapEntry, Node, Value};

/// The key that one of before is today.
pub(crate) fn name_of_today(key: &str) -> Option<&'static str> {
    match key.strip_prefix("objective.advantage.")? {
        "estimator" => Some("objective.advantage.kind"),
        "norm_by_std" => Some("objective.advantage.scale"),
        _ => None,
    }
}

/// Puts a configuration of before into the form of today; gives whether it was one.
pub(crate) fn convert(tree: &mut Node, root: &Shape) -> bool {
    let is_older = tree.at("objective.advantage").is_some_and(|advantage| {
        advantage.get("estimator").is_some() || advantage.get("norm_by_std").is_some()
    }) || tree.at("objective.loss").is_some_and(|loss| {
        let has = |key: &str| loss.get(key).is_some();
        loss.get("log_ratio_limit").and_then(Node::as_text) == Some("off")
            || has("tau_positive") && has("k_positive")
    });
    if is_older {
        if let Some(advantage) = tree.at_mut("objective.advantage") {
            name_kind(advantage);
        }
        if let Some(loss) = tree.at_mut("objective.loss") {
            set_free(loss);
        }
        drop_idle(tree, root);
    }
    is_older
}

/// `estimator` becomes `kind`, and `norm_by_std: false` what its kind has for it.
fn name_kind(advantage: &mut Node) {
    let Value::Map(entries) = &mut advantage.value else { return };
    for entry in entries.iter_mut().filter(|entry| entry.key == "estimator") {
        "kind".clone_into(&mut entry.key);
    }
    let kind = entries.iter().find(|entry| entry.key == "kind").and_then(|entry| entry.node.as_text());
    let (key, value) = if kind == Some("grpo_passk") { ("divide", "false") } else { ("scale", "none") };
    let Some(index) = entries.iter().position(|entry| entry.key == "norm_by_std") else { return };
    let by_std = entries.remove(index);
    if by_std.node.as_text().is_some_and(|text| text.eq_ignore_ascii_case("false")) {
        entries.retain(|entry| entry.key != key);
        let node = Node::plain(value, by_std.node.origin);
        entries.push(MapEntry { key: key.to_owned(), origin: by_std.origin, node });
    }
}

/// The bound on log-ratios was null for the loss's own and `off` for none, which is null today.
fn set_free(loss: &mut Node) {
    let Value::Map(entries) = &mut loss.value else { return };
    entries.retain(|entry| entry.key != "log_ratio_limit" || !entry.node.is_null());
    for entry in entries.iter_mut().filter(|entry| entry.key == "log_ratio_limit") {
        if entry.node.as_text() == Some("off") {
            entry.node = Node::plain("null", entry.node.origin.clone());
        }
    }
}

/// Takes out of sections with a `kind` what their kind never read, and what was null for "the kind's own".
fn drop_idle(node: &mut Node, shape: &Shape) {
    let shape = shape.without_null();
    let kind = node.get("kind").and_then(Node::as_text).map(str::to_owned);
    let Value::Map(entries) = &mut node.value else { return };
    if let Shape::Tagged { common, variants, default: Some(default), .. } = shape {
        let kind = kind.as_deref().unwrap_or(default);
        let Some(variant) = variants.iter().find(|variant| variant.name == kind) else { return };
        let takes = |spec: &KeySpec, entry: &MapEntry| {
            spec.name == entry.key && (!entry.node.is_null() || matches!((spec.shape)(), Shape::Nullable(_)))
        };
        entries.retain(|entry| common.iter().chain(&variant.keys).any(|spec| takes(spec, entry)));
        return;
    }
    if matches!(shape, Shape::Section { .. }) {
        for entry in entries {
            drop_idle(&mut entry.node, &shape.of_key(&entry.key));
        }
    }
}

/// Puts the folder of a file before the relative paths in it, which are taken from there.
pub(crate) fn take_paths_from(node: &mut Node, shape: &Shape, folder: Option<&Path>) {
    let Some(folder) = folder.filter(|folder| !folder.as_os_str().is_empty()) else { return };
    match (shape.without_null(), &mut node.value) {
        (Shape::OneOrMany(inner) | Shape::List(inner), Value::List(items)) => {
            for item in items {
                take_paths_from(item, inner, Some(folder));
            }
        }
        (Shape::OneOrMany(inner), _) => take_paths_from(node, inner, Some(folder)),
        (Shape::Path(kind), Value::Scalar { text, .. }) if !kind.is_word(text) && !text.starts_with("~/") => {
            *text = folder.join(&*text).to_string_lossy().into_owned();
        }
        (shape, Value::Map(entries)) => {
            for entry in entries {
                take_paths_from(&mut entry.node, &shape.of_key(&entry.key), Some(folder));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::flow;
    use crate::source::{Source, SourceKind};
    use crate::{table, yaml};

    fn converted(text: &str) -> (bool, String) {
        let source = Source::new(SourceKind::Default, text);
        let mut tree = yaml::parse(&source).unwrap_or_else(|found| panic!("{found:?}"));
        let is_older = convert(&mut tree, table::root());
        (is_older, flow(&tree.to_json()))
    }

    #[test]
    fn a_section_of_all_kinds_becomes_that_of_its_own() {
        let (is_older, today) = converted(
            "objective: {advantage: {estimator: grpo_passk, norm_by_std: false, ddof: null, epsilon: 1e-4, scale: group, whiten: true}}\n\
             filter: {kind: variance, metric: acc, tolerance: 0.0, singleton: keep, p: null, k: null, low: 0.0}",
        );
        assert!(is_older);
        assert_eq!(
            today,
            "{objective: {advantage: {kind: grpo_passk, epsilon: 1e-4, divide: false}}, filter: {kind: variance, metric: acc, \
             tolerance: 0.0, singleton: keep}}"
        );
    }

    #[test]
    fn a_loss_with_the_keys_of_all_kinds_keeps_its_own() {
        let all = "clip_low: null, clip_high: 0.28, dual_clip: null, max_ratio: null, weight_cap: null, tau_positive: 1.0, \
                   k_positive: 2.0";
        let of = |kind: &str, limit: &str| {
            converted(&format!("objective: {{loss: {{kind: {kind}, {all}, log_ratio_limit: {limit}}}}}"))
        };
        let today = |keys: &str| (true, format!("{{objective: {{loss: {{{keys}}}}}}}"));
        assert_eq!(of("clip", "null"), today("kind: clip, clip_high: 0.28, dual_clip: null"));
        assert_eq!(of("gspo", "off"), today("kind: gspo, clip_high: 0.28, log_ratio_limit: null"));
        assert_eq!(of("vespo", "5.0"), today("kind: vespo, k_positive: 2.0"));
    }

    #[test]
    fn one_of_today_is_left_as_it_is() {
        let text = "{filter: {kind: variance, k: 3}, objective: {advantage: {kind: rloo}}}";
        assert_eq!(converted(text), (false, text.to_owned()));
    }
}
