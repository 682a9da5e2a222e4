//! Names that a configuration gives and nothing has: what was probably meant, here or in another system.

use tamis_core::setting::{Shape, Variant};

use super::Reader;
use crate::diagnostic::{Diagnostic, Problem};
use crate::suggest;
use crate::tree::{Node, Value, join};

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

impl Reader {
    /// Reports unknown keys of a section; `among` are its possible kinds and its own kind.
    pub(super) fn refuse_unknown(
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

    /// Whether a text is the name of something else, or another system's for an allowed value.
    pub(super) fn is_known_elsewhere(&self, text: &str, path: &str, allowed: &[&'static str]) -> bool {
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
