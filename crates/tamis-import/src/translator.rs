//! The interface of rules: the given keys, and the overrides, notes and errors that they become.

use std::collections::HashMap;
use std::sync::Arc;

use super::owner::Owner;
use tamis_config::diagnostic::{Diagnostic, Problem};
use tamis_config::override_argument::{Operation, Override};
use tamis_config::preset::Preset;
use tamis_config::source::{Origin, Source, SourceKind};
use tamis_config::tree::{Node, Value, parse_bool, parse_float};
use tamis_config::{Note, NoteOutcome, Remark, yaml};

/// Facts about the layers below that a key of another system may change.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lower {
    /// The places of soft overlong penalties in the user's own list of rewards.
    pub(crate) overlong_rewards: Vec<usize>,
    /// Whether the preset adds one.
    pub(crate) is_overlong_in_preset: bool,
    /// Our layers as one tree, including typed overrides, which take precedence over keys of other systems.
    pub(crate) tree: Option<Node>,
}

/// A given key.
pub(super) struct Given {
    pub(super) owner: Owner,
    pub(super) key: String,
    pub(super) rule: Option<&'static str>,
    /// Our key inside a mapping that is passed on unchanged, if the given key is below the row's own.
    pub(super) below: Option<String>,
    /// Whether it is passed on unchanged to a function, a template or an engine of the user.
    pub(super) is_free: bool,
    pub(super) node: Node,
    pub(super) origin: Origin,
}

/// The given keys, and their translations so far.
#[derive(Default)]
pub(super) struct Translator {
    pub(super) given: Vec<Given>,
    /// Whether a whole configuration is converted, so that missing keys have their system's defaults.
    pub(super) whole: bool,
    /// The supervised trainer that the keys are of, if they are.
    pub(super) trainer: Option<Owner>,
    /// The layers below the result.
    pub(super) lower: Lower,
    /// Values that steps of rules have named.
    pub(super) variables: HashMap<&'static str, String>,
    pub(super) overrides: Vec<Override>,
    pub(super) notes: Vec<Note>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

impl Translator {
    pub(super) fn find(&self, key: &str) -> Option<&Given> {
        self.given.iter().find(|given| given.key == key)
    }

