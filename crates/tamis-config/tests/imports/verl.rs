//! Commands of verl and its DAPO recipe.

use insta::assert_snapshot;
use tamis_core::objective::PolicyLoss;
use tamis_core::schedule::RoundLimit;

use crate::{converted, import_errors, loaded, notes};

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
  # verl: trainer.logger=["console","wandb"]
  loggers: [console, {kind: wandb, project: math_dapo_experiment}, jsonl]
model:
  path: Qwen/Qwen2-7B-Instruct  # verl: actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct
data:
  # verl: data.train_files=['/home/me/data/math/train.parquet']
  train: [/home/me/data/math/train.parquet]
  val: [/home/me/data/math/test.parquet]  # verl: data.val_files=['/home/me/data/math/test.parquet']
  train_batch_size: 1024  # verl: data.train_batch_size=1024
  max_prompt_length: 2048  # verl: data.max_prompt_length=2048
rollout:
  backend: vllm  # verl: actor_rollout_ref.rollout.name=vllm
  launch:
    replicas: 4  # verl: trainer.n_gpus_per_node=8
    tensor_parallel: 2  # verl: actor_rollout_ref.rollout.tensor_model_parallel_size (default)
  n: 8  # verl: actor_rollout_ref.rollout.n=8
  temperature: 0.7  # verl: actor_rollout_ref.rollout.temperature=0.7
  max_response_length: 2048  # verl: data.max_response_length=2048
