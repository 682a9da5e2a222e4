//! Converting configurations of verl, EasyR1, RAGEN and TRL.

use insta::assert_snapshot;
use tamis_config::foreign::{Becomes, Owner, Rule};
use tamis_config::source::{Source, SourceKind};
use tamis_config::{Config, Import, import, load_sources};

fn converted(arguments: &[&str]) -> Import {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    import(&arguments).unwrap_or_else(|errors| panic!("{errors}"))
}

fn loaded(import: &Import) -> Config {
    let source = Source::new(SourceKind::File("imported.yaml".into()), import.yaml.clone());
    load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{errors}\n{}", import.yaml)).config
}

fn notes(import: &Import) -> String {
    import.notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The complete command of the guide to group filters, its variables replaced.
const COMPLETE: &[&str] = &[
    "python",
    "-m",
    "verl.trainer.main_ppo",
    "algorithm.adv_estimator=dapo",
    "algorithm.filter_groups.enable=True",
    "algorithm.filter_groups.metric=acc",
    "algorithm.filter_groups.max_num_gen_batches=15",
    "data.train_files=['/home/me/data/math/train.parquet']",
    "data.val_files=['/home/me/data/math/test.parquet']",
    "data.train_batch_size=1024",
    "data.max_prompt_length=2048",
    "data.max_response_length=2048",
    "actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.temperature=0.7",
    "actor_rollout_ref.rollout.name=vllm",
    "trainer.total_epochs=20",
    "trainer.n_gpus_per_node=8",
    "trainer.save_freq=5",
    "trainer.test_freq=2",
    r#"trainer.logger=["console","wandb"]"#,
    "trainer.project_name=math_dapo_experiment",
    "trainer.experiment_name=qwen2_7b_filtergroups_enabled",
];

#[test]
fn complete_command_of_the_guide() {
    let import = converted(COMPLETE);
    assert_snapshot!(import.yaml, @r#"
preset: dapo  # verl: algorithm.adv_estimator=dapo
run:
  name: qwen2_7b_filtergroups_enabled  # verl: trainer.experiment_name=qwen2_7b_filtergroups_enabled
  dir: runs/math_dapo_experiment  # verl: trainer.project_name=math_dapo_experiment
  loggers: [console, jsonl]  # verl: trainer.logger=["console","wandb"]
model:
  path: Qwen/Qwen2-7B-Instruct  # verl: actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct
data:
  # verl: data.train_files=['/home/me/data/math/train.parquet']
  train: [/home/me/data/math/train.parquet]
  val: [/home/me/data/math/test.parquet]  # verl: data.val_files=['/home/me/data/math/test.parquet']
  train_batch_size: 1024  # verl: data.train_batch_size=1024
  max_prompt_length: 2048  # verl: data.max_prompt_length=2048
rollout:
  n: 8  # verl: actor_rollout_ref.rollout.n=8
  temperature: 0.7  # verl: actor_rollout_ref.rollout.temperature=0.7
  max_response_length: 2048  # verl: data.max_response_length=2048
reward:
  - {kind: math}  # verl: guessed
filter:
  kind: variance  # verl: algorithm.filter_groups.enable=True
  metric: acc  # verl: algorithm.filter_groups.metric=acc
  tolerance: 0.0  # verl: algorithm.filter_groups.enable=True
  singleton: keep  # verl: algorithm.filter_groups.enable=True
schedule:
  refill: true  # verl: algorithm.filter_groups.enable=True
  max_num_gen_batches: 15  # verl: algorithm.filter_groups.max_num_gen_batches=15
  on_limit: error  # verl: algorithm.filter_groups.enable=True
  on_empty_round: retry  # verl: algorithm.filter_groups.enable=True
  on_exhausted: next_epoch  # verl: algorithm.filter_groups.enable=True
  surplus: discard  # verl: algorithm.filter_groups.enable=True
  order: dispatch  # verl: algorithm.filter_groups.enable=True
train:
  ppo_mini_batch_size: 256  # verl: actor_rollout_ref.actor.ppo_mini_batch_size (default)
  optimizer:
    learning_rate: 1e-6  # verl: actor_rollout_ref.actor.optim.lr=1e-6
  total_epochs: 20  # verl: trainer.total_epochs=20
validate:
  test_freq: 2  # verl: trainer.test_freq=2
checkpoint:
  save_freq: 5  # verl: trainer.save_freq=5
"#);
    assert_snapshot!(notes(&import), @r#"
algorithm.adv_estimator=dapo -> preset: dapo (no estimator of verl has this name: taken as the whole recipe, group-relative advantages, clip 0.2/0.28, token mean, soft overlong punishment, dynamic sampling, no KL)
algorithm.filter_groups.enable=True -> filter.kind: variance, filter.singleton: keep, filter.tolerance: 0.0, schedule.refill: true, schedule.on_limit: error, schedule.on_empty_round: retry, schedule.on_exhausted: next_epoch, schedule.surplus: discard, schedule.order: dispatch
algorithm.filter_groups.metric=acc -> filter.metric: acc
algorithm.filter_groups.max_num_gen_batches=15 -> schedule.max_num_gen_batches: 15
data.train_files=["/home/me/data/math/train.parquet"] -> data.train: [/home/me/data/math/train.parquet]
data.val_files=["/home/me/data/math/test.parquet"] -> data.val: [/home/me/data/math/test.parquet]
data.train_batch_size=1024 -> data.train_batch_size: 1024
data.max_prompt_length=2048 -> data.max_prompt_length: 2048
data.max_response_length=2048 -> rollout.max_response_length: 2048
actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct -> model.path: Qwen/Qwen2-7B-Instruct (a name on a hub is no file: download it and put its path here)
actor_rollout_ref.actor.optim.lr=1e-6 -> train.optimizer.learning_rate: 1e-6
actor_rollout_ref.rollout.n=8 -> rollout.n: 8
actor_rollout_ref.rollout.temperature=0.7 -> rollout.temperature: 0.7
actor_rollout_ref.rollout.name=vllm has no effect: `rollout.backend` is `native`: other engines are not there yet
trainer.total_epochs=20 -> train.total_epochs: 20
trainer.n_gpus_per_node=8 has no effect: the native engine runs on the CPU of one machine
trainer.save_freq=5 -> checkpoint.save_freq: 5
trainer.test_freq=2 -> validate.test_freq: 2
trainer.logger=["console","wandb"] -> run.loggers: [console, jsonl] (warning: wandb is not there yet; metrics.jsonl holds the same figures, and TensorBoard files are there)
trainer.project_name=math_dapo_experiment -> run.dir: runs/math_dapo_experiment
trainer.experiment_name=qwen2_7b_filtergroups_enabled -> run.name: qwen2_7b_filtergroups_enabled
actor_rollout_ref.actor.ppo_mini_batch_size is not given -> train.ppo_mini_batch_size: 256 (verl's default)
custom_reward_function.path is not given -> reward: [{kind: math}] (warning: verl picks it by each row's data_source; guessed from the name of the data, choose another kind if it is wrong)
"#);
    assert_eq!(import.remaining, []);
    let config = loaded(&import);
    assert_eq!(config.schedule.max_num_gen_batches, Some(15));
    assert_eq!(config.mini_batch_size(), 256);
    // Every argument is accounted for.
    for argument in &COMPLETE[3..] {
        let key = argument.split('=').next().unwrap();
        assert!(import.notes.iter().any(|note| note.key == key), "{key} became nothing that is said");
    }
}

#[test]
fn quoted_as_a_shell_passes_it() {
    let quoted = converted(&["data.train_files=\"['/x/y.parquet']\"", "actor_rollout_ref.model.path=m"]);
    assert_eq!(loaded(&quoted).data.train.0, [std::path::PathBuf::from("/x/y.parquet")]);
}

#[test]
fn filter_without_metric_and_limit() {
    let import = converted(&[
        "algorithm.adv_estimator=grpo",
        "algorithm.filter_groups.enable=True",
        "data.train_files=t",
        "actor_rollout_ref.model.path=m",
    ]);
    assert_snapshot!(import.yaml, @r#"
model:
  path: m  # verl: actor_rollout_ref.model.path=m
data:
  train: t  # verl: data.train_files=t
  train_batch_size: 1024  # verl: data.train_batch_size (default)
rollout:
  n: 1  # verl: actor_rollout_ref.rollout.n (default)
reward:
  - {kind: math}  # verl: guessed
filter:
  kind: variance  # verl: algorithm.filter_groups.enable=True
  metric: null  # verl: algorithm.filter_groups.enable=True
  tolerance: 0.0  # verl: algorithm.filter_groups.enable=True
  singleton: keep  # verl: algorithm.filter_groups.enable=True
schedule:
  refill: true  # verl: algorithm.filter_groups.enable=True
  max_num_gen_batches: null  # verl: algorithm.filter_groups.enable=True
  on_limit: error  # verl: algorithm.filter_groups.enable=True
  on_empty_round: retry  # verl: algorithm.filter_groups.enable=True
  on_exhausted: next_epoch  # verl: algorithm.filter_groups.enable=True
  surplus: discard  # verl: algorithm.filter_groups.enable=True
  order: dispatch  # verl: algorithm.filter_groups.enable=True
objective:
  advantage:
    estimator: grpo  # verl: algorithm.adv_estimator=grpo
    singleton: raw  # verl: algorithm.adv_estimator=grpo
train:
  ppo_mini_batch_size: 256  # verl: actor_rollout_ref.actor.ppo_mini_batch_size (default)
  total_epochs: 30  # verl: trainer.total_epochs (default)
"#);
}

#[test]
fn custom_rewards_of_verl() {
    let import = converted(&[
        "algorithm.adv_estimator=grpo",
        "data.train_files=gsm8k/train.parquet",
        "actor_rollout_ref.model.path=m",
        "custom_reward_function.path=score.py",
        "custom_reward_function.name=mine",
        "custom_reward_function.reward_kwargs.scale=2",
        "reward_model.reward_manager=dapo",
        "reward_model.overlong_buffer.enable=True",
        "reward_model.overlong_buffer.len=128",
        "reward_model.overlong_buffer.penalty_factor=0.5",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "data.filter_overlong_prompts=True",
        "data.truncation=error",
        "actor_rollout_ref.rollout.top_k=-1",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
        "actor_rollout_ref.rollout.val_kwargs.temperature=0.6",
        "critic.optim.lr=1e-5",
    ]);
    assert_snapshot!(import.yaml, @r#"
model:
  path: m  # verl: actor_rollout_ref.model.path=m
data:
  train: gsm8k/train.parquet  # verl: data.train_files=gsm8k/train.parquet
  train_batch_size: 1024  # verl: data.train_batch_size (default)
  overlong_prompts: drop  # verl: data.filter_overlong_prompts=True
rollout:
  n: 1  # verl: actor_rollout_ref.rollout.n (default)
  top_k: 0  # verl: actor_rollout_ref.rollout.top_k=-1
reward:
  # verl: custom_reward_function.path=score.py
  - {kind: python, path: score.py, function: mine, style: verl, kwargs: {scale: 2}}
  # verl: reward_model.overlong_buffer.enable=True
  - {name: overlong, kind: soft_overlong, form: verl, buffer: 128, penalty_factor: 0.5}
objective:
  advantage:
    estimator: grpo  # verl: algorithm.adv_estimator=grpo
    singleton: raw  # verl: algorithm.adv_estimator=grpo
  kl:
    in: loss  # verl: actor_rollout_ref.actor.use_kl_loss=True
    estimator: k3  # verl: actor_rollout_ref.actor.kl_loss_type=low_var_kl
    coefficient: 0.001  # verl: actor_rollout_ref.actor.use_kl_loss=True
train:
  ppo_mini_batch_size: 256  # verl: actor_rollout_ref.actor.ppo_mini_batch_size (default)
  micro_batch_tokens: 16384  # verl: actor_rollout_ref.actor.use_dynamic_bsz=True
  total_epochs: 30  # verl: trainer.total_epochs (default)
validate:
  temperature: 0.6  # verl: actor_rollout_ref.rollout.val_kwargs.temperature=0.6
"#);
    assert_snapshot!(notes(&import), @r#"
algorithm.adv_estimator=grpo -> objective.advantage.estimator: grpo, objective.advantage.singleton: raw
data.train_files=gsm8k/train.parquet -> data.train: gsm8k/train.parquet
actor_rollout_ref.model.path=m -> model.path: m
custom_reward_function.path=score.py -> reward: [{kind: python, path: score.py, function: mine, style: verl, kwargs: {scale: 2}}]
custom_reward_function.name=mine goes into what custom_reward_function.path becomes
custom_reward_function.reward_kwargs.scale=2 goes into what custom_reward_function.path becomes
reward_model.reward_manager=dapo has no effect: rewards are computed the same way for every manager
reward_model.overlong_buffer.enable=True -> reward: + {name: overlong, kind: soft_overlong, form: verl, buffer: 128, penalty_factor: 0.5}
reward_model.overlong_buffer.len=128 goes into what reward_model.overlong_buffer.enable becomes
reward_model.overlong_buffer.penalty_factor=0.5 goes into what reward_model.overlong_buffer.enable becomes
actor_rollout_ref.actor.use_kl_loss=True -> objective.kl.in: loss, objective.kl.coefficient: 0.001
actor_rollout_ref.actor.kl_loss_type=low_var_kl -> objective.kl.estimator: k3
actor_rollout_ref.actor.use_dynamic_bsz=True -> train.micro_batch_tokens: 16384
data.filter_overlong_prompts=True -> data.overlong_prompts: drop
data.truncation=error has no effect: data.filter_overlong_prompts drops longer prompts
actor_rollout_ref.rollout.top_k=-1 -> rollout.top_k: 0
actor_rollout_ref.rollout.val_kwargs.do_sample=True goes into what actor_rollout_ref.rollout.val_kwargs.temperature becomes
actor_rollout_ref.rollout.val_kwargs.temperature=0.6 -> validate.temperature: 0.6
critic.optim.lr=1e-5 has no effect: group-relative advantages have no critic
data.train_batch_size is not given -> data.train_batch_size: 1024 (verl's default)
actor_rollout_ref.actor.ppo_mini_batch_size is not given -> train.ppo_mini_batch_size: 256 (verl's default)
actor_rollout_ref.rollout.n is not given -> rollout.n: 1 (verl's default)
trainer.total_epochs is not given -> train.total_epochs: 30 (verl's default)
"#);
}

#[test]
fn kl_in_the_reward() {
    let import = converted(&[
        "algorithm.adv_estimator=grpo",
        "data.train_files=t",
        "actor_rollout_ref.model.path=m",
        "algorithm.use_kl_in_reward=True",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.target_kl=0.05",
    ]);
    let kl = loaded(&import).objective.kl;
    assert_eq!(
        serde_json::to_string(&kl).unwrap(),
        r#"{"in":"reward","estimator":"k1","coefficient":0.001,"adaptive":{"target":0.05,"horizon":10000.0}}"#
    );
}

#[test]
fn example_files_of_easyr1() {
    let folder = tempfile::tempdir().unwrap();
    let standard = "data:\n  rollout_batch_size: 128\n  train_files: math.parquet\n\nalgorithm:\n  adv_estimator: grpo\n  use_dynamic_sample: \
                    true\n  dynamic_sample_max_gen_batches: 3\n\nworker:\n  actor:\n    model: {model_path: m}\n  rollout:\n    n: 16\n";
    let path = folder.path().join("standard.yaml");
    std::fs::write(&path, standard).unwrap();
    let import = converted(&[path.to_str().unwrap()]);
    let yaml = import.yaml.replace(folder.path().to_str().unwrap(), "DIR");
    assert_snapshot!(yaml, @r#"
model:
  path: m  # DIR/standard.yaml:12
data:
  train: math.parquet  # DIR/standard.yaml:3
  train_batch_size: 128  # DIR/standard.yaml:2
  overlong_prompts: drop  # EasyR1: data.filter_overlong_prompts (default)
rollout:
  n: 16  # DIR/standard.yaml:14
reward:
  - {kind: math}  # EasyR1: guessed
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
    estimator: grpo  # DIR/standard.yaml:6
    singleton: raw  # DIR/standard.yaml:6
  loss:
    clip_high: 0.3  # EasyR1: worker.actor.clip_ratio_high (default)
  kl:
    in: reward  # EasyR1: algorithm.use_kl_loss (default)
    estimator: k1  # EasyR1: algorithm.kl_penalty (default)
    coefficient: 0.001  # EasyR1: algorithm.kl_coef (default)
train:
  total_epochs: 15  # EasyR1: trainer.total_epochs (default)
"#);
    assert_snapshot!(notes(&import), @r#"
data.rollout_batch_size=128 -> data.train_batch_size: 128
data.train_files=math.parquet -> data.train: math.parquet
algorithm.adv_estimator=grpo -> objective.advantage.estimator: grpo, objective.advantage.singleton: raw
algorithm.use_dynamic_sample=true -> filter.kind: variance, filter.metric: seq_reward, filter.singleton: keep, filter.tolerance: 0.0, schedule.refill: true, schedule.on_limit: use_partial, schedule.on_empty_round: retry, schedule.on_exhausted: use_partial, schedule.surplus: discard, schedule.order: dispatch
algorithm.dynamic_sample_max_gen_batches=3 -> schedule.max_num_gen_batches: 3
worker.actor.model.model_path=m -> model.path: m
worker.rollout.n=16 -> rollout.n: 16
worker.actor.global_batch_size is not given -> train.ppo_mini_batch_size: null (its default of 256 is above the batch: one update a step)
worker.actor.clip_ratio_high is not given -> objective.loss.clip_high: 0.3 (EasyR1's default)
data.filter_overlong_prompts is not given -> data.overlong_prompts: drop (EasyR1's default)
algorithm.use_kl_loss is not given -> objective.kl.in: reward (EasyR1's default)
algorithm.kl_penalty is not given -> objective.kl.estimator: k1 (EasyR1's default)
algorithm.kl_coef is not given -> objective.kl.coefficient: 0.001 (EasyR1's default)
trainer.total_epochs is not given -> train.total_epochs: 15 (EasyR1's default)
worker.reward.reward_function is not given -> reward: [{kind: math}] (warning: EasyR1 has none of its own; guessed from the name of the data, choose another kind if it is wrong)
"#);

    let limitless = converted(&[
        "algorithm.use_dynamic_sample=true",
        "algorithm.dynamic_sample_max_gen_batches=0",
        "data.rollout_batch_size=64",
        "worker.rollout.n=32",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
    ]);
    assert_eq!(loaded(&limitless).schedule.max_num_gen_batches, None);
    // Only the switch: the limit is the owner's 3.
    let switch = converted(&[
        "algorithm.use_dynamic_sample=true",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
        "worker.rollout.n=4",
    ]);
    assert_eq!(loaded(&switch).schedule.max_num_gen_batches, Some(3));
    let off = converted(&[
        "algorithm.use_dynamic_sample=false",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
        "worker.rollout.n=4",
    ]);
    assert_eq!(loaded(&off).filter, None);
}

/// The document's four settings and RAGEN's later ones: what each becomes.
#[test]
fn pool_filters_of_ragen() {
    let say = |arguments: &[&str]| {
        let base = ["actor_rollout_ref.model.path=m", "data.train_files=t", "actor_rollout_ref.rollout.n=8"];
        let given: Vec<String> = base
            .iter()
            .map(|argument| (*argument).to_owned())
            .chain(arguments.iter().map(|key| format!("actor_rollout_ref.rollout.rollout_filter_{key}")))
            .collect();
        match import(&given) {
            Ok(import) => {
                let notes = import.notes.iter().filter(|note| note.key.contains("rollout_filter_"));
                let text: Vec<String> = notes
                    .map(|note| note.to_string().replace("actor_rollout_ref.rollout.rollout_filter_", "…"))
                    .collect();
                text.join("\n")
            }
            Err(errors) => errors.to_string().lines().next().unwrap_or_default().to_owned(),
        }
    };
    assert_snapshot!(say(&["strategy=top_p", "value=0.9", "include_zero=False"]), @r#"
…strategy=top_p -> filter.kind: top_p, filter.mass: softmax, filter.metric: seq_reward, filter.score: deviation, filter.ddof: 1, filter.prefer: largest, schedule.refill: false, schedule.on_empty_round: "retry:9" (the softmax nucleus, unless rollout_filter_top_p_prob_mode=linear)
…value=0.9 -> filter.p: 0.9
…include_zero=False -> filter.include_zero: false
"#);
    assert_snapshot!(say(&["strategy=top_k", "value=4"]), @r#"
…strategy=top_k -> filter.kind: top_k, filter.metric: seq_reward, filter.score: deviation, filter.ddof: 1, filter.prefer: largest, filter.include_zero: true, schedule.refill: false, schedule.on_empty_round: "retry:9" (a count of groups, as in RAGEN's filtering document)
…value=4 -> filter.k: 4
"#);
    assert_snapshot!(say(&["strategy=top_k", "value=0.5", "metric=length", "type=smallest"]), @r#"
…strategy=top_k -> filter.kind: top_k, filter.include_zero: true, schedule.refill: false, schedule.on_empty_round: "retry:9" (a fraction of the round's groups, as RAGEN has it since 2026-01-25)
…value=0.5 -> filter.fraction: 0.5
…metric=length -> filter.metric: length, filter.score: mean
…type=smallest -> filter.prefer: smallest
"#);
    assert_snapshot!(say(&["strategy=min_p", "value=0.8", "metric=reward"]), @r#"
…strategy=min_p -> filter.kind: min_p, filter.prefer: largest, filter.include_zero: true, schedule.refill: false, schedule.on_empty_round: "retry:9"
…value=0.8 -> filter.p: 0.8
…metric=reward -> filter.metric: seq_reward, filter.score: mean
"#);
    assert_snapshot!(say(&["value=0.9", "top_p_prob_mode=linear", "empty_stop_steps=5"]), @r#"
…value=0.9 -> filter.kind: top_p, filter.p: 0.9, filter.metric: seq_reward, filter.score: deviation, filter.ddof: 1, filter.prefer: largest, filter.include_zero: true, schedule.refill: false
…top_p_prob_mode=linear -> filter.mass: linear, filter.slack: 0.01
…empty_stop_steps=5 -> schedule.on_empty_round: skip, train.early_stop.empty_steps.patience: 5
"#);
    assert_snapshot!(say(&["strategy=percentile_range", "percentile_high=0.25"]), @r#"
…strategy=percentile_range -> filter.kind: percentile, filter.low: 0, filter.metric: seq_reward, filter.score: deviation, filter.ddof: 1, filter.prefer: largest, filter.include_zero: true, schedule.refill: false, schedule.on_empty_round: "retry:9"
…percentile_high=0.25 -> filter.high: 0.25
"#);
    assert_snapshot!(say(&["strategy=within_group", "value=0.5"]), @r#"
…strategy=within_group -> filter.kind: within_group, filter.metric: seq_reward, filter.include_zero: true, schedule.refill: false, schedule.on_empty_round: "retry:9"
…value=0.5 -> filter.fraction: 0.5
"#);
    assert_snapshot!(say(&["strategy=top_p", "empty_stop_steps=5"]), @r#"
…strategy=top_p -> filter: null
…empty_stop_steps=5 has no effect: with the value 1 and include_zero every group is kept
"#);
    assert_snapshot!(say(&["strategy=top_k", "value=2.5"]), @"error: `actor_rollout_ref.rollout.rollout_filter_value=2.5` of RAGEN cannot be followed: top_k takes a whole number of groups, or a fraction of them below 1");
    assert_snapshot!(say(&["strategy=min_p", "value=1.5"]), @"error: `actor_rollout_ref.rollout.rollout_filter_value=1.5` of RAGEN cannot be followed: min_p takes a share of the best score, above 0 and at most 1");
    assert_snapshot!(say(&["strategy=best", "value=0.5"]), @"error: `actor_rollout_ref.rollout.rollout_filter_strategy` of RAGEN must be top_p, top_k, top_k_abs, top_f, min_p, percentile_range or within_group, not `best`");
    assert_snapshot!(say(&["value=0.5", "metric=regret"]), @"error: `actor_rollout_ref.rollout.rollout_filter_metric` of RAGEN must be reward_variance, reward, reward_sum, length, entropy or entropy_variance, not `regret`");
    assert_snapshot!(say(&["value=0.5", "top_p_prob_mode=cubic"]), @"error: `actor_rollout_ref.rollout.rollout_filter_top_p_prob_mode` of RAGEN must be softmax or linear, not `cubic`");
    assert_snapshot!(say(&["value=0.5", "type=middle"]), @"error: `actor_rollout_ref.rollout.rollout_filter_type` of RAGEN must be largest or smallest, not `middle`");
    assert_snapshot!(say(&["value=-0.5"]), @"error: `actor_rollout_ref.rollout.rollout_filter_value=-0.5` of RAGEN cannot be followed: a share of the mass lies above 0");
    assert_snapshot!(say(&["strategy=within_group", "value=4"]), @"error: `actor_rollout_ref.rollout.rollout_filter_value=4` of RAGEN cannot be followed: within_group takes a fraction of the members, above 0 and at most 1");
}

#[test]
fn online_filtering_of_easyr1() {
    let import = converted(&[
        "algorithm.online_filtering=true",
        "algorithm.filter_key=accuracy",
        "data.train_files=t",
        "worker.actor.model.model_path=m",
        "worker.rollout.n=5",
    ]);
    let config = loaded(&import);
    let filter = config.filter.unwrap();
    assert_eq!((filter.low, filter.high, filter.metric.as_deref()), (0.01, 0.99, Some("acc")));
    assert_eq!(config.schedule.max_num_gen_batches, Some(20));
}

#[test]
fn rollout_filter_of_ragen() {
    let import = converted(&[
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.model.path=m",
        "data.train_files=t",
        "es_manager.train.env_groups=8",
        "es_manager.train.group_size=16",
        "actor_rollout_ref.rollout.rollout_filter_value=1.0",
        "actor_rollout_ref.rollout.rollout_filter_include_zero=False",
        "actor_rollout_ref.actor.filter_loss_scaling=none",
        "trainer.total_training_steps=200",
    ]);
    assert_snapshot!(import.yaml, @r#"
model:
  path: m  # verl: actor_rollout_ref.model.path=m
data:
  train: t  # verl: data.train_files=t
  train_batch_size: 8  # RAGEN: es_manager.train.env_groups=8
rollout:
  n: 16  # RAGEN: es_manager.train.group_size=16
reward:
  - {kind: math}  # verl: guessed
filter:
  kind: variance  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
  metric: seq_reward  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
  singleton: drop  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
schedule:
  refill: false  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
  on_empty_round: "retry:9"  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
objective:
  advantage:
    estimator: grpo  # verl: algorithm.adv_estimator=grpo
    singleton: raw  # verl: algorithm.adv_estimator=grpo
train:
  total_steps: 200  # verl: trainer.total_training_steps=200
  total_epochs: 30  # verl: trainer.total_epochs (default)
"#);
    let off = converted(&[
        "actor_rollout_ref.rollout.rollout_filter_value=1.0",
        "actor_rollout_ref.model.path=m",
        "data.train_files=t",
    ]);
    assert_eq!(loaded(&off).filter, None);
}

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
    assert_snapshot!(import.yaml, @r#"
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
    clip_low: 0.2  # TRL: epsilon_high=0.28
    clip_high: 0.28  # TRL: epsilon_high=0.28
    dual_clip: null  # TRL: epsilon_high=0.28
  aggregation: seq-mean-token-mean  # TRL: loss_type=grpo
  kl:
    in: loss  # TRL: beta=0.04
    estimator: k3  # TRL: beta=0.04
    coefficient: 0.04  # TRL: beta=0.04
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
"#);
    assert_snapshot!(notes(&import), @r#"
model_name_or_path=./model -> model.path: ./model
dataset_name=data.jsonl -> data.train: data.jsonl
output_dir=out/first -> run.dir: out, run.name: first
num_generations=8 -> rollout.n: 8
per_device_train_batch_size=16 -> data.train_batch_size: 8, train.micro_batch_size: 16 (TRL counts completions, on one device here; prompts are counted by tamis)
gradient_accumulation_steps=4 -> train.ppo_mini_batch_size: 8
beta=0.04 -> objective.kl.in: loss, objective.kl.estimator: k3, objective.kl.coefficient: 0.04
epsilon_high=0.28 -> objective.loss.clip_low: 0.2, objective.loss.clip_high: 0.28, objective.loss.dual_clip: null
loss_type=grpo -> objective.aggregation: seq-mean-token-mean
scale_rewards=none -> objective.advantage.scale: none, objective.advantage.norm_by_std: false
reward_funcs=["accuracy_reward","think_format_reward"] -> reward: [{kind: math, weight: 1.0}, {name: think_format, kind: think_format, weight: 0.2}]
reward_weights=[1.0,0.2] goes into what reward_funcs becomes
lr_scheduler_type=cosine -> train.lr_schedule.kind: cosine
warmup_ratio=0.1 -> train.lr_schedule.warmup_steps: 20
max_steps=200 -> train.total_steps: 200
use_vllm=true has no effect: the native engine generates
report_to=wandb -> run.loggers: [console, jsonl] (warning: wandb is not there yet; metrics.jsonl holds the same figures, and TensorBoard files are there)
bf16=true has no effect: computation is in f32
seed is not given -> run.seed: 42 (TRL's default)
weight_decay is not given -> train.optimizer.weight_decay: 0.0 (TRL's default)
save_steps is not given -> checkpoint.save_freq: 500 (TRL's default)
"#);
    assert_eq!(import.remaining, []);
}

#[test]
fn what_a_conversion_lacks_is_said() {
    let import = converted(&["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=1"]);
    let said: Vec<String> = import.remaining.iter().map(|found| found.problem.to_string()).collect();
    assert_snapshot!(said.join("\n"), @r#"
there is no model: neither `model.path` nor `model.init` is set
there are no training prompts: neither `data.train` nor the task `arithmetic` is set
`rollout.n` is 1: a group of one has nothing to be compared with, the advantage is the reward itself
"#);
}

/// Each key alone, with its owner's default, is translated or refused, and what it becomes are keys that exist.
#[test]
fn every_foreign_key_leads_somewhere() {
    for owner in Owner::ALL {
        for entry in owner.keys() {
            if let Becomes::Key(ours) = entry.becomes {
                assert!(tamis_config::explain(ours).is_ok(), "{owner}: {} becomes {ours}", entry.key);
            }
            if let Becomes::Rule(_, targets) = entry.becomes {
                for ours in targets.split(' ') {
                    assert!(tamis_config::explain(ours).is_ok(), "{owner}: {} becomes {ours}", entry.key);
                }
            }
            let value = if entry.default.is_empty() { "1" } else { entry.default };
            let argument = format!("{}={value}", entry.key.replace('*', "x"));
            match import(std::slice::from_ref(&argument)) {
                Ok(import) => assert!(!import.notes.is_empty(), "{argument} says nothing"),
                Err(errors) => assert!(
                    matches!(
                        entry.becomes,
                        Becomes::Unless(..) | Becomes::Rule(Rule::Advantage | Rule::TrlRewards, _)
                    ) || errors.to_string().contains("cannot be followed")
                        || errors.to_string().contains(" must be "),
                    "{argument}: {errors}"
                ),
            }
        }
    }
}
