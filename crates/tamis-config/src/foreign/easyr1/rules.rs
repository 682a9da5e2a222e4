//! EasyR1's filters, KL, rewards and lengths, and the rest of its keys that mean something only together.

use tamis_core::advantage::{Advantage, Column};

use crate::foreign::key::Rule;
use crate::foreign::owner::Owner;
use crate::foreign::shared::defaults::{mini_batch, same_as_training};
use crate::foreign::shared::kl::{set_controller, set_estimator};
use crate::foreign::shared::learner::{AdapterKeys, adapter, offload_reference};
use crate::foreign::shared::learning_rate::schedule;
use crate::foreign::shared::{advantage, critic, images, run, servers};
use crate::foreign::translator::{Translator, limit_text, quote};

/// The advantage estimator, which may be a whole algorithm: before every other rule.
pub(super) const ADVANTAGE: Rule = Rule::new(1, "advantage", advantage::estimator);

/// An adapter (LoRA).
pub(super) const ADAPTER: Rule = Rule::new(1, "adapter", |t| adapter(&ADAPTER_KEYS, true, t));

const ADAPTER_KEYS: AdapterKeys = AdapterKeys {
    leading: "worker.actor.model.lora.rank",
    rank: ("worker.actor.model.lora.rank", 0.0),
    alpha: ("worker.actor.model.lora.alpha", 64.0),
    targets: "worker.actor.model.lora.target_modules",
    default_targets: "null",
    refused: &[(
        "worker.actor.model.lora.exclude_modules",
        &["null", "None", "[]", ""],
        "layers with an adapter are named, not those without: give target_modules",
    )],
    ignored: &[],
};

/// The place of the reference's weights.
pub(super) const OFFLOAD: Rule =
    Rule::new(2, "offload", |t| offload_reference("worker.ref.offload.offload_params", t));

/// The dynamic sampling of EasyR1's fork.
pub(super) const DYNAMIC_SAMPLE: Rule = Rule::new(2, "dynamic sample", dynamic_sample);

fn dynamic_sample(t: &mut Translator) {
    const ENABLE: &str = "algorithm.use_dynamic_sample";
    const LIMIT: &str = "algorithm.dynamic_sample_max_gen_batches";
    if !t.flag(ENABLE, false) {
        if t.find(ENABLE).is_some() && t.find("algorithm.online_filtering").is_none() {
            t.set(&[ENABLE], "filter", "null");
        }
        t.no_effect(ENABLE, "that is the default");
        t.no_effect(LIMIT, "algorithm.use_dynamic_sample is false");
        return;
    }
    for (ours, value) in [
        ("filter.kind", "variance"),
        ("filter.metric", "seq_reward"),
        ("filter.singleton", "keep"),
        ("filter.tolerance", "0.0"),
        ("schedule.refill", "true"),
        ("schedule.on_limit", "use_partial"),
        ("schedule.on_empty_round", "retry"),
        ("schedule.on_exhausted", "use_partial"),
        ("schedule.surplus", "discard"),
        ("schedule.order", "dispatch"),
    ] {
        t.set(&[ENABLE], ours, value);
    }
    let limit = t.number(LIMIT).unwrap_or(3.0);
    t.set(&[LIMIT, ENABLE], "schedule.max_num_gen_batches", &limit_text(limit));
}

/// EasyR1's own filter.
pub(super) const ONLINE_FILTERING: Rule = Rule::new(2, "online filtering", online_filtering);

