//! Applies an override to the tree of values.
//!
//! `a.b=v` replaces a value, `+a.b=v` adds one or appends to a list, `~a.b` resets a key. Sections on the way
//! are made if they do not exist; items of lists must exist.

use super::defaults::default_tree;
use crate::diagnostic::{Diagnostic, Problem};
use crate::override_argument::{Operation, Override};
use crate::reader::OtherNames;
use crate::source::{Origin, Source, SourceKind};
use crate::table::{self, Place};
use crate::tree::{MapEntry, Node, Value, forget_other_kind, with_brackets};
use crate::yaml;
use tamis_core::setting::Shape;

/// Applies one override to the tree; `others` suggests meanings of unknown keys.
pub fn apply(tree: &mut Node, argument: Override, others: OtherNames, diagnostics: &mut Vec<Diagnostic>) {
    let Override { path, origin, operation } = argument;
    let parts: Vec<&str> = path.split('.').collect();
    let above = parts.split_last().map_or(&[][..], |(_, above)| above);
    let around = above.iter().fold(table::root().clone(), |shape, part| shape.of_key(part));
    let has_kind = matches!(around.without_null(), Shape::Tagged { .. });
    let place = match table::place(&path) {
        Ok(place) => place,
        // The reader later names the keys of the section's final kind.
        Err(_) if has_kind && !matches!(operation, Operation::Reset) => Place::Free,
        Err(unknown) => {
            let problem = unknown.into_problem(others);
            diagnostics.push(Diagnostic::error(problem, Some(origin)));
            return;
        }
    };
    if let (Operation::Reset, Some((last, above))) = (&operation, parts.split_last())
        && let Ok(index) = last.parse::<usize>()
        && let Some(Node { value: Value::List(items), .. }) = existing(tree, above)
    {
        if index < items.len() {
            items.remove(index);
        } else {
            let problem = no_such_item(&with_brackets(&above.join(".")), items.len(), index);
            diagnostics.push(Diagnostic::error(problem, Some(origin)));
        }
        return;
    }
    if let (Operation::Set(kind) | Operation::Add(kind), Some(&"kind")) = (&operation, parts.last())
        && let Some(Node { value: Value::Map(entries), .. }) = existing(tree, above)
    {
        forget_other_kind(entries, kind, &around);
    }
    // The default of a key depends on the section's final kind.
    if let (Operation::Reset, Shape::Tagged { default, .. }, Some((last, above))) =
        (&operation, around.without_null(), parts.split_last())
        && let Some(node) = existing(tree, above)
    {
        if let (&"kind", Value::Map(entries)) = (last, &mut node.value) {
            forget_other_kind(entries, &Node::plain(default.unwrap_or_default(), origin), &around);
        }
        node.take(last);
        return;
    }
    let shape = parts.last().map_or(Shape::Free, |part| around.of_key(part));
    if let Operation::Set(node) | Operation::Add(node) = &operation
        && node.is_null()
        && matches!(shape, Shape::Section { .. } | Shape::Tagged { .. })
    {
        let problem = Problem::rule_about(
            &[&path],
            format!("`{path}` must be {}, not null", shape.describe()),
            if parts.last().is_some_and(|part| part.parse::<usize>().is_ok()) {
                format!("`~{path}` removes it")
            } else {
                format!("`~{path}` takes it back to its own default")
            },
        );
        diagnostics.push(Diagnostic::error(problem, Some(node.origin.clone())));
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
        Operation::Set(node) => slot.merge(node, &shape),
        Operation::Add(node) => match (&mut slot.value, node) {
            (Value::List(items), Node { value: Value::List(more), .. }) => {
                items.extend(more);
                slot.origin = origin;
            }
            (Value::List(items), node) => {
                items.push(node);
                slot.origin = origin;
            }
            (_, node) => slot.merge(node, &shape),
        },
        Operation::Reset => {
            *slot = default_tree().at(&path).cloned().unwrap_or_else(|| match place {
                Place::Key(spec) => yaml::parse(&Source::new(SourceKind::Default, &*spec.default))
                    .unwrap_or_else(|_| Node::plain(&*spec.default, origin.clone())),
                Place::Item | Place::Free => Node::plain("null", origin.clone()),
            });
        }
    }
}

fn existing<'n>(tree: &'n mut Node, parts: &[&str]) -> Option<&'n mut Node> {
    if parts.is_empty() { Some(tree) } else { tree.at_mut(&parts.join(".")) }
}

/// The node at a path, which is created if it is missing.
fn slot<'n>(tree: &'n mut Node, parts: &[&str], origin: &Origin) -> Result<&'n mut Node, Problem> {
    let mut node = tree;
    let mut shape = table::root().clone();
    for (depth, part) in parts.iter().enumerate() {
        if matches!(node.value, Value::Scalar { .. }) {
            // The bare name of a kind is short for the kind.
            let kind = Some(node.clone()).filter(|node| !node.is_null());
            let kind = kind.filter(|_| matches!(shape, Shape::Tagged { .. }));
            let entry = |node: Node| MapEntry { key: "kind".to_owned(), origin: node.origin.clone(), node };
            node.value = Value::Map(kind.map(entry).into_iter().collect());
            node.origin = origin.clone();
        }
        shape = shape.of_key(part).without_null().clone();
        node = match &mut node.value {
            Value::List(items) => {
                let above = parts.get(..depth).unwrap_or_default().join(".");
                let (key, length) = (with_brackets(&above), items.len());
                let index = part.parse::<usize>().unwrap_or(usize::MAX);
                items.get_mut(index).ok_or_else(|| no_such_item(&key, length, index))?
            }
            Value::Map(entries) => {
                let index = entries.iter().position(|entry| entry.key == *part).unwrap_or_else(|| {
                    let node = Node::plain("null", origin.clone());
                    entries.push(MapEntry { key: (*part).to_owned(), origin: origin.clone(), node });
                    entries.len() - 1
                });
                if depth + 1 == parts.len() {
                    entries[index].origin = origin.clone();
                }
                &mut entries[index].node
            }
            Value::Scalar { .. } => unreachable!("made a mapping above"),
        };
    }
    Ok(node)
}

/// An override of an item that a list does not have.
fn no_such_item(key: &str, length: usize, index: usize) -> Problem {
    let message = format!("`{key}` has no item {index}: it has {length}, counted from 0");
    Problem::rule_about(&[key], message, format!("`+{key}=...` appends an item"))
}
