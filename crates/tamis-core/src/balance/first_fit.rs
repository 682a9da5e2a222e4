//! First fit: each sequence goes into the first micro-batch that has room.

use std::cmp::Reverse;

use crate::entry::{Entry, Family};
use crate::fault;
use crate::fault::Fault;

pub(super) const ENTRY: Entry = Entry {
    name: "first_fit",
    family: Family::Balancing,
    meaning: "Packs sequences into few micro-batches by a simple rule, the longest first, none over the token limit.",
    formula: "micro-batch of i = the first with L_i tokens left, otherwise a new one",
    source: "Johnson, Near-optimal bin packing algorithms, 1973; longest first needs at most 11/9 of the fewest + 6/9",
    defaults: &[],
    degenerate: &["a sequence over the limit gets its own micro-batch", "a limit of 0 is refused"],
    known_as: &[],
    differences: &[
        "verl and TRL have no such rule; verl's dynamic batch size balances instead, and a micro-batch may exceed the limit",
    ],
};

/// Packs sequences, the longest first, into micro-batches of at most `limit` tokens. Returns the indices of
/// each micro-batch, ascending, in the order in which these were opened. A sequence above the limit gets its
/// own micro-batch. `O(n log n)`. A limit of 0 is refused.
///
/// ```
/// use tamis_core::balance::first_fit;
/// assert_eq!(first_fit(&[6, 5, 4, 3], 9)?, [vec![0, 3], vec![1, 2]]);
/// # Ok::<(), tamis_core::fault::Fault>(())
/// ```
pub fn first_fit(lengths: &[usize], limit: usize) -> Result<Vec<Vec<usize>>, Fault> {
    if limit == 0 {
        return Err(fault!("a micro-batch of 0 tokens holds nothing"));
    }
    let leaves = lengths.len().next_power_of_two();
    // A tree over all bins that may be needed: each node holds the greatest room below it. Unopened bins have
    // the whole limit.
    let mut room = vec![limit; 2 * leaves];
    let mut bins: Vec<Vec<usize>> = Vec::new();
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&item| Reverse(lengths[item]));
    for item in order {
        let needed = lengths[item].min(limit);
        let mut node = 1;
        while node < leaves {
            node = if room[2 * node] >= needed { 2 * node } else { 2 * node + 1 };
        }
        let bin = node - leaves;
        if bin >= bins.len() {
            bins.resize_with(bin + 1, Vec::new);
        }
        bins[bin].push(item);
        room[node] -= needed;
        while node > 1 {
            node /= 2;
            room[node] = room[2 * node].max(room[2 * node + 1]);
        }
    }
    for bin in &mut bins {
        bin.sort_unstable();
    }
    Ok(bins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_with_room_takes_it() {
        assert_eq!(
            first_fit(&[5, 7, 5, 2, 4, 2, 5, 1, 6], 10),
            Ok(vec![vec![1, 3, 7], vec![4, 8], vec![0, 2], vec![5, 6]])
        );
    }

    #[test]
    fn an_over_long_sequence_passes_alone() {
        assert_eq!(first_fit(&[3, 20, 4], 10), Ok(vec![vec![1], vec![0, 2]]));
        insta::assert_snapshot!(
            first_fit(&[1], 0).unwrap_err(),
            @"a micro-batch of 0 tokens holds nothing"
        );
        assert_eq!(first_fit(&[], 10), Ok(vec![]));
    }
}
