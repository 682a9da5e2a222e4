//! Reading settings from raw values: defaults stand in for what is wrong, and everything that is wrong is collected.

use std::fmt::Write as _;

use crate::diagnostic::{Diagnostic, Problem};
use crate::setting::Setting;
use crate::shape::{Check, KeySpec, Shape, Variant};
use crate::source::{Origin, Source, SourceKind};
use crate::suggest;
use crate::tree::{Node, Value, join, parse_bool, parse_float};

/// The names that an unknown key is compared with, beyond those of its own section.
#[derive(Debug, Clone, Copy)]
pub struct KnownNames {
    /// The path of every key of the configuration.
    pub paths: fn() -> &'static [String],
    /// The other system that a key belongs to, by its name.
    pub owner_of: fn(&str) -> Option<&'static str>,
}

/// Reads settings from raw values and collects everything that is wrong.
#[derive(Debug)]
pub struct Reader {
    names: KnownNames,
    diagnostics: Vec<Diagnostic>,
    unsound: Vec<String>,
    defaults: std::sync::Arc<Source>,
}

impl Default for Reader {
    /// A reader that knows no names beyond those of the section at hand.
    fn default() -> Self {
        Self::new(KnownNames { paths: || &[], owner_of: |_| None })
    }
}

impl Reader {
    /// A reader that has found nothing yet. It suggests what an unknown key was meant for from these names.
    pub fn new(names: KnownNames) -> Self {
        let defaults = Source::new(SourceKind::Default, "");
        Self { names, diagnostics: Vec::new(), unsound: Vec::new(), defaults }
    }

    /// What was found.
    pub fn into_diagnostics(self) -> Vec<Diagnostic> {
        self.diagnostics
    }

    /// Whether something was wrong at a key, in it, or with a section it is in, so that the value read is not the user's.
    pub fn is_unsound(&self, key: &str) -> bool {
        let within = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.unsound.iter().any(|unsound| within(unsound, key) || within(key, unsound))
    }

    /// Reports a problem at a node.
    pub fn report(&mut self, node: &Node, problem: Problem) {
        self.diagnostics.push(Diagnostic::error(problem, Some(node.origin.clone())));
    }

    /// Reports a value of another type than its key has.
    pub(crate) fn wrong_type(&mut self, node: &Node, path: &str, shape: &Shape) {
        let (mut expected, found) = (shape.describe(), describe_found(node));
        if found.starts_with("the number -") {
            // -1 is a whole number too.
            expected = expected.replace("a whole number", "a whole number of 0 or more");
        }
        let problem = Problem::WrongType {
            key: path.to_owned(),
            expected,
            found,
            example: match &node.value {
                Value::Scalar { text, .. } if !node.is_null() => Some(text.clone()),
                _ => None,
            },
        };
        self.report(node, problem);
    }

    /// Opens a section: it must be a mapping (or nothing) with known keys only.
    pub fn open<'n>(&mut self, node: &'n Node, path: &str, known: &[&'static str]) -> Option<&'n Node> {
        if !matches!(node.value, Value::Map(_)) && !node.is_null() {
            self.wrong_type(node, path, &Shape::Section { doc: "", keys: Vec::new() });
            return None;
        }
        for entry in node.entries() {
            if !known.contains(&entry.key.as_str()) {
                let key = join(path, &entry.key);
                let suggestion = suggest::nearest_key(&key, path, known, (self.names.paths)());
                let owner = (self.names.owner_of)(&key);
                let known = known.iter().map(|&name| name.to_owned()).collect();
                let problem = Problem::UnknownKey { key, suggestion, known, owner };
                self.diagnostics.push(Diagnostic::error(problem, Some(entry.origin.clone())));
            }
        }
        Some(node)
    }

    /// Opens a section whose keys depend on `kind`; gives the kind's name.
    pub fn open_tagged<'n>(
        &mut self,
        node: &'n Node,
        path: &str,
        common: &[KeySpec],
        variants: &[Variant],
    ) -> Option<(&'static str, &'n Node)> {
        let Value::Map(_) = node.value else {
            self.wrong_type(node, path, &Shape::Tagged { doc: "", common: Vec::new(), variants: Vec::new() });
            return None;
        };
        let names: Vec<&'static str> = variants.iter().map(|variant| variant.name).collect();
        let Some(tag) = node.get("kind") else {
            let problem = Problem::MissingKey {
                key: join(path, "kind"),
                allowed: names.iter().map(|&name| name.to_owned()).collect(),
            };
            self.report(node, problem);
            return None;
        };
        let index = self.choice(tag, &join(path, "kind"), &names)?;
        let variant = variants.get(index)?;
        let mut known: Vec<&'static str> = vec!["kind"];
        known.extend(common.iter().map(|spec| spec.name));
        known.extend(variant.keys.iter().map(|spec| spec.name));
        let section = self.open(node, path, &known)?;
        Some((variant.name, section))
    }

