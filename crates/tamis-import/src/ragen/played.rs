//! What a run plays: environments by RAGEN's tags, our own section `environment`, or none.

use super::env_type;
use crate::owner::Owner;
use crate::translator::{Given, Translator, show};
use tamis_config::override_argument::Override;
use tamis_config::tree::{Node, Value};

pub(super) const TRAIN_TAGS: &str = "es_manager.train.env_configs.tags";

pub(super) const VAL_TAGS: &str = "es_manager.val.env_configs.tags";

pub(super) const CUSTOM: &str = "custom_envs.";

/// Our list of further environments.
pub(super) const MORE: &str = "more_environments";

/// Files of prompts, which RAGEN does not read.
pub(super) const FILES: [&str; 2] = ["data.train_files", "data.val_files"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Played {
    /// Environments of RAGEN.
    Tag,
    /// The section `environment`, which RAGEN's keys change.
    Own,
    /// No environment: rows of a file, or a task that generates them.
    Nothing,
}

impl Played {
    /// The environments that the run plays are the named ones. A whole command that names nothing and has no
    /// file of prompts plays RAGEN's default.
    pub(crate) fn by(t: &Translator) -> Self {
        let is_of_custom = |given: &Given| given.key.starts_with(CUSTOM);
        let is_named = t.text(TRAIN_TAGS).is_some()
            || t.whole && (t.text(VAL_TAGS).is_some() || t.given.iter().any(is_of_custom));
        let ours = |key: &str| t.lower.tree.as_ref().and_then(|tree| tree.at(key));
        let is_said = |key: &str| ours(key).is_some_and(|node| node.origin.is_from_user() && !node.is_null());
        if is_named {
            Self::Tag
        } else if ours("environment.kind").is_some() {
            Self::Own
        } else if t.whole && t.text(FILES[0]).is_none() && !is_said("data.train") && !is_said("data.task") {
            Self::Tag
        } else {
            Self::Nothing
        }
    }
}

/// The tags of training or of validation.
fn tags(key: &str, t: &Translator) -> Option<Vec<String>> {
    let node = &t.find(key)?.node;
    let mut tags: Vec<String> = match &node.value {
        _ if node.is_null() => return None,
        Value::List(items) => items.iter().map(show).collect(),
        Value::Scalar { .. } | Value::Map(_) => vec![show(node)],
    };
    let mut seen = Vec::new();
    tags.retain(|tag| {
        let is_new = !seen.contains(tag);
        seen.push(tag.clone());
        is_new
    });
    Some(tags)
}

/// An environment of a run.
pub(super) struct Place {
    /// RAGEN's name for it.
    pub(super) tag: String,
    /// RAGEN's keys for it, up to the last dot.
    pub(super) custom: String,
    pub(super) ours: String,
    pub(super) named_by: &'static str,
    pub(super) trains: bool,
    pub(super) validates: bool,
}

/// The environments of the tags; those of training come first.
pub(super) fn places(t: &mut Translator) -> Option<Vec<Place>> {
    let (train, val) = (tags(TRAIN_TAGS, t), tags(VAL_TAGS, t));
    let mut is_named = true;
    for (key, tags) in [(TRAIN_TAGS, &train), (VAL_TAGS, &val)] {
        match tags.as_deref() {
            None => t.no_effect(key, "null names no environment"),
            Some([]) => {
                t.refuse(key, "it names no environment");
                is_named = false;
            }
            Some(_) => {}
        }
    }
    if !is_named {
        return None;
    }
    let trained = train.unwrap_or_else(|| vec![env_type::DEFAULT.to_owned()]);
    if val.is_none() && t.whole && trained != [env_type::DEFAULT] {
        let reason = format!(
            "RAGEN's default is {}, which is not what is trained on: validation plays what training plays",
            env_type::DEFAULT
        );
        t.absent_without_effect(Owner::Ragen, VAL_TAGS, &reason);
    }
    let validated = val.unwrap_or_else(|| trained.clone());
    let only_validated = validated.iter().filter(|tag| !trained.contains(tag)).map(|tag| (tag, VAL_TAGS));
    let named = trained.iter().map(|tag| (tag, TRAIN_TAGS)).chain(only_validated);
    let place = |(number, (tag, named_by)): (usize, (&String, &'static str))| Place {
        tag: tag.clone(),
        custom: format!("{CUSTOM}{tag}."),
        ours: section(number),
        named_by,
        trains: trained.contains(tag),
        validates: validated.contains(tag),
    };
    Some(named.enumerate().map(place).collect())
}

/// The section of an environment, by its index in the run.
fn section(number: usize) -> String {
    match number {
        0 => "environment".to_owned(),
        _ => format!("{MORE}.{}", number - 1),
    }
}

/// The sections of all environments of a run.
pub(crate) fn sections(t: &Translator) -> Vec<String> {
    let set = t.overrides.iter().rev().find(|other| other.path == MORE).and_then(Override::value);
    let num_more = set.map_or_else(|| num_more_below(t), num_of_list);
    (0..=num_more).map(section).collect()
}

/// Number of further environments in our layers.
pub(super) fn num_more_below(t: &Translator) -> usize {
    t.lower.tree.as_ref().and_then(|tree| tree.at(MORE)).map_or(0, num_of_list)
}

fn num_of_list(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => items.len(),
        Value::Scalar { .. } | Value::Map(_) => 0,
    }
}
