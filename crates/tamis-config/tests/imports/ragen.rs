//! Commands of RAGEN.

use insta::assert_snapshot;
use tamis_config::Import;

use crate::{converted, import_errors, loaded, notes};

/// RAGEN's base configuration is verl's with defaults of its own; mini-batches count trajectories there.
#[test]
fn defaults_of_ragen() {
    let base = [
        "algorithm.adv_estimator=grpo",
        "model_path=m",
        "data.train_files=t",
        "agent_proxy.max_turn=1",
        "actor_rollout_ref.actor.use_kl_loss=True",
    ];
    let with = |more: &[&str]| converted(&[&base[..], more].concat());
    let import = with(&["data.val_files=v"]);
    let config = loaded(&import);
    assert_eq!(
        (config.data.train_batch_size, config.rollout.n, config.train.ppo_mini_batch_size),
        (8, 16, Some(2))
    );
    assert_eq!(
        (config.train.total_steps, config.train.total_epochs, config.run.seed),
        (Some(200), None, 10_000)
    );
    assert_eq!((config.objective.loss.clip_high, config.objective.entropy.coefficient), (Some(0.28), 0.001));
    assert_eq!((config.validate.temperature, config.validate.max_prompts), (0.5, Some(512)));
    assert_eq!((config.rollout.max_response_length, config.filter.is_none()), (400, true));
    assert_eq!((config.objective.kl.coefficient, config.objective.kl.estimator.as_str()), (0.0, "k1"));
    let notes_of = |import: &Import, key: &str| -> Vec<String> {
        notes(import).lines().filter(|line| line.starts_with(key)).map(str::to_owned).collect()
    };
    assert_snapshot!(notes_of(&import, "ppo_mini_batch_size").join("\n"), @"ppo_mini_batch_size is not given -> train.ppo_mini_batch_size: 2 (RAGEN's default of 32 trajectories, in groups of 16)");
    // 64 trajectories are 4 groups of 16; with groups of 12 the default of 32 is no number of groups.
    let larger = with(&["ppo_mini_batch_size=64", "micro_batch_size_per_gpu=4"]);
    assert_eq!(loaded(&larger).train.ppo_mini_batch_size, Some(4));
    assert_snapshot!(notes_of(&larger, "ppo_mini_batch_size").join("\n"), @"ppo_mini_batch_size=64 -> train.ppo_mini_batch_size: 4 (it counts trajectories there and prompts here: 64 in groups of 16)");
    let uneven = with(&["es_manager.train.group_size=12"]);
    assert_eq!(loaded(&uneven).train.ppo_mini_batch_size, None);
    assert_snapshot!(notes_of(&uneven, "ppo_mini_batch_size").join("\n"), @"ppo_mini_batch_size is not given -> train.ppo_mini_batch_size: null (RAGEN's default of 32 trajectories is no number of groups of 12: one update a step)");
    assert_snapshot!(import_errors(&["ppo_mini_batch_size=24", "model_path=m"]), @r#"
error: `ppo_mini_batch_size=24` of RAGEN cannot be followed: it counts trajectories, which come in groups of 16: take a multiple of 16
 --> command line, RAGEN key
  |
1 | ppo_mini_batch_size=24
  |                     ^^
  hint: `tamis config explain ppo_mini_batch_size` says what becomes of it

1 error in the configuration
"#);
    // Without its switch the filter keeps everything; without the zeros it is DAPO's.
    let zeros = with(&["actor_rollout_ref.rollout.rollout_filter_include_zero=False"]);
    assert_eq!(loaded(&zeros).filter.unwrap().kind.as_str(), "variance");
    // What is not said about turns is said.
    let turns = converted(&["model_path=m", "data.train_files=t", "algorithm.adv_estimator=grpo"]);
    assert_snapshot!(notes_of(&turns, "agent_proxy").join("\n"), @"agent_proxy.max_turn is not given: RAGEN's default is 5 turns, and multi-turn environments are not there yet: a trajectory is one turn");
    // A command without a key of RAGEN's own is verl's.
    let verl = converted(&[
        "actor_rollout_ref.model.path=m",
        "data.train_files=t",
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.rollout.n=4",
    ]);
    assert_eq!(loaded(&verl).data.train_batch_size, 1024);
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
    assert_snapshot!(import.yaml, @"
run:
  seed: 10000  # RAGEN: seed.train (default)
model:
  path: m  # verl: actor_rollout_ref.model.path=m
data:
  train: t  # verl: data.train_files=t
  train_batch_size: 8  # RAGEN: es_manager.train.env_groups=8
rollout:
  n: 16  # RAGEN: es_manager.train.group_size=16
  max_response_length: 400  # RAGEN: actor_rollout_ref.rollout.response_length (default)
reward:
  - {kind: math}  # RAGEN: guessed
filter:
  kind: variance  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
  metric: seq_reward  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
  singleton: drop  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
schedule:
  refill: false  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
  on_empty_round: skip  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
objective:
  advantage:
    estimator: grpo  # verl: algorithm.adv_estimator=grpo
    singleton: raw  # verl: algorithm.adv_estimator=grpo
  loss:
    clip_high: 0.28  # RAGEN: actor_rollout_ref.actor.clip_ratio_high (default)
  entropy:
    coefficient: 0.001  # RAGEN: actor_rollout_ref.actor.entropy_coeff (default)
train:
  ppo_mini_batch_size: 2  # RAGEN: ppo_mini_batch_size (default)
  total_steps: 200  # verl: trainer.total_training_steps=200
checkpoint:
  save_freq: 100  # RAGEN: trainer.save_freq (default)
");
    let off = converted(&[
        "actor_rollout_ref.rollout.rollout_filter_value=1.0",
        "actor_rollout_ref.model.path=m",
        "data.train_files=t",
    ]);
    assert_eq!(loaded(&off).filter, None);
}
