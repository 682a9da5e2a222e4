//! The training prompts as the scheduler's source: an order per epoch, a place in it, and the selector that
//! passes over some of them.

use std::collections::{HashMap, VecDeque};

use tamis_core::group::{PolicyVersion, PromptId};
use tamis_core::schedule::selector::{Candidate, JudgedGroup, PromptSelection, PromptSelector};
use tamis_data::sampler::{DataPosition, PositionError, PromptOrder, PromptSampler};
use tamis_rollout::{DrawnPrompt, DrawnPrompts, PreparedPrompt, PromptSource};

/// Prompts drawn epoch by epoch. The position, the returned prompts and the selector's knowledge
/// survive a resume.
pub struct PromptPool {
    prompts: HashMap<PromptId, PreparedPrompt>,
    sampler: PromptSampler,
    /// To be drawn before all others.
    given_back: VecDeque<Candidate>,
    /// `None`: every prompt is used.
    selector: Option<PromptSelector>,
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
        Ok(Self { prompts, sampler, given_back: VecDeque::new(), selector: None })
    }

    /// Adds a rank for each prompt, in their original order: in the first `epochs` passes over the data
    /// the lowest ranks come first.
    #[must_use]
    pub fn with_ranks(mut self, ranks: Vec<usize>, epochs: Option<u64>) -> Self {
        self.sampler = self.sampler.with_ranks(ranks, epochs);
        self
    }

    /// Adds prompts that were returned before a checkpoint.
    #[must_use]
    pub fn with_given_back(mut self, given_back: impl IntoIterator<Item = Candidate>) -> Self {
        self.given_back = given_back.into_iter().collect();
        self
    }

    /// Adds a selector, if there is one.
    #[must_use]
    pub fn with_selector(mut self, selector: Option<PromptSelector>) -> Self {
        self.selector = selector;
        self
    }

    /// Prompts that were given back and not drawn since, in the order in which they come, to save.
    pub fn given_back(&self) -> Vec<Candidate> {
        self.given_back.iter().copied().collect()
    }

    /// The place to save.
    pub fn position(&self) -> DataPosition {
        self.sampler.position()
    }

    /// The selector, if there is one.
    pub fn selector(&self) -> Option<&PromptSelector> {
        self.selector.as_ref()
    }

    /// The same, mutable, for its report.
    pub fn selector_mut(&mut self) -> Option<&mut PromptSelector> {
        self.selector.as_mut()
    }

    /// Prompts of an epoch.
    pub fn num_prompts(&self) -> usize {
        self.sampler.num_prompts()
    }

    /// A prompt by its id.
    pub fn get(&self, id: PromptId) -> Option<&PreparedPrompt> {
        self.prompts.get(&id)
    }

    /// Decides on the next prompts until `n` are taken or the epoch is over; whether it is.
    fn decide(&self, n: usize, version: PolicyVersion) -> (Vec<(Candidate, PromptSelection)>, bool) {
        let DataPosition { epoch, position, .. } = self.position();
        let own = self.sampler.rest().map(|prompt| Candidate::new(epoch, prompt));
        let candidates = self.given_back.iter().copied().chain(own);
        PromptSelector::decide_next(self.selector.as_ref(), candidates, n, version, position == 0)
    }
}

impl PromptSource for PromptPool {
    fn draw(&mut self, n: usize, version: PolicyVersion) -> DrawnPrompts {
        let (decided, exhausted) = self.decide(n, version);
        let num_given_back = decided.len().min(self.given_back.len());
        self.given_back.drain(..num_given_back);
        self.sampler.draw(decided.len() - num_given_back);
        let mut prompts = Vec::with_capacity(n.min(decided.len()));
        for (candidate, selection) in decided {
            if let Some(selector) = &mut self.selector {
                selector.note(candidate, selection);
            }
            if let Some(prompt) = self.prompts.get(&candidate.prompt).filter(|_| selection.is_taken) {
                let (epoch, prompt) = (candidate.epoch, prompt.clone());
                prompts.push(DrawnPrompt { epoch, prompt, inclusion: selection.inclusion });
            }
        }
        DrawnPrompts { prompts, exhausted }
    }

    fn give_back(&mut self, prompts: Vec<DrawnPrompt>) {
        let is_selected = self.selector.is_some();
        let returned: Vec<Candidate> = prompts
            .iter()
            .map(|DrawnPrompt { epoch, prompt, inclusion }| Candidate {
                inclusion: is_selected.then_some(*inclusion),
                ..Candidate::new(*epoch, prompt.prompt.id)
            })
            .collect();
        let comes_next = match &mut self.selector {
            Some(selector) => selector.give_back(&returned),
            None => returned,
        };
        for candidate in comes_next.into_iter().rev() {
            self.given_back.push_front(candidate);
        }
    }

    fn next_epoch(&mut self) {
        self.sampler.next_epoch();
    }

    fn learn(&mut self, groups: &[JudgedGroup]) {
        if let Some(selector) = &mut self.selector {
            selector.learn(groups);
        }
    }
}

#[cfg(test)]
mod tests;
