//! RAGEN's advantages over turns, sizes and defaults.

use super::environments::{ENVIRONMENT, environment};
use super::played::Played;
use super::{DEFAULTS, STOPS, VALIDATION_DEFAULTS, episodes};
use crate::key::Rule;
use crate::owner::Owner;
use crate::shared::critic::{ESTIMATOR, RAGEN_MINI, TURNS, is_over_turns};
use crate::shared::defaults::{by_source, estimator};
use crate::translator::Translator;

/// GAE over turns: after the estimator.
pub(super) const BI_LEVEL_GAE: Rule = Rule::new(3, "bi-level gae", bi_level_gae);

/// RAGEN's switch.
fn bi_level_gae(t: &mut Translator) {
    if !t.flag(TURNS, false) {
        t.no_effect(TURNS, "advantages are not over turns");
    } else if is_over_turns(t) {
        t.set(&[TURNS], "objective.advantage.kind", "bi_level_gae");
    } else {
        match t.text(ESTIMATOR).as_deref() {
            Some("bi_level_gae") => t.part_of(TURNS, ESTIMATOR),
            Some(name) => {
                t.no_effect(
                    TURNS,
                    &format!("RAGEN reads it with the estimator gae alone, and this is {name}"),
                );
            }
            None => t.no_effect(
                TURNS,
                "RAGEN reads it with the estimator gae alone: give algorithm.adv_estimator=gae too",
            ),
        }
    }
}

/// Group size and mini-batches, which count trajectories even where no key says so: after the critic.
pub(crate) const SIZES: Rule = Rule::new(4, "sizes", sizes);

/// Groups of RAGEN, and its mini-batches: verl multiplies `ppo_mini_batch_size` by its own `rollout.n`, which
/// is 1 in RAGEN, so there it counts trajectories.
fn sizes(t: &mut Translator) {
    const GROUP: &str = "es_manager.train.group_size";
    const MINI: [&str; 2] = ["ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"];
    const LENGTH: &str = "actor_rollout_ref.rollout.response_length";
    let group = t.number(GROUP);
    if let Some(group) = group {
        t.set(&[GROUP], "rollout.n", &group.to_string());
    }
    if let Some(length) = t.text(LENGTH) {
        t.set(&[LENGTH], "rollout.max_response_length", &length);
    }
    critic_size(group.or(if t.whole { Some(16.0) } else { None }), t);
    let given = t.first_given(&MINI);
    let trajectories = match &given {
        Some(key) => t.number(key),
        None if t.whole => Some(32.0),
        None => None,
    };
    let Some(trajectories) = trajectories else { return };
    let Some(group) = group.or(if t.whole { Some(16.0) } else { None }) else {
        if let Some(key) = given {
            t.refuse(
                &key,
                "in RAGEN it counts trajectories: give es_manager.train.group_size beside it, or \
                train.ppo_mini_batch_size in prompts",
            );
        }
        return;
    };
    let prompts = trajectories / group;
    match given {
        Some(key) if prompts.fract() != 0.0 || prompts < 1.0 => {
            t.refuse(
                &key,
                format!(
                    "it counts trajectories, which come in groups of {group}: take a multiple of {group}"
                ),
            );
        }
        Some(key) => {
            t.set(&[&key], "train.ppo_mini_batch_size", &prompts.to_string());
            t.remark(
                &key,
                &format!(
                    "it counts trajectories there and prompts here: {trajectories} in groups of {group}"
                ),
            );
        }
        None if prompts.fract() == 0.0 && prompts >= 1.0 => {
            t.default(Owner::Ragen, MINI[0], "train.ppo_mini_batch_size", &prompts.to_string());
            t.remark(MINI[0], &format!("RAGEN's default of 32 trajectories, in groups of {group}"));
        }
        None => t.absent(
            Owner::Ragen,
            MINI[0],
            &[("train.ppo_mini_batch_size", "null")],
            &format!(
                "RAGEN's default of 32 trajectories is no number of groups of {group}: one update a step"
            ),
        ),
    }
    for key in MINI {
        t.part_of(key, MINI[0]);
    }
}

/// The critic's mini-batches count trajectories too.
fn critic_size(group: Option<f64>, t: &mut Translator) {
    if t.is_noted(RAGEN_MINI) {
        return;
    }
    let Some(trajectories) = t.number(RAGEN_MINI) else {
        t.no_effect(RAGEN_MINI, "null leaves the default");
        return;
    };
    match group.map(|group| trajectories / group) {
        Some(prompts) if prompts >= 1.0 && prompts.fract() == 0.0 => {
            t.set(&[RAGEN_MINI], "critic.ppo_mini_batch_size", &prompts.to_string());
            t.remark(RAGEN_MINI, "it counts trajectories there and prompts here");
        }
        _ => t.refuse(
            RAGEN_MINI,
            "in RAGEN it counts trajectories: give a multiple of es_manager.train.group_size, and that beside it",
        ),
    }
}

/// Sets the defaults of a whole configuration that leaves keys out.
pub(crate) fn defaults(t: &mut Translator) {
    let owner = Owner::Ragen;
    estimator(owner, t);
    for (key, _, ours, value) in DEFAULTS {
        t.default(owner, key, ours, value);
    }
    let played = Played::by(t);
    let is_played = played != Played::Nothing;
    if played == Played::Tag && !t.given.iter().any(|given| given.rule == Some(ENVIRONMENT.name)) {
        environment(t);
    }
    let has_validation = t.has_set("data.val") || is_played;
    if is_played {
        episodes::defaults(t);
    } else if has_validation {
        t.default(owner, "es_manager.val.env_groups", "validate.max_prompts", "512");
    }
    if has_validation {
        for (key, _, ours, value) in VALIDATION_DEFAULTS {
            t.default(owner, key, ours, value);
        }
    }
    for (what, _, ours, value) in STOPS.into_iter().take(if has_validation { 2 } else { 1 }) {
        t.default(owner, what, ours, value);
    }
    t.remark(STOPS[0].0, "always on in RAGEN; `form: attempts` is what its filtering document says");
    t.remark(STOPS[1].0, "always on in RAGEN");
    if is_played {
        return;
    }
    if t.find("agent_proxy.max_turn").is_none() {
        t.absent_without_effect(
            owner,
            "agent_proxy.max_turn",
            "RAGEN's default is 5 turns in an environment: the prompts are rows of data, each answered in one turn",
        );
    }
    by_source(
        owner,
        "custom_envs",
        "warning: RAGEN's environments give the reward, and data are given instead: the verifier of each row by its \
         data_source, as in verl, unless `reward` names another, such as `reward=[{kind: math}]`",
        t,
    );
}
