//! Commands of RAGEN.

use std::path::Path;

use insta::assert_snapshot;
use tamis_config::{Import, import, load_sources};
use tamis_core::objective::PolicyLoss;

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
    let PolicyLoss::Clip(clip) = config.objective.loss else { panic!("clip") };
    assert_eq!((clip.clip_high, config.objective.entropy.coefficient), (0.28, 0.001));
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
    assert_eq!(loaded(&uneven).train.ppo_mini_batch_size, Some(8));
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
    assert_snapshot!(notes_of(&turns, "agent_proxy").join("\n"), @"agent_proxy.max_turn is not given: RAGEN's default is 5 turns in an environment: the prompts are rows of data, each answered in one turn");
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
    assert_snapshot!(import.yaml, @r#"
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
  - {kind: by_source}  # RAGEN: custom_envs (default)
filter:
  kind: variance  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
  metric: seq_reward  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
  singleton: drop  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
schedule:
  refill: false  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
  on_empty_round: "retry:9"  # RAGEN: actor_rollout_ref.rollout.rollout_filter_include_zero=False
objective:
  advantage:
    kind: grpo  # verl: algorithm.adv_estimator=grpo
    singleton: raw  # verl: algorithm.adv_estimator=grpo
  loss:
    clip_high: 0.28  # RAGEN: actor_rollout_ref.actor.clip_ratio_high (default)
  entropy:
    coefficient: 0.001  # RAGEN: actor_rollout_ref.actor.entropy_coeff (default)
train:
  ppo_mini_batch_size: 2  # RAGEN: ppo_mini_batch_size (default)
  total_steps: 200  # verl: trainer.total_training_steps=200
  early_stop:
    reward_collapse:
      form: steps  # RAGEN: a stop where rewards no longer vary (default)
      baseline_steps: 10  # RAGEN: a stop where rewards no longer vary (default)
      window: 10  # RAGEN: a stop where rewards no longer vary (default)
      share: 0.1  # RAGEN: a stop where rewards no longer vary (default)
checkpoint:
  save_freq: 100  # RAGEN: trainer.save_freq (default)
"#);
    let off = converted(&[
        "actor_rollout_ref.rollout.rollout_filter_value=1.0",
        "actor_rollout_ref.model.path=m",
        "data.train_files=t",
    ]);
    assert_eq!(loaded(&off).filter, None);
}

