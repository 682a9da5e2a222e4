//! Configurations of before: the same settings under the names and in the form of then.
//!
//! Advantage, loss and filter had one section with the keys of all kinds, most of them without effect, and
//! `objective.advantage.kind` was called `estimator`; `schedule.selector` was a name. A run's own
//! `config.yaml` of that form is read as it was meant; `tamis config import old.yaml` prints any other in the
//! form of today.

use std::path::Path;

use tamis_core::setting::{KeySpec, Shape};

use crate::diagnostic::{Diagnostic, Problem, Severity};
use crate::path::PathText as _;
use crate::preset::Preset;
use crate::source::Origin;
use crate::table;
use crate::tree::{MapEntry, Node, Value, parse_bool};

/// Result of converting a configuration.
pub(crate) struct Conversion {
    /// Whether it was one of before.
    pub(crate) is_older: bool,
    /// Settings that today's tamis does not have.
    pub(crate) faults: Vec<Diagnostic>,
}

/// The sections of which each kind has its own keys today.
const SECTIONS: [&str; 3] = ["objective.advantage", "objective.loss", "filter"];

/// Puts a configuration of before into the form of today; one of today stays as it is.
pub(crate) fn convert(tree: &mut Node) -> Conversion {
    name_selector(tree);
    let is_older = is_of_before(tree);
    let mut faults = Vec::new();
    if is_older {
        let preset = tree.get("preset").cloned();
        faults = convert_sections(tree, preset.as_ref(), true, &|_| None);
        faults.retain(|found| found.severity == Severity::Error);
    }
    Conversion { is_older, faults }
}

/// Files of tamis as one configuration in the form of today, a later file over an earlier one, with what is
/// to be said about it. `of_command` is the value that a command sets beside them, by key: its preset and its
/// kinds decide.
///
/// A file may be of before without a sign of it. So a null where its kind takes none, which stood for the
/// kind's own value, always becomes that value, and a key that only other kinds have always goes, with a
/// warning.
pub(crate) fn convert_imported<'a>(
    files: Vec<Node>,
    of_command: &dyn Fn(&str) -> Option<&'a Node>,
) -> (Option<Node>, Vec<Diagnostic>) {
    let is_older = files.iter().any(is_of_before);
    // Before, a section kept the keys of every kind.
    let shape = if is_older { &Shape::Free } else { table::root() };
    let merged = files.into_iter().reduce(|mut below, mut above| {
        name_kind(&mut below);
        name_kind(&mut above);
        name_selector(&mut below);
        name_selector(&mut above);
        below.merge(above, shape);
        below
    });
    let Some(mut tree) = merged else { return (None, Vec::new()) };
    name_selector(&mut tree);
    let preset = of_command("preset").or(tree.get("preset")).cloned();
    let found = convert_sections(&mut tree, preset.as_ref(), is_older, of_command);
    (Some(tree), found)
}

/// Calls the `estimator` of the advantages `kind`, unless both are there.
fn name_kind(tree: &mut Node) {
    if let Some(Node { value: Value::Map(entries), .. }) = tree.at_mut("objective.advantage")
        && !entries.iter().any(|entry| entry.key == "kind")
    {
        for entry in entries.iter_mut().filter(|entry| entry.key == "estimator") {
            "kind".clone_into(&mut entry.key);
        }
    }
}

/// A selector was a name, and is a section whose `kind` has that name.
fn name_selector(tree: &mut Node) {
    let Some(selector) = tree.at_mut("schedule.selector") else { return };
    if matches!(selector.value, Value::Scalar { .. }) && !selector.is_null() {
        let (origin, node) = (selector.origin.clone(), selector.clone());
        selector.value = Value::Map(vec![MapEntry { key: "kind".to_owned(), origin, node }]);
    }
}

