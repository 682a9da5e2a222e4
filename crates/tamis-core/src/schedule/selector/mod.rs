//! Which prompts are worth generating from, by what their groups came to before.
//!
//! A selector looks at the prompts of an epoch in their order and passes over some of them: those whose groups
//! were uniform again and again teach nothing. It never judges a group; what is generated is filtered as ever.
//! The probability with which a prompt was taken is known, so that the shift which selection brings into the
//! trained distribution can be weighted away ([`Selection::inclusion`]).
//!
//! Everything is a pure function of the histories, the prompt's key and the settings: a run that is killed and
//! resumed selects as it would have.

mod history;
mod posterior;
#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod tests;
mod zero_variance_skip;

pub use history::{PromptHistories, PromptHistory, Side};
pub use posterior::{PassRatePrior, Posterior};
pub use zero_variance_skip::{SkipRates, ZeroVarianceSkip};

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

/// Effective share of a weighted sample: (Σw)² / (m Σw²), 1 where all weights are equal; `None` of no weight.
///
/// Source: Kish, "Survey Sampling", 1965.
///
/// ```
/// use tamis_core::schedule::selector::effective_share;
/// assert_eq!(effective_share(&[2.0, 2.0]), Some(1.0));
/// assert_eq!(effective_share(&[1.0, 3.0]), Some(0.8));
/// ```
pub fn effective_share(weights: &[f64]) -> Option<f64> {
    let sum: f64 = weights.iter().sum();
    let squares: f64 = weights.iter().map(|weight| weight * weight).sum();
    (squares > 0.0).then(|| sum * sum / (weights.len() as f64 * squares))
}
