//! SIMD levels, chosen at run time: the register tile of the matrix product, and `multiversion!` for
//! element-wise row kernels.
//!
//! Every output element of [`tile`] is one chain `c = fma(a[i][k], b[k][j], c)` over k in ascending order. So
//! a result cannot depend on the number of rows or columns, on how they are cut into tiles, or on the vector
//! width: AVX2 and AVX-512 agree bit for bit. The portable level multiplies and adds with two roundings (an
//! FMA without the instruction is a library call).
#![expect(
    unsafe_code,
    reason = "intrinsics on raw pointers; calls of functions compiled for a detected CPU feature"
)]

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod lanes;
mod portable;

use self::lanes::Lanes;

/// Columns of a panel: one AVX-512 register, two AVX2 registers, one cache line.
pub(crate) const PANEL: usize = 16;

/// Instruction sets, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimdLevel {
    /// Plain Rust. On aarch64 it has the fused multiply-add of every such CPU, on other machines it has none.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F and VL.
    Avx512,
}

impl SimdLevel {
    /// The best level of this machine.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// The levels that this machine supports.
    pub fn available() -> impl Iterator<Item = Self> {
        [Self::Portable, Self::Avx2, Self::Avx512].into_iter().filter(|&level| level <= Self::detect())
    }

    pub(crate) fn tile_rows(self) -> usize {
        match self {
            Self::Portable => 4,
            Self::Avx2 => 6,
            Self::Avx512 => 12,
        }
    }

    /// Panels that a tile of so many rows takes at once, so that enough chains are in flight.
    pub(crate) fn tile_panels(self, rows: usize) -> usize {
        match (self, rows) {
            (Self::Avx512, 1) => 8,
            (Self::Avx512, 2..=6) | (Self::Avx2, 1) => 4,
            (Self::Avx512, _) | (Self::Avx2, 2) => 2,
            _ => 1,
        }
    }
}

/// Arithmetic at a level; row kernels are written once over it. The compiler turns loops over lanes into the
/// level's instructions, but does so badly for sums over lanes and for masked lanes. For these there are
/// methods here.
///
/// The implementations use instructions of their level. Only [`multiversion!`] names them, in code that is
/// compiled for that level.
pub(crate) trait Arithmetic {
    /// `a * b + c`, fused if the level has the instruction.
    fn fma(a: f32, b: f32, c: f32) -> f32;

    /// Sum of the lanes, in the order of [`lanes::tree`].
    fn sum(lanes: &Lanes) -> f32;

    /// The greatest lane. No lane may be NaN. Of zeros with different signs, either may be returned.
    fn greatest(lanes: &Lanes) -> f32;

    /// The first `count` lanes, `fill` in the others.
    fn first(lanes: &Lanes, count: usize, fill: f32) -> Lanes;
}

/// Plain Rust, with two roundings except on aarch64.
pub(crate) struct Portable;

impl Arithmetic for Portable {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must become an instruction of the caller's CPU feature")]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        if cfg!(target_arch = "aarch64") { a.mul_add(b, c) } else { a * b + c }
    }

    fn sum(lanes: &Lanes) -> f32 {
        lanes::tree(lanes)
    }

    fn greatest(lanes: &Lanes) -> f32 {
        lanes.iter().fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max })
    }

    fn first(lanes: &Lanes, count: usize, fill: f32) -> Lanes {
        std::array::from_fn(|i| if i < count { lanes[i] } else { fill })
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Length of the chains.
    pub k: usize,
    /// Element (i, k) of A at `a + i * a_row + k * a_col`.
    pub a: *const f32,
    pub a_row: usize,
    pub a_col: usize,
    /// Element (k, j) of B at `b + (j / 16) * b_panel + k * b_row + j % 16`.
    pub b: *const f32,
    pub b_row: usize,
    pub b_panel: usize,
    /// Distance in values from `b` to a panel that a later tile reads; 0 for none. Its `k` lines are
    /// prefetched into the second-level cache while this tile computes, which hides the time to read weights
    /// beyond the caches: 64 x 1536 x 576 by 40 matrices in turn, one core of a Sapphire Rapids, 121 Gflop/s
    /// without and 139 with it (AVX2 there: 66 and 72).
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "the portable tile leaves fetching to the processor")
    )]
    pub ahead: usize,
    /// Element (i, j) of C at `c + i * c_row + j / 16 * c_panel + j % 16`.
    pub c: *mut f32,
    pub c_row: usize,
    pub c_panel: usize,
    /// Whether chains begin at the values in C, otherwise at zero.
    pub accumulate: bool,
}