reward:
  - {kind: by_source}  # verl: custom_reward_function.path (default)
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
actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct -> model.path: Qwen/Qwen2-7B-Instruct
actor_rollout_ref.actor.optim.lr=1e-6 -> train.optimizer.learning_rate: 1e-6
actor_rollout_ref.rollout.n=8 -> rollout.n: 8
actor_rollout_ref.rollout.temperature=0.7 -> rollout.temperature: 0.7
actor_rollout_ref.rollout.name=vllm -> rollout.backend: vllm, rollout.launch: {} (the run starts the engine as a server of its own, which has to be installed here; for servers that are running already: `rollout.servers=[http://HOST:PORT]`)
trainer.total_epochs=20 -> train.total_epochs: 20
trainer.n_gpus_per_node=8 -> rollout.launch.replicas: 4 (the GPUs of this machine, as many for each server as share a model; the learner is on the CPU)
trainer.save_freq=5 -> checkpoint.save_freq: 5
trainer.test_freq=2 -> validate.test_freq: 2
trainer.logger=["console","wandb"] -> run.loggers: [console, {kind: wandb, project: math_dapo_experiment}, jsonl]
trainer.project_name=math_dapo_experiment -> run.dir: runs/math_dapo_experiment
trainer.experiment_name=qwen2_7b_filtergroups_enabled -> run.name: qwen2_7b_filtergroups_enabled
actor_rollout_ref.rollout.tensor_model_parallel_size is not given -> rollout.launch.tensor_parallel: 2 (verl's default)
actor_rollout_ref.actor.ppo_mini_batch_size is not given -> train.ppo_mini_batch_size: 256 (verl's default)
custom_reward_function.path is not given -> reward: [{kind: by_source}] (verl's default: the verifier of each row by its data_source)
"#);
    assert_eq!(import.remaining, []);
    let config = loaded(&import);
    assert_eq!(config.schedule.max_num_gen_batches, RoundLimit::Rounds(15));
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
    assert_eq!(loaded(&quoted).data.train.files(), [std::path::PathBuf::from("/x/y.parquet")]);
}

#[test]
fn filter_without_metric_and_limit() {
    let import = converted(&[
        "algorithm.adv_estimator=grpo",
        "algorithm.filter_groups.enable=True",
        "data.train_files=t",
        "actor_rollout_ref.model.path=m",
    ]);
    assert_snapshot!(import.yaml, @"
model:
  path: m  # verl: actor_rollout_ref.model.path=m
data:
  train: t  # verl: data.train_files=t
  train_batch_size: 1024  # verl: data.train_batch_size (default)
rollout:
  n: 1  # verl: actor_rollout_ref.rollout.n (default)
reward:
  - {kind: by_source}  # verl: custom_reward_function.path (default)
filter:
  kind: variance  # verl: algorithm.filter_groups.enable=True
  metric: seq_reward  # verl: algorithm.filter_groups.enable=True
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
    kind: grpo  # verl: algorithm.adv_estimator=grpo
    singleton: raw  # verl: algorithm.adv_estimator=grpo
train:
  ppo_mini_batch_size: 256  # verl: actor_rollout_ref.actor.ppo_mini_batch_size (default)
  total_epochs: 30  # verl: trainer.total_epochs (default)
");
}

/// The command of DAPO's released run: nothing of it is refused, and all of it is accounted for.
#[test]
fn the_released_command_of_dapo() {
    let arguments = [
        "python3",
        "-m",
        "recipe.dapo.main_dapo",
        "data.train_files=/d/dapo-math-17k.parquet",
        "data.val_files=/d/aime-2024.parquet",
        "data.prompt_key=prompt",
        "data.truncation='left'",
        "data.max_prompt_length=2048",
        "data.max_response_length=20480",
        "data.gen_batch_size=1536",
        "data.train_batch_size=512",
        "actor_rollout_ref.rollout.n=16",
        "algorithm.adv_estimator=grpo",
        "algorithm.use_kl_in_reward=False",
        "algorithm.kl_ctrl.kl_coef=0.0",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.actor.kl_loss_coef=0.0",
        "actor_rollout_ref.actor.clip_ratio_low=0.2",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
        "actor_rollout_ref.actor.clip_ratio_c=10.0",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.max_num_gen_batches=10",
        "algorithm.filter_groups.metric=acc",
        "actor_rollout_ref.model.use_remove_padding=True",
        "+actor_rollout_ref.model.override_config.max_position_embeddings=32768",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=22528",
        "actor_rollout_ref.model.path=/m",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=10",
        "actor_rollout_ref.actor.optim.weight_decay=0.1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.fsdp_config.param_offload=True",
        "actor_rollout_ref.actor.entropy_coeff=0",
        "actor_rollout_ref.actor.grad_clip=1.0",
        "actor_rollout_ref.actor.loss_agg_mode=token-mean",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=8",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.80",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
        "actor_rollout_ref.rollout.enable_chunked_prefill=True",
        "actor_rollout_ref.rollout.temperature=1.0",
        "actor_rollout_ref.rollout.top_p=1.0",
        "actor_rollout_ref.rollout.top_k=-1",
        "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
        "actor_rollout_ref.rollout.val_kwargs.top_p=0.7",
        "actor_rollout_ref.rollout.val_kwargs.top_k=-1",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
        "actor_rollout_ref.rollout.val_kwargs.n=1",
        "actor_rollout_ref.ref.fsdp_config.param_offload=True",
        "actor_rollout_ref.ref.ulysses_sequence_parallel_size=8",
        "actor_rollout_ref.actor.fsdp_config.fsdp_size=-1",
        "reward_model.reward_manager=dapo",
        "reward_model.overlong_buffer.enable=True",
        "reward_model.overlong_buffer.len=4096",
        "reward_model.overlong_buffer.penalty_factor=1.0",
        "trainer.logger=['console','wandb']",
        "trainer.project_name=DAPO",
        "trainer.experiment_name=x",
        "trainer.n_gpus_per_node=8",
        "trainer.nnodes=16",
        "trainer.val_before_train=True",
        "trainer.test_freq=5",
        "trainer.save_freq=5",
        "trainer.total_epochs=1",
        "trainer.default_local_dir=/c",
        "trainer.resume_mode=auto",
    ];
    let import = converted(&arguments);
    for argument in &arguments[3..] {
        let key = argument.trim_start_matches('+').split('=').next().unwrap();
        assert!(import.notes.iter().any(|note| note.key == key), "nothing is said about {key}");
    }
    let config = loaded(&import);
    assert_eq!(
        (config.gen_batch_size(), config.data.train_batch_size, config.mini_batch_size()),
        (1536, 512, 32)
    );
    assert_eq!((config.rollout.n, config.rollout.max_response_length, config.rollout.top_k), (16, 20_480, 0));
    let PolicyLoss::Clip(clip) = config.objective.loss else { panic!("clip") };
    assert_eq!((clip.clip_high, clip.dual_clip), (0.28, Some(10.0)));
    assert_eq!((config.validate.temperature, config.validate.top_p), (1.0, 0.7));
    let rewards: Vec<&str> = config.reward.iter().map(|reward| reward.kind.as_str()).collect();
    assert_eq!(rewards, ["by_source", "soft_overlong"]);
    assert_eq!(config.schedule.max_num_gen_batches, RoundLimit::Rounds(10));
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
    assert_snapshot!(import.yaml, @"
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
    kind: grpo  # verl: algorithm.adv_estimator=grpo
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
");
    assert_snapshot!(notes(&import), @"
algorithm.adv_estimator=grpo -> objective.advantage.kind: grpo, objective.advantage.singleton: raw
data.train_files=gsm8k/train.parquet -> data.train: gsm8k/train.parquet
actor_rollout_ref.model.path=m -> model.path: m
custom_reward_function.path=score.py -> reward: [{kind: python, path: score.py, function: mine, style: verl, kwargs: {scale: 2}}]
custom_reward_function.name=mine goes into what custom_reward_function.path becomes
custom_reward_function.reward_kwargs.scale=2 goes into what custom_reward_function.path becomes
reward_model.reward_manager=dapo has no effect: its overlong punishment is that of its overlong buffer, all else is as for every manager
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
critic.optim.lr=1e-5 has no effect: the estimator of the advantages has no critic
data.train_batch_size is not given -> data.train_batch_size: 1024 (verl's default)
actor_rollout_ref.actor.ppo_mini_batch_size is not given -> train.ppo_mini_batch_size: 256 (verl's default)
actor_rollout_ref.rollout.n is not given -> rollout.n: 1 (verl's default)
trainer.total_epochs is not given -> train.total_epochs: 30 (verl's default)
");
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
        r#"{"in":"reward","estimator":"k1","coefficient":0.001,"straight_through":false,"bias_corrected":false,"adaptive":{"target":0.05,"horizon":10000.0}}"#
    );
}

#[test]
fn the_contrast_of_the_fork() {
    let import = converted(&[
        "algorithm.adv_estimator=cpo",
        "+algorithm.gold_as_hint=True",
        "actor_rollout_ref.actor.wrap_method=tok_kl",
        "actor_rollout_ref.actor.neg_alpha=0.5",
        "actor_rollout_ref.actor.cpo_lambda=2.0",
        "actor_rollout_ref.actor.loss_position=all",
        "data.train_files=train.parquet",
    ]);
    assert_snapshot!(import.yaml, @"
data:
  train: train.parquet  # verl: data.train_files=train.parquet
  train_batch_size: 1024  # verl: data.train_batch_size (default)
rollout:
  n: 1  # verl: actor_rollout_ref.rollout.n (default)
reward:
  - {kind: by_source}  # verl: custom_reward_function.path (default)
objective:
  advantage:
    kind: cpo  # verl: algorithm.adv_estimator=cpo
    wrap: tok_kl  # verl: actor_rollout_ref.actor.wrap_method=tok_kl
    neg_alpha: 0.5  # verl: actor_rollout_ref.actor.neg_alpha=0.5
    singleton: raw  # verl: algorithm.adv_estimator=cpo
train:
  ppo_mini_batch_size: 256  # verl: actor_rollout_ref.actor.ppo_mini_batch_size (default)
  total_epochs: 30  # verl: trainer.total_epochs (default)
");
    assert_snapshot!(notes(&import), @"
algorithm.adv_estimator=cpo -> objective.advantage.kind: cpo, objective.advantage.singleton: raw (groups of rights and of wrongs are found here by their rewards; the fork compares a list with a number, finds none, and so only lowers wrong completions in groups of wrongs. The gold answer stands in `objective.advantage.gold_hint`, in other words than there)
algorithm.gold_as_hint=True has no effect: the estimator `cpo` always shows the gold answer, no other does
actor_rollout_ref.actor.wrap_method=tok_kl -> objective.advantage.wrap: tok_kl
actor_rollout_ref.actor.neg_alpha=0.5 -> objective.advantage.neg_alpha: 0.5
actor_rollout_ref.actor.cpo_lambda=2.0 has no effect: the fork's `seq_kl` and `tok_kl` do not read it
actor_rollout_ref.actor.loss_position=all has no effect: this is how tamis works without the key
data.train_files=train.parquet -> data.train: train.parquet
data.train_batch_size is not given -> data.train_batch_size: 1024 (verl's default)
actor_rollout_ref.actor.ppo_mini_batch_size is not given -> train.ppo_mini_batch_size: 256 (verl's default)
actor_rollout_ref.rollout.n is not given -> rollout.n: 1 (verl's default)
trainer.total_epochs is not given -> train.total_epochs: 30 (verl's default)
custom_reward_function.path is not given -> reward: [{kind: by_source}] (verl's default: the verifier of each row by its data_source)
");
    let import =
        converted(&["algorithm.adv_estimator=optimal_token_baseline", "data.train_files=train.parquet"]);
    assert_snapshot!(import.yaml, @"
data:
  train: train.parquet  # verl: data.train_files=train.parquet
  train_batch_size: 1024  # verl: data.train_batch_size (default)
rollout:
  n: 1  # verl: actor_rollout_ref.rollout.n (default)
reward:
  - {kind: by_source}  # verl: custom_reward_function.path (default)
objective:
  advantage:
    kind: optimal_token_baseline  # verl: algorithm.adv_estimator=optimal_token_baseline
    tail: zeroed_by_count  # verl: algorithm.adv_estimator=optimal_token_baseline
    epsilon: 1e-8  # verl: algorithm.adv_estimator=optimal_token_baseline
    singleton: raw  # verl: algorithm.adv_estimator=optimal_token_baseline
    masked_rewards: lost  # verl: algorithm.adv_estimator=optimal_token_baseline
train:
  ppo_mini_batch_size: 256  # verl: actor_rollout_ref.actor.ppo_mini_batch_size (default)
  total_epochs: 30  # verl: trainer.total_epochs (default)
");
}

#[test]
fn forms_of_the_contrast_that_no_script_names_are_refused() {
    let form = "actor_rollout_ref.actor.wrap_method=negonly_mi3";
    let refused = import_errors(&["algorithm.adv_estimator=cpo", form]);
    assert!(refused.contains("of the fork's forms `seq_kl` and `tok_kl` are here"), "{refused}");
}
