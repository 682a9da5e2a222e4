//! The critic's settings against the rest.

use insta::assert_snapshot;

use crate::{show_errors, try_load};

#[test]
fn a_critic_is_there_where_advantages_need_one() {
    let load = |arguments: &[&str]| {
        let base = ["model.path=m", "data.task=arithmetic", "train.total_steps=10"];
        try_load("", &[&base, arguments].concat()).unwrap().config
    };
    let ppo = load(&["preset=ppo", "train.ppo_mini_batch_size=32", "train.ppo_epochs=2"]);
    assert!(ppo.has_critic());
    assert_eq!((ppo.critic_mini_batch_size(), ppo.critic_epochs()), (32, 2), "as the policy's");
    assert_eq!(ppo.critic.cliprange_value, Some(0.2));
    let own = load(&["preset=ppo", "critic.ppo_mini_batch_size=16", "critic.ppo_epochs=3"]);
    assert_eq!((own.critic_mini_batch_size(), own.critic_epochs()), (16, 3));
    assert!(!load(&["preset=rloo"]).has_critic());
    assert!(load(&["objective.advantage.kind=bi_level_gae"]).has_critic());
    // Neither the group's size nor the filter is group-relative here.
    assert_eq!(show_errors("preset: ppo", &["rollout.n=1"]), "");
}

#[test]
fn settings_without_a_critic() {
    let yaml = "critic:\n  warmup_steps: 5\n  optimizer: {learning_rate: 1e-4, betas: [0.9, 0.999]}\n";
    assert_snapshot!(show_errors(yaml, &[]), @"
warning: `critic.optimizer.learning_rate` has no effect: the advantage estimator has no critic
  at run.yaml:3:   optimizer: {learning_rate: «1e-4», betas: [0.9, 0.999]} [remove it]
warning: `critic.warmup_steps` has no effect: the advantage estimator has no critic
  at run.yaml:2:   warmup_steps: «5» [remove it]
");
}

#[test]
fn critics() {
    let ppo = |yaml: &str, arguments: &[&str]| show_errors(&format!("preset: ppo\n{yaml}"), arguments);
    assert_snapshot!([
        ppo("critic: {ppo_mini_batch_size: 512}", &["data.train_batch_size=256"]),
        ppo("critic: {ppo_mini_batch_size: 96}", &["data.train_batch_size=256"]),
        ppo("critic: {ppo_mini_batch_size: 64}", &["train.micro_batch_size=6", "train.ppo_mini_batch_size=96", "data.train_batch_size=192", "rollout.n=2"]),
        ppo("critic: {warmup_steps: 10}", &[]),
        ppo("critic: {lr_schedule: {kind: linear}}", &["~train.total_steps"]),
        ppo("critic: {lr_schedule: {min_ratio: 0.1}}", &[]),
        ppo("filter: {kind: variance}", &[]),
        ppo("critic: {cliprange_value: 0, optim: {lr: 1e-5}, model: {path: ''}}", &[]),
    ].join("\n"), @r#"
    error: `critic.ppo_mini_batch_size` (512) is above `data.train_batch_size` (256); both count prompts
      at run.yaml:2: critic: {ppo_mini_batch_size: «512»}
      hint: use 256 or less, or null for the policy's size
    warning: `data.train_batch_size` (256) is not divisible by `critic.ppo_mini_batch_size` (96): the last of 3 updates of the critic in a step has 64 prompts
      at run.yaml:2: critic: {ppo_mini_batch_size: «96»}
      hint: 64 or 128 divide 256
    error: `critic.ppo_mini_batch_size` (64) times `rollout.n` (2) is not divisible by `train.micro_batch_size` (6)
      at run.yaml:2: critic: {ppo_mini_batch_size: «64»}
      hint: remove `train.micro_batch_size`: `train.micro_batch_tokens` needs no divisor
    error: `critic.warmup_steps` (10) is not below `train.total_steps` (10): the policy would never be trained
      at run.yaml:2: critic: {warmup_steps: «10»}
      hint: use fewer than 10 steps, or train for longer
    error: the length of the run is not set: neither `train.total_steps` nor `train.total_epochs` is given
      hint: set `train.total_steps` or `train.total_epochs`
    error: `critic.lr_schedule.kind: linear` falls towards the last step, but the number of steps is not known
      at run.yaml:2: critic: {lr_schedule: {kind: «linear»}}
      hint: set `train.total_steps`, or `critic.lr_schedule.kind: constant`
    warning: `critic.lr_schedule.min_ratio` has no effect: the critic's learning rate is constant
      at run.yaml:2: critic: {lr_schedule: {min_ratio: «0.1»}} [remove it]
    warning: the filter keeps only groups with max > min, but the others have signal too: `gae` compares with a critic, not within the group
      at run.yaml:2: filter: {kind: «variance»}
      hint: set `filter: null`
    error: unknown key `critic.optim`
      at run.yaml:2: critic: {cliprange_value: 0, «optim»: {lr: 1e-5}, model: {path: ''}}
      hint: did you mean `critic.optimizer`?
    error: `critic.model.path` must be non-empty, got ""
      at run.yaml:2: critic: {cliprange_value: 0, optim: {lr: 1e-5}, model: {path: «''»}} [explain it]
    error: `critic.cliprange_value` must be greater than 0, got 0
      at run.yaml:2: critic: {cliprange_value: «0», optim: {lr: 1e-5}, model: {path: ''}} [explain it]
    "#);
}

/// A filter that drops groups from which the estimator could learn.
#[test]
fn filters_that_drop_signal() {
    let text =
        |preset: &str, kind: &str| show_errors(&format!("preset: {preset}\nfilter: {{kind: {kind}}}\n"), &[]);
    let mut all = Vec::new();
    for (preset, kind) in
        [("ppo", "mean_range"), ("remax", "variance"), ("reinforce_plus_plus", "mean_range")]
    {
        all.extend(text(preset, kind).lines().filter(|line| line.starts_with("warning")).map(str::to_owned));
    }
    assert_snapshot!(all.join("\n"), @"
warning: the filter keeps only groups with 0 < mean < 1, but the others have signal too: `gae` compares with a critic, not within the group
warning: the filter keeps only groups with max > min, but the others have signal too: `remax` compares with the greedy answer, not within the group
warning: the filter keeps only groups with 0 < mean < 1, but the others have signal too: `reinforce_plus_plus` compares with the whole batch, not within the group
");
    // Groups that are all right or all wrong teach these estimators nothing. A pool ranks groups, and leaves
    // them out by rank.
    for (preset, kind) in [("rloo", "variance"), ("rloo", "mean_range"), ("remax", "within_group, k: 2")] {
        assert!(!text(preset, kind).contains("signal"), "{preset} {kind}");
    }
}
