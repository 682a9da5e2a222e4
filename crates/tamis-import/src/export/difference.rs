//! What differs between a configuration and the import of another system's command, and how much it counts.
//!
//! Values count by their leaves and by what they decide: an algorithm counts more than how it is measured,
//! and that more than a name. So a search does not give up validation because it brings along a temperature
//! of its own.

use serde_json::Value as Json;
use tamis_config::tree::{join, parse_float};

use super::Lost;
use crate::owner::Owner;

/// Lists whose order means nothing, with the keys that make two of their items the same thing.
const SETS: [(&str, &[&str]); 4] = [
    ("reward", &["kind", "path", "function"]),
    ("run.loggers", &["kind"]),
    ("objective.correction.rejections", &["statistic"]),
    ("rollout.launch.args", &[]),
];

/// Beginnings of keys with the weight of a value under them; the first counts, [`OTHERS`] without one.
const WEIGHTS: [(&str, usize); 25] = [
    // They decide whether and what others do.
    ("sft.test_freq", 40),
    ("sft.data", 2),
    ("sft.val", 2),
    ("objective.loss.kind", 40),
    ("objective.advantage.kind", 40),
    ("objective.kl.in", 40),
    ("filter", 40),
    ("rollout.backend", 40),
    ("schedule.mode", 40),
    ("validate.test_freq", 40),
    // Lines of their own.
    ("data.train_batch_size", 12),
    ("learner.lora", 12),
    // What nothing is trained by.
    ("data.train", 2),
    ("data.val", 1),
    ("validate", 2),
    ("run.seed", 8),
    ("run", 2),
    ("checkpoint", 2),
    ("rollout.launch", 4),
    ("rollout.save", 1),
    ("learner", 4),
    ("cluster", 2),
    ("publish", 2),
    ("train.micro_batch_size", 1),
    ("train.micro_batch_tokens", 1),
];
const OTHERS: usize = 8;

/// The sections that a run of supervised fine-tuning alone reads, and what it reads of three of them.
const OF_SFT: [&str; 8] = ["model", "sft", "data", "train", "run", "checkpoint", "learner", "cluster"];
const OF_SFT_IN: [(&str, &[&str]); 3] = [
    ("data", &["chat_template_kwargs", "prompt_format", "system_prompt"]),
    ("train", &["optimizer", "micro_batch_tokens", "total_steps"]),
    ("model", &["path", "init", "chat_template", "recompute_activations"]),
];

/// Arguments of TRL's reward functions, which a script gives them whatever a command can express.
pub(super) const ARGUMENTS_OF_TRL: [(&str, &[(&str, &str)]); 3] = [
    ("soft_overlong", &[("max_completion_len", "max_length"), ("soft_punish_cache", "buffer")]),
    (
        "cosine",
        &[
            ("max_len", "max_length"),
            ("min_value_wrong", "min_value_wrong"),
            ("max_value_wrong", "max_value_wrong"),
            ("min_value_correct", "min_value_correct"),
            ("max_value_correct", "max_value_correct"),
        ],
    ),
    ("repetition", &[("ngram_size", "ngram_size"), ("max_penalty", "max_penalty")]),
];

