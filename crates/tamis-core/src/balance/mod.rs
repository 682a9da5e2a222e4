//! Sharing sequences out over ranks and micro-batches, so that no one waits for the longest.
//!
//! ```text
//! lengths [P][G] ─ cost ─ one optimizer batch at a time ─┬─ karmarkar_karp ─┬─ indices of each rank      ─ imbalance
//!                                                        └─ greedy         ─┘        │
//!                                                                 micro_batches, first_fit: under a limit of tokens
//! ```
//!
//! Which trajectories share an update is the schedule's decision and is never changed here:
//! [`Balance::over_ranks`] takes optimizer batches one by one, and every result holds each index of its batch
//! exactly once, ascending within a part. The objective's normalisers count the whole optimizer batch, so
//! that the loss does not depend on how it was shared out.

pub mod first_fit;
pub mod greedy;
pub mod imbalance;
pub mod karmarkar_karp;
pub mod micro_batches;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use first_fit::first_fit;
pub use greedy::{Order, greedy};
pub use imbalance::Imbalance;
pub use karmarkar_karp::karmarkar_karp;
pub use micro_batches::{Arrangement, micro_batches};

use crate::entry::Entry;
use crate::ragged::Ragged;

/// The catalogue's entries of this module.
pub const ENTRIES: &[Entry] = &[karmarkar_karp::ENTRY, greedy::ENTRY, first_fit::ENTRY, micro_batches::ENTRY];

/// What a sequence costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Cost {
    /// Its tokens.
    Tokens,
    /// `linear · L + L²`: products with the weights grow with the length, attention with its square. In units
    /// of attention.
    Quadratic {
        /// How many times dearer a token's products with the weights are than one pair of attention; verl's
        /// 24,576 is that of a model of 7 billion parameters.
        linear: u64,
    },
}

impl Cost {
    /// verl's `calculate_workload`: `24576·L + L²`.
    pub const VERL: Self = Self::Quadratic { linear: 24_576 };

    /// Of a sequence of so many tokens; at most `u64::MAX`.
    ///
    /// ```
    /// use tamis_core::balance::Cost;
    /// assert_eq!((Cost::Tokens.of(10), Cost::VERL.of(10)), (10, 245_860));
    /// ```
    pub fn of(self, length: usize) -> u64 {
        let length = length as u64;
        match self {
            Self::Tokens => length,
            Self::Quadratic { linear } => linear.saturating_add(length).saturating_mul(length),
        }
    }
}

/// How parts are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// [`karmarkar_karp()`]: the closest.
    KarmarkarKarp,
    /// [`greedy()`], longest first.
    Greedy,
}

/// How an optimizer batch is shared out over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// How parts are found.
    pub method: Method,
    /// What is balanced.
    pub cost: Cost,
    /// Every rank gets the same number of sequences, or of groups where those are kept whole.
    pub equal_size: bool,
    /// The members of a group go to one rank, so that their prompt is computed once.
    pub whole_groups: bool,
}

impl Default for Balance {
    /// verl's `trainer.balance_batch`.
    fn default() -> Self {
        Self { method: Method::KarmarkarKarp, cost: Cost::VERL, equal_size: true, whole_groups: false }
    }
}

/// Sequences cannot be shared out like this.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BalanceError {
    /// No parts to share out over.
    #[error("sequences cannot be shared out over 0 parts")]
    NoParts,
    /// Some parts would stay empty, and their ranks would wait for ever.
    #[error("{items} sequences or groups leave some of {parts} parts empty")]
    TooFew {
        /// What is shared out.
        items: usize,
        /// Parts.
        parts: usize,
    },
    /// Parts of equal size do not come out even.
    #[error("{items} sequences or groups do not make {parts} parts of equal size")]
    Uneven {
        /// What is shared out.
        items: usize,
        /// Parts.
        parts: usize,
    },
    /// The sum of costs does not fit 64 bits.
    #[error("the costs of {items} sequences or groups do not fit 64 bits in sum")]
    Overflow {
        /// What is shared out.
        items: usize,
    },
    /// More sequences than the indices hold.
    #[error("{items} sequences or groups are more than 4294967294")]
    TooMany {
        /// What is shared out.
        items: usize,
    },
    /// A sequence that no micro-batch holds.
    #[error("sequence {index} has {length} tokens, more than the {limit} of a micro-batch")]
    TooLong {
        /// The sequence.
        index: usize,
        /// Its tokens.
        length: usize,
        /// Tokens of a micro-batch.
        limit: usize,
    },
    /// A limit of no tokens.
    #[error("a micro-batch of 0 tokens holds nothing")]
    NoTokens,
    /// An optimizer batch outside the groups that there are, or overlapping another.
    #[error(
        "optimizer batch {batch} takes groups {start} to {end} of {groups}; batches must follow one another"
    )]
    Batches {
        /// The batch.
        batch: usize,
        /// Its first group.
        start: usize,
        /// The group after its last.
        end: usize,
        /// Groups that there are.
        groups: usize,
    },
}

/// Whether items can be shared out over parts, and their total.
pub(crate) fn check(costs: &[u64], parts: usize, equal_size: bool) -> Result<u64, BalanceError> {
    let items = costs.len();
    if parts == 0 {
        return Err(BalanceError::NoParts);
    }
    if items < parts {
        return Err(BalanceError::TooFew { items, parts });
    }
    if equal_size && !items.is_multiple_of(parts) {
        return Err(BalanceError::Uneven { items, parts });
    }
    if u32::try_from(items).is_err() || items as u64 >= u64::from(u32::MAX) {
        return Err(BalanceError::TooMany { items });
    }
    costs
        .iter()
        .try_fold(0_u64, |total, &cost| total.checked_add(cost))
        .ok_or(BalanceError::Overflow { items })
}

