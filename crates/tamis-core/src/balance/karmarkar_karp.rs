//! The largest differencing method: repeatedly merges the two partial solutions with the greatest spread, the
//! heaviest part with the lightest.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::entry::{Entry, Family};
use crate::fault;
use crate::fault::Fault;

pub(super) const ENTRY: Entry = Entry {
    name: "karmarkar_karp",
    family: Family::Balancing,
    meaning: "Divides sequences into parts of nearly equal cost by the largest differencing method, of equal or free size.",
    formula: "a solution is k parts; of all solutions the two of largest max - min are merged, the i-th \
        heaviest part of one with the i-th lightest of the other",
    source: "Karmarkar and Karp, The differencing method of set partitioning, UCB/CSD 82/113, 1982; k parts: Korf, IJCAI 2009",
    defaults: &[],
    degenerate: &[
        "fewer sequences than parts are refused, and so are numbers that cannot be divided into equal sizes",
        "size and index decide between equal costs, so that the result is unique",
    ],
    known_as: &[("verl", "get_seqlen_balanced_partitions")],
    differences: &["the same parts as verl's, indices ascending within each"],
};

/// Whether items of these costs can be divided into `parts`.
fn check(costs: &[u64], parts: usize, equal_size: bool) -> Result<(), Fault> {
    let items = costs.len();
    if parts == 0 {
        return Err(fault!("sequences cannot be divided into 0 parts"));
    }
    if items < parts {
        return Err(fault!("{items} sequences or groups leave some of {parts} parts empty"));
    }
    if equal_size && !items.is_multiple_of(parts) {
        return Err(fault!("{items} sequences or groups do not make {parts} parts of equal size"));
    }
    if items as u64 >= u64::from(u32::MAX) {
        return Err(fault!("{items} sequences or groups are more than 4294967294"));
    }
    let total = costs.iter().try_fold(0_u64, |total, &cost| total.checked_add(cost));
    total
        .map(|_| ())
        .ok_or_else(|| fault!("the costs of {items} sequences or groups do not fit 64 bits in sum"))
}

/// Ends a list of items.
const END: u32 = u32::MAX;

/// A part: its items are a list from `first` to `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    cost: u64,
    items: u32,
    first: u32,
    last: u32,
}

impl Part {
    /// Heavier first; of equal cost the larger, then the one whose first item comes later.
    fn order(&self) -> impl Ord + use<> {
        Reverse((self.cost, self.items, self.first))
    }
}

/// A partial solution: its non-empty parts, heaviest first. Items differ between solutions, so no two are
/// equal.
#[derive(Debug, PartialEq, Eq)]
struct Solution {
    parts: Vec<Part>,
    spread: u64,
}

impl Solution {
    /// Missing parts up to `k` count as empty.
    fn new(parts: Vec<Part>, k: usize) -> Self {
        let mut solution = Self { parts, spread: 0 };
        solution.measure(k);
        solution
    }

    fn measure(&mut self, k: usize) {
        let heaviest = self.parts.first().map_or(0, |part| part.cost);
        let lightest = self.parts.last().filter(|_| self.parts.len() == k).map_or(0, |part| part.cost);
        self.spread = heaviest - lightest;
    }
}

impl Ord for Solution {
    /// The one with the largest spread is the greatest; of equal spread, the one with the greatest heaviest
    /// part.
    fn cmp(&self, other: &Self) -> Ordering {
        let heaviest = |solution: &Self| solution.parts.first().map(Part::order);
        // The order of parts is reversed.
        self.spread.cmp(&other.spread).then_with(|| heaviest(other).cmp(&heaviest(self)))
    }
}

