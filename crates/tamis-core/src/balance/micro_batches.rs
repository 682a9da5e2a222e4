//! Micro-batches of nearly equal cost under a limit of tokens.

use serde::{Deserialize, Serialize};

use super::{BalanceError, Cost, Order, first_fit, karmarkar_karp};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "micro_batches",
    family: Family::Balancing,
    meaning: "micro-batches of nearly equal cost, none over the limit of tokens",
    formula: "Karmarkar-Karp over max(least, ceil(tokens / limit)) parts, one more as long as a part is over the limit",
    source: "verl rearrange_micro_batches (use_dynamic_bsz)",
    defaults: &[("cost", "24576·L + L²"), ("arrangement", "small_at_ends")],
    degenerate: &[
        "a sequence over the limit is refused",
        "where 16 parts more are still over the limit, first fit decides, which never is",
    ],
    known_as: &[("verl", "actor.use_dynamic_bsz, ppo_max_token_len_per_gpu")],
    differences: &[
        "ranks agree on the number of parts through `least`; verl takes the maximum over ranks by an all-reduce",
    ],
};

/// Number of parts beyond the fewest that are tried before first fit decides.
const ATTEMPTS: usize = 16;

/// In which order micro-batches are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrangement {
    /// As they were found, heaviest first.
    AsFound,
    /// Light ones at both ends, so that a pipeline fills and drains quickly (verl `use_dynamic_bsz_balance`).
    SmallAtEnds,
}

/// Cuts sequences into at least `least` micro-batches of at most `limit` tokens and nearly equal cost: the
/// indices of each, ascending.
///
/// No sequences, no micro-batches; never more micro-batches than sequences.
///
/// # Errors
/// A limit of 0, a sequence over the limit, a sum of costs beyond 64 bits.
///
/// ```
/// use tamis_core::balance::{Arrangement, Cost, micro_batches};
/// assert_eq!(micro_batches(&[6, 5, 4, 3], 9, 1, Cost::Tokens, Arrangement::AsFound)?, [vec![1, 2], vec![0, 3]]);
/// # Ok::<(), tamis_core::balance::BalanceError>(())
/// ```
pub fn micro_batches(
    lengths: &[usize],
    limit: usize,
    least: usize,
    cost: Cost,
    arrangement: Arrangement,
) -> Result<Vec<Vec<usize>>, BalanceError> {
    if limit == 0 {
        return Err(BalanceError::NoTokens);
    }
    if let Some(index) = lengths.iter().position(|&length| length > limit) {
        return Err(BalanceError::TooLong { index, length: lengths[index], limit });
    }
    if lengths.is_empty() {
        return Ok(Vec::new());
    }
    let costs: Vec<u64> = lengths.iter().map(|&length| cost.of(length)).collect();
    let tokens = |part: &Vec<usize>| part.iter().map(|&item| lengths[item]).fold(0, usize::saturating_add);
    let total = lengths.iter().copied().fold(0, usize::saturating_add);
    let fewest = total.div_ceil(limit).max(least).max(1).min(lengths.len());
    let mut found = None;
    for parts in (fewest..=lengths.len()).take(ATTEMPTS) {
        let parts = karmarkar_karp(&costs, parts, false)?;
        if parts.iter().all(|part| tokens(part) <= limit) {
            found = Some(parts);
            break;
        }
    }
    let mut parts = match found {
        Some(parts) => parts,
        None => first_fit(lengths, limit, Order::LongestFirst)?,
    };
    if arrangement == Arrangement::SmallAtEnds {
        let weight = |part: &Vec<usize>| {
            let total = part.iter().map(|&item| costs[item]).fold(0, u64::saturating_add);
            (total, part.first().copied())
        };
        parts.sort_by_key(|part| std::cmp::Reverse(weight(part)));
        let (mut front, mut back) = (Vec::new(), Vec::new());
        for (i, part) in parts.into_iter().enumerate() {
            if i % 2 == 0 { front.push(part) } else { back.push(part) }
        }
        front.reverse();
        front.append(&mut back);
        return Ok(front);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_as_asked_for_and_no_more_than_sequences() {
        let cut =
            |lengths: &[usize], least| micro_batches(lengths, 10, least, Cost::Tokens, Arrangement::AsFound);
        assert_eq!(cut(&[1, 1, 1], 2).map(|parts| parts.len()), Ok(2));
        assert_eq!(cut(&[1, 1, 1], 9).map(|parts| parts.len()), Ok(3));
        assert_eq!(cut(&[], 2), Ok(vec![]));
    }

    #[test]
    fn light_ones_go_to_the_ends() {
        let parts =
            micro_batches(&[5, 4, 3, 2, 1], 5, 5, Cost::Tokens, Arrangement::SmallAtEnds).expect("fits");
        assert_eq!(parts, [[4], [2], [0], [1], [3]]);
    }

    #[test]
    fn a_sequence_that_fits_nowhere_is_refused() {
        insta::assert_snapshot!(
            micro_batches(&[1, 11], 10, 1, Cost::VERL, Arrangement::AsFound).unwrap_err(),
            @"sequence 1 has 11 tokens, more than the 10 of a micro-batch"
        );
    }
}
