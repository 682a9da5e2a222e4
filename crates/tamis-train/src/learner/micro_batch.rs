//! Micro-batches: the sequences that pass through the learner at once.

use std::ops::Range;

use tamis_core::balance;
use tamis_core::group::{Group, Trajectory};
use tamis_core::ragged::Ragged;

use crate::learner::{Learner, LearnerInfo, LearnerSequence, Network, Pass, TokenColumns, TopColumns, Wave};

/// Size of the micro-batches that an optimizer batch is cut into for the forward pass; the result does not
/// depend on it beyond the order of f32 additions into the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MicroBatch {
    /// At most this many tokens as the learner computes them. A prompt that neighbours share counts
    /// once if the learner computes it once, and with each of them otherwise. A longer sequence gets a
    /// micro-batch of its own.
    Tokens(usize),
    /// Like [`Self::Tokens`]; if the order of the sequences is free, also with nearly equal numbers of
    /// tokens, by sharing out whole groups with Karmarkar and Karp's method.
    Balanced(usize),
    /// Like [`Self::Balanced`] for a learner with several ranks: they wait for each other in every
    /// wave, which takes as long as its longest micro-batch. Like [`Self::Tokens`] for a learner with
    /// one rank: balance would gain nothing, and another order of summation would change the last bits
    /// of the gradient.
    ByRanks(usize),
    /// A fixed number of sequences.
    Sequences(usize),
}

/// How sequences are cut for a learner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) micro_batch: MicroBatch,
    /// Number of micro-batches of one wave.
    pub(crate) num_ranks: usize,
    /// Whether a prompt that neighbours share is computed once.
    pub(crate) shares_prompts: bool,
}

impl Cut {
    pub(crate) fn of(info: &LearnerInfo, micro_batch: MicroBatch) -> Self {
        Self { micro_batch, num_ranks: info.num_ranks, shares_prompts: info.shares_prompts }
    }

    /// Tokens that neighbours with the same prompt are computed as.
    fn tokens_of(&self, group: &[LearnerSequence<'_>]) -> usize {
        let prompts = if self.shares_prompts { 1 } else { group.len() };
        let completions: usize = group.iter().map(|sequence| sequence.completion.len()).sum();
        completions + prompts * group[0].prompt.len()
    }
}

/// Waves of sequences whose order is free (the gradient is a sum over them), each with the places of its
/// sequences: as many micro-batches at a time as there are ranks.
pub(crate) fn waves<'a>(sequences: &[LearnerSequence<'a>], cut: Cut) -> Vec<(Vec<usize>, Wave<'a>)> {
    let of_wave = |parts: &[Vec<usize>]| {
        let ranks = parts.iter().zip(0..).flat_map(|(part, rank)| std::iter::repeat_n(rank, part.len()));
        let places = parts.concat();
        let own = places.iter().map(|&place| sequences[place]).collect();
        (places, Wave { sequences: own, ranks: ranks.collect() })
    };
    let num_ranks = cut.num_ranks.max(1);
    parts(sequences, cut, num_ranks).chunks(num_ranks).map(of_wave).collect()
}

