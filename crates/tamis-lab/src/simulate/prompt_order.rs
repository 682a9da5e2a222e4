//! Order of the prompts in a simulated run: shuffled epochs, with returned prompts first. A selector may skip
//! prompts.

use std::collections::VecDeque;

use tamis_core::group::{PolicyVersion, PromptId};
use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::selector::{Candidate, JudgedGroup, PromptSelector};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Drawn {
    pub(crate) prompt: u32,
    epoch: u32,
    /// Probability with which the prompt was chosen.
    pub(crate) inclusion: f64,
}

/// The source of a run's prompts.
#[derive(Debug)]
pub(crate) struct PromptOrder {
    key: Key,
    epoch: u64,
    laps: u64,
    order: Vec<usize>,
    at: usize,
    given_back: VecDeque<Candidate>,
    selector: Option<PromptSelector>,
}

impl PromptOrder {
    pub(crate) fn new(num_prompts: usize, seed: u64, selector: Option<PromptSelector>) -> Self {
        let key = Key::new(seed, Purpose::Shuffle);
        let order = key.with(0).permutation(num_prompts);
        Self { key, epoch: 0, laps: 0, order, at: 0, given_back: VecDeque::new(), selector }
    }

    pub(crate) fn begin_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.order = self.key.with(epoch).permutation(self.order.len());
        self.at = 0;
    }

    /// Draws `num_prompts` prompts, or all that are left in the epoch. The flag is true if none is left.
    pub(crate) fn draw(&mut self, num_prompts: usize, version: PolicyVersion) -> (Vec<Drawn>, bool) {
        if self.given_back.is_empty() && self.at >= self.order.len() {
            self.begin_again();
        }
        let epoch = self.epoch;
        let rest = self.order[self.at..].iter().map(|prompt| Candidate::new(epoch, PromptId(*prompt as u64)));
        let candidates = self.given_back.iter().copied().chain(rest);
        let selector = self.selector.as_ref();
        let (decided, is_over) =
            PromptSelector::decide_next(selector, candidates, num_prompts, version, self.at == 0);
        let num_given_back = decided.len().min(self.given_back.len());
        self.given_back.drain(..num_given_back);
        self.at += decided.len() - num_given_back;
        let mut drawn = Vec::with_capacity(num_prompts.min(decided.len()));
        for (candidate, selection) in decided {
            if let Some(selector) = &mut self.selector {
                selector.note(candidate, selection);
            }
            if selection.is_taken {
                let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
                let (prompt, epoch) = (number(candidate.prompt.0), number(candidate.epoch));
                drawn.push(Drawn { prompt, epoch, inclusion: selection.inclusion });
            }
        }
        (drawn, is_over)
    }

    /// Starts another pass over the data within an epoch that should not have ended: prompts that the
    /// scheduler counts as returned were lost.
    fn begin_again(&mut self) {
        self.laps += 1;
        self.order = self.key.with(self.epoch).with(self.laps).permutation(self.order.len());
        self.at = 0;
    }

    /// Returns drawn but unused prompts. They are drawn before any other.
    pub(crate) fn give_back(&mut self, returned: impl Iterator<Item = Drawn>) {
        let is_selected = self.selector.is_some();
        let returned: Vec<Candidate> = returned
            .map(|Drawn { prompt, epoch, inclusion }| Candidate {
                inclusion: is_selected.then_some(inclusion),
                ..Candidate::new(u64::from(epoch), PromptId(u64::from(prompt)))
            })
            .collect();
        let comes_next = match &mut self.selector {
            Some(selector) if !returned.is_empty() => selector.give_back(&returned),
            _ => returned,
        };
        for candidate in comes_next.into_iter().rev() {
            self.given_back.push_front(candidate);
        }
    }

    /// Passes over the data so far, including skipped prompts.
    pub(crate) fn passes(&self) -> f64 {
        (self.epoch + self.laps) as f64 + self.at as f64 / self.order.len().max(1) as f64
    }

    /// Whether there is a selector that learns.
    pub(crate) fn learns(&self) -> bool {
        self.selector.is_some()
    }

    /// Passes the groups of a closed step to the selector, in order of dispatch.
    pub(crate) fn learn(&mut self, groups: &[JudgedGroup]) {
        if let Some(selector) = &mut self.selector {
            selector.learn(groups);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tamis_core::schedule::selector::{Posterior, Selector};

    use super::*;

    fn order(num_prompts: usize) -> PromptOrder {
        let selector = Selector::Posterior(Posterior { memory: 1.0, ..Posterior::default() });
        PromptOrder::new(num_prompts, 3, PromptSelector::new(selector, 3, 8, None))
    }

    /// The group of a prompt, with all members correct.
    fn solved(drawn: &Drawn) -> JudgedGroup {
        JudgedGroup {
            prompt: PromptId(u64::from(drawn.prompt)),
            version: PolicyVersion(0),
            inclusion: drawn.inclusion,
            num_scored: 8,
            num_correct: 8,
            first_scored: 8,
            first_correct: 8,
        }
    }

    #[test]
    fn what_goes_back_comes_first_and_is_not_decided_on_again() {
        let mut order = order(40);
        for epoch in 0..3 {
            order.begin_epoch(epoch);
            let (drawn, is_over) = order.draw(40, PolicyVersion(0));
            assert!(is_over && (order.passes() - epoch as f64 - 1.0).abs() < 1e-12);
            order.learn(&drawn.iter().map(solved).collect::<Vec<_>>());
        }
        order.begin_epoch(3);
        let (drawn, _) = order.draw(2, PolicyVersion(0));
        assert!(drawn[0].inclusion < 1.0, "{drawn:?}");
        order.give_back(drawn[..1].iter().copied());
        // The selector has learned since, and would skip it.
        order.learn(&vec![solved(&drawn[0]); 50]);
        let (again, _) = order.draw(1, PolicyVersion(0));
        assert_eq!((again[0].prompt, again[0].inclusion), (drawn[0].prompt, drawn[0].inclusion));
    }
}
