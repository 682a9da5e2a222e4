//! The register tile in AVX-512: up to 12 x 32 outputs in 24 of the 32 registers, or fewer rows by more panels.
//!
//! Two panels share each broadcast factor: 14 loads for 24 multiply-adds, where one panel takes 13 for 12, and A is read
//! from the second-level cache half as often. (Sapphire Rapids, one core: training passes of a model of 0.8 M weights
//! go from 11,977 to 15,612 tokens a second. On operands in the first-level cache both tiles reach the peak.)
#![expect(
    clippy::needless_range_loop,
    reason = "arrays of registers are indexed by constants, which unrolls them"
)]

use std::arch::x86_64::{
    __m512, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

use super::{PANEL, Tile};

/// # Safety
/// As [`super::tile`].
pub(super) unsafe fn tile(rows: usize, panels: usize, tile: &Tile) {
    macro_rules! dispatch {
        ($(($rows:literal, $panels:literal)),* $(,)?) => {
            match (rows, panels) {
                $(($rows, $panels) => kernel::<$rows, $panels>(tile),)*
                _ => unreachable!("no AVX-512 tile of {rows} rows and {panels} panels"),
            }
        };
    }
    // SAFETY: handed on to the caller.
    unsafe {
        dispatch!(
            (12, 2),
            (12, 1),
            (11, 2),
            (11, 1),
            (10, 2),
            (10, 1),
            (9, 2),
            (9, 1),
            (8, 2),
            (8, 1),
            (7, 2),
            (7, 1),
            (6, 4),
            (6, 3),
            (6, 2),
            (6, 1),
            (5, 4),
            (5, 3),
            (5, 2),
            (5, 1),
            (4, 4),
            (4, 3),
            (4, 2),
            (4, 1),
            (3, 4),
            (3, 3),
            (3, 2),
            (3, 1),
            (2, 4),
            (2, 3),
            (2, 2),
            (2, 1),
            (1, 8),
            (1, 7),
            (1, 6),
            (1, 5),
            (1, 4),
            (1, 3),
            (1, 2),
            (1, 1),
        );
    }
}

/// One row each of up to four products: row i of A by the matrix that begins `apart` values after that of row i - 1.
///
/// # Safety
/// As [`super::tile_apart`].
pub(super) unsafe fn tile_apart(rows: usize, panels: usize, apart: usize, tile: &Tile) {
    macro_rules! dispatch {
        ($(($rows:literal, $panels:literal)),* $(,)?) => {
            match (rows, panels) {
                $(($rows, $panels) => kernel_apart::<$rows, $panels>(tile, apart),)*
                _ => unreachable!("no AVX-512 tile of {rows} rows apart and {panels} panels"),
            }
        };
    }
    // SAFETY: handed on to the caller.
    unsafe {
        dispatch!(
            (4, 4),
            (4, 3),
            (4, 2),
            (4, 1),
            (3, 4),
            (3, 3),
            (3, 2),
            (3, 1),
            (2, 4),
            (2, 3),
            (2, 2),
            (2, 1),
            (1, 4),
            (1, 3),
            (1, 2),
            (1, 1),
        );
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn kernel_apart<const ROWS: usize, const PANELS: usize>(tile: &Tile, apart: usize) {
    // SAFETY: the caller vouches for every address (see `super::tile_apart`).
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); PANELS]; ROWS];
        if tile.accumulate {
            for i in 0..ROWS {
                for p in 0..PANELS {
                    sums[i][p] = _mm512_loadu_ps(tile.c.add(i * tile.c_row + p * tile.c_panel));
                }
            }
        }
        let (mut a, mut b) = (tile.a, tile.b);
        for _ in 0..tile.k {
            for i in 0..ROWS {
                let row = _mm512_set1_ps(*a.add(i * tile.a_row));
                for p in 0..PANELS {
                    let column = _mm512_loadu_ps(b.add(i * apart + p * tile.b_panel));
                    sums[i][p] = _mm512_fmadd_ps(row, column, sums[i][p]);
                }
            }
            a = a.wrapping_add(tile.a_col);
            b = b.wrapping_add(tile.b_row);
        }
        for i in 0..ROWS {
            for p in 0..PANELS {
                _mm512_storeu_ps(tile.c.add(i * tile.c_row + p * tile.c_panel), sums[i][p]);
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn kernel<const ROWS: usize, const PANELS: usize>(tile: &Tile) {
    // SAFETY: the caller vouches for every address (see `super::tile`).
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); PANELS]; ROWS];
        if tile.accumulate {
            for i in 0..ROWS {
                for p in 0..PANELS {
                    sums[i][p] = _mm512_loadu_ps(tile.c.add(i * tile.c_row + p * tile.c_panel));
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
                _mm512_storeu_ps(tile.c.add(i * tile.c_row + p * tile.c_panel), sums[i][p]);
            }
        }
    }
}

/// One k: a column of A times a row of B.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn step<const ROWS: usize, const PANELS: usize>(
    sums: &mut [[__m512; PANELS]; ROWS],
    a: *const f32,
    a_row: usize,
    b: *const f32,
    b_panel: usize,
) {
    // SAFETY: as `kernel`.
    unsafe {
        let mut columns: [__m512; PANELS] = [_mm512_setzero_ps(); PANELS];
        for p in 0..PANELS {
            columns[p] = _mm512_loadu_ps(b.add(p * b_panel));
        }
        for i in 0..ROWS {
            let row = _mm512_set1_ps(*a.add(i * a_row));
            for p in 0..PANELS {
                sums[i][p] = _mm512_fmadd_ps(row, columns[p], sums[i][p]);
            }
        }
    }
}
