//! verl's filter, KL, batches, learning rate and the rest of its keys that mean something only together.

use super::asynchronous::is_asynchronous;
use crate::foreign::key::Rule;
use crate::foreign::owner::Owner;
use crate::foreign::shared::defaults::{by_source, estimator, mini_batch};
use crate::foreign::shared::kl::{set_controller, set_estimator};
use crate::foreign::shared::learner::{AdapterKeys, adapter, of_torch, offload_reference};
use crate::foreign::shared::learning_rate::schedule;
use crate::foreign::shared::{critic, images, run, servers};
use crate::foreign::translator::{Translator, limit_text};

/// An adapter (LoRA).
pub(super) const ADAPTER: Rule = Rule::new(1, "adapter", |t| adapter(&ADAPTER_KEYS, true, t));

const ADAPTER_KEYS: AdapterKeys = AdapterKeys {
    leading: "actor_rollout_ref.model.lora_rank",
    rank: ("actor_rollout_ref.model.lora_rank", 0.0),
    alpha: ("actor_rollout_ref.model.lora_alpha", 16.0),
    targets: "actor_rollout_ref.model.target_modules",
    default_targets: "null",
    refused: &[(
        "actor_rollout_ref.model.exclude_modules",
        &["null", "None", "[]", ""],
        "layers with an adapter are named, not those without: give target_modules",
    )],
    ignored: &[],
};

/// The attention of the policy's model.
pub(super) const ATTENTION: Rule = Rule::new(2, "attention", |t| {
    const KEY: &str = "actor_rollout_ref.model.override_config.attn_implementation";
    if let Some(name) = t.text(KEY) {
        of_torch(KEY, "learner.attention", &name, "the native engine has one attention", t);
    }
    t.no_effect(KEY, "null leaves the default");
});

/// The place of the reference's weights.
pub(super) const OFFLOAD: Rule =
    Rule::new(2, "offload", |t| offload_reference("actor_rollout_ref.ref.fsdp_config.param_offload", t));

/// Whether the vision tower learns.
pub(super) const FREEZE_VISION: Rule =
    Rule::new(2, "vision tower", |t| images::freeze(t, "actor_rollout_ref.actor.freeze_vision_tower"));

/// The group filter.
pub(super) const FILTER_GROUPS: Rule = Rule::new(2, "filter groups", filter_groups);

fn filter_groups(t: &mut Translator) {
    const ENABLE: &str = "algorithm.filter_groups.enable";
    const METRIC: &str = "algorithm.filter_groups.metric";
    const LIMIT: &str = "algorithm.filter_groups.max_num_gen_batches";
    const IN_FLIGHT: &str = "algorithm.filter_groups.max_inflight_gen_batches";
    let enabled = t.flag(ENABLE, false);
    if !enabled {
        if t.find(ENABLE).is_some() {
            t.set(&[ENABLE], "filter", "null");
        }
        for key in [METRIC, LIMIT, IN_FLIGHT] {
            t.no_effect(key, "algorithm.filter_groups.enable is false");
        }
        return;
    }
    t.set(&[ENABLE], "filter.kind", "variance");
    t.set(&[ENABLE], "filter.singleton", "keep");
    t.set(&[ENABLE], "filter.tolerance", "0.0");
    t.set(&[ENABLE], "schedule.refill", "true");
    t.set(&[ENABLE], "schedule.on_limit", "error");
    t.set(&[ENABLE], "schedule.on_empty_round", "retry");
    t.set(&[ENABLE], "schedule.on_exhausted", "next_epoch");
    let is_asynchronous = is_asynchronous(t);
    if !is_asynchronous {
        t.set(&[ENABLE], "schedule.surplus", "discard");
    }
    t.set(&[ENABLE], "schedule.order", "dispatch");
    match t.text(METRIC).as_deref() {
        // verl 0.9.1's own default; null, the one before, would be an error there.
        None if t.find(METRIC).is_none() => {
            t.set(&[ENABLE], "filter.metric", "seq_reward");
            t.remark(
                ENABLE,
                "no metric is given: verl takes the reward before the KL; `acc` is the raw outcome alone",
            );
        }
        None => {
            t.set(&[METRIC, ENABLE], "filter.metric", "null");
            t.remark(ENABLE, "no metric is given: the raw outcome is taken, `acc`, otherwise `score`");
        }
        Some("reward") => {
            t.set(&[METRIC], "filter.metric", "seq_reward");
            t.remark(METRIC, "the reward before the KL");
        }
        Some(metric) => t.set(&[METRIC], "filter.metric", metric),
    }
    let limit = t.number(LIMIT).unwrap_or(0.0);
    t.set(&[LIMIT, ENABLE], "schedule.max_num_gen_batches", &limit_text(limit));
    if is_asynchronous {
        t.no_effect(IN_FLIGHT, "verl's synchronous trainer alone reads it");
    }
    if let Some(batches) = t.number(IN_FLIGHT).filter(|_| !is_asynchronous) {
        // verl counts prompts in flight by the batch that is trained, we by the round.
        let (train, round) = (t.number("data.train_batch_size"), t.number("data.gen_batch_size"));
        let rounds = match (train, round) {
            (Some(train), Some(round)) if round > 0.0 => (batches * train / round).round().max(1.0),
            _ => batches,
        };
        t.set(&[IN_FLIGHT], "schedule.rounds_in_flight", &rounds.to_string());
        if (rounds - batches).abs() > 0.0 {
            t.remark(IN_FLIGHT, "as many prompts: verl counts batches of data.train_batch_size, and rounds are of data.gen_batch_size");
        }
    }
    t.no_effect(IN_FLIGHT, "null leaves the default");
}

