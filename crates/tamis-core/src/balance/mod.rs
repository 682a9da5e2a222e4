//! Micro-batches of nearly equal cost: decides which sequences go through the learner together.
//!
//! The schedule decides which trajectories share an optimizer batch; nothing here changes that. Every result
//! holds each index exactly once, ascending within a part. The objective's normalisers count the whole
//! optimizer batch, so the loss does not depend on how the batch was cut.

pub mod first_fit;
pub mod karmarkar_karp;
pub mod micro_batches;

pub use first_fit::first_fit;
pub use karmarkar_karp::karmarkar_karp;
pub use micro_batches::micro_batches;

use crate::entry::Entry;

/// The catalogue's entries of this module.
pub const ENTRIES: &[Entry] = &[karmarkar_karp::ENTRY, first_fit::ENTRY, micro_batches::ENTRY];
