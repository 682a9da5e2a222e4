//! Laws of advantages: here those of `grpo`, and in the modules those of every estimator and shaping.

mod batches;
mod by_hand;
mod every;
mod refusals;
mod shaping;
mod teacher;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
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
    let epsilon = prop_oneof![Just(1e-6), Just(1e-4), Just(0.0)];
    (select(Scale::ALL), 0..=1_u8, epsilon, select(SingletonAdvantage::ALL)).prop_map(
        |(scale, ddof, epsilon, singleton)| Grpo { scale, ddof, epsilon, singleton, ..Grpo::default() },
    )
}

/// Typical rewards: right or wrong, in tenths, anything; some unscored.
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
    fn a_uniform_group_is_exactly_zero(estimator in estimator(), reward in -3.0..3.0_f64, tenths in -9..9_i32, size in 2..70_usize) {
        for reward in [reward, f64::from(tenths) / 10.0] {
            // Together with another group, so that the batch has a deviation.
            let advantages = advantages(&estimator, &[vec![reward; size], vec![0.0, 1.0]]);
            prop_assert!(advantages[0].iter().all(|advantage| *advantage == 0.0));
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
}

#[test]
fn singletons_by_name() {
    let batch = [vec![0.7], vec![0.0, 1.0]];
    let of = |estimator: Grpo| advantages(&estimator, &batch)[0][0];
    assert_eq!(of(Grpo::verl()), 0.7 / (1.0 + 1e-6));
    assert_eq!(of(Grpo::dr_grpo()), 0.7);
    assert_eq!(of(Grpo::trl()), 0.0);
    // An unscored singleton gets 0 under any rule.
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
