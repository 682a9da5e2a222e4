//! The two precisions that tokens are computed in, as one set of operations: every loop over tokens is written once for both.

#![expect(clippy::inline_always, reason = "loops over tokens vectorise only where their bodies are inlined")]

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Range, Sub};

use super::ObjectiveError;
use super::columns::Columns;
use super::evaluate::{Destination, Settings};
use super::loss::kernel::{Blocks, Scratch};

/// A floating-point number with what the loops over tokens need of it. Outside this crate it is known as
/// [`Real`](super::Real).
pub trait Precision:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Into<f64>
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Positive infinity.
    const INFINITY: Self;
    /// Negative infinity.
    const NEG_INFINITY: Self;

    /// The exponential of this and of anything below is 0.
    const LOWEST: Self;
    /// The largest number whose exponential is reliably finite.
    const LARGEST: Self;
    /// The exponential of this and of anything above is infinite.
    const HIGHEST: Self;
    /// Up to here, just below ln 2 / 2, the exponential needs no reduction: it would leave the number as it is and a scale of 1.
    const REDUCED: Self;
    /// log2(e).
    const LOG2_E: Self;
    /// 1.5 times two to the number of mantissa bits: adding it rounds to the nearest integer and leaves that in the low bits.
    const SHIFT: Self;
    /// The upper bits of ln 2, so few that its products with the integers that occur are exact.
    const LN_2_HIGH: Self;
    /// What is left of ln 2.
    const LN_2_LOW: Self;

    /// The nearest number of this precision.
    fn of(value: f64) -> Self;

    /// Without its sign.
    #[must_use]
    fn absolute(self) -> Self;

    /// 2 to the integer that adding [`Self::SHIFT`] has left in the low bits; 0 and infinity at the two ends.
    #[must_use]
    fn power_of_two(self) -> Self;

    /// `(e^r - 1 - r) / r²` for |r| of at most ln 2 / 2.
    #[must_use]
    fn second_order(self) -> Self;

    /// The block arrays of this precision.
    #[doc(hidden)]
    #[expect(
        private_interfaces,
        reason = "the trait is sealed by its private module; only this crate calls it"
    )]
    fn blocks(scratch: &mut Scratch) -> &mut Blocks<Self>;

    /// Evaluates some trajectories: not generic, so that the loops are compiled once, with this crate.
    ///
    /// # Errors
    /// What only the trajectory can tell.
    #[doc(hidden)]
    #[expect(
        private_interfaces,
        reason = "the trait is sealed by its private module; only this crate calls it"
    )]
    fn rows(
        settings: &Settings<'_>,
        columns: &Columns<'_, Self>,
        rows: Range<usize>,
        into: Destination<'_, Self>,
    ) -> Result<(), ObjectiveError>;
}

/// Minimax polynomials of [`Precision::second_order`], from the constant term upwards: relative error of the exponential 3.6e-18 (degree
/// 9) and 3.6e-9 (degree 4), so that rounding is all that is left.
const DOUBLE: [f64; 10] = [
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
const SINGLE: [f32; 5] = [
    f32::from_bits(0x3eff_fffe),
    f32::from_bits(0x3e2a_aa49),
    f32::from_bits(0x3d2a_ac79),
    f32::from_bits(0x3c09_1d10),
    f32::from_bits(0x3ab5_11e8),
];

impl Precision for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const INFINITY: Self = f64::INFINITY;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;
    const LOWEST: Self = -709.0;
    const LARGEST: Self = 709.4;
    const HIGHEST: Self = 709.5;
    const REDUCED: Self = 0.3465;
    const LOG2_E: Self = std::f64::consts::LOG2_E;
    const SHIFT: Self = 6_755_399_441_055_744.0;
    // 33 bits: exact for integers below 2048.
    const LN_2_HIGH: Self = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN_2_LOW: Self = f64::from_bits(0x3dea_39ef_3579_3c76);

    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn absolute(self) -> Self {
        self.abs()
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        f64::from_bits(self.to_bits().wrapping_add(1023) << 52)
    }

    #[inline(always)]
    fn second_order(self) -> Self {
        // Estrin's scheme: short dependency chains.
        let (r, q) = (self, DOUBLE);
        let r2 = r * r;
        let r4 = r2 * r2;
        let low = (q[0] + q[1] * r) + (q[2] + q[3] * r) * r2;
        let high = (q[4] + q[5] * r) + (q[6] + q[7] * r) * r2;
        low + (high + (q[8] + q[9] * r) * r4) * r4
    }

    #[expect(
        private_interfaces,
        reason = "the trait is sealed by its private module; only this crate calls it"
    )]
    fn blocks(scratch: &mut Scratch) -> &mut Blocks<Self> {
        &mut scratch.double
    }

    #[expect(
        private_interfaces,
        reason = "the trait is sealed by its private module; only this crate calls it"
    )]
    fn rows(
        settings: &Settings<'_>,
        columns: &Columns<'_, Self>,
        rows: Range<usize>,
        into: Destination<'_, Self>,
    ) -> Result<(), ObjectiveError> {
        settings.rows(columns, rows, into)
    }
}

impl Precision for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const INFINITY: Self = f32::INFINITY;
    const NEG_INFINITY: Self = f32::NEG_INFINITY;
    const LOWEST: Self = -88.0;
    const LARGEST: Self = 88.3;
    const HIGHEST: Self = 88.8;
    const REDUCED: Self = 0.3465;
    const LOG2_E: Self = std::f32::consts::LOG2_E;
    const SHIFT: Self = 12_582_912.0;
    // 9 bits: exact for integers below 2^15.
    const LN_2_HIGH: Self = 355.0 / 512.0;
    const LN_2_LOW: Self = f32::from_bits(0xb95e_8083);

    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn absolute(self) -> Self {
        self.abs()
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        f32::from_bits(self.to_bits().wrapping_add(127) << 23)
    }

    #[inline(always)]
    fn second_order(self) -> Self {
        let (r, q) = (self, SINGLE);
        let r2 = r * r;
        (q[0] + q[1] * r) + ((q[2] + q[3] * r) + q[4] * r2) * r2
    }

    #[expect(
        private_interfaces,
        reason = "the trait is sealed by its private module; only this crate calls it"
    )]
    fn blocks(scratch: &mut Scratch) -> &mut Blocks<Self> {
        &mut scratch.single
    }

    #[expect(
        private_interfaces,
        reason = "the trait is sealed by its private module; only this crate calls it"
    )]
    fn rows(
        settings: &Settings<'_>,
        columns: &Columns<'_, Self>,
        rows: Range<usize>,
        into: Destination<'_, Self>,
    ) -> Result<(), ObjectiveError> {
        settings.rows(columns, rows, into)
    }
}
