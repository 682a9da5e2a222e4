//! Arguments of other systems into overrides of ours, with a note on what each became.

use std::fmt;
use std::sync::Arc;

use super::{Becomes, ForeignKey, ForeignProblem, Owner, Rule, defaults, entry, hydra, rules, section_owner};
use crate::diagnostic::Diagnostic;
use crate::override_argument::{Operation, Override};
use crate::preset::adds_overlong;
use crate::schema::Preset;
use crate::shape::Shape;
use crate::source::{Origin, Source, SourceKind};
use crate::suggest;
use crate::table::{self, Place};
use crate::tree::{Node, Value, parse_bool, parse_float};
use crate::yaml;

/// What one key of another system became.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// Whose key it is.
    pub owner: Owner,
    /// The key.
    pub key: String,
    /// Its value; `None` where it was not given and its owner's default was taken.
    pub value: Option<String>,
    /// What it became.
    pub outcome: Outcome,
    /// Something to know about it.
    pub remark: Option<String>,
}

/// What became of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Our keys, with their values.
    Became(Vec<(String, String)>),
    /// Part of what another key became.
    PartOf(String),
    /// Nothing, for a reason.
    NoEffect(String),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={value}", self.key)?,
            None => write!(f, "{} is not given", self.key)?,
        }
        match &self.outcome {
            Outcome::Became(ours) => {
                f.write_str(" -> ")?;
                for (index, (key, value)) in ours.iter().enumerate() {
                    write!(f, "{}{key}: {value}", if index == 0 { "" } else { ", " })?;
                }
            }
            Outcome::PartOf(key) => write!(f, " goes into what {key} becomes")?,
            Outcome::NoEffect(reason) if self.value.is_none() => write!(f, ": {reason}")?,
            Outcome::NoEffect(reason) => write!(f, " has no effect: {reason}")?,
        }
        match &self.remark {
            Some(remark) => write!(f, " ({remark})"),
            None => Ok(()),
        }
    }
}

/// The result of a translation.
#[derive(Debug)]
pub(crate) struct Translation {
    pub(crate) overrides: Vec<Override>,
    pub(crate) notes: Vec<Note>,
    pub(crate) diagnostics: Vec<Diagnostic>,
}

/// What a key of another system may have to change in the layers below it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lower {
    /// The places of soft overlong punishments in the user's own list of rewards.
    pub(crate) overlong_rewards: Vec<usize>,
    /// Whether the preset adds one.
    pub(crate) is_overlong_in_preset: bool,
}

/// Translates arguments; what was not given keeps the value that lower layers have.
pub(crate) fn translate(arguments: &[Override], lower: Lower) -> Translation {
    run(arguments, false, lower)
}

/// Translates arguments; what was not given and matters gets its owner's default.
pub(crate) fn translate_whole(arguments: &[Override]) -> Translation {
    run(arguments, true, Lower::default())
}

/// A key as it was given.
pub(super) struct Given {
    pub(super) owner: Owner,
    pub(super) entry: &'static ForeignKey,
    pub(super) key: String,
    /// One of ours inside a mapping that is handed on as it is, for a key below the entry's own.
    below: Option<String>,
    pub(super) node: Node,
    pub(super) origin: Origin,
}

/// The state of a translation.
pub(super) struct Translator {
    pub(super) given: Vec<Given>,
    /// Whether a whole configuration is converted, so that what is absent has its owner's default.
    pub(super) whole: bool,
    /// The layers that the result is put over.
    pub(super) lower: Lower,
    overrides: Vec<Override>,
    notes: Vec<Note>,
    diagnostics: Vec<Diagnostic>,
}

fn run(arguments: &[Override], whole: bool, lower: Lower) -> Translation {
    let mut translator = Translator {
        given: Vec::new(),
        whole,
        lower,
        overrides: Vec::new(),
        notes: Vec::new(),
        diagnostics: Vec::new(),
    };
    let arguments = hydra::resolved(arguments);
    let easyr1 = arguments.iter().any(|argument| {
        let has = |owner| entry(owner, &argument.path).is_some();
        has(Owner::EasyR1) && !has(Owner::Verl) && !has(Owner::Ragen)
    });
    for argument in &arguments {
        translator.take(argument, easyr1);
    }
    translator.run();
    let Translator { overrides, notes, diagnostics, .. } = translator;
    Translation { overrides, notes, diagnostics }
}

