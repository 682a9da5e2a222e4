//! The raw value tree: YAML with the position of every key and value.

use tamis_core::setting::Shape;

use crate::source::Origin;

/// A value with its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Place where the value was written.
    pub origin: Origin,
}

/// A raw value. Scalars keep their text, because its meaning depends on the key.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A scalar.
    Scalar {
        /// Text of the scalar, after escapes.
        text: String,
        /// Whether it was written without quotes, so `null`, `true` and `12` have their YAML meaning.
        plain: bool,
    },
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order of writing; keys are unique.
    Map(Vec<MapEntry>),
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct MapEntry {
    /// The key.
    pub key: String,
    /// Place where the key was written.
    pub origin: Origin,
    /// The value.
    pub node: Node,
}

impl Node {
    /// A plain scalar.
    pub fn plain(text: impl Into<String>, origin: Origin) -> Self {
        Self { value: Value::Scalar { text: text.into(), plain: true }, origin }
    }

    /// A string, whatever it looks like.
    pub fn text(text: impl Into<String>, origin: Origin) -> Self {
        Self { value: Value::Scalar { text: text.into(), plain: false }, origin }
    }

    /// An empty mapping.
    pub fn empty_map(origin: Origin) -> Self {
        Self { value: Value::Map(Vec::new()), origin }
    }

    /// Whether it is YAML's null (`null`, `~`, nothing; `None` too, as Python users write it).
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL" | "None"))
    }

    /// The value of a mapping's key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node),
            Value::Scalar { .. } | Value::List(_) => None,
        }
    }

    /// The entries of a mapping; none for anything else.
    pub fn entries(&self) -> &[MapEntry] {
        match &self.value {
            Value::Map(entries) => entries,
            Value::Scalar { .. } | Value::List(_) => &[],
        }
    }

    /// The value at a dotted path through mappings, with list indices as numbers.
    pub fn at(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, part| match &node.value {
            Value::List(items) => part.parse::<usize>().ok().and_then(|index| items.get(index)),
            Value::Map(_) | Value::Scalar { .. } => node.get(part),
        })
    }

    /// As [`Self::at`], mutable.
    pub fn at_mut(&mut self, path: &str) -> Option<&mut Node> {
        path.split('.').try_fold(self, |node, part| match &mut node.value {
            Value::Map(entries) => {
                entries.iter_mut().find(|entry| entry.key == part).map(|entry| &mut entry.node)
            }
            Value::List(items) => part.parse::<usize>().ok().and_then(|index| items.get_mut(index)),
            Value::Scalar { .. } => None,
        })
    }

    /// Removes the entry of a key from a mapping and returns its value.
    pub fn take(&mut self, key: &str) -> Option<Node> {
        let Value::Map(entries) = &mut self.value else { return None };
        let index = entries.iter().position(|entry| entry.key == key)?;
        Some(entries.remove(index).node)
    }

    /// The place to show for the value at a path: the value itself; for a whole section its key, if a user
    /// wrote it.
    pub fn place_of(&self, path: &str) -> Option<&Origin> {
        let node = self.at(path)?;
        let (parent, name) =
            path.rsplit_once('.').map_or((Some(self), path), |(parent, name)| (self.at(parent), name));
        let entry = parent.and_then(|parent| parent.entries().iter().find(|entry| entry.key == name));
        match (&node.value, entry) {
            (Value::Map(_), Some(entry)) if entry.origin.is_from_user() => Some(&entry.origin),
            _ => Some(&node.origin),
        }
    }

    /// The first value that a user wrote: this one or one inside it.
    pub(crate) fn first_written(&self) -> Option<&Origin> {
        let inside = || match &self.value {
            Value::Map(entries) => entries.iter().find_map(|entry| entry.node.first_written()),
            Value::List(items) => items.iter().find_map(Node::first_written),
            Value::Scalar { .. } => None,
        };
        Some(&self.origin).filter(|origin| origin.is_from_user()).or_else(inside)
    }

    /// The text of a scalar; `None` for null and for anything else.
    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    /// The text of an unquoted scalar; `None` for null and for anything else.
    pub(crate) fn as_plain(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, plain: true } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    /// Merges `other` into this: mappings key by key, anything else is replaced. If the section has a `kind`
    /// and `other` names another one, the keys of the former kind are removed.
    pub fn merge(&mut self, other: Node, shape: &Shape) {
        let shape = shape.without_null();
        let Value::Map(theirs) = other.value else {
            (self.value, self.origin) = (other.value, other.origin);
            return;
        };
        let Value::Map(ours) = &mut self.value else {
            (self.value, self.origin) = (Value::Map(theirs), other.origin);
            return;
        };
        if theirs.is_empty() {
            return;
        }
        if let Some(kind) = theirs.iter().find(|entry| entry.key == "kind") {
            forget_other_kind(ours, &kind.node, shape);
        }
        self.origin = other.origin;
        for entry in theirs {
            match ours.iter_mut().find(|own| own.key == entry.key) {
                Some(own) => {
                    own.origin = entry.origin;
                    let shape = shape.of_key(&own.key);
                    own.node.merge(entry.node, &shape);
                }
                None => ours.push(entry),
            }
        }
    }

    /// The value as JSON. Plain scalars have their YAML meaning; numbers that JSON cannot represent become
    /// strings.
    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Scalar { text, plain } => {
                if *plain {
                    plain_to_json(text)
                } else {
                    serde_json::Value::String(text.clone())
                }
            }
            Value::List(items) => items.iter().map(Node::to_json).collect(),
            Value::Map(entries) => {
                entries.iter().map(|entry| (entry.key.clone(), entry.node.to_json())).collect()
            }
        }
    }
}

