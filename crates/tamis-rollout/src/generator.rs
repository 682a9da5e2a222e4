//! The generator contract: groups in, finished groups out, in whatever order they finish.

use std::sync::Arc;

use tamis_core::group::{FinishReason, PolicyVersion};
use tamis_core::random::Key;
use thiserror::Error;

/// How tokens are drawn. The reported log-probability is always that of `softmax(logits / temperature)`, before the repetition
/// penalty and the truncations.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 means greedy (and then log-probabilities are those at temperature 1).
    pub temperature: f64,
    /// Keep the k most likely tokens.
    pub top_k: Option<u32>,
    /// Keep the smallest set of tokens whose probability reaches p; 1 keeps all.
    pub top_p: f64,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f64,
    /// Divides positive (multiplies negative) logits of tokens already seen; 1 is off.
    pub repetition_penalty: f64,
    /// Most completion tokens; the sequence is *truncated* when it ends here.
    pub max_response_length: usize,
    /// Strings that end a sequence once they occur in its text.
    pub stop: Vec<String>,
}

/// One prompt to be completed n times.
#[derive(Debug, Clone)]
pub struct GroupRequest {
    /// The caller's number of this request; comes back with the outcome.
    pub ticket: u64,
    /// Prompt tokens (at least one).
    pub prompt_token_ids: Arc<[u32]>,
    /// One key per sample \[n\]: the sample's tokens are a function of it, the prompt and the weights.
    pub keys: Vec<Key>,
}

/// One completion as generated.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Completion tokens \[T\], the end token included.
    pub token_ids: Vec<u32>,
    /// `log_softmax(logits / temperature)` of each \[T\].
    pub logprobs: Vec<f32>,
    /// Mean entropy of the policy over them, in nats; `None` where the generator does not say.
    pub entropy: Option<f64>,
    /// Decoded text, special tokens and stop strings left out.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Oldest and newest weights that sampled its tokens.
    pub versions: (PolicyVersion, PolicyVersion),
}

/// What became of a request.
#[derive(Debug)]
pub enum Outcome {
    /// All n samples, in key order.
    Finished {
        /// The request.
        ticket: u64,
        /// The completions.
        samples: Vec<Sample>,
    },
    /// It cannot be completed; the group counts as failed.
    Failed {
        /// The request.
        ticket: u64,
        /// Why.
        reason: String,
    },
}

/// The generator as a whole cannot go on.
#[derive(Debug, Error)]
pub enum GeneratorError {
    /// The backend broke down.
    #[error("the generator stopped: {reason}")]
    Broken {
        /// What it said.
        reason: String,
    },
    /// What was in flight is not wanted any more.
    #[error("interrupted")]
    Interrupted,
}

/// Samples completions of prompts.
///
/// Requests run concurrently and finish in any order; what a request yields does not depend on what else is running.
pub trait Generator {
    /// Takes a request in; its outcome comes out of a later [`Generator::poll`].
    fn submit(&mut self, request: GroupRequest, sampling: &Sampling) -> Result<(), GeneratorError>;

    /// Works until at least one request has an outcome and returns those that have; empty only where none is in flight.
    fn poll(&mut self) -> Result<Vec<Outcome>, GeneratorError>;

    /// Drops a request; no outcome follows. Unknown tickets are ignored.
    fn abort(&mut self, ticket: u64);

    /// Version of the weights that new tokens are sampled from.
    fn version(&self) -> PolicyVersion;

    /// Tokens generated since the last call, for the progress display.
    fn take_num_generated_tokens(&mut self) -> u64;
}