/// Weights on advantages become shapings, in a command that is converted and in a configuration alike.
#[test]
fn shapings_of_ragen() {
    let base = ["actor_rollout_ref.model.path=m", "data.train_files=t", "actor_rollout_ref.rollout.n=8"];
    let all = [
        "algorithm.soft_advantage_reweight=True",
        "actor_rollout_ref.actor.filter_loss_scaling=sqrt",
        "grpo_advantage_length_weight=True",
    ];
    let of = |estimator: &str, more: &[&str]| {
        let estimator = format!("algorithm.adv_estimator={estimator}");
        converted(&[&base[..], &[estimator.as_str()], more].concat())
    };
    let printed = |import: &Import| -> String {
        let all = notes(import);
        let ours = all
            .lines()
            .filter(|line| ["reweight", "scaling", "length_weight"].iter().any(|key| line.contains(key)));
        ours.collect::<Vec<_>>().join("\n")
    };
    let import = of("grpo", &all);
    let shaping = |import: &Import| -> String {
        let kinds = loaded(import).objective.shaping;
        kinds
            .iter()
            .map(|shaping| tamis_config::reader::Setting::to_json(shaping).to_string())
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_snapshot!(shaping(&import), @r#"
{"kind":"soft_reweight","ddof":1,"epsilon":1e-6}
{"kind":"filter_loss_scaling","by":"sqrt"}
{"kind":"length_weight"}
"#);
    assert_snapshot!(printed(&import), @r#"
algorithm.soft_advantage_reweight=True -> objective.shaping: + {kind: soft_reweight, ddof: 1, epsilon: 1e-6} (a group of one, whose weight is not a number in RAGEN, has weight 0)
actor_rollout_ref.actor.filter_loss_scaling=sqrt -> objective.shaping: + {kind: filter_loss_scaling, by: sqrt} (the policy term is multiplied, which is the same for losses with the advantage as a factor; RAGEN multiplies the advantages)
grpo_advantage_length_weight=True -> objective.shaping: + {kind: length_weight} (unscored trajectories are outside the mean length; RAGEN counts them, and adds 1e-6 to each length)
"#);
    // RAGEN weighs so with GRPO alone; the loss is scaled with every estimator.
    let rloo = of("rloo", &all);
    assert_snapshot!(shaping(&rloo), @r#"{"kind":"filter_loss_scaling","by":"sqrt"}"#);
    assert_snapshot!(printed(&rloo), @r#"
algorithm.soft_advantage_reweight=True has no effect: RAGEN does so with the estimator grpo alone
actor_rollout_ref.actor.filter_loss_scaling=sqrt -> objective.shaping: + {kind: filter_loss_scaling, by: sqrt} (the policy term is multiplied, which is the same for losses with the advantage as a factor; RAGEN multiplies the advantages)
grpo_advantage_length_weight=True has no effect: RAGEN does so with the estimator grpo alone
"#);
    let off = of(
        "grpo",
        &[
            "algorithm.soft_advantage_reweight=False",
            "actor_rollout_ref.actor.filter_loss_scaling=none",
            "grpo_advantage_length_weight=False",
        ],
    );
    assert_eq!(loaded(&off).objective.shaping, []);
    assert_snapshot!(printed(&off), @r#"
algorithm.soft_advantage_reweight=False has no effect: False weighs nothing
actor_rollout_ref.actor.filter_loss_scaling=none has no effect: none scales nothing
grpo_advantage_length_weight=False has no effect: False weighs nothing
"#);
    assert_snapshot!(import_errors(&[&base[..], &["actor_rollout_ref.actor.filter_loss_scaling=cubic"]].concat()), @r#"
error: `actor_rollout_ref.actor.filter_loss_scaling` of RAGEN must be none, linear or sqrt, not `cubic`
 --> command line, RAGEN key
  |
1 | actor_rollout_ref.actor.filter_loss_scaling=cubic
  |                                             ^^^^^
  hint: `tamis config explain actor_rollout_ref.actor.filter_loss_scaling` says what becomes of it

1 error in the configuration
"#);
    // As overrides of a configuration of one's own.
    let arguments = [
        "model.path=m",
        "data.task=arithmetic",
        "train.total_steps=1",
        "actor_rollout_ref.actor.filter_loss_scaling=linear",
    ];
    let own = load_sources(&[], &arguments.map(str::to_owned)).unwrap();
    assert_eq!(own.config.objective.shaping.len(), 1);
    assert_eq!(own.notes.len(), 1);
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
        match import(&given, Path::new("")) {
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
fn gradient_analysis_of_ragen() {
    let base =
        ["algorithm.adv_estimator=grpo", "model_path=m", "data.train_files=t", "agent_proxy.max_turn=1"];
    let of = |more: &[&str]| loaded(&converted(&[&base[..], more].concat())).train.gradient_analysis;
    assert!(of(&["trainer.gradient_analysis_every=7"]).is_none());
    let quantiles = of(&["trainer.gradient_analysis_mode=True", "trainer.gradient_analysis_num_buckets=3"]);
    let quantiles = quantiles.expect("an analysis");
    assert_eq!((quantiles.every, quantiles.buckets, quantiles.edges), (50, 3, None));
    let fixed = of(&[
        "trainer.gradient_analysis_mode=True",
        "trainer.gradient_analysis_every=10",
        "trainer.gradient_analysis_bucket_mode=fixed_rv",
    ]);
    let fixed = fixed.expect("an analysis");
    assert_eq!((fixed.every, fixed.edges), (10, Some(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0])));
    let errors =
        |more: &str| import_errors(&[&base[..], &["trainer.gradient_analysis_mode=True", more]].concat());
    assert_snapshot!(errors("trainer.gradient_analysis_bucket_mode=log"), @r#"
error: `trainer.gradient_analysis_bucket_mode` of RAGEN must be quantile or fixed_rv, not `log`
 --> command line, RAGEN key
  |
1 | trainer.gradient_analysis_bucket_mode=log
  |                                       ^^^
  hint: `tamis config explain trainer.gradient_analysis_bucket_mode` says what becomes of it

1 error in the configuration
"#);
    assert_snapshot!(errors("trainer.gradient_analysis_only=True"), @r#"
error: `trainer.gradient_analysis_only=True` of RAGEN cannot be followed: a run that measures and does not train is not there
 --> command line, RAGEN key
  |
1 | trainer.gradient_analysis_only=True
  |                                ^^^^
  hint: `tamis config explain trainer.gradient_analysis_only` says what becomes of it

1 error in the configuration
"#);
}