/// Whether a key is this one, or something in it.
pub(super) fn is_in(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// How much is lost in all.
pub(super) fn weight(lost: &[Lost]) -> usize {
    let leaves = |value: &Option<Json>| value.as_ref().map_or(0, num_leaves);
    let of = |lost: &Lost| {
        let found = WEIGHTS.iter().find(|(outer, _)| is_in(&lost.key, outer));
        found.map_or(OTHERS, |(_, weight)| *weight) * leaves(&lost.ours).max(leaves(&lost.theirs)).max(1)
    };
    lost.iter().map(of).sum()
}

fn num_leaves(value: &Json) -> usize {
    match value {
        Json::Object(entries) => entries.values().map(num_leaves).sum(),
        _ => 1,
    }
}

/// The places at which a configuration and an import differ. A preset is no value of its own: what it sets is
/// compared.
pub(super) fn differences(owner: Owner, wanted: &Json, theirs: &Json) -> Vec<Lost> {
    let mut found = Vec::new();
    let (ours, theirs) = (for_comparison(owner, wanted), for_comparison(owner, theirs));
    compare("", Some(&ours), Some(&theirs), &mut found);
    found
}

fn for_comparison(owner: Owner, config: &Json) -> Json {
    let mut config = config.clone();
    if let Some(entries) = config.as_object_mut() {
        entries.remove("preset");
        if owner.is_sft() {
            entries.retain(|section, _| OF_SFT.contains(&section.as_str()));
            for (section, kept) in OF_SFT_IN {
                if let Some(inner) = entries.get_mut(section).and_then(Json::as_object_mut) {
                    inner.retain(|key, _| kept.contains(&key.as_str()));
                }
            }
            let optimizer = entries.get_mut("train").and_then(|train| train.get_mut("optimizer"));
            optimizer.and_then(Json::as_object_mut).and_then(|inner| inner.remove("learning_rate"));
        }
    }
    // Sizes that follow the batch have its size.
    let batch = config.pointer("/data/train_batch_size").cloned().unwrap_or_default();
    for key in ["/data/gen_batch_size", "/train/ppo_mini_batch_size"] {
        if let Some(size) = config.pointer_mut(key).filter(|size| size.is_null()) {
            *size = batch.clone();
        }
    }
    for item in config.pointer_mut("/reward").and_then(Json::as_array_mut).into_iter().flatten() {
        let Some(entries) = item.as_object_mut() else { continue };
        // A label.
        entries.remove("name");
        let kind = entries.get("kind").and_then(Json::as_str).unwrap_or_default();
        let arguments = ARGUMENTS_OF_TRL.iter().find(|(own, _)| owner == Owner::Trl && *own == kind);
        for (_, key) in arguments.into_iter().flat_map(|(_, arguments)| *arguments) {
            entries.remove(*key);
        }
    }
    for item in config.pointer_mut("/run/loggers").and_then(Json::as_array_mut).into_iter().flatten() {
        if let Json::String(kind) = item {
            *item = serde_json::json!({ "kind": kind });
        }
    }
    config
}

fn compare(path: &str, ours: Option<&Json>, theirs: Option<&Json>, found: &mut Vec<Lost>) {
    match (ours, theirs) {
        (Some(Json::Object(left)), Some(Json::Object(right))) => {
            for name in left.keys().chain(right.keys().filter(|name| !left.contains_key(*name))) {
                compare(&join(path, name), left.get(name), right.get(name), found);
            }
        }
        (Some(Json::Array(left)), Some(Json::Array(right))) => {
            if let Some((_, same)) = SETS.iter().find(|(set, _)| *set == path) {
                compare_sets(path, same, left, right, found);
            } else if left.len() == right.len() {
                for (index, (left, right)) in left.iter().zip(right).enumerate() {
                    compare(&format!("{path}[{index}]"), Some(left), Some(right), found);
                }
            } else {
                found.push(Lost { key: path.to_owned(), ours: ours.cloned(), theirs: theirs.cloned() });
            }
        }
        _ if is_equal(ours, theirs) => {}
        _ => found.push(Lost { key: path.to_owned(), ours: ours.cloned(), theirs: theirs.cloned() }),
    }
}

/// Compares lists without regard to order. Two items that are the same thing by the keys `same` are compared
/// inside; the others are there or not.
fn compare_sets(path: &str, same: &[&str], left: &[Json], right: &[Json], found: &mut Vec<Lost>) {
    let mut rest: Vec<&Json> = right.iter().collect();
    let mut unlike = Vec::new();
    for (index, item) in left.iter().enumerate() {
        match rest.iter().position(|other| is_alike(item, other)) {
            Some(at) => _ = rest.remove(at),
            None => unlike.push((index, item)),
        }
    }
    for (index, item) in unlike {
        let key = format!("{path}[{index}]");
        let is_same = |other: &&Json| {
            !same.is_empty() && same.iter().all(|name| is_equal(item.get(name), other.get(name)))
        };
        match rest.iter().position(is_same) {
            Some(at) => compare(&key, Some(item), Some(rest.remove(at)), found),
            None => found.push(Lost { key, ours: Some(item.clone()), theirs: None }),
        }
    }
    found.extend(rest.into_iter().map(|item| Lost {
        key: path.to_owned(),
        ours: None,
        theirs: Some(item.clone()),
    }));
}

fn is_alike(left: &Json, right: &Json) -> bool {
    let mut found = Vec::new();
    compare("", Some(left), Some(right), &mut found);
    found.is_empty()
}

fn is_equal(left: Option<&Json>, right: Option<&Json>) -> bool {
    let number = |value: Option<&Json>| parse_float(&value.filter(|value| value.is_number())?.to_string());
    left == right
        || number(left).is_some_and(|value| number(right).map(f64::to_bits) == Some(value.to_bits()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keys(owner: Owner, ours: &Json, theirs: &Json) -> Vec<String> {
        differences(owner, ours, theirs).into_iter().map(|lost| lost.key).collect()
    }

    #[test]
    fn loggers_are_a_set() {
        let ours = json!({"run": {"loggers": ["jsonl", {"kind": "wandb", "project": "p"}]}});
        let theirs = json!({"run": {"loggers": ["console", {"kind": "wandb"}, "jsonl"]}});
        assert_eq!(keys(Owner::Trl, &ours, &theirs), ["run.loggers[1].project", "run.loggers"]);
        let turned = json!({"run": {"loggers": [{"kind": "wandb", "project": "p"}, {"kind": "jsonl"}]}});
        assert!(keys(Owner::Trl, &ours, &turned).is_empty());
    }

    #[test]
    fn rewards_differ_in_their_keys_and_a_preset_in_what_it_sets() {
        let overlong =
            |length: u32, form: &str| json!({"kind": "soft_overlong", "max_length": length, "form": form});
        let ours =
            json!({"preset": "dapo", "reward": [{"name": "a", "kind": "math"}, overlong(9, "bounded")]});
        let theirs = json!({"reward": [overlong(7, "verl"), {"name": "b", "kind": "math"}]});
        // A script of TRL has the length; verl has both in its command.
        assert_eq!(keys(Owner::Trl, &ours, &theirs), ["reward[1].form"]);
        assert_eq!(keys(Owner::Verl, &ours, &theirs), ["reward[1].max_length", "reward[1].form"]);
    }

    #[test]
    fn a_section_counts_by_its_leaves_and_a_switch_more_than_details() {
        let lost = |key: &str, ours: Json| Lost { key: key.to_owned(), ours: Some(ours), theirs: None };
        assert_eq!(weight(&[lost("learner.lora", json!({"rank": 8, "alpha": 16}))]), 24);
        let details = ["n", "temperature", "top_p"].map(|key| lost(&format!("validate.{key}"), json!(1)));
        assert!(weight(&[lost("validate.test_freq", json!(5))]) > weight(&details));
    }
}