/// The KL, in the loss or in the reward.
pub(super) const KL: Rule = Rule::new(2, "kl", kl);

fn kl(t: &mut Translator) {
    const LOSS: &str = "actor_rollout_ref.actor.use_kl_loss";
    const LOSS_COEF: &str = "actor_rollout_ref.actor.kl_loss_coef";
    const LOSS_TYPE: &str = "actor_rollout_ref.actor.kl_loss_type";
    const REWARD: &str = "algorithm.use_kl_in_reward";
    const PENALTY: &str = "algorithm.kl_penalty";
    const COEF: &str = "algorithm.kl_ctrl.kl_coef";
    const TYPE: &str = "algorithm.kl_ctrl.type";
    const HORIZON: &str = "algorithm.kl_ctrl.horizon";
    const TARGET: &str = "algorithm.kl_ctrl.target_kl";
    // RAGEN has defaults of its own for a KL that is switched on.
    let (default_coefficient, default_type) =
        if t.has_key_of(Owner::Ragen) { (0.0, "kl") } else { (0.001, "low_var_kl") };
    let (in_loss, in_reward) = (t.flag(LOSS, false), t.flag(REWARD, false));
    if in_loss && in_reward {
        t.refuse(REWARD, "use_kl_loss is on too, and the KL enters in one place");
        return;
    }
    if in_loss {
        t.set(&[LOSS], "objective.kl.in", "loss");
        let coefficient = t.number(LOSS_COEF).unwrap_or(default_coefficient);
        t.set(&[LOSS_COEF, LOSS], "objective.kl.coefficient", &coefficient.to_string());
        set_estimator(t, LOSS_TYPE, LOSS, default_type);
    } else if in_reward {
        t.set(&[REWARD], "objective.kl.in", "reward");
        set_estimator(t, PENALTY, REWARD, "kl");
        set_controller(t, REWARD, COEF, default_coefficient, [TYPE, HORIZON, TARGET]);
    } else if let Some(key) = t.first_given(&[LOSS, REWARD]) {
        t.set(&[&key], "objective.kl.in", "none");
    }
    for key in [LOSS, LOSS_COEF, LOSS_TYPE] {
        t.no_effect(key, "actor_rollout_ref.actor.use_kl_loss is false");
    }
    for key in [REWARD, PENALTY, COEF, TYPE, HORIZON, TARGET] {
        t.no_effect(key, "algorithm.use_kl_in_reward is false");
    }
}

/// Micro-batches by tokens or by number.
pub(super) const MICRO_BATCH: Rule = Rule::new(2, "micro-batch", micro_batch);

fn micro_batch(t: &mut Translator) {
    const DYNAMIC: &str = "actor_rollout_ref.actor.use_dynamic_bsz";
    const TOKENS: &str = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu";
    const MICRO: &str = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu";
    const GLOBAL: &str = "actor_rollout_ref.actor.ppo_micro_batch_size";
    if t.flag(DYNAMIC, false) {
        let tokens = t.text(TOKENS).unwrap_or_else(|| "16384".to_owned());
        t.set(&[TOKENS, DYNAMIC], "train.micro_batch_tokens", &tokens);
        t.part_of(DYNAMIC, TOKENS);
        for key in [MICRO, GLOBAL] {
            t.no_effect(key, "use_dynamic_bsz is true");
        }
        return;
    }
    for key in [MICRO, GLOBAL] {
        if let Some(size) = t.text(key) {
            t.set(&[key], "train.micro_batch_size", &size);
            let remark = if key == MICRO {
                "trajectories of one pass of each rank"
            } else {
                "trajectories of one pass of each rank; verl counts those of all ranks together"
            };
            t.remark(key, remark);
        }
        t.no_effect(key, "null leaves the default");
    }
    t.no_effect(DYNAMIC, "micro-batches are cut by tokens unless their size is set");
    t.no_effect(TOKENS, "use_dynamic_bsz is false");
}

/// Learning-rate schedule and warm-up.
pub(super) const LEARNING_RATE: Rule = Rule::new(2, "learning rate", learning_rate);

