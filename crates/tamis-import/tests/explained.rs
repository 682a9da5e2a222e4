//! Output of `tamis config explain` for keys.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use insta::assert_snapshot;
use tamis_import::{Owner, explain};

/// A supervised trainer of verl has a section `checkpoint` too.
#[test]
fn an_unknown_key_of_a_section_of_ours_is_refused_with_the_nearest() {
    for (key, hint) in [
        ("checkpoint.save_frequency", "did you mean `checkpoint.save_freq`?"),
        ("checkpoint.kep_last", "did you mean `checkpoint.keep_last`?"),
        (
            "checkpoint.nonsense",
            "`tamis config schema` has every key, `tamis explain` lists every algorithm by its name",
        ),
        ("model.pth", "did you mean `model.path`?"),
        ("critic.ppo_epoch", "did you mean `critic.ppo_epochs`?"),
    ] {
        let unknown = explain(key).expect_err(key);
        assert_eq!(
            (unknown.to_string(), unknown.hint()),
            (format!("there is no key `{key}`"), hint.to_owned())
        );
    }
    for key in ["checkpoint.save_contents", "critic.checkpoint.save_contents", "engine.fsdp_size"] {
        assert!(explain(key).is_ok_and(|text| text.contains("A key of verl")), "{key}");
    }
}