impl Translator {
    fn take(&mut self, argument: &Override, easyr1: bool) {
        let typed = argument.path.as_str();
        let newer = super::trl::OLDER.iter().find(|(older, _)| *older == typed);
        let key = newer.map_or(typed, |(_, newer)| *newer);
        let order = if easyr1 {
            [Owner::EasyR1, Owner::Ragen, Owner::Verl, Owner::Trl]
        } else {
            [Owner::Ragen, Owner::Verl, Owner::EasyR1, Owner::Trl]
        };
        // A key that is named goes before one that is only under a name with `*`.
        let named = order.into_iter().find_map(|owner| {
            entry(owner, key).filter(|entry| !entry.key.ends_with('*')).map(|entry| (owner, entry, None))
        });
        let found = named.or_else(|| inside(&order, key)).or_else(|| {
            order.into_iter().find_map(|owner| entry(owner, key).map(|entry| (owner, entry, None)))
        });
        let said = |owner: Owner, reason: &str| Note {
            owner,
            key: key.to_owned(),
            value: argument.value().map(show),
            outcome: Outcome::NoEffect(reason.to_owned()),
            remark: None,
        };
        if found.is_none()
            && matches!(argument.value(), Some(Node { value: Value::Map(entries), .. }) if entries.is_empty())
            && let Some(owner) = order.into_iter().find(|owner| hydra::is_section(*owner, key))
        {
            self.notes.push(said(owner, "it is empty"));
            return;
        }
        let Some((owner, entry, below)) = found else {
            self.unknown(argument, easyr1);
            return;
        };
        let is_typed = argument.origin.source.kind == SourceKind::Argument;
        if let Some(variable) = argument.value().filter(|_| is_typed).and_then(hydra::unfilled) {
            let problem = ForeignProblem::Unfilled { key: key.to_owned(), variable };
            self.diagnostics.push(Diagnostic::error(problem.into(), Some(argument.origin.clone())));
            return;
        }
        if let Some(reason) = argument.value().and_then(hydra::says_nothing) {
            self.notes.push(said(owner, reason));
            return;
        }
        let mut origin = argument.value().map_or(&argument.origin, |node| &node.origin).clone();
        if origin.source.kind == SourceKind::Argument {
            origin.source = Source::new(SourceKind::Foreign(owner.as_str()), origin.source.text.clone());
        }
        let mut node =
            argument.value().cloned().unwrap_or_else(|| Node::plain(entry.default, origin.clone()));
        point(&mut node, &origin);
        if key == "hub_token" && !node.is_null() {
            node = Node::text("***", origin.clone());
        }
        // The last of several wins, as everywhere.
        self.given.retain(|given| given.key != key);
        self.given.push(Given { owner, entry, key: key.to_owned(), below, node, origin });
    }

    /// Reports a key that no table has.
    fn unknown(&mut self, argument: &Override, easyr1: bool) {
        let key = argument.path.as_str();
        // Only TRL's keys have no section.
        let owner =
            section_owner(key).map(|owner| if easyr1 { Owner::EasyR1 } else { owner }).or_else(|| {
                let is_flat = !key.contains('.');
                (is_flat && self.has_key_of(Owner::Trl)).then_some(Owner::Trl)
            });
        let owners = owner.map_or_else(|| Owner::ALL.to_vec(), |owner| vec![owner]);
        let names: Vec<&'static str> =
            owners.iter().flat_map(|owner| owner.keys()).map(|entry| entry.key).collect();
        let suggestion = suggest::nearest_value(key, &names).filter(|name| !name.ends_with('*'));
        let problem = ForeignProblem::Unknown { key: key.to_owned(), owner, suggestion };
        self.diagnostics.push(Diagnostic::error(problem.into(), Some(argument.origin.clone())));
    }

