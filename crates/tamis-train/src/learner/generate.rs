//! Generation in a learner: the samples that a call begins and aborts, and the growth of each.
//!
//! A sample is begun once and grows over several calls, so that between them a controller notices ended
//! samples, Ctrl-C and a lost learner. Its tokens are a function of its key, its prompt and the
//! weights.

use serde::{Deserialize, Serialize};
use tamis_core::group::FinishReason;
use tamis_core::random::Key;

/// How tokens are drawn, and the end of a completion. Log-probabilities and entropies are those of
/// `softmax(logits / temperature)`, before the penalty and the cuts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drawing {
    /// Divides the logits; 0 takes the likeliest token, whose log-probability is then that at temperature 1.
    pub temperature: f64,
    /// Keep the k likeliest tokens, and all that tie with the last of them; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of likeliest tokens whose probability reaches this; 1 keeps all.
    pub top_p: f64,
    /// Keep tokens at least this fraction as likely as the likeliest; 0 keeps all.
    pub min_p: f64,
    /// Divides positive and multiplies negative logits of tokens in prompt or completion; 1 means no penalty.
    pub repetition_penalty: f64,
    /// Longest completion in tokens, the end token included; at least 1.
    pub max_tokens: usize,
    /// Tokens that end a completion, and belong to it.
    pub end_tokens: Vec<u32>,
}

/// A prompt and its samples that begin: they share its computation.
#[derive(Debug, Clone, PartialEq)]
pub struct BeginningGroup {
    /// Tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// How they are drawn.
    pub drawing: Drawing,
    /// Number and key of each sample; token t is drawn with `key.uniform(t)`.
    pub samples: Vec<(u64, Key)>,
}

/// The samples that a learner begins and aborts, and how long it generates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Generate {
    /// Samples to begin.
    pub begin: Vec<BeginningGroup>,
    /// Numbers of samples to abort; those that are not open are ignored.
    pub abort: Vec<u64>,
    /// Longest time in seconds; a started draw is finished. 0: only begins and aborts.
    pub seconds: f64,
}

/// The growth of a sample in one call.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleGrowth {
    /// Its number.
    pub sample: u64,
    /// New tokens.
    pub tokens: Vec<u32>,
    /// Log-probability of each.
    pub logprobs: Vec<f32>,
    /// Entropy that each was drawn from.
    pub entropies: Vec<f32>,
    /// Why it ended with the last of them; `None`: it is still open. Its length ends it at its longest
    /// completion, and at the model's last position.
    pub end: Option<FinishReason>,
}

/// A sample that cannot be generated, for instance because its prompt leaves no room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedSample {
    /// Its number; it is not open.
    pub sample: u64,
    /// The reason.
    pub reason: String,
}

/// The result of a call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GrownSamples {
    /// Samples with new tokens: first those that ended, in the order in which they did.
    pub grown: Vec<SampleGrowth>,
    /// Samples that cannot be generated.
    pub refused: Vec<RefusedSample>,
    /// Number of samples that are open now, begun or waiting for room.
    pub num_open: usize,
}