/// The sequences of each micro-batch, if their order is free. [`MicroBatch::Balanced`] shares whole
/// groups out by Karmarkar and Karp's method, into at least `least` parts if there are as many groups;
/// a group over the limit is cut separately, in order. The other kinds keep the order.
fn parts(sequences: &[LearnerSequence<'_>], cut: Cut, least: usize) -> Vec<Vec<usize>> {
    let in_order = |range: Range<usize>, micro_batch| {
        let ranges = micro_batches(&sequences[range.clone()], Cut { micro_batch, ..cut }).into_iter();
        ranges.map(move |part| (range.start + part.start..range.start + part.end).collect::<Vec<usize>>())
    };
    let limit = match cut.micro_batch {
        MicroBatch::Balanced(limit) => limit,
        MicroBatch::ByRanks(limit) if cut.num_ranks > 1 => limit,
        MicroBatch::Tokens(_) | MicroBatch::ByRanks(_) | MicroBatch::Sequences(_) => {
            return in_order(0..sequences.len(), cut.micro_batch).collect();
        }
    };
    let (mut whole, mut lengths, mut oversized) = (Vec::new(), Vec::new(), Vec::new());
    let mut start = 0;
    for group in sequences.chunk_by(LearnerSequence::shares_prompt) {
        let (range, tokens) = (start..start + group.len(), cut.tokens_of(group));
        start = range.end;
        if tokens <= limit {
            whole.push(range);
            lengths.push(tokens);
        } else {
            oversized.push(range);
        }
    }
    // Everything is below the limit now, so the distribution cannot fail. Any order of cuts is as good.
    let mut parts: Vec<Vec<usize>> = match balance::micro_batches(&lengths, limit, least) {
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

/// Cuts sequences into micro-batches, in order. By tokens, neighbours with the same prompt (which a
/// learner may compute once) stay together if a micro-batch holds them all.
fn micro_batches(sequences: &[LearnerSequence<'_>], cut: Cut) -> Vec<Range<usize>> {
    let limit = match cut.micro_batch {
        MicroBatch::Tokens(limit) | MicroBatch::Balanced(limit) | MicroBatch::ByRanks(limit) => limit,
        MicroBatch::Sequences(limit) => {
            let (limit, len) = (limit.max(1), sequences.len());
            return (0..len).step_by(limit).map(|start| start..len.min(start + limit)).collect();
        }
    };
    let mut ranges = Vec::new();
    let (mut start, mut at, mut tokens) = (0, 0, 0);
    for group in sequences.chunk_by(LearnerSequence::shares_prompt) {
        let whole = cut.tokens_of(group);
        if at > start && tokens + whole > limit && whole <= limit {
            ranges.push(start..at);
            (start, tokens) = (at, 0);
        }
        for (i, sequence) in group.iter().enumerate() {
            let is_shared = cut.shares_prompts && i > 0 && at > start;
            let prompt = if is_shared { 0 } else { sequence.prompt.len() };
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

pub(crate) fn sequences<'a>(groups: &[&'a Group]) -> Vec<LearnerSequence<'a>> {
    let of_group = |group: &&'a Group| {
        let (prompt, images): (&'a [u32], &'a [String]) = (&group.prompt_token_ids, &group.images);
        let trajectories: &'a [Trajectory] = &group.trajectories;
        trajectories.iter().map(move |trajectory| LearnerSequence {
            prompt,
            images,
            completion: &trajectory.token_ids,
            turns: trajectory.episode.as_ref().map_or(&[], |episode| &episode.turns),
            candidates: &[],
        })
    };
    groups.iter().flat_map(of_group).collect()
}

/// Waves of sequences in their order.
fn waves_in_order<'a>(sequences: &[LearnerSequence<'a>], cut: Cut) -> Vec<Wave<'a>> {
    let of_wave = |ranges: &[Range<usize>]| {
        let ranks = ranges.iter().zip(0..).flat_map(|(range, rank)| std::iter::repeat_n(rank, range.len()));
        let own = ranges.iter().flat_map(|range| &sequences[range.clone()]).copied().collect();
        Wave { sequences: own, ranks: ranks.collect() }
    };
    micro_batches(sequences, cut).chunks(cut.num_ranks.max(1)).map(of_wave).collect()
}

