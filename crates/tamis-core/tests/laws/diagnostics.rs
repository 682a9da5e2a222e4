//! Laws of the diagnostics.

use proptest::collection::vec;
use proptest::prelude::*;
use tamis_core::diagnostics::{BucketTable, Buckets, Diversity, PassRates, VarianceShares, ZeroAdvantage};
use tamis_core::ragged::Ragged;

fn rewards() -> impl Strategy<Value = Vec<Vec<f64>>> {
    let reward = prop_oneof![Just(0.0), Just(1.0), -2.0..2.0_f64, Just(f64::NAN)];
    vec(vec(reward, 0..6), 0..8)
}

proptest! {
    #[test]
    fn counts_of_parts_add_up((groups, cut) in (rewards(), 0_usize..8)) {
        let cut = cut.min(groups.len());
        let ragged = |groups: &[Vec<f64>]| Ragged::from_rows(groups.iter());
        let (whole, first, second) = (ragged(&groups), ragged(&groups[..cut]), ragged(&groups[cut..]));
        let mut rates = PassRates::of(&first, 0.5, 4);
        rates.merge(&PassRates::of(&second, 0.5, 4));
        prop_assert_eq!(&rates, &PassRates::of(&whole, 0.5, 4));
        let counted = rates.none + rates.between.iter().sum::<u64>() + rates.all + rates.unscored;
        prop_assert_eq!(counted, groups.len() as u64);
        let tokens: Vec<usize> = (0..whole.num_values()).map(|i| i % 3).collect();
        let (left, right) = tokens.split_at(first.num_values());
        prop_assert_eq!(
            ZeroAdvantage::of(&first, left).merged(ZeroAdvantage::of(&second, right)),
            ZeroAdvantage::of(&whole, &tokens)
        );
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
        // The order of members says nothing.
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
        let table = BucketTable::of(&definition, &deviations, &deviations).unwrap();
        prop_assert_eq!(table.buckets.iter().map(|bucket| bucket.groups).sum::<usize>(), deviations.len());
        let sum: f64 = table.buckets.iter().map(|bucket| bucket.norm_sum).sum();
        prop_assert!((sum - deviations.iter().sum::<f64>()).abs() < 1e-12);
    }
}
