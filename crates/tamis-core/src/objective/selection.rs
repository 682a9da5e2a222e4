//! Choices that are made over a whole optimizer batch before any of it is differentiated.
//!
//! `clip_cov` and `kl_cov` rank tokens by their covariance, and the top-entropy mask ranks them by their
//! entropy, in comparison with all others. Originals that do so within each micro-batch give results that
//! depend on how the batch was cut. Here the choice is made once, on the columns of the whole optimizer
//! batch, and every micro-batch gets its part of the [`Selection`].
//!
//! A selection costs a separate forward pass if the log-probabilities are not yet known. (For the first
//! update of an on-policy step, generation has computed them.)

use super::columns::{Columns, Real, Selection};
use super::{Objective, ObjectiveError};
use crate::fault;
use crate::random::Key;

impl Objective {
    /// Whether [`Self::select`] must be called before [`Self::evaluate`].
    pub fn needs_selection(&self) -> bool {
        self.masks.top_entropy.is_some_and(|share| share < 1.0) || self.policy.needs_selection()
    }

    /// Chooses tokens over a whole optimizer batch. `key` belongs to that batch; the same key and columns
    /// give the same choice.
    ///
    /// Reads `mask`, and `logprob`, `old`, `advantage` and `entropy` as the settings need them. O(N), plus
    /// one number per candidate.
    ///
    /// # Errors
    /// Columns are missing or their lengths do not fit together, or settings are out of range.
    ///
    /// # Differs from
    /// verl and TRL choose within each micro-batch; verl draws without a seed.
    pub fn select<T: Real>(&self, columns: &Columns<'_, T>, key: Key) -> Result<Selection, ObjectiveError> {
        self.check()?;
        columns.check()?;
        let mut flags = vec![0; columns.num_tokens()];
        for t in self.policy.select(columns, key) {
            flags[t] |= Selection::BY_COVARIANCE;
        }
        if let Some(share) = self.masks.top_entropy {
            let entropy = columns
                .entropy
                .ok_or_else(|| fault!("column `entropy` is missing; the mask `top_entropy` needs it"))?;
            let unmasked = entropy.iter().zip(columns.mask).filter(|(_, on)| **on);
            let threshold = quantile(unmasked.map(|(&value, _)| value.into()).collect(), 1.0 - share);
            for ((flags, &value), &on) in flags.iter_mut().zip(entropy).zip(columns.mask) {
                if on && value.into() < threshold {
                    *flags |= Selection::LEFT_OUT;
                }
            }
        }
        Ok(Selection { flags })
    }
}

/// The q-quantile, linear between neighbours; NaN if there are no values.
fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let place = q * (values.len() - 1) as f64;
    let below = (place.floor() as usize).min(values.len() - 1);
    let (_, &mut low, above) = values.select_nth_unstable_by(below, f64::total_cmp);
    let high = above.iter().copied().min_by(f64::total_cmp).unwrap_or(low);
    low + (high - low) * (place - below as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_by_hand() {
        let values = vec![3.0, 1.0, 2.0, 5.0];
        for (q, expected) in [(0.0, 1.0), (1.0, 5.0), (0.5, 2.5), (0.9, 3.0 + 0.7 * 2.0)] {
            assert!((quantile(values.clone(), q) - expected).abs() < 1e-15, "{q}");
        }
        assert!(quantile(vec![], 0.5).is_nan());
    }
}
