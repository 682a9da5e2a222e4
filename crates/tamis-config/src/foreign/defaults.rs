//! What a whole configuration of another system leaves out takes its owner's default, where that is not ours.

use super::translate::Translator;
use super::{Owner, ragen, trl_rules};

/// Takes an owner's defaults for what was not given.
pub(super) fn complete(owner: Owner, t: &mut Translator) {
    match owner {
        Owner::Verl => verl(t),
        Owner::Ragen => ragen_defaults(t),
        Owner::EasyR1 => easyr1(t),
        Owner::Trl => trl(t),
    }
}

fn verl(t: &mut Translator) {
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

/// The verifier of each row by its source, where no reward is named.
fn by_source(owner: Owner, key: &str, remark: &str, t: &mut Translator) {
    const LIST: &str = "[{kind: by_source}]";
    if !t.sets_list("reward") {
        t.put_first(owner, &format!("{key} (default)"), "reward", LIST);
        t.absent(owner, key, &[("reward", LIST)], remark);
    }
}

/// verl and RAGEN have the same default, with a critic.
fn estimator(owner: Owner, t: &mut Translator) {
    t.default(owner, "algorithm.adv_estimator", "objective.advantage.estimator", "gae");
}

fn ragen_defaults(t: &mut Translator) {
    let owner = Owner::Ragen;
    estimator(owner, t);
    for (key, _, ours, value) in ragen::DEFAULTS {
        t.default(owner, key, ours, value);
    }
    if t.has_set("data.val") {
        for (key, _, ours, value) in ragen::VALIDATION_DEFAULTS {
            t.default(owner, key, ours, value);
        }
    }
    let has_validation = t.has_set("data.val");
    for (what, _, ours, value) in ragen::STOPS.into_iter().take(if has_validation { 2 } else { 1 }) {
        t.default(owner, what, ours, value);
    }
    t.remark(ragen::STOPS[0].0, "always on in RAGEN; `form: attempts` is what its filtering document says");
    t.remark(ragen::STOPS[1].0, "always on in RAGEN");
    if t.find("agent_proxy.max_turn").is_none() {
        t.absent_without_effect(
            owner,
            "agent_proxy.max_turn",
            "RAGEN's default is 5 turns, and multi-turn environments are not there yet: a trajectory is one turn",
        );
    }
    by_source(
        owner,
        "custom_envs",
        "warning: RAGEN's environments give the reward, and none is run here: the verifier of each row by its data_source, as in verl, unless \
         `reward` names another, such as `reward=[{kind: math}]`",
        t,
    );
}

fn easyr1(t: &mut Translator) {
    let owner = Owner::EasyR1;
    t.default(owner, "data.rollout_batch_size", "data.train_batch_size", "512");
    t.default(owner, "data.prompt_key", "data.columns.prompt", "prompt");
    t.default(owner, "data.answer_key", "data.columns.ground_truth", "answer");
    t.default(owner, "the form of prompts", "data.prompt_format", "chat");
    mini_batch(owner, "worker.actor.global_batch_size", t);
    easyr1_critic(t);
    t.default(owner, "worker.rollout.n", "rollout.n", "1");
    t.default(owner, "algorithm.adv_estimator", "objective.advantage.singleton", "raw");
    let kind = t.value_of("objective.loss.kind").unwrap_or_else(|| "clip".to_owned());
    if kind != "sapo" {
        t.default(owner, "worker.actor.clip_ratio_low", "objective.loss.clip_low", "0.2");
        t.default(owner, "worker.actor.clip_ratio_high", "objective.loss.clip_high", "0.3");
    }
    if kind == "clip" {
        t.default(owner, "worker.actor.clip_ratio_dual", "objective.loss.dual_clip", "3.0");
    }
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

/// Validates with the temperature and the cut of training.
fn same_as_training(owner: Owner, prefix: &str, t: &mut Translator) {
    let of = |name: &str| if prefix.is_empty() { format!("eval {name}") } else { format!("{prefix}.{name}") };
    for name in ["temperature", "top_p"] {
        let value = t.value_of(&format!("rollout.{name}")).unwrap_or_else(|| "1.0".to_owned());
        t.default(owner, &of(name), &format!("validate.{name}"), &value);
    }
}

/// EasyR1's critic has settings of its own where ours takes the policy's.
fn easyr1_critic(t: &mut Translator) {
    const MINI: &str = "worker.critic.global_batch_size";
    let owner = Owner::EasyR1;
    let estimator = t.value_of("objective.advantage.estimator");
    if !matches!(estimator.as_deref(), Some("gae" | "bi_level_gae")) {
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

fn trl(t: &mut Translator) {
    let owner = Owner::Trl;
    t.default(owner, "seed", "run.seed", "42");
    if !t.has_set("data.train_batch_size") {
        trl_rules::batch(t);
    }
    t.default(owner, "weight_decay", "train.optimizer.weight_decay", "0.0");
    let kind = t.value_of("objective.loss.kind").unwrap_or_else(|| "clip".to_owned());
    if matches!(kind.as_str(), "clip" | "luspo") {
        let bounds = [("objective.loss.clip_low", "0.2"), ("objective.loss.clip_high", "0.2")];
        t.defaults(owner, "epsilon", &[&bounds[..], &[("objective.loss.dual_clip", "null")]].concat());
    }
    if kind != "vespo" {
        t.default(owner, "a bound on the log-ratio", "objective.loss.log_ratio_limit", "off");
    }
    t.default(owner, "scale_rewards", "objective.advantage.epsilon", "1e-4");
    t.default(owner, "lr_scheduler_type", "train.lr_schedule.kind", "linear");
    if trl_rules::validates(t) {
        let group = t.value_of("rollout.n").unwrap_or_else(|| "8".to_owned());
        t.default(owner, "num_generations_eval", "validate.n", &group);
        same_as_training(owner, "", t);
        t.default(owner, "eval_on_start", "validate.before_train", "false");
        t.default(owner, "dataset_test_split", "data.val", "PATH/TO/test.jsonl");
    }
    let every = trl_rules::in_steps_of_ours(t, 500.0);
    t.default(owner, "save_steps", "checkpoint.save_freq", &every.to_string());
    t.default(owner, "save_total_limit", "checkpoint.keep_last", "null");
    if !t.has_set("train.total_steps") {
        t.default(owner, "num_train_epochs", "train.total_epochs", "3");
    }
    if !t.has_set("data.max_prompt_length") {
        t.absent_without_effect(
            owner,
            "max_prompt_length",
            "TRL has had no limit since 0.28; here a prompt longer than `data.max_prompt_length` stops the run",
        );
    }
}

/// The default of 256 prompts an update; a smaller batch, which the owner would refuse, is one update.
fn mini_batch(owner: Owner, key: &str, t: &mut Translator) {
    let batch = t.value_of("data.train_batch_size").and_then(|value| value.parse::<f64>().ok());
    match batch {
        Some(batch) if batch < 256.0 => t.absent(
            owner,
            key,
            &[("train.ppo_mini_batch_size", "null")],
            "its default of 256 is above the batch: one update a step",
        ),
        _ => t.default(owner, key, "train.ppo_mini_batch_size", "256"),
    }
}
