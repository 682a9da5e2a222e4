//! The register tile in plain Rust, for machines without AVX2: up to 4 x 16 outputs (four NEON registers a
//! row).

use super::{Arithmetic, PANEL, Portable, Tile};

/// # Safety
/// As [`super::tile`].
pub(super) unsafe fn tile(rows: usize, panels: usize, tile: &Tile) {
    for p in 0..panels {
        // SAFETY: handed on to the caller; panel `p` is one of the `panels`.
        unsafe {
            let tile = Tile { b: tile.b.add(p * tile.b_panel), c: tile.c.add(p * tile.c_panel), ..*tile };
            match rows {
                4 => kernel::<4>(&tile),
                3 => kernel::<3>(&tile),
                2 => kernel::<2>(&tile),
                1 => kernel::<1>(&tile),
                _ => unreachable!("no portable tile of {rows} rows"),
            }
        }
    }
}

unsafe fn kernel<const ROWS: usize>(tile: &Tile) {
    // SAFETY: the caller vouches for every address (see `super::tile`).
    unsafe {
        let mut sums = [[0.0f32; PANEL]; ROWS];
        if tile.accumulate {
            for (i, row) in sums.iter_mut().enumerate() {
                *row = tile.c.add(i * tile.c_row).cast::<[f32; PANEL]>().read();
            }
        }
        let (mut a, mut b) = (tile.a, tile.b);
        for _ in 0..tile.k {
            let column = b.cast::<[f32; PANEL]>().read();
            for (i, row) in sums.iter_mut().enumerate() {
                let factor = *a.add(i * tile.a_row);
                for (sum, &value) in row.iter_mut().zip(&column) {
                    *sum = Portable::fma(factor, value, *sum);
                }
            }
            a = a.wrapping_add(tile.a_col);
            b = b.wrapping_add(tile.b_row);
        }
        for (i, row) in sums.iter().enumerate() {
            tile.c.add(i * tile.c_row).cast::<[f32; PANEL]>().write(*row);
        }
    }
}
