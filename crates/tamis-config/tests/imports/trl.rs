//! Commands of TRL.

use insta::assert_snapshot;
use tamis_config::LogRatioLimit;

use crate::{converted, loaded, notes};

#[test]
fn arguments_of_trl() {
    let import = converted(&[
        "trl",
        "grpo",
        "--model_name_or_path",
        "./model",
        "--dataset_name",
        "data.jsonl",
        "--output_dir",
        "out/first",
        "--num_generations",
        "8",
        "--per_device_train_batch_size",
        "16",
        "--gradient_accumulation_steps",
        "4",
        "--beta",
        "0.04",
        "--epsilon_high",
        "0.28",
        "--loss_type",
        "grpo",
        "--scale_rewards",
        "none",
        "--reward_funcs",
        "['accuracy_reward', 'think_format_reward']",
        "--reward_weights",
        "[1.0, 0.2]",
        "--lr_scheduler_type",
        "cosine",
        "--warmup_ratio",
        "0.1",
        "--max_steps",
        "200",
        "--use_vllm",
        "--report_to",
        "wandb",
        "--bf16",
    ]);
    assert_snapshot!(import.yaml, @"
run:
  name: first  # TRL: output_dir=out/first
  dir: out  # TRL: output_dir=out/first
  seed: 42  # TRL: seed (default)
  loggers: [console, jsonl]  # TRL: report_to=wandb
model:
  path: ./model  # TRL: model_name_or_path=./model
data:
  train: data.jsonl  # TRL: dataset_name=data.jsonl
  train_batch_size: 8  # TRL: per_device_train_batch_size=16
rollout:
  n: 8  # TRL: num_generations=8
reward:
  - {kind: math, weight: 1.0}  # TRL: reward_funcs=['accuracy_reward', 'think_format_reward']
  # TRL: reward_funcs=['accuracy_reward', 'think_format_reward']
  - {name: think_format, kind: think_format, weight: 0.2}
objective:
  advantage:
    norm_by_std: false  # TRL: scale_rewards=none
    scale: none  # TRL: scale_rewards=none
  loss:
    kind: clip  # TRL: loss_type=grpo
    clip_low: 0.2  # TRL: epsilon_high=0.28
    clip_high: 0.28  # TRL: epsilon_high=0.28
    dual_clip: null  # TRL: epsilon_high=0.28
    log_ratio_limit: off  # TRL: a bound on the log-ratio (default)
  aggregation: seq-mean-token-mean  # TRL: loss_type=grpo
  kl:
    in: loss  # TRL: beta=0.04
    estimator: k3  # TRL: beta=0.04
    coefficient: 0.04  # TRL: beta=0.04
    bias_corrected: true  # TRL: beta=0.04
    adaptive: null  # TRL: beta=0.04
train:
  ppo_mini_batch_size: 8  # TRL: gradient_accumulation_steps=4
  micro_batch_size: 16  # TRL: per_device_train_batch_size=16
  optimizer:
    weight_decay: 0.0  # TRL: weight_decay (default)
  lr_schedule:
    kind: cosine  # TRL: lr_scheduler_type=cosine
    warmup_steps: 20  # TRL: warmup_ratio=0.1
  total_steps: 200  # TRL: max_steps=200
checkpoint:
  save_freq: 500  # TRL: save_steps (default)
  keep_last: null  # TRL: save_total_limit (default)
");
    assert_snapshot!(notes(&import), @r#"
model_name_or_path=./model -> model.path: ./model
dataset_name=data.jsonl -> data.train: data.jsonl
output_dir=out/first -> run.dir: out, run.name: first
num_generations=8 -> rollout.n: 8
per_device_train_batch_size=16 -> data.train_batch_size: 8, train.micro_batch_size: 16 (TRL counts completions; prompts are counted by tamis)
gradient_accumulation_steps=4 -> train.ppo_mini_batch_size: 8
beta=0.04 -> objective.kl.in: loss, objective.kl.estimator: k3, objective.kl.coefficient: 0.04, objective.kl.adaptive: null, objective.kl.bias_corrected: true (TRL 1.16 weights the KL by the ratio unless use_bias_correction_kl=False; older versions do not)
epsilon_high=0.28 -> objective.loss.clip_low: 0.2, objective.loss.clip_high: 0.28, objective.loss.dual_clip: null
loss_type=grpo -> objective.loss.kind: clip, objective.aggregation: seq-mean-token-mean
scale_rewards=none -> objective.advantage.scale: none, objective.advantage.norm_by_std: false
reward_funcs=["accuracy_reward","think_format_reward"] -> reward: [{kind: math, weight: 1.0}, {name: think_format, kind: think_format, weight: 0.2}]
reward_weights=[1.0,0.2] goes into what reward_funcs becomes
lr_scheduler_type=cosine -> train.lr_schedule.kind: cosine
warmup_ratio=0.1 -> train.lr_schedule.warmup_steps: 20
max_steps=200 -> train.total_steps: 200
use_vllm=true has no effect: the native engine generates
report_to=wandb -> run.loggers: [console, jsonl] (wandb is not there yet; metrics.jsonl holds the same figures, and TensorBoard files are there)
bf16=true has no effect: computation is in f32
seed is not given -> run.seed: 42 (TRL's default)
weight_decay is not given -> train.optimizer.weight_decay: 0.0 (TRL's default)
a bound on the log-ratio is not given -> objective.loss.log_ratio_limit: off (TRL's default)
save_steps is not given -> checkpoint.save_freq: 500 (TRL's default)
save_total_limit is not given -> checkpoint.keep_last: null (TRL's default)
max_prompt_length is not given: TRL has had no limit since 0.28; here a prompt longer than `data.max_prompt_length` stops the run
"#);
    assert_eq!(import.remaining, []);
}

/// TRL takes the ratio as it is; a loss that reads no bound gets none.
#[test]
fn log_ratios_of_trl_are_not_bounded() {
    let bound = |loss: &str| {
        let arguments = [
            "--model_name_or_path",
            "m",
            "--dataset_name",
            "t",
            "--loss_type",
            loss,
            "--reward_funcs",
            "accuracy_reward",
        ];
        let import = converted(&arguments);
        assert!(!import.remaining.iter().any(|said| said.to_string().contains("log_ratio_limit")));
        loaded(&import).objective.loss.log_ratio_limit
    };
    for loss in ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo"] {
        assert_eq!(bound(loss), Some(LogRatioLimit::Off), "{loss}");
    }
    assert_eq!(bound("vespo"), None);
}
