//! Sequences to be scored.

use thiserror::Error;

use crate::config::OutputHead;

/// A sequence and where its scored part begins: tokens `start..` are scored, those before are context.
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
    /// A token is not in the vocabulary.
    #[error(
        "sequence {sequence} holds token {token} at position {position}, but the vocabulary has {vocab_size}"
    )]
    Token {
        /// Index of the sequence.
        sequence: usize,
        /// Position in the sequence.
        position: usize,
        /// The id.
        token: u32,
        /// V.
        vocab_size: usize,
    },
    /// A sequence is longer than the model's positions.
    #[error("sequence {sequence} has {len} tokens, more than max_position_embeddings ({limit})")]
    TooLong {
        /// Index of the sequence.
        sequence: usize,
        /// T.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The scored part does not begin within 1..=T.
    #[error("sequence {sequence} is scored from {start}, which is not within 1 to {len}")]
    Start {
        /// Index of the sequence.
        sequence: usize,
        /// The start asked for.
        start: usize,
        /// T.
        len: usize,
    },
    /// The temperature is not a positive number.
    #[error("temperature must be positive and finite, got {temperature}")]
    Temperature {
        /// The value given.
        temperature: f32,
    },
    /// The model has another head than what is asked of it.
    #[error("the model is {found}, and what is asked for comes from {wanted}")]
    Head {
        /// The value found.
        found: OutputHead,
        /// The head that it would need.
        wanted: OutputHead,
    },
    /// The pass is not wanted any more, see [`Workspace::stop_on`](super::Workspace::stop_on).
    #[error("given up")]
    GivenUp,
    /// The objective answered with another number of coefficients.
    #[error("expected {expected} {what} coefficients, one per scored token, got {found}")]
    Coefficients {
        /// Of what.
        what: &'static str,
        /// Number of scored tokens.
        expected: usize,
        /// Number given.
        found: usize,
    },
}