/// Removes the keys of other kinds than `kind` from a section. Keys that all kinds have stay. Keys of the
/// command line stay too, because it is one layer, independent of the order of its arguments.
pub(crate) fn forget_other_kind(entries: &mut Vec<MapEntry>, kind: &Node, shape: &Shape) {
    let Shape::Tagged { common, default, .. } = shape.without_null() else { return };
    let own = entries.iter().find(|entry| entry.key == "kind").and_then(|entry| entry.node.as_text());
    if own.or(*default) == kind.as_text() {
        return;
    }
    entries.retain(|entry| {
        // The key itself may come from a lower layer, and its value from the command line.
        common.iter().any(|spec| spec.name == entry.key) || entry.node.origin.source.kind.is_command_line()
    });
}

fn plain_to_json(text: &str) -> serde_json::Value {
    use serde_json::Value as Json;
    match text {
        "" | "~" | "null" | "Null" | "NULL" | "None" => return Json::Null,
        _ => {}
    }
    if let Some(value) = parse_bool(text) {
        return Json::Bool(value);
    }
    if let Ok(value) = text.parse::<i64>() {
        return Json::from(value);
    }
    match parse_float(text).and_then(serde_json::Number::from_f64) {
        Some(number) => Json::Number(number),
        None => Json::String(text.to_owned()),
    }
}

/// `true` and `false` as YAML 1.2 and Python write them.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// A decimal number. Unlike Rust's parser it refuses `inf`, `nan` and `infinity`.
pub fn parse_float(text: &str) -> Option<f64> {
    let starts_well = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+'));
    if !starts_well || !text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E')) {
        return None;
    }
    text.parse::<f64>().ok().filter(|value| value.is_finite())
}

/// A whole number, also as 1e6 or 8.0. The bound is 2^53, up to which a float is exact.
pub(crate) fn parse_whole(text: &str) -> Option<u64> {
    let of_float = |value: f64| {
        (value.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&value)).then_some(value as u64)
    };
    text.parse::<u64>().ok().or_else(|| parse_float(text).and_then(of_float))
}

/// A dotted path: the key `name` of the section at `path`.
pub fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// A dotted path in the form of messages, with list items in brackets (`reward[0].weight`).
pub(crate) fn with_brackets(path: &str) -> String {
    let is_index = |part: &str| part.parse::<usize>().is_ok();
    path.split('.').fold(String::new(), |path, part| {
        if is_index(part) && !path.is_empty() { format!("{path}[{part}]") } else { join(&path, part) }
    })
}
