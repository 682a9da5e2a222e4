//! Files and commands of EasyR1 and its fork.

use insta::assert_snapshot;
use tamis_core::filter::{Bounds, GroupFilter, MeanRange};
use tamis_core::schedule::RoundLimit;

use crate::{converted, import_errors, loaded, notes};

#[test]
fn example_files_of_easyr1() {
    let folder = tempfile::tempdir().unwrap();
    let standard = "data:\n  rollout_batch_size: 128\n  train_files: math.parquet\n\nalgorithm:\n  adv_estimator: grpo\n  use_dynamic_sample: \
                    true\n  dynamic_sample_max_gen_batches: 3\n\nworker:\n  actor:\n    model: {model_path: m}\n  rollout:\n    n: 16\n";
    let path = folder.path().join("standard.yaml");
    std::fs::write(&path, standard).unwrap();
    let import = converted(&[path.to_str().unwrap()]);
    let yaml = import.yaml.replace(folder.path().to_str().unwrap(), "DIR");
    assert_snapshot!(yaml, @"
model:
  path: m  # DIR/standard.yaml:12
data:
  train: math.parquet  # DIR/standard.yaml:3
  train_batch_size: 128  # DIR/standard.yaml:2
  overlong_prompts: drop  # EasyR1: data.filter_overlong_prompts (default)
  columns:
    prompt: prompt  # EasyR1: data.prompt_key (default)
    ground_truth: answer  # EasyR1: data.answer_key (default)
  prompt_format: chat  # EasyR1: the form of prompts (default)
rollout:
  n: 16  # DIR/standard.yaml:14
filter:
  kind: variance  # DIR/standard.yaml:7
  metric: seq_reward  # DIR/standard.yaml:7
  tolerance: 0.0  # DIR/standard.yaml:7
  singleton: keep  # DIR/standard.yaml:7
schedule:
  refill: true  # DIR/standard.yaml:7
  max_num_gen_batches: 3  # DIR/standard.yaml:8
  on_limit: use_partial  # DIR/standard.yaml:7
  on_empty_round: retry  # DIR/standard.yaml:7
  on_exhausted: use_partial  # DIR/standard.yaml:7
  surplus: discard  # DIR/standard.yaml:7
  order: dispatch  # DIR/standard.yaml:7
objective:
  advantage:
    kind: grpo  # DIR/standard.yaml:6
    singleton: raw  # DIR/standard.yaml:6
  loss:
    clip_low: 0.2  # EasyR1: worker.actor.clip_ratio_low (default)
    clip_high: 0.3  # EasyR1: worker.actor.clip_ratio_high (default)
    dual_clip: 3.0  # EasyR1: worker.actor.clip_ratio_dual (default)
  kl:
    in: reward  # EasyR1: algorithm.use_kl_loss (default)
    estimator: k1  # EasyR1: algorithm.kl_penalty (default)
    coefficient: 0.001  # EasyR1: algorithm.kl_coef (default)
train:
  total_epochs: 15  # EasyR1: trainer.total_epochs (default)
checkpoint:
  keep_last: null  # EasyR1: trainer.save_limit (default)
");
    assert_snapshot!(notes(&import), @"
data.rollout_batch_size=128 -> data.train_batch_size: 128
data.train_files=math.parquet -> data.train: math.parquet
algorithm.adv_estimator=grpo -> objective.advantage.kind: grpo, objective.advantage.singleton: raw
algorithm.use_dynamic_sample=true -> filter.kind: variance, filter.metric: seq_reward, filter.singleton: keep, filter.tolerance: 0.0, schedule.refill: true, schedule.on_limit: use_partial, schedule.on_empty_round: retry, schedule.on_exhausted: use_partial, schedule.surplus: discard, schedule.order: dispatch
algorithm.dynamic_sample_max_gen_batches=3 -> schedule.max_num_gen_batches: 3
worker.actor.model.model_path=m -> model.path: m
worker.rollout.n=16 -> rollout.n: 16
data.prompt_key is not given -> data.columns.prompt: prompt (EasyR1's default)
data.answer_key is not given -> data.columns.ground_truth: answer (EasyR1's default)
the form of prompts is not given -> data.prompt_format: chat (EasyR1's default)
worker.actor.global_batch_size is not given -> train.ppo_mini_batch_size: null (its default of 256 is above the batch: one update a step)
worker.actor.clip_ratio_low is not given -> objective.loss.clip_low: 0.2 (EasyR1's default)
worker.actor.clip_ratio_high is not given -> objective.loss.clip_high: 0.3 (EasyR1's default)
worker.actor.clip_ratio_dual is not given -> objective.loss.dual_clip: 3.0 (EasyR1's default)
data.filter_overlong_prompts is not given -> data.overlong_prompts: drop (EasyR1's default)
algorithm.use_kl_loss is not given -> objective.kl.in: reward (EasyR1's default)
algorithm.kl_penalty is not given -> objective.kl.estimator: k1 (EasyR1's default)
algorithm.kl_coef is not given -> objective.kl.coefficient: 0.001 (EasyR1's default)
trainer.total_epochs is not given -> train.total_epochs: 15 (EasyR1's default)
trainer.save_limit is not given -> checkpoint.keep_last: null (EasyR1's default)
worker.reward.reward_function is not given: EasyR1 has no reward of its own: name one, worker.reward.reward_function=FILE.py:FUNCTION or `reward=[{kind: math}]`
");

    let limitless = converted(&[
        "algorithm.use_dynamic_sample=true",
        "algorithm.dynamic_sample_max_gen_batches=0",
        "data.rollout_batch_size=64",
        "worker.rollout.n=32",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
        "reward=[{kind: math}]",
    ]);
    assert_eq!(loaded(&limitless).schedule.max_num_gen_batches, RoundLimit::None);
    // Only the switch: the limit is the owner's 3.
    let switch = converted(&[
        "algorithm.use_dynamic_sample=true",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
        "reward=[{kind: math}]",
        "worker.rollout.n=4",
    ]);
    assert_eq!(loaded(&switch).schedule.max_num_gen_batches, RoundLimit::Rounds(3));
    let off = converted(&[
        "algorithm.use_dynamic_sample=false",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
        "reward=[{kind: math}]",
        "worker.rollout.n=4",
    ]);
    assert_eq!(loaded(&off).filter, None);
}

#[test]
fn online_filtering_of_easyr1() {
    let import = converted(&[
        "algorithm.online_filtering=true",
        "algorithm.filter_key=accuracy",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
        "reward=[{kind: math}]",
        "worker.rollout.n=5",
    ]);
    let config = loaded(&import);
    let filter = config.filter.unwrap();
    let range = MeanRange { low: 0.01, high: 0.99, bounds: Bounds::Open };
    assert_eq!((filter.kind, filter.metric.as_deref()), (GroupFilter::MeanRange(range), Some("acc")));
    assert_eq!(config.schedule.max_num_gen_batches, RoundLimit::Rounds(20));
}

#[test]
fn reward_function_of_easyr1() {
    let import = converted(&[
        "worker.reward.reward_function=./examples/reward_function/dapo.py:compute_score",
        "worker.reward.reward_function_kwargs.max_response_length=2048",
        "worker.reward.reward_function_kwargs={overlong_penalty_factor: 0.5}",
        "worker.reward.reward_type=batch",
        "algorithm.online_filtering=true",
        "algorithm.filter_key=accuracy_normalized",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
        "worker.rollout.n=5",
    ]);
    let config = loaded(&import);
    assert_snapshot!(serde_json::to_string(&config.reward).unwrap(), @r#"[{"name":"python","kind":"python","weight":1.0,"path":"./examples/reward_function/dapo.py","function":"compute_score","style":"easyr1","kwargs":{"max_response_length":2048,"overlong_penalty_factor":0.5},"python":"python3","num_processes":2,"timeout":"30s","startup_timeout":"60s","max_restarts":10}]"#);
    assert_eq!(config.filter.unwrap().metric.as_deref(), Some("accuracy_normalized"));
    let function: Vec<String> =
        notes(&import).lines().filter(|line| line.contains("worker.reward")).map(str::to_owned).collect();
    assert_snapshot!(function.join("\n"), @r#"
worker.reward.reward_function=./examples/reward_function/dapo.py:compute_score -> reward: [{kind: python, path: ./examples/reward_function/dapo.py, function: compute_score, style: easyr1, kwargs: {max_response_length: 2048, overlong_penalty_factor: 0.5}}]
worker.reward.reward_function_kwargs.max_response_length=2048 goes into what worker.reward.reward_function becomes
worker.reward.reward_function_kwargs={"overlong_penalty_factor":0.5} goes into what worker.reward.reward_function becomes
worker.reward.reward_type=batch goes into what worker.reward.reward_function becomes
"#);
    // Without a name EasyR1 calls `main`.
    let main = converted(&[
        "worker.reward.reward_function=r.py",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
    ]);
    assert!(main.yaml.contains("function: main"), "{}", main.yaml);
    let sequential = converted(&[
        "worker.reward.reward_function=r.py:f",
        "worker.reward.reward_type=sequential",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
    ]);
    assert!(sequential.yaml.contains("style: easyr1_sequential"), "{}", sequential.yaml);
    let refused = import_errors(&["worker.reward.reward_function=r.py", "worker.reward.reward_type=one"]);
    assert_snapshot!(refused, @r#"
error: `worker.reward.reward_type` of EasyR1 must be batch or sequential, not `one`
 --> command line, EasyR1 key
  |
1 | worker.reward.reward_type=one
  |                           ^^^
  hint: `tamis config explain worker.reward.reward_type` says what becomes of it

1 error in the configuration
"#);
}

/// Steps go before epochs, which older versions call episodes.
#[test]
fn length_of_easyr1() {
    let of = |words: &[&str]| {
        let base = [
            "data.train_files=t",
            "worker.actor.model.model_path=m",
            "worker.rollout.n=4",
            "reward=[{kind: math}]",
        ];
        let train = loaded(&converted(&[&base[..], words].concat())).train;
        (train.total_steps, train.total_epochs)
    };
    assert_eq!(of(&["trainer.val_freq=-1"]), (None, Some(15)));
    assert_eq!(of(&["trainer.total_episodes=3"]), (None, Some(3)));
    assert_eq!(of(&["trainer.total_epochs=2", "trainer.max_steps=9"]), (Some(9), None));
    assert_eq!(of(&["trainer.max_steps=9"]), (Some(9), None));
}

/// Each loss reads its own parameters; the others are told, not alarmed about.
#[test]
fn losses_of_easyr1() {
    let of = |loss: &str| {
        let loss = format!("worker.actor.loss_type={loss}");
        let words = [
            "data.train_files=t",
            "worker.actor.model.model_path=m",
            "reward=[{kind: math}]",
            "worker.rollout.n=4",
            "worker.actor.clip_ratio_dual=10.0",
            "worker.actor.clip_ratio_high=0.28",
            "worker.actor.tau_positive=2.0",
            &loss,
        ];
        let import = converted(&words);
        assert_eq!(import.remaining, [], "{loss}");
        let loss = serde_json::to_value(loaded(&import).objective.loss).expect("json");
        ["kind", "clip_high", "dual_clip", "tau_positive"].map(|key| loss[key].clone())
    };
    assert_eq!(serde_json::json!(of("gspo")), serde_json::json!(["clip", 0.28, 10.0, null]));
    assert_eq!(serde_json::json!(of("cispo")), serde_json::json!(["cispo", 0.28, null, null]));
    assert_eq!(serde_json::json!(of("sapo")), serde_json::json!(["sapo", null, null, 2.0]));
}

#[test]
fn what_easyr1_has_and_tamis_has_not() {
    for (word, printed) in [
        ("worker.critic.model.lora.rank=64", "a critic is trained whole"),
        ("worker.actor.model.tokenizer_path=t", "the tokenizer is the model's"),
        ("worker.reward.score_function=old.py:f", "wrap it as worker.reward.reward_function"),
        ("data.format_prompt=Think first: {{ content }}", "write it to a file"),
        ("worker.actor.ulyses_size=1", "did you mean `worker.actor.ulysses_size`"),
    ] {
        let errors = import_errors(&[word]);
        assert!(errors.contains(printed), "{word}: {errors}");
    }
    // A prompt that is too long is cut at its end, where EasyR1 does not leave it out.
    let cut = converted(&[
        "data.filter_overlong_prompts=False",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
        "reward=[{kind: math}]",
    ]);
    assert_eq!(loaded(&cut).data.overlong_prompts, tamis_data::overlong::OverlongPrompts::Right);
}