fn online_filtering(t: &mut Translator) {
    const ENABLE: &str = "algorithm.online_filtering";
    const KEY: &str = "algorithm.filter_key";
    const LOW: &str = "algorithm.filter_low";
    const HIGH: &str = "algorithm.filter_high";
    const LIMIT: &str = "trainer.max_try_make_batch";
    if !t.flag(ENABLE, false) {
        t.no_effect(ENABLE, "no group is left out");
        for key in [KEY, LOW, HIGH, LIMIT] {
            t.no_effect(key, "algorithm.online_filtering is false");
        }
        return;
    }
    if t.flag("algorithm.use_dynamic_sample", false) {
        t.refuse(ENABLE, "algorithm.use_dynamic_sample is on too, and there is one filter");
        return;
    }
    for (ours, value) in [
        ("filter.kind", "mean_range"),
        ("filter.bounds", "open"),
        ("schedule.refill", "true"),
        ("schedule.on_limit", "error"),
        ("schedule.on_empty_round", "error"),
        ("schedule.on_exhausted", "next_epoch"),
        ("schedule.surplus", "discard"),
    ] {
        t.set(&[ENABLE], ours, value);
    }
    let metric = match t.text(KEY).as_deref() {
        None | Some("overall") => "seq_reward".to_owned(),
        // A reward function of EasyR1's gives these numbers itself; ours is the raw outcome.
        Some("accuracy" | "accuracy_normalized") if t.text("worker.reward.reward_function").is_none() => {
            "acc".to_owned()
        }
        Some(other) => other.to_owned(),
    };
    t.set(&[KEY, ENABLE], "filter.metric", &metric);
    let low = t.number(LOW).unwrap_or(0.01);
    let high = t.number(HIGH).unwrap_or(0.99);
    t.set(&[LOW, ENABLE], "filter.low", &low.to_string());
    t.set(&[HIGH, ENABLE], "filter.high", &high.to_string());
    let limit = t.number(LIMIT).unwrap_or(20.0);
    t.set(&[LIMIT, ENABLE], "schedule.max_num_gen_batches", &limit_text(limit));
}

/// The KL, in the loss or in the reward.
pub(super) const KL: Rule = Rule::new(2, "kl", kl);

fn kl(t: &mut Translator) {
    const DISABLE: &str = "algorithm.disable_kl";
    const LOSS: &str = "algorithm.use_kl_loss";
    const PENALTY: &str = "algorithm.kl_penalty";
    const COEF: &str = "algorithm.kl_coef";
    const TYPE: &str = "algorithm.kl_type";
    const HORIZON: &str = "algorithm.kl_horizon";
    const TARGET: &str = "algorithm.kl_target";
    let all = [DISABLE, LOSS, PENALTY, COEF, TYPE, HORIZON, TARGET];
    if t.flag(DISABLE, false) {
        t.set(&[DISABLE], "objective.kl.in", "none");
        for key in all {
            t.no_effect(key, "algorithm.disable_kl is true");
        }
        return;
    }
    let place = if t.flag(LOSS, false) { "loss" } else { "reward" };
    t.set(&[LOSS, DISABLE, COEF, PENALTY], "objective.kl.in", place);
    let switch = t.first_given(&all).unwrap_or_default();
    set_estimator(t, PENALTY, &switch, "kl");
    if place == "reward" {
        set_controller(t, &switch, COEF, 0.001, [TYPE, HORIZON, TARGET]);
    } else {
        let coefficient = t.number(COEF).unwrap_or(0.001);
        t.set(&[COEF, &switch], "objective.kl.coefficient", &coefficient.to_string());
        for key in [TYPE, HORIZON, TARGET] {
            t.no_effect(key, "a KL in the loss has a fixed coefficient");
        }
    }
}

/// Reward functions.
pub(super) const REWARDS: Rule = Rule::new(2, "rewards", rewards);

