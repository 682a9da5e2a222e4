//! Micro-batches of nearly equal cost: which sequences pass through the learner together.
//!
//! Which trajectories share an optimizer batch is the schedule's decision and is never changed here. Every
//! result holds each index exactly once, ascending within a part. The objective's normalisers count the whole
//! optimizer batch, so the loss does not depend on how the batch was cut.

pub mod first_fit;
pub mod karmarkar_karp;
pub mod micro_batches;

use thiserror::Error;

pub use first_fit::first_fit;
pub use karmarkar_karp::karmarkar_karp;
pub use micro_batches::micro_batches;

use crate::entry::Entry;

/// The catalogue's entries of this module.
pub const ENTRIES: &[Entry] = &[karmarkar_karp::ENTRY, first_fit::ENTRY, micro_batches::ENTRY];

/// Why sequences cannot be divided into parts as asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BalanceError {
    /// No parts to divide into.
    #[error("sequences cannot be divided into 0 parts")]
    NoParts,
    /// Some parts would stay empty, and their ranks would wait for ever.
    #[error("{items} sequences or groups leave some of {parts} parts empty")]
    TooFew {
        /// Number of sequences or groups.
        items: usize,
        /// Parts.
        parts: usize,
    },
    /// Parts of equal size do not come out even.
    #[error("{items} sequences or groups do not make {parts} parts of equal size")]
    Uneven {
        /// Number of sequences or groups.
        items: usize,
        /// Parts.
        parts: usize,
    },
    /// The sum of costs does not fit 64 bits.
    #[error("the costs of {items} sequences or groups do not fit 64 bits in sum")]
    Overflow {
        /// Number of sequences or groups.
        items: usize,
    },
    /// More sequences than the indices hold.
    #[error("{items} sequences or groups are more than 4294967294")]
    TooMany {
        /// Number of sequences or groups.
        items: usize,
    },
    /// A sequence that no micro-batch holds.
    #[error("sequence {index} has {length} tokens, more than the {limit} of a micro-batch")]
    TooLong {
        /// The sequence.
        index: usize,
        /// Length in tokens.
        length: usize,
        /// Tokens of a micro-batch.
        limit: usize,
    },
    /// A limit of no tokens.
    #[error("a micro-batch of 0 tokens holds nothing")]
    NoTokens,
}