    /// Reads one key of an open section, or its default where it is absent, and checks it.
    ///
    /// Where something is wrong it is reported and the default stands in, so that the other violations are found too.
    pub fn key<T: Setting>(
        &mut self,
        section: &Node,
        path: &str,
        name: &str,
        default: &'static str,
        check: Check,
    ) -> Option<T> {
        let full = join(path, name);
        let Some(node) = section.get(name) else {
            // A default that is not allowed stands for "must be given".
            let node = self.default_node(default, &section.origin);
            let value = T::read(&node, &full, self)?;
            if check.accepts(&value) {
                return Some(value);
            }
            // What asks for the key is the kind, where there is one.
            let asking = section.get("kind").filter(|kind| kind.origin.is_from_user()).unwrap_or(section);
            self.report(asking, Problem::Missing { key: full.clone(), expected: T::shape().describe() });
            self.unsound.push(full);
            return Some(value);
        };
        let value = T::read(node, &full, self);
        match value {
            Some(value) if check.accepts(&value) && check.accepts_single(&value) => return Some(value),
            Some(value) => {
                let mut condition = check.describe().unwrap_or_default();
                if check.accepts(&value) {
                    let among = if condition.is_empty() { "a number" } else { &condition };
                    condition =
                        format!("{among} in single precision (about 1e-45 to 3e38 in size, 7 digits)");
                    let beyond = value.reals().into_iter().find(|number| !check.holds_single(*number));
                    if let Some(number) = beyond {
                        let _ = write!(condition, ": {number:?} becomes {} there", number as f32);
                    }
                }
                let problem =
                    Problem::OutOfRange { key: full.clone(), value: describe_value(node), condition };
                self.report(node, problem);
            }
            None => {}
        }
        let node = self.default_node(default, &section.origin);
        let num_diagnostics = self.diagnostics.len();
        let value = T::read(&node, &full, self);
        self.diagnostics.truncate(num_diagnostics);
        self.unsound.push(full);
        value
    }

    /// A default's raw value. What is wrong under a default is shown at its section, where the user can do something about it.
    fn default_node(&self, default: &'static str, section: &Origin) -> Node {
        let origin = if section.is_from_user() { section.clone() } else { Origin::start_of(&self.defaults) };
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

    /// Reads one of named values; gives its index.
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
            let problem = Problem::NotAllowed {
                key: path.to_owned(),
                value: text.to_owned(),
                suggestion: suggest::nearest_value(text, allowed),
                allowed: allowed.iter().map(|&name| name.to_owned()).collect(),
            };
            self.report(node, problem);
        }
        index
    }

    /// The text of an unquoted scalar; anything else is reported.
    pub(crate) fn scalar<'n>(&mut self, node: &'n Node, path: &str, shape: &Shape) -> Option<&'n str> {
        match &node.value {
            Value::Scalar { text, plain: true } if !node.is_null() => Some(text),
            _ => {
                self.wrong_type(node, path, shape);
                None
            }
        }
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

/// A text in double quotes, cut after 60 characters.
fn quote(text: &str) -> String {
    let cut: String = text.chars().take(60).collect();
    let more = if cut.len() < text.len() { "..." } else { "" };
    format!("{:?}", format!("{cut}{more}"))
}
