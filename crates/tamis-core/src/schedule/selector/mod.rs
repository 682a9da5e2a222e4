//! Which prompts are worth generating from, by what their groups came to before.
//! A selector looks at the prompts of an epoch in their order and passes over some of them: those whose
//! groups were uniform again and again teach nothing. It never judges a group; what is generated is filtered
//! as ever. The probability with which a prompt was taken is known, so that the shift which selection brings
//! into the trained distribution can be weighted away ([`Selection::inclusion`]).
//! Everything is a pure function of the histories, the prompt's key and the settings: a run that is killed
//! and resumed selects as it would have.
//!
//! | module | what it holds |
//! |---|---|
//! | `history` | what is remembered of a prompt |
//! | `zero_variance_skip`, `posterior`, `difficulty_pools` | the selectors, and what they go by beside the histories |
//! | `inclusion` | what the probability of a selection does in the loss |
//! | `prompt_selector` | a selector in a run: decides, is told what groups came to, takes back what was not used |
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
pub use history::{PromptHistories, PromptHistory, Side};
pub use inclusion::{InclusionWeights, effective_share};
pub use posterior::{PassRatePrior, Posterior};
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
        /// Skips prompts whose last groups were uniform, the more surely the more often in a row (GRESO,
        /// arXiv 2506.02177).
        ZeroVarianceSkip(ZeroVarianceSkip) = "zero_variance_skip",
        /// Takes a prompt with a probability in proportion to that with which its next group is mixed, under
        /// a Beta posterior of its pass rate, and weights it by one over that probability.
        Posterior(Posterior) = "posterior",
        /// Takes prompts of a hard and of an easy pool with the rates of these pools, and all others always
        /// (the pools of prime-rl).
        DifficultyPools(DifficultyPools) = "difficulty_pools",
    }
}

impl Selector {
    /// What the probability of a selection does in the loss.
    pub fn correction(&self) -> InclusionWeights {
        match self {
            Self::Shuffle(_) => InclusionWeights::Off,
            Self::ZeroVarianceSkip(skip) => skip.correction,
            Self::Posterior(posterior) => posterior.correction,
            Self::DifficultyPools(pools) => pools.correction,
        }
    }

    /// Share of what was seen of a prompt that still counts one policy version later.
    fn memory(&self) -> f64 {
        match self {
            Self::Shuffle(_) | Self::ZeroVarianceSkip(_) | Self::DifficultyPools(_) => 1.0,
            Self::Posterior(posterior) => posterior.memory,
        }
    }
}

/// Whether a prompt is generated from, and how likely that was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Selection {
    /// Whether it is taken.
    pub is_taken: bool,
    /// Probability with which it would have been, in (0, 1\].
    pub inclusion: f64,
}

impl Selection {
    /// Taken whatever happens.
    pub const CERTAIN: Self = Self { is_taken: true, inclusion: 1.0 };

    /// Taken with a probability, decided by a number that is uniform in \[0, 1).
    pub fn with_probability(inclusion: f64, uniform: f64) -> Self {
        Self { is_taken: uniform < inclusion, inclusion }
    }
}
