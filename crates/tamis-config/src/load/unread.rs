//! Translated keys that the chosen kind of a section does not read.

use crate::diagnostic::Diagnostic;
use crate::note::Note;
use crate::reader::Reader;
use crate::table;
use crate::tree::{Node, Value, join};
use tamis_core::setting::{KeySpec, Shape};

/// Removes other systems' values for keys that a section's kind does not have, because their keys are for all
/// kinds at once. The values are checked as by some kind with the key, and the notes state that they have no
/// effect.
pub fn drop_unread(tree: &mut Node, notes: &mut Vec<Note>, diagnostics: &mut Vec<Diagnostic>) {
    let mut reader = Reader::default();
    drop_unread_below(tree, "", table::root(), &mut reader, notes);
    diagnostics.extend(reader.into_diagnostics());
}

fn drop_unread_below(node: &mut Node, path: &str, shape: &Shape, reader: &mut Reader, notes: &mut Vec<Note>) {
    let shape = shape.without_null();
    let Shape::Tagged { common, variants, default, .. } = shape else {
        if let Value::Map(entries) = &mut node.value {
            for entry in entries {
                let shape = shape.of_key(&entry.key);
                drop_unread_below(&mut entry.node, &join(path, &entry.key), &shape, reader, notes);
            }
        }
        return;
    };
    let kind = node.get("kind").and_then(Node::as_text).or(*default);
    let Some(variant) = variants.iter().find(|variant| Some(variant.name) == kind) else { return };
    let unread: Vec<(String, Vec<KeySpec>)> = (node.entries().iter())
        .filter(|entry| entry.node.origin.source.kind.is_translated())
        .filter(|entry| !common.iter().chain(&variant.keys).any(|spec| spec.name == entry.key))
        .map(|entry| {
            let keys = variants.iter().flat_map(|other| &other.keys);
            (entry.key.clone(), keys.filter(|spec| spec.name == entry.key).cloned().collect())
        })
        .filter(|(_, specs): &(String, Vec<KeySpec>)| !specs.is_empty())
        .collect();
    let reason = format!("`{path}.kind: {}` does not read it", variant.name);
    for (key, specs) in unread {
        reader.check_one_of(node, path, &specs);
        notes.retain_mut(|note| note.forget(&join(path, &key), &reason));
        node.take(&key);
    }
}
