//! Commands of verl's recipes and examples, in the spellings of several versions, with their variables
//! replaced and what only shares work out between devices left to the table of all keys.

use insta::assert_snapshot;
use tamis_config::{Config, Import, load_sources};
use tamis_core::objective::PolicyLoss;

use crate::{config, converted};

/// Arguments that DAPO's scripts have in common.
const DAPO: &[&str] = &[
    "data.train_files=/d/dapo-math-17k.parquet",
    "data.val_files=/d/aime-2024.parquet",
    "data.prompt_key=prompt",
    "data.truncation='left'",
    "data.max_prompt_length=2048",
    "data.max_response_length=8192",
    "data.train_batch_size=512",
    "actor_rollout_ref.rollout.n=16",
    "algorithm.adv_estimator=grpo",
    "algorithm.kl_ctrl.kl_coef=0.0",
    "actor_rollout_ref.actor.kl_loss_coef=0.0",
    "actor_rollout_ref.actor.clip_ratio_low=0.2",
    "actor_rollout_ref.actor.clip_ratio_high=0.28",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20480",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=30720",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=30720",
    "actor_rollout_ref.model.path=/m/Qwen2.5-Math-7B",
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=10",
    "actor_rollout_ref.actor.optim.weight_decay=0.1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.fsdp_config.param_offload=True",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
    "actor_rollout_ref.actor.fsdp_config.fsdp_size=-1",
    "actor_rollout_ref.actor.entropy_coeff=0",
    "actor_rollout_ref.actor.grad_clip=1.0",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size=8",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.80",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
    "actor_rollout_ref.rollout.enable_chunked_prefill=True",
    "actor_rollout_ref.rollout.max_num_batched_tokens=10240",
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
    "trainer.logger=['console','wandb']",
    "trainer.project_name=DAPO",
    "trainer.experiment_name=x",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=16",
    "trainer.test_freq=5",
    "trainer.save_freq=5",
    "trainer.total_epochs=1",
    "trainer.default_local_dir=/c",
    "trainer.resume_mode=auto",
];

/// Filter and two switches that most of them have.
const FILTERED: &[&str] = &[
    "data.gen_batch_size=1536",
    "algorithm.filter_groups.enable=True",
    "algorithm.filter_groups.max_num_gen_batches=10",
    "algorithm.filter_groups.metric=acc",
];

/// Converts a command, of which every key must have become something that is said; and checks that it loads.
fn script(program: &str, parts: &[&[&str]]) -> (Import, Config) {
    let keys: Vec<String> = parts.concat().into_iter().map(str::to_owned).collect();
    let words = ["python3", "-m", program].map(str::to_owned);
    let import = converted(&words.into_iter().chain(keys.clone()).collect::<Vec<_>>());
    for argument in &keys {
        let key = argument.trim_start_matches('+').split('=').next().expect("a value");
        assert!(import.notes.iter().any(|note| note.key == key), "nothing is said about {key}");
    }
    // As `train` and `check` take them, over rewards of one's own where there are none.
    let own = (!keys.iter().any(|key| key.contains("custom_reward_function.path")))
        .then(|| "reward=[{kind: by_source}]".to_owned());
    let arguments: Vec<String> = own.into_iter().chain(keys).collect();
    load_sources(&[], &arguments).unwrap_or_else(|errors| panic!("{errors}"));
    let config = config(&import);
    (import, config)
}

/// The rewards, and what is still to be said.
fn show((import, config): &(Import, Config)) -> String {
    let mut lines: Vec<String> =
        config.reward.iter().map(|reward| serde_json::to_string(reward).expect("a value")).collect();
    lines.extend(import.remaining.iter().map(|found| found.problem.to_string()));
    lines.join("\n")
}

