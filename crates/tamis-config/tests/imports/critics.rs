//! Critics of the other systems.

use insta::assert_snapshot;
use tamis_config::{Import, load_sources};
use tamis_core::advantage::Advantage;
use tamis_core::objective::Aggregation;

use crate::{converted, import_errors, loaded, notes};

#[test]
fn ppo_of_verl() {
    let import = converted(&[
        "algorithm.adv_estimator=gae",
        "algorithm.gamma=0.99",
        "algorithm.lam=0.95",
        "data.train_files=t",
        "actor_rollout_ref.model.path=m",
        "critic.model.path=c",
        "critic.optim.lr=2e-5",
        "critic.optim.lr_warmup_steps_ratio=0.1",
        "critic.optim.warmup_style=cosine",
        "critic.grad_clip=0.5",
        "critic.ppo_mini_batch_size=128",
        "critic.ppo_epochs=2",
        "critic.cliprange_value=0.3",
        "critic.loss_agg_mode=seq-mean-token-mean",
        "critic.ppo_micro_batch_size_per_gpu=4",
        "trainer.critic_warmup=20",
        "trainer.total_training_steps=100",
    ]);
    let config = loaded(&import);
    assert!(config.has_critic());
    assert_eq!(config.critic.warmup_steps, 19, "verl trains the policy in step 20");
    assert_eq!(config.critic.lr_schedule.warmup_steps, 10);
    assert_snapshot!(notes(&import), @"
algorithm.adv_estimator=gae -> objective.advantage.kind: gae
algorithm.gamma=0.99 -> objective.advantage.gamma: 0.99
algorithm.lam=0.95 -> objective.advantage.lambda: 0.95
data.train_files=t -> data.train: t
actor_rollout_ref.model.path=m -> model.path: m
critic.model.path=c -> critic.model.path: c
critic.optim.lr=2e-5 -> critic.optimizer.learning_rate: 2e-5
critic.optim.lr_warmup_steps_ratio=0.1 -> critic.lr_schedule.warmup_steps: 10
critic.optim.warmup_style=cosine -> critic.lr_schedule.kind: cosine
critic.grad_clip=0.5 -> critic.optimizer.max_grad_norm: 0.5
critic.ppo_mini_batch_size=128 -> critic.ppo_mini_batch_size: 128
critic.ppo_epochs=2 -> critic.ppo_epochs: 2
critic.cliprange_value=0.3 -> critic.cliprange_value: 0.3
critic.loss_agg_mode=seq-mean-token-mean -> critic.aggregation: seq-mean-token-mean
critic.ppo_micro_batch_size_per_gpu=4 has no effect: the critic is run with the policy's micro-batches
trainer.critic_warmup=20 -> critic.warmup_steps: 19 (verl trains the policy from step 20 on)
trainer.total_training_steps=100 -> train.total_steps: 100
data.train_batch_size is not given -> data.train_batch_size: 1024 (verl's default)
actor_rollout_ref.actor.ppo_mini_batch_size is not given -> train.ppo_mini_batch_size: 256 (verl's default)
actor_rollout_ref.rollout.n is not given -> rollout.n: 1 (verl's default)
trainer.total_epochs is not given -> train.total_epochs: 30 (verl's default)
custom_reward_function.path is not given -> reward: [{kind: by_source}] (verl's default: the verifier of each row by its data_source)
");
}

#[test]
fn the_default_of_verl_has_a_critic() {
    let import =
        converted(&["data.train_files=t", "actor_rollout_ref.model.path=m", "trainer.critic_warmup=0"]);
    let config = loaded(&import);
    assert!(config.has_critic() && config.critic.warmup_steps == 0);
    assert_snapshot!(notes(&import), @"
data.train_files=t -> data.train: t
actor_rollout_ref.model.path=m -> model.path: m
trainer.critic_warmup=0 -> critic.warmup_steps: 0
algorithm.adv_estimator is not given -> objective.advantage.kind: gae (verl's default)
data.train_batch_size is not given -> data.train_batch_size: 1024 (verl's default)
actor_rollout_ref.actor.ppo_mini_batch_size is not given -> train.ppo_mini_batch_size: 256 (verl's default)
actor_rollout_ref.rollout.n is not given -> rollout.n: 1 (verl's default)
trainer.total_epochs is not given -> train.total_epochs: 30 (verl's default)
custom_reward_function.path is not given -> reward: [{kind: by_source}] (verl's default: the verifier of each row by its data_source)
");
}

#[test]
fn critics_of_easyr1_and_ragen() {
    let easyr1 = converted(&[
        "algorithm.adv_estimator=gae",
        "data.train_files=t",
        "data.rollout_batch_size=512",
        "worker.actor.model.model_path=m",
        "reward=[{kind: math}]",
        "worker.critic.optim.lr=3e-6",
        "worker.critic.global_batch_size=64",
        "worker.critic.offload.offload_params=true",
    ]);
    assert_eq!(loaded(&easyr1).critic_mini_batch_size(), 64);
    assert_snapshot!(notes(&easyr1), @"
algorithm.adv_estimator=gae -> objective.advantage.kind: gae
data.train_files=t -> data.train: t
data.rollout_batch_size=512 -> data.train_batch_size: 512
worker.actor.model.model_path=m -> model.path: m
worker.critic.optim.lr=3e-6 -> critic.optimizer.learning_rate: 3e-6
worker.critic.global_batch_size=64 -> critic.ppo_mini_batch_size: 64
worker.critic.offload.offload_params=true has no effect: devices and machines are set up by the sections `learner` and `cluster`
data.prompt_key is not given -> data.columns.prompt: prompt (EasyR1's default)
data.answer_key is not given -> data.columns.ground_truth: answer (EasyR1's default)
the form of prompts is not given -> data.prompt_format: chat (EasyR1's default)
worker.actor.global_batch_size is not given -> train.ppo_mini_batch_size: 256 (EasyR1's default)
worker.rollout.n is not given -> rollout.n: 1 (EasyR1's default)
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
    let ragen = converted(&[
        "algorithm.adv_estimator=gae",
        "algorithm.bi_level_gae=True",
        "algorithm.high_level_gamma=0.9",
        "data.train_files=t",
        "actor_rollout_ref.model.path=m",
        "agent_proxy.max_turn=1",
    ]);
    let advantage = loaded(&ragen).objective.advantage;
    let Advantage::BiLevelGae(gae) = advantage else { panic!("{advantage}") };
    assert!((gae.turn_gamma - 0.9).abs() < 1e-12);
}

/// EasyR1's critic has a learning rate, mini-batches and passes of its own, whatever the policy's are, and a
/// schedule.
#[test]
fn schedule_and_defaults_of_the_critic_of_easyr1() {
    let base = ["data.train_files=t", "worker.actor.model.model_path=m", "reward=[{kind: math}]"];
    let of = |more: &[&str]| converted(&[&base[..], more].concat());
    let printed = |import: &Import| -> String {
        let all = notes(import);
        let critic = all.lines().filter(|line| line.contains("critic"));
        critic.collect::<Vec<_>>().join("\n")
    };
    let import = of(&[
        "algorithm.adv_estimator=gae",
        "worker.actor.global_batch_size=128",
        "worker.actor.ppo_epochs=2",
        "worker.actor.loss_avg_mode=seq",
        "worker.critic.optim.lr_warmup_ratio=0.1",
        "worker.critic.optim.lr_scheduler_type=cosine",
        "worker.critic.optim.min_lr_ratio=0.2",
        "worker.critic.optim.strategy=adamw",
        "trainer.max_steps=200",
    ]);
    let config = loaded(&import);
    assert!((config.critic.optimizer.learning_rate - 1e-6).abs() < 1e-15);
    assert_eq!((config.mini_batch_size(), config.critic_mini_batch_size()), (128, 256));
    assert_eq!((config.train.ppo_epochs, config.critic_epochs()), (2, 1));
    assert_eq!(config.critic.aggregation, Some(Aggregation::TokenMean));
    assert_eq!(config.critic.lr_schedule.warmup_steps, 20);
    assert_snapshot!(printed(&import), @"
worker.critic.optim.lr_warmup_ratio=0.1 -> critic.lr_schedule.warmup_steps: 20
worker.critic.optim.lr_scheduler_type=cosine -> critic.lr_schedule.kind: cosine
worker.critic.optim.min_lr_ratio=0.2 -> critic.lr_schedule.min_ratio: 0.2
worker.critic.optim.strategy=adamw has no effect: the optimizer is AdamW, with moments in f32
worker.critic.optim.lr is not given -> critic.optimizer.learning_rate: 1e-6 (EasyR1's default)
worker.critic.global_batch_size is not given -> critic.ppo_mini_batch_size: 256 (EasyR1's default)
worker.critic.ppo_epochs is not given -> critic.ppo_epochs: 1 (EasyR1's default)
worker.critic.loss_avg_mode is not given -> critic.aggregation: token-mean (EasyR1's default)
");
    // 256 are above this batch, whose policy has two updates.
    let small = of(&[
        "algorithm.adv_estimator=gae",
        "data.rollout_batch_size=128",
        "worker.actor.global_batch_size=64",
        "worker.critic.optim.lr=2e-6",
        "worker.critic.optim.lr_warmup_steps=5",
        "worker.critic.loss_avg_mode=seq",
    ]);
    let config = loaded(&small);
    assert_eq!((config.mini_batch_size(), config.critic_mini_batch_size()), (64, 128));
    assert_eq!(config.critic.aggregation, Some(Aggregation::SeqMeanTokenMean));
    assert_snapshot!(printed(&small), @"
worker.critic.optim.lr=2e-6 -> critic.optimizer.learning_rate: 2e-6
worker.critic.optim.lr_warmup_steps=5 -> critic.lr_schedule.warmup_steps: 5
worker.critic.loss_avg_mode=seq -> critic.aggregation: seq-mean-token-mean
worker.critic.global_batch_size is not given -> critic.ppo_mini_batch_size: 128 (its default of 256 is above the batch: one update a step)
");
    let none = of(&[
        "algorithm.adv_estimator=grpo",
        "worker.critic.optim.lr_warmup_ratio=0.1",
        "worker.critic.loss_avg_mode=seq",
    ]);
    assert_snapshot!(printed(&none), @"
worker.critic.optim.lr_warmup_ratio=0.1 has no effect: the estimator of the advantages has no critic
worker.critic.loss_avg_mode=seq has no effect: the estimator of the advantages has no critic
");
    let horizonless = ["algorithm.adv_estimator=gae", "worker.critic.optim.lr_warmup_ratio=0.1"];
    assert_snapshot!(import_errors(&[&base[..], &horizonless].concat()), @"
error: `worker.critic.optim.lr_warmup_ratio=0.1` of EasyR1 cannot be followed: the number of steps is not known, and with a filter it cannot be: give the warm-up in steps
 --> command line, EasyR1 key
  |
1 | worker.critic.optim.lr_warmup_ratio=0.1
  |                                     ^^^
  hint: `tamis config explain worker.critic.optim.lr_warmup_ratio` says what becomes of it

1 error in the configuration
");
}

/// RAGEN reads its switch with GAE alone.
#[test]
fn advantages_over_turns_of_ragen() {
    let of = |more: &[&str]| {
        let base = ["data.train_files=t", "actor_rollout_ref.model.path=m", "agent_proxy.max_turn=1"];
        let import =
            converted(&[&base[..], &["algorithm.bi_level_gae=True", "critic.optim.lr=2e-5"], more].concat());
        let all = notes(&import);
        let printed = all.lines().filter(|line| line.starts_with("algorithm") || line.starts_with("critic"));
        let printed = printed.collect::<Vec<_>>().join("\n");
        (loaded(&import).objective.advantage.to_string(), printed)
    };
    let (estimator, printed) = of(&["algorithm.adv_estimator=grpo"]);
    assert_eq!(estimator, "grpo");
    assert_snapshot!(printed, @"
algorithm.bi_level_gae=True has no effect: RAGEN reads it with the estimator gae alone, and this is grpo
critic.optim.lr=2e-5 has no effect: the estimator of the advantages has no critic
algorithm.adv_estimator=grpo -> objective.advantage.kind: grpo, objective.advantage.singleton: raw
");
    let (estimator, printed) = of(&[]);
    assert_eq!(estimator, "bi_level_gae");
    assert_snapshot!(printed, @"
algorithm.bi_level_gae=True -> objective.advantage.kind: bi_level_gae
critic.optim.lr=2e-5 -> critic.optimizer.learning_rate: 2e-5
");
    let (estimator, printed) = of(&["algorithm.adv_estimator=bi_level_gae"]);
    assert_eq!(estimator, "bi_level_gae");
    assert_snapshot!(printed, @"
algorithm.bi_level_gae=True goes into what algorithm.adv_estimator becomes
critic.optim.lr=2e-5 -> critic.optimizer.learning_rate: 2e-5
algorithm.adv_estimator=bi_level_gae -> objective.advantage.kind: bi_level_gae
");
    // As an override of a configuration of one's own, whose estimator is not looked at.
    let own = ["model.path=m", "data.task=arithmetic", "train.total_steps=1", "algorithm.bi_level_gae=True"];
    let own = load_sources(&[], &own.map(str::to_owned)).unwrap();
    assert_eq!(own.config.objective.advantage.as_str(), "grpo");
    assert_snapshot!(own.notes[0], @"algorithm.bi_level_gae=True has no effect: RAGEN reads it with the estimator gae alone: give algorithm.adv_estimator=gae too");
}
