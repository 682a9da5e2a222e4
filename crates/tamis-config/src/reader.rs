//! Reads settings from raw values. A wrong value is reported and replaced by its default, so all faults of a
//! configuration are found at once.

mod names;
mod numbers;
mod wrong_type;

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value as Json;
use tamis_core::setting::{Check, Described, KeySpec, PathKind, Shape, TimeSpan, Variant, or_null};

pub use self::names::{Elsewhere, KnownNames, OtherNames};
use self::numbers::Numbers;
use self::wrong_type::describe_value;
use crate::diagnostic::{Diagnostic, Problem, is_no};
use crate::hub_name;
use crate::path::PathText as _;
use crate::source::{Origin, Source, SourceKind};
use crate::tree::{MapEntry, Node, Value, join, parse_bool, parse_float, parse_whole};

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
}

fn of_kind(name: &Node) -> Node {
    let kind = MapEntry { key: "kind".to_owned(), origin: name.origin.clone(), node: name.clone() };
    Node { value: Value::Map(vec![kind]), ..name.clone() }
}
