//! Greedy: each sequence in turn goes where the least is.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use super::{BalanceError, check};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "greedy",
    family: Family::Balancing,
    meaning: "each sequence in turn goes to the part that has the least so far",
    formula: "part of i = argmin of the parts' costs; with equal sizes, of (items, cost)",
    source: "longest first: Graham, Bounds on multiprocessing timing anomalies, SIAM J. Appl. Math. 1969; at most 4/3 - 1/(3k) of the best",
    defaults: &[("order", "longest_first"), ("equal_size", "true")],
    degenerate: &["of parts that have the same, the first takes it"],
    known_as: &[("verl", "greedy_partition")],
    differences: &[
        "verl takes sequences in the order given (`order: given`), which bounds the heaviest part by 2 - 1/k of the best only",
    ],
};

/// In which order sequences are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As given.
    Given,
    /// The dearest first; of equal ones as given.
    LongestFirst,
}

impl Order {
    /// Indices of the costs in this order.
    pub(crate) fn of<T: Ord + Copy>(self, costs: &[T]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..costs.len()).collect();
        if self == Self::LongestFirst {
            order.sort_by_key(|&item| Reverse(costs[item]));
        }
        order
    }
}

/// Shares items of the given costs out over `parts`: the indices of each, ascending. `O(n log n)`.
///
/// # Errors
/// As [`karmarkar_karp`](super::karmarkar_karp()).
///
/// ```
/// use tamis_core::balance::{Order, greedy};
/// assert_eq!(greedy(&[1, 2, 3, 4], 2, false, Order::Given)?, [vec![0, 2], vec![1, 3]]);
/// assert_eq!(greedy(&[1, 2, 3, 4], 2, false, Order::LongestFirst)?, [vec![0, 3], vec![1, 2]]);
/// # Ok::<(), tamis_core::balance::BalanceError>(())
/// ```
pub fn greedy(
    costs: &[u64],
    parts: usize,
    equal_size: bool,
    order: Order,
) -> Result<Vec<Vec<usize>>, BalanceError> {
    check(costs, parts, equal_size)?;
    let mut shares = vec![Vec::new(); parts];
    // Items, cost and number of a part; the items count only where sizes must be equal.
    let mut least: BinaryHeap<Reverse<(usize, u64, usize)>> =
        (0..parts).map(|part| Reverse((0, 0, part))).collect();
    for item in order.of(costs) {
        if let Some(mut top) = least.peek_mut() {
            let Reverse((items, cost, part)) = *top;
            shares[part].push(item);
            *top = Reverse((items + usize::from(equal_size), cost + costs[item], part));
        }
    }
    for share in &mut shares {
        share.sort_unstable();
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sizes_come_before_equal_costs() {
        assert_eq!(greedy(&[9, 1, 1, 1], 2, true, Order::Given), Ok(vec![vec![0, 3], vec![1, 2]]));
        assert_eq!(greedy(&[9, 1, 1, 1], 2, false, Order::Given), Ok(vec![vec![0], vec![1, 2, 3]]));
    }
}
