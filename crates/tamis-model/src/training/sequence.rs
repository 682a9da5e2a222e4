//! Sequences to score.

use tamis_core::fault::Fault;
use thiserror::Error;

/// A sequence and the start of its scored part: tokens `start..` are scored, those before are context.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// Token ids \[T\].
    pub tokens: &'a [u32],
    /// First scored token, at least 1 (a first token has no context) and at most T.
    pub start: usize,
}

/// Sequences or coefficients cannot be used.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SequenceError {
    /// The pass was stopped, see [`Workspace::stop_on`](super::Workspace::stop_on).
    #[error("given up")]
    GivenUp,
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}
