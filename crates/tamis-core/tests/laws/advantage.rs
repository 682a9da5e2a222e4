//! Laws of advantages: of `grpo` in particular here, of every estimator and of shaping in the modules.

mod batches;
mod by_hand;
mod every;
mod refusals;
mod shaping;

use proptest::collection::vec;
use proptest::prelude::*;
use tamis_core::advantage::{
    AdvantageBatch, AdvantageEstimator, Advantages, Grpo, Scale, SingletonAdvantage,
};
use tamis_core::ragged::Ragged;

fn advantages(estimator: &Grpo, groups: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let rewards = Ragged::from_rows(groups);
    match estimator.advantages(&AdvantageBatch::of_rewards(&rewards)).unwrap() {
        Advantages::PerTrajectory(advantages) => advantages.rows().map(<[f64]>::to_vec).collect(),
        Advantages::PerToken(_) => panic!("grpo gives one advantage per trajectory"),
    }
}

fn estimator() -> impl Strategy<Value = Grpo> {
    (
        prop_oneof![Just(Scale::Group), Just(Scale::Batch), Just(Scale::None)],
        0..=1_u8,
        prop_oneof![Just(1e-6), Just(1e-4), Just(0.0)],
        prop_oneof![Just(SingletonAdvantage::Raw), Just(SingletonAdvantage::Zero)],
    )
        .prop_map(|(scale, ddof, epsilon, singleton)| Grpo {
            scale,
            ddof,
            epsilon,
            singleton,
            ..Grpo::default()
        })
}

/// Rewards as they occur: right or wrong, in tenths, anything; some unscored.
fn reward() -> impl Strategy<Value = f64> {
    prop_oneof![
        3 => prop_oneof![Just(0.0), Just(1.0)],
        2 => (-10..=10_i32).prop_map(|tenths| f64::from(tenths) / 10.0),
        2 => -5.0..5.0_f64,
        1 => Just(f64::NAN),
    ]
}