/// Converts each section for the kind that is in force: the command's, its own, the preset's or the default.
fn convert_sections<'a>(
    tree: &mut Node,
    preset: Option<&Node>,
    is_older: bool,
    of_command: &dyn Fn(&str) -> Option<&'a Node>,
) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    name_kind(tree);
    let name = preset.and_then(Node::as_text);
    let preset = Preset::ALL.iter().find(|preset| Some(preset.as_str()) == name);
    for section in SECTIONS {
        let shape = shape_of(section);
        let Shape::Tagged { default, .. } = shape.without_null() else { continue };
        let of_preset = preset.and_then(|preset| preset.settings().at(section));
        let Some(node) = tree.at_mut(section) else { continue };
        // A section of before has the keys of the command's kind too, which would replace one of today.
        if is_older
            && let Some(kind) = of_command(&format!("{section}.kind"))
            && let Value::Map(entries) = &mut node.value
        {
            entries.retain(|entry| entry.key != "kind");
            let (key, origin) = ("kind".to_owned(), kind.origin.clone());
            entries.insert(0, MapEntry { key, origin, node: kind.clone() });
        }
        let kind = [Some(&*node), of_preset]
            .into_iter()
            .flatten()
            .find_map(|section| section.get("kind")?.as_text());
        let Some(kind) = kind.or(*default).map(str::to_owned) else { continue };
        match section {
            "objective.advantage" if is_older => {
                take_norm(node, &kind, of_preset, &mut found);
                take_retired(node, &kind, &mut found);
            }
            "objective.loss" if is_older => set_free(node),
            _ => {}
        }
        if is_older {
            take_of_preset(node, section, &kind, of_preset);
        }
        drop_idle(node, section, &kind, is_older, &mut found);
    }
    found
}

/// Before, what a preset sets of one kind was in force for another that has such a key.
fn take_of_preset(node: &mut Node, section: &str, kind: &str, of_preset: Option<&Node>) {
    let Some(of_preset) = of_preset else { return };
    let is_of_other = of_preset.get("kind").and_then(Node::as_text).is_some_and(|other| other != kind);
    let Value::Map(entries) = &mut node.value else { return };
    for entry in of_preset.entries().iter().filter(|_| is_of_other) {
        let is_there = entries.iter().any(|own| own.key == entry.key);
        if !is_there && entry.key != "kind" && has_key(section, kind, &entry.key) {
            entries.push(entry.clone());
        }
    }
}

fn shape_of(section: &str) -> Shape {
    section.split('.').fold(table::root().clone(), |shape, key| shape.of_key(key))
}

/// Whether names, words or nulls of before stand in it, or a loss has the keys of all kinds.
fn is_of_before(tree: &Node) -> bool {
    let has = |section: &str, key: &str| tree.at(section).is_some_and(|node| node.get(key).is_some());
    has("objective.advantage", "estimator")
        || has("objective.advantage", "norm_by_std")
        || tree.at("objective.loss.log_ratio_limit").and_then(Node::as_text) == Some("off")
        || has("objective.loss", "tau_positive") && has("objective.loss", "k_positive")
        || SECTIONS.iter().any(|section| {
            tree.at(section).is_some_and(|node| has_null_of_other_kind(node, &shape_of(section)))
        })
}

/// Whether a key that only other kinds have is null, once the way to say "the kind's own"; where no kind is
/// named, one that takes no null in any kind.
fn has_null_of_other_kind(section: &Node, shape: &Shape) -> bool {
    let Shape::Tagged { common, variants, .. } = shape.without_null() else { return false };
    let kind = section.get("kind").and_then(Node::as_text);
    let is_of_other = |key: &str| variants.iter().any(|other| other.keys.iter().any(|spec| spec.name == key));
    let is_own = |key: &str| {
        let mut own = variants
            .iter()
            .filter(|variant| kind.is_none_or(|kind| variant.name == kind))
            .flat_map(|variant| &variant.keys)
            .chain(common)
            .filter(|spec| spec.name == key);
        if kind.is_some() { own.next().is_some() } else { own.any(takes_null) }
    };
    section
        .entries()
        .iter()
        .any(|entry| entry.node.is_null() && !is_own(&entry.key) && is_of_other(&entry.key))
}