    fn run(&mut self) {
        let mut groups = Vec::new();
        let mut simple = Vec::new();
        for given in &self.given {
            match given.entry.becomes {
                // Comes after the others, below.
                Becomes::Rule(Rule::RagenSizes, _) => {}
                Becomes::Rule(rule, _) => {
                    if !groups.contains(&(rule, given.owner)) {
                        groups.push((rule, given.owner));
                    }
                }
                Becomes::Key(ours) => {
                    simple.push((given.key.clone(), given.below.clone().unwrap_or_else(|| ours.to_owned())));
                }
                Becomes::NoEffect(reason) => self.notes.push(Note {
                    owner: given.owner,
                    key: given.key.clone(),
                    value: Some(show(&given.node)),
                    outcome: Outcome::NoEffect(reason.to_owned()),
                    remark: None,
                }),
                Becomes::Unless(allowed, reason) => {
                    let value = show(&given.node);
                    if allowed.contains(&value.as_str()) || given.node.is_null() && allowed.contains(&"null")
                    {
                        self.notes.push(Note {
                            owner: given.owner,
                            key: given.key.clone(),
                            value: Some(value),
                            outcome: Outcome::NoEffect("that is what is done anyway".to_owned()),
                            remark: None,
                        });
                    } else {
                        let problem = ForeignProblem::Refused {
                            key: given.key.clone(),
                            value,
                            owner: given.owner,
                            reason: reason.to_owned(),
                        };
                        self.diagnostics.push(Diagnostic::error(problem.into(), Some(given.origin.clone())));
                    }
                }
            }
        }
        groups.sort_by_key(|(rule, _)| *rule);
        for (rule, owner) in groups {
            rules::apply(rule, owner, self);
        }
        // RAGEN's mini-batches count trajectories even where no key says how many a group has.
        if self.has_key_of(Owner::Ragen) {
            rules::apply(Rule::RagenSizes, Owner::Ragen, self);
        }
        for (key, ours) in simple {
            let Some(given) = self.find(&key) else { continue };
            // A rule of another key took it.
            if self.notes.iter().any(|note| note.key == key) {
                continue;
            }
            let mut node = unquoted(given.node.clone());
            let text = show(&node);
            // null says nothing in the other systems; the default here says the same.
            if node.is_null() && !ours.ends_with("dual_clip") && !ours.ends_with("max_grad_norm") {
                self.no_effect(&key, "null leaves the default");
                continue;
            }
            // One value is a list of one, as their parsers of arguments have it.
            if is_list(&ours) && matches!(node.value, Value::Scalar { .. }) {
                let origin = node.origin.clone();
                node = Node { value: Value::List(vec![given.node.clone()]), origin };
            }
            self.set_node(&[&key], &ours, node);
            if MAY_BE_ON_A_HUB.contains(&ours.as_str()) && is_hub_name(&text) {
                self.remark(&key, "a name on a hub is no file: download it and put its path here");
            }
        }
        if self.whole {
            let mut owners: Vec<Owner> = self.given.iter().map(|given| given.owner).collect();
            owners.dedup();
            // One table is the base of the others: the most particular one's defaults are taken.
            let main = [Owner::EasyR1, Owner::Trl, Owner::Ragen, Owner::Verl]
                .into_iter()
                .find(|owner| owners.contains(owner));
            if let Some(main) = main {
                defaults::complete(main, self);
            }
        }
        // In the order of the arguments, those not given last.
        let given = &self.given;
        let position =
            |note: &Note| given.iter().position(|given| given.key == note.key).unwrap_or(usize::MAX);
        self.notes.sort_by_key(position);
    }

    /// What was given for a key.
    pub(super) fn find(&self, key: &str) -> Option<&Given> {
        self.given.iter().find(|given| given.key == key)
    }

