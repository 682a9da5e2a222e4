//! The number of levels of each environment: `n_groups` of training and of validation.

use super::played::{Place, TRAIN_TAGS, VAL_TAGS};
use crate::translator::{Translator, show};
use tamis_config::tree::{Value, parse_float};

/// Training or validation: its tags, the number of groups of each, the total number of groups, and RAGEN's
/// default of the total.
pub(super) struct Side {
    tags: &'static str,
    groups: &'static str,
    pub(super) total: &'static str,
    default: f64,
}

pub(super) const TRAIN: Side = Side {
    tags: TRAIN_TAGS,
    groups: "es_manager.train.env_configs.n_groups",
    total: "es_manager.train.env_groups",
    default: 8.0,
};

pub(super) const VAL: Side = Side {
    tags: VAL_TAGS,
    groups: "es_manager.val.env_configs.n_groups",
    total: "es_manager.val.env_groups",
    default: 512.0,
};

/// Least number of training levels.
const LEAST_LEVELS: f64 = 8192.0;

/// Most training levels.
const MOST_LEVELS: f64 = 1e7;

const POOL: &str = "levels of all environments are drawn from one pool, in which each has its share: it has \
     that share of a step on average, where RAGEN has it in every step";

/// The total number of groups.
fn total(side: &Side, t: &mut Translator) -> Option<f64> {
    t.number(side.total).or(t.whole.then_some(side.default))
}

/// The number of groups of each listed tag, in that order, if they are given and add up.
pub(super) fn groups(side: &Side, t: &mut Translator) -> Option<Vec<f64>> {
    let node = t.find(side.groups)?.node.clone();
    if node.is_null() {
        t.no_effect(side.groups, &format!("{} sets it", side.total));
        return None;
    }
    let counts: Option<Vec<f64>> = match &node.value {
        Value::List(items) => items.iter().map(|item| parse_float(&show(item))).collect(),
        _ => parse_float(&show(&node)).map(|count| vec![count]),
    };
    let Some(counts) =
        counts.filter(|counts| counts.iter().all(|count| *count >= 0.0 && count.fract() == 0.0))
    else {
        t.bad_value(side.groups, "a list of whole numbers");
        return None;
    };
    let num_tags = t.find(side.tags).and_then(|given| match &given.node.value {
        Value::List(items) => Some(items.len()),
        Value::Scalar { .. } | Value::Map(_) => None,
    });
    if let Some(num_tags) = num_tags.filter(|num_tags| *num_tags > 0 && *num_tags != counts.len()) {
        let reason = format!(
            "RAGEN asks for a number for each tag, and {} has {num_tags}, this {}",
            side.tags,
            counts.len()
        );
        t.refuse(side.groups, reason);
        return None;
    }
    let sum: f64 = counts.iter().sum();
    match total(side, t) {
        Some(total) if total.to_bits() != sum.to_bits() => {
            let reason = format!("it adds up to {sum}, and RAGEN asks for {}, which is {total}", side.total);
            t.refuse(side.groups, reason);
            return None;
        }
        Some(_) => t.no_effect(side.groups, &format!("{} sets it", side.total)),
        None => t.no_effect(side.groups, &format!("{} sets it, and is not given", side.total)),
    }
    Some(counts)
}

/// Sets the number of levels of each environment if there are several.
pub(super) fn sizes(places: &[Place], t: &mut Translator) {
    let (of_train, of_val) = (groups(&TRAIN, t), groups(&VAL, t));
    if places.len() < 2 {
        return;
    }
    train_sizes(places, of_train, t);
    val_sizes(places, of_val, t);
}

/// The groups of each environment: the given numbers, or equal parts.
fn share(places: &[&Place], side: &Side, given: Option<Vec<f64>>, all: f64, t: &Translator) -> Vec<f64> {
    let equal = vec![all / places.len() as f64; places.len()];
    let Some(given) = given else { return equal };
    let listed: Vec<String> = match t.find(side.tags).map(|given| &given.node.value) {
        Some(Value::List(items)) => items.iter().map(show).collect(),
        _ if given.len() == places.len() => return given,
        _ => return equal,
    };
    // A tag that is listed twice is one environment.
    let of_tag = |place: &&Place| {
        listed.iter().zip(&given).filter(|(tag, _)| **tag == place.tag).map(|(_, count)| count).sum::<f64>()
    };
    places.iter().map(of_tag).collect()
}

/// Those of the given keys that have a value.
fn said(keys: &[&'static str], t: &Translator) -> Vec<&'static str> {
    keys.iter().copied().filter(|key| t.text(key).is_some()).collect()
}

/// Sets the number of levels of an environment, overriding its own key.
fn put(place: &Place, name: &str, from: &[&str], levels: f64, t: &mut Translator) {
    let ours = format!("{}.{name}", place.ours);
    for note in &mut t.notes {
        note.forget(&ours, "with several environments the number of levels is the share of its groups");
    }
    t.set(from, &ours, &levels.to_string());
}

/// Training levels: in the proportions of `n_groups`, with at least one level for each group of the run.
fn train_sizes(places: &[Place], given: Option<Vec<f64>>, t: &mut Translator) {
    for place in places.iter().filter(|place| !place.trains) {
        put(place, "train_size", &[VAL_TAGS], 0.0, t);
    }
    let trained: Vec<&Place> = places.iter().filter(|place| place.trains).collect();
    if trained.len() < 2 {
        return;
    }
    let all = total(&TRAIN, t).unwrap_or(trained.len() as f64);
    let shares = share(&trained, &TRAIN, given, all, t);
    let steps = t
        .number("trainer.total_training_steps")
        .or_else(|| parse_float(&t.text_of("train.total_steps")?))
        .unwrap_or(if t.whole { 200.0 } else { 1.0 });
    let sum = shares.iter().sum::<f64>().max(1.0);
    let levels_of_group = (LEAST_LEVELS / sum).ceil().max(steps).min((MOST_LEVELS / sum).floor()).max(1.0);
    let from = said(&[TRAIN.groups, TRAIN_TAGS], t);
    for (place, share) in trained.iter().zip(shares) {
        let levels = (share * levels_of_group).ceil();
        put(place, "train_size", &from, levels, t);
    }
    if let Some(key) = from.first() {
        t.remark(key, POOL);
    }
}

/// Validation levels: one for each group.
fn val_sizes(places: &[Place], given: Option<Vec<f64>>, t: &mut Translator) {
    for place in places.iter().filter(|place| !place.validates) {
        put(place, "val_size", &[VAL_TAGS], 0.0, t);
    }
    let validated: Vec<&Place> = places.iter().filter(|place| place.validates).collect();
    let all: f64 = match (&given, total(&VAL, t)) {
        (Some(given), _) => given.iter().sum(),
        (None, Some(all)) => all,
        (None, None) => return,
    };
    let is_given = given.is_some();
    let shares = share(&validated, &VAL, given, all, t);
    let from = said(&[VAL.groups, VAL.total, VAL_TAGS, TRAIN_TAGS], t);
    for (number, (place, share)) in validated.iter().zip(shares).enumerate() {
        // If equal parts leave a remainder, the first environments get one more level.
        let is_first = !is_given && (number as f64) < all % validated.len() as f64;
        let levels = if is_first { share.floor() + 1.0 } else { share.floor() };
        put(place, "val_size", &from, levels, t);
    }
    if is_given {
        t.part_of(VAL.total, VAL.groups);
    }
}