fn groups(smallest: usize) -> impl Strategy<Value = Vec<Vec<f64>>> {
    vec(vec(reward(), smallest..9), 1..6)
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * (1.0 + a.abs().max(b.abs()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_advantage_is_finite_and_of_the_rewards_shape(estimator in estimator(), groups in groups(0)) {
        let advantages = advantages(&estimator, &groups);
        prop_assert_eq!(advantages.len(), groups.len());
        for (advantages_g, rewards_g) in advantages.iter().zip(&groups) {
            prop_assert_eq!(advantages_g.len(), rewards_g.len());
            prop_assert!(advantages_g.iter().all(|advantage| advantage.is_finite()));
        }
    }

    #[test]
    fn a_uniform_group_is_exactly_zero(estimator in estimator(), reward in -3.0..3.0_f64, tenths in -9..9_i32, size in 2..70_usize) {
        for reward in [reward, f64::from(tenths) / 10.0] {
            // Beside another group, so that the batch has a deviation.
            let advantages = advantages(&estimator, &[vec![reward; size], vec![0.0, 1.0]]);
            prop_assert!(advantages[0].iter().all(|advantage| *advantage == 0.0));
        }
    }

    #[test]
    fn a_group_sums_to_zero(estimator in estimator(), groups in groups(2)) {
        for advantages_g in advantages(&estimator, &groups) {
            let size: f64 = advantages_g.iter().map(|advantage| advantage.abs()).sum();
            prop_assert!(advantages_g.iter().sum::<f64>().abs() <= 1e-9 * (1.0 + size));
        }
    }

    #[test]
    fn a_shift_of_a_groups_rewards_changes_nothing(estimator in estimator(), groups in groups(2), shift in -4..4_i32) {
        // Rewards in 64ths and whole shifts are exact in floating point, so uniform groups stay uniform.
        let grid = |groups: &[Vec<f64>], shift: f64| -> Vec<Vec<f64>> {
            groups.iter().map(|g| g.iter().map(|r| (r * 64.0).round() / 64.0 + shift).collect()).collect()
        };
        // The batch's deviation sees shifts between groups, so all groups move together.
        let before = advantages(&estimator, &grid(&groups, 0.0));
        let after = advantages(&estimator, &grid(&groups, f64::from(shift)));
        for (a, b) in before.iter().flatten().zip(after.iter().flatten()) {
            prop_assert!(close(*a, *b, 1e-9), "{} {}", a, b);
        }
    }

    #[test]
    fn scaling_rewards_scales_out_or_through(estimator in estimator(), groups in groups(2), power in -3..6_i32, flip: bool) {
        let factor = 2_f64.powi(power) * if flip { -1.0 } else { 1.0 };
        let estimator = Grpo { epsilon: 0.0, ..estimator };
        let scaled: Vec<Vec<f64>> = groups.iter().map(|g| g.iter().map(|r| r * factor).collect()).collect();
        let expected_factor = match estimator.scale {
            Scale::Group | Scale::Batch => factor.signum(),
            Scale::None => factor,
        };
        let before = advantages(&estimator, &groups);
        for (a, b) in before.iter().flatten().zip(advantages(&estimator, &scaled).iter().flatten()) {
            prop_assert!(close(a * expected_factor, *b, 1e-12), "{} {}", a, b);
        }
    }

    #[test]
    fn members_may_be_permuted(estimator in estimator(), groups in groups(1), by in 0..9_usize) {
        let rotated: Vec<Vec<f64>> = groups
            .iter()
            .map(|g| {
                let mut g = g.clone();
                let length = g.len();
                g.rotate_left(by % length);
                g
            })
            .collect();
        let expected = advantages(&estimator, &groups);
        for (mut expected_g, actual_g) in expected.into_iter().zip(advantages(&estimator, &rotated)) {
            let length = expected_g.len();
            expected_g.rotate_left(by % length);
            for (a, b) in expected_g.iter().zip(&actual_g) {
                prop_assert!(close(*a, *b, 1e-9), "{} {}", a, b);
            }
        }
    }

    #[test]
    fn groups_do_not_see_each_other(estimator in estimator(), groups in groups(0)) {
        prop_assume!(estimator.scale != Scale::Batch);
        let together = advantages(&estimator, &groups);
        for (group, expected) in groups.iter().zip(together) {
            prop_assert_eq!(&advantages(&estimator, std::slice::from_ref(group))[0], &expected);
        }
    }

    #[test]
    fn the_unscored_are_zero_and_outside_the_statistics(estimator in estimator(), group in vec(reward(), 0..9)) {
        prop_assume!(estimator.scale != Scale::Batch);
        let scored: Vec<f64> = group.iter().copied().filter(|reward| !reward.is_nan()).collect();
        // With one scored member of several there is nothing to compare with, whatever a true singleton gets.
        let estimator = if scored.len() < group.len() { Grpo { singleton: SingletonAdvantage::Zero, ..estimator } } else { estimator };
        let with = &advantages(&estimator, std::slice::from_ref(&group))[0];
        let mut without = advantages(&estimator, &[scored])[0].clone().into_iter();
        for (reward, advantage) in group.iter().zip(with) {
            let expected = if reward.is_nan() { 0.0 } else { without.next().unwrap() };
            prop_assert_eq!(*advantage, expected);
        }
    }
}

#[test]
fn singletons_by_name() {
    let batch = [vec![0.7], vec![0.0, 1.0]];
    let of = |estimator: Grpo| advantages(&estimator, &batch)[0][0];
    assert_eq!(of(Grpo::verl()), 0.7 / (1.0 + 1e-6));
    assert_eq!(of(Grpo::dr_grpo()), 0.7);
    assert_eq!(of(Grpo::trl()), 0.0);
    // An unscored singleton is 0 under any rule.
    assert_eq!(advantages(&Grpo::verl(), &[vec![f64::NAN]])[0][0], 0.0);
}

#[test]
fn one_right_of_four_by_hand() {
    // Mean 1/4; sum of squares 3/4: population deviation √3/4, sample deviation 1/2.
    let group = [vec![1.0, 0.0, 0.0, 0.0]];
    let exact = Grpo { epsilon: 0.0, ..Grpo::verl() };
    assert_eq!(advantages(&exact, &group)[0], [1.5, -0.5, -0.5, -0.5]);
    let population = advantages(&Grpo { ddof: 0, ..exact }, &group)[0].clone();
    assert!(
        (population[0] - 3_f64.sqrt()).abs() < 1e-15 && (population[1] + 1.0 / 3_f64.sqrt()).abs() < 1e-15
    );
    assert_eq!(advantages(&Grpo::dr_grpo(), &group)[0], [0.75, -0.25, -0.25, -0.25]);
}

#[test]
fn errors_name_what_is_wrong() {
    let rewards = Ragged::from_rows([vec![0.0], vec![1.0, f64::INFINITY]]);
    let message = |estimator: Grpo| {
        estimator.advantages(&AdvantageBatch::of_rewards(&rewards)).unwrap_err().to_string()
    };
    insta::assert_snapshot!(message(Grpo::verl()), @"reward of trajectory 1 in group 1 is inf; rewards must be finite, or NaN for unscored");
    insta::assert_snapshot!(message(Grpo { epsilon: -1.0, ..Grpo::verl() }), @"setting `epsilon` is -1; expected a finite number, 0 or more");
    insta::assert_snapshot!(message(Grpo { ddof: 2, ..Grpo::verl() }), @"setting `ddof` is 2; expected a finite number, from 0 to 1");
}
