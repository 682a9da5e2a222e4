//! Refusals of estimators: settings out of range, and columns that do not fit the batch.

use tamis_core::advantage::{Advantage, AdvantageBatch, Column, Component, Generated, GeneratedStatistics};
use tamis_core::ragged::Ragged;

/// Every setting with a range, just outside it.
const OUTSIDE: [(&str, &str); 33] = [
    (r#"{"kind": "grpo", "epsilon": -1e-9}"#, "`epsilon` is -1e-9; expected a finite number, 0 or more"),
    (r#"{"kind": "grpo_passk", "epsilon": -1.0}"#, "`epsilon` is -1; expected a finite number, 0 or more"),
    (r#"{"kind": "grpo_passk", "ddof": 2}"#, "`ddof` is 2; expected a finite number, from 0 to 1"),
    (r#"{"kind": "gpg", "divisor": 0.0}"#, "`divisor` is 0; expected a finite number, greater than 0"),
    (r#"{"kind": "gdpo", "epsilon": -1.0}"#, "`epsilon` is -1; expected a finite number, 0 or more"),
    (
        r#"{"kind": "normalize_then_sum", "epsilon": -1.0}"#,
        "`epsilon` is -1; expected a finite number, 0 or more",
    ),
    (
        r#"{"kind": "optimal_token_baseline", "epsilon": -1.0}"#,
        "`epsilon` is -1; expected a finite number, 0 or more",
    ),
    (
        r#"{"kind": "tir_optimal_token_baseline", "epsilon": -1.0}"#,
        "`epsilon` is -1; expected a finite number, 0 or more",
    ),
    (
        r#"{"kind": "reinforce_plus_plus", "gamma": 1.5}"#,
        "`gamma` is 1.5; expected a finite number, from 0 to 1",
    ),
    (
        r#"{"kind": "reinforce_plus_plus", "gamma": -0.5}"#,
        "`gamma` is -0.5; expected a finite number, from 0 to 1",
    ),
    (r#"{"kind": "gae", "gamma": 1.5}"#, "`gamma` is 1.5; expected a finite number, from 0 to 1"),
    (r#"{"kind": "gae", "lambda": -0.5}"#, "`lambda` is -0.5; expected a finite number, from 0 to 1"),
    (r#"{"kind": "bi_level_gae", "gamma": 1.5}"#, "`gamma` is 1.5; expected a finite number, from 0 to 1"),
    (r#"{"kind": "bi_level_gae", "lambda": 1.5}"#, "`lambda` is 1.5; expected a finite number, from 0 to 1"),
    (
        r#"{"kind": "bi_level_gae", "turn_gamma": 1.5}"#,
        "`turn_gamma` is 1.5; expected a finite number, from 0 to 1",
    ),
    (r#"{"kind": "bnpo", "alpha": 0.0}"#, "`alpha` is 0; expected a finite number, greater than 0"),
    (r#"{"kind": "bnpo", "beta": -1.0}"#, "`beta` is -1; expected a finite number, greater than 0"),
    (r#"{"kind": "bnpo", "max_weight": 0.0}"#, "`max_weight` is 0; expected a finite number, greater than 0"),
    (r#"{"kind": "bnpo", "ddof": 2}"#, "`ddof` is 2; expected a finite number, from 0 to 1"),
    (r#"{"kind": "bnpo", "high": 0.0}"#, "`high` is 0; expected a finite number above `low`"),
    (r#"{"kind": "bnpo", "low": 1.0}"#, "`high` is 1; expected a finite number above `low`"),
    (r#"{"kind": "bnpo", "low": 2.0}"#, "`high` is 1; expected a finite number above `low`"),
    (r#"{"kind": "bnpo_running", "window": 0}"#, "`window` is 0; expected a finite number, at least 1"),
    (r#"{"kind": "bnpo_running", "prior": 0.0}"#, "`prior` is 0; expected a finite number, greater than 0"),
    (r#"{"kind": "bnpo_running", "prior": -1.0}"#, "`prior` is -1; expected a finite number, greater than 0"),
    (r#"{"kind": "bnpo_running", "delta": -1.0}"#, "`delta` is -1; expected a finite number, 0 or more"),
    (r#"{"kind": "bnpo_running", "high": 0.0}"#, "`high` is 0; expected a finite number above `low`"),
    (r#"{"kind": "cpo", "pos_alpha": 1e999}"#, "`pos_alpha` is inf; expected a finite number"),
    (r#"{"kind": "cpo", "neg_alpha": 1e999}"#, "`neg_alpha` is inf; expected a finite number"),
    (r#"{"kind": "cpo", "right": 1e999}"#, "`right` is inf; expected a finite number"),
    (r#"{"kind": "cpo", "epsilon": -1.0}"#, "`epsilon` is -1; expected a finite number, 0 or more"),
    (r#"{"kind": "cpo", "ddof": 2}"#, "`ddof` is 2; expected a finite number, from 0 to 1"),
    (r#"{"kind": "grpo", "ddof": 2}"#, "`ddof` is 2; expected a finite number, from 0 to 1"),
];

/// Numbers that no file can hold in JSON, but YAML can.
fn read(json: &str) -> Advantage {
    let finite = json.replace("1e999", "1e300");
    let mut advantage: Advantage = serde_json::from_str(&finite).unwrap();
    if let (true, Advantage::Cpo(cpo)) = (finite != json, &mut advantage) {
        for setting in [&mut cpo.pos_alpha, &mut cpo.neg_alpha, &mut cpo.right] {
            if *setting == 1e300 {
                *setting = f64::INFINITY;
            }
        }
    }
    advantage
}

#[test]
fn settings_out_of_range_are_named() {
    for (json, expected) in OUTSIDE {
        let error = read(json).check().unwrap_err();
        assert!(error.to_string().ends_with(&format!("setting {expected}")), "{json}: {error}");
    }
    for advantage in Advantage::all() {
        assert_eq!(advantage.check(), Ok(()), "{}", advantage.name());
    }
    // The least there is.
    for json in [
        r#"{"kind": "bnpo_running", "window": 1, "delta": 0.0}"#,
        r#"{"kind": "gae", "gamma": 0.0, "lambda": 0.0}"#,
        r#"{"kind": "grpo", "epsilon": 0.0, "ddof": 0}"#,
    ] {
        assert_eq!(read(json).check(), Ok(()), "{json}");
    }
}

#[test]
fn numbers_that_are_none_are_refused() {
    for number in [f64::INFINITY, f64::NAN] {
        for name in ["bnpo", "bnpo_running", "gpg"] {
            let default = Advantage::of_name(name).unwrap();
            let settings: &[&str] = match name {
                "bnpo" => &["alpha", "beta", "max_weight", "low", "high"],
                "bnpo_running" => &["prior", "delta", "low", "high"],
                _ => &["divisor"],
            };
            for setting in settings {
                let mut advantage = default.clone();
                match &mut advantage {
                    Advantage::Bnpo(bnpo) => match *setting {
                        "alpha" => bnpo.alpha = Some(number),
                        "beta" => bnpo.beta = Some(number),
                        "max_weight" => bnpo.max_weight = number,
                        "low" => bnpo.low = -number,
                        _ => bnpo.high = number,
                    },
                    Advantage::BnpoRunning(running) => match *setting {
                        "prior" => running.prior = number,
                        "delta" => running.delta = number,
                        "low" => running.low = -number,
                        _ => running.high = number,
                    },
                    Advantage::Gpg(gpg) => gpg.divisor = number,
                    _ => panic!("no such estimator here"),
                }
                let error = advantage.check().unwrap_err().to_string();
                assert!(error.contains(&format!("setting `{setting}`")), "{name}: {error}");
            }
        }
    }
}

/// Every column there is, of two groups of two.
struct Full {
    rewards: Ragged<f64>,
    mask: Ragged<bool>,
    column: Ragged<f64>,
    turns: Ragged<u32>,
    generated: [GeneratedStatistics; 1],
}

impl Full {
    fn new() -> Self {
        let rewards = Ragged::from_rows([[1.0, 0.0], [0.0, 1.0]]);
        Self {
            mask: Ragged::from_rows([[true, false, true]; 4]),
            column: Ragged::from_rows([[0.0; 3]; 4]),
            turns: Ragged::from_rows([[0, 0, 1]; 4]),
            generated: [GeneratedStatistics::of(rewards.rows())],
            rewards,
        }
    }

    fn components(&self) -> [Component<'_>; 1] {
        [Component { name: "acc", weight: 1.0, rewards: &self.rewards }]
    }

    fn batch<'a>(&'a self, components: &'a [Component<'a>]) -> AdvantageBatch<'a> {
        AdvantageBatch {
            rewards: &self.rewards,
            lengths: Some(&[2; 4]),
            mask: Some(&self.mask),
            token_rewards: Some(&self.column),
            turn_rewards: Some(&self.column),
            turns: Some(&self.turns),
            values: Some(&self.column),
            entropy: Some(&self.column),
            old_logprobs: Some(&self.column),
            gold_logprobs: Some(&self.column),
            sum_pi_squared: Some(&self.column),
            rollout_weights: Some(&self.column),
            components: Some(components),
            greedy_rewards: Some(&[0.0, 1.0]),
            generated: Some(Generated { reward: self.generated[0], components: &self.generated }),
        }
    }
}

const COLUMNS: [Column; 14] = [
    Column::Lengths,
    Column::Mask,
    Column::TokenRewards,
    Column::TurnRewards,
    Column::Turns,
    Column::Values,
    Column::Entropy,
    Column::OldLogprobs,
    Column::GoldLogprobs,
    Column::SumPiSquared,
    Column::RolloutWeights,
    Column::Components,
    Column::GreedyRewards,
    Column::Generated,
];

#[test]
fn a_batch_has_what_it_was_given() {
    let full = Full::new();
    let components = full.components();
    let (all, none) = (full.batch(&components), AdvantageBatch::of_rewards(&full.rewards));
    for column in COLUMNS {
        assert!(all.has(column) && !none.has(column), "{}", column.name());
    }
    // The mask says the lengths too.
    let masked = AdvantageBatch { mask: Some(&full.mask), ..none };
    assert!(masked.has(Column::Lengths) && masked.has(Column::Mask) && !masked.has(Column::Values));
}

#[test]
fn columns_that_do_not_fit_are_named() {
    let full = Full::new();
    let components = full.components();
    let all = AdvantageBatch { turn_rewards: None, token_rewards: None, ..full.batch(&components) };
    let message = |name: &str, batch: AdvantageBatch<'_>| {
        Advantage::of_name(name).unwrap().advantages(&batch).unwrap_err().to_string()
    };
    assert!(Advantage::of_name("bi_level_gae").unwrap().advantages(&all).is_ok());
    let turns = Ragged::from_rows([[0, 0, 1]; 3]);
    insta::assert_snapshot!(message("bi_level_gae", AdvantageBatch { turns: Some(&turns), ..all }), @"column `turns` has 3 rows; expected 4, one per trajectory");
    let turns = Ragged::from_rows([vec![0, 0, 1], vec![0, 0], vec![0, 0, 1], vec![0]]);
    insta::assert_snapshot!(message("bi_level_gae", AdvantageBatch { turns: Some(&turns), ..all }), @"row 1 of column `turns` has 2 values; expected 3");
    let rewards = Ragged::from_rows([[0.0, 1.0]; 3]);
    insta::assert_snapshot!(message("bi_level_gae", AdvantageBatch { turn_rewards: Some(&rewards), ..all }), @"column `turn_rewards` has 3 rows; expected 4, one per trajectory");
    let rewards = Ragged::from_rows([[0.0, 1.0], [0.0, f64::NAN], [0.0, 1.0], [0.0, 1.0]]);
    insta::assert_snapshot!(message("bi_level_gae", AdvantageBatch { turn_rewards: Some(&rewards), ..all }), @"column `turn_rewards` is NaN at token 1 of trajectory 1; expected a finite number");
    // A reward on a masked token is somebody's.
    let rewards = Ragged::from_rows([[0.0; 3], [0.0; 3], [0.0, f64::NEG_INFINITY, 0.0], [0.0; 3]]);
    for name in [
        "gae",
        "bi_level_gae",
        "reinforce_plus_plus",
        "remax",
        "optimal_token_baseline",
        "tir_optimal_token_baseline",
    ] {
        let printed = message(name, AdvantageBatch { token_rewards: Some(&rewards), ..all });
        let expected = "column `token_rewards` is -inf at token 1 of trajectory 2; expected a finite number";
        assert_eq!(printed, expected, "{name}");
    }
    let mask = Ragged::from_rows([[true]; 3]);
    insta::assert_snapshot!(message("gae", AdvantageBatch { mask: Some(&mask), ..all }), @"column `mask` has 3 rows; expected 4, one per trajectory");

    for name in ["gdpo", "normalize_then_sum", "bnpo"] {
        let with = |rewards: &Ragged<f64>| {
            let components = [Component { name: "acc", weight: 1.0, rewards }];
            message(name, AdvantageBatch { components: Some(&components), ..all })
        };
        let rows = with(&Ragged::from_rows([[1.0, 0.0]]));
        assert_eq!(rows, "column `components` has 1 rows; expected 2, one per group", "{name}");
        let lengths = with(&Ragged::from_rows([vec![1.0, 0.0], vec![0.0]]));
        assert_eq!(lengths, "row 1 of column `components` has 1 values; expected 2", "{name}");
        let infinite = with(&Ragged::from_rows([[1.0, 0.0], [0.0, f64::INFINITY]]));
        let expected =
            "reward `acc` of trajectory 1 in group 1 is inf; rewards must be finite, or NaN for unscored";
        assert_eq!(infinite, expected, "{name}");
    }
    let weightless = [Component { weight: f64::NAN, ..components[0] }];
    insta::assert_snapshot!(message("gdpo", AdvantageBatch { components: Some(&weightless), ..all }), @"advantage setting `component weight` is NaN; expected a finite number");
    let generated = Generated { reward: full.generated[0], components: &[] };
    insta::assert_snapshot!(message("bnpo", AdvantageBatch { generated: Some(generated), ..all }), @"column `generated` has 0 rows; expected 1, one per component");
}
