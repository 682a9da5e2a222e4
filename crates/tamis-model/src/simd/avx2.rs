//! The register tile in AVX2 and FMA: up to 6 x 16 outputs in twelve registers.
#![expect(
    clippy::needless_range_loop,
    reason = "arrays of registers are indexed by constants, which unrolls them"
)]

use std::arch::x86_64::{
    __m256, _MM_HINT_T1, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_max_ps, _mm_max_ss, _mm_movehdup_ps,
    _mm_movehl_ps, _mm_prefetch, _mm256_add_epi32, _mm256_add_ps, _mm256_blendv_ps, _mm256_broadcast_ss,
    _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cmpgt_epi32, _mm256_extractf128_ps, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_max_ps, _mm256_permute2f128_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setr_epi32, _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_storeu_ps, _mm256_unpackhi_ps,
    _mm256_unpacklo_ps,
};

use super::lanes::Lanes;
use super::{Arithmetic, PANEL, Tile};

/// Arithmetic with AVX2 and FMA, for code that is compiled for them.
pub(crate) struct Avx2;

#[allow(clippy::inline_always, reason = "must become instructions of the caller's CPU feature")]
impl Arithmetic for Avx2 {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn sum(lanes: &Lanes) -> f32 {
        // SAFETY: only kernels compiled for AVX2 are written over this.
        unsafe {
            sum_halves(_mm256_add_ps(_mm256_loadu_ps(lanes.as_ptr()), _mm256_loadu_ps(lanes.as_ptr().add(8))))
        }
    }

    #[inline(always)]
    fn greatest(lanes: &Lanes) -> f32 {
        // SAFETY: as above.
        unsafe {
            greatest_of_halves(_mm256_max_ps(
                _mm256_loadu_ps(lanes.as_ptr()),
                _mm256_loadu_ps(lanes.as_ptr().add(8)),
            ))
        }
    }

    #[inline(always)]
    fn first(lanes: &Lanes, count: usize, fill: f32) -> Lanes {
        let mut out = [fill; PANEL];
        // SAFETY: as above.
        unsafe {
            for half in [0, 8] {
                let place =
                    _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(half));
                let mask = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), place));
                let values = _mm256_loadu_ps(lanes.as_ptr().add(half as usize));
                let values = _mm256_blendv_ps(_mm256_set1_ps(fill), values, mask);
                _mm256_storeu_ps(out.as_mut_ptr().add(half as usize), values);
            }
        }
        out
    }
}

/// Finishes a sum over lanes, after the two halves were added.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_halves(half: __m256) -> f32 {
    let quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
    let pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn greatest_of_halves(half: __m256) -> f32 {
    let quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
    let pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
}

/// # Safety
/// As [`super::transpose`], which checks the bounds.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn transpose(source: *const f32, stride: usize, out: *mut f32) {
    for (row, column) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
        // SAFETY: the caller vouches for sixteen rows of sixteen values on both sides.
        unsafe {
            let mut rows = [_mm256_setzero_ps(); 8];
            for i in 0..8 {
                rows[i] = _mm256_loadu_ps(source.add((row + i) * stride + column));
            }
            // Pairs of values, then quadruples, of the columns j and j + 4.
            let mut pairs = rows;
            for i in (0..8).step_by(2) {
                pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
                pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
            }
            let mut quadruples = rows;
            for i in [0, 1, 4, 5] {
                let to = i / 4 * 4 + i % 2 * 2;
                quadruples[to] = _mm256_shuffle_ps::<0x44>(pairs[i], pairs[i + 2]);
                quadruples[to + 1] = _mm256_shuffle_ps::<0xee>(pairs[i], pairs[i + 2]);
            }
            for j in 0..4 {
                let (low, high) = (quadruples[j], quadruples[j + 4]);
                let out = out.add((column + j) * PANEL + row);
                _mm256_storeu_ps(out, _mm256_permute2f128_ps::<0x20>(low, high));
                _mm256_storeu_ps(out.add(4 * PANEL), _mm256_permute2f128_ps::<0x31>(low, high));
            }
        }
    }
}

