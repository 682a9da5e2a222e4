//! Requests for completions, and their results.

use std::sync::Arc;

use tamis_core::random::Key;

use super::sampling::{Alternatives, SamplingParams};

/// Decides after each token whether a completion ends. It is for stop strings: this crate has no tokenizer.
pub trait StopCheck: Send + Sync {
    /// Whether the completion ends with its last token.
    fn should_stop(&self, generated: &[u32]) -> bool;
}

/// A mask over the next token, for completions of a given form.
///
/// Log-probabilities and entropies stay those of the whole vocabulary, as with the truncations.
pub trait TokenMask: Send + Sync {
    /// State before the first token.
    fn start(&self) -> u32;

    /// State after one more token.
    fn after(&self, state: u32, token: u32) -> u32;

    /// The tokens that may follow, bit `id % 64` of word `id / 64` for each; ids beyond the words may not. If
    /// there are none, the completion ends. At the start there must be at least one.
    fn allowed_tokens(&self, state: u32) -> Arc<[u64]>;
}

/// A prompt and the keys of its samples.
#[derive(Clone)]
pub struct GenerationRequest {
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// One key per sample; token t of sample i is drawn with `keys[i].uniform(t)`.
    pub keys: Vec<Key>,
    /// Sampling parameters.
    pub params: SamplingParams,
    /// Ends completions besides `stop_token_ids`.
    pub stop: Option<Arc<dyn StopCheck>>,
    /// Mask of the tokens to draw from; `None`: all.
    pub mask: Option<Arc<dyn TokenMask>>,
}

/// Identifies a submitted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Why a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionEnd {
    /// A stop token or the stop check.
    Stop,
    /// `max_new_tokens`, or the model's last position: truncated.
    Length,
    /// [`BatchGenerator::abort`](super::BatchGenerator::abort).
    Aborted,
    /// The logits of the next token are NaN or infinite: no token can be drawn from them.
    NotFinite,
}

/// What is wrong with weights that give NaN or infinite logits.
pub const LOGITS_NOT_FINITE: &str =
    "the policy's logits are NaN or infinite: its training has diverged, or its weights are damaged";

/// A finished sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// Id of the request.
    pub request: RequestId,
    /// Index in the request's keys.
    pub sample: usize,
    /// Token ids, including the end token.
    pub tokens: Vec<u32>,
    /// `log_softmax(logits / temperature)` of each, before penalty and truncation, nats.
    pub logprobs: Vec<f32>,
    /// Entropy of `softmax(logits / temperature)` that each was drawn from, nats.
    pub entropies: Vec<f32>,
    /// Alternatives to each token; empty unless [`SamplingParams::num_alternatives`] asks for them.
    pub alternatives: Vec<Alternatives>,
    /// Why it ended.
    pub finish: CompletionEnd,
}

impl Completion {
    /// Mean of the entropies; NaN without tokens.
    pub fn mean_entropy(&self) -> f64 {
        self.entropies.iter().map(|&entropy| f64::from(entropy)).sum::<f64>() / self.tokens.len() as f64
    }

    /// The completion of a sample that is aborted before its first token.
    pub fn without_tokens(request: RequestId, sample: usize) -> Self {
        Self {
            request,
            sample,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            entropies: Vec::new(),
            alternatives: Vec::new(),
            finish: CompletionEnd::Aborted,
        }
    }
}

/// A running sample.
#[derive(Debug, Clone, Copy)]
pub struct CompletionProgress<'a> {
    /// Id of the request.
    pub request: RequestId,
    /// Index in the request's keys.
    pub sample: usize,
    /// Token ids so far.
    pub tokens: &'a [u32],
    /// As in [`Completion::logprobs`].
    pub logprobs: &'a [f32],
    /// As in [`Completion::entropies`].
    pub entropies: &'a [f32],
    /// As in [`Completion::alternatives`].
    pub alternatives: &'a [Alternatives],
}
