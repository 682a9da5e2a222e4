//! The layers of a configuration, from the bottom: defaults, preset, files from left to right, overrides from left to right.
//!
//! ```text
//! defaults.yaml -> preset -> files -> keys of other systems -> overrides   (one raw tree, every value with its origin)
//!               -> Config                                                    (typed; every violation reported)
//!               -> consistency                                               (settings against each other)
//! ```

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::consistency;
use crate::diagnostic::{ConfigErrors, Diagnostic, Problem, Severity};
use crate::foreign::{self, Lower, Note};
use crate::override_argument::{Operation, Override};
use crate::preset::{self, PresetDifference};
use crate::reader::Reader;
use crate::schema::{Config, Preset, RewardKind};
use crate::setting::Setting;
use crate::shape::Shape;
use crate::source::{Origin, Source, SourceKind};
use crate::table::{self, Place};
use crate::tree::{Entry, Node, Value};
use crate::yaml;

/// The defaults of every key, as commented YAML.
pub const DEFAULTS_YAML: &str = include_str!("../defaults.yaml");

/// A configuration that is ready to run, with what there is to say about it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What the user may not expect, each with a hint.
    pub warnings: Vec<Diagnostic>,
    /// What each key of another system became.
    pub notes: Vec<Note>,
    /// What of the preset is overridden.
    pub preset_differences: Vec<PresetDifference>,
    pub(crate) tree: Node,
}

impl Loaded {
    /// Where the value of a key comes from.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.tree.at(key).map(|node| &node.origin)
    }
}

/// Loads a configuration from files and command-line overrides.
///
/// Keys of verl, EasyR1, RAGEN and TRL are taken among the overrides and translated; see [`Loaded::notes`].
///
/// # Errors
/// Every violation in all layers at once, and the warnings with them.
pub fn load(files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    let mut sources = Vec::new();
    let mut diagnostics = Vec::new();
    for path in files {
        match std::fs::read_to_string(path) {
            Ok(text) => sources.push(Source::new(SourceKind::File(path.clone()), text)),
            Err(error) => {
                let problem = Problem::Unreadable { path: path.clone(), message: error.to_string() };
                diagnostics.push(Diagnostic::error(problem, None));
            }
        }
    }
    load_layers(&sources, arguments, diagnostics)
}

/// Loads a configuration from texts and overrides, as [`load`] does from files.
///
/// # Errors
/// As [`load`].
pub fn load_sources(sources: &[Arc<Source>], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_layers(sources, arguments, Vec::new())
}

fn load_layers(
    sources: &[Arc<Source>],
    arguments: &[String],
    mut diagnostics: Vec<Diagnostic>,
) -> Result<Loaded, ConfigErrors> {
    let mut files = Vec::new();
    // A layer that is missing as a whole would only bring errors about what it holds.
    let mut is_whole = diagnostics.is_empty();
    for source in sources {
        let (tree, found) = yaml::parse_on(source);
        diagnostics.extend(found);
        let Some(mut tree) = tree else {
            is_whole = false;
            continue;
        };
        if tree.is_null() {
            tree = Node::empty_map(tree.origin);
        }
        prune_empty_sections(&mut tree, table::root());
        files.push(tree);
    }
    let num_found = diagnostics.len();
    let (overrides, notes) = parse_arguments(arguments, &files, &mut diagnostics);
    is_whole &= diagnostics.len() == num_found;

    let mut tree = default_tree().clone();
    let preset = chosen_preset(&files, &overrides);
    let mut shaping = None;
    if let Some(preset) = preset {
        let mut layer = preset::preset_tree(preset).clone();
        shaping = take(&mut layer, "reward");
        tree.merge(layer);
    }
    for file in files {
        if matches!(file.value, Value::Map(_)) {
            tree.merge(file);
        } else {
            diagnostics.push(Diagnostic::error(Problem::NotAMapping, Some(file.origin)));
            is_whole = false;
        }
    }
    for argument in overrides {
        apply(&mut tree, argument, &mut diagnostics);
    }
    complete_rewards(&mut tree, shaping);

    let mut reader = Reader::new();
    let config = Config::read(&tree, "", &mut reader);
    let mut found = Vec::new();
    if let (Some(config), true) = (&config, is_whole) {
        found = consistency::check(config, &tree, &reader);
    }
    diagnostics.extend(reader.into_diagnostics());
    diagnostics.extend(found);
    match config {
        Some(config) if diagnostics.iter().all(|diagnostic| diagnostic.severity == Severity::Warning) => {
            let preset_differences = preset::differences(&config, &tree);
            Ok(Loaded { config, warnings: diagnostics, notes, preset_differences, tree })
        }
        _ => Err(ConfigErrors { diagnostics }),
    }
}

