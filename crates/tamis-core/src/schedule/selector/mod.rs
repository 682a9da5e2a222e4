//! Selects the prompts that are worth generating from, by the results of their earlier groups.
//! A selector goes through the prompts of an epoch in order and passes over some of them: a prompt whose
//! groups were uniform again and again teaches nothing. It never judges a group; the filter still judges
//! everything that is generated. The probability with which a prompt was taken is known, so weights can undo
//! the shift that selection brings into the trained distribution ([`PromptSelection::inclusion`]). All is a
//! pure function of the histories, the prompt's key and the settings. A run that is killed and resumed
//! selects the same prompts.
//!
//! | module | contents |
//! |---|---|
//! | `history` | what a run remembers of a prompt |
//! | `zero_variance_skip`, `posterior`, `difficulty_pools` | the selectors, and what they use besides the histories |
//! | `inclusion` | how the loss uses the probability of a selection |
//! | `prompt_selector` | the selector in a run: decides, learns the results of groups, takes back unused prompts |
//! | `report` | how the trained distribution differs from that of the data |

mod difficulty_pools;
mod history;
mod inclusion;
mod posterior;
mod prompt_selector;
mod report;
#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod tests;
mod zero_variance_skip;

pub use difficulty_pools::DifficultyPools;
pub use history::{FadedCounts, PromptHistories, PromptHistory, Side};
pub use inclusion::{InclusionWeights, effective_share};
pub use posterior::{Beta, PassRatePrior, Posterior};
pub use prompt_selector::{Candidate, JudgedGroup, PromptSelector, SelectorState};
pub use report::SelectionReport;
pub use zero_variance_skip::{SkipRates, ZeroVarianceSkip};

use crate::{settings, tagged};

settings! {
    /// Takes every prompt once an epoch.
    #[derive(Copy)]
    pub struct Shuffle {}
}

tagged! {
    /// How the next prompts are chosen from those of an epoch, in their order.
    #[derive(Copy)]
    pub enum Selector, default Shuffle {
        /// Every prompt once an epoch.
        Shuffle(Shuffle) = "shuffle",
        /// Skips prompts whose last groups were uniform, the more surely the longer the series (GRESO, arXiv
        /// 2506.02177).
        ZeroVarianceSkip(ZeroVarianceSkip) = "zero_variance_skip",
        /// Takes a prompt with a probability proportional to that of a mixed next group, under a Beta
        /// posterior of its pass rate, and weights it by the inverse of that probability.
        Posterior(Posterior) = "posterior",
        /// Takes prompts of a hard and of an easy pool with the rates of these pools, and all others always
        /// (the pools of prime-rl).
        DifficultyPools(DifficultyPools) = "difficulty_pools",
    }
}

impl Selector {
    /// How the loss uses the probability of a selection.
    pub fn correction(&self) -> InclusionWeights {
        match self {
            Self::Shuffle(_) => InclusionWeights::Off,
            Self::ZeroVarianceSkip(skip) => skip.correction,
            Self::Posterior(posterior) => posterior.correction,
            Self::DifficultyPools(pools) => pools.correction,
        }
    }

    /// Factor by which earlier results of a prompt fade with each policy version.
    fn memory(&self) -> f64 {
        match self {
            Self::Shuffle(_) | Self::ZeroVarianceSkip(_) | Self::DifficultyPools(_) => 1.0,
            Self::Posterior(posterior) => posterior.memory,
        }
    }
}

/// Whether a prompt is generated from, and with which probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PromptSelection {
    /// Whether it is taken.
    pub is_taken: bool,
    /// Probability with which it was to be taken, in (0, 1\].
    pub inclusion: f64,
}

impl PromptSelection {
    /// Always taken.
    pub const CERTAIN: Self = Self { is_taken: true, inclusion: 1.0 };

    /// Taken with this probability; `uniform` is a random number in \[0, 1) that decides it.
    pub fn with_probability(inclusion: f64, uniform: f64) -> Self {
        Self { is_taken: uniform < inclusion, inclusion }
    }
}
