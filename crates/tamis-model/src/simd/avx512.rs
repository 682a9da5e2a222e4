//! The register tile in AVX-512: up to 12 x 32 outputs in 24 of the 32 registers, or fewer rows by more
//! panels. Two panels share each broadcast factor: 14 loads for 24 multiply-adds (one panel takes 13 for 12),
//! and A is read from the second-level cache half as often. (Sapphire Rapids, one core: training passes of a
//! model of 0.8 M weights go from 11,977 to 15,612 tokens a second. On operands in the first-level cache both
//! tiles reach the peak.)
#![expect(
    clippy::needless_range_loop,
    reason = "arrays of registers are indexed by constants, which unrolls them"
)]

use std::arch::x86_64::{
    __m256, __m512, _MM_HINT_T1, _mm_prefetch, _mm256_add_ps, _mm256_castpd_ps, _mm256_max_ps,
    _mm512_castps_pd, _mm512_castps512_ps256, _mm512_extractf64x4_pd, _mm512_fmadd_ps, _mm512_loadu_epi32,
    _mm512_loadu_ps, _mm512_mask_mov_ps, _mm512_permutex2var_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_storeu_ps,
};

use super::avx2::{greatest_of_halves, sum_halves};
use super::lanes::Lanes;
use super::{Arithmetic, PANEL, Tile};

/// Arithmetic with AVX-512, for code that is compiled for it.
pub(crate) struct Avx512;

#[allow(clippy::inline_always, reason = "must become instructions of the caller's CPU feature")]
impl Arithmetic for Avx512 {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn sum(lanes: &Lanes) -> f32 {
        // SAFETY: only kernels compiled for AVX-512 are written over this.
        unsafe {
            let [low, high] = halves(lanes);
            sum_halves(_mm256_add_ps(low, high))
        }
    }

    #[inline(always)]
    fn greatest(lanes: &Lanes) -> f32 {
        // SAFETY: as above.
        unsafe {
            let [low, high] = halves(lanes);
            greatest_of_halves(_mm256_max_ps(low, high))
        }
    }

    #[inline(always)]
    fn first(lanes: &Lanes, count: usize, fill: f32) -> Lanes {
        let mut out = [fill; PANEL];
        let mask = ((1u32 << count.min(PANEL)) - 1) as u16;
        // SAFETY: as above.
        unsafe {
            let values = _mm512_mask_mov_ps(_mm512_set1_ps(fill), mask, _mm512_loadu_ps(lanes.as_ptr()));
            _mm512_storeu_ps(out.as_mut_ptr(), values);
        }
        out
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn halves(lanes: &Lanes) -> [__m256; 2] {
    // SAFETY: the lanes are as many as a register holds.
    let all = unsafe { _mm512_loadu_ps(lanes.as_ptr()) };
    let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(all));
    [_mm512_castps512_ps256(all), _mm256_castpd_ps(high)]
}

/// Rows of A behind each pointer.
const GROUP: usize = 3;

/// Pointers of the tallest tile.
const GROUPS: usize = 12 / GROUP;

/// The lane indices that exchange halves of a pair of rows, for rows this far apart.
const EXCHANGES: [(usize, [[i32; PANEL]; 2]); 4] = [exchange(1), exchange(2), exchange(4), exchange(8)];

const fn exchange(apart: usize) -> (usize, [[i32; PANEL]; 2]) {
    let mut lanes = [[0; PANEL]; 2];
    let mut j = 0;
    while j < PANEL {
        // Lanes of the second row count from 16.
        let own = j & apart == 0;
        lanes[0][j] = (if own { j } else { PANEL + j - apart }) as i32;
        lanes[1][j] = (if own { j + apart } else { PANEL + j }) as i32;
        j += 1;
    }
    (apart, lanes)
}

/// # Safety
/// As [`super::transpose`], which checks the bounds.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn transpose(source: *const f32, stride: usize, out: *mut f32) {
    // SAFETY: the caller vouches for sixteen rows of sixteen values on both sides.
    unsafe {
        let mut rows = [_mm512_setzero_ps(); PANEL];
        for i in 0..PANEL {
            rows[i] = _mm512_loadu_ps(source.add(i * stride));
        }
        for (apart, [first, second]) in &EXCHANGES {
            let (first, second) = (_mm512_loadu_epi32(first.as_ptr()), _mm512_loadu_epi32(second.as_ptr()));
            for i in 0..PANEL {
                if i & apart == 0 {
                    let (a, b) = (rows[i], rows[i + apart]);
                    rows[i] = _mm512_permutex2var_ps(a, first, b);
                    rows[i + apart] = _mm512_permutex2var_ps(a, second, b);
                }
            }
        }
        for i in 0..PANEL {
            _mm512_storeu_ps(out.add(i * PANEL), rows[i]);
        }
    }
}

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

/// One row each of up to four products. Row i of A is multiplied by the matrix that begins `apart` values
/// after that of row i - 1.
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
        let mut b = tile.b;
        // One pointer for every third row; the compiler must not know that they are related. The two rows
        // after each are then reached by scaled indices. Otherwise the compiler would recompute all addresses
        // in each step, on the ports of the multiply-adds.
        let mut a: [*const f32; GROUPS] = std::array::from_fn(|group| {
            std::hint::black_box(tile.a.wrapping_add(group * GROUP * tile.a_row))
        });
        let mut left = tile.k;
        // The common layout in steps of four, with constant offsets from few pointers.
        if tile.a_col == 1 && tile.b_row == PANEL {
            while left >= 4 {
                for k in 0..4 {
                    _mm_prefetch::<_MM_HINT_T1>(b.wrapping_add(tile.ahead + k * PANEL).cast());
                    step::<ROWS, PANELS>(
                        &mut sums,
                        a.map(|a| a.wrapping_add(k)),
                        tile.a_row,
                        b.add(k * PANEL),
                        tile.b_panel,
                    );
                }
                a = a.map(|a| a.wrapping_add(4));
                b = b.wrapping_add(4 * PANEL);
                left -= 4;
            }
        }
        while left > 0 {
            step::<ROWS, PANELS>(&mut sums, a, tile.a_row, b, tile.b_panel);
            a = a.map(|a| a.wrapping_add(tile.a_col));
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
    a: [*const f32; GROUPS],
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
            let row = _mm512_set1_ps(*a[i / GROUP].add(i % GROUP * a_row));
            for p in 0..PANELS {
                sums[i][p] = _mm512_fmadd_ps(row, columns[p], sums[i][p]);
            }
        }
    }
}
