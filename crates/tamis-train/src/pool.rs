//! The training prompts as the scheduler's source: an order per epoch and a place in it.

use std::collections::HashMap;

use tamis_core::group::PromptId;
use tamis_data::sampler::{Order, Position, PositionError, Sampler};
use tamis_rollout::{Drawn, PreparedPrompt, PromptSource};

/// Prompts drawn epoch by epoch; the position survives a resume.
pub struct PromptPool {
    prompts: HashMap<PromptId, PreparedPrompt>,
    sampler: Sampler,
}

impl PromptPool {
    /// At a place in the data; the default is its beginning.
    pub fn new(
        prompts: Vec<PreparedPrompt>,
        order: Order,
        position: Position,
    ) -> Result<Self, PositionError> {
        let ids = prompts.iter().map(|prepared| prepared.prompt.id).collect();
        let sampler = Sampler::resume(ids, order, position)?;
        let prompts = prompts.into_iter().map(|prepared| (prepared.prompt.id, prepared)).collect();
        Ok(Self { prompts, sampler })
    }

    /// The place to save.
    pub fn position(&self) -> Position {
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
    fn draw(&mut self, n: usize) -> Drawn {
        let drawn = self.sampler.draw(n);
        let prompts = drawn.prompts.iter().filter_map(|id| self.prompts.get(id).cloned()).collect();
        Drawn { prompts, epoch: drawn.epoch, exhausted: drawn.exhausted }
    }

    fn next_epoch(&mut self) {
        self.sampler.next_epoch();
    }
}
