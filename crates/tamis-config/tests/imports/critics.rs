//! Critics of the other systems.

use insta::assert_snapshot;

use crate::{converted, loaded, notes};

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
algorithm.adv_estimator=gae -> objective.advantage.estimator: gae
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
critic.ppo_micro_batch_size_per_gpu=4 has no effect: the critic is run with the policy's micro-batches, on its device
trainer.critic_warmup=20 -> critic.warmup_steps: 19 (verl trains the policy from step 20 on)
trainer.total_training_steps=100 -> train.total_steps: 100
data.train_batch_size is not given -> data.train_batch_size: 1024 (verl's default)
actor_rollout_ref.actor.ppo_mini_batch_size is not given -> train.ppo_mini_batch_size: 256 (verl's default)
actor_rollout_ref.rollout.n is not given -> rollout.n: 1 (verl's default)
trainer.total_epochs is not given -> train.total_epochs: 30 (verl's default)
custom_reward_function.path is not given -> reward: [{kind: math}] (warning: verl picks it by each row's data_source; guessed from the name of the data, choose another kind if it is wrong)
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
algorithm.adv_estimator is not given -> objective.advantage.estimator: gae (verl's default)
data.train_batch_size is not given -> data.train_batch_size: 1024 (verl's default)
actor_rollout_ref.actor.ppo_mini_batch_size is not given -> train.ppo_mini_batch_size: 256 (verl's default)
actor_rollout_ref.rollout.n is not given -> rollout.n: 1 (verl's default)
trainer.total_epochs is not given -> train.total_epochs: 30 (verl's default)
custom_reward_function.path is not given -> reward: [{kind: math}] (warning: verl picks it by each row's data_source; guessed from the name of the data, choose another kind if it is wrong)
");
}

#[test]
fn critics_of_easyr1_and_ragen() {
    let easyr1 = converted(&[
        "algorithm.adv_estimator=gae",
        "data.train_files=t",
        "data.rollout_batch_size=512",
        "worker.actor.model.model_path=m",
        "worker.critic.optim.lr=3e-6",
        "worker.critic.global_batch_size=64",
        "worker.critic.offload.offload_params=true",
    ]);
    assert_eq!(loaded(&easyr1).critic_mini_batch_size(), 64);
    assert_snapshot!(notes(&easyr1), @"
algorithm.adv_estimator=gae -> objective.advantage.estimator: gae
data.train_files=t -> data.train: t
data.rollout_batch_size=512 -> data.train_batch_size: 512
worker.actor.model.model_path=m -> model.path: m
worker.critic.optim.lr=3e-6 -> critic.optimizer.learning_rate: 3e-6
worker.critic.global_batch_size=64 -> critic.ppo_mini_batch_size: 64
worker.critic.offload.offload_params=true has no effect: the critic is run with the policy's micro-batches, on its device
worker.actor.global_batch_size is not given -> train.ppo_mini_batch_size: 256 (EasyR1's default)
worker.rollout.n is not given -> rollout.n: 1 (EasyR1's default)
worker.actor.clip_ratio_high is not given -> objective.loss.clip_high: 0.3 (EasyR1's default)
data.filter_overlong_prompts is not given -> data.overlong_prompts: drop (EasyR1's default)
algorithm.use_kl_loss is not given -> objective.kl.in: reward (EasyR1's default)
algorithm.kl_penalty is not given -> objective.kl.estimator: k1 (EasyR1's default)
algorithm.kl_coef is not given -> objective.kl.coefficient: 0.001 (EasyR1's default)
trainer.total_epochs is not given -> train.total_epochs: 15 (EasyR1's default)
worker.reward.reward_function is not given -> reward: [{kind: math}] (warning: EasyR1 has none of its own; guessed from the name of the data, choose another kind if it is wrong)
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
    assert_eq!(advantage.estimator, tamis_config::Estimator::BiLevelGae);
    assert!((advantage.turn_gamma - 0.9).abs() < 1e-12);
}