fn rewards(t: &mut Translator) {
    const FUNCTION: &str = "worker.reward.reward_function";
    const NAME: &str = "worker.reward.reward_function_name";
    const KWARGS: &str = "worker.reward.reward_function_kwargs";
    const TYPE: &str = "worker.reward.reward_type";
    let mut kwargs = serde_json::Map::new();
    let mut others = vec![NAME.to_owned(), TYPE.to_owned()];
    for given in &t.given {
        if given.key == KWARGS {
            kwargs.extend(given.node.to_json().as_object().cloned().unwrap_or_default());
        } else if let Some(name) = given.key.strip_prefix(KWARGS).and_then(|rest| rest.strip_prefix('.')) {
            kwargs.insert(name.to_owned(), given.node.to_json());
        } else {
            continue;
        }
        others.push(given.key.clone());
    }
    let Some(text) = t.text(FUNCTION) else {
        t.no_effect(FUNCTION, "null leaves the default");
        for key in others {
            t.no_effect(&key, "there is no reward function");
        }
        return;
    };
    // `file.py:function`, as EasyR1 takes it apart.
    let (path, name) =
        text.rsplit_once(':').map_or((text.as_str(), None), |(path, name)| (path, Some(name.to_owned())));
    let name = name.or_else(|| t.text(NAME)).unwrap_or_else(|| "main".to_owned());
    let style = match t.text(TYPE).as_deref() {
        None | Some("batch" | "function") => "easyr1",
        Some("sequential") => "easyr1_sequential",
        Some(_) => {
            t.bad_value(TYPE, "batch or sequential");
            return;
        }
    };
    let mut item = serde_json::json!({"kind": "python", "path": path, "function": name, "style": style});
    if !kwargs.is_empty() {
        item["kwargs"] = serde_json::Value::Object(kwargs);
    }
    t.set(&[FUNCTION], "reward", &serde_json::Value::Array(vec![item]).to_string());
    for key in others {
        t.part_of(&key, FUNCTION);
    }
}

/// Averaging of losses: over tokens or over sequences.
pub(super) const LOSS_AVERAGE: Rule = Rule::new(2, "loss average", |t| {
    critic::loss_average("worker.actor.loss_avg_mode", "objective.aggregation", t);
});

/// The policy loss.
pub(super) const LOSS: Rule = Rule::new(2, "loss", loss);

/// EasyR1's `loss_type`.
fn loss(t: &mut Translator) {
    const KEY: &str = "worker.actor.loss_type";
    let (kind, importance) = match t.text(KEY).as_deref() {
        None | Some("default") => {
            t.no_effect(KEY, "the clipped ratio is the default");
            return;
        }
        Some("gspo") => ("clip", "sequence"),
        Some("gspo_token") => ("clip", "sequence_token"),
        Some("cispo") => ("cispo", "token"),
        Some("sapo") => ("sapo", "token"),
        Some(_) => {
            t.refuse(KEY, "the losses are default, gspo, gspo_token, cispo and sapo");
            return;
        }
    };
    t.set(&[KEY], "objective.loss.kind", kind);
    if importance != "token" {
        t.set(&[KEY], "objective.importance", importance);
    }
}

/// Shares of a group's trajectories.
pub(super) const KEEP_RATIOS: Rule = Rule::new(2, "keep ratios", keep_ratios);

/// EasyR1's shares of a group's trajectories.
fn keep_ratios(t: &mut Translator) {
    for (key, kind) in
        [("algorithm.keep_neg_ratio", "keep_neg_ratio"), ("algorithm.keep_pos_ratio", "keep_pos_ratio")]
    {
        match t.number(key) {
            Some(ratio) if ratio < 1.0 => {
                t.append(&[key], "objective.shaping", &format!("{{kind: {kind}, ratio: {ratio}}}"));
            }
            _ => t.no_effect(key, "1 keeps all"),
        }
    }
}

/// Epochs and steps.
pub(super) const LENGTH: Rule = Rule::new(2, "length", length);

