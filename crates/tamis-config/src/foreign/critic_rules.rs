//! The critic of verl and EasyR1, and RAGEN's advantages over turns.

use super::Owner;
use super::rules::schedule;
use super::translate::{Translator, is_hub_name};

const ESTIMATOR: &str = "algorithm.adv_estimator";
const WARMUP: &str = "trainer.critic_warmup";

/// verl's keys of the critic by ours.
const VERL: &[(&str, &str)] = &[
    ("critic.model.path", "critic.model.path"),
    ("critic.optim.lr", "critic.optimizer.learning_rate"),
    ("critic.optim.betas", "critic.optimizer.betas"),
    ("critic.optim.weight_decay", "critic.optimizer.weight_decay"),
    ("critic.grad_clip", "critic.optimizer.max_grad_norm"),
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
const VERL_SCHEDULE: [&str; 5] = [
    "critic.optim.lr_warmup_steps",
    "critic.optim.lr_warmup_steps_ratio",
    "critic.optim.min_lr_ratio",
    "critic.optim.lr_scheduler_type",
    "critic.optim.warmup_style",
];

/// The critic's keys, where there is one.
pub(super) fn critic(owner: Owner, t: &mut Translator) {
    let keys = if owner == Owner::EasyR1 { EASYR1 } else { VERL };
    let has_critic = match t.text(ESTIMATOR).as_deref() {
        Some("gae" | "bi_level_gae") => true,
        Some(_) => false,
        // Where it is not given, a whole configuration has its owner's default: gae, and grpo in EasyR1.
        None => !(t.whole && owner == Owner::EasyR1),
    };
    if !has_critic {
        let all = keys.iter().map(|(key, _)| *key).chain(VERL_SCHEDULE).chain([WARMUP]);
        for key in all {
            t.no_effect(key, "the estimator of the advantages has no critic");
        }
        return;
    }
    for (key, ours) in keys {
        let Some(given) = t.find(key) else { continue };
        let node = given.node.clone();
        if node.is_null() && !ours.ends_with("max_grad_norm") {
            t.no_effect(key, "null leaves the default");
            continue;
        }
        t.set_node(&[key], ours, node);
        if *ours == "critic.model.path" && t.text(key).is_some_and(|path| is_hub_name(&path)) {
            t.remark(key, "a name on a hub is no file: download it and put its path here");
        }
    }
    if let Some(steps) = t.number(WARMUP) {
        t.set(&[WARMUP], "critic.warmup_steps", &(steps - 1.0).max(0.0).to_string());
        if steps >= 1.0 {
            t.remark(WARMUP, &format!("{owner} trains the policy from step {steps} on"));
        }
    }
    if owner != Owner::EasyR1 && t.first_given(&VERL_SCHEDULE).is_some() {
        let [steps, ratio, min_ratio, kinds @ ..] = VERL_SCHEDULE;
        let total = ["trainer.total_training_steps"];
        schedule("critic.lr_schedule", (steps, ratio, min_ratio, &kinds, &total), t);
    }
}

/// RAGEN's switch from GAE over tokens to that over turns.
pub(super) fn bi_level_gae(t: &mut Translator) {
    const SWITCH: &str = "algorithm.bi_level_gae";
    if t.flag(SWITCH, false) {
        t.set(&[SWITCH], "objective.advantage.estimator", "bi_level_gae");
    } else {
        t.no_effect(SWITCH, "advantages are not over turns");
    }
}
