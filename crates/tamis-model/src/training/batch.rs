//! The rows that a pass computes: each context once, then the rest of every sequence that shares it.
//!
//! Consecutive sequences with the same context (`tokens[..start]`), such as the members of a rollout group,
//! form a group. Its rows are the context's, computed once, and then each member's own. The last row of the
//! context gives the distribution of every member's first scored token. The row of a sequence's last token is
//! left out: nothing follows it.

use std::ops::Range;

use super::cut::Cut;
use super::sequence::{Sequence, SequenceError};
use crate::config::TransformerConfig;
use tamis_core::fault;

/// Consecutive sequences with the same context.
#[derive(Debug, Clone)]
pub(super) struct PackedGroup {
    pub rows: Range<usize>,
    /// Number of rows of the shared context; 0 for a single sequence.
    pub shared: usize,
    /// Rows of each member beyond the shared ones.
    pub members: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PackedRow {
    pub group: u32,
    /// Position in its sequence.
    pub position: u32,
}

/// A scored token and its index in the flat order of the batch's sequences.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub token: u32,
    pub flat: u32,
}

#[derive(Debug, Clone, Default)]
pub(super) struct PackedBatch {
    pub groups: Vec<PackedGroup>,
    pub rows: Vec<PackedRow>,
    /// Token of each row.
    pub tokens: Vec<u32>,
    /// Rows that reach the vocabulary, ascending.
    pub scored: Vec<usize>,
    /// Their targets, and the offset of each scored row's targets.
    pub targets: Vec<Target>,
    pub first_target: Vec<usize>,
    /// Scored tokens of the sequences before the batch.
    pub first_flat: usize,
}

impl PackedBatch {
    /// The sequences' rows in batches of about equal size, as many as `cut` gives for the number of rows.
    /// Groups stay whole, so there may be fewer batches if groups are large.
    pub(super) fn cut(
        config: &TransformerConfig,
        sequences: &[Sequence],
        cut: impl FnOnce(usize) -> Cut,
    ) -> Result<(Cut, Vec<Self>), SequenceError> {
        for (index, sequence) in sequences.iter().enumerate() {
            check(config, index, sequence)?;
        }
        let mut groups: Vec<Self> = Vec::new();
        let mut flat = 0;
        for members in sequences.chunk_by(|a, b| a.tokens[..a.start] == b.tokens[..b.start]) {
            let mut group = Self { first_flat: flat, ..Self::default() };
            group.push(members);
            flat += group.targets.len();
            if !group.rows.is_empty() {
                groups.push(group);
            }
        }
        let total: usize = groups.iter().map(Self::num_rows).sum();
        let cut = cut(total);
        let mut batches: Vec<Self> = Vec::new();
        let (mut rows, mut last) = (0, None);
        for group in groups {
            // The position of the group's middle.
            let place = (2 * rows + group.num_rows()) * cut.chunks / (2 * total);
            rows += group.num_rows();
            match batches.last_mut() {
                Some(batch) if last == Some(place) => batch.append(group),
                _ => batches.push(group),
            }
            last = Some(place);
        }
        for batch in &mut batches {
            batch.first_target.push(batch.targets.len());
        }
        Ok((cut, batches))
    }

    /// Appends the only group of another batch.
    fn append(&mut self, other: Self) {
        let (rows, targets, groups) = (self.rows.len(), self.targets.len(), self.groups.len() as u32);
        let flat = (other.first_flat - self.first_flat) as u32;
        self.rows.extend(other.rows.iter().map(|row| PackedRow { group: groups, ..*row }));
        self.tokens.extend(other.tokens);
        self.scored.extend(other.scored.iter().map(|row| row + rows));
        self.first_target.extend(other.first_target.iter().map(|first| first + targets));
        self.targets
            .extend(other.targets.iter().map(|target| Target { flat: target.flat + flat, ..*target }));
        let moved = |group: PackedGroup| PackedGroup {
            rows: group.rows.start + rows..group.rows.end + rows,
            ..group
        };
        self.groups.extend(other.groups.into_iter().map(moved));
    }

    /// Every row of one sequence, the last included; nothing is scored.
    pub(super) fn whole(config: &TransformerConfig, tokens: &[u32]) -> Result<Self, SequenceError> {
        check(config, 0, &Sequence { tokens, start: tokens.len() })?;
        let mut batch = Self::default();
        batch.extend(tokens, 0);
        batch.groups.push(PackedGroup { rows: 0..tokens.len(), shared: 0, members: vec![tokens.len()] });
        Ok(batch)
    }

    /// Adds rows for the tokens from position `first` on, for the next group.
    fn extend(&mut self, tokens: &[u32], first: usize) {
        let group = self.groups.len() as u32;
        self.rows.extend(
            (first..first + tokens.len()).map(|position| PackedRow { group, position: position as u32 }),
        );
        self.tokens.extend_from_slice(tokens);
    }

    /// Marks a row as scored; the next targets pushed belong to it.
    fn score(&mut self, row: usize) {
        self.scored.push(row);
        self.first_target.push(self.targets.len());
    }

