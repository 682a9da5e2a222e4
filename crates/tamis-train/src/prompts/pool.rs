//! The training prompts as the scheduler's source: an order per epoch and a place in it.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use tamis_core::group::PromptId;
use tamis_data::sampler::{DataPosition, PositionError, PromptOrder, PromptSampler};
use tamis_rollout::{DrawnPrompt, DrawnPrompts, PreparedPrompt, PromptSource};

/// A prompt that was drawn and given back: its pass over the data, and which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenBack {
    /// The pass, from 0.
    pub epoch: u64,
    /// The prompt.
    pub prompt: PromptId,
}

/// Prompts drawn epoch by epoch; the position and what was given back survive a resume.
pub struct PromptPool {
    prompts: HashMap<PromptId, PreparedPrompt>,
    sampler: PromptSampler,
    /// To be drawn before all others.
    given_back: VecDeque<GivenBack>,
}

impl PromptPool {
    /// At a place in the data; the default is its beginning.
    pub fn new(
        prompts: Vec<PreparedPrompt>,
        order: PromptOrder,
        position: DataPosition,
    ) -> Result<Self, PositionError> {
        let ids = prompts.iter().map(|prepared| prepared.prompt.id).collect();
        let sampler = PromptSampler::resume(ids, order, position)?;
        let prompts = prompts.into_iter().map(|prepared| (prepared.prompt.id, prepared)).collect();
        Ok(Self { prompts, sampler, given_back: VecDeque::new() })
    }

    /// With prompts that were given back before a checkpoint.
    #[must_use]
    pub fn with_given_back(mut self, given_back: impl IntoIterator<Item = GivenBack>) -> Self {
        self.given_back = given_back.into_iter().collect();
        self
    }

    /// Prompts that were given back and not drawn since, in the order in which they come, to save.
    pub fn given_back(&self) -> Vec<GivenBack> {
        self.given_back.iter().copied().collect()
    }

    /// The place to save.
    pub fn position(&self) -> DataPosition {
        self.sampler.position()
    }

    /// Prompts of an epoch.
    pub fn num_prompts(&self) -> usize {
        self.sampler.num_prompts()
    }

    /// A prompt by its id.
    pub fn get(&self, id: PromptId) -> Option<&PreparedPrompt> {
        self.prompts.get(&id)
    }
}

impl PromptSource for PromptPool {
    fn draw(&mut self, n: usize) -> DrawnPrompts {
        let first: Vec<GivenBack> = self.given_back.drain(..n.min(self.given_back.len())).collect();
        let drawn = self.sampler.draw(n - first.len());
        let own = drawn.prompts.into_iter().map(|prompt| GivenBack { epoch: drawn.epoch, prompt });
        let prompts = first.into_iter().chain(own).filter_map(|GivenBack { epoch, prompt }| {
            Some(DrawnPrompt { epoch, prompt: self.prompts.get(&prompt)?.clone() })
        });
        DrawnPrompts { prompts: prompts.collect(), exhausted: drawn.exhausted && self.given_back.is_empty() }
    }

    fn give_back(&mut self, prompts: Vec<DrawnPrompt>) {
        for DrawnPrompt { epoch, prompt } in prompts.into_iter().rev() {
            self.given_back.push_front(GivenBack { epoch, prompt: prompt.prompt.id });
        }
    }

    fn next_epoch(&mut self) {
        self.sampler.next_epoch();
    }
}
