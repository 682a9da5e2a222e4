//! Estimators, losses, masks and corrections of the other systems.

use insta::assert_snapshot;

use crate::{converted, loaded, notes};

/// Translation of verl's keys, beside a model and data.
fn verl(arguments: &[&str]) -> String {
    let base = ["data.train_files=t", "actor_rollout_ref.model.path=m"];
    let import = converted(&[&base, arguments].concat());
    loaded(&import);
    let given = |note: &&tamis_config::Note| arguments.iter().any(|argument| argument.starts_with(&note.key));
    import.notes.iter().filter(given).map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn estimators_of_verl() {
    for name in [
        "grpo_passk",
        "rloo",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "remax",
        "opo",
        "gpg",
        "gdpo",
        "optimal_token_baseline",
        "tir_optimal_token_baseline",
        "cpo",
    ] {
        let argument = format!("algorithm.adv_estimator={name}");
        assert!(verl(&[&argument]).contains(&format!("objective.advantage.kind: {name}")), "{name}");
    }
    assert_snapshot!(verl(&["algorithm.adv_estimator=reinforce_plus_plus", "algorithm.gamma=0.99"]), @"
algorithm.adv_estimator=reinforce_plus_plus -> objective.advantage.kind: reinforce_plus_plus
algorithm.gamma=0.99 -> objective.advantage.gamma: 0.99
");
}

#[test]
fn losses_of_verl() {
    let mode = "actor_rollout_ref.actor.policy_loss.loss_mode";
    for (name, others) in [
        ("gspo", vec!["actor_rollout_ref.actor.clip_ratio_high=4e-4"]),
        (
            "kl_cov",
            vec![
                "actor_rollout_ref.actor.policy_loss.kl_cov_ratio=0.002",
                "actor_rollout_ref.actor.policy_loss.ppo_kl_coef=1",
            ],
        ),
        ("clip_cov", vec!["actor_rollout_ref.actor.policy_loss.clip_cov_lb=0.5"]),
        ("sapo", vec!["actor_rollout_ref.actor.tau_neg=1.2"]),
        ("cispo", vec![]),
        ("geo_mean", vec![]),
        ("gpg", vec![]),
    ] {
        let argument = format!("{mode}={name}");
        let arguments: Vec<&str> =
            ["algorithm.adv_estimator=grpo", argument.as_str()].into_iter().chain(others).collect();
        let printed = verl(&arguments);
        assert!(printed.contains(&format!("objective.loss.kind: {name}")), "{printed}");
        assert!(!printed.contains("has no effect"), "{printed}");
    }
    assert_snapshot!(
        verl(&["algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"]), @"
algorithm.adv_estimator=grpo -> objective.advantage.kind: grpo, objective.advantage.singleton: raw
actor_rollout_ref.actor.policy_loss.loss_mode=gspo -> objective.loss.kind: gspo, objective.loss.form: token, objective.aggregation: seq-mean-token-mean, objective.loss.clip_low: 0.2, objective.loss.clip_high: 0.2
");
}

#[test]
fn rollout_correction_of_verl() {
    let of = |rest: &[&str]| {
        let arguments: Vec<String> =
            rest.iter().map(|argument| format!("algorithm.rollout_correction.{argument}")).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        verl(&[&["algorithm.adv_estimator=grpo"], arguments.as_slice()].concat())
    };
    assert_snapshot!(
        of(&["rollout_is=token", "rollout_is_threshold=0.5_5.0", "rollout_rs='token_k1,seq_mean_k3'", "rollout_rs_threshold='0.5_2.0,0.01'"]), @r#"
algorithm.adv_estimator=grpo -> objective.advantage.kind: grpo, objective.advantage.singleton: raw
algorithm.rollout_correction.rollout_is=token -> objective.correction.weights: {level: token, outside: mask, min: 0.5, max: 5.0, batch_normalize: false}
algorithm.rollout_correction.rollout_is_threshold=0.5_5.0 goes into what algorithm.rollout_correction.rollout_is becomes
algorithm.rollout_correction.rollout_rs=token_k1,seq_mean_k3 -> objective.correction.rejections: [{statistic: token_k1, threshold: 0.5_2.0}, {statistic: seq_mean_k3, threshold: "0.01"}]
algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0,0.01 goes into what algorithm.rollout_correction.rollout_rs becomes
"#);
    assert_snapshot!(of(&["bypass_mode=True", "loss_type=reinforce", "rollout_is=sequence"]), @"
algorithm.adv_estimator=grpo -> objective.advantage.kind: grpo, objective.advantage.singleton: raw
algorithm.rollout_correction.bypass_mode=True -> objective.correction.preset: bypass_pg_is
algorithm.rollout_correction.loss_type=reinforce -> objective.loss.kind: reinforce
algorithm.rollout_correction.rollout_is=sequence -> objective.correction.weights: {level: sequence, outside: truncate, max: 2.0, batch_normalize: false}
");
}

#[test]
fn objectives_of_trl() {
    let import = converted(&[
        "loss_type=cispo",
        "epsilon_high=5.0",
        "importance_sampling_level=sequence",
        "top_entropy_quantile=0.2",
        "off_policy_mask_threshold=0.5",
        "use_bias_correction_kl=True",
        "beta=0.01",
        "use_adaptive_entropy=True",
        "entropy_target=0.3",
        "multi_objective_aggregation=normalize_then_sum",
        "model_name_or_path=m",
        "dataset_name=d",
        "num_generations=8",
    ]);
    assert_snapshot!(notes(&import), @"
loss_type=cispo -> objective.loss.kind: cispo, objective.loss.bound: absolute, objective.aggregation: token-mean
epsilon_high=5.0 -> objective.loss.max_ratio: 5
importance_sampling_level=sequence -> objective.importance: sequence
top_entropy_quantile=0.2 -> objective.masks.top_entropy: 0.2
off_policy_mask_threshold=0.5 -> objective.masks.off_policy: 0.5
use_bias_correction_kl=True -> objective.kl.bias_corrected: true
beta=0.01 -> objective.kl.in: loss, objective.kl.estimator: k3, objective.kl.coefficient: 0.01, objective.kl.adaptive: null
use_adaptive_entropy=True -> objective.entropy.adaptive: {min: 0, max: 1, delta: 0.005, target: 0.3}, objective.entropy.aggregation: token-mean
entropy_target=0.3 goes into what use_adaptive_entropy becomes
multi_objective_aggregation=normalize_then_sum -> objective.advantage.kind: normalize_then_sum
model_name_or_path=m -> model.path: m
dataset_name=d -> data.train: d
num_generations=8 -> rollout.n: 8
seed is not given -> run.seed: 42 (TRL's default)
per_device_train_batch_size is not given -> data.train_batch_size: 1, train.ppo_mini_batch_size: 1 (TRL's default)
weight_decay is not given -> train.optimizer.weight_decay: 0.0 (TRL's default)
a bound on the log-ratio is not given -> objective.loss.log_ratio_limit: null (TRL's default)
scale_rewards is not given -> objective.advantage.epsilon: 1e-4 (TRL's default)
lr_scheduler_type is not given -> train.lr_schedule.kind: linear (TRL's default)
save_steps is not given -> checkpoint.save_freq: 500 (TRL's default)
save_total_limit is not given -> checkpoint.keep_last: null (TRL's default)
num_train_epochs is not given -> train.total_epochs: 3 (TRL's default)
max_prompt_length is not given: TRL has had no limit since 0.28; here a prompt longer than `data.max_prompt_length` stops the run
");
}

#[test]
fn shares_and_losses_of_easyr1() {
    let import = converted(&[
        "algorithm.adv_estimator=grpo",
        "algorithm.keep_neg_ratio=0.5",
        "worker.actor.loss_type=gspo",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
        "reward=[{kind: math}]",
    ]);
    let config = loaded(&import);
    assert_eq!(config.objective.shaping.len(), 1);
    assert_eq!(config.objective.importance.as_str(), "sequence");
}
