//! The environments of a run, from the entries of `custom_envs` for each tag.

use super::env_type::{EnvType, OTHER_NAMES, Outcome, Setting, Tag, environments};
use super::played::{CUSTOM, FILES, MORE, Place, Played, TRAIN_TAGS, VAL_TAGS, num_more_below, places};
use super::shares::{self, sizes};
use crate::owner::Owner;
use crate::translator::{Translator, show};
use tamis_config::diagnostic::{Diagnostic, Problem};
use tamis_config::render::scalar;
use tamis_config::table;
use tamis_config::{Remark, suggest};

/// The keys of one tag.
const KEYS_OF_TAG: [&str; 7] = [
    "env_type",
    "max_actions_per_traj",
    "env_instruction",
    "max_tokens",
    "parallel_friendly",
    "max_workers",
    "env_config",
];

/// Our settings and their values that come from the tag or RAGEN's defaults, not from a key.
type Pairs = Vec<(String, String)>;

/// Sets the environments that the tags and their settings name.
pub(crate) fn environment(t: &mut Translator) {
    let played = Played::by(t);
    if played != Played::Tag {
        for side in [shares::TRAIN, shares::VAL] {
            shares::groups(&side, t);
        }
        without_tag(played, t);
        return;
    }
    let Some(places) = places(t) else {
        say_of_others(&[], "the tags name no environment", t);
        return;
    };
    for key in FILES {
        t.no_effect(key, "the prompts are those of the environment, as in RAGEN");
    }
    say_of_others(&places, &name_all(&places), t);
    let found: Vec<Option<Known>> = places.iter().map(|place| find(place, t)).collect();
    let Some(found) = found.into_iter().collect::<Option<Vec<Known>>>() else {
        say_of_others(&[], "an environment is refused", t);
        return;
    };
    let mut remarks = Vec::new();
    for (number, (place, known)) in places.iter().zip(&found).enumerate() {
        if number == 1 {
            list_more(&places, &found, t);
        }
        one(place, known, t);
        let has_file = t.has_set(&format!("{}.file", place.ours));
        remarks.extend(known.env_type.remark.filter(|_| !has_file).map(|remark| (place.named_by, remark)));
    }
    if places.len() == 1 && num_more_below(t) > 0 {
        t.set(&[TRAIN_TAGS], MORE, "[]");
    }
    sizes(&places, t);
    for (key, remark) in remarks {
        if t.text(key).is_none() {
            continue;
        }
        // A given key has no default of its owner's.
        match t.notes.iter().find(|note| note.key == key).and_then(|note| note.remark.clone()) {
            Some(Remark::Text(other)) => t.remark(key, &format!("{remark}; {other}")),
            Some(Remark::OwnersDefault) | None => t.remark(key, remark),
        }
    }
    match t.text(TRAIN_TAGS) {
        Some(_) => t.part_of(VAL_TAGS, TRAIN_TAGS),
        None => t.no_effect(VAL_TAGS, "training plays the same, by RAGEN's default"),
    }
}

/// Lists the environments after the first. Their keys are set afterwards.
fn list_more(places: &[Place], found: &[Known], t: &mut Translator) {
    let of_kind = |(place, known): (&Place, &Known)| {
        format!("{{kind: {}, name: {}}}", known.env_type.kind, scalar(&place.tag))
    };
    let more: Vec<String> = places.iter().zip(found).skip(1).map(of_kind).collect();
    let from = places.get(1).map_or(TRAIN_TAGS, |place| place.named_by);
    t.set(&[from], MORE, &format!("[{}]", more.join(", ")));
}

/// A known tag and its kind.
#[derive(Clone, Copy)]
struct Known {
    tag: Option<&'static Tag>,
    env_type: &'static EnvType,
}

fn name_all(places: &[Place]) -> String {
    let names: Vec<&str> = places.iter().map(|place| place.tag.as_str()).collect();
    match names.split_last() {
        Some((last, first)) if !first.is_empty() => {
            format!("the environments of this run are {} and {last}", first.join(", "))
        }
        _ => format!("the environment of this run is {}", names.concat()),
    }
}