    /// The value of a key as text; `None` where it was not given or is null.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.find(key).filter(|given| !given.node.is_null()).map(|given| show(&given.node))
    }

    /// The value of a key as a flag.
    pub(super) fn flag(&mut self, key: &str, default: bool) -> bool {
        let Some(text) = self.text(key) else { return default };
        parse_bool(&text).unwrap_or_else(|| {
            self.bad_value(key, "true or false");
            default
        })
    }

    /// The value of a key as a number.
    pub(super) fn number(&mut self, key: &str) -> Option<f64> {
        let text = self.text(key)?;
        let value = parse_float(&text);
        if value.is_none() {
            self.bad_value(key, "a number");
        }
        value
    }

    /// Sets one of ours; `from` are the keys it follows from, the note goes to the first of them that was given.
    pub(super) fn set(&mut self, from: &[&str], ours: &str, yaml_text: &str) {
        let origin = self.origin(from);
        let node = node_at(yaml_text, &origin);
        self.set_node(from, ours, node);
    }

    /// As [`Self::set`], with a value that is parsed already.
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
                Outcome::Became(pairs) => pairs.push(pair),
                Outcome::NoEffect(_) | Outcome::PartOf(_) => note.outcome = Outcome::Became(vec![pair]),
            }
        } else {
            let outcome = Outcome::Became(vec![pair]);
            self.notes.push(Note { owner, key, value: Some(text), outcome, remark: None });
        }
    }

    /// Takes the owner's default for one of ours, where a whole configuration is converted and nothing set it.
    pub(super) fn default(&mut self, owner: Owner, key: &str, ours: &str, value: &str) {
        self.defaults(owner, key, &[(ours, value)]);
    }

    /// As [`Self::default`], for a key that becomes several of ours.
    pub(super) fn defaults(&mut self, owner: Owner, key: &str, ours: &[(&str, &str)]) {
        // null is no value in any of those systems.
        if !self.whole || self.text(key).is_some() {
            return;
        }
        let origin =
            Origin::start_of(&Source::new(SourceKind::Foreign(owner.as_str()), format!("{key} (default)")));
        let mut pairs = Vec::new();
        for (path, value) in ours {
            if self.has_set(path) {
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
        let (outcome, remark) = (Outcome::Became(pairs), Some(format!("{owner}'s default")));
        match self.notes.iter_mut().find(|note| note.key == key) {
            Some(note) => (note.outcome, note.remark) = (outcome, remark),
            None => {
                self.notes.push(Note { owner, key: key.to_owned(), value: None, outcome, remark });
            }
        }
    }

    /// Whether it is said already what a key becomes.
    pub(super) fn is_noted(&self, key: &str) -> bool {
        self.notes.iter().any(|note| note.key == key)
    }

    /// Whether something set one of ours.
    pub(super) fn has_set(&self, ours: &str) -> bool {
        self.overrides.iter().any(|other| other.path == ours)
    }

    /// Whether the preset, of the layers below or one that a key became, adds a soft overlong punishment.
    pub(super) fn is_overlong_in_preset(&self) -> bool {
        match self.value_of("preset") {
            Some(name) => Preset::ALL.iter().any(|preset| preset.as_str() == name && adds_overlong(*preset)),
            None => self.lower.is_overlong_in_preset,
        }
    }

    /// The value that something set one of ours to.
    pub(super) fn value_of(&self, ours: &str) -> Option<String> {
        self.overrides.iter().rev().find(|other| other.path == ours).and_then(Override::value).map(show)
    }

    /// Whether something set one of our lists as a whole.
    pub(super) fn sets_list(&self, ours: &str) -> bool {
        self.overrides.iter().any(|other| other.path == ours && matches!(other.operation, Operation::Set(_)))
    }

    /// Sets one of our lists before what is appended to it.
    pub(super) fn put_first(&mut self, owner: Owner, why: &str, ours: &str, yaml_text: &str) {
        let origin = Origin::start_of(&Source::new(SourceKind::Foreign(owner.as_str()), why));
        let operation = Operation::Set(node_at(yaml_text, &origin));
        self.overrides.insert(0, Override { path: ours.to_owned(), origin, operation });
    }

    /// Says that a key that was given does nothing.
    pub(super) fn no_effect(&mut self, key: &str, reason: &str) {
        self.note(key, Outcome::NoEffect(reason.to_owned()));
    }

    /// Says that a key that was given is part of what another one became.
    pub(super) fn part_of(&mut self, key: &str, whole: &str) {
        self.note(key, Outcome::PartOf(whole.to_owned()));
    }

    fn note(&mut self, key: &str, outcome: Outcome) {
        let Some(given) = self.find(key) else { return };
        let (owner, value) = (given.owner, show(&given.node));
        if self.notes.iter().any(|note| note.key == key) {
            return;
        }
        self.notes.push(Note { owner, key: key.to_owned(), value: Some(value), outcome, remark: None });
    }

    /// Adds a remark to a key's note, or to a new one where it is not given.
    pub(super) fn remark(&mut self, key: &str, remark: &str) {
        if let Some(note) = self.notes.iter_mut().find(|note| note.key == key) {
            note.remark = Some(remark.to_owned());
        }
    }

    /// Remarks on something that was not given.
    pub(super) fn absent(&mut self, owner: Owner, key: &str, ours: &[(&str, &str)], remark: &str) {
        let pairs = ours.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.notes.push(Note {
            owner,
            key: key.to_owned(),
            value: None,
            outcome: Outcome::Became(pairs),
            remark: Some(remark.to_owned()),
        });
    }

    /// Says that a default which was not asked for is not followed.
    pub(super) fn absent_without_effect(&mut self, owner: Owner, key: &str, reason: &str) {
        let outcome = Outcome::NoEffect(reason.to_owned());
        self.notes.push(Note { owner, key: key.to_owned(), value: None, outcome, remark: None });
    }

    /// Whether there is a key that only this system has.
    pub(super) fn has_key_of(&self, owner: Owner) -> bool {
        self.given.iter().any(|given| given.owner == owner)
    }

    /// Refuses what was given.
    pub(super) fn refuse(&mut self, key: &str, reason: impl Into<String>) {
        let Some(given) = self.find(key) else { return };
        let problem = ForeignProblem::Refused {
            key: key.to_owned(),
            value: show(&given.node),
            owner: given.owner,
            reason: reason.into(),
        };
        self.diagnostics.push(Diagnostic::error(problem.into(), Some(given.origin.clone())));
    }

    /// Refuses what was given, or what its owner's defaults come to where nothing was.
    pub(super) fn refuse_or_say(&mut self, owner: Owner, key: &str, reason: String) {
        if self.find(key).is_some() {
            self.refuse(key, reason);
            return;
        }
        let value = entry(owner, key).map_or("", |entry| entry.default).to_owned();
        let problem = ForeignProblem::Refused { key: key.to_owned(), value, owner, reason };
        self.diagnostics.push(Diagnostic::error(problem.into(), None));
    }

    /// Reports a value that is none.
    pub(super) fn bad_value(&mut self, key: &str, expected: &'static str) {
        let Some(given) = self.find(key) else { return };
        let problem = ForeignProblem::BadValue {
            key: key.to_owned(),
            value: show(&given.node),
            owner: given.owner,
            expected,
        };
        // A key may be read by more than one rule.
        let diagnostic = Diagnostic::error(problem.into(), Some(given.origin.clone()));
        if !self.diagnostics.contains(&diagnostic) {
            self.diagnostics.push(diagnostic);
        }
    }

    /// The first of some keys that was given.
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

/// The entry of a mapping that is handed on as it is, for a key inside it, and which of ours that key is.
pub(super) fn inside(order: &[Owner], key: &str) -> Option<(Owner, &'static ForeignKey, Option<String>)> {
    key.match_indices('.').rev().find_map(|(at, _)| {
        let (above, rest) = (key.get(..at)?, key.get(at + 1..)?);
        order.iter().find_map(|&owner| {
            let entry = owner.keys().iter().find(|entry| entry.key == above)?;
            let Becomes::Key(ours) = entry.becomes else { return None };
            let below = format!("{ours}.{rest}");
            matches!(table::place(&below), Ok(Place::Free)).then_some((owner, entry, Some(below)))
        })
    })
}

/// Whether one of ours is a list, of any length.
fn is_list(ours: &str) -> bool {
    let Ok(Place::Key(spec)) = table::place(ours) else { return false };
    let mut shape = (spec.shape)();
    while let Shape::Nullable(inner) = shape {
        shape = *inner;
    }
    matches!(shape, Shape::List(_))
}

/// A number or a truth value in quotes is one to other systems.
fn unquoted(node: Node) -> Node {
    match node.value {
        Value::Scalar { text, plain: false }
            if parse_bool(&text).is_some() || parse_float(&text).is_some() =>
        {
            Node::plain(text, node.origin)
        }
        value => Node { value, origin: node.origin },
    }
}

/// A value as it would be typed.
pub(super) fn show(node: &Node) -> String {
    match &node.value {
        Value::Scalar { text, .. } => text.clone(),
        Value::List(_) | Value::Map(_) => node.to_json().to_string(),
    }
}

/// A value as YAML on one line.
fn show_yaml(node: &Node) -> String {
    match &node.value {
        Value::Scalar { .. } if node.is_null() => "null".to_owned(),
        _ => crate::render::flow(&node.to_json()),
    }
}

fn node_at(text: &str, origin: &Origin) -> Node {
    let source = Source::new(origin.source.kind.clone(), text);
    let mut node = yaml::parse(&source).unwrap_or_else(|_| Node::text(text, origin.clone()));
    point(&mut node, origin);
    node
}

/// Points a value and all in it at one place.
fn point(node: &mut Node, origin: &Origin) {
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

/// Keys whose values the other systems may take from a hub.
pub(crate) const MAY_BE_ON_A_HUB: [&str; 4] = ["model.path", "critic.model.path", "data.train", "data.val"];

/// `organisation/name`, as on a hub, and not a path with a suffix.
pub(crate) fn is_hub_name(text: &str) -> bool {
    let name = text.split('@').next().unwrap_or(text);
    let mut parts = name.split('/');
    let sound =
        |part: Option<&str>| part.is_some_and(|part| !part.is_empty() && !part.starts_with(['.', '~', '$']));
    sound(parts.next())
        && sound(parts.next())
        && parts.next().is_none()
        && ![".jsonl", ".json", ".parquet"].iter().any(|suffix| name.ends_with(suffix))
}
