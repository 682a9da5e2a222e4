//! Arithmetic on rows in a fixed order: sixteen lanes by position modulo sixteen, summed in one tree.
//!
//! The order does not depend on the SIMD width, on neighbours or on padding, so a row's result depends only
//! on the row.

use super::Arithmetic;

/// Number of lanes of a partial sum.
pub(crate) const LANES: usize = 16;

/// One lane for each position modulo sixteen.
pub(crate) type Lanes = [f32; LANES];

/// Sum of the lanes, as a tree.
#[inline(always)]
#[allow(clippy::inline_always, reason = "compiled for the caller's CPU feature")]
pub(crate) fn tree(lanes: &Lanes) -> f32 {
    let mut half = [0.0f32; 8];
    for i in 0..8 {
        half[i] = lanes[i] + lanes[i + 8];
    }
    let mut quarter = [0.0f32; 4];
    for i in 0..4 {
        quarter[i] = half[i] + half[i + 4];
    }
    (quarter[0] + quarter[2]) + (quarter[1] + quarter[3])
}

/// The last, incomplete chunk of a row with `fill` in the missing places.
#[inline(always)]
#[allow(clippy::inline_always, reason = "compiled for the caller's CPU feature")]
pub(crate) fn pad(tail: &[f32], fill: f32) -> Lanes {
    let mut lanes = [fill; LANES];
    lanes[..tail.len()].copy_from_slice(tail);
    lanes
}

/// Dot product of two rows of equal length.
#[inline(always)]
#[allow(clippy::inline_always, reason = "compiled for the caller's CPU feature")]
pub(crate) fn dot<F: Arithmetic>(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (chunks, tail) = left.as_chunks::<LANES>();
    let (others, other_tail) = right.as_chunks::<LANES>();
    for (a, b) in chunks.iter().zip(others) {
        for i in 0..LANES {
            sums[i] = F::fma(a[i], b[i], sums[i]);
        }
    }
    if !tail.is_empty() {
        let (a, b) = (pad(tail, 0.0), pad(other_tail, 0.0));
        for i in 0..LANES {
            sums[i] = F::fma(a[i], b[i], sums[i]);
        }
    }
    F::sum(&sums)
}

/// `e^x` to about 1e-7 relative: 2^n times a polynomial in the remainder (coefficients of Cephes' `expf`).
/// Exactly 0 below -87, at most e^88; NaN stays NaN.
#[inline(always)]
#[allow(clippy::inline_always, reason = "compiled for the caller's CPU feature")]
pub(crate) fn exp<F: Arithmetic>(x: f32) -> f32 {
    /// 1.5 * 2^23: adding it rounds to a whole number, left in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let low = if x < -87.0 { -87.0 } else { x };
    let bounded = if low > 88.0 { 88.0 } else { low };
    let shifted = F::fma(bounded, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts, the first exact in few bits.
    let r = F::fma(n, -0.693_359_4, bounded);
    let r = F::fma(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
        p = F::fma(p, r, coefficient);
    }
    let value = F::fma(p, r * r, r) + 1.0;
    let power = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    let result = value * f32::from_bits(power);
    if x < -87.0 { 0.0 } else { result }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "what must be exact is compared exactly")]
mod tests {
    use super::*;
    use crate::simd::{Portable, SimdLevel, multiversion};

    multiversion! {
        fn exp_all<F>(values: &mut [f32]) {
            for value in values {
                *value = exp::<F>(*value);
            }
        }
    }

    #[test]
    fn exp_is_accurate_at_every_level() {
        for level in SimdLevel::available() {
            let inputs: Vec<f32> = (-86_000..80_000).map(|i| i as f32 * 1e-3).collect();
            let mut outputs = inputs.clone();
            exp_all(level, &mut outputs);
            let worst = inputs
                .iter()
                .zip(&outputs)
                .map(|(&x, &y)| (f64::from(y) / f64::from(x).exp() - 1.0).abs())
                .fold(0.0, f64::max);
            assert!(worst < 1.5e-7, "{level:?}: {worst:e}");
        }
        assert_eq!(exp::<Portable>(0.0), 1.0);
        assert_eq!(exp::<Portable>(-87.5), 0.0);
        assert_eq!(exp::<Portable>(f32::NEG_INFINITY), 0.0);
        assert!(exp::<Portable>(1e9).is_finite());
        assert!(exp::<Portable>(f32::NAN).is_nan());
    }

    multiversion! {
        fn reduce<F>(lanes: &Lanes, count: usize) -> (f32, f32, Lanes) {
            (F::sum(lanes), F::greatest(lanes), F::first(lanes, count, f32::NEG_INFINITY))
        }
    }

    #[test]
    fn reductions_are_the_same_bits_at_every_level() {
        for shift in 0..LANES {
            let mut lanes: Lanes = std::array::from_fn(|i| ((i + shift) as f32 * 2.3).sin() * 1e3);
            lanes[shift / 2] = f32::NEG_INFINITY;
            let finite = lanes.map(|x| x.max(-1e6));
            for count in 0..=LANES {
                let (expected, all) =
                    (reduce(SimdLevel::Portable, &lanes, count), reduce(SimdLevel::Portable, &finite, count));
                assert_eq!(expected.2, pad(&lanes[..count], f32::NEG_INFINITY));
                for level in SimdLevel::available() {
                    assert_eq!(reduce(level, &lanes, count), expected, "{level:?}");
                    let found = reduce(level, &finite, count);
                    assert_eq!(
                        (found.0.to_bits(), found.1.to_bits()),
                        (all.0.to_bits(), all.1.to_bits()),
                        "{level:?}"
                    );
                    assert_eq!(found.2.map(f32::to_bits), all.2.map(f32::to_bits), "{level:?}");
                }
            }
        }
    }

    #[test]
    fn dot_by_hand() {
        let a: Vec<f32> = (1..=19).map(|i| i as f32).collect();
        assert_eq!(dot::<Portable>(&a, &a), 2470.0);
        assert_eq!(dot::<Portable>(&[], &[]), 0.0);
    }
}
