//! Configurations of before: the same settings under the names and in the form of then.
//!
//! Advantage, loss and filter had one section with the keys of all kinds, most of them without effect, and
//! `objective.advantage.kind` was called `estimator`. A run's own `config.yaml` of that form is read as it
//! was meant; `tamis config import old.yaml` prints any other in the form of today.

use std::path::Path;

use tamis_core::setting::{KeySpec, Shape};

use crate::diagnostic::{Diagnostic, Problem};
use crate::path::PathText as _;
use crate::preset::Preset;
use crate::table;
use crate::tree::{MapEntry, Node, Value};

/// What became of a configuration.
pub(crate) struct Conversion {
    /// Whether it was one of before.
    pub(crate) is_older: bool,
    /// What it says that tamis has no more.
    pub(crate) faults: Vec<Diagnostic>,
}

/// The sections of which each kind has its own keys today.
const SECTIONS: [&str; 3] = ["objective.advantage", "objective.loss", "filter"];

/// Puts a configuration of before into the form of today; one of today stays as it is.
pub(crate) fn convert(tree: &mut Node) -> Conversion {
    convert_nulls(tree, false)
}

/// As [`convert`]; what is imported may be of before without a sign of it, so that there a null where its kind
/// takes none, which stood for the kind's own value, always becomes that value.
pub(crate) fn convert_imported(tree: &mut Node) -> Conversion {
    convert_nulls(tree, true)
}

fn convert_nulls(tree: &mut Node, is_imported: bool) -> Conversion {
    let shape =
        |section: &str| section.split('.').fold(table::root().clone(), |shape, key| shape.of_key(key));
    let is_older = is_of_before(tree)
        || SECTIONS.iter().any(|section| {
            tree.at(section).is_some_and(|node| has_null_of_other_kind(node, &shape(section)))
        });
    let mut faults = Vec::new();
    let preset = tree.get("preset").and_then(Node::as_text);
    let preset = Preset::ALL.iter().find(|own| Some(own.as_str()) == preset);
    for section in SECTIONS {
        let of_preset = preset.and_then(|preset| preset.settings().at(&format!("{section}.kind")));
        let kind = of_preset.and_then(Node::as_text);
        let Some(node) = tree.at_mut(section) else { continue };
        if is_older {
            match section {
                "objective.advantage" => {
                    name_kind(node, kind);
                    take_retired(node, &mut faults);
                }
                "objective.loss" => set_free(node),
                _ => {}
            }
        }
        let shape = shape(section);
        if is_older || is_imported {
            drop_idle(node, kind, shape.without_null(), is_older);
        }
    }
    Conversion { is_older, faults }
}

/// Whether names or words of before stand in it, or a loss has the keys of all kinds.
fn is_of_before(tree: &Node) -> bool {
    let has = |section: &str, key: &str| tree.at(section).is_some_and(|node| node.get(key).is_some());
    has("objective.advantage", "estimator")
        || has("objective.advantage", "norm_by_std")
        || tree.at("objective.loss.log_ratio_limit").and_then(Node::as_text) == Some("off")
        || has("objective.loss", "tau_positive") && has("objective.loss", "k_positive")
}

/// Whether a key that only other kinds have is null: once the way to say "the kind's own".
fn has_null_of_other_kind(section: &Node, shape: &Shape) -> bool {
    let Shape::Tagged { common, variants, .. } = shape.without_null() else { return false };
    let kind = section.get("kind").and_then(Node::as_text);
    let Some(own) = variants.iter().find(|variant| Some(variant.name) == kind) else { return false };
    let is_own = |key: &str| common.iter().chain(&own.keys).any(|spec| spec.name == key);
    let is_of_other = |key: &str| variants.iter().any(|other| other.keys.iter().any(|spec| spec.name == key));
    section
        .entries()
        .iter()
        .any(|entry| entry.node.is_null() && !is_own(&entry.key) && is_of_other(&entry.key))
}

/// Takes out what `cpo` had and has no more: the forms that no published script of its fork names.
fn take_retired(advantage: &mut Node, faults: &mut Vec<Diagnostic>) {
    let Value::Map(entries) = &mut advantage.value else { return };
    let is_cpo = entries.iter().any(|entry| entry.key == "kind" && entry.node.as_text() == Some("cpo"));
    entries.retain(|entry| {
        let value = entry.node.as_text().unwrap_or_default();
        let is_without_effect = match entry.key.as_str() {
            "difficulty" => value == "repaired",
            // Read by forms alone that are refused below.
            "ratio_bound" => true,
            "wrap" if matches!(value, "seq_kl" | "tok_kl") => return true,
            "wrap" => false,
            _ => return true,
        };
        if is_cpo && !is_without_effect {
            let problem = Problem::rule(
                format!(
                    "`objective.advantage.{}: {value}` of `cpo` is gone: no published script of its fork names it",
                    entry.key
                ),
                "`tamis explain cpo` says which forms there are; a run with it goes on with the version that began it",
            );
            faults.push(Diagnostic::error(problem, Some(entry.node.origin.clone())));
        }
        false
    });
}

