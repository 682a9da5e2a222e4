//! Micro-batches: what passes through the learner at once.

use std::ops::Range;

use tamis_core::balance;
use tamis_core::group::{Group, Trajectory};
use tamis_core::ragged::Ragged;

use crate::learner::LearnerSequence;

/// Size of the micro-batches that an optimizer batch is cut into for the forward pass; the result does not
/// depend on it beyond the order of f32 additions into the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MicroBatch {
    /// At most this many tokens, a prompt that neighbours share counted once; a longer sequence passes alone.
    Tokens(usize),
    /// As [`Self::Tokens`], and of nearly equal numbers of tokens where the order of the sequences is free:
    /// whole groups shared out by Karmarkar and Karp's method.
    Balanced(usize),
    /// A fixed number of sequences.
    Sequences(usize),
}

/// Tokens of neighbours with the same prompt, which is computed once.
fn tokens_of(group: &[LearnerSequence<'_>]) -> usize {
    group.iter().map(|sequence| sequence.completion.len()).sum::<usize>() + group[0].prompt.len()
}

/// The sequences of each micro-batch, where their order is free (the gradient is a sum over them).
/// [`MicroBatch::Balanced`] shares whole groups out by Karmarkar and Karp's method; a group over the limit is
/// cut alone, in order. The others keep the order.
pub(crate) fn parts(sequences: &[LearnerSequence<'_>], micro_batch: MicroBatch) -> Vec<Vec<usize>> {
    let in_order = |range: Range<usize>, micro_batch| {
        let cut = micro_batches(&sequences[range.clone()], micro_batch).into_iter();
        cut.map(move |part| (range.start + part.start..range.start + part.end).collect::<Vec<usize>>())
    };
    let MicroBatch::Balanced(limit) = micro_batch else {
        return in_order(0..sequences.len(), micro_batch).collect();
    };
    let (mut whole, mut lengths, mut oversized) = (Vec::new(), Vec::new(), Vec::new());
    let mut start = 0;
    for group in sequences.chunk_by(|a, b| a.prompt == b.prompt) {
        let (range, tokens) = (start..start + group.len(), tokens_of(group));
        start = range.end;
        if tokens <= limit {
            whole.push(range);
            lengths.push(tokens);
        } else {
            oversized.push(range);
        }
    }
    // Nothing is over the limit any more, so that sharing out cannot fail; the order is as good a cut as any.
    let mut parts: Vec<Vec<usize>> = match balance::micro_batches(&lengths, limit, 1) {
        Ok(shares) => shares
            .into_iter()
            .map(|share| share.into_iter().flat_map(|group| whole[group].clone()).collect())
            .collect(),
        Err(_) => return in_order(0..sequences.len(), MicroBatch::Tokens(limit)).collect(),
    };
    for range in oversized {
        parts.extend(in_order(range, MicroBatch::Tokens(limit)));
    }
    parts
}

/// Cuts sequences into micro-batches, in order. By tokens, neighbours with the same prompt (which the learner
/// computes once) stay together where a micro-batch holds them all.
pub fn micro_batches(sequences: &[LearnerSequence<'_>], micro_batch: MicroBatch) -> Vec<Range<usize>> {
    let limit = match micro_batch {
        MicroBatch::Tokens(limit) | MicroBatch::Balanced(limit) => limit,
        MicroBatch::Sequences(limit) => {
            let (limit, len) = (limit.max(1), sequences.len());
            return (0..len).step_by(limit).map(|start| start..len.min(start + limit)).collect();
        }
    };
    let mut ranges = Vec::new();
    let (mut start, mut at, mut tokens) = (0, 0, 0);
    for group in sequences.chunk_by(|a, b| a.prompt == b.prompt) {
        let whole = tokens_of(group);
        if at > start && tokens + whole > limit && whole <= limit {
            ranges.push(start..at);
            (start, tokens) = (at, 0);
        }
        for (i, sequence) in group.iter().enumerate() {
            let prompt = if i == 0 || at == start { sequence.prompt.len() } else { 0 };
            let mut more = sequence.completion.len() + prompt;
            if at > start && tokens + more > limit {
                ranges.push(start..at);
                (start, tokens) = (at, 0);
                more = sequence.completion.len() + sequence.prompt.len();
            }
            tokens += more;
            at += 1;
        }
    }
    if start < at {
        ranges.push(start..at);
    }
    ranges
}

/// Every trajectory of some groups as the learner takes it, in order.
pub(crate) fn sequences<'a>(groups: &[&'a Group]) -> Vec<LearnerSequence<'a>> {
    let of_group = |group: &&'a Group| {
        let prompt: &'a [u32] = &group.prompt_token_ids;
        let trajectories: &'a [Trajectory] = &group.trajectories;
        trajectories
            .iter()
            .map(move |trajectory| LearnerSequence { prompt, completion: &trajectory.token_ids })
    };
    groups.iter().flat_map(of_group).collect()
}