    /// The value of a key, of an entry in one (`KEY/NAME`), or of a variable, as text; `None` if it was not
    /// given or is null.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        if key.starts_with('$') {
            return self.variables.get(key).cloned();
        }
        if let Some((key, name)) = key.split_once('/') {
            let inside = self.find(key)?.node.at(name)?;
            return (!inside.is_null()).then(|| show(inside));
        }
        self.find(key).filter(|given| !given.node.is_null()).map(|given| show(&given.node))
    }

    pub(super) fn flag(&mut self, key: &str, default: bool) -> bool {
        let Some(text) = self.text(key) else { return default };
        parse_bool(&text).unwrap_or_else(|| {
            self.bad_value(key, "true or false");
            default
        })
    }

    pub(super) fn number(&mut self, key: &str) -> Option<f64> {
        let text = self.text(key)?;
        let value = parse_float(&text);
        if value.is_none() {
            self.bad_value(key, "a number");
        }
        value
    }

    /// Sets one of our keys. `from` are the keys that it follows from; the note goes to the first of them
    /// that was given.
    pub(super) fn set(&mut self, from: &[&str], ours: &str, yaml_text: &str) {
        let origin = self.origin(from);
        let node = node_at(yaml_text, &origin);
        self.set_node(from, ours, node);
    }

    /// As [`Self::set`], with a parsed value.
    pub(super) fn set_node(&mut self, from: &[&str], ours: &str, node: Node) {
        let value = show_yaml(&node);
        self.push(from, ours, value, Operation::Set(node));
    }

    /// Appends to one of our lists.
    pub(super) fn append(&mut self, from: &[&str], ours: &str, yaml_text: &str) {
        let node = node_at(yaml_text, &self.origin(from));
        let value = format!("+ {}", show_yaml(&node));
        self.push(from, ours, value, Operation::Add(node));
    }

    fn push(&mut self, from: &[&str], ours: &str, value: String, operation: Operation) {
        let origin = self.origin(from);
        self.overrides.push(Override { path: ours.to_owned(), origin, operation });
        let Some(key) = self.first_given(from) else { return };
        let Some((owner, text)) = self.find(&key).map(|given| (given.owner, show(&given.node))) else {
            return;
        };
        let pair = (ours.to_owned(), value);
        if let Some(note) = self.notes.iter_mut().find(|note| note.key == key) {
            match &mut note.outcome {
                NoteOutcome::Became(pairs) => pairs.push(pair),
                NoteOutcome::NoEffect(_) | NoteOutcome::Ignored(_) | NoteOutcome::PartOf(_) => {
                    note.outcome = NoteOutcome::Became(vec![pair]);
                }
            }
        } else {
            let outcome = NoteOutcome::Became(vec![pair]);
            self.notes.push(note_on(owner, &key, Some(text), outcome));
        }
    }

    /// Uses the system's default for one of our keys, if a whole configuration is converted and nothing has
    /// set the key.
    pub(super) fn owner_default(&mut self, owner: Owner, key: &str, ours: &str, value: &str) {
        self.defaults(owner, key, &[(ours, value)]);
    }

    /// As [`Self::owner_default`], for a key that becomes several of ours.
    pub(super) fn defaults(&mut self, owner: Owner, key: &str, ours: &[(&str, &str)]) {
        // In all of those systems, null means no value.
        if !self.whole || self.text(key).is_some() {
            return;
        }
        let origin = Origin::start_of(&Source::new(
            SourceKind::Translated(owner.as_str()),
            format!("{key} (default)"),
        ));
        let mut pairs = Vec::new();
        for (path, value) in ours {
            // A value of our own key takes precedence over their default.
            if self.has_set(path) || self.is_argued(path) {
                continue;
            }
            let node = node_at(value, &origin);
            pairs.push(((*path).to_owned(), show_yaml(&node)));
            let (path, origin) = ((*path).to_owned(), origin.clone());
            self.overrides.push(Override { path, origin, operation: Operation::Set(node) });
        }
        if pairs.is_empty() {
            return;
        }
        let (outcome, remark) = (NoteOutcome::Became(pairs), Some(Remark::OwnersDefault));
        match self.notes.iter_mut().find(|note| note.key == key) {
            Some(note) => (note.outcome, note.remark) = (outcome, remark),
            None => {
                self.notes.push(Note { remark, ..note_on(owner, key, None, outcome) });
            }
        }
    }

    /// Whether a key has a note already.
    pub(super) fn is_noted(&self, key: &str) -> bool {
        self.notes.iter().any(|note| note.key == key)
    }

    /// Whether one of our keys has been set.
    pub(super) fn has_set(&self, ours: &str) -> bool {
        self.overrides.iter().any(|other| other.path == ours)
    }

    /// Whether the preset (from the layers below, or from a key) adds a soft overlong penalty.
    pub(super) fn is_overlong_in_preset(&self) -> bool {
        match self.value_of("preset") {
            Some(name) => Preset::ALL.iter().any(|preset| preset.as_str() == name && preset.adds_overlong()),
            None => self.lower.is_overlong_in_preset,
        }
    }

    /// Whether one of our own overrides sets a key.
    fn is_argued(&self, ours: &str) -> bool {
        let node = self.lower.tree.as_ref().and_then(|tree| tree.at(ours));
        node.is_some_and(|node| node.origin.source.kind == SourceKind::Argument)
    }

    /// The value to which one of our keys has been set.
    pub(super) fn value_of(&self, ours: &str) -> Option<String> {
        self.overrides.iter().rev().find(|other| other.path == ours).and_then(Override::value).map(show)
    }

    /// The kind of one of our sections over all layers; `None` if no layer sets it.
    pub(super) fn kind_of(&self, section: &str) -> Option<String> {
        self.text_of(&format!("{section}.kind"))
    }

    /// The text of one of our keys over all layers; `None` if no layer sets it.
    pub(super) fn text_of(&self, key: &str) -> Option<String> {
        let lower = self.lower.tree.as_ref().and_then(|tree| tree.at(key));
        let is_of = |is_layer: fn(&Origin) -> bool| {
            lower.filter(|node| is_layer(&node.origin)).and_then(Node::as_text).map(str::to_owned)
        };
        let of_preset = || {
            let name = self.value_of("preset")?;
            let preset = Preset::ALL.iter().find(|preset| preset.as_str() == name)?;
            preset.settings().at(key).and_then(Node::as_text).map(str::to_owned)
        };
        is_of(|origin| origin.source.kind == SourceKind::Argument)
            .or_else(|| self.value_of(key))
            .or_else(|| is_of(Origin::is_from_user))
            .or_else(of_preset)
            .or_else(|| is_of(|_| true))
    }

    /// Whether one of our lists has been set as a whole.
    pub(super) fn sets_list(&self, ours: &str) -> bool {
        self.overrides.iter().any(|other| other.path == ours && matches!(other.operation, Operation::Set(_)))
    }

    /// Sets one of our lists before anything is appended to it.
    pub(super) fn put_first(&mut self, owner: Owner, why: &str, ours: &str, yaml_text: &str) {
        let origin = Origin::start_of(&Source::new(SourceKind::Translated(owner.as_str()), why));
        let operation = Operation::Set(node_at(yaml_text, &origin));
        self.overrides.insert(0, Override { path: ours.to_owned(), origin, operation });
    }

    pub(super) fn no_effect(&mut self, key: &str, reason: &str) {
        self.note(key, no_effect_for(reason));
    }

    /// Notes that the remaining keys of a rule have no effect.
    pub(super) fn rest_without_effect(&mut self, rule: &str, reason: &str) {
        let keys = self.given.iter().filter(|given| given.rule == Some(rule)).map(|given| given.key.clone());
        for key in keys.collect::<Vec<_>>() {
            self.no_effect(&key, reason);
        }
    }

    /// Notes that a given key belongs to the translation of another one.
    pub(super) fn part_of(&mut self, key: &str, whole: &str) {
        self.note(key, NoteOutcome::PartOf(whole.to_owned()));
    }

    fn note(&mut self, key: &str, outcome: NoteOutcome) {
        let Some(given) = self.find(key) else { return };
        let (owner, value) = (given.owner, show(&given.node));
        if self.notes.iter().any(|note| note.key == key) {
            return;
        }
        self.notes.push(note_on(owner, key, Some(value), outcome));
    }

    /// Adds a remark to a key's note, or to a new note if the key was not given.
    pub(super) fn remark(&mut self, key: &str, remark: &str) {
        if let Some(note) = self.notes.iter_mut().find(|note| note.key == key) {
            note.remark = Some(Remark::Text(remark.to_owned()));
        }
    }

    pub(super) fn absent(&mut self, owner: Owner, key: &str, ours: &[(&str, &str)], remark: &str) {
        // A given key has its own note.
        if self.find(key).is_some() {
            return;
        }
        let pairs = ours.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let note = note_on(owner, key, None, NoteOutcome::Became(pairs));
        self.notes.push(Note { remark: Some(Remark::Text(remark.to_owned())), ..note });
    }

    /// Notes that a default which was not requested is not followed.
    pub(super) fn absent_without_effect(&mut self, owner: Owner, key: &str, reason: &str) {
        self.notes.push(note_on(owner, key, None, no_effect_for(reason)));
    }

    /// Whether there is a key that only this system has.
    pub(super) fn has_key_of(&self, owner: Owner) -> bool {
        self.given.iter().any(|given| given.owner == owner)
    }

    pub(super) fn refuse(&mut self, key: &str, reason: impl Into<String>) {
        let Some(given) = self.find(key) else { return };
        let problem = refusal(key, &show(&given.node), given.owner, &reason.into());
        self.diagnostics.push(Diagnostic::error(problem, Some(given.origin.clone())));
    }

    /// Refuses a given key, or its system's default if it was not given.
    pub(super) fn refuse_or_default(&mut self, owner: Owner, key: &str, default: &str, reason: String) {
        if self.find(key).is_some() {
            self.refuse(key, reason);
            return;
        }
        self.diagnostics.push(Diagnostic::error(refusal(key, default, owner, &reason), None));
    }

    /// Reports an invalid value.
    pub(super) fn bad_value(&mut self, key: &str, expected: &'static str) {
        let Some(given) = self.find(key) else { return };
        let message = format!("`{key}` of {} must be {expected}, not `{}`", given.owner, show(&given.node));
        let problem = Problem::rule_about(&[key], message, explained(key));
        // Several rules may read a key.
        let diagnostic = Diagnostic::error(problem, Some(given.origin.clone()));
        if !self.diagnostics.contains(&diagnostic) {
            self.diagnostics.push(diagnostic);
        }
    }

    /// The first of these keys that was given.
    pub(super) fn first_given(&self, keys: &[&str]) -> Option<String> {
        keys.iter().find(|key| self.find(key).is_some()).map(|key| (*key).to_owned())
    }

    fn origin(&self, from: &[&str]) -> Origin {
        let given = from.iter().find_map(|key| self.find(key)).or_else(|| self.given.first());
        given.map_or_else(
            || Origin::start_of(&Source::new(SourceKind::Argument, "")),
            |given| given.origin.clone(),
        )
    }
}

