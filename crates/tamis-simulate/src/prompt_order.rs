//! The order in which prompts come: shuffled epoch by epoch, with those in front that went back.

use std::collections::VecDeque;

use tamis_core::random::{Key, Purpose};

/// Where the prompts of a run are drawn from.
#[derive(Debug)]
pub(crate) struct PromptOrder {
    key: Key,
    epoch: u64,
    laps: u64,
    order: Vec<usize>,
    at: usize,
    returned: VecDeque<usize>,
}

impl PromptOrder {
    pub(crate) fn new(num_prompts: usize, seed: u64) -> Self {
        let key = Key::new(seed, Purpose::Shuffle);
        Self {
            key,
            epoch: 0,
            laps: 0,
            order: key.with(0).permutation(num_prompts),
            at: 0,
            returned: VecDeque::new(),
        }
    }

    pub(crate) fn begin_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.order = self.key.with(epoch).permutation(self.order.len());
        self.at = 0;
    }

    /// Goes through the data once more in an epoch that was to go on: prompts that the machine thinks are back were
    /// lost.
    pub(crate) fn begin_again(&mut self) {
        self.laps += 1;
        self.order = self.key.with(self.epoch).with(self.laps).permutation(self.order.len());
        self.at = 0;
    }

    /// Prompts that are drawn before any other.
    pub(crate) fn take_back(&mut self, prompts: impl DoubleEndedIterator<Item = usize>) {
        for prompt in prompts.rev() {
            self.returned.push_front(prompt);
        }
    }

    /// The next prompt, with the key of the choice whether it is taken.
    pub(crate) fn next(&mut self) -> Option<(usize, Key)> {
        let prompt = if let Some(prompt) = self.returned.pop_front() {
            prompt
        } else {
            let prompt = *self.order.get(self.at)?;
            self.at += 1;
            prompt
        };
        Some((prompt, self.key.with(u64::MAX).with(self.epoch).with(prompt as u64)))
    }

    /// Whether the epoch has no prompt left.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.returned.is_empty() && self.at >= self.order.len()
    }
}