/// The kind of a tag's environment. An error if tamis has none.
fn find(place: &Place, t: &mut Translator) -> Option<Known> {
    let tag = environments().tags.iter().find(|known| known.name == place.tag);
    let env_type_key = format!("{}env_type", place.custom);
    let Some(env_type) = t.text(&env_type_key).or_else(|| tag.map(|known| known.env_type.to_owned())) else {
        refuse_unknown_tag(place, t);
        return None;
    };
    let env_type = find_type(&env_type, &env_type_key, place, t)?;
    t.part_of(&env_type_key, place.named_by);
    Some(Known { tag: tag.filter(|known| known.env_type == env_type.name), env_type })
}

fn one(place: &Place, known: &Known, t: &mut Translator) {
    let mut pairs = Pairs::new();
    if place.ours == "environment" {
        let mut push = |ours: &str, value: &str| pairs.push((ours.to_owned(), value.to_owned()));
        push("data.task", "environment");
        push("environment.kind", known.env_type.kind);
        push("environment.name", &scalar(&place.tag));
    }
    let limit = settings(known, place, &mut pairs, t);
    actions(known, place, limit, &mut pairs, t);
    words(place, &mut pairs, t);
    for key in keys_below(&place.custom, t) {
        report_unknown_of_tag(&key, &place.custom, t);
    }
    if t.text(place.named_by).is_some() {
        for (ours, value) in &pairs {
            t.set(&[place.named_by], ours, value);
        }
    } else {
        let pairs: Vec<(&str, &str)> =
            pairs.iter().map(|(ours, value)| (ours.as_str(), value.as_str())).collect();
        t.defaults(Owner::Ragen, place.named_by, &pairs);
    }
}

/// Handles `custom_envs` and validation's tags if there is no training tag.
fn without_tag(played: Played, t: &mut Translator) {
    let keys = keys_below(CUSTOM, t);
    for key in [TRAIN_TAGS, VAL_TAGS] {
        if t.text(key).is_none() {
            t.no_effect(key, "null names no environment");
        }
    }
    let first = t.text(VAL_TAGS).map(|_| VAL_TAGS.to_owned()).or_else(|| keys.first().cloned());
    match (played, first) {
        (_, None) => {}
        (Played::Own, Some(key)) => t.refuse(
            &key,
            format!(
                "the configuration has an environment of its own: set its keys under `environment`, \
                 or give {TRAIN_TAGS} too"
            ),
        ),
        (_, Some(key)) => {
            t.refuse(&key, format!("the environment that is trained on is missing: give {TRAIN_TAGS} too"));
        }
    }
}

fn keys_below(start: &str, t: &Translator) -> Vec<String> {
    t.given.iter().filter(|given| given.key.starts_with(start)).map(|given| given.key.clone()).collect()
}

/// Notes that the keys of all other tags have no effect.
fn say_of_others(places: &[Place], reason: &str, t: &mut Translator) {
    for key in keys_below(CUSTOM, t) {
        if !places.iter().any(|place| key.starts_with(&place.custom)) {
            t.no_effect(&key, reason);
        }
    }
}

/// Refuses a tag without a definition.
fn refuse_unknown_tag(place: &Place, t: &mut Translator) {
    let names: Vec<&'static str> = environments().tags.iter().map(|tag| tag.name).collect();
    let tag = &place.tag;
    let meant = suggest::nearest_value(tag, &names).map_or_else(
        || format!("define it by custom_envs.{tag}.env_type and the keys beside that"),
        |name| format!("did you mean `{name}`?"),
    );
    t.refuse(place.named_by, format!("{tag} is not defined: {meant}"));
    for key in keys_below(&place.custom, t) {
        t.no_effect(&key, "its environment is missing");
    }
}

/// The kind of environment by RAGEN's name. An error if tamis has none.
fn find_type(name: &str, key: &str, place: &Place, t: &mut Translator) -> Option<&'static EnvType> {
    if let Some(found) = environments().kinds.iter().find(|known| known.name == name) {
        return Some(found);
    }
    let names: Vec<&'static str> = environments().kinds.iter().map(|known| known.name).collect();
    let reason = environments().elsewhere.iter().find(|(known, _)| *known == name).map_or_else(
        || {
            let meant = suggest::nearest_value(name, &names).map_or_else(
                || {
                    "one that lives elsewhere is played by `environment.kind` python, gymnasium, verifiers, \
                     command or http"
                        .to_owned()
                },
                |name| format!("did you mean `{name}`?"),
            );
            format!("there is no environment `{name}` here, but {}: {meant}", names.join(", "))
        },
        |(_, reason)| (*reason).to_owned(),
    );
    if t.find(key).is_some() {
        t.refuse(key, reason);
        t.no_effect(place.named_by, "its environment is refused");
    } else {
        t.refuse(place.named_by, reason);
    }
    None
}

