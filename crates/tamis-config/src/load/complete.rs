//! Values of rewards that follow from other keys: the task's verifier, the preset's additions, the folder in
//! which a program starts.

use super::defaults::default_tree;
use crate::source::SourceKind;
use crate::tree::{MapEntry, Node, Value};
use std::path::Path;
use tamis_env::reward::RewardKind;
use tamis_env::task::TaskKind;

/// Completes the list of rewards. After the user's rewards come the task's verifier, if they have none, and
/// the preset's addition, unless they have its kind.
pub(super) fn complete_rewards(tree: &mut Node, shaping: Option<Node>) {
    let text_at = |path| match tree.at(path) {
        Some(Node { value: Value::Scalar { text, .. }, .. }) => text.clone(),
        _ => String::new(),
    };
    let (task, environment) = (text_at("data.task"), text_at("environment.kind"));
    let default_origin = default_tree().origin.clone();
    let Value::Map(entries) = &mut tree.value else { return };
    let Some(rewards) = entries.iter_mut().find(|entry| entry.key == "reward") else { return };
    let Value::List(items) = &mut rewards.node.value else { return };
    let kind_of = |item: &Node| match item.get("kind") {
        Some(Node { value: Value::Scalar { text, .. }, .. }) => text.clone(),
        _ => String::new(),
    };
    let is_verifier = |item| RewardKind::of_name(&kind_of(item)).is_some_and(|kind| kind.is_verifier());
    let has_verifier = items.iter().any(is_verifier);
    let task = TaskKind::ALL.iter().find(|kind| kind.as_str() == task);
    // A program also scores its own episodes, unless there is a verifier.
    let verifier =
        if environment == "program" { Some("environment") } else { task.map(|task| task.verifier()) };
    if let Some(verifier) = verifier.filter(|_| !has_verifier) {
        let pair = |key: &str, value: &str| MapEntry {
            key: key.to_owned(),
            origin: default_origin.clone(),
            node: Node::plain(value, default_origin.clone()),
        };
        let value = Value::Map(vec![pair("kind", verifier), pair("weight", "1.0")]);
        items.push(Node { value, origin: default_origin.clone() });
    }
    if let Some(Node { value: Value::List(added), .. }) = shaping {
        for item in added {
            if !items.iter().any(|other| kind_of(other) == kind_of(&item)) {
                items.push(item);
            }
        }
    }
}

/// Kinds of rewards that are started as programs, and of environments, with the key that may name files.
const STARTED: [(&str, &str); 1] = [("command", "argv")];
const STARTED_ENVIRONMENTS: [(&str, &str); 6] = [
    ("command", "argv"),
    ("gymnasium", "id"),
    ("program", "argv"),
    ("python", "path"),
    ("tools", "functions"),
    ("verifiers", "id"),
];

/// Sets the working folder of every reward and environment that is started as a program, because its
/// arguments may name files. It is the folder of its configuration file.
pub(super) fn complete_working_folders(tree: &mut Node) {
    let Value::Map(entries) = &mut tree.value else { return };
    for MapEntry { key, node, .. } in entries {
        complete_working_folders_of(key, node, None);
    }
}

/// The same for the value of one key; `folder` replaces the folder of its file.
pub(crate) fn complete_working_folders_of(key: &str, value: &mut Node, folder: Option<&Path>) {
    let kinds: &[(&str, &str)] = match key.split('.').next() {
        Some("reward") => &STARTED,
        Some("environment" | "more_environments") => &STARTED_ENVIRONMENTS,
        _ => return,
    };
    match &mut value.value {
        Value::List(items) => {
            for item in items {
                complete_working_folder(item, kinds, folder);
            }
        }
        _ => complete_working_folder(value, kinds, folder),
    }
}

/// The same for one, and for those that it names by data source.
fn complete_working_folder(started: &mut Node, kinds: &[(&str, &str)], folder: Option<&Path>) {
    let Value::Map(entries) = &mut started.value else { return };
    if let Some(sources) = entries.iter_mut().find(|entry| entry.key == "sources")
        && let Value::Map(sources) = &mut sources.node.value
    {
        for source in sources {
            complete_working_folder(&mut source.node, kinds, folder);
        }
    }
    let Some(Node { value: Value::Scalar { text: own, .. }, .. }) = started.get("kind") else { return };
    let Some((_, key)) = kinds.iter().find(|(kind, _)| kind == own) else { return };
    let Some(argv) = started.get(key) else { return };
    if started.get("working_dir").is_some_and(|folder| !folder.is_null()) {
        return;
    }
    let of_file = match &argv.origin.source.kind {
        SourceKind::File(file) => file.parent(),
        _ => None,
    };
    let folder = folder.or(of_file).map(|folder| folder.to_string_lossy().into_owned());
    let folder = folder.filter(|folder| !folder.is_empty()).unwrap_or_else(|| ".".to_owned());
    let origin = default_tree().origin.clone();
    let Value::Map(entries) = &mut started.value else { return };
    entries.retain(|entry| entry.key != "working_dir");
    let node = Node::text(folder, origin.clone());
    entries.push(MapEntry { key: "working_dir".to_owned(), origin, node });
}