    /// The rows of one group.
    fn push(&mut self, members: &[Sequence]) {
        let (begin, mut flat) = (self.rows.len(), 0);
        let live = members.iter().filter(|member| member.start < member.tokens.len());
        let Some(Sequence { tokens, start }) = live.clone().next() else { return };
        // A single sequence is one stretch of rows.
        let shared = if live.clone().count() > 1 { *start } else { 0 };
        self.extend(&tokens[..shared], 0);
        if shared > 0 {
            self.score(begin + shared - 1);
            let mut flat = 0;
            for member in members {
                if let Some(&token) = member.tokens.get(*start) {
                    self.targets.push(Target { token, flat });
                }
                flat += (member.tokens.len() - start) as u32;
            }
        }
        let mut rows = Vec::with_capacity(members.len());
        for member in members {
            let len = member.tokens.len();
            if len > *start {
                let first = self.rows.len();
                self.extend(&member.tokens[shared..len - 1], shared);
                // The first scored token belongs to the row before it. If the context is shared, that row is
                // the context's.
                let unscored = usize::from(shared > 0);
                for position in start + unscored..len {
                    self.score(first + position - 1 - shared);
                    let at = flat + (position - start) as u32;
                    self.targets.push(Target { token: member.tokens[position], flat: at });
                }
                rows.push(len - 1 - shared);
            }
            flat += (len - start) as u32;
        }
        self.groups.push(PackedGroup { rows: begin..self.rows.len(), shared, members: rows });
    }

    pub(super) fn num_rows(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn targets_of(&self, index: usize) -> &[Target] {
        &self.targets[self.first_target[index]..self.first_target[index + 1]]
    }
}

fn check(
    config: &TransformerConfig,
    sequence: usize,
    Sequence { tokens, start }: &Sequence,
) -> Result<(), SequenceError> {
    let (len, start) = (tokens.len(), *start);
    if len > config.max_position_embeddings {
        return Err(fault!(
            "sequence {sequence} has {len} tokens, more than max_position_embeddings ({limit})",
            limit = config.max_position_embeddings
        )
        .into());
    }
    if start < 1 || start > len {
        return Err(
            fault!("sequence {sequence} is scored from {start}, which is not within 1 to {len}").into()
        );
    }
    if let Some(position) = tokens.iter().position(|&token| token as usize >= config.vocab_size) {
        let (token, vocab_size) = (tokens[position], config.vocab_size);
        return Err(fault!("sequence {sequence} holds token {token} at position {position}, but the vocabulary has {vocab_size}").into());
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::Architecture;

    fn cut(sequences: &[(&[u32], usize)], chunks: usize) -> Vec<PackedBatch> {
        let config = TransformerConfig::new(Architecture::Llama, 32, 16, 32, 1, 1, 64);
        let sequences: Vec<_> = sequences.iter().map(|&(tokens, start)| Sequence { tokens, start }).collect();
        PackedBatch::cut(&config, &sequences, |_| Cut { shards: 1, chunks }).unwrap().1
    }

    #[test]
    fn a_context_is_laid_out_once() {
        let sequences: [(&[u32], usize); 5] =
            [(&[1, 2, 3, 4], 2), (&[1, 2, 5], 2), (&[1, 2], 2), (&[1, 2, 3, 6], 2), (&[1, 2, 3, 6], 3)];
        let [batch] = &cut(&sequences, 1)[..] else { panic!("one was asked for") };
        // Context 1 2, then 3 | nothing | 3. The row of a last token is left out. The fifth sequence has
        // another context.
        assert_eq!(batch.tokens, [1, 2, 3, 3, 1, 2, 3]);
        let positions: Vec<u32> = batch.rows.iter().map(|row| row.position).collect();
        assert_eq!(positions, [0, 1, 2, 2, 0, 1, 2]);
        assert_eq!(batch.groups.len(), 2);
        assert_eq!((batch.groups[0].shared, &batch.groups[0].members[..]), (2, &[1, 0, 1][..]));
        assert_eq!((batch.groups[1].shared, &batch.groups[1].members[..]), (0, &[3][..]));
        assert_eq!(batch.scored, [1, 2, 3, 6]);
        let targets =
            |i| batch.targets_of(i).iter().map(|target| (target.token, target.flat)).collect::<Vec<_>>();
        assert_eq!(targets(0), [(3, 0), (5, 2), (3, 3)]);
        assert_eq!((targets(1), targets(2), targets(3)), (vec![(4, 1)], vec![(6, 4)], vec![(6, 5)]));
        let groups: Vec<u32> = batch.rows.iter().map(|row| row.group).collect();
        assert_eq!(groups, [0, 0, 0, 0, 1, 1, 1]);
        // A group is never cut.
        for chunks in [2, 7] {
            let batches = cut(&sequences, chunks);
            assert_eq!(batches.iter().map(PackedBatch::num_rows).collect::<Vec<_>>(), [4, 3]);
            let [_, second] = &batches[..] else { panic!("two groups") };
            assert_eq!((second.first_flat, second.targets[0].flat, second.first_target.len()), (5, 0, 2));
        }
    }

    #[test]
    fn nothing_scored_is_no_row() {
        assert!(cut(&[(&[1, 2], 2), (&[3], 1)], 10).is_empty());
    }
}