impl Balance {
    /// Shares each optimizer batch of a step out over `ranks`: `[batch][rank]` to indices of trajectories in
    /// the step's order.
    ///
    /// `lengths` `[P][G]` are tokens of each trajectory, prompt included; `batches` are ranges of groups, one
    /// after the other. A trajectory never leaves its optimizer batch.
    ///
    /// # Errors
    /// Batches that overlap or leave the step, fewer sequences (or groups) than ranks, numbers that do not
    /// come out even.
    ///
    /// ```
    /// use tamis_core::balance::{Balance, Cost};
    /// use tamis_core::ragged::Ragged;
    /// let lengths = Ragged::from_rows([vec![9, 1], vec![2, 8], vec![3, 4], vec![4, 3]]);
    /// let shares = Balance { cost: Cost::Tokens, ..Balance::default() }.over_ranks(&lengths, &[0..2, 2..4], 2)?;
    /// assert_eq!(shares, [[vec![2, 3], vec![0, 1]], [vec![4, 6], vec![5, 7]]]);
    /// # Ok::<(), tamis_core::balance::BalanceError>(())
    /// ```
    pub fn over_ranks(
        &self,
        lengths: &Ragged<usize>,
        batches: &[Range<usize>],
        ranks: usize,
    ) -> Result<Vec<Vec<Vec<usize>>>, BalanceError> {
        let mut previous = 0;
        let mut shares = Vec::with_capacity(batches.len());
        for (batch, groups) in batches.iter().enumerate() {
            let Range { start, end } = *groups;
            if start < previous || end < start || end > lengths.num_rows() {
                return Err(BalanceError::Batches { batch, start, end, groups: lengths.num_rows() });
            }
            previous = end;
            shares.push(self.one_batch(lengths, groups.clone(), ranks)?);
        }
        Ok(shares)
    }

    fn one_batch(
        &self,
        lengths: &Ragged<usize>,
        groups: Range<usize>,
        ranks: usize,
    ) -> Result<Vec<Vec<usize>>, BalanceError> {
        let offsets = lengths.offsets();
        let (first, last) = (offsets[groups.start], offsets[groups.end]);
        let cost = |length: &usize| self.cost.of(*length);
        if !self.whole_groups {
            let costs: Vec<u64> = lengths.values()[first..last].iter().map(cost).collect();
            let mut parts = self.parts(&costs, ranks)?;
            parts.iter_mut().flatten().for_each(|index| *index += first);
            return Ok(parts);
        }
        let sum = |group: usize| lengths.row(group).iter().map(cost).fold(0, u64::saturating_add);
        let costs: Vec<u64> = groups.clone().map(sum).collect();
        let parts = self.parts(&costs, ranks)?;
        let expand = |part: Vec<usize>| {
            part.into_iter()
                .map(|place| groups.start + place)
                .flat_map(|group| offsets[group]..offsets[group + 1])
                .collect()
        };
        Ok(parts.into_iter().map(expand).collect())
    }

    fn parts(&self, costs: &[u64], ranks: usize) -> Result<Vec<Vec<usize>>, BalanceError> {
        match self.method {
            Method::KarmarkarKarp => karmarkar_karp(costs, ranks, self.equal_size),
            Method::Greedy => greedy(costs, ranks, self.equal_size, Order::LongestFirst),
        }
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "a step of one optimizer batch")]
mod tests {
    use super::*;

    #[test]
    fn groups_stay_whole_where_asked() {
        let lengths = Ragged::from_rows([vec![5, 5], vec![1], vec![4, 4], vec![2, 2, 2]]);
        let balance =
            Balance { cost: Cost::Tokens, equal_size: false, whole_groups: true, ..Balance::default() };
        // Groups of 10, 1, 8, 6 tokens.
        let shares = balance.over_ranks(&lengths, &[0..4], 2).expect("shares");
        // 8 + 6 against 10 + 1.
        assert_eq!(shares, [[vec![3, 4, 5, 6, 7], vec![0, 1, 2]]]);
    }

    #[test]
    fn what_cannot_be_shared_out_is_refused() {
        let lengths = Ragged::from_rows([vec![1, 2], vec![3]]);
        let refused = |balance: Balance, batches: &[Range<usize>], ranks| {
            balance.over_ranks(&lengths, batches, ranks).unwrap_err().to_string()
        };
        let balance = Balance::default();
        insta::assert_snapshot!(refused(balance, &[0..2], 0), @"sequences cannot be shared out over 0 parts");
        insta::assert_snapshot!(refused(balance, &[0..2], 4), @"3 sequences or groups leave some of 4 parts empty");
        insta::assert_snapshot!(refused(balance, &[0..2], 2), @"3 sequences or groups do not make 2 parts of equal size");
        insta::assert_snapshot!(
            refused(balance, &[0..1, 0..2], 1),
            @"optimizer batch 1 takes groups 0 to 2 of 2; batches must follow one another"
        );
        insta::assert_snapshot!(
            refused(balance, &[1..3], 1),
            @"optimizer batch 0 takes groups 1 to 3 of 2; batches must follow one another"
        );
        insta::assert_snapshot!(
            karmarkar_karp(&[u64::MAX, 1], 1, false).unwrap_err(),
            @"the costs of 2 sequences or groups do not fit 64 bits in sum"
        );
        assert_eq!(Cost::VERL.of(usize::MAX), u64::MAX);
    }
}
