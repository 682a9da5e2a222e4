//! The choice of prompts by what they came to before.

use tamis_core::group::{PolicyVersion, PromptId};
use tamis_core::random::Key;
use tamis_core::schedule::selector::{PassRatePrior, PromptHistories, Selection, Selector, Side, SkipRates};

/// Share of what was seen of the prior that is left after another group.
const PRIOR_MEMORY: f64 = 0.9998;

/// What a group came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) prompt: usize,
    pub(crate) version: PolicyVersion,
    /// Probability with which its prompt was taken.
    pub(crate) inclusion: f64,
    /// Its right members, and all that it had.
    pub(crate) right: u32,
    pub(crate) members: u32,
    /// Those of the members with which every group is begun.
    pub(crate) first_right: u32,
    pub(crate) first_members: u32,
}

/// A choice with what it remembers.
#[derive(Debug)]
pub(crate) struct Chooser {
    selector: Selector,
    group_size: u32,
    histories: PromptHistories,
    prior: PassRatePrior,
    rates: SkipRates,
    /// Groups of the step: all, all right, all wrong.
    seen: [u64; 3],
}

impl Chooser {
    pub(crate) fn new(selector: Selector, group_size: usize) -> Self {
        Self {
            selector,
            group_size: u32::try_from(group_size).unwrap_or(u32::MAX),
            histories: PromptHistories::default(),
            prior: PassRatePrior::default(),
            rates: SkipRates::default(),
            seen: [0; 3],
        }
    }

    pub(crate) fn select(&self, prompt: usize, version: PolicyVersion, key: Key) -> Selection {
        let history = self.histories.get(PromptId(prompt as u64));
        match &self.selector {
            Selector::Shuffle(_) => Selection::CERTAIN,
            Selector::ZeroVarianceSkip(skip) => skip.select(&self.rates, history, key),
            Selector::DifficultyPools(pools) => pools.select(history, key),
            Selector::Posterior(posterior) => {
                posterior.select(&self.prior, history, version, self.group_size, key)
            }
        }
    }

    /// A group was scored, or ended with its first members.
    pub(crate) fn observe(&mut self, group: Outcome) {
        let memory = match &self.selector {
            Selector::Shuffle(_) => return,
            Selector::ZeroVarianceSkip(_) | Selector::DifficultyPools(_) => 1.0,
            Selector::Posterior(posterior) => posterior.memory,
        };
        let Outcome { prompt, version, inclusion, right, members, first_right, first_members } = group;
        self.histories.observe(PromptId(prompt as u64), right, members, version, memory);
        // Whether there are others depends on what the first ones came to.
        self.prior.observe(first_right, first_members, inclusion, PRIOR_MEMORY);
        self.seen[0] += 1;
        match Side::of(right, members) {
            Some(Side::Easy) => self.seen[1] += 1,
            Some(Side::Hard) => self.seen[2] += 1,
            None => {}
        }
    }

    /// A step was trained.
    pub(crate) fn end_step(&mut self) {
        let [groups, easy, hard] = std::mem::take(&mut self.seen);
        if let Selector::ZeroVarianceSkip(skip) = &self.selector {
            self.rates = self.rates.after(skip, groups, easy, hard);
        }
    }
}