/// `estimator` becomes `kind`, and `norm_by_std: false` what its kind has for it.
fn name_kind(advantage: &mut Node, of_preset: Option<&str>) {
    let Value::Map(entries) = &mut advantage.value else { return };
    for entry in entries.iter_mut().filter(|entry| entry.key == "estimator") {
        "kind".clone_into(&mut entry.key);
    }
    let kind = entries.iter().find(|entry| entry.key == "kind").and_then(|entry| entry.node.as_text());
    let kind = kind.or(of_preset);
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

/// Gives a null that the section's kind does not take the kind's own value, and takes out of an older section
/// the keys that other kinds have, which had no effect. A key that nobody has stays, to be refused. Without a
/// kind, here or in the preset, only such nulls go.
fn drop_idle(section: &mut Node, of_preset: Option<&str>, shape: &Shape, is_older: bool) {
    let kind = section.get("kind").and_then(Node::as_text).or(of_preset).map(str::to_owned);
    let Shape::Tagged { common, variants, .. } = shape else { return };
    let Value::Map(entries) = &mut section.value else { return };
    let own = variants.iter().find(|variant| Some(variant.name) == kind.as_deref());
    let find = |keys: &[KeySpec], key: &str| keys.iter().find(|spec| spec.name == key).cloned();
    let takes_null = |spec: &KeySpec| matches!((spec.shape)(), Shape::Nullable(_));
    entries.retain_mut(|entry| {
        let of_kind = find(common, &entry.key).or_else(|| find(&own?.keys, &entry.key));
        match of_kind {
            Some(spec) if entry.node.is_null() && !takes_null(&spec) => {
                entry.node = Node::plain(spec.default.to_string(), entry.node.origin.clone());
                !spec.is_required()
            }
            Some(_) => true,
            None if own.is_some() => {
                !is_older || !variants.iter().any(|other| find(&other.keys, &entry.key).is_some())
            }
            None => !(is_older && entry.node.is_null()),
        }
    });
}

/// Puts the folder of a file before the relative paths in it, which are taken from there.
pub(crate) fn take_paths_from(node: &mut Node, shape: &Shape, folder: Option<&Path>) {
    let Some(folder) = folder.filter(|folder| !folder.as_os_str().is_empty() && !node.is_null()) else {
        return;
    };
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
    use crate::yaml;

    fn converted(text: &str) -> (bool, String) {
        let (conversion, text) = conversion(text);
        assert!(conversion.faults.is_empty(), "{:?}", conversion.faults);
        (conversion.is_older, text)
    }

    fn conversion(text: &str) -> (Conversion, String) {
        let source = Source::new(SourceKind::Default, text);
        let mut tree = yaml::parse(&source).unwrap_or_else(|found| panic!("{found:?}"));
        let conversion = convert_imported(&mut tree);
        (conversion, flow(&tree.to_json()))
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
            "{objective: {advantage: {kind: grpo_passk, ddof: 1, epsilon: 1e-4, divide: false}}, filter: {kind: variance, metric: acc, \
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
        assert_eq!(of("clip", "null"), today("kind: clip, clip_low: 0.2, clip_high: 0.28, dual_clip: null"));
        assert_eq!(
            of("gspo", "off"),
            today("kind: gspo, clip_low: 3e-4, clip_high: 0.28, log_ratio_limit: null")
        );
        assert_eq!(of("vespo", "5.0"), today("kind: vespo, k_positive: 2.0"));
    }

    #[test]
    fn a_preset_says_the_kind_where_the_section_does_not() {
        let (_, today) =
            converted("{preset: ppo, objective: {advantage: {norm_by_std: true, lambda: 0.9, tpyo: 3}}}");
        assert_eq!(today, "{preset: ppo, objective: {advantage: {lambda: 0.9, tpyo: 3}}}");
        let (_, today) = converted("objective: {advantage: {norm_by_std: false, lambda: 0.9, ddof: null}}");
        assert_eq!(today, "{objective: {advantage: {lambda: 0.9, scale: none}}}");
    }

    #[test]
    fn a_null_that_stood_for_the_kinds_own_value_becomes_that() {
        assert_eq!(
            converted("filter: {kind: top_p, p: 0.9, tolerance: 0.0, k: null, metric: null}"),
            (true, "{filter: {kind: top_p, p: 0.9, metric: null}}".to_owned())
        );
        assert_eq!(
            converted("objective: {advantage: {kind: grpo, ddof: null}}"),
            (false, "{objective: {advantage: {kind: grpo, ddof: 1}}}".to_owned())
        );
    }

    #[test]
    fn forms_of_cpo_that_are_gone_are_refused_and_their_idle_settings_are_not() {
        let of = |rest: &str| conversion(&format!("objective: {{advantage: {{estimator: cpo, {rest}}}}}"));
        let (idle, today) = of("wrap: tok_kl, difficulty: repaired, ratio_bound: 3.0");
        assert!(idle.faults.is_empty());
        assert_eq!(today, "{objective: {advantage: {kind: cpo, wrap: tok_kl}}}");
        for gone in ["difficulty: fork", "wrap: naive"] {
            let (gone, _) = of(gone);
            assert_eq!(gone.faults.len(), 1);
        }
    }

    #[test]
    fn one_of_today_is_left_as_it_is() {
        let text = "{filter: {kind: variance, k: 3}, objective: {advantage: {kind: rloo}}}";
        assert_eq!(converted(text), (false, text.to_owned()));
    }
}