#[test]
fn the_first_release_of_dapo() {
    let of_then = [
        "+actor_rollout_ref.model.override_config.attention_dropout=0.",
        "+actor_rollout_ref.model.override_config.embd_pdrop=0.",
        "+actor_rollout_ref.model.override_config.resid_pdrop=0.",
        "actor_rollout_ref.actor.use_token_level_loss=True",
        "reward_model.reward_manager=dapo",
        "custom_reward_function.overlong_buffer.enable=True",
        "custom_reward_function.overlong_buffer.len=4096",
        "custom_reward_function.overlong_buffer.penalty_factor=1.0",
        "+trainer.val_before_train=True",
    ];
    let script = script("recipe.dapo.src.main_dapo", &[DAPO, FILTERED, &of_then]);
    assert_snapshot!(show(&script), @r#"
{"name":"by_source","kind":"by_source","weight":1.0,"sources":{}}
{"name":"overlong","kind":"soft_overlong","weight":1.0,"form":"verl","buffer":4096,"max_length":8192,"penalty_factor":1.0}
"#);
    assert_eq!((script.1.gen_batch_size(), script.1.mini_batch_size(), script.1.rollout.n), (1536, 32, 16));
    assert_eq!(script.1.objective.aggregation.as_str(), "token-mean");
}

#[test]
fn dapo_through_the_main_trainer() {
    let of_then = [
        "algorithm.use_kl_in_reward=False",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.actor.clip_ratio_c=10.0",
        "actor_rollout_ref.actor.loss_agg_mode=token-mean",
        "+actor_rollout_ref.model.override_config.max_position_embeddings=32768",
        "reward_model.reward_manager=dapo",
        "+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True",
        "+reward_model.reward_kwargs.overlong_buffer_cfg.len=4096",
        "+reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0",
        "+reward_model.reward_kwargs.overlong_buffer_cfg.log=False",
        "+reward_model.reward_kwargs.max_resp_len=8192",
        "trainer.val_before_train=True",
        "trainer.total_training_steps=200",
        "trainer.log_val_generations=10",
    ];
    let script = script("verl.trainer.main_ppo", &[DAPO, &of_then]);
    assert_snapshot!(show(&script), @r#"
{"name":"by_source","kind":"by_source","weight":1.0,"sources":{}}
{"name":"overlong","kind":"soft_overlong","weight":1.0,"form":"verl","buffer":4096,"max_length":8192,"penalty_factor":1.0}
"#);
    assert_eq!(script.1.filter, None);
    let PolicyLoss::Clip(clip) = script.1.objective.loss else { panic!("clip") };
    assert_eq!(clip.dual_clip, Some(10.0));
}

#[test]
fn dapo_in_the_newest_spelling() {
    let of_now = [
        "reward.reward_manager.name=dapo",
        "+reward.reward_kwargs.overlong_buffer_cfg.enable=True",
        "+reward.reward_kwargs.overlong_buffer_cfg.len=4096",
        "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0",
        "+reward.reward_kwargs.overlong_buffer_cfg.log=True",
        "+reward.reward_kwargs.max_resp_len=8192",
        "reward.custom_reward_function.path=examples/fapo_trainer/reward_fn_reasoning.py",
        "reward.custom_reward_function.name=compute_score_baseline",
        "data.return_raw_chat=True",
        "data.filter_overlong_prompts=True",
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=4096",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.mode=async",
        "actor_rollout_ref.actor.entropy_checkpointing=True",
        "actor_rollout_ref.ref.entropy_checkpointing=True",
    ];
    let script = script("verl.trainer.main_ppo", &[DAPO, &of_now]);
    assert_snapshot!(show(&script), @r#"
{"name":"python","kind":"python","weight":1.0,"path":"examples/fapo_trainer/reward_fn_reasoning.py","function":"compute_score_baseline","style":"verl","kwargs":{},"python":"python3","num_processes":2,"timeout":"30s","startup_timeout":"60s","max_restarts":10}
{"name":"overlong","kind":"soft_overlong","weight":1.0,"form":"verl","buffer":4096,"max_length":8192,"penalty_factor":1.0}
"#);
}

#[test]
fn dapo_with_rollout_correction() {
    let corrected = [
        "algorithm.rollout_correction.rollout_is=sequence",
        "algorithm.rollout_correction.rollout_is_threshold=2.0",
        "algorithm.rollout_correction.rollout_is_batch_normalize=true",
        "algorithm.rollout_correction.rollout_rs=seq_mean_k1",
        "algorithm.rollout_correction.rollout_rs_threshold=0.99_1.01",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "reward_model.reward_manager=dapo",
        "reward_model.overlong_buffer.enable=True",
        "reward_model.overlong_buffer.len=4096",
        "reward_model.overlong_buffer.penalty_factor=1.0",
    ];
    let script = script("recipe.dapo.main_dapo", &[DAPO, FILTERED, &corrected]);
    assert_snapshot!(show(&script), @r#"
{"name":"by_source","kind":"by_source","weight":1.0,"sources":{}}
{"name":"overlong","kind":"soft_overlong","weight":1.0,"form":"verl","buffer":4096,"max_length":8192,"penalty_factor":1.0}
"#);
    let weights = script.1.objective.correction.weights.as_ref().expect("weights");
    assert_eq!((weights.level.as_str(), weights.max, weights.batch_normalize), ("sequence", 2.0, true));
}

/// The examples of other losses and estimators.
#[test]
fn losses_of_the_examples() {
    let base = [
        "data.train_files=['/d/gsm8k/train.parquet', '/d/math/train.parquet']",
        "data.val_files=['/d/gsm8k/test.parquet', '/d/math/test.parquet']",
        "data.train_batch_size=1024",
        "data.max_prompt_length=1024",
        "data.max_response_length=2048",
        "data.filter_overlong_prompts=True",
        "data.truncation='error'",
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
        "actor_rollout_ref.actor.ppo_mini_batch_size=256",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.n=5",
        "algorithm.use_kl_in_reward=False",
        "trainer.balance_batch=True",
        "trainer.critic_warmup=0",
        "trainer.total_epochs=15",
    ];
    let of = |more: &[&str]| script("verl.trainer.main_ppo", &[&base, more]);
    let mode = |name: &str| format!("actor_rollout_ref.actor.policy_loss.loss_mode={name}");
    let (import, config) = of(&[
        "algorithm.adv_estimator=grpo",
        &mode("geo_mean"),
        "actor_rollout_ref.actor.clip_ratio_low=0.4",
        "actor_rollout_ref.actor.clip_ratio_high=0.4",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.001",
        "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
    ]);
    let PolicyLoss::GeoMean(geo_mean) = config.objective.loss else { panic!("geo_mean") };
    assert_eq!(geo_mean.clip_low.to_bits(), 0.4_f64.to_bits());
    assert_eq!((import.remaining.len(), config.objective.kl.place.as_str()), (0, "loss"));
    let (_, config) = of(&[
        "algorithm.adv_estimator=grpo",
        "algorithm.norm_adv_by_std_in_grpo=False",
        &mode("dppo_tv"),
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
        "actor_rollout_ref.actor.clip_ratio_low=0.15",
        "actor_rollout_ref.actor.clip_ratio_high=0.15",
        "actor_rollout_ref.actor.clip_ratio_c=10000.0",
        "model_engine=megatron",
        "+actor_rollout_ref.actor.megatron.override_transformer_config.moe_router_dtype=fp32",
    ]);
    let PolicyLoss::DppoTv(dppo) = config.objective.loss else { panic!("dppo_tv") };
    assert_eq!((dppo.clip_low, dppo.max_ratio), (0.15, 10_000.0));
    let (_, config) =
        of(&["algorithm.adv_estimator=gpg", &mode("gpg"), "actor_rollout_ref.actor.entropy_coeff=0"]);
    assert_eq!(config.objective.loss.as_str(), "gpg");
    let (_, config) =
        of(&["algorithm.adv_estimator=gae", "critic.optim.lr=1e-5", "critic.model.path=Qwen/Qwen3-8B"]);
    assert_eq!(config.objective.advantage.as_str(), "gae");
}
