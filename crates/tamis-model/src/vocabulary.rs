//! Log-probability and entropy of a row of logits, in one order for training and generation.

use crate::simd::lanes::{LANES, Lanes, exp, pad};
use crate::simd::{Arithmetic, SimdLevel, multiversion};

/// Statistics of a softmax row; `z = logits / temperature`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Statistics {
    pub max: f32,
    /// `sum e^(z - max)`.
    pub sum: f32,
    /// `sum e^(z - max) (z - max)`.
    pub weighted: f32,
}

impl Statistics {
    /// `log_softmax(z)` of one logit, nats.
    pub(crate) fn logprob(&self, logit: f32, inverse_temperature: f32) -> f32 {
        (f64::from(logit * inverse_temperature - self.max) - f64::from(self.sum).ln()) as f32
    }

    /// Entropy, nats.
    pub(crate) fn entropy(&self) -> f32 {
        (f64::from(self.sum).ln() - f64::from(self.weighted) / f64::from(self.sum)) as f32
    }
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "compiled for the caller's CPU feature")]
fn scan<F: Arithmetic>(
    logits: &[f32],
    inverse_temperature: f32,
    mut each: impl FnMut(usize, &Lanes),
) -> Statistics {
    let (chunks, tail) = logits.as_chunks::<LANES>();
    let mut best = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            let z = chunk[i] * inverse_temperature;
            best[i] = if z > best[i] { z } else { best[i] };
        }
    }
    let last = tail.iter().map(|&logit| logit * inverse_temperature);
    let max = last.fold(F::greatest(&best), |max, z| if z > max { z } else { max });
    let (mut sums, mut weighted) = ([0.0; LANES], [0.0; LANES]);
    let mut add = |index: usize, chunk: &Lanes| {
        let mut powers = [0.0; LANES];
        for i in 0..LANES {
            let z = chunk[i] * inverse_temperature - max;
            powers[i] = exp::<F>(z);
            sums[i] += powers[i];
            let bounded = if z < -87.0 { -87.0 } else { z };
            weighted[i] = F::fma(powers[i], bounded, weighted[i]);
        }
        each(index, &powers);
    };
    for (index, chunk) in chunks.iter().enumerate() {
        add(index, chunk);
    }
    if !tail.is_empty() {
        add(chunks.len(), &pad(tail, f32::NEG_INFINITY));
    }
    Statistics { max, sum: F::sum(&sums), weighted: F::sum(&weighted) }
}

multiversion! {
    fn statistics<F>(logits: &[f32], inverse_temperature: f32) -> Statistics {
        scan::<F>(logits, inverse_temperature, |_, _| ())
    }
}

multiversion! {
    /// Statistics of a row, bit for bit those of [`statistics`], and `e^(z - max)` of every token.
    fn powers<F>(logits: &[f32], inverse_temperature: f32, out: &mut [f32]) -> Statistics {
        scan::<F>(logits, inverse_temperature, |index, powers| {
            let out = &mut out[index * LANES..];
            let count = out.len().min(LANES);
            out[..count].copy_from_slice(&powers[..count]);
        })
    }
}

/// Derivatives that flow into one row, summed over its targets: by their log-probabilities and by the
/// entropy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowBack {
    pub logprob: f32,
    pub entropy: f32,
}

/// Replaces a row of logits by `coef * d logp / d logits + ent_coef * d H / d logits`, except for the
/// targets' own `coef / temperature`, which is left to the caller: `-p (coef + ent_coef (log p + H)) /
/// temperature`.
pub(crate) fn backward(
    level: SimdLevel,
    logits: &mut [f32],
    inverse_temperature: f32,
    row: &Statistics,
    back: RowBack,
) {
    let log_sum = f64::from(row.sum).ln() as f32;
    let constant = if back.entropy == 0.0 {
        back.logprob
    } else {
        back.logprob + back.entropy * (row.entropy() - log_sum)
    };
    spread(level, logits, inverse_temperature, row.max, 1.0 / row.sum, constant, back.entropy);
}

multiversion! {
    fn spread<F>(logits: &mut [f32], inverse_temperature: f32, max: f32, inverse_sum: f32, constant: f32, entropy: f32) {
        let factor = -inverse_sum * inverse_temperature;
        for logit in logits {
            let z = *logit * inverse_temperature - max;
            let bounded = if z < -87.0 { -87.0 } else { z };
            *logit = exp::<F>(z) * factor * F::fma(entropy, bounded, constant);
        }
    }
}

#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_row_by_hand() {
        let row = statistics(SimdLevel::detect(), &[2.0; 20], 1.0);
        assert!((row.logprob(2.0, 1.0) + 20f32.ln()).abs() < 1e-6);
        assert!((row.entropy() - 20f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn powers_have_the_same_statistics() {
        let logits: Vec<f32> = (0..37).map(|i| (i as f32 * 1.7).sin() * 30.0).collect();
        for level in SimdLevel::available() {
            let mut out = vec![0.0; 37];
            let row = powers(level, &logits, 0.7, &mut out);
            assert_eq!(row, statistics(level, &logits, 0.7));
            let total: f64 = out.iter().map(|&x| f64::from(x)).sum();
            assert!((total - f64::from(row.sum)).abs() < 1e-5);
        }
    }

    #[test]
    fn an_impossible_token_has_no_entropy() {
        let row = statistics(SimdLevel::detect(), &[0.0, f32::NEG_INFINITY, -1e30], 1.0);
        assert_eq!((row.entropy(), row.logprob(0.0, 1.0)), (0.0, 0.0));
        assert!(statistics(SimdLevel::detect(), &[0.0, f32::NAN], 1.0).logprob(0.0, 1.0).is_nan());
    }

    #[test]
    fn gradient_is_the_central_difference() {
        let logits: Vec<f32> = (0..21).map(|i| (i as f32 * 2.3).sin() * 2.0).collect();
        let (temperature, coef, entropy_coef, target) = (0.8f64, -1.3, 0.7, 5usize);
        let objective = |logits: &[f64]| {
            let z: Vec<f64> = logits.iter().map(|x| x / temperature).collect();
            let log_sum = z.iter().map(|x| x.exp()).sum::<f64>().ln();
            let entropy: f64 = z.iter().map(|x| -(x - log_sum).exp() * (x - log_sum)).sum();
            coef * (z[target] - log_sum) + entropy_coef * entropy
        };
        let mut gradient = logits.clone();
        let inverse = (1.0 / temperature) as f32;
        let row = statistics(SimdLevel::detect(), &logits, inverse);
        let back = RowBack { logprob: coef as f32, entropy: entropy_coef as f32 };
        backward(SimdLevel::detect(), &mut gradient, inverse, &row, back);
        gradient[target] += coef as f32 * inverse;
        let exact: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
        for i in 0..exact.len() {
            let (mut up, mut down) = (exact.clone(), exact.clone());
            up[i] += 1e-5;
            down[i] -= 1e-5;
            let slope = (objective(&up) - objective(&down)) / 2e-5;
            assert!((slope - f64::from(gradient[i])).abs() < 1e-6, "{i}: {slope} {}", gradient[i]);
        }
    }
}