fn learning_rate(t: &mut Translator) {
    const NORM: &str = "actor_rollout_ref.actor.optim.clip_grad";
    let keys = (
        "actor_rollout_ref.actor.optim.lr_warmup_steps",
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
        "actor_rollout_ref.actor.optim.min_lr_ratio",
        &[
            "actor_rollout_ref.actor.optim.lr_decay_style",
            "actor_rollout_ref.actor.optim.warmup_style",
            "actor_rollout_ref.actor.optim.lr_scheduler_type",
        ][..],
        &["trainer.total_training_steps"][..],
    );
    schedule("train.lr_schedule", keys, t);
    if let Some(norm) = t.text(NORM) {
        t.set(&[NORM], "train.optimizer.max_grad_norm", &norm);
        t.no_effect("actor_rollout_ref.actor.grad_clip", "optim.clip_grad, which replaced it, is given");
    }
    t.no_effect(NORM, "null leaves the default");
}

/// Treatment of prompts beyond the limit.
pub(super) const LONG_PROMPTS: Rule = Rule::new(2, "long prompts", long_prompts);

fn long_prompts(t: &mut Translator) {
    const TRUNCATION: &str = "data.truncation";
    const DROP: &str = "data.filter_overlong_prompts";
    if t.flag(DROP, false) {
        t.set(&[DROP], "data.overlong_prompts", "drop");
        t.no_effect(TRUNCATION, "data.filter_overlong_prompts drops longer prompts");
        return;
    }
    if let Some(side) = t.text(TRUNCATION) {
        t.set(&[TRUNCATION], "data.overlong_prompts", &side);
    }
    t.no_effect(DROP, "data.truncation says what happens");
}

/// Greedy or sampled validation.
pub(super) const VALIDATION: Rule = Rule::new(2, "validation", validation);

fn validation(t: &mut Translator) {
    const TEMPERATURE: &str = "actor_rollout_ref.rollout.val_kwargs.temperature";
    const SAMPLE: &str = "actor_rollout_ref.rollout.val_kwargs.do_sample";
    const FOLDER: &str = "trainer.validation_data_dir";
    if let Some(folder) = t.find(FOLDER).map(|given| given.node.clone()) {
        t.set(&[FOLDER], "validate.save_samples", if folder.is_null() { "false" } else { "true" });
        if !folder.is_null() {
            t.remark(FOLDER, "to `validation/` in the run folder");
        }
    }
    if t.first_given(&[SAMPLE, TEMPERATURE]).is_none() && !t.whole {
        return;
    }
    // RAGEN samples in validation, at 0.5, unless told otherwise.
    let is_ragen = t.has_key_of(Owner::Ragen);
    if t.flag(SAMPLE, is_ragen) {
        let temperature = t.number(TEMPERATURE).unwrap_or(if is_ragen { 0.5 } else { 0.0 });
        t.set(&[TEMPERATURE, SAMPLE], "validate.temperature", &temperature.to_string());
        t.part_of(SAMPLE, TEMPERATURE);
    } else {
        t.set(&[SAMPLE, TEMPERATURE], "validate.temperature", "0.0");
        if t.find(SAMPLE).is_none() {
            t.remark(TEMPERATURE, "val_kwargs.do_sample is False unless given: validation is greedy");
        }
        t.no_effect(TEMPERATURE, "do_sample is false: validation is greedy");
    }
}

/// Number of checkpoints to keep.
pub(super) const KEEP_LAST: Rule = Rule::new(2, "keep last", keep_last);

fn keep_last(t: &mut Translator) {
    const REMOVE: &str = "trainer.remove_previous_ckpt_in_save";
    if t.flag(REMOVE, false) {
        t.set(&[REMOVE], "checkpoint.keep_last", "1");
    }
    t.no_effect(REMOVE, "every checkpoint is kept, unless `checkpoint.keep_last` says how many");
}

/// Top-k, which -1 switches off.
pub(super) const TOP_K: Rule = Rule::new(2, "top-k", |t| run::top_k(t, "actor_rollout_ref.rollout.top_k"));

/// Loggers of metrics.
pub(super) const LOGGERS: Rule = Rule::new(2, "loggers", |t| run::loggers(t, "trainer.logger", &[]));

/// Project and experiment.
pub(super) const NAMES: Rule = Rule::new(2, "names", run::names);

/// The engine that generates, as servers.
pub(super) const SERVERS: Rule = Rule::new(2, servers::RULE, |t| servers::servers(Owner::Verl, t));

/// The critic, which some estimators have: after them.
pub(super) const CRITIC: Rule = Rule::new(3, "critic", |t| critic::critic(Owner::Verl, t));

/// Sets the defaults of a whole configuration that leaves keys out.
pub(in crate::foreign) fn defaults(t: &mut Translator) {
    let owner = Owner::Verl;
    estimator(owner, t);
    t.default(owner, "data.train_batch_size", "data.train_batch_size", "1024");
    mini_batch(owner, "actor_rollout_ref.actor.ppo_mini_batch_size", t);
    t.default(owner, "actor_rollout_ref.rollout.n", "rollout.n", "1");
    t.default(owner, "trainer.total_epochs", "train.total_epochs", "30");
    by_source(
        owner,
        "custom_reward_function.path",
        "verl's default: the verifier of each row by its data_source",
        t,
    );
}
