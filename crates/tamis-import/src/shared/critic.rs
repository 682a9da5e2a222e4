//! The critic of verl and EasyR1.

use tamis_core::advantage::Column;

use super::advantage::estimator_of_ours;
use super::learning_rate::schedule;
use crate::owner::Owner;
use crate::translator::Translator;
use tamis_config::tree::parse_bool;

pub(crate) const ESTIMATOR: &str = "algorithm.adv_estimator";

const WARMUP: &str = "trainer.critic_warmup";

const ENABLE: &str = "critic.enable";

/// The critic's prompts an update, which RAGEN counts in trajectories.
pub(crate) const RAGEN_MINI: &str = "critic.ppo_mini_batch_size";

/// verl's keys of the critic by ours.
const VERL: &[(&str, &str)] = &[
    ("critic.model.path", "critic.model.path"),
    ("critic.optim.lr", "critic.optimizer.learning_rate"),
    ("critic.optim.betas", "critic.optimizer.betas"),
    ("critic.optim.weight_decay", "critic.optimizer.weight_decay"),
    ("critic.optim.eps", "critic.optimizer.epsilon"),
    ("critic.grad_clip", "critic.optimizer.max_grad_norm"),
    ("critic.optim.clip_grad", "critic.optimizer.max_grad_norm"),
    ("critic.ppo_mini_batch_size", "critic.ppo_mini_batch_size"),
    ("critic.ppo_epochs", "critic.ppo_epochs"),
    ("critic.cliprange_value", "critic.cliprange_value"),
    ("critic.loss_agg_mode", "critic.aggregation"),
];

/// EasyR1's.
const EASYR1: &[(&str, &str)] = &[
    ("worker.critic.model.model_path", "critic.model.path"),
    ("worker.critic.optim.lr", "critic.optimizer.learning_rate"),
    ("worker.critic.optim.betas", "critic.optimizer.betas"),
    ("worker.critic.optim.weight_decay", "critic.optimizer.weight_decay"),
    ("worker.critic.max_grad_norm", "critic.optimizer.max_grad_norm"),
    ("worker.critic.global_batch_size", "critic.ppo_mini_batch_size"),
    ("worker.critic.ppo_epochs", "critic.ppo_epochs"),
    ("worker.critic.cliprange_value", "critic.cliprange_value"),
];

/// verl's learning-rate schedule of the critic.
const VERL_SCHEDULE: [&str; 6] = [
    "critic.optim.lr_warmup_steps",
    "critic.optim.lr_warmup_steps_ratio",
    "critic.optim.min_lr_ratio",
    "critic.optim.lr_decay_style",
    "critic.optim.warmup_style",
    "critic.optim.lr_scheduler_type",
];

/// EasyR1's.
const EASYR1_SCHEDULE: [&str; 4] = [
    "worker.critic.optim.lr_warmup_steps",
    "worker.critic.optim.lr_warmup_ratio",
    "worker.critic.optim.min_lr_ratio",
    "worker.critic.optim.lr_scheduler_type",
];

/// EasyR1's averaging of the value loss; verl's names are ours.
const EASYR1_AVERAGE: &str = "worker.critic.loss_avg_mode";

/// The critic's keys, where there is one.
pub(crate) fn critic(owner: Owner, t: &mut Translator) {
    let is_enabled = t.text(ENABLE).is_none() || t.flag(ENABLE, true);
    if !is_enabled && has_critic(owner, t) && (t.whole || t.text(ESTIMATOR).is_some()) {
        t.refuse(
            ENABLE,
            "the estimator of the advantages reads a critic's values: choose one without, such as grpo",
        );
    }
    t.no_effect(ENABLE, "there is a critic where the estimator needs one, and nowhere else");
    let keys = if owner == Owner::EasyR1 { EASYR1 } else { VERL };
    let schedule_keys: &[&str] = if owner == Owner::EasyR1 { &EASYR1_SCHEDULE } else { &VERL_SCHEDULE };
    if !has_critic(owner, t) {
        let all = keys.iter().map(|(key, _)| key).chain(schedule_keys).chain(&[WARMUP, EASYR1_AVERAGE]);
        for key in all {
            t.no_effect(key, "the estimator of the advantages has no critic");
        }
        return;
    }
    for (key, ours) in keys {
        // RAGEN counts trajectories: with its other sizes.
        if *key == RAGEN_MINI && t.has_key_of(Owner::Ragen) {
            continue;
        }
        let Some(given) = t.find(key) else { continue };
        let node = given.node.clone();
        if node.is_null() && !ours.ends_with("max_grad_norm") {
            t.no_effect(key, "null leaves the default");
            continue;
        }
        t.set_node(&[key], ours, node);
    }
    if t.find(EASYR1_AVERAGE).is_some() {
        loss_average(EASYR1_AVERAGE, "critic.aggregation", t);
    }
    if let Some(steps) = t.number(WARMUP) {
        t.set(&[WARMUP], "critic.warmup_steps", &(steps - 1.0).max(0.0).to_string());
        if steps >= 1.0 {
            t.remark(WARMUP, &format!("{owner} trains the policy from step {steps} on"));
        }
    }
    if t.first_given(schedule_keys).is_some()
        && let [steps, ratio, min_ratio, kinds @ ..] = schedule_keys
    {
        let total = if owner == Owner::EasyR1 { "trainer.max_steps" } else { "trainer.total_training_steps" };
        schedule("critic.lr_schedule", (steps, ratio, min_ratio, kinds, &[total]), t);
    }
}

/// Whether the estimator that is asked for has a critic. Where none is, a whole configuration has its owner's
/// default: gae, and grpo in EasyR1.
fn has_critic(owner: Owner, t: &Translator) -> bool {
    match t.text(ESTIMATOR).as_deref() {
        Some(name) => estimator_of_ours(name).is_some_and(|ours| ours.needs().contains(&Column::Values)),
        None => is_over_turns(t) || !(t.whole && owner == Owner::EasyR1),
    }
}

/// RAGEN's switch from GAE over tokens to that over turns.
pub(crate) const TURNS: &str = "algorithm.bi_level_gae";

/// Whether it is on and switches something: it is read with gae alone, the default of a whole command.
pub(crate) fn is_over_turns(t: &Translator) -> bool {
    let is_gae = match t.text(ESTIMATOR).as_deref() {
        Some(name) => name == "gae",
        None => t.whole,
    };
    is_gae && t.text(TURNS).is_some_and(|text| parse_bool(&text) == Some(true))
}

/// The policy's `loss_avg_mode`, or the critic's, into one of our aggregations.
pub(crate) fn loss_average(key: &str, ours: &str, t: &mut Translator) {
    match t.text(key).as_deref() {
        None | Some("token") => t.set(&[key], ours, "token-mean"),
        Some("seq") => t.set(&[key], ours, "seq-mean-token-mean"),
        Some(_) => t.bad_value(key, "token or seq"),
    }
}