/// Computes `rows` × (`panels` · 16) outputs.
///
/// # Safety
/// Every address that [`Tile`] describes for these sizes is valid, C's for writing and not aliased; this
/// machine has `level`; `rows` and `panels` are a pair of [`SimdLevel::tile_rows`] and
/// [`SimdLevel::tile_panels`], or fewer panels.
#[inline]
pub(crate) unsafe fn tile(level: SimdLevel, rows: usize, panels: usize, tile: &Tile) {
    // SAFETY: handed on to the caller.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512 => avx512::tile(rows, panels, tile),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => avx2::tile(rows, panels, tile),
            _ => portable::tile(rows, panels, tile),
        }
    }
}

/// Sixteen rows of sixteen values (`stride` apart, at least 16) into sixteen columns:
/// `out[j * 16 + i] = source[i * stride + j]`.
#[inline]
pub(crate) fn transpose(level: SimdLevel, source: &[f32], stride: usize, out: &mut [f32]) {
    assert!(
        stride >= PANEL && source.len() >= (PANEL - 1) * stride + PANEL,
        "the source has fewer than 16 rows of 16 values"
    );
    assert!(out.len() >= PANEL * PANEL, "the output has fewer than 16 rows of 16 values");
    match level {
        // SAFETY: the level was detected before it was handed out, and the bounds are checked above.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => unsafe { avx512::transpose(source.as_ptr(), stride, out.as_mut_ptr()) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => unsafe { avx2::transpose(source.as_ptr(), stride, out.as_mut_ptr()) },
        _ => {
            for (i, row) in source.chunks(stride).take(PANEL).enumerate() {
                for (j, &value) in row[..PANEL].iter().enumerate() {
                    out[j * PANEL + i] = value;
                }
            }
        }
    }
}

/// Products of one row each that a call of [`tile_apart`] takes, and panels of each.
pub(crate) const APART: usize = 4;

/// Computes `panels` · 16 outputs of each of `rows` products, as single chains like those of [`tile`]. Row i
/// of A is multiplied by the matrix that begins `apart` values after that of row i - 1.
///
/// # Safety
/// As [`tile`], with valid addresses of B for each of the matrices; `rows` and `panels` are 1 to [`APART`].
pub(crate) unsafe fn tile_apart(level: SimdLevel, rows: usize, panels: usize, apart: usize, at: &Tile) {
    // SAFETY: handed on to the caller.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if level == SimdLevel::Avx512 {
            return avx512::tile_apart(rows, panels, apart, at);
        }
        for row in 0..rows {
            let one = Tile {
                a: at.a.add(row * at.a_row),
                b: at.b.add(row * apart),
                c: at.c.add(row * at.c_row),
                ..*at
            };
            let step = level.tile_panels(1);
            for first in (0..panels).step_by(step) {
                let part =
                    Tile { b: one.b.add(first * one.b_panel), c: one.c.add(first * one.c_panel), ..one };
                tile(level, 1, step.min(panels - first), &part);
            }
        }
    }
}

/// Defines a function once and compiles it for each level; inside, `F` is the level's [`Arithmetic`].
macro_rules! multiversion {
    ($(#[$meta:meta])* fn $name:ident<$f:ident>($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$meta])*
        #[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "the level was detected before it was handed out"))]
        #[allow(clippy::too_many_arguments, reason = "kernels take slices and sizes")]
        pub(crate) fn $name(level: $crate::simd::SimdLevel, $($arg: $type),*) $(-> $result)? {
            #[inline(always)]
            #[allow(clippy::inline_always, reason = "compiled for the caller's CPU feature")]
            #[allow(clippy::too_many_arguments, reason = "kernels take slices and sizes")]
            fn body<$f: $crate::simd::Arithmetic>($($arg: $type),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments, reason = "kernels take slices and sizes")]
            fn avx2($($arg: $type),*) $(-> $result)? { body::<$crate::simd::avx2::Avx2>($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512vl")]
            #[allow(clippy::too_many_arguments, reason = "kernels take slices and sizes")]
            fn avx512($($arg: $type),*) $(-> $result)? { body::<$crate::simd::avx512::Avx512>($($arg),*) }
            match level {
                // SAFETY: levels come from `SimdLevel::detect`, lowered at most.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::SimdLevel::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::SimdLevel::Avx2 => unsafe { avx2($($arg),*) },
                _ => body::<$crate::simd::Portable>($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;