/// Length of a run: EasyR1's steps go before its epochs, which older versions call episodes.
fn length(t: &mut Translator) {
    const MAX: &str = "trainer.max_steps";
    const EPOCHS: [&str; 2] = ["trainer.total_epochs", "trainer.total_episodes"];
    if let Some(steps) = t.text(MAX) {
        t.set(&[MAX], "train.total_steps", &steps);
        for key in EPOCHS {
            t.no_effect(key, "trainer.max_steps is given, and goes before it");
        }
    }
    t.no_effect(MAX, "null leaves it to the epochs");
    for key in EPOCHS {
        if let Some(epochs) = t.text(key).filter(|_| !t.has_set("train.total_steps")) {
            t.set(&[key], "train.total_epochs", &epochs);
        }
        t.no_effect(key, "null leaves the default");
    }
}

/// The chat template.
pub(super) const CHAT_TEMPLATE: Rule = Rule::new(2, "chat template", chat_template);

/// A chat template: a file, or the template itself in older versions.
fn chat_template(t: &mut Translator) {
    for key in ["data.override_chat_template", "worker.rollout.chat_template"] {
        match t.text(key) {
            Some(text) if text.contains(['{', '\n']) => {
                t.refuse(key, "write it to a file and give its path");
            }
            Some(path) => t.set(&[key], "model.chat_template", &quote(&path)),
            None => t.no_effect(key, "null leaves the model's own"),
        }
    }
}

/// The template around every prompt.
pub(super) const FORMAT_PROMPT: Rule = Rule::new(2, "format prompt", format_prompt);

/// The template around every prompt: a file, or the template itself in older versions. It and the chat
/// template are always applied.
fn format_prompt(t: &mut Translator) {
    for key in ["data.format_prompt", "data.format_prompt_path"] {
        match t.text(key) {
            Some(text) if text.contains(['{', '\n', ' ']) => {
                t.refuse(
                    key,
                    "write it to a file, with {{ content }} where the prompt stands, and give its path",
                );
            }
            Some(path) => t.set(&[key], "data.prompt_template", &quote(&path)),
            None => t.no_effect(key, "null leaves prompts as they are"),
        }
    }
}

/// Whether the vision tower learns.
pub(super) const FREEZE_VISION: Rule =
    Rule::new(2, "vision tower", |t| images::freeze(t, "worker.actor.model.freeze_vision_tower"));

/// Learning-rate schedule and warm-up.
pub(super) const LEARNING_RATE: Rule = Rule::new(2, "learning rate", learning_rate);

fn learning_rate(t: &mut Translator) {
    let keys = (
        "worker.actor.optim.lr_warmup_steps",
        "worker.actor.optim.lr_warmup_ratio",
        "worker.actor.optim.min_lr_ratio",
        &["worker.actor.optim.lr_scheduler_type"][..],
        &["trainer.max_steps"][..],
    );
    schedule("train.lr_schedule", keys, t);
}

/// Treatment of prompts beyond the limit.
pub(super) const LONG_PROMPTS: Rule = Rule::new(2, "long prompts", long_prompts);

fn long_prompts(t: &mut Translator) {
    const DROP: &str = "data.filter_overlong_prompts";
    if t.flag(DROP, false) {
        t.set(&[DROP], "data.overlong_prompts", "drop");
        t.no_effect("data.truncation", "data.filter_overlong_prompts drops longer prompts");
    } else if t.find(DROP).is_some() {
        t.set(&[DROP], "data.overlong_prompts", "right");
        t.remark(DROP, "EasyR1 cuts the last tokens of the prompts that it does not leave out");
    }
}

/// Top-k, which -1 switches off.
pub(super) const TOP_K: Rule = Rule::new(2, "top-k", |t| run::top_k(t, "worker.rollout.top_k"));

/// Number of checkpoints to keep.
pub(super) const KEEP_LAST: Rule = Rule::new(2, "keep last", |t| run::keep_last(t, "trainer.save_limit"));

/// Loggers of metrics.
pub(super) const LOGGERS: Rule = Rule::new(2, "loggers", |t| run::loggers(t, "trainer.logger", &[]));

/// Project and experiment.
pub(super) const NAMES: Rule = Rule::new(2, "names", run::names);

