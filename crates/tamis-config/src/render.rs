//! Values as YAML, each with a comment about its origin.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value as Json;

use crate::path::{PathText as _, is_placeholder, map_paths};
use crate::source::SourceKind;
use crate::table;
use crate::tree::{Node, join, parse_bool, parse_float};
use tamis_core::setting::{KeySpec, Shape};

/// Longer lines have their origin on a separate line.
const WIDTH: usize = 100;

/// A value in the form of a configuration.
pub fn json_of(value: &impl serde::Serialize) -> Json {
    serde_json::to_value(value).unwrap_or_default()
}

/// Origin of a value, for the comment behind it.
pub fn describe(node: &Node) -> String {
    match &node.origin.source.kind {
        SourceKind::File(path) | SourceKind::TranslatedFile(path) | SourceKind::RunFile(path) => {
            format!("{}:{}", path.display(), node.origin.line)
        }
        SourceKind::Argument => format!("command line: {}", node.origin.source.text.trim()),
        SourceKind::Translated(owner) => format!("{owner}: {}", node.origin.source.text.trim()),
        SourceKind::Default | SourceKind::Preset(_) => node.origin.to_string(),
    }
}

/// Writes the keys of a section, in the order of its shape.
pub(crate) fn section(
    text: &mut String,
    path: &str,
    depth: usize,
    shape: &Shape,
    value: &Json,
    origin: &dyn Fn(&str) -> String,
) {
    let Json::Object(object) = value else { return };
    let mut names: Vec<(&str, Option<Shape>)> = Vec::new();
    let kind = object.get("kind").and_then(Json::as_str);
    let keys: Vec<KeySpec> = match shape {
        Shape::Section { keys, .. } => keys.clone(),
        Shape::Tagged { common, variants, default, .. } => {
            let own = variants.iter().filter(|variant| Some(variant.name) == kind.or(*default));
            common.iter().chain(own.flat_map(|variant| &variant.keys)).cloned().collect()
        }
        _ => Vec::new(),
    };
    names.extend(
        keys.iter()
            .filter(|spec| object.contains_key(spec.name))
            .map(|spec| (spec.name, Some((spec.shape)()))),
    );
    for name in object.keys() {
        if !names.iter().any(|(known, _)| known == name) {
            names.push((name, None));
        }
    }
    for (name, shape) in names {
        let Some(value) = object.get(name) else { continue };
        let full = join(path, name);
        let mut inner = shape.unwrap_or(Shape::Free);
        while let Shape::Nullable(some) = inner {
            inner = *some;
        }
        let indent = "  ".repeat(depth);
        match (&inner, value) {
            (Shape::Section { .. } | Shape::Tagged { .. }, Json::Object(entries)) if !entries.is_empty() => {
                let _ = writeln!(text, "{indent}{}:", key_text(name));
                section(text, &full, depth + 1, &inner, value, origin);
            }
            (Shape::List(item), Json::Array(items))
                if matches!(**item, Shape::Tagged { .. } | Shape::Section { .. }) && !items.is_empty() =>
            {
                let _ = writeln!(text, "{indent}{}:", key_text(name));
                for (index, item) in items.iter().enumerate() {
                    line(
                        text,
                        &format!("{indent}  - {}", flow(item)),
                        &origin(&format!("{full}.{index}")),
                        depth + 1,
                    );
                }
            }
            _ => line(text, &format!("{indent}{}: {}", key_text(name), flow(value)), &origin(&full), depth),
        }
    }
}

fn line(text: &mut String, content: &str, origin: &str, depth: usize) {
    // A comment ends with its line.
    let origin = origin.replace(['\n', '\r'], " ");
    if origin.is_empty() {
        let _ = writeln!(text, "{content}");
    } else if content.chars().count() + origin.chars().count() > WIDTH {
        let _ = writeln!(text, "{}# {origin}\n{content}", "  ".repeat(depth));
    } else {
        let _ = writeln!(text, "{content}  # {origin}");
    }
}

/// A value as YAML on one line.
pub fn flow(value: &Json) -> String {
    match value {
        Json::Null => "null".to_owned(),
        Json::Bool(value) => value.to_string(),
        Json::Number(number) => number_text(number),
        Json::String(text) => scalar(text),
        Json::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Json::Object(entries) => {
            let entries: Vec<String> =
                entries.iter().map(|(key, value)| format!("{}: {}", key_text(key), flow(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

fn number_text(number: &serde_json::Number) -> String {
    match number.as_f64() {
        // 1e-6 is easier to read than 0.000001.
        Some(value) if number.is_f64() && value != 0.0 && (value.abs() < 1e-3 || value.abs() >= 1e7) => {
            format!("{value:e}")
        }
        _ => number.to_string(),
    }
}

fn key_text(key: &str) -> String {
    let is_name = key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    // `n` is a key here, although YAML 1.1 reads it as false.
    if is_name && !matches!(key, "null" | "true" | "false") { key.to_owned() } else { scalar(key) }
}

/// A text as a scalar, quoted if it could be read as another type.
pub fn scalar(text: &str) -> String {
    let plain_start = text.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '/' | '_' | '.' | '~'));
    let plain = plain_start
        && text
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '/' | '_' | '.' | '-' | '+' | '@' | '=' | '~' | ' '))
        && text.trim() == text
        && text != "~"
        && parse_float(text).is_none()
        && parse_bool(text).is_none()
        && !matches!(text, "null" | "Null" | "NULL" | "None" | "." | "..");
    // Other YAML readers read these as other types: yes, no, on, off, 0x10, 1_000, .inf
    let risky = text.starts_with('.') && !text.starts_with("./")
        || text.starts_with(|c: char| c.is_ascii_digit()) && text.parse::<f64>().is_ok()
        || matches!(text.to_lowercase().as_str(), "yes" | "no" | "on" | "y" | "n");
    if plain && !risky {
        return text.to_owned();
    }
    Json::String(text.to_owned()).to_string()
}

/// A partial tree as YAML, in the order of the table, each value with a comment about its origin. Relative
/// paths are resolved against `folder`, so the text can be moved. They stay as they are if `folder` is empty.
/// Placeholder paths and names on a hub without a local folder stay too.
pub fn with_origins(tree: &Node, folder: &Path) -> String {
    let mut text = String::new();
    let mut values = tree.to_json();
    if !folder.as_os_str().is_empty() {
        map_paths(table::root(), &mut values, &|kind, path| {
            if is_placeholder(path.as_ref()) { path.to_owned() } else { kind.in_folder(path, folder) }
        });
    }
    section(&mut text, "", 0, table::root(), &values, &|path| {
        tree.at(path).map_or_else(String::new, describe)
    });
    text
}
