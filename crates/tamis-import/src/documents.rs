//! Files of other systems: their sections taken apart into keys.

use super::is_foreign;
use super::owner::Owner;
use super::supervised::tables;
use super::translator::{note_on, show};
use tamis_config::override_argument::{Operation, Override};
use tamis_config::tree::{MapEntry, Node, Value, join};
use tamis_config::{Note, NoteOutcome, table};

/// Words in the first line of every script that tamis exports.
pub(crate) const WRITTEN_BY: &str = "by `tamis config export`";

/// Files with a system's own defaults, which apply anyway.
pub(crate) const OWN_FILES: [(&str, Owner); 6] = [
    ("ppo_trainer", Owner::Verl),
    ("ppo_megatron_trainer", Owner::Verl),
    ("sft_trainer", Owner::VerlSft),
    ("sft_trainer_engine", Owner::VerlSft),
    ("base", Owner::Ragen),
    ("envs", Owner::Ragen),
];

/// Groups of verl's own configurations, from which its files are composed.
const OWN_GROUPS: [&str; 19] = [
    "actor",
    "algorithm",
    "critic",
    "data",
    "distillation",
    "engine",
    "hydra",
    "model",
    "model_engine",
    "npu_profile",
    "optim",
    "profiler",
    "ref",
    "reward",
    "reward_manager",
    "reward_model",
    "rollout",
    "router_replay",
    "trainer",
];

/// The keys of a file of another system, one of `owners`. Returns notes on those files of its list `defaults`
/// that are not read.
pub(crate) fn flatten_tree(tree: Node, owners: &[Owner], parsed: &mut Vec<Override>) -> Vec<Note> {
    let Value::Map(entries) = tree.value else { return Vec::new() };
    let mut notes = Vec::new();
    for entry in entries {
        // Hydra's list of other files to combine with.
        if entry.key == "defaults" {
            notes = unread_defaults(&entry.node);
        } else {
            let origin = entry.node.origin.clone();
            flatten(
                Override { path: entry.key, origin, operation: Operation::Set(entry.node) },
                owners,
                parsed,
            );
        }
    }
    notes
}

/// A note for each file of the list `defaults` that is not one of the system's own.
fn unread_defaults(list: &Node) -> Vec<Note> {
    let Value::List(items) = &list.value else { return Vec::new() };
    // `name`, `group/name`, `group@package: name`, `override group: name`.
    let group = |text: &str| {
        let name = text.trim_start_matches("override ").trim_start_matches("optional ");
        name.trim_start_matches('/').split(['@', '/']).next().unwrap_or(name).to_owned()
    };
    let is_own = |item: &Node| match &item.value {
        Value::Scalar { text, .. } => {
            text == "_self_"
                || OWN_FILES.iter().any(|(own, _)| *own == group(text))
                || text.contains(['/', '@']) && OWN_GROUPS.contains(&group(text).as_str())
        }
        Value::Map(entries) => entries.iter().all(|entry| OWN_GROUPS.contains(&group(&entry.key).as_str())),
        Value::List(_) => false,
    };
    let reason = "the file that it names was not read: give that one as an argument too, before this one";
    let note = |item: &Node| {
        note_on(Owner::Verl, "defaults", Some(show(item)), NoteOutcome::Ignored(reason.to_owned()))
    };
    items.iter().filter(|item| !is_own(item)).map(note).collect()
}

/// A mapping under a name that is no key becomes one argument for each key below it.
pub(crate) fn flatten(argument: Override, owners: &[Owner], parsed: &mut Vec<Override>) {
    let Override { path, origin, operation } = argument;
    match operation {
        Operation::Set(Node { value: Value::Map(entries), .. })
        | Operation::Add(Node { value: Value::Map(entries), .. })
            if !entries.is_empty() && is_section(&path, owners) =>
        {
            for entry in entries {
                let path = join(&path, &entry.key);
                let origin = entry.node.origin.clone();
                flatten(Override { path, origin, operation: Operation::Set(entry.node) }, owners, parsed);
            }
        }
        operation => parsed.push(Override { path, origin, operation }),
    }
}

/// Whether a key is a section of another system: there are keys below it, or no system has it as a key.
fn is_section(path: &str, owners: &[Owner]) -> bool {
    let (below, free) = (format!("{path}."), format!("{path}.*"));
    let keys = || owners.iter().flat_map(|owner| owner.keys());
    keys().any(|entry| entry.key.starts_with(&below) && entry.key != free)
        || !keys().any(|entry| entry.key == path) && table::place(path).is_err()
}

/// Whether a file is one of another system: it has keys of that system, and none that only tamis has.
/// That of a supervised trainer, if one of its tables is searched, is every file that is not ours.
pub(crate) fn is_foreign_tree(tree: &Node, trainer: Option<Owner>) -> bool {
    let is_theirs = |key: &str| table::place(key).is_err() && is_foreign(key);
    (trainer.is_some() || tree.entries().iter().any(|entry| is_theirs(&entry.key)))
        && !is_native_tree(tree, trainer)
}

/// Whether a file has keys that only tamis has. A file with neither these nor keys that only another system
/// has (`data: {train_batch_size: 8}`) may belong to either.
pub(crate) fn is_native_tree(tree: &Node, trainer: Option<Owner>) -> bool {
    let owners = tables(trainer);
    tree.entries().iter().any(|MapEntry { key, .. }| {
        let below = format!("{key}.");
        let is_shared =
            || owners.iter().flat_map(|owner| owner.keys()).any(|entry| entry.key.starts_with(&below));
        // In another system, `rollout` is only a section of one experimental trainer of verl.
        !key.contains('.') && table::place(key).is_ok() && (key == "rollout" || !is_shared())
    })
}
