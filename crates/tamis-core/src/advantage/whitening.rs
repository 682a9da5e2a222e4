//! Whitening: mean 0 and deviation 1 over all trained tokens.

use super::singleton::finite_or_zero;
use super::statistics::Moments;
use crate::ragged::Ragged;

/// Added to the variance, so that nearly uniform numbers are not magnified (verl `masked_whiten`).
const VARIANCE_EPSILON: f64 = 1e-8;

/// `(x - mean) / sqrt(variance + 1e-8)`, sample variance; 0 if the numbers do not differ or are fewer than
/// two.
///
/// Source: Schulman et al.'s PPO code; verl `masked_whiten`, which also adds 1e-8 to the count and raises an
/// error for a single number.
struct Whitening {
    mean: f64,
    factor: f64,
}

impl Whitening {
    fn of(moments: &Moments) -> Self {
        if moments.is_uniform() {
            return Self { mean: 0.0, factor: 0.0 };
        }
        let deviation = moments.deviation(1);
        Self { mean: moments.mean, factor: 1.0 / (deviation * deviation + VARIANCE_EPSILON).sqrt() }
    }

    fn apply(&self, value: f64) -> f64 {
        finite_or_zero((value - self.mean) * self.factor)
    }
}

/// Whitens one number per trajectory over tokens: each counts `length` times. NaN is left out and becomes 0.
pub(crate) fn by_length(values: &mut Ragged<f64>, length: impl Fn(usize) -> usize) {
    let numbers = || values.values().iter().enumerate().map(|(i, &value)| (value, length(i)));
    let whitening = Whitening::of(&Moments::weighted(numbers));
    for row in 0..values.num_rows() {
        for value in values.row_mut(row) {
            *value = whitening.apply(*value);
        }
    }
}

/// Whitens unmasked tokens of scored trajectories; everything else becomes 0.
pub(crate) fn by_token(values: &mut Ragged<f64>, mask: &Ragged<bool>, rewards: &[f64]) {
    let numbers = || {
        let scored = values.rows().zip(mask.rows()).zip(rewards).filter(|(_, reward)| !reward.is_nan());
        scored.flat_map(|((values_t, mask_t), _)| {
            values_t.iter().zip(mask_t).map(|(&value, &on)| (value, usize::from(on)))
        })
    };
    let whitening = Whitening::of(&Moments::weighted(numbers));
    for (trajectory, reward) in rewards.iter().enumerate() {
        let mask_t = mask.row(trajectory);
        for (value, &on) in values.row_mut(trajectory).iter_mut().zip(mask_t) {
            *value = if on && !reward.is_nan() { whitening.apply(*value) } else { 0.0 };
        }
    }
}
