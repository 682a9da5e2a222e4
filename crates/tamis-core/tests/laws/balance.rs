//! Laws of dividing sequences into parts.

use proptest::collection::vec;
use proptest::prelude::*;
use tamis_core::balance::{first_fit, karmarkar_karp, micro_batches};

/// Every index once, ascending within a part.
fn covers(parts: &[Vec<usize>], items: usize) -> Result<(), TestCaseError> {
    let mut all: Vec<usize> = parts.concat();
    all.sort_unstable();
    prop_assert_eq!(all, (0..items).collect::<Vec<_>>());
    for part in parts {
        prop_assert!(part.is_sorted());
    }
    Ok(())
}

fn spread(costs: &[u64], parts: &[Vec<usize>]) -> u64 {
    let sums: Vec<u64> = parts.iter().map(|part| part.iter().map(|&item| costs[item]).sum()).collect();
    sums.iter().max().unwrap() - sums.iter().min().unwrap()
}

/// Costs with many ties, and a number of parts that they fill.
fn costs() -> impl Strategy<Value = (Vec<u64>, usize)> {
    (1_usize..9).prop_flat_map(|parts| {
        let cost = prop_oneof![0_u64..4, 0_u64..100_000];
        (vec(cost, parts..80), Just(parts))
    })
}

proptest! {
    #[test]
    fn parts_hold_every_item_once_and_differ_by_one_item_at_most((costs, parts) in costs()) {
        let largest = costs.iter().copied().max().unwrap();
        let found = karmarkar_karp(&costs, parts, false).unwrap();
        prop_assert_eq!(found.len(), parts);
        covers(&found, costs.len())?;
        // Merging two solutions never gives a greater spread than the worse of the two has.
        prop_assert!(spread(&costs, &found) <= largest);
    }

    #[test]
    fn equal_sizes_are_equal((costs, parts) in costs()) {
        let items = costs.len() / parts * parts;
        let costs = &costs[..items];
        let found = karmarkar_karp(costs, parts, true).unwrap();
        covers(&found, items)?;
        prop_assert!(found.iter().all(|part| part.len() == items / parts));
        // Items of similar cost start together, and merging never makes it worse.
        let mut sorted = costs.to_vec();
        sorted.sort_unstable();
        let worst = sorted.chunks(parts).map(|chunk| chunk[parts - 1] - chunk[0]).max().unwrap();
        prop_assert!(spread(costs, &found) <= worst);
    }

    #[test]
    fn micro_batches_hold_every_sequence_once_and_the_limit(
        (lengths, limit, least) in (vec(0_usize..50, 0..60), 50_usize..200, 0_usize..6)
    ) {
        let found = micro_batches(&lengths, limit, least).unwrap();
        covers(&found, lengths.len())?;
        prop_assert!(found.len() >= least.min(lengths.len()));
        prop_assert!(found.iter().all(|part| !part.is_empty()));
        prop_assert!(found.iter().all(|part| part.iter().map(|&i| lengths[i]).sum::<usize>() <= limit));
    }

    #[test]
    fn first_fit_opens_no_micro_batch_without_need(
        (lengths, limit) in (vec(1_usize..80, 0..60), 1_usize..100)
    ) {
        let found = first_fit(&lengths, limit).unwrap();
        covers(&found, lengths.len())?;
        let tokens: Vec<usize> = found.iter().map(|part| part.iter().map(|&i| lengths[i]).sum()).collect();
        for (part, &tokens) in found.iter().zip(&tokens) {
            prop_assert!(tokens <= limit || part.len() == 1);
        }
        // The first sequence of a later one fitted into none of the earlier ones, so no two are half empty.
        let half_empty = tokens.iter().filter(|&&tokens| 2 * tokens <= limit).count();
        prop_assert!(half_empty <= 1, "{:?}", found);
    }
}

#[test]
fn the_least_there_is() {
    let cut = |lengths: &[usize], limit, least| micro_batches(lengths, limit, least).unwrap().len();
    // One token at a time; and sequences of length 0, which need only one micro-batch.
    assert_eq!((cut(&[1, 1], 1, 0), cut(&[0, 0], 10, 0)), (2, 1));
    // The largest possible sum.
    assert_eq!(karmarkar_karp(&[u64::MAX], 1, false), Ok(vec![vec![0]]));
}

/// 4 and 3 + 1 have the same cost: the part of two sequences counts as the heavier, so that the 0 goes to the
/// other.
#[test]
fn of_parts_that_weigh_the_same_the_fuller_is_the_heavier() {
    assert_eq!(karmarkar_karp(&[3, 4, 0, 1], 2, false), Ok(vec![vec![1, 2], vec![0, 3]]));
}