/// Our settings of the environment. Those with a key are set directly, the others go into `pairs`. Returns
/// the environment's own limit of actions, and the key that set it.
fn settings(
    known: &Known,
    place: &Place,
    pairs: &mut Pairs,
    t: &mut Translator,
) -> Option<(f64, Option<String>)> {
    let Known { tag, env_type } = *known;
    let Place { custom, named_by, .. } = place;
    let all = merged(env_type, tag, custom, t);
    let ours_below = |ours: &str| format!("{}.{ours}", place.ours);
    for (ours, value) in &env_type.fixed {
        pairs.push((ours_below(ours), (*value).to_owned()));
    }
    let mut limit = None;
    for setting in &all {
        let key = setting.key.as_deref();
        match (env_type.outcome(setting, &all), key) {
            (Outcome::Set(values), Some(key)) => {
                for (ours, value) in values {
                    t.set(&[key], &ours_below(ours), &value);
                }
            }
            (Outcome::Set(values), None) => {
                pairs.extend(values.into_iter().map(|(ours, value)| (ours_below(ours), value)));
            }
            (Outcome::Limit(value), key) => match value.parse::<f64>() {
                Ok(value) => limit = Some((value, key.map(str::to_owned))),
                Err(_) => t.bad_value(key.unwrap_or(named_by), "a number"),
            },
            (Outcome::Refused(reason), Some(key)) => t.refuse(key, reason),
            (Outcome::Refused(reason), None) => t.refuse(named_by, reason),
            (Outcome::PartOf(name), Some(key)) => {
                t.part_of(key, &format!("{custom}env_config.{name}"));
            }
            (Outcome::NoEffect(reason), Some(key)) => t.no_effect(key, &reason),
            (Outcome::Unknown, Some(key)) => report_unknown(env_type, setting, key, t),
            (Outcome::PartOf(_) | Outcome::NoEffect(_) | Outcome::Unknown, None) => {}
        }
    }
    limit
}

/// The defaults of RAGEN's kind, overridden by the tag's settings, overridden by keys.
fn merged(env_type: &EnvType, known: Option<&Tag>, custom: &str, t: &mut Translator) -> Vec<Setting> {
    let start = format!("{custom}env_config");
    // `null` removes the tag's own settings.
    let is_reset = t.find(&start).is_some_and(|given| given.node.is_null());
    t.no_effect(
        &start,
        if is_reset { "RAGEN's defaults of the environment are taken" } else { "it is empty" },
    );
    let of_tag = known.filter(|_| !is_reset).map_or(&[][..], |known| &known.config);
    let mut all: Vec<Setting> = Vec::new();
    let mut put = |name: &str, value: String, key: Option<String>| {
        let name = OTHER_NAMES.iter().find(|(other, _)| *other == name).map_or(name, |(_, name)| name);
        all.retain(|setting: &Setting| setting.name != name);
        all.push(Setting { name: name.to_owned(), value, key });
    };
    for (name, value) in env_type.defaults.iter().chain(of_tag) {
        put(name, (*value).to_owned(), None);
    }
    let start = format!("{start}.");
    for given in t.given.iter().filter(|given| given.key.starts_with(&start)) {
        let value = if given.node.is_null() { "null".to_owned() } else { show(&given.node) };
        let name = given.key.strip_prefix(&start).unwrap_or(&given.key);
        put(name, value, Some(given.key.clone()));
    }
    all
}

