//! What an override does to the tree of values.

use super::defaults::default_tree;
use crate::diagnostic::{Diagnostic, Problem};
use crate::foreign;
use crate::override_argument::{Operation, Override};
use crate::source::{Origin, Source, SourceKind};
use crate::table::{self, Place};
use crate::tree::{MapEntry, Node, Value, forget_other_kind};
use crate::yaml;
use tamis_core::setting::Shape;

/// Applies one override to the tree.
pub(crate) fn apply(tree: &mut Node, argument: Override, diagnostics: &mut Vec<Diagnostic>) {
    let Override { path, origin, operation } = argument;
    let place = match table::place(&path) {
        Ok(place) => place,
        Err(unknown) => {
            let problem = unknown.into_problem(foreign::owner_of_section(&path));
            diagnostics.push(Diagnostic::error(problem, Some(origin)));
            return;
        }
    };
    let parts: Vec<&str> = path.split('.').collect();
    if let (Operation::Reset, Some((last, above))) = (&operation, parts.split_last())
        && let Ok(index) = last.parse::<usize>()
        && let Some(Node { value: Value::List(items), .. }) = slot_of_existing(tree, above)
    {
        if index < items.len() {
            items.remove(index);
        } else {
            let problem = Problem::NoSuchItem { key: above.join("."), length: items.len(), index };
            diagnostics.push(Diagnostic::error(problem, Some(origin)));
        }
        return;
    }
    let around = parts.iter().rev().skip(1).rev().fold(table::root().clone(), |shape, part| {
        match shape.without_null() {
            Shape::List(item) => (**item).clone(),
            shape => shape.of_key(part),
        }
    });
    if let (Operation::Set(kind), Some(("kind", above))) =
        (&operation, parts.split_last().map(|(last, above)| (*last, above)))
        && let Some(Node { value: Value::Map(entries), .. }) = slot_of_existing(tree, above)
    {
        forget_other_kind(entries, kind, &around);
    }
    // The default of a key is that of the kind which the section has in the end.
    if let (Operation::Reset, Shape::Tagged { default, .. }, Some((last, above))) =
        (&operation, around.without_null(), parts.split_last())
        && let Some(node) = slot_of_existing(tree, above)
    {
        if let (&"kind", Value::Map(entries)) = (last, &mut node.value) {
            forget_other_kind(entries, &Node::plain(default.unwrap_or_default(), origin), &around);
        }
        node.take(last);
        return;
    }
    let shape = parts.last().map_or(Shape::Free, |part| around.of_key(part));
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

fn slot_of_existing<'n>(tree: &'n mut Node, parts: &[&str]) -> Option<&'n mut Node> {
    parts.iter().try_fold(tree, |node, part| match &mut node.value {
        Value::Map(entries) => {
            entries.iter_mut().find(|entry| entry.key == *part).map(|entry| &mut entry.node)
        }
        Value::List(items) => part.parse::<usize>().ok().and_then(|index| items.get_mut(index)),
        Value::Scalar { .. } => None,
    })
}

/// The node at a path, made where it is not there.
fn slot<'n>(tree: &'n mut Node, parts: &[&str], origin: &Origin) -> Result<&'n mut Node, Problem> {
    let mut node = tree;
    for (depth, part) in parts.iter().enumerate() {
        if matches!(node.value, Value::Scalar { .. }) {
            node.value = Value::Map(Vec::new());
            node.origin = origin.clone();
        }
        node = match &mut node.value {
            Value::List(items) => {
                let (key, length) = (parts.get(..depth).unwrap_or_default().join("."), items.len());
                let index = part.parse::<usize>().unwrap_or(usize::MAX);
                items.get_mut(index).ok_or(Problem::NoSuchItem { key, length, index })?
            }
            Value::Map(entries) => {
                let index = entries.iter().position(|entry| entry.key == *part).unwrap_or_else(|| {
                    let node = Node::plain("null", origin.clone());
                    entries.push(MapEntry { key: (*part).to_owned(), origin: origin.clone(), node });
                    entries.len() - 1
                });
                &mut entries[index].node
            }
            Value::Scalar { .. } => unreachable!("made a mapping above"),
        };
    }
    Ok(node)
}
