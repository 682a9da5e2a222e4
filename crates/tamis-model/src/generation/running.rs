//! What is in flight: requests with the cache of their prompt, and samples, which grow by one token at a
//! time.

use std::collections::VecDeque;
use std::sync::Arc;

use super::cache::{Cache, Prefix};
use super::kept::{Kept, TurnPlace};
use super::request::{CompletionEnd, GenerationRequest, RequestId, TokenMask};
use super::sampling::{Alternatives, Draw, Drawn, SamplingScratch, alternatives, draw};
use crate::config::TransformerConfig;
use crate::floats::Floats;
use crate::simd::SimdLevel;

pub(super) struct RequestGroup {
    pub(super) request: GenerationRequest,
    /// Samples that have not started, in order.
    pub(super) queue: VecDeque<usize>,
    /// Whether the prompt is computed, at the latest in this step.
    pub(super) is_begun: bool,
    /// Samples that have not finished.
    pub(super) open: usize,
    /// The place of its samples in sequences of several turns.
    pub(super) turn: Option<TurnPlace>,
    /// Keys and values that all samples read: the prompt's. If a sample has taken over the rest of the
    /// prompt, only those before it.
    pub(super) prefix: Prefix,
    /// Keys and values of the rest of the prompt, until it is complete.
    pub(super) cache: Cache,
    /// Whether the only sample has taken over the rest of the prompt.
    pub(super) is_taken: bool,
    /// Logits after the prompt, once computed \[V\].
    pub(super) logits: Vec<f32>,
}

impl RequestGroup {
    /// Positions that the prompt takes.
    pub(super) fn cached(&self) -> usize {
        if self.is_begun { self.request.prompt.len() } else { 0 }
    }

    /// Whether it continues earlier sequences.
    pub(super) fn continues(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.continues)
    }

    /// Positions that a sample may take beyond the prompt.
    pub(super) fn longest(&self, config: &TransformerConfig) -> usize {
        self.request.params.max_new_tokens.min(config.max_position_embeddings - self.request.prompt.len())
    }

    /// Prompt tokens whose keys and values are there.
    pub(super) fn num_kept(&self) -> usize {
        self.prefix.len() + self.cache.len
    }

    /// The prompt's tokens that are not computed.
    pub(super) fn rest(&self) -> &[u32] {
        &self.request.prompt[self.num_kept()..]
    }

    /// The cache of an ended sample, to be kept for the next turn of its sequence.
    pub(super) fn keep(&self, running: &mut Running) -> Option<Kept> {
        let name = *self.turn.as_ref()?.sequences.get(running.sample)?;
        let computed = &running.tokens[..running.tokens.len() - 1];
        let tokens = [&self.request.prompt[..], computed].concat();
        Some(Kept { name, tokens, prefix: self.prefix.clone(), own: std::mem::take(&mut running.cache) })
    }

    pub(super) fn release(&mut self, free: &mut Vec<Floats>) {
        self.prefix.release(free);
        self.cache.release(free);
    }
}

pub(super) struct Running {
    pub(super) request: RequestId,
    pub(super) sample: usize,
    pub(super) cache: Cache,
    pub(super) tokens: Vec<u32>,
    /// State of the mask that tokens are drawn from; `None` without a mask.
    pub(super) masked: Option<Masked>,
    pub(super) logprobs: Vec<f32>,
    pub(super) entropies: Vec<f32>,
    pub(super) alternatives: Vec<Alternatives>,
    pub(super) finish: Option<CompletionEnd>,
}

/// State of a sample's token mask.
pub(super) struct Masked {
    pub(super) state: u32,
    pub(super) allowed: Arc<[u64]>,
}

impl Masked {
    pub(super) fn at(mask: &dyn TokenMask, state: u32) -> Self {
        Self { state, allowed: mask.allowed_tokens(state) }
    }
}

/// Draws a sample's next token from logits, and decides whether it ends.
pub(super) fn extend(
    level: SimdLevel,
    config: &TransformerConfig,
    group: &RequestGroup,
    running: &mut Running,
    logits: &[f32],
    scratch: &mut SamplingScratch,
) {
    let GenerationRequest { prompt, keys, params, stop, mask } = &group.request;
    let index = running.tokens.len() as u64;
    let history = [&prompt[..], &running.tokens[..]];
    let allowed = running.masked.as_ref().map(|masked| &*masked.allowed);
    let of_token = Draw { params, history, allowed, key: keys[running.sample], index };
    let Drawn { token, logprob, entropy } = draw(level, logits, &of_token, scratch);
    // NaN or infinity among the logits makes every token's log-probability NaN.
    if !logprob.is_finite() {
        running.finish = Some(CompletionEnd::NotFinite);
        return;
    }
    if let Some(count) = params.num_alternatives {
        running.alternatives.push(alternatives(level, logits, params, token, count));
    }
    running.tokens.push(token);
    running.logprobs.push(logprob);
    running.entropies.push(entropy);
    if let (Some(mask), Some(masked)) = (mask, &mut running.masked) {
        *masked = Masked::at(&**mask, mask.after(masked.state, token));
    }
    let is_over = |masked: &Masked| masked.allowed.iter().all(|&word| word == 0);
    let stopped = params.stop_token_ids.contains(&token)
        || stop.as_ref().is_some_and(|stop| stop.should_stop(&running.tokens))
        || running.masked.as_ref().is_some_and(is_over);
    if stopped {
        running.finish = Some(CompletionEnd::Stop);
    } else if running.tokens.len() >= group.longest(config) {
        running.finish = Some(CompletionEnd::Length);
    }
}