/// # Safety
/// As [`super::tile`].
pub(super) unsafe fn tile(rows: usize, panels: usize, tile: &Tile) {
    // SAFETY: handed on to the caller.
    unsafe {
        match (rows, panels) {
            (6, 1) => kernel::<6, 1>(tile),
            (5, 1) => kernel::<5, 1>(tile),
            (4, 1) => kernel::<4, 1>(tile),
            (3, 1) => kernel::<3, 1>(tile),
            (2, 2) => kernel::<2, 2>(tile),
            (2, 1) => kernel::<2, 1>(tile),
            (1, 4) => kernel::<1, 4>(tile),
            (1, 3) => kernel::<1, 3>(tile),
            (1, 2) => kernel::<1, 2>(tile),
            (1, 1) => kernel::<1, 1>(tile),
            _ => unreachable!("no AVX2 tile of {rows} rows and {panels} panels"),
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn kernel<const ROWS: usize, const PANELS: usize>(tile: &Tile) {
    // SAFETY: the caller vouches for every address (see `super::tile`).
    unsafe {
        let mut sums = [[[_mm256_setzero_ps(); 2]; PANELS]; ROWS];
        if tile.accumulate {
            for i in 0..ROWS {
                for p in 0..PANELS {
                    let c = tile.c.add(i * tile.c_row + p * tile.c_panel);
                    sums[i][p] = [_mm256_loadu_ps(c), _mm256_loadu_ps(c.add(8))];
                }
            }
        }
        let (mut a, mut b) = (tile.a, tile.b);
        let mut left = tile.k;
        // The common layout in steps of four, with constant offsets from few pointers.
        if tile.a_col == 1 && tile.b_row == PANEL {
            while left >= 4 {
                for k in 0..4 {
                    _mm_prefetch::<_MM_HINT_T1>(b.wrapping_add(tile.ahead + k * PANEL).cast());
                    step::<ROWS, PANELS>(&mut sums, a.add(k), tile.a_row, b.add(k * PANEL), tile.b_panel);
                }
                a = a.wrapping_add(4);
                b = b.wrapping_add(4 * PANEL);
                left -= 4;
            }
        }
        while left > 0 {
            step::<ROWS, PANELS>(&mut sums, a, tile.a_row, b, tile.b_panel);
            a = a.wrapping_add(tile.a_col);
            b = b.wrapping_add(tile.b_row);
            left -= 1;
        }
        for i in 0..ROWS {
            for p in 0..PANELS {
                let c = tile.c.add(i * tile.c_row + p * tile.c_panel);
                _mm256_storeu_ps(c, sums[i][p][0]);
                _mm256_storeu_ps(c.add(PANEL / 2), sums[i][p][1]);
            }
        }
    }
}

/// One k: a column of A times a row of B.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn step<const ROWS: usize, const PANELS: usize>(
    sums: &mut [[[__m256; 2]; PANELS]; ROWS],
    a: *const f32,
    a_row: usize,
    b: *const f32,
    b_panel: usize,
) {
    // SAFETY: as `kernel`.
    unsafe {
        let mut columns: [[__m256; 2]; PANELS] = [[_mm256_setzero_ps(); 2]; PANELS];
        for p in 0..PANELS {
            let b = b.add(p * b_panel);
            columns[p] = [_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8))];
        }
        for i in 0..ROWS {
            let row = _mm256_broadcast_ss(&*a.add(i * a_row));
            for p in 0..PANELS {
                sums[i][p][0] = _mm256_fmadd_ps(row, columns[p][0], sums[i][p][0]);
                sums[i][p][1] = _mm256_fmadd_ps(row, columns[p][1], sums[i][p][1]);
            }
        }
    }
}
