//! The register tile in AVX2 and FMA: up to 6 x 16 outputs in twelve registers.
#![expect(
    clippy::needless_range_loop,
    reason = "arrays of registers are indexed by constants, which unrolls them"
)]

use std::arch::x86_64::{
    __m256, _mm256_broadcast_ss, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};

use super::{PANEL, Tile};

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
        // The common layout in steps of four, so that addresses are constants off a few pointers.
        if tile.a_col == 1 && tile.b_row == PANEL {
            while left >= 4 {
                for k in 0..4 {
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
