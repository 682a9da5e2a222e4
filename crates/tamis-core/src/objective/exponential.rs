//! The exponential function in plain arithmetic: the same bits on every machine (a C library's differ between
//! versions and processors), and loops over tokens that call nothing.
//!
//! `x = n·ln 2 + r` with `|r| <= ln 2 / 2`; `e^r - 1 = r + r²·Q(r)` with a minimax polynomial Q whose error
//! is below rounding; the power of two goes into the exponent bits.

/// Below this, the exponential counts as 0.
pub(crate) const LOWEST: f64 = -709.0;
/// The largest number whose exponential is reliably finite.
pub(crate) const LARGEST: f64 = 709.4;
/// From this on, the exponential is infinite.
const HIGHEST: f64 = 709.5;
/// 1.5 · 2^52: adding it rounds to the nearest integer and leaves that in the low bits.
const SHIFT: f64 = 6_755_399_441_055_744.0;
/// The upper 33 bits of ln 2: products with integers below 2048 are exact.
const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
/// The rest of ln 2 beyond its high part.
const LN_2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
/// Minimax polynomial of `(e^r - 1 - r) / r²`, from the constant term upwards; relative error of the
/// exponential 3.6e-18.
const Q: [f64; 10] = [
    f64::from_bits(0x3fe0_0000_0000_000a),
    f64::from_bits(0x3fc5_5555_5555_554f),
    f64::from_bits(0x3fa5_5555_5555_087d),
    f64::from_bits(0x3f81_1111_1112_7bf3),
    f64::from_bits(0x3f56_c16c_1842_9f3f),
    f64::from_bits(0x3f2a_01a0_12a5_264a),
    f64::from_bits(0x3efa_0199_a0ca_d68a),
    f64::from_bits(0x3ec7_1df2_55ef_2651),
    f64::from_bits(0x3e92_8ad7_293d_d837),
    f64::from_bits(0x3e5a_d7f5_9f7d_fc9c),
];

/// `value` clamped to the bounds; NaN stays NaN.
#[inline]
pub(crate) fn clamp(value: f64, (low, high): (f64, f64)) -> f64 {
    let value = if value > high { high } else { value };
    if value < low { low } else { value }
}

/// `2^n` and `e^r - 1` for x between [`LOWEST`] and [`HIGHEST`], or NaN.
#[inline]
fn parts(x: f64) -> (f64, f64) {
    let shifted = x * std::f64::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let power = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    // Estrin's scheme: short dependency chains.
    let r2 = r * r;
    let r4 = r2 * r2;
    let low = (Q[0] + Q[1] * r) + (Q[2] + Q[3] * r) * r2;
    let high = (Q[4] + Q[5] * r) + (Q[6] + Q[7] * r) * r2;
    (power, r + r2 * (low + (high + (Q[8] + Q[9] * r) * r4) * r4))
}

/// `e^x` to 1.5 units in the last place up to [`LARGEST`]; 0 if it would be subnormal or less; infinite from
/// 709.5 on and perhaps slightly before; NaN for NaN.
#[inline]
pub(crate) fn exp(x: f64) -> f64 {
    let (power, growth) = parts(clamp(x, (LOWEST, HIGHEST)));
    (1.0 + growth) * power
}

/// `e^x - 1` without cancellation near 0, to 4 units in the last place; above [`LARGEST`] as [`exp`]; NaN for
/// NaN.
#[inline]
pub(crate) fn exp_m1(x: f64) -> f64 {
    let (power, growth) = parts(clamp(x, (LOWEST, LARGEST)));
    power * growth + (power - 1.0)
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

    #[test]
    fn it_is_the_exponential() {
        let key = Key::new(7, Purpose::Bootstrap);
        let (mut worst, mut worst_m1) = (0_f64, 0_f64);
        // Points of every size: from 1e-17 to the bounds, both signs.
        for i in 0..200_000 {
            let size = 10_f64.powf(-17.0 + 19.85 * key.uniform(2 * i));
            let x = if key.uniform(2 * i + 1) < 0.5 { size.min(709.4) } else { -size.min(708.0) };
            worst = worst.max(ulps(exp(x), x.exp()));
            if x < 709.0 {
                worst_m1 = worst_m1.max(ulps(exp_m1(x), x.exp_m1()));
            }
        }
        // The library's own result is rounded as well, so the difference is in whole units.
        assert!(worst <= 2.0, "{worst}");
        assert!(worst_m1 <= 5.0, "{worst_m1}");
    }

    #[test]
    fn what_is_exact_stays_exact() {
        assert_eq!(exp(0.0).to_bits(), 1_f64.to_bits());
        assert_eq!(exp(-0.0).to_bits(), 1_f64.to_bits());
        assert_eq!(exp_m1(0.0).to_bits(), 0_f64.to_bits());
        assert_eq!(exp(f64::NEG_INFINITY).to_bits(), 0_f64.to_bits());
        assert_eq!(exp(-1e300).to_bits(), 0_f64.to_bits());
        assert!(exp(f64::INFINITY).is_infinite() && exp(710.0).is_infinite() && exp(1e300).is_infinite());
        assert_eq!(exp_m1(f64::NEG_INFINITY).to_bits(), (-1_f64).to_bits());
        assert!(exp(f64::NAN).is_nan() && exp_m1(f64::NAN).is_nan());
        assert!(exp(709.4).is_finite() && exp_m1(f64::INFINITY).is_finite());
    }
}