/// The engine that generates, as servers.
pub(super) const SERVERS: Rule = Rule::new(2, servers::RULE, |t| servers::servers(Owner::EasyR1, t));

/// The critic, which some estimators have: after them.
pub(super) const CRITIC: Rule = Rule::new(3, "critic", |t| critic::critic(Owner::EasyR1, t));

/// Sets the defaults of a whole configuration that leaves keys out.
pub(in crate::foreign) fn defaults(t: &mut Translator) {
    let owner = Owner::EasyR1;
    t.default(owner, "data.rollout_batch_size", "data.train_batch_size", "512");
    t.default(owner, "data.prompt_key", "data.columns.prompt", "prompt");
    t.default(owner, "data.answer_key", "data.columns.ground_truth", "answer");
    t.default(owner, "the form of prompts", "data.prompt_format", "chat");
    mini_batch(owner, "worker.actor.global_batch_size", t);
    easyr1_critic(t);
    t.default(owner, "worker.rollout.n", "rollout.n", "1");
    t.default(owner, "algorithm.adv_estimator", "objective.advantage.singleton", "raw");
    t.default(owner, "worker.actor.clip_ratio_low", "objective.loss.clip_low", "0.2");
    t.default(owner, "worker.actor.clip_ratio_high", "objective.loss.clip_high", "0.3");
    t.default(owner, "worker.actor.clip_ratio_dual", "objective.loss.dual_clip", "3.0");
    t.default(owner, "data.filter_overlong_prompts", "data.overlong_prompts", "drop");
    if !t.has_set("objective.kl.in") {
        t.default(owner, "algorithm.use_kl_loss", "objective.kl.in", "reward");
        t.default(owner, "algorithm.kl_penalty", "objective.kl.estimator", "k1");
        t.default(owner, "algorithm.kl_coef", "objective.kl.coefficient", "0.001");
    }
    if !t.has_set("train.total_steps") && !t.has_set("train.total_epochs") {
        t.default(owner, "trainer.total_epochs", "train.total_epochs", "15");
    }
    t.default(owner, "trainer.save_limit", "checkpoint.keep_last", "null");
    if t.has_set("data.val") {
        // Validation samples as training does, unless it is told otherwise.
        same_as_training(owner, "worker.rollout.val_override_config", t);
    }
    if !t.sets_list("reward") {
        t.absent_without_effect(
            owner,
            "worker.reward.reward_function",
            "EasyR1 has no reward of its own: name one, worker.reward.reward_function=FILE.py:FUNCTION or `reward=[{kind: math}]`",
        );
    }
}

/// EasyR1's critic has settings of its own where ours takes the policy's.
fn easyr1_critic(t: &mut Translator) {
    const MINI: &str = "worker.critic.global_batch_size";
    let owner = Owner::EasyR1;
    let estimator = t.value_of("objective.advantage.kind").and_then(|kind| Advantage::of_name(&kind));
    if !estimator.is_some_and(|estimator| estimator.needs().contains(&Column::Values)) {
        return;
    }
    t.default(owner, "worker.critic.optim.lr", "critic.optimizer.learning_rate", "1e-6");
    let ours = "critic.ppo_mini_batch_size";
    match t.value_of("data.train_batch_size") {
        Some(batch) if batch.parse::<f64>().is_ok_and(|batch| batch < 256.0) => {
            if t.find(MINI).is_none() {
                t.default(owner, MINI, ours, &batch);
                t.remark(MINI, "its default of 256 is above the batch: one update a step");
            }
        }
        _ => t.default(owner, MINI, ours, "256"),
    }
    if t.has_set("train.ppo_epochs") {
        t.default(owner, "worker.critic.ppo_epochs", "critic.ppo_epochs", "1");
    }
    if t.has_set("objective.aggregation") {
        t.default(owner, "worker.critic.loss_avg_mode", "critic.aggregation", "token-mean");
    }
}
