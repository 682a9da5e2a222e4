//! Moments of truncated lognormal lengths.

/// Φ(x): the probability that a standard normal number is below x, to about 1e-15.
///
/// Series: Marsaglia, "Evaluating the normal distribution", Journal of Statistical Software 11(4), 2004.
pub(crate) fn normal_below(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() > 8.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    // Terms rise up to index x²/2 and fall fast after it.
    while term.abs() > 1e-17 * sum.abs() {
        odd += 2.0;
        term *= x * x / odd;
        sum += term;
    }
    let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    (0.5 + density * sum).clamp(0.0, 1.0)
}

/// A length `median` · exp(σ ε).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Lognormal {
    pub(crate) median: f64,
    pub(crate) sigma: f64,
}

impl Lognormal {
    /// P(L < bound).
    pub(crate) fn below(&self, bound: f64) -> f64 {
        self.part(bound, 0)
    }

    /// E[Lᵖ; L < bound], for a power p.
    pub(crate) fn part(&self, bound: f64, power: i32) -> f64 {
        let Self { median, sigma } = *self;
        let moment = median.powi(power);
        if sigma <= 0.0 {
            return if median < bound { moment } else { 0.0 };
        }
        let p = f64::from(power);
        let z = (bound / median).ln() / sigma;
        moment * (0.5 * p * p * sigma * sigma).exp() * normal_below(z - p * sigma)
    }

    /// E[max(L, 1)ᵖ; L < bound], for a power p.
    pub(crate) fn part_from_one(&self, bound: f64, power: i32) -> f64 {
        self.part(bound, power) - self.part(1.0, power) + self.part(1.0, 0)
    }
}

#[cfg(test)]
mod tests {
    use tamis_core::random::{Key, Purpose};

    use super::*;

    #[test]
    fn the_normal_distribution_has_its_known_values() {
        for (x, expected) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_542_9),
            (-1.96, 0.024_997_895_148_220_43),
            (3.0, 0.998_650_101_968_369_9),
            (-5.0, 2.866_515_718_791_939e-7),
            (f64::INFINITY, 1.0),
            (f64::NEG_INFINITY, 0.0),
        ] {
            assert!((normal_below(x) - expected).abs() < 1e-14, "{x}: {}", normal_below(x));
        }
    }

    #[test]
    fn moments_are_those_of_samples() {
        let law = Lognormal { median: 3.0, sigma: 1.2 };
        let key = Key::new(3, Purpose::Rollout);
        let lengths: Vec<f64> = (0..200_000).map(|i| 3.0 * (1.2 * key.normal(i)).exp()).collect();
        for (bound, power) in [(8.0, 0), (8.0, 1), (8.0, 2), (1e9, 1)] {
            let sum: f64 =
                lengths.iter().filter(|length| **length < bound).map(|l| l.max(1.0).powi(power)).sum();
            let found = sum / lengths.len() as f64;
            let expected = law.part_from_one(bound, power);
            assert!((found / expected - 1.0).abs() < 0.02, "{bound} {power}: {found} and {expected}");
        }
        let fixed = Lognormal { median: 3.0, sigma: 0.0 };
        assert_eq!((fixed.below(3.5), fixed.below(2.5), fixed.part(4.0, 1)), (1.0, 0.0, 3.0));
    }
}