pub(super) fn note_on(owner: Owner, key: &str, value: Option<String>, outcome: NoteOutcome) -> Note {
    Note { owner: owner.as_str(), key: key.to_owned(), value, outcome, remark: None, is_change: false }
}

/// No effect, for a reason from a table. The table marks one that the user should see by `warning: `.
pub(super) fn no_effect_for(reason: &str) -> NoteOutcome {
    match reason.strip_prefix("warning: ") {
        Some(reason) => NoteOutcome::Ignored(reason.to_owned()),
        None => NoteOutcome::NoEffect(reason.to_owned()),
    }
}

pub(super) fn refusal(key: &str, value: &str, owner: Owner, reason: &str) -> Problem {
    Problem::rule_about(
        &[key],
        format!("`{key}={value}` of {owner} cannot be followed: {reason}"),
        explained(key),
    )
}

fn explained(key: &str) -> String {
    format!("see `tamis config explain {key}`")
}

/// A value as the user would type it.
pub(super) fn show(node: &Node) -> String {
    match &node.value {
        Value::Scalar { text, .. } => text.clone(),
        Value::List(_) | Value::Map(_) => node.to_json().to_string(),
    }
}

fn show_yaml(node: &Node) -> String {
    match &node.value {
        Value::Scalar { .. } if node.is_null() => "null".to_owned(),
        _ => tamis_config::render::flow(&node.to_json()),
    }
}

fn node_at(text: &str, origin: &Origin) -> Node {
    let source = Source::new(origin.source.kind.clone(), text);
    let mut node = yaml::parse(&source).unwrap_or_else(|_| Node::text(text, origin.clone()));
    point(&mut node, origin);
    node
}

/// Sets the origin of a value and everything in it.
pub(super) fn point(node: &mut Node, origin: &Origin) {
    node.origin = Origin { source: Arc::clone(&origin.source), ..*origin };
    match &mut node.value {
        Value::Scalar { .. } => {}
        Value::List(items) => items.iter_mut().for_each(|item| point(item, origin)),
        Value::Map(entries) => {
            for entry in entries {
                entry.origin = origin.clone();
                point(&mut entry.node, origin);
            }
        }
    }
}

/// A limit; 0 and less mean none.
pub(super) fn limit_text(limit: f64) -> String {
    if limit > 0.0 { limit.to_string() } else { "null".to_owned() }
}
