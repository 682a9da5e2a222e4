//! What a run plays: an environment by RAGEN's tags, one of its own, or none.

use super::tags;
use crate::foreign::owner::Owner;
use crate::foreign::translator::{Given, Translator, show};
use crate::tree::{Value, parse_float};

pub(super) const TRAIN_TAGS: &str = "es_manager.train.env_configs.tags";

pub(super) const VAL_TAGS: &str = "es_manager.val.env_configs.tags";

pub(super) const CUSTOM: &str = "custom_envs.";

/// Files of prompts, which RAGEN does not read.
pub(super) const FILES: [&str; 2] = ["data.train_files", "data.val_files"];

/// How many groups each tag has, how many there are, and RAGEN's default of that.
const GROUPS: [(&str, &str, f64); 2] = [
    ("es_manager.train.env_configs.n_groups", "es_manager.train.env_groups", 8.0),
    ("es_manager.val.env_configs.n_groups", "es_manager.val.env_groups", 512.0),
];

/// What a run plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Played {
    /// An environment of RAGEN's.
    Tag,
    /// The one under `environment`, which RAGEN's keys are put over.
    Own,
    /// None: it has rows of a file, or a task that makes them.
    Nothing,
}

impl Played {
    /// What the run plays: what is named, or in a whole command without a file of prompts RAGEN's default.
    pub(super) fn by(t: &Translator) -> Self {
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

/// The tags of one of the two lists.
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

/// The tag that is played, in training and in validation alike.
pub(super) fn tag_of_both(t: &mut Translator) -> Option<String> {
    let (train, val) = (tags(TRAIN_TAGS, t), tags(VAL_TAGS, t));
    for (key, tags) in [(TRAIN_TAGS, &train), (VAL_TAGS, &val)] {
        match tags.as_deref() {
            None => t.no_effect(key, "null names no environment"),
            Some([]) => t.refuse(key, "it names no environment"),
            Some([_]) => {}
            Some([first @ .., last]) => t.refuse(
                key,
                format!(
                    "{} and {last} are {} environments, and one is played at a time: name one, the same for \
                     training and validation",
                    first.join(", "),
                    first.len() + 1
                ),
            ),
        }
    }
    let is_single = |tags: &Option<Vec<String>>| tags.as_ref().is_none_or(|tags| tags.len() == 1);
    if !is_single(&train) || !is_single(&val) {
        return None;
    }
    let first = |tags: Option<Vec<String>>| tags.and_then(|tags| tags.into_iter().next());
    let (train, val) = (first(train), first(val));
    let tag = train.clone().unwrap_or_else(|| tags::DEFAULT.to_owned());
    match val {
        Some(val) if val != tag => {
            let by_default = if train.is_some() { "" } else { ", RAGEN's default" };
            t.refuse(
                VAL_TAGS,
                format!(
                    "training plays {tag}{by_default}, validation {val}, and one environment is played at a time: \
                     name the same for both"
                ),
            );
            return None;
        }
        Some(_) if train.is_some() => t.part_of(VAL_TAGS, TRAIN_TAGS),
        Some(_) => t.no_effect(VAL_TAGS, "training plays the same, by RAGEN's default"),
        None if t.whole && tag != tags::DEFAULT => t.absent_without_effect(
            Owner::Ragen,
            VAL_TAGS,
            &format!(
                "RAGEN's default is {}, and one environment is played at a time: validation plays {tag}, \
                 as training does",
                tags::DEFAULT
            ),
        ),
        None => {}
    }
    Some(tag)
}

/// Each tag's number of groups is, with one tag, the number of groups.
pub(super) fn groups(t: &mut Translator) {
    for (key, total, default) in GROUPS {
        let Some(node) = t.find(key).map(|given| given.node.clone()) else { continue };
        if node.is_null() {
            t.no_effect(key, &format!("{total} says it"));
            continue;
        }
        let counts: Option<Vec<f64>> = match &node.value {
            Value::List(items) => items.iter().map(|item| parse_float(&show(item))).collect(),
            _ => parse_float(&show(&node)).map(|count| vec![count]),
        };
        let sum = counts.map(|counts| counts.iter().sum::<f64>());
        let Some(groups) = t.number(total).or(t.whole.then_some(default)) else {
            t.no_effect(key, &format!("{total} says it, and is not given"));
            continue;
        };
        match sum {
            None => t.bad_value(key, "a list of numbers"),
            Some(sum) if sum.to_bits() == groups.to_bits() => t.no_effect(key, &format!("{total} says it")),
            Some(sum) => {
                t.refuse(key, format!("it adds up to {sum}, and RAGEN asks for {total}, which is {groups}"));
            }
        }
    }
}
