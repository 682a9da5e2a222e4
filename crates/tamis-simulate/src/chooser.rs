//! The choice of prompts by what they came to before.

use tamis_core::group::{PolicyVersion, PromptId};
use tamis_core::random::Key;
use tamis_core::schedule::selector::{
    PassRatePrior, Posterior, PromptHistories, Selection, Side, SkipRates, ZeroVarianceSkip,
};

/// Share of what was seen of the prior that is left after another group.
const PRIOR_MEMORY: f64 = 0.9998;

/// How a policy chooses.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) enum Choice {
    /// Every prompt of the epoch is taken.
    #[default]
    All,
    Skip(ZeroVarianceSkip),
    Posterior(Posterior),
}

/// A choice with what it remembers.
#[derive(Debug)]
pub(crate) struct Chooser {
    choice: Choice,
    group_size: u32,
    histories: PromptHistories,
    prior: PassRatePrior,
    rates: SkipRates,
    /// Groups of the step: all, all right, all wrong.
    seen: [u64; 3],
}

impl Chooser {
    pub(crate) fn new(choice: Choice, group_size: usize) -> Self {
        Self {
            choice,
            group_size: u32::try_from(group_size).unwrap_or(u32::MAX),
            histories: PromptHistories::default(),
            prior: PassRatePrior::default(),
            rates: SkipRates::default(),
            seen: [0; 3],
        }
    }

    pub(crate) fn select(&self, prompt: usize, version: PolicyVersion, key: Key) -> Selection {
        let history = self.histories.get(PromptId(prompt as u64));
        match self.choice {
            Choice::All => Selection::CERTAIN,
            Choice::Skip(skip) => skip.select(&self.rates, history, key),
            Choice::Posterior(posterior) => {
                posterior.select(&self.prior, history, version, self.group_size, key)
            }
        }
    }

    /// A group was scored.
    pub(crate) fn observe(
        &mut self,
        prompt: usize,
        num_correct: u32,
        inclusion: f64,
        version: PolicyVersion,
    ) {
        let memory = match self.choice {
            Choice::All => return,
            Choice::Skip(_) => 1.0,
            Choice::Posterior(posterior) => posterior.memory,
        };
        let n = self.group_size;
        self.histories.observe(PromptId(prompt as u64), num_correct, n, version, memory);
        self.prior.observe(num_correct, n, inclusion, PRIOR_MEMORY);
        self.seen[0] += 1;
        match Side::of(num_correct, n) {
            Some(Side::Easy) => self.seen[1] += 1,
            Some(Side::Hard) => self.seen[2] += 1,
            None => {}
        }
    }

    /// A step was trained.
    pub(crate) fn end_step(&mut self) {
        let [groups, easy, hard] = std::mem::take(&mut self.seen);
        if let Choice::Skip(skip) = self.choice {
            self.rates = self.rates.after(&skip, groups, easy, hard);
        }
    }
}
