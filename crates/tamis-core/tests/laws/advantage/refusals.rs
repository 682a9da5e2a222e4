//! Refusals of estimators: settings that do not fit together, and columns that do not fit the batch.

use tamis_core::advantage::{Advantage, AdvantageBatch, Column, Component, Generated, GeneratedStatistics};
use tamis_core::ragged::Ragged;

#[test]
fn rewards_have_a_lowest_below_the_highest() {
    for (json, high) in [
        (r#"{"kind": "bnpo", "high": 0.0}"#, 0),
        (r#"{"kind": "bnpo", "low": 1.0}"#, 1),
        (r#"{"kind": "bnpo", "low": 2.0}"#, 1),
        (r#"{"kind": "bnpo_running", "high": 0.0}"#, 0),
    ] {
        let error = serde_json::from_str::<Advantage>(json).unwrap().check().unwrap_err().to_string();
        assert_eq!(
            error,
            format!("advantage setting `high` is {high}; expected a finite number above `low`")
        );
    }
    for advantage in Advantage::all() {
        assert_eq!(advantage.check(), Ok(()), "{}", advantage.name());
    }
}

/// Every column, for two groups of two.
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
            teacher_logprobs: Some(&self.column),
            sum_pi_squared: Some(&self.column),
            rollout_weights: Some(&self.column),
            components: Some(components),
            greedy_rewards: Some(&[0.0, 1.0]),
            generated: Some(Generated { reward: self.generated[0], components: &self.generated }),
            given: None,
        }
    }
}

const COLUMNS: [Column; 15] = [
    Column::Lengths,
    Column::Mask,
    Column::TokenRewards,
    Column::TurnRewards,
    Column::Turns,
    Column::Values,
    Column::Entropy,
    Column::OldLogprobs,
    Column::GoldLogprobs,
    Column::TeacherLogprobs,
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
    // The mask also gives the lengths.
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
    // A reward on a masked token belongs to some token.
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