/// Columns of all sequences under a network, in their order, wave by wave.
pub(crate) fn forward_all(
    learner: &mut dyn Learner,
    network: Network,
    sequences: &[LearnerSequence<'_>],
    micro_batch: MicroBatch,
    sharpness: f64,
) -> Pass<TokenColumns> {
    let mut all = TokenColumns::default();
    for wave in waves_in_order(sequences, Cut::of(learner.info(), micro_batch)) {
        let TokenColumns { logprobs, entropies, values, .. } = learner.forward(network, &wave, sharpness)?;
        all.logprobs.extend(logprobs);
        all.entropies.extend(entropies);
        all.values.extend(values);
    }
    Ok(all)
}

/// A column of [`forward_all`], one row for each sequence `[B][T]`.
pub(crate) fn rows<T: From<f32>>(sequences: &[LearnerSequence<'_>], column: &[f32]) -> Ragged<T> {
    let mut rows = Ragged::default();
    let mut rest = column;
    for sequence in sequences {
        let (row, after) = rest.split_at(sequence.completion.len().min(rest.len()));
        rows.push_row(row.iter().map(|&value| value.into()));
        rest = after;
    }
    rows
}

/// Log-probabilities of sequences under a network, one row each `[B][T]`.
pub(crate) fn logprobs(
    learner: &mut dyn Learner,
    network: Network,
    sequences: &[LearnerSequence<'_>],
    micro_batch: MicroBatch,
) -> Pass<Ragged<f32>> {
    let columns = forward_all(learner, network, sequences, micro_batch, 1.0)?;
    Ok(rows(sequences, &columns.logprobs))
}

/// Log-probabilities of all completions under a network, and its `number` likeliest tokens at every place.
pub(crate) fn top_all(
    learner: &mut dyn Learner,
    network: Network,
    sequences: &[LearnerSequence<'_>],
    micro_batch: MicroBatch,
    number: usize,
) -> Pass<TopColumns> {
    let mut all = TopColumns::default();
    for wave in waves_in_order(sequences, Cut::of(learner.info(), micro_batch)) {
        let TopColumns { logprobs, tokens, top_logprobs } = learner.forward_top(network, &wave, number)?;
        all.logprobs.extend(logprobs);
        all.tokens.extend(tokens);
        all.top_logprobs.extend(top_logprobs);
    }
    Ok(all)
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
            tokens.iter().map(|(prompt, completion)| LearnerSequence::of_text(prompt, completion)).collect();
        then(&sequences)
    }

    /// For one rank, which computes a shared prompt once.
    fn shared(micro_batch: MicroBatch) -> Cut {
        Cut { micro_batch, num_ranks: 1, shares_prompts: true }
    }

    fn cut(sequences: &[(u32, usize, usize)], micro_batch: MicroBatch) -> Vec<Range<usize>> {
        of(sequences, |sequences| micro_batches(sequences, shared(micro_batch)))
    }

    /// Like [`cut`], for a learner that computes a prompt again for each of its sequences.
    fn cut_packed(sequences: &[(u32, usize, usize)], micro_batch: MicroBatch) -> Vec<Range<usize>> {
        of(sequences, |sequences| {
            micro_batches(sequences, Cut { shares_prompts: false, ..shared(micro_batch) })
        })
    }

    #[test]
    fn balanced_parts_are_of_whole_groups_and_nearly_equal() {
        // Groups of 9, 5, 4 and 8 tokens under a limit of 13: in order three micro-batches, otherwise two of
        // 13 each.
        let groups = [(0, 3, 3), (0, 3, 3), (1, 1, 2), (1, 1, 2), (2, 2, 2), (3, 4, 4)];
        let shares = |micro_batch| {
            let mut shares = of(&groups, |sequences| parts(sequences, shared(micro_batch), 1));
            shares.sort();
            shares
        };
        assert_eq!(shares(MicroBatch::Tokens(13)), [vec![0, 1], vec![2, 3, 4], vec![5]]);
        assert_eq!(shares(MicroBatch::Balanced(13)), [vec![0, 1, 4], vec![2, 3, 5]]);
        assert_eq!(shares(MicroBatch::Balanced(100)), [vec![0, 1, 2, 3, 4, 5]]);
        // A group over the limit is cut separately.
        assert_eq!(shares(MicroBatch::Balanced(8)), [vec![0], vec![1], vec![2, 3], vec![4], vec![5]]);
    }

    #[test]
    fn every_sequence_is_in_one_balanced_part() {
        for limit in 1..40 {
            let sequences: Vec<(u32, usize, usize)> =
                (0..17).map(|i| (i / 3, 1 + i as usize / 3 % 4, 1 + i as usize * 7 % 5)).collect();
            let shares = of(&sequences, |sequences| parts(sequences, shared(MicroBatch::Balanced(limit)), 1));
            let mut places: Vec<usize> = shares.concat();
            places.sort_unstable();
            assert_eq!(places, (0..17).collect::<Vec<_>>(), "limit {limit}");
            for share in &shares {
                let tokens = of(&share.iter().map(|&place| sequences[place]).collect::<Vec<_>>(), |own| {
                    let cut = shared(MicroBatch::Balanced(limit));
                    own.chunk_by(LearnerSequence::shares_prompt)
                        .map(|group| cut.tokens_of(group))
                        .sum::<usize>()
                });
                assert!(tokens <= limit || share.len() == 1, "limit {limit}: {share:?}");
            }
        }
        assert!(of(&[], |sequences| parts(sequences, shared(MicroBatch::Balanced(6)), 1)).is_empty());
    }

    #[test]
    fn a_wave_has_a_micro_batch_for_each_rank() {
        let groups = [(0, 3, 3), (0, 3, 3), (1, 1, 2), (1, 1, 2), (2, 2, 2), (3, 4, 4)];
        let cut = |micro_batch, num_ranks| {
            of(&groups, |sequences| {
                let waves = waves(sequences, Cut { num_ranks, ..shared(micro_batch) }).into_iter();
                waves.map(|(places, wave)| (places, wave.ranks)).collect::<Vec<_>>()
            })
        };
        assert_eq!(
            cut(MicroBatch::Tokens(13), 2),
            [(vec![0, 1, 2, 3, 4], vec![0, 0, 1, 1, 1]), (vec![5], vec![0])]
        );
        // One micro-batch would do, and there is work for both ranks.
        let both = [(vec![2, 3, 5, 0, 1, 4], vec![0, 0, 0, 1, 1, 1])];
        assert_eq!(cut(MicroBatch::Balanced(100), 2), both);
        // By default several ranks are balanced, and one rank computes in order.
        assert_eq!(cut(MicroBatch::ByRanks(100), 2), both);
        assert_eq!(cut(MicroBatch::ByRanks(13), 1), cut(MicroBatch::Tokens(13), 1));
        assert_ne!(cut(MicroBatch::ByRanks(13), 1), cut(MicroBatch::Balanced(13), 1));
        let in_order = of(&groups, |sequences| {
            let cut = Cut { num_ranks: 4, ..shared(MicroBatch::Sequences(1)) };
            let waves = waves_in_order(sequences, cut).into_iter();
            waves.map(|wave| wave.ranks).collect::<Vec<_>>()
        });
        assert_eq!(in_order, [vec![0, 1, 2, 3], vec![0, 1]]);
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
        // 18 tokens each if every sequence has its own copy of the prompt.
        assert_eq!(cut_packed(&groups, MicroBatch::Tokens(36)), [0..6; 1]);
        assert_eq!(cut_packed(&groups, MicroBatch::Tokens(35)), [0..3, 3..6]);
        assert_eq!(cut_packed(&groups, MicroBatch::Tokens(18)), [0..3, 3..6]);
        assert_eq!(cut_packed(&groups, MicroBatch::Tokens(17)), [0..2, 2..4, 4..6]);
        assert_eq!(cut_packed(&groups, MicroBatch::Tokens(10)), [0..1, 1..2, 2..3, 3..4, 4..5, 5..6]);
        let packed = |limit| Cut { shares_prompts: false, ..shared(MicroBatch::Balanced(limit)) };
        assert_eq!(of(&groups, |sequences| parts(sequences, packed(18), 1)), [vec![3, 4, 5], vec![0, 1, 2]]);
        assert_eq!(of(&groups, |sequences| parts(sequences, packed(36), 1)).len(), 1);
        // Too large for one: the prompt counts again in each.
        assert_eq!(cut(&groups, MicroBatch::Tokens(8)), [0..2, 2..3, 3..5, 5..6]);
        assert_eq!(cut(&groups, MicroBatch::Tokens(1)), [0..1, 1..2, 2..3, 3..4, 4..5, 5..6]);
    }
}
