//! The exponential function as straight-line arithmetic, so that loops over tokens vectorise and every machine gives the same bits.
//!
//! `x = n·ln 2 + r` with `|r| <= ln 2 / 2`; `e^r - 1 = r + r²·Q(r)` with a minimax polynomial Q whose error is below rounding; the power
//! of two goes into the exponent bits. No fused multiply-add: a processor that has it must not give other bits than one that has not.

#![expect(
    clippy::inline_always,
    reason = "loops over tokens vectorise only where their bodies are inlined and do not branch"
)]

use super::precision::Precision;

/// `r` and `2^n`; `x` between [`Precision::LOWEST`] and [`Precision::HIGHEST`] or NaN, which `r` then is.
#[inline(always)]
pub(crate) fn reduced<F: Precision>(x: F) -> (F, F) {
    let shifted = x * F::LOG2_E + F::SHIFT;
    let n = shifted - F::SHIFT;
    ((x - n * F::LN_2_HIGH) - n * F::LN_2_LOW, shifted.power_of_two())
}

/// `e^r - 1` for what [`reduced`] leaves.
#[inline(always)]
fn growth<F: Precision>(r: F) -> F {
    r + r * r * r.second_order()
}

/// The exponential of what [`reduced`] has taken apart: in two loops, neither of which is one long chain, they take less time than in one.
#[inline(always)]
pub(crate) fn exp_reduced<F: Precision>(r: F, scale: F) -> F {
    (F::ONE + growth(r)) * scale
}

/// `e^x` to 1.5 units in the last place; 0 below [`Precision::LOWEST`], infinite from [`Precision::HIGHEST`] on, NaN for NaN.
#[inline(always)]
pub(crate) fn exp<F: Precision>(x: F) -> F {
    // Written so that NaN passes through; both bounds end in the exponents of 0 and infinity.
    let x = if x > F::HIGHEST { F::HIGHEST } else { x };
    let (r, scale) = reduced(if x < F::LOWEST { F::LOWEST } else { x });
    exp_reduced(r, scale)
}

/// `e^x - 1` without cancellation near 0, to 4 units in the last place; above [`Precision::LARGEST`] as there, NaN for NaN.
#[inline(always)]
pub(crate) fn exp_m1<F: Precision>(x: F) -> F {
    let (r, scale) = reduced(bounded(x));
    exp_m1_reduced(r, scale)
}

/// `x` within the bounds of [`exp_m1`].
#[inline(always)]
pub(crate) fn bounded<F: Precision>(x: F) -> F {
    let x = if x > F::LARGEST { F::LARGEST } else { x };
    if x < F::LOWEST { F::LOWEST } else { x }
}

/// [`exp_m1`] of what [`reduced`] has taken apart.
#[inline(always)]
pub(crate) fn exp_m1_reduced<F: Precision>(r: F, scale: F) -> F {
    scale * growth(r) + (scale - F::ONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Key, Purpose};

    /// Distance in units in the last place of `expected`.
    fn ulps(actual: f64, expected: f64) -> f64 {
        let step = f64::from_bits(expected.abs().to_bits() + 1) - expected.abs();
        (actual - expected).abs() / step
    }

    /// The same in single precision, against the double's own result.
    fn single_ulps(actual: f32, expected: f64) -> f64 {
        let nearest = (expected as f32).abs();
        let step = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
        (f64::from(actual) - expected).abs() / step
    }

    /// Points of every size: from 1e-17 to the bounds, both signs.
    fn points() -> impl Iterator<Item = f64> {
        let key = Key::new(7, Purpose::Bootstrap);
        (0..200_000).map(move |i| {
            let size = 10_f64.powf(-17.0 + 19.85 * key.uniform(2 * i));
            if key.uniform(2 * i + 1) < 0.5 { size.min(709.4) } else { -size.min(708.0) }
        })
    }

    #[test]
    fn it_is_the_exponential() {
        let (mut worst, mut worst_m1) = (0_f64, 0_f64);
        for x in points() {
            worst = worst.max(ulps(exp(x), x.exp()));
            if x < 709.0 {
                worst_m1 = worst_m1.max(ulps(exp_m1(x), x.exp_m1()));
            }
        }
        // The library's own result is rounded, too, so that whole units are between them.
        assert!(worst <= 2.0, "{worst}");
        assert!(worst_m1 <= 5.0, "{worst_m1}");
    }

    #[test]
    fn it_is_the_exponential_in_single_precision() {
        let (mut worst, mut worst_m1) = (0_f64, 0_f64);
        for x in points().map(|x| x as f32).filter(|x| (-86.0..=88.3).contains(x)) {
            worst = worst.max(single_ulps(exp(x), f64::from(x).exp()));
            worst_m1 = worst_m1.max(single_ulps(exp_m1(x), f64::from(x).exp_m1()));
        }
        assert!(worst <= 1.5, "{worst}");
        assert!(worst_m1 <= 4.0, "{worst_m1}");
    }

    #[test]
    fn small_numbers_need_no_reduction() {
        for x in points().chain([f64::REDUCED, -f64::REDUCED]).filter(|x| x.abs() <= f64::REDUCED) {
            assert_eq!(exp_reduced(x, 1.0).to_bits(), exp(x).to_bits(), "{x}");
            let x = x as f32;
            assert_eq!(exp_reduced(x, 1.0).to_bits(), exp(x).to_bits(), "{x}");
        }
    }

    #[test]
    fn what_is_exact_stays_exact_in_single_precision() {
        assert_eq!(exp(0.0_f32).to_bits(), 1_f32.to_bits());
        assert_eq!(exp_m1(0.0_f32).to_bits(), 0_f32.to_bits());
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0_f32.to_bits());
        assert_eq!(exp(-1e30_f32).to_bits(), 0_f32.to_bits());
        assert!(exp(f32::INFINITY).is_infinite() && exp(89_f32).is_infinite());
        assert!(exp(f32::NAN).is_nan() && exp_m1(f32::NAN).is_nan());
        assert!(exp(88.3_f32).is_finite() && exp_m1(f32::INFINITY).is_finite());
    }

    #[test]
    fn what_is_exact_stays_exact() {
        assert_eq!(exp(0.0_f64).to_bits(), 1_f64.to_bits());
        assert_eq!(exp(-0.0_f64).to_bits(), 1_f64.to_bits());
        assert_eq!(exp_m1(0.0_f64).to_bits(), 0_f64.to_bits());
        assert_eq!(exp(f64::NEG_INFINITY).to_bits(), 0_f64.to_bits());
        assert_eq!(exp(-1e300_f64).to_bits(), 0_f64.to_bits());
        assert!(
            exp(f64::INFINITY).is_infinite() && exp(710_f64).is_infinite() && exp(1e300_f64).is_infinite()
        );
        assert_eq!(exp_m1(f64::NEG_INFINITY).to_bits(), (-1_f64).to_bits());
        assert!(exp(f64::NAN).is_nan() && exp_m1(f64::NAN).is_nan());
        assert!(exp(709.4_f64).is_finite() && exp_m1(f64::INFINITY).is_finite());
    }
}
