//! What is wrong with the type of a value, and how to write it.

use tamis_core::setting::{KeySpec, Shape};

use super::Reader;
use crate::diagnostic::{Problem, TypeFix, is_no};
use crate::tree::{MapEntry, Node, Value, parse_bool, parse_float};

impl Reader {
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

pub(super) fn describe_value(node: &Node) -> String {
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