impl PartialOrd for Solution {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Divides items of the given costs into `parts`. Returns the indices of each part, ascending, parts from the
/// heaviest to the lightest.
///
/// With `equal_size` every part gets the same number of items. `O(n log n + n·k)` time; memory is linear,
/// because a part is a list and a solution holds only its non-empty parts.
///
/// # Errors
/// No parts, fewer items than parts, a number that cannot be divided into equal sizes, a sum beyond 64 bits.
///
/// ```
/// use tamis_core::balance::karmarkar_karp;
/// // Differences 8 - 7 and 6 - 5, then 4 - 1, then 3 - 1: parts of 16 and 14, one more than the best.
/// assert_eq!(karmarkar_karp(&[8, 7, 6, 5, 4], 2, false)?, [vec![1, 3, 4], vec![0, 2]]);
/// # Ok::<(), tamis_core::fault::Fault>(())
/// ```
pub fn karmarkar_karp(costs: &[u64], parts: usize, equal_size: bool) -> Result<Vec<Vec<usize>>, Fault> {
    check(costs, parts, equal_size)?;
    let mut next = vec![END; costs.len()];
    let part = |&item: &u32| Part { cost: costs[item as usize], items: 1, first: item, last: item };
    let mut order: Vec<u32> = (0..costs.len() as u32).collect();
    order.sort_unstable_by_key(|&item| (costs[item as usize], item));
    // With equal sizes, each solution begins with one item for each part; these have similar costs.
    let size = if equal_size { parts } else { 1 };
    let begin = |items: &[u32]| Solution::new(items.iter().rev().map(part).collect(), parts);
    let mut solutions: BinaryHeap<Solution> = order.chunks(size).map(begin).collect();
    let mut scratch = Vec::new();
    let last = loop {
        let Some(mut one) = solutions.pop() else { break None };
        let Some(other) = solutions.pop() else { break Some(one) };
        merge(&mut one.parts, &other.parts, parts, &mut next, &mut scratch);
        one.measure(parts);
        solutions.push(one);
    };
    let mut shares: Vec<Vec<usize>> = Vec::with_capacity(parts);
    for part in last.map(|solution| solution.parts).unwrap_or_default() {
        let mut share = Vec::with_capacity(part.items as usize);
        let mut item = part.first;
        while item != END {
            share.push(item as usize);
            item = next[item as usize];
        }
        share.sort_unstable();
        shares.push(share);
    }
    Ok(shares)
}

/// Merges the parts of `other` into `one`: the i-th heaviest of one with the i-th lightest of the other, of
/// `k` each.
fn merge(one: &mut Vec<Part>, other: &[Part], k: usize, next: &mut [u32], scratch: &mut Vec<Part>) {
    // Parts that are merged with an empty part of the other are unchanged, and in order.
    let mine = one.len().min(k - other.len());
    let theirs = other.len().min(k - one.len());
    scratch.clear();
    for (i, part) in one.iter().enumerate().skip(mine) {
        let met = other[k - 1 - i];
        next[part.last as usize] = met.first;
        scratch.push(Part {
            cost: part.cost + met.cost,
            items: part.items + met.items,
            first: part.first,
            last: met.last,
        });
    }
    one.truncate(mine);
    if theirs + scratch.len() == 1 {
        // A single new part, for example if one solution is a single item: it is inserted at its place.
        let part = scratch.first().or(other.first()).copied();
        if let Some(part) = part {
            let place = one.partition_point(|present| present.order() < part.order());
            one.insert(place, part);
        }
        return;
    }
    one.extend_from_slice(&other[..theirs]);
    one.append(scratch);
    one.sort_by_key(Part::order);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_by_hand() {
        for (costs, parts, expected) in [
            // 8-7 = 1, 6-5 = 1, 4: 4-1 = 3, 3-1 = 2.
            ([8, 7, 6, 5, 4], 2, &[16, 14][..]),
            // (5|5|0) first of largest spread, then 4 onto the empty one, and so on.
            ([5, 5, 4, 3, 3], 3, &[5, 7, 8]),
        ] {
            let shares = karmarkar_karp(&costs, parts, false).expect("shares");
            let sum = |share: &Vec<usize>| share.iter().map(|&item| costs[item]).sum();
            let mut sums: Vec<u64> = shares.iter().map(sum).collect();
            if parts > 2 {
                sums.sort_unstable();
            }
            assert_eq!(sums, expected, "{costs:?}");
        }
    }

    #[test]
    fn a_division_that_does_not_come_out_is_refused() {
        let refused = |costs: &[u64], parts, equal_size| {
            karmarkar_karp(costs, parts, equal_size).unwrap_err().to_string()
        };
        insta::assert_snapshot!(refused(&[1, 2, 3], 0, true), @"sequences cannot be divided into 0 parts");
        insta::assert_snapshot!(refused(&[1, 2, 3], 4, true), @"3 sequences or groups leave some of 4 parts empty");
        insta::assert_snapshot!(refused(&[1, 2, 3], 2, true), @"3 sequences or groups do not make 2 parts of equal size");
        insta::assert_snapshot!(
            refused(&[u64::MAX, 1], 1, false),
            @"the costs of 2 sequences or groups do not fit 64 bits in sum"
        );
    }
}