/// The parsed defaults.
pub(crate) fn default_tree() -> &'static Node {
    static TREE: OnceLock<Node> = OnceLock::new();
    TREE.get_or_init(|| {
        let source = Source::new(SourceKind::Default, DEFAULTS_YAML);
        yaml::parse(&source).unwrap_or_else(|_| Node::empty_map(Origin::start_of(&source)))
    })
}

/// Parses the overrides and translates those of other systems, which come before the native ones.
fn parse_arguments(
    arguments: &[String],
    files: &[Node],
    diagnostics: &mut Vec<Diagnostic>,
) -> (Vec<Override>, Vec<Note>) {
    let mut native = Vec::new();
    let mut others = Vec::new();
    for argument in arguments {
        match Override::parse(argument) {
            Ok(parsed) => {
                if table::place(&parsed.path).is_err() && foreign::is_foreign(&parsed.path) {
                    others.push(parsed);
                } else {
                    native.push(parsed);
                }
            }
            Err(diagnostic) => diagnostics.push(diagnostic),
        }
    }
    if others.is_empty() {
        return (native, Vec::new());
    }
    let lower = Lower {
        overlong_rewards: files
            .iter()
            .rev()
            .find(|file| file.get("reward").is_some())
            .map(preset::overlong_rewards)
            .unwrap_or_default(),
        is_overlong_in_preset: chosen_preset(files, &native).is_some_and(preset::adds_overlong),
    };
    let translation = foreign::translate(&others, lower);
    diagnostics.extend(translation.diagnostics);
    let mut overrides = translation.overrides;
    overrides.extend(native);
    (overrides, translation.notes)
}

/// `section:` with nothing below it says nothing; it must not wipe out what lower layers hold.
fn prune_empty_sections(node: &mut Node, shape: &Shape) {
    let (Value::Map(entries), Shape::Section { keys, .. }) = (&mut node.value, shape) else { return };
    entries.retain_mut(|entry| {
        let Some(spec) = keys.iter().find(|spec| spec.name == entry.key) else { return true };
        let shape = (spec.shape)();
        let is_section = matches!(shape, Shape::Section { .. });
        prune_empty_sections(&mut entry.node, &shape);
        !(is_section && entry.node.is_null())
    });
}

/// The preset that the topmost layer names; whether it exists is found when the whole is read.
fn chosen_preset(files: &[Node], overrides: &[Override]) -> Option<Preset> {
    let by_override = overrides.iter().rev().find(|argument| argument.path == "preset").map(Override::value);
    let node = match by_override {
        Some(value) => value?,
        None => files.iter().rev().find_map(|file| file.get("preset"))?,
    };
    Preset::read(node, "preset", &mut Reader::new())
}

fn take(node: &mut Node, key: &str) -> Option<Node> {
    let Value::Map(entries) = &mut node.value else { return None };
    let index = entries.iter().position(|entry| entry.key == key)?;
    Some(entries.remove(index).node)
}

/// Completes the list of rewards: after the user's own the task's verifier where they have none, and what the preset adds unless they
/// have its kind.
fn complete_rewards(tree: &mut Node, shaping: Option<Node>) {
    let task = match tree.at("data.task") {
        Some(Node { value: Value::Scalar { text, .. }, .. }) => text.clone(),
        _ => String::new(),
    };
    let default_origin = default_tree().origin.clone();
    let Value::Map(entries) = &mut tree.value else { return };
    let Some(rewards) = entries.iter_mut().find(|entry| entry.key == "reward") else { return };
    let Value::List(items) = &mut rewards.node.value else { return };
    let kind_of = |item: &Node| match item.get("kind") {
        Some(Node { value: Value::Scalar { text, .. }, .. }) => text.clone(),
        _ => String::new(),
    };
    let has_verifier = items.iter().any(|item| RewardKind::is_verifier_name(&kind_of(item)));
    if !has_verifier && matches!(task.as_str(), "arithmetic" | "gsm8k_calculator") {
        let pair = |key: &str, value: &str| Entry {
            key: key.to_owned(),
            origin: default_origin.clone(),
            node: Node::plain(value, default_origin.clone()),
        };
        let value = Value::Map(vec![pair("kind", "number"), pair("weight", "1.0")]);
        items.push(Node { value, origin: default_origin.clone() });
    }
    if let Some(Node { value: Value::List(added), .. }) = shaping {
        for item in added {
            if !items.iter().any(|other| kind_of(other) == kind_of(&item)) {
                items.push(item);
            }
        }
    }
}

