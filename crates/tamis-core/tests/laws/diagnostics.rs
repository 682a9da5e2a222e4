//! Laws of the diagnostics.

use proptest::collection::vec;
use proptest::prelude::*;
use tamis_core::diagnostics::{Buckets, Diversity, PassRates, VarianceShares, ZeroAdvantage};
use tamis_core::ragged::Ragged;

fn rewards() -> impl Strategy<Value = Vec<Vec<f64>>> {
    let reward = prop_oneof![Just(0.0), Just(1.0), -2.0..2.0_f64, Just(f64::NAN)];
    vec(vec(reward, 0..6), 0..8)
}

proptest! {
    #[test]
    fn every_group_is_counted_once(groups in rewards()) {
        let rates = PassRates::of(&Ragged::from_rows(groups.iter()), 0.5, 4);
        let counted = rates.none + rates.between.iter().sum::<u64>() + rates.all + rates.unscored;
        prop_assert_eq!(counted, groups.len() as u64);
    }

    #[test]
    fn an_answer_says_no_more_than_which_prompt_it_is(groups in vec(vec(proptest::option::of(0_u8..4), 0..6), 0..8)) {
        let found = Diversity::of(&Ragged::from_rows(groups.iter()));
        let information = found.mutual_information();
        let prompts = groups.iter().filter(|group| group.iter().any(Option::is_some)).count();
        if prompts > 0 {
            prop_assert!(information > -1e-12 && information <= (prompts as f64).ln() + 1e-12, "{}", information);
        }
        prop_assert!(found.distinct_share.is_nan() || (found.distinct_share > 0.0 && found.distinct_share <= 1.0));
        // The order of members makes no difference.
        let mut turned = groups.clone();
        for group in &mut turned {
            group.reverse();
        }
        let turned = Diversity::of(&Ragged::from_rows(turned.iter()));
        prop_assert_eq!(turned.entropy.to_bits(), found.entropy.to_bits());
        prop_assert_eq!(turned.conditional_entropy.to_bits(), found.conditional_entropy.to_bits());
    }

    #[test]
    fn variance_is_that_within_and_that_between(groups in vec(vec(-2.0..2.0_f64, 4), 1..8)) {
        let found = VarianceShares::of(&Ragged::from_rows(groups.iter()));
        let all = groups.concat();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let total = all.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / all.len() as f64;
        prop_assert!((found.within + found.between - total).abs() < 1e-12);
    }

    #[test]
    fn buckets_hold_every_group_once_and_in_order(
        (deviations, buckets) in (vec(0.0..1.0_f64, 0..20), 1_usize..7)
    ) {
        let definition = Buckets::Quantile { buckets };
        let places = definition.assign(&deviations).unwrap();
        prop_assert!(places.iter().all(|place| place.is_some_and(|place| place < buckets)));
        for a in 0..deviations.len() {
            for b in 0..deviations.len() {
                prop_assert!(deviations[a] >= deviations[b] || places[a] <= places[b]);
            }
        }
    }
}

/// Names and values, to 1e-15.
fn assert_named<N: AsRef<str>>(found: &[(N, f64)], expected: &[(&str, f64)]) {
    assert_eq!(found.len(), expected.len());
    for ((name, value), (expected_name, expected)) in found.iter().zip(expected) {
        assert_eq!(name.as_ref(), *expected_name);
        assert!((value - expected).abs() < 1e-15, "{expected_name}: {value} {expected}");
    }
}

/// The first group has no advantage at all and a masked member, the second has some, the third is masked, and
/// the fourth is a single member without advantage.
#[test]
fn zero_advantages_by_hand() {
    let advantages = Ragged::from_rows([
        vec![0.0, 0.0],
        vec![0.0],
        vec![5.0],
        vec![0.0, 2.0, 0.0],
        vec![1.0],
        vec![0.0],
        vec![0.0],
    ]);
    let mask = Ragged::from_rows([
        vec![true, true],
        vec![true],
        vec![false],
        vec![true, true, true],
        vec![true],
        vec![false],
        vec![true],
    ]);
    let found = ZeroAdvantage::of_tokens(&advantages, &mask, &[3, 2, 1, 1]);
    let expected = ZeroAdvantage {
        tokens: 8,
        zero_tokens: 6,
        trajectories: 5,
        zero_trajectories: 3,
        groups: 3,
        zero_groups: 2,
    };
    assert_eq!(found, expected);
    assert_named(
        &found.to_pairs(),
        &[
            ("diagnostics/zero_advantage/tokens", 0.75),
            ("diagnostics/zero_advantage/trajectories", 0.6),
            ("diagnostics/zero_advantage/groups", 2.0 / 3.0),
        ],
    );
    // One advantage per trajectory gives the same for those that have one.
    let by_trajectory = Ragged::from_rows([vec![0.0, -0.0, 5.0], vec![f64::NAN, 1.0], vec![0.0], vec![0.0]]);
    let found = ZeroAdvantage::of(&by_trajectory, &[2, 1, 0, 3, 1, 0, 1]);
    assert_eq!(found, ZeroAdvantage { zero_tokens: 4, ..expected });
    assert!(ZeroAdvantage::default().token_share().is_nan());
}

#[test]
fn at_the_threshold_nothing_is_passed() {
    let scores = Ragged::from_rows([[0.5, 0.5, 1.0, 0.0]]);
    let rates = PassRates::of(&scores, 0.5, 4);
    assert_eq!((&rates.between[..], rates.none, rates.all), (&[0, 1, 0, 0][..], 0, 0));
}

/// A single answer has nothing to differ from: it counts in the entropies, but not in the distinct share.
#[test]
fn diversity_by_hand() {
    let found = Diversity::of(&Ragged::from_rows([vec![Some("a")], vec![Some("b"), Some("b")], vec![None]]));
    let entropy = (1.0_f64 / 3.0).ln() / -3.0 - (2.0_f64 / 3.0).ln() * 2.0 / 3.0;
    assert_named(
        &found.to_pairs("answer"),
        &[
            ("collapse/answer_distinct_share", 0.5),
            ("collapse/answer_conditional_entropy", 0.0),
            ("collapse/answer_entropy", entropy),
            ("collapse/answer_mutual_information", entropy),
        ],
    );
}

#[test]
fn variances_by_hand() {
    // Within 1 and 4, means 1 and 5; sample deviations √2 and 2√2. A single reward has nothing to differ
    // from.
    let found = VarianceShares::of(&Ragged::from_rows([vec![0.0, 2.0], vec![3.0, 7.0], vec![f64::NAN, 9.0]]));
    assert_named(
        &found.to_pairs(),
        &[
            ("collapse/reward_variance_within", 2.5),
            ("collapse/reward_variance_between", 4.0),
            ("collapse/reward_variance_within_share", 2.5 / 6.5),
            ("collapse/reward_std_dispersion", 1.0 / (1.5 * 2_f64.sqrt())),
        ],
    );
    // Deviations are sample deviations: √2 for two rewards, 4/√3 for four.
    let found = VarianceShares::of(&Ragged::from_rows([vec![0.0, 2.0], vec![0.0, 0.0, 4.0, 4.0]]));
    let (few, many) = (2_f64.sqrt(), 4.0 / 3_f64.sqrt());
    assert!((found.dispersion - 2_f64.sqrt() * (many - few) / (many + few)).abs() < 1e-15);
}
