//! How the loss uses the probability with which a prompt was selected.

use crate::choice;

choice! {
    /// How the loss uses the probability q with which a prompt was selected.
    pub enum InclusionWeights {
        /// A group's trajectories have the weight 1/q in the loss, so that the means of an update are those
        /// of the data without selection.
        Corrected = "corrected",
        /// All weights are equal. Metrics measure how far the trained distribution is from the data.
        Biased = "biased",
        /// All weights are equal. Only the share of skipped prompts is measured.
        Off = "off",
    }
}

/// Effective share of a weighted sample: (Σw)² / (m Σw²), 1 if all weights are equal; `None` without weights.
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
