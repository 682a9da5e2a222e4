//! The entropy bonus.

use serde::{Deserialize, Serialize};

use super::ObjectiveError;
use super::accumulator::SequenceSums;
use super::aggregation::Aggregation;
use super::columns::{Real, Row};

/// Rewards entropy: `- coef · aggregated H_t`, so that the policy does not collapse onto few answers.
///
/// The derivative with respect to each token's entropy is `-coef · w_i`; the learner carries it through to the logits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntropyBonus {
    /// The coefficient; a negative one punishes entropy.
    pub coef: f64,
    /// How entropies are aggregated; `None`: as the policy loss (verl). TRL takes `token-mean` whatever its loss does.
    #[serde(default)]
    pub aggregation: Option<Aggregation>,
}

impl EntropyBonus {
    /// Whether the settings are in range.
    pub(crate) fn check(&self) -> Result<(), ObjectiveError> {
        if !self.coef.is_finite() {
            return Err(ObjectiveError::Setting {
                setting: "entropy.coef",
                value: self.coef,
                expected: "a finite number",
            });
        }
        self.aggregation.as_ref().map_or(Ok(()), Aggregation::check)
    }
}

/// Sums a trajectory's entropies; with a bonus also its derivatives. `sums.entropy_loss` is the aggregated entropy before the
/// coefficient.
pub(crate) fn sequence<T: Real>(
    row: &Row<'_, T>,
    entropy: &[T],
    scale: f64,
    coef: Option<f64>,
    dentropy_t: Option<&mut [f64]>,
    sums: &mut SequenceSums,
) {
    sums.entropy = row.mask.iter().zip(entropy).filter(|(on, _)| **on).map(|(_, &value)| value.into()).sum();
    sums.entropy_loss = scale * sums.entropy;
    if let (Some(coef), Some(dentropy_t)) = (coef, dentropy_t) {
        let slope = -(coef * scale);
        for (derivative, &on) in dentropy_t.iter_mut().zip(row.mask) {
            if on {
                *derivative = slope;
            }
        }
    }
}
