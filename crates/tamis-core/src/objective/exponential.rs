//! The exponential function as straight-line arithmetic, so that loops over tokens vectorise and every machine gives the same bits.
//!
//! `x = n·ln 2 + r` with `|r| <= ln 2 / 2`; `e^r - 1 = r + r²·Q(r)` with the minimax polynomial Q of degree 9 (relative error of the
//! result 3.6e-18, so rounding is all that is left); the power of two goes into the exponent bits. No fused multiply-add: a
//! processor that has it must not give other bits than one that has not.

#![expect(
    clippy::inline_always,
    reason = "loops over tokens vectorise only where their bodies are inlined and do not branch"
)]

/// Its exponential is 0.
pub(crate) const LOWEST: f64 = -709.0;
/// Its exponential is infinite.
pub(crate) const HIGHEST: f64 = 709.5;
/// 1.5·2^52: adding it rounds to the nearest integer and leaves that in the low bits.
const SHIFT: f64 = 6_755_399_441_055_744.0;
/// The upper 33 bits of ln 2, so that its products with |n| < 2048 are exact, and the rest.
const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN_2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
/// Q, from the constant term upwards.
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

/// `e^r - 1` and `2^n`; `x` within ±710.
#[inline(always)]
fn reduced(x: f64) -> (f64, f64) {
    let shifted = x * std::f64::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    // Estrin's scheme: short dependency chains.
    let r2 = r * r;
    let r4 = r2 * r2;
    let low = (Q[0] + Q[1] * r) + (Q[2] + Q[3] * r) * r2;
    let high = (Q[4] + Q[5] * r) + (Q[6] + Q[7] * r) * r2;
    let q = low + (high + (Q[8] + Q[9] * r) * r4) * r4;
    let scale = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    (r + r2 * q, scale)
}

/// `e^x` to 1.5 units in the last place between -708 and 709.4; 0 below, infinite above, NaN for NaN.
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    // Written so that NaN passes through; both bounds end in the exponents of 0 and infinity.
    let x = if x > HIGHEST { HIGHEST } else { x };
    exp_bounded(if x < LOWEST { LOWEST } else { x })
}

/// [`exp`] of what lies between [`LOWEST`] and [`HIGHEST`] or is NaN.
#[inline(always)]
pub(crate) fn exp_bounded(x: f64) -> f64 {
    let (growth, scale) = reduced(x);
    (1.0 + growth) * scale
}

/// `e^x - 1` without cancellation near 0, to 4 units in the last place; from 709 on `e^709`, NaN for NaN.
#[inline(always)]
pub(crate) fn exp_m1(x: f64) -> f64 {
    let x = if x > 709.0 { 709.0 } else { x };
    let x = if x < -709.0 { -709.0 } else { x };
    let (growth, scale) = reduced(x);
    scale * growth + (scale - 1.0)
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
