//! Reads settings from raw values. A wrong value is reported and replaced by its default, so all faults of a
//! configuration are found at once.

use std::fmt::Write as _;

use serde_json::Value as Json;
use tamis_core::setting::{Check, Described, KeySpec, PathKind, Shape, TimeSpan, Variant, or_null};

use std::path::Path;

use crate::diagnostic::{Diagnostic, Problem, TypeFix, is_no};
use crate::hub_name;
use crate::path::PathText as _;
use crate::source::{Origin, Source, SourceKind};
use crate::suggest;
use crate::tree::{MapEntry, Node, Value, join, parse_bool, parse_float, parse_whole};

/// The names that an unknown key is compared with, besides those of its own section.
#[derive(Debug, Clone, Copy)]
pub struct KnownNames {
    /// The path of every key of the configuration.
    pub paths: fn() -> &'static [String],
    /// Names of keys in other systems.
    pub others: OtherNames,
    /// Where a name belongs that is none of the allowed values; `None` for a name of nothing.
    pub elsewhere: fn(&str, &[&'static str]) -> Option<Elsewhere>,
}

/// A name that a key does not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Elsewhere {
    /// The allowed value that has this name in another system.
    Here(&'static str),
    /// What it is elsewhere in the configuration, as a hint.
    There(String),
}

/// Knowledge about the names of keys in other systems.
#[derive(Debug, Clone, Copy)]
pub struct OtherNames {
    /// The system that a key seems to belong to.
    pub owner_of: fn(&str) -> Option<&'static str>,
    /// Our key for an argument of another system, by its last part.
    pub ours_of: fn(&str) -> Option<&'static str>,
    /// The one of our allowed values that another system gives another name.
    pub value_of: fn(&str, &[&'static str]) -> Option<&'static str>,
    /// Our setting (`key=value`) for a word of another system or of a paper.
    pub setting_of: fn(&str) -> Option<String>,
}

impl OtherNames {
    /// No other systems.
    pub const NONE: Self =
        Self { owner_of: |_| None, ours_of: |_| None, value_of: |_, _| None, setting_of: |_| None };
}

/// Reads settings from raw values and collects all faults.
#[derive(Debug)]
pub struct Reader {
    names: KnownNames,
    diagnostics: Vec<Diagnostic>,
    unsound: Vec<String>,
    defaults: std::sync::Arc<Source>,
}

/// Whether a key is one of others, within one, or around one.
pub(crate) fn is_among(keys: &[String], key: &str) -> bool {
    let within = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    keys.iter().any(|other| within(other, key) || within(key, other))
}

/// A dotted key in the nested form of a file, because dots are only for the command line. `None` if its first
/// part is no section with the second.
fn nest(path: &str, key: &str, paths: &[String]) -> Option<String> {
    let parts: Vec<&str> = key.split('.').collect();
    let [first, second, ..] = parts.as_slice() else { return None };
    let section = join(path, first);
    let is_there = |name: &str| paths.contains(&join(&section, name));
    let nested = format!("{}: ...{}", parts.join(": {"), "}".repeat(parts.len() - 1));
    (is_there(second) || is_there("kind")).then_some(nested)
}

impl Default for Reader {
    /// A reader that knows only the names of the present section.
    fn default() -> Self {
        Self::new(KnownNames { paths: || &[], others: OtherNames::NONE, elsewhere: |_, _| None })
    }
}

impl Reader {
    /// A reader without findings. For an unknown key it suggests one of these names.
    pub fn new(names: KnownNames) -> Self {
        let defaults = Source::new(SourceKind::Default, "");
        Self { names, diagnostics: Vec::new(), unsound: Vec::new(), defaults }
    }

    /// Returns the findings.
    pub fn into_diagnostics(self) -> Vec<Diagnostic> {
        self.diagnostics
    }

    /// Whether there was a fault at a key, in it, or in a section around it, so the value read is not the
    /// user's.
    pub fn is_unsound(&self, key: &str) -> bool {
        is_among(&self.unsound, key)
    }

    /// The keys whose values are not the user's, because those had faults.
    pub(crate) fn unsound_keys(&self) -> &[String] {
        &self.unsound
    }

    /// Reports a problem at a node.
    pub fn report(&mut self, node: &Node, problem: Problem) {
        self.diagnostics.push(Diagnostic::error(problem, Some(node.origin.clone())));
    }

    /// Reports a value whose type is not the key's.
    pub(crate) fn wrong_type(&mut self, node: &Node, path: &str, shape: &Shape) {
        let scalar = node.as_text().filter(|_| !node.is_null());
        let is_negative =
            node.as_plain().is_some_and(|text| text.starts_with('-') && parse_float(text).is_some());
        let mut expected = shape.describe();
        if is_negative {
            // -1 is a whole number too.
            expected = expected.replace("a whole number", "a whole number of 0 or more");
        }
        let shape = shape.without_null();
        // What a text, or a mapping outside a list, is short for.
        let (section, is_section) = match (&node.value, shape) {
            (Value::Scalar { text, .. }, shape) if shape.has_kind(text) => {
                (Some(format!("{{kind: {text}}}")), true)
            }
            (Value::Scalar { text, .. }, Shape::List(item)) if matches!(**item, Shape::Section { .. }) => {
                (item_of(text, item), true)
            }
            (Value::Map(entries), Shape::List(_)) => (mapping(entries), true),
            _ => (None, false),
        };
        let example = if is_section { section } else { scalar.map(str::to_owned) };
        let fix = match (example, shape) {
            _ if is_negative => TypeFix::SwitchOff,
            (Some(item), Shape::List(_) | Shape::Tuple(..)) => TypeFix::Write(format!("[{item}]")),
            (Some(section), _) if is_section => TypeFix::Write(section),
            (None, shape) if takes_text(shape) && !node.is_null() => TypeFix::Quotes,
            _ => TypeFix::Explain,
        };
        let problem = Problem::WrongType {
            key: path.to_owned(),
            expected,
            found: describe_found(node),
            fix,
            is_off: scalar.is_some_and(is_no),
            is_nullable: false,
        };
        self.report(node, problem);
    }

    /// Reads a value that may be null; a message about its type includes null.
    pub(crate) fn or_null<T>(&mut self, path: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let num_before = self.diagnostics.len();
        let value = read(self);
        for found in self.diagnostics.iter_mut().skip(num_before) {
            if let Problem::WrongType { key, expected, is_nullable, .. } = &mut *found.problem
                && key == path
            {
                (*expected, *is_nullable) = (or_null(expected), true);
            }
            // The `kind` of a section that may be null.
            if let Problem::NotAllowed { key, value, .. } = &*found.problem
                && *key == join(path, "kind")
                && is_no(value)
            {
                let hint = format!("`{path}=null` switches it off");
                *found.problem = Problem::rule_about(&[&join(path, "kind")], found.problem.to_string(), hint);
            }
        }
        value
    }

    /// Opens a section: it must be empty, or a mapping with only known keys.
    pub fn open<'n>(&mut self, node: &'n Node, path: &str, known: &[&'static str]) -> Option<&'n Node> {
        if !matches!(node.value, Value::Map(_)) && !node.is_null() {
            self.wrong_type(node, path, &Shape::Section { doc: "", keys: Vec::new() });
            return None;
        }
        self.refuse_unknown(node, path, known, None);
        Some(node)
    }

    /// Reports unknown keys of a section; `among` are its possible kinds and its own kind.
    fn refuse_unknown(
        &mut self,
        node: &Node,
        path: &str,
        known: &[&'static str],
        among: Option<(&[Variant], &'static str)>,
    ) {
        for entry in node.entries().iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let key = join(path, &entry.key);
            let origin = Some(entry.origin.clone());
            let has = |variant: &&Variant| variant.keys.iter().any(|spec| spec.name == entry.key);
            if let Some((variants, kind)) = among
                && variants.iter().any(|variant| has(&variant))
            {
                let kinds = variants.iter().filter(has).map(|variant| variant.name).collect();
                let known = known.iter().map(|&name| name.to_owned()).collect();
                self.diagnostics
                    .push(Diagnostic::error(Problem::OfOtherKind { key, kind, kinds, known }, origin));
                continue;
            }
            let nested = nest(path, &entry.key, (self.names.paths)());
            // A key of another kind may also be misspelt.
            let of_kinds = among.iter().flat_map(|(variants, _)| *variants).flat_map(|variant| &variant.keys);
            let near: Vec<&'static str> =
                known.iter().copied().chain(of_kinds.map(|spec| spec.name)).collect();
            let others = self.names.others;
            let all = (self.names.paths)();
            let suggestion = nested.or_else(|| suggest::nearest_key(&key, path, &near, all, others.ours_of));
            let owner = (others.owner_of)(&key);
            let known = known.iter().map(|&name| name.to_owned()).collect();
            let problem = Problem::UnknownKey { key, suggestion, known, owner };
            self.diagnostics.push(Diagnostic::error(problem, origin));
        }
    }

    /// Opens a section whose keys depend on `kind`. Returns the kind, or the default one if none is named.
    pub fn open_kind<'s>(&mut self, node: &Node, path: &str, shape: &'s Shape) -> Option<&'s Variant> {
        let Shape::Tagged { common, variants, default, .. } = shape else { return None };
        let is_section = matches!(node.value, Value::Map(_)) || (node.is_null() && default.is_some());
        let names: Vec<&'static str> = variants.iter().map(|variant| variant.name).collect();
        if !is_section {
            // The name of something else in place of the section.
            match node.as_plain().filter(|text| !names.contains(text) && !node.is_null()) {
                Some(text) if self.is_known_elsewhere(text, path, &names) => {
                    self.choice(node, &join(path, "kind"), &names);
                }
                _ => self.wrong_type(node, path, shape),
            }
            return None;
        }
        let named = match (node.get("kind"), default) {
            (Some(tag), _) => {
                let index = self.choice(tag, &join(path, "kind"), &names);
                if index.is_none() {
                    self.unsound.push(path.to_owned());
                }
                *names.get(index?)?
            }
            (None, Some(default)) => default,
            (None, None) => {
                let allowed = names.iter().map(|&name| name.to_owned()).collect();
                self.report(node, Problem::MissingKey { key: join(path, "kind"), allowed });
                return None;
            }
        };
        let variant = variants.iter().find(|variant| variant.name == named)?;
        let mut known: Vec<&'static str> = vec!["kind"];
        known.extend(common.iter().map(|spec| spec.name).filter(|&name| name != "kind"));
        known.extend(variant.keys.iter().map(|spec| spec.name));
        self.refuse_unknown(node, path, &known, Some((variants, variant.name)));
        Some(variant)
    }

    /// Reads a value of a type that describes itself. `None` if and only if something was reported.
    pub fn read<T: Described>(&mut self, node: &Node, path: &str) -> Option<T> {
        let json = self.read_shaped(node, path, &T::shape())?;
        // The shape accepts only values of the type. If the type refuses one, its description is wrong.
        let built = serde_json::from_value(json);
        if let Err(error) = &built {
            let message = error.to_string();
            self.report(node, Problem::Refused { key: path.to_owned(), message, hint: None });
        }
        built.ok()
    }

    /// Reads a value by its shape. Every key in it is checked, or has its default.
    pub(crate) fn read_shaped(&mut self, node: &Node, path: &str, shape: &Shape) -> Option<Json> {
        let value = match shape {
            Shape::Bool => node.as_plain().and_then(parse_bool).map(Json::Bool),
            Shape::Integer => node.as_plain().and_then(parse_whole).map(Json::from),
            Shape::Number => node.as_plain().and_then(parse_float).map(Json::from),
            Shape::Text(_) => node.as_text().map(Json::from),
            Shape::Path(kind) => Self::read_path(node, *kind),
            Shape::TimeSpan => match &node.value {
                Value::Scalar { text, .. } => TimeSpan::parse(text).map(|span| Json::from(span.to_string())),
                Value::List(_) | Value::Map(_) => None,
            },
            Shape::NumberOrText(form) | Shape::TextForm(form) => match &node.value {
                Value::Scalar { text, plain } => (form.read)(text, *plain),
                Value::Map(entries) => match entries.as_slice() {
                    [MapEntry { key, node: Node { value: Value::Scalar { text, .. }, .. }, .. }] => {
                        (form.read)(&format!("{key}:{text}"), false)
                    }
                    _ => None,
                },
                Value::List(_) => None,
            },
            Shape::Free => match node.to_json() {
                Json::Object(map) => Some(Json::Object(map)),
                Json::Null => Some(Json::Object(serde_json::Map::new())),
                _ => None,
            },
            Shape::List(item) => match &node.value {
                Value::List(items) => return self.read_items(items, path, item),
                _ => None,
            },
            Shape::Tuple(item, length) => match &node.value {
                Value::List(items) if items.len() == *length => return self.read_items(items, path, item),
                _ => None,
            },
            Shape::OneOrMany(item) => match &node.value {
                Value::List(items) => return self.read_items(items, path, item),
                Value::Scalar { .. } if node.is_null() => Some(Json::Array(Vec::new())),
                Value::Scalar { .. } => {
                    return self.read_shaped(node, path, item).map(|value| Json::Array(vec![value]));
                }
                Value::Map(_) => None,
            },
            Shape::Choice(values) => {
                let names: Vec<&'static str> = values.iter().map(|(name, _)| *name).collect();
                let index = self.choice(node, path, &names)?;
                return names.get(index).map(|&name| Json::from(name));
            }
            Shape::Nullable(_) if node.is_null() => Some(Json::Null),
            Shape::Nullable(inner) => {
                return self.or_null(path, |reader| reader.read_shaped(node, path, inner));
            }
            Shape::Section { keys, .. } => {
                let known: Vec<&'static str> = keys.iter().map(|spec| spec.name).collect();
                let section = self.open(node, path, &known)?;
                return self.keys(section, path, keys).map(Json::Object);
            }
            Shape::Tagged { common, .. } => {
                let variant = self.open_kind(node, path, shape)?;
                let common: Vec<KeySpec> =
                    common.iter().filter(|spec| spec.name != "kind").cloned().collect();
                let (shared, own) = (self.keys(node, path, &common), self.keys(node, path, &variant.keys));
                let mut object = shared?;
                object.extend(own?);
                object.insert("kind".to_owned(), Json::from(variant.name));
                return Some(Json::Object(object));
            }
            Shape::OrName(inner) => match &node.value {
                Value::Scalar { .. } if !node.is_null() => {
                    let names: Vec<&'static str> = inner.kinds().map(|kind| kind.name).collect();
                    self.choice(node, path, &names)?;
                    return self.read_shaped(&of_kind(node), path, inner);
                }
                Value::Map(_) => return self.read_shaped(node, path, inner),
                Value::Scalar { .. } | Value::List(_) => None,
            },
            Shape::Named(inner) => return self.read_named(node, path, inner),
        };
        if value.is_none() {
            self.wrong_type(node, path, shape);
        }
        value
    }

    /// Reads the items of a list. All are read before any failure counts, so that all violations are
    /// reported.
    fn read_items(&mut self, items: &[Node], path: &str, item: &Shape) -> Option<Json> {
        let values: Vec<Option<Json>> = (items.iter().enumerate())
            .map(|(index, node)| self.read_shaped(node, &format!("{path}[{index}]"), item))
            .collect();
        values.into_iter().collect()
    }

    /// The value as a path, or as a name that is marked as one.
    fn read_path(node: &Node, kind: PathKind) -> Option<Json> {
        let text = node.as_text()?;
        let is_of_hub = matches!(kind, PathKind::OrModel | PathKind::OrData);
        let is_broken = is_of_hub && text.starts_with(hub_name::PREFIX) && !kind.is_name(text, Path::new(""));
        (!is_broken).then(|| Json::from(kind.resolve(text, &node.origin).to_string_lossy()))
    }

    /// Reads a mapping from names to values of a shape. The bare name of a kind is short for the kind.
    fn read_named(&mut self, node: &Node, path: &str, inner: &Shape) -> Option<Json> {
        if !matches!(node.value, Value::Map(_)) && !node.is_null() {
            self.wrong_type(node, path, &Shape::Free);
            return None;
        }
        // All values are read before any failure counts, so that all violations are reported.
        let read = |entry: &MapEntry, reader: &mut Self| {
            let is_name = matches!((inner, &entry.node.value), (Shape::Tagged { .. }, Value::Scalar { .. }));
            let is_name = is_name && !entry.node.is_null();
            let value = if is_name { of_kind(&entry.node) } else { entry.node.clone() };
            Some((entry.key.clone(), reader.read_shaped(&value, &join(path, &entry.key), inner)?))
        };
        let values: Vec<Option<(String, Json)>> =
            node.entries().iter().map(|entry| read(entry, self)).collect();
        values.into_iter().collect::<Option<serde_json::Map<_, _>>>().map(Json::Object)
    }

    /// The keys of an open section by their shapes.
    fn keys(
        &mut self,
        section: &Node,
        path: &str,
        specs: &[KeySpec],
    ) -> Option<serde_json::Map<String, Json>> {
        // All keys are read before any failure counts, so that all violations are reported.
        let read: Vec<_> = specs.iter().map(|spec| (spec.name, self.key(section, path, spec))).collect();
        read.into_iter().map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    /// Checks a key of a section against its specifications in several kinds: one of them must accept the
    /// value.
    pub(crate) fn check_one_of(&mut self, section: &Node, path: &str, specs: &[KeySpec]) {
        let mut found: Vec<Vec<Diagnostic>> = Vec::new();
        for spec in specs {
            let mut trial = Self::new(self.names);
            let _ = trial.keys(section, path, std::slice::from_ref(spec));
            found.push(trial.diagnostics);
        }
        if !found.iter().any(Vec::is_empty) {
            self.diagnostics.extend(found.into_iter().next().unwrap_or_default());
        }
    }

    /// Reads one key of an open section, or its default if it is absent, and checks it.
    ///
    /// A wrong value is reported and replaced by the default, so the other faults are found too.
    fn key(&mut self, section: &Node, path: &str, spec: &KeySpec) -> Option<Json> {
        let (name, default, check) = (spec.name, &*spec.default, spec.check);
        let shape = &(spec.shape)();
        let numbers = |value: &Json| Numbers::of(value, shape);
        let full = join(path, name);
        let Some(node) = section.get(name) else {
            // A default that is not allowed means that the key must be given.
            let node = self.default_node(default, &section.origin);
            let num_diagnostics = self.diagnostics.len();
            let value = self.read_shaped(&node, &full, shape);
            if let Some(value) = value
                && !default.is_empty()
                && (numbers(&value).fulfil(check) || self.diagnostics.len() > num_diagnostics)
            {
                return Some(value);
            }
            // If the section has a kind, the kind requires the key.
            let asking = section.get("kind").filter(|kind| kind.origin.is_from_user()).unwrap_or(section);
            let expected = match check.describe().filter(|_| check != Check::NotEmpty) {
                Some(condition) => format!("{}, {condition}", shape.describe()),
                None => shape.describe(),
            };
            self.report(asking, Problem::Missing { key: full.clone(), expected });
            self.unsound.push(full.clone());
            return self.read_shaped(&node, &full, shape);
        };
        if let Some(value) = self.read_shaped(node, &full, shape) {
            let found = numbers(&value);
            if found.fulfil(check) && found.fit_single(check) {
                return Some(value);
            }
            let mut condition = check.describe().unwrap_or_default();
            if found.fulfil(check) {
                let among = if condition.is_empty() { "a number" } else { &condition };
                condition = format!("{among} in single precision (about 1e-45 to 3e38 in size, 7 digits)");
                if let Some(number) = found.reals.iter().find(|number| !check.holds_single(**number)) {
                    let _ = write!(condition, ": {number:?} becomes {} there", *number as f32);
                }
            }
            let problem = Problem::OutOfRange { key: full.clone(), value: describe_value(node), condition };
            self.report(node, problem);
        }
        self.unsound.push(full.clone());
        let node = self.default_node(default, &section.origin);
        let num_diagnostics = self.diagnostics.len();
        let value = self.read_shaped(&node, &full, shape);
        self.diagnostics.truncate(num_diagnostics);
        value
    }

    /// A default's raw value. Faults under a default are shown at its section, because the user can change
    /// that.
    fn default_node(&self, default: &str, section: &Origin) -> Node {
        let origin = if section.is_from_user() { section.clone() } else { Origin::start_of(&self.defaults) };
        if default.is_empty() {
            // A placeholder that every condition allows, for a key that must be given.
            return Node::plain("1", origin);
        }
        if default.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')) {
            return Node::plain(default, origin);
        }
        match crate::yaml::parse(&Source::new(SourceKind::Default, default)) {
            Ok(mut node) => {
                node.origin = origin;
                node
            }
            Err(_) => Node::plain(default, origin),
        }
    }

    /// Whether a text is the name of something else, or another system's for an allowed value.
    fn is_known_elsewhere(&self, text: &str, path: &str, allowed: &[&'static str]) -> bool {
        (self.names.others.value_of)(text, allowed).is_some() || self.meant(text, path, allowed).1.is_some()
    }

    /// The allowed value that was probably meant, or a hint about another key that has the value.
    fn meant(&self, text: &str, path: &str, allowed: &[&'static str]) -> (Option<String>, Option<String>) {
        let others = self.names.others;
        if let Some(value) = (others.value_of)(text, allowed) {
            return (Some(value.to_owned()), None);
        }
        let section = path.split(['.', '[']).next().unwrap_or(path);
        if ["objective", "filter", "preset", "reward"].contains(&section) || path == "data.task" {
            if let Some(setting) = (others.setting_of)(text) {
                return (None, Some(format!("`{text}` is `{setting}` here")));
            }
            match (self.names.elsewhere)(text, allowed) {
                Some(Elsewhere::Here(value)) => return (Some(value.to_owned()), None),
                Some(Elsewhere::There(hint)) => return (None, Some(hint)),
                None => {}
            }
        }
        (suggest::nearest_value(text, allowed), None)
    }

    /// Reads one of named values; returns its index.
    pub fn choice(&mut self, node: &Node, path: &str, allowed: &[&'static str]) -> Option<usize> {
        let (Value::Scalar { text, .. }, false) = (&node.value, node.is_null() && !allowed.contains(&"none"))
        else {
            let shape = Shape::Choice(allowed.iter().map(|&name| (name, "")).collect());
            self.wrong_type(node, path, &shape);
            return None;
        };
        let text = if node.is_null() { "none" } else { text.as_str() };
        let index = allowed.iter().position(|&name| name == text);
        if index.is_none() {
            let (suggestion, elsewhere) = self.meant(text, path, allowed);
            let problem = Problem::NotAllowed {
                key: path.to_owned(),
                value: text.to_owned(),
                suggestion,
                elsewhere,
                allowed: allowed.iter().map(|&name| name.to_owned()).collect(),
            };
            self.report(node, problem);
        }
        index
    }
}

fn of_kind(name: &Node) -> Node {
    let kind = MapEntry { key: "kind".to_owned(), origin: name.origin.clone(), node: name.clone() };
    Node { value: Value::Map(vec![kind]), ..name.clone() }
}

/// The numbers in a value that a [`Check`] checks.
struct Numbers {
    all: Vec<f64>,
    /// The numbers that the engine uses in single precision.
    reals: Vec<f64>,
    is_empty: bool,
}

impl Numbers {
    /// The numbers of a value that was read by its shape; times are in seconds.
    fn of(value: &Json, shape: &Shape) -> Self {
        let mut found = Self { all: Vec::new(), reals: Vec::new(), is_empty: false };
        let shape = shape.without_null();
        match value {
            Json::String(text) if matches!(shape, Shape::TimeSpan) => {
                found.all.extend(TimeSpan::parse(text).map(|TimeSpan(span)| span.as_secs_f64()));
            }
            Json::Number(number) => {
                found.all.extend(number.as_f64());
                found.reals.extend(number.as_f64().filter(|_| number.is_f64()));
            }
            Json::String(text) => found.is_empty = text.is_empty(),
            Json::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let item = Self::of(item, &shape.of_key(&index.to_string()));
                    found.all.extend(item.all);
                    found.reals.extend(item.reals);
                }
                found.is_empty = items.is_empty();
            }
            Json::Null | Json::Bool(_) | Json::Object(_) => {}
        }
        found
    }

    fn fulfil(&self, check: Check) -> bool {
        !(check == Check::NotEmpty && self.is_empty) && self.all.iter().all(|&number| check.holds(number))
    }

    fn fit_single(&self, check: Check) -> bool {
        self.reals.iter().all(|&number| check.holds_single(number))
    }
}

/// The item of a list of sections that a text is short for: its first key that takes such a text.
fn item_of(text: &str, item: &Shape) -> Option<String> {
    let Shape::Section { keys, .. } = item else { return None };
    let takes = |spec: &&KeySpec| match (spec.shape)().without_null() {
        Shape::Path(_) | Shape::Text(_) => !text.contains("://"),
        Shape::List(of) => text.contains("://") && matches!(**of, Shape::Text(_)),
        _ => false,
    };
    let spec = keys.iter().find(takes)?;
    let is_list = matches!((spec.shape)().without_null(), Shape::List(_));
    Some(format!("{{{}: {}}}", spec.name, if is_list { format!("[{text}]") } else { text.to_owned() }))
}

/// A mapping of plain values as it is written in one line.
fn mapping(entries: &[MapEntry]) -> Option<String> {
    let texts: Option<Vec<String>> =
        entries.iter().map(|entry| Some(format!("{}: {}", entry.key, entry.node.as_text()?))).collect();
    Some(format!("{{{}}}", texts?.join(", ")))
}

/// Whether a value is a text, or may be one.
fn takes_text(shape: &Shape) -> bool {
    match shape {
        Shape::Text(_) | Shape::TextForm(_) => true,
        Shape::OneOrMany(item) => takes_text(item),
        _ => false,
    }
}

fn describe_found(node: &Node) -> String {
    match &node.value {
        Value::Scalar { .. } if node.is_null() => "null".to_owned(),
        Value::Scalar { text, plain } => {
            if *plain && (parse_float(text).is_some()) {
                format!("the number {text}")
            } else if *plain && parse_bool(text).is_some() {
                text.clone()
            } else {
                format!("the text {}", quote(text))
            }
        }
        Value::List(items) => format!("a list of {}", items.len()),
        Value::Map(_) => "a mapping".to_owned(),
    }
}

fn describe_value(node: &Node) -> String {
    match &node.value {
        Value::Scalar { text, plain: true } => text.clone(),
        Value::Scalar { text, plain: false } => quote(text),
        Value::List(_) | Value::Map(_) => node.to_json().to_string(),
    }
}

/// A text in double quotes, truncated after 60 characters.
fn quote(text: &str) -> String {
    let cut: String = text.chars().take(60).collect();
    let more = if cut.len() < text.len() { "..." } else { "" };
    format!("{:?}", format!("{cut}{more}"))
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "the macros define public types, as outside of tests")]
mod tests {
    use super::*;
    use crate::value::{ByteSize, Frequency};

    tamis_core::settings! {
        /// Keys whose numbers are written with units.
        pub struct Own {
            /// A time.
            wait: TimeSpan = TimeSpan::seconds(5), Between(2.0, 60.0), Free;
            /// A time, or none.
            limit: Option<TimeSpan> = None, GreaterThan(1.0), Free;
            /// Times.
            several: Vec<TimeSpan> = vec![TimeSpan::seconds(3)], AtLeast(2.0);
            /// Memory.
            memory: ByteSize = ByteSize(1024), AtLeast(1024.0), Free;
            /// An interval.
            every: Frequency = Frequency::every(3), AtLeast(2.0), Free;
        }
    }

    #[test]
    fn ranges_hold_for_numbers_with_units() {
        let messages = |yaml: &str| {
            let node = crate::yaml::parse(&Source::new(SourceKind::Default, yaml)).expect(yaml);
            let mut reader = Reader::default();
            reader.read::<Own>(&node, "").expect("defaults stand in");
            reader.into_diagnostics().iter().map(|found| found.problem.to_string()).collect::<Vec<_>>()
        };
        for allowed in ["{}", "{wait: 60s, limit: 2s, memory: 2KiB, every: 2, several: [2, 1h]}"] {
            assert_eq!(messages(allowed), [""; 0], "{allowed}");
        }
        for (refused, condition) in [
            ("wait: 1s", "`wait` must be from 2 to 60, got 1s"),
            ("wait: 2m", "`wait` must be from 2 to 60, got 2m"),
            ("limit: 500ms", "`limit` must be greater than 1, got 500ms"),
            ("memory: 1000", "`memory` must be at least 1024, got 1000"),
            ("every: 1", "`every` must be at least 2, got 1"),
            ("several: [2s, 1s]", "`several` must be at least 2, got [\"2s\",\"1s\"]"),
        ] {
            assert_eq!(messages(refused), [condition], "{refused}");
        }
    }
}
