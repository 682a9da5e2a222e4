//! Micro-batches of nearly equal numbers of tokens, none over a limit.

use super::{first_fit, karmarkar_karp};
use crate::entry::{Entry, Family};
use crate::fault;
use crate::fault::Fault;

pub(super) const ENTRY: Entry = Entry {
    name: "micro_batches",
    family: Family::Balancing,
    meaning: "Divides sequences into micro-batches of nearly equal numbers of tokens, none over the limit.",
    formula: "Karmarkar-Karp over max(least, ceil(tokens / limit)) parts, one more as long as a part is over the limit",
    source: "verl rearrange_micro_batches (use_dynamic_bsz)",
    defaults: &[],
    degenerate: &[
        "a sequence over the limit is refused",
        "if 16 further parts are still over the limit, first fit decides, which always stays within it",
    ],
    known_as: &[("verl", "actor.use_dynamic_bsz, ppo_max_token_len_per_gpu")],
    differences: &[
        "verl balances 24576·L + L², the cost of a model of 7 billion parameters, and may put light parts at \
            both ends; here the cost is the number of tokens, and the heaviest part is first",
        "ranks agree on the number of parts through `least`; verl computes the maximum over ranks by an all-reduce",
    ],
};

/// Number of parts beyond the minimum that are tried before first fit decides.
const ATTEMPTS: usize = 16;

/// Cuts sequences into at least `least` micro-batches of at most `limit` tokens and nearly equal numbers of
/// tokens. Returns the indices of each, ascending, the heaviest first.
///
/// Without sequences there are no micro-batches; there are never more micro-batches than sequences.
///
/// # Errors
/// A limit of 0, a sequence over the limit, a sum of tokens beyond 64 bits.
///
/// ```
/// use tamis_core::balance::micro_batches;
/// assert_eq!(micro_batches(&[6, 5, 4, 3], 9, 1)?, [vec![1, 2], vec![0, 3]]);
/// # Ok::<(), tamis_core::fault::Fault>(())
/// ```
pub fn micro_batches(lengths: &[usize], limit: usize, least: usize) -> Result<Vec<Vec<usize>>, Fault> {
    if limit == 0 {
        return Err(fault!("a micro-batch of 0 tokens holds nothing"));
    }
    if let Some(index) = lengths.iter().position(|&length| length > limit) {
        return Err(fault!(
            "sequence {index} has {length} tokens, more than the {limit} of a micro-batch",
            length = lengths[index]
        ));
    }
    if lengths.is_empty() {
        return Ok(Vec::new());
    }
    let costs: Vec<u64> = lengths.iter().map(|&length| length as u64).collect();
    let tokens = |part: &Vec<usize>| part.iter().map(|&item| lengths[item]).fold(0, usize::saturating_add);
    let total = lengths.iter().copied().fold(0, usize::saturating_add);
    let fewest = total.div_ceil(limit).max(least).max(1).min(lengths.len());
    for parts in (fewest..=lengths.len()).take(ATTEMPTS) {
        let parts = karmarkar_karp(&costs, parts, false)?;
        if parts.iter().all(|part| tokens(part) <= limit) {
            return Ok(parts);
        }
    }
    first_fit(lengths, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_as_asked_for_and_no_more_than_sequences() {
        let cut = |lengths: &[usize], least| micro_batches(lengths, 10, least);
        assert_eq!(cut(&[1, 1, 1], 2).map(|parts| parts.len()), Ok(2));
        assert_eq!(cut(&[1, 1, 1], 9).map(|parts| parts.len()), Ok(3));
        assert_eq!(cut(&[], 2), Ok(vec![]));
    }

    #[test]
    fn a_sequence_that_fits_nowhere_is_refused() {
        insta::assert_snapshot!(
            micro_batches(&[1, 11], 10, 1).unwrap_err(),
            @"sequence 1 has 11 tokens, more than the 10 of a micro-batch"
        );
    }
}