/// Takes out keys that `cpo` had and has no more: of the forms that no published script of its fork names.
fn take_retired(advantage: &mut Node, kind: &str, faults: &mut Vec<Diagnostic>) {
    let Value::Map(entries) = &mut advantage.value else { return };
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
        if kind != "cpo" && !entry.node.is_null() && !is_without_effect {
            faults.push(without_effect("objective.advantage", &entry.key, kind, &entry.node.origin));
        }
        if kind == "cpo" && !is_without_effect {
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

/// `norm_by_std: false` becomes what the kind has for it, and `true` its default over a preset that says
/// otherwise. A value that is neither becomes that key's, to be refused there. For a kind that has nothing of
/// the sort it is left out.
fn take_norm(advantage: &mut Node, kind: &str, preset: Option<&Node>, found: &mut Vec<Diagnostic>) {
    let Value::Map(entries) = &mut advantage.value else { return };
    let Some(index) = entries.iter().position(|entry| entry.key == "norm_by_std") else { return };
    let mut by_std = entries.remove(index);
    let (key, by_no_deviation, by_deviation) =
        if kind == "grpo_passk" { ("divide", "false", "true") } else { ("scale", "none", "group") };
    let is_of_preset = |value| preset.and_then(|preset| preset.get(key)?.as_text()) == Some(value);
    let value = match &by_std.node.value {
        Value::Scalar { text, plain: true } => parse_bool(text),
        _ => None,
    };
    if !has_key("objective.advantage", kind, key) {
        if value != Some(true) && !by_std.node.is_null() {
            found.push(without_effect("objective.advantage", "norm_by_std", kind, &by_std.node.origin));
        }
        return;
    }
    match value {
        Some(true) if !is_of_preset(by_no_deviation) || entries.iter().any(|entry| entry.key == key) => {
            return;
        }
        Some(true) => by_std.node = Node::plain(by_deviation, by_std.node.origin),
        Some(false) => by_std.node = Node::plain(by_no_deviation, by_std.node.origin),
        None => {}
    }
    key.clone_into(&mut by_std.key);
    entries.retain(|entry| entry.key != key);
    entries.push(by_std);
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

fn takes_null(spec: &KeySpec) -> bool {
    matches!((spec.shape)(), Shape::Nullable(_))
}

/// Whether a kind of a section has a key.
fn has_key(section: &str, kind: &str, key: &str) -> bool {
    let shape = shape_of(section);
    let Shape::Tagged { common, variants, .. } = shape.without_null() else { return false };
    let own = variants.iter().filter(|variant| variant.name == kind).flat_map(|variant| &variant.keys);
    common.iter().chain(own).any(|spec| spec.name == key)
}

/// The warning about a key that is left out.
fn without_effect(section: &str, key: &str, kind: &str, origin: &Origin) -> Diagnostic {
    let message = format!("`{section}.{key}` has no effect: the kind here is `{kind}`");
    Diagnostic::warning(Problem::rule(message, "it is left out"), Some(origin.clone()))
}

/// Gives a null that the section's kind does not take the kind's own value, and takes out the keys that only
/// other kinds have, with a warning: in a file of before, which had them all, where one was set. A key that
/// nobody has stays, to be refused.
fn drop_idle(node: &mut Node, section: &str, kind: &str, is_older: bool, found: &mut Vec<Diagnostic>) {
    let shape = shape_of(section);
    let Shape::Tagged { common, variants, .. } = shape.without_null() else { return };
    let Value::Map(entries) = &mut node.value else { return };
    let Some(own) = variants.iter().find(|variant| variant.name == kind) else { return };
    let find = |keys: &[KeySpec], key: &str| keys.iter().find(|spec| spec.name == key).cloned();
    entries.retain_mut(|entry| {
        let origin = &entry.node.origin;
        if let Some(spec) = find(common, &entry.key).or_else(|| find(&own.keys, &entry.key)) {
            if !entry.node.is_null() || takes_null(&spec) {
                return true;
            }
            entry.node = Node::plain(spec.default.to_string(), origin.clone());
            return !spec.is_required();
        }
        let others: Vec<KeySpec> =
            variants.iter().filter_map(|other| find(&other.keys, &entry.key)).collect();
        let value = entry.node.to_json();
        let is_default = |spec: &KeySpec| Node::plain(&*spec.default, origin.clone()).to_json() == value;
        let is_set = !is_older || !entry.node.is_null() && !others.iter().any(is_default);
        if !others.is_empty() && is_set {
            found.push(without_effect(section, &entry.key, kind, origin));
        }
        others.is_empty()
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
        (Shape::Path(kind), Value::Scalar { text, .. })
            if !kind.is_name(text, folder) && !text.starts_with("~/") =>
        {
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
        let is_older = is_of_before(&parsed(text));
        let (found, text) = imported(&[text]);
        assert!(found.iter().all(|found| found.severity == Severity::Warning), "{found:?}");
        (is_older, text)
    }

    fn parsed(text: &str) -> Node {
        yaml::parse(&Source::new(SourceKind::Default, text)).unwrap_or_else(|found| panic!("{found:?}"))
    }

    fn imported(texts: &[&str]) -> (Vec<Diagnostic>, String) {
        let (tree, found) = convert_imported(texts.iter().map(|text| parsed(text)).collect(), &|_| None);
        (found, flow(&tree.expect("a file").to_json()))
    }

    #[test]
    fn a_selector_that_is_a_name_becomes_the_section_of_that_kind() {
        let of = |text: &str| imported(&[text]).1;
        let today = "{schedule: {selector: {kind: shuffle}, mode: rounds}}";
        assert_eq!(of("schedule: {selector: shuffle, mode: rounds}"), today);
        assert_eq!(of(today), today);
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
        let (_, today) = converted("{preset: dr_grpo, objective: {advantage: {norm_by_std: true}}}");
        assert_eq!(today, "{preset: dr_grpo, objective: {advantage: {scale: group}}}");
    }

    #[test]
    fn the_default_kind_is_in_force_where_nobody_names_one() {
        let (_, today) = converted("objective: {advantage: {norm_by_std: false, lambda: 0.95, ddof: null}}");
        assert_eq!(today, "{objective: {advantage: {ddof: 1, scale: none}}}");
        assert_eq!(
            converted(
                "objective: {loss: {clip_low: 0.2, dual_clip: null, tau_positive: null, log_ratio_limit: off}}"
            ),
            (true, "{objective: {loss: {clip_low: 0.2, dual_clip: null, log_ratio_limit: null}}}".to_owned())
        );
    }

    #[test]
    fn a_file_over_another_is_converted_for_the_kind_of_both() {
        let base = "objective: {advantage: {estimator: gae, lambda: 0.9}, loss: {kind: sapo, clip_low: 0.1, tau_positive: 2.0}}";
        let over = "objective: {advantage: {norm_by_std: false}, loss: {tau_negative: 3.0, dual_clip: null, log_ratio_limit: off}}";
        assert_eq!(
            imported(&[base, over]).1,
            "{objective: {advantage: {kind: gae, lambda: 0.9}, loss: {kind: sapo, tau_positive: 2.0, tau_negative: 3.0, \
             log_ratio_limit: null}}}"
        );
    }

    #[test]
    fn a_setting_of_another_kind_goes_with_a_warning() {
        let (found, today) =
            imported(&["objective: {advantage: {singleton: raw, gamma: 0.9, lambda: 1.0, whiten: null}}"]);
        assert_eq!(today, "{objective: {advantage: {singleton: raw}}}");
        let found: Vec<String> = found.iter().map(|found| found.problem.to_string()).collect();
        assert_eq!(found, ["`objective.advantage.gamma` has no effect: the kind here is `grpo`"]);
    }

    #[test]
    fn a_key_of_another_kind_is_named_as_it_is_written() {
        let (found, today) = imported(&["objective: {advantage: {estimator: gae, norm_by_std: false}}"]);
        assert_eq!(today, "{objective: {advantage: {kind: gae}}}");
        let found: Vec<String> = found.iter().map(|found| found.problem.to_string()).collect();
        assert_eq!(
            found,
            [format!("`objective.advantage.{}` has no effect: the kind here is `gae`", "norm_by_std")]
        );
        let (found, today) = imported(&["objective: {advantage: {estimator: gae, norm_by_std: true}}"]);
        assert_eq!((found.len(), today.as_str()), (0, "{objective: {advantage: {kind: gae}}}"));
    }

    #[test]
    fn what_a_preset_set_of_another_kind_stays_in_force() {
        let (_, today) =
            converted("{preset: dapo, objective: {advantage: {estimator: grpo}, loss: {kind: cispo}}}");
        assert_eq!(
            today,
            "{preset: dapo, objective: {advantage: {kind: grpo}, loss: {kind: cispo, clip_low: 0.2, clip_high: 0.28}}}"
        );
    }

    #[test]
    fn a_key_that_is_gone_is_named_where_it_had_no_effect() {
        let (found, today) =
            imported(&["objective: {advantage: {estimator: grpo, wrap: naive, difficulty: fork}}"]);
        assert_eq!(today, "{objective: {advantage: {kind: grpo}}}");
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_kind_on_the_command_line_decides() {
        let kind = Node::plain("sapo", parsed("{}").origin);
        let of_command = |key: &str| (key == "objective.loss.kind").then_some(&kind);
        let old =
            parsed("objective: {loss: {kind: clip, clip_low: 0.1, tau_positive: 2.0, k_positive: 1.0}}");
        let (tree, found) = convert_imported(vec![old], &of_command);
        let today = flow(&tree.expect("a file").to_json());
        assert_eq!(today, "{objective: {loss: {kind: sapo, tau_positive: 2.0}}}");
        let found: Vec<String> = found.iter().map(|found| found.problem.to_string()).collect();
        assert_eq!(
            found,
            ["clip_low", "k_positive"]
                .map(|key| format!("`objective.loss.{key}` has no effect: the kind here is `sapo`"))
        );
    }

    #[test]
    fn a_file_of_today_loses_no_key_in_silence() {
        let (found, _) = imported(&["{filter: {kind: top_k, k: 3, p: 0.9}}"]);
        assert_eq!(found.len(), 1);
        let (found, _) = imported(&["{filter: {kind: top_k, k: 3, tolerance: 0.0}}"]);
        assert_eq!(found.len(), 1, "the default of another kind");
    }

    #[test]
    fn what_is_no_flag_stays_to_be_refused() {
        for value in ["no", "nope", "0", "'false'"] {
            let (_, today) = converted(&format!("objective: {{advantage: {{norm_by_std: {value}}}}}"));
            assert_eq!(
                parsed(&today).to_json(),
                parsed(&format!("objective: {{advantage: {{scale: {value}}}}}")).to_json()
            );
        }
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
        let of = |rest: &str| imported(&[&format!("objective: {{advantage: {{estimator: cpo, {rest}}}}}")]);
        let (idle, today) = of("wrap: tok_kl, difficulty: repaired, ratio_bound: 3.0");
        assert!(idle.is_empty());
        assert_eq!(today, "{objective: {advantage: {kind: cpo, wrap: tok_kl}}}");
        for gone in ["difficulty: fork", "wrap: naive"] {
            let (gone, _) = of(gone);
            assert_eq!(gone.len(), 1);
        }
    }

    #[test]
    fn one_of_today_is_left_as_it_is() {
        let text = "{filter: {kind: top_k, k: 3}, objective: {advantage: {kind: rloo}, loss: {log_ratio_limit: null}}}";
        assert_eq!(converted(text), (false, text.to_owned()));
        let mut tree = parsed("{filter: {kind: variance, k: 3}, objective: {loss: {tau_positive: 2}}}");
        let before = tree.clone();
        assert!(
            !convert(&mut tree).is_older && tree == before,
            "a setting of another kind is refused, not dropped"
        );
    }
}