#[test]
fn explanations() {
    assert_snapshot!(explain("rollout.n").unwrap(), @r#"
rollout.n

  Trajectories per prompt: the group size.

  type       a whole number, from 1 to 65536
  default    8
  on resume  must stay
  preset     flash_reinforce: 1
  also known as
    actor_rollout_ref.rollout.n (verl, default 1 there)
    worker.rollout.n (EasyR1, default 1 there)
    es_manager.train.group_size (RAGEN, default 16 there)
    num_generations (TRL, default 8 there)
"#);
    assert_snapshot!(explain("reward.method").unwrap(), @"
reward[].method (kind gsm8k)

  How the answer is found in the completion.

  type       one of strict, flexible, last_number
  default    strict
  on resume  must stay
  values
    strict: The last `#### number`, as verl's `strict` and lm-eval's `strict-match`.
    flexible: verl's `flexible`: the last run of digits, points and commas, compared as text. `The answer is 18.` is wrong because its run is `18.`; `1,024` is wrong too.
    last_number: The value of the last number, whatever text is around it: `The answer is $1,024.00.` is 1024. For chat models.
");
    assert_snapshot!(explain("filter").unwrap(), @"
filter

  Which groups are trained on, judged by one number of each trajectory. Null: all groups.

  type       a section with a `kind` or null
  default    null
  on resume  must stay
  preset     grpo: null
  preset     dapo: {kind: variance, metric: acc}
  preset     dapo_paper: {kind: variance, metric: acc}
  preset     dr_grpo: null
  preset     rloo: null
  preset     reinforce_plus_plus: null
  preset     reinforce_plus_plus_baseline: null
  preset     flash_reinforce: null
  preset     remax: null
  preset     opo: null
  preset     gpg: null
  preset     bnpo: null
  preset     gspo: null
  preset     gmpo: null
  preset     cispo: {kind: variance, metric: acc}
  preset     sapo: null
  preset     ppo: null
  kinds
    variance: Keeps a group whose members differ in the metric (largest minus smallest above `tolerance`)
    mean_range: Keeps a group whose mean of the metric lies between `low` and `high`
    top_p: Keeps the best groups of a generation round that together have the share `p` of the mass (RAGEN)
    top_k: Keeps the `k` best groups of a generation round, or a `fraction` of all
    min_p: Keeps the groups of a generation round whose score is at least `p` times the best
    percentile: Keeps the groups of a generation round whose rank is between the shares `low` and `high`, best first
    within_group: Keeps every group, and trains on the `k` of its members (or a `fraction`) whose metric varies most
  also known as
    actor_rollout_ref.rollout.rollout_filter_strategy (RAGEN, default top_p there)
    actor_rollout_ref.rollout.rollout_filter_value (RAGEN, default 1.0 there)
    actor_rollout_ref.rollout.rollout_filter_ratio (RAGEN)
    actor_rollout_ref.rollout.rollout_filter_include_zero (RAGEN, default True there)
    actor_rollout_ref.rollout.rollout_filter_metric (RAGEN, default reward_variance there)
    actor_rollout_ref.rollout.rollout_filter_type (RAGEN, default largest there)
    actor_rollout_ref.rollout.rollout_filter_top_p_prob_mode (RAGEN, default softmax there)
    actor_rollout_ref.rollout.rollout_filter_selection_eps (RAGEN, default 0.01 there)
    actor_rollout_ref.rollout.rollout_filter_percentile_low (RAGEN, default 0.0 there)
    actor_rollout_ref.rollout.rollout_filter_percentile_high (RAGEN, default 1.0 there)
");
    // The first question of a new user: which rewards are there?
    let kinds = |key: &str| -> Vec<String> {
        let text = explain(key).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("    ") && !line.ends_with(')'));
        lines.map(|line| line.trim_start().to_owned()).collect()
    };
    let rewards = kinds("reward");
    for name in tamis_env::reward::RewardKind::NAMES {
        assert!(explain("reward").unwrap().contains(&format!("\n    {name}: ")), "{name}");
    }
    let exact = "exact: 1 if the trimmed completion is the ground truth, otherwise 0";
    assert!(
        rewards.iter().any(|line| line == exact)
            && rewards.iter().any(|line| line == "gsm8k: verl's GSM8K verifier")
    );
    assert_eq!(kinds("reward[].kind"), kinds("reward"));
    assert_snapshot!(explain("algorithm.use_dynamic_sample").unwrap(), @r#"
algorithm.use_dynamic_sample

  A key of EasyR1.

  its default  false
  becomes      filter.kind, filter.metric, schedule.refill, schedule.on_limit, schedule.on_exhausted, schedule.surplus, with related keys
"#);
    assert_snapshot!(explain("algorithm.kl_ctrl").unwrap(), @r#"
algorithm.kl_ctrl

  A section of verl.

  algorithm.kl_ctrl.type  becomes objective.kl.adaptive, with related keys
  algorithm.kl_ctrl.kl_coef  becomes objective.kl.coefficient, with related keys
  algorithm.kl_ctrl.horizon  becomes objective.kl.adaptive, with related keys
  algorithm.kl_ctrl.target_kl  becomes objective.kl.adaptive, with related keys
"#);
    assert_snapshot!(explain("zzz").unwrap_err(), @"there is no key `zzz`");
    let hint = |key: &str| explain(key).expect_err(key).hint();
    for (key, meant) in [
        ("rollout.temprature", "rollout.temperature"),
        ("temprature", "rollout.temperature"),
        ("clip_high", "objective.loss.clip_high"),
        ("--clip-high", "objective.loss.clip_high"),
        ("objective.los.clip_high", "objective.loss.clip_high"),
        ("objective.loss.cov_hgih", "objective.loss.cov_high"),
        ("num_generation", "num_generations"),
    ] {
        assert_eq!(hint(key), format!("did you mean `{meant}`?"), "{key}");
    }
    assert!(hint("zzz").contains("tamis config schema"));
}

#[test]
fn a_key_of_several_kinds_is_explained_kind_by_kind_and_others_names_once() {
    let text = explain("objective.advantage").expect("a section");
    assert!(text.contains("default    {kind: grpo}\n") && text.contains("    rloo: "), "{text}");
    let text = explain("objective.loss.clip_high").expect("a key");
    assert!(text.starts_with("objective.loss.clip_high (kind clip)\n"), "{text}");
    assert_eq!(text.matches("also known as").count(), 1);
    let (_, all) = text.split_once("objective.loss.clip_high, for every kind\n").expect("a heading");
    assert!(all.contains("clip_ratio_high (verl"), "{all}");
}

/// Every key of ours lists every key of another system that sets it, also for keys of a kind.
#[test]
fn items_and_keys_of_mappings_are_explained_as_what_they_are_in() {
    assert_eq!(explain("reward.0.method"), explain("reward.method"));
    assert_eq!(explain("rollout.stop.0"), explain("rollout.stop"));
    assert_eq!(explain("rollout.server_parameters.cache_salt"), explain("rollout.server_parameters"));
    assert!(explain("reward.0.kind").is_ok() && explain("rollout.0.stopp").is_err());
}

#[test]
fn keys_of_others_stand_under_every_key_that_they_become() {
    let mut num_named = 0;
    for owner in Owner::ALL {
        for row in owner.keys() {
            let becomes = row.becomes.to_string();
            // Backquotes hold our keys, if the key becomes any.
            let targets = becomes.split('`').skip(1).step_by(2).filter(|_| becomes.starts_with('`'));
            for target in targets {
                let text = explain(target).unwrap_or_else(|unknown| panic!("{}: {unknown}", row.key));
                assert!(
                    text.contains(&format!("    {} ({owner}", row.key)),
                    "{} under {target}:\n{text}",
                    row.key
                );
                num_named += 1;
            }
        }
    }
    assert!(num_named > 300, "{num_named}");
    let clip = explain("objective.loss.clip_high").unwrap();
    assert_eq!(clip.matches("also known as").count(), 1, "{clip}");
    // A verifier named by data source.
    assert_eq!(explain("reward.sources.a.kind"), explain("reward.sources"));
}
