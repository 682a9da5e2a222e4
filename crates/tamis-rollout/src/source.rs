//! Prompts ready to be generated from, and their sources.

use std::sync::Arc;

use tamis_core::group::PolicyVersion;
use tamis_core::schedule::selector::JudgedGroup;
use tamis_data::prompt::Prompt;

/// A prompt with the tokens that the model sees.
#[derive(Debug, Clone)]
pub struct PreparedPrompt {
    /// The task instance, whole: this is what rewards see.
    pub prompt: Arc<Prompt>,
    /// Tokens after the chat template and the length limit.
    pub token_ids: Arc<[u32]>,
    /// Paths of the images that go with the tokens, in the order of their places.
    pub images: Arc<[String]>,
    /// The text behind `token_ids`, with one token for each image.
    pub text: Arc<str>,
    /// Content of the assistant message that the completion continues; empty if the conversation does
    /// not end in one. It is prepended to the completion for scoring.
    pub continued: Arc<str>,
}

/// A prompt in a pass over the data: its completions are keyed by it.
#[derive(Debug, Clone)]
pub struct DrawnPrompt {
    /// The pass over the data that it belongs to, from 0.
    pub epoch: u64,
    /// The prompt.
    pub prompt: PreparedPrompt,
    /// Probability with which it was selected; 1 without selection.
    pub inclusion: f64,
}

/// Prompts drawn for a round.
#[derive(Debug, Clone, Default)]
pub struct DrawnPrompts {
    /// The prompts in dispatch order.
    pub prompts: Vec<DrawnPrompt>,
    /// Whether the epoch ended with (or before) the last of them.
    pub exhausted: bool,
}

/// Source of the scheduler's prompts.
pub trait PromptSource {
    /// The next prompts, `n` of them or as many as are left: returned ones first, then this epoch's.
    /// `version` is that of the weights that will sample.
    fn draw(&mut self, n: usize, version: PolicyVersion) -> DrawnPrompts;

    /// Takes prompts back that were drawn and not used, in the order in which they were drawn: they come
    /// next, as of the pass in which they were drawn.
    fn give_back(&mut self, prompts: Vec<DrawnPrompt>);

    /// Begins the next epoch.
    fn next_epoch(&mut self);

    /// A step was closed, after prompts were returned. `groups` are the outcomes in the order of
    /// dispatch, without those whose prompts were returned.
    fn learn(&mut self, groups: &[JudgedGroup]) {
        let _ = groups;
    }
}