/// Applies one override to the tree.
pub(crate) fn apply(tree: &mut Node, argument: Override, diagnostics: &mut Vec<Diagnostic>) {
    let Override { path, origin, operation } = argument;
    let place = match table::place(&path) {
        Ok(place) => place,
        Err(unknown) => {
            let problem = unknown.into_problem(foreign::owner_of_section(&path));
            diagnostics.push(Diagnostic::error(problem, Some(origin)));
            return;
        }
    };
    let parts: Vec<&str> = path.split('.').collect();
    if let (Operation::Reset, Some((last, above))) = (&operation, parts.split_last())
        && let Ok(index) = last.parse::<usize>()
        && let Some(Node { value: Value::List(items), .. }) = slot_of_existing(tree, above)
    {
        if index < items.len() {
            items.remove(index);
        } else {
            let problem = Problem::NoSuchItem { key: above.join("."), length: items.len(), index };
            diagnostics.push(Diagnostic::error(problem, Some(origin)));
        }
        return;
    }
    let slot = match slot(tree, &parts, &origin) {
        Ok(slot) => slot,
        Err(problem) => {
            diagnostics.push(Diagnostic::error(problem, Some(origin)));
            return;
        }
    };
    match operation {
        Operation::Set(node) => slot.merge(node),
        Operation::Add(node) => match (&mut slot.value, node) {
            (Value::List(items), Node { value: Value::List(more), .. }) => {
                items.extend(more);
                slot.origin = origin;
            }
            (Value::List(items), node) => {
                items.push(node);
                slot.origin = origin;
            }
            (_, node) => slot.merge(node),
        },
        Operation::Reset => {
            *slot = default_tree().at(&path).cloned().unwrap_or_else(|| match place {
                Place::Key(spec) => yaml::parse(&Source::new(SourceKind::Default, spec.default))
                    .unwrap_or_else(|_| Node::plain(spec.default, origin.clone())),
                Place::Item | Place::Free => Node::plain("null", origin.clone()),
            });
        }
    }
}

fn slot_of_existing<'n>(tree: &'n mut Node, parts: &[&str]) -> Option<&'n mut Node> {
    parts.iter().try_fold(tree, |node, part| match &mut node.value {
        Value::Map(entries) => {
            entries.iter_mut().find(|entry| entry.key == *part).map(|entry| &mut entry.node)
        }
        Value::List(items) => part.parse::<usize>().ok().and_then(|index| items.get_mut(index)),
        Value::Scalar { .. } => None,
    })
}

/// The node at a path, made where it is not there.
fn slot<'n>(tree: &'n mut Node, parts: &[&str], origin: &Origin) -> Result<&'n mut Node, Problem> {
    let mut node = tree;
    for (depth, part) in parts.iter().enumerate() {
        if matches!(node.value, Value::Scalar { .. }) {
            node.value = Value::Map(Vec::new());
            node.origin = origin.clone();
        }
        node = match &mut node.value {
            Value::List(items) => {
                let (key, length) = (parts.get(..depth).unwrap_or_default().join("."), items.len());
                let index = part.parse::<usize>().unwrap_or(usize::MAX);
                items.get_mut(index).ok_or(Problem::NoSuchItem { key, length, index })?
            }
            Value::Map(entries) => {
                let index = entries.iter().position(|entry| entry.key == *part).unwrap_or_else(|| {
                    let node = Node::plain("null", origin.clone());
                    entries.push(Entry { key: (*part).to_owned(), origin: origin.clone(), node });
                    entries.len() - 1
                });
                &mut entries[index].node
            }
            Value::Scalar { .. } => unreachable!("made a mapping above"),
        };
    }
    Ok(node)
}