/// One number per completion token `[B][T]`, from a pass that says them flat over a micro-batch.
pub(crate) fn pass_over<T: From<f32>, E>(
    sequences: &[LearnerSequence<'_>],
    micro_batch: MicroBatch,
    mut pass: impl FnMut(&[LearnerSequence<'_>]) -> Result<Vec<f32>, E>,
) -> Result<Ragged<T>, E> {
    let mut rows = Ragged::default();
    for range in micro_batches(sequences, micro_batch) {
        push_rows(&mut rows, &sequences[range.clone()], &pass(&sequences[range])?);
    }
    Ok(rows)
}

/// Appends what a pass said of some sequences, flat over them, one row each.
pub(crate) fn push_rows<T: From<f32>>(
    rows: &mut Ragged<T>,
    sequences: &[LearnerSequence<'_>],
    values: &[f32],
) {
    let mut rest = values;
    for sequence in sequences {
        let (row, after) = rest.split_at(sequence.completion.len().min(rest.len()));
        rows.push_row(row.iter().map(|&value| value.into()));
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies a function to sequences given by (prompt, its length, length of the completion).
    fn of<T>(sequences: &[(u32, usize, usize)], then: impl Fn(&[LearnerSequence<'_>]) -> T) -> T {
        let tokens: Vec<(Vec<u32>, Vec<u32>)> = sequences
            .iter()
            .map(|&(prompt, len, completion)| (vec![prompt; len], vec![0; completion]))
            .collect();
        let sequences: Vec<_> =
            tokens.iter().map(|(prompt, completion)| LearnerSequence { prompt, completion }).collect();
        then(&sequences)
    }

    fn cut(sequences: &[(u32, usize, usize)], micro_batch: MicroBatch) -> Vec<Range<usize>> {
        of(sequences, |sequences| micro_batches(sequences, micro_batch))
    }

    #[test]
    fn balanced_parts_are_of_whole_groups_and_nearly_equal() {
        // Groups of 9, 5, 4 and 8 tokens under a limit of 13: in order three micro-batches, otherwise two of
        // 13 each.
        let groups = [(0, 3, 3), (0, 3, 3), (1, 1, 2), (1, 1, 2), (2, 2, 2), (3, 4, 4)];
        let shares = |micro_batch| {
            let mut shares = of(&groups, |sequences| parts(sequences, micro_batch));
            shares.sort();
            shares
        };
        assert_eq!(shares(MicroBatch::Tokens(13)), [vec![0, 1], vec![2, 3, 4], vec![5]]);
        assert_eq!(shares(MicroBatch::Balanced(13)), [vec![0, 1, 4], vec![2, 3, 5]]);
        assert_eq!(shares(MicroBatch::Balanced(100)), [vec![0, 1, 2, 3, 4, 5]]);
        // A group over the limit is cut alone.
        assert_eq!(shares(MicroBatch::Balanced(8)), [vec![0], vec![1], vec![2, 3], vec![4], vec![5]]);
    }

    #[test]
    fn every_sequence_is_in_one_balanced_part() {
        for limit in 1..40 {
            let sequences: Vec<(u32, usize, usize)> =
                (0..17).map(|i| (i / 3, 1 + i as usize / 3 % 4, 1 + i as usize * 7 % 5)).collect();
            let shares = of(&sequences, |sequences| parts(sequences, MicroBatch::Balanced(limit)));
            let mut places: Vec<usize> = shares.concat();
            places.sort_unstable();
            assert_eq!(places, (0..17).collect::<Vec<_>>(), "limit {limit}");
            for share in &shares {
                let tokens = of(&share.iter().map(|&place| sequences[place]).collect::<Vec<_>>(), |own| {
                    own.chunk_by(|a, b| a.prompt == b.prompt).map(tokens_of).sum::<usize>()
                });
                assert!(tokens <= limit || share.len() == 1, "limit {limit}: {share:?}");
            }
        }
        assert!(of(&[], |sequences| parts(sequences, MicroBatch::Balanced(6))).is_empty());
    }

    #[test]
    fn micro_batches_fill_up_to_the_budget_in_order() {
        let apart = [(0, 1, 2), (1, 1, 2), (2, 1, 2), (3, 1, 8), (4, 1, 0)];
        assert_eq!(cut(&apart, MicroBatch::Tokens(6)), [0..2, 2..3, 3..4, 4..5]);
        assert_eq!(cut(&apart, MicroBatch::Sequences(2)), [0..2, 2..4, 4..5]);
        assert!(cut(&[], MicroBatch::Tokens(6)).is_empty());
        assert!(cut(&[], MicroBatch::Sequences(6)).is_empty());
    }

    #[test]
    fn a_shared_prompt_counts_once_and_keeps_its_members_together() {
        // 4 + 3 x 2 tokens each: one group fits into 10, and neither is split to fill 12.
        let groups = [(0, 4, 2), (0, 4, 2), (0, 4, 2), (1, 4, 2), (1, 4, 2), (1, 4, 2)];
        assert_eq!(cut(&groups, MicroBatch::Tokens(10)), [0..3, 3..6]);
        assert_eq!(cut(&groups, MicroBatch::Tokens(19)), [0..3, 3..6]);
        assert_eq!(cut(&groups, MicroBatch::Tokens(20)), [0..6; 1]);
        // Too large for one: the prompt counts again in each.
        assert_eq!(cut(&groups, MicroBatch::Tokens(8)), [0..2, 2..3, 3..5, 5..6]);
        assert_eq!(cut(&groups, MicroBatch::Tokens(1)), [0..1, 1..2, 2..3, 3..4, 4..5, 5..6]);
    }
}