/// Most actions of an episode: the tag's number, or the environment's own limit if that is lower.
fn actions(
    known: &Known,
    place: &Place,
    limit: Option<(f64, Option<String>)>,
    pairs: &mut Pairs,
    t: &mut Translator,
) {
    let Place { custom, named_by, tag, .. } = place;
    let ours = format!("{}.prompting.max_actions", place.ours);
    let key = format!("{custom}max_actions_per_traj");
    let given = t.number(&key);
    let Some(actions) = given.or_else(|| known.tag.and_then(|known| known.max_actions.parse().ok())) else {
        let env_type_key = format!("{custom}env_type");
        let from = t.first_given(&[&key, &env_type_key, named_by]).unwrap_or_default();
        t.refuse(&from, format!("RAGEN asks how many actions an episode of {tag} may have: give {key}"));
        return;
    };
    let value = match limit {
        Some((limit, from)) if limit < actions => {
            if let Some(from) = from {
                t.set(&[&from], &ours, &limit.to_string());
                t.no_effect(&key, &format!("{from} is lower"));
                return;
            }
            limit
        }
        Some((_, Some(from))) => {
            t.no_effect(&from, &format!("an episode ends before it, after {actions} actions"));
            actions
        }
        _ => actions,
    };
    if given.is_some() {
        t.set(&[&key], &ours, &value.to_string());
    } else {
        pairs.push((ours, value.to_string()));
    }
    // RAGEN's lake has no limit of its own. Ours has gymnasium's.
    if known.env_type.kind == "frozen_lake" && value > 100.0 {
        t.set(&[&key, named_by], &format!("{}.max_steps", place.ours), &value.to_string());
    }
}

/// Settings of the prompt that the policy gets.
fn words(place: &Place, pairs: &mut Pairs, t: &mut Translator) {
    const LENGTH: &str = "actor_rollout_ref.rollout.response_length";
    let custom = &place.custom;
    let ours = format!("{}.prompting.max_tokens", place.ours);
    let key = format!("{custom}max_tokens");
    if let Some(length) = t.text(&key) {
        t.set(&[&key], &ours, &length);
    } else {
        t.no_effect(&key, "null leaves the default");
        let known = environments().tags.iter().find(|known| known.name == place.tag);
        let length = known.map(|known| known.max_tokens.to_owned()).or_else(|| t.text(LENGTH));
        pairs.push((ours, length.unwrap_or_else(|| "400".to_owned())));
    }
    let key = format!("{custom}env_instruction");
    match t.text(&key) {
        Some(text) if !text.trim().is_empty() => {
            t.set(&[&key], &format!("{}.prompting.instruction", place.ours), &scalar(text.trim()));
        }
        _ => t.no_effect(&key, "the environment has words of its own here"),
    }
    for name in ["parallel_friendly", "max_workers"] {
        t.no_effect(&format!("{custom}{name}"), "environments are stepped beside generation, all of them");
    }
}

/// Reports a setting of `env_config` that RAGEN's environment does not have.
fn report_unknown(env_type: &EnvType, setting: &Setting, key: &str, t: &mut Translator) {
    let Some(origin) = t.find(key).map(|given| given.origin.clone()) else { return };
    let start = format!("environment<{}>.", env_type.kind);
    let of_kind: Vec<&'static str> =
        table::keys().iter().filter_map(|key| key.path.strip_prefix(start.as_str())).collect();
    let names = env_type.names();
    let hint = match (
        suggest::nearest_value(&setting.name, &names),
        suggest::nearest_value(&setting.name, &of_kind),
    ) {
        (Some(name), _) => format!("did you mean `{name}`?"),
        (None, Some(name)) => format!("did you mean `environment.{name}`, which is a key of tamis?"),
        (None, None) => format!(
            "its settings are {}; those of tamis, under `environment`, {}",
            names.join(", "),
            of_kind.join(", ")
        ),
    };
    let message = format!("`{key}` is no setting of RAGEN's `{}` that tamis knows", env_type.name);
    t.diagnostics.push(Diagnostic::error(Problem::rule_about(&[key], message, hint), Some(origin)));
}

/// Reports an unknown key of a tag.
fn report_unknown_of_tag(key: &str, custom: &str, t: &mut Translator) {
    let name = key.strip_prefix(custom).unwrap_or(key);
    if KEYS_OF_TAG.contains(&name) || name.starts_with("env_config.") {
        return;
    }
    let Some(origin) = t.find(key).map(|given| given.origin.clone()) else { return };
    let hint = suggest::nearest_value(name, &KEYS_OF_TAG).map_or_else(
        || format!("an environment has {}", KEYS_OF_TAG.join(", ")),
        |name| format!("did you mean `{custom}{name}`?"),
    );
    let problem = Problem::rule_about(
        &[key],
        format!("`{key}` is no key of RAGEN's environments that tamis knows"),
        hint,
    );
    t.diagnostics.push(Diagnostic::error(problem, Some(origin)));
}
