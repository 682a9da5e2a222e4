//! The matrix product `C = A·B` (or `C += A·B`) over packed panels, on one or several threads.
//!
//! Each output is one chain of multiply-adds over k in ascending order (see [`crate::simd`]). Blocking over k
//! stores the chain's value in C between blocks, which is exact. So results are bit-identical for any number
//! of rows, any cut into tasks and any number of threads. That makes generation equal training, and gradients
//! independent of the thread count, by construction.
//!
//! Why not a library: a library picks kernels by shape, so a row's bits depend on the rows beside it, and all
//! rows would have to be padded onto one path. [`measure_product`] measures how close these products come to
//! the register tile's speed; `studies/speed.md` has the figures.
#![expect(unsafe_code, reason = "tasks write disjoint blocks of one output through a raw pointer")]

use std::sync::{Mutex, PoisonError};

use crate::floats::Floats;
use crate::panels;
use crate::simd::{APART, PANEL, SimdLevel, Tile, tile, tile_apart};
use crate::threads::Threads;

/// Chain length of a pass over a panel, and the register tiles that share the pass. Together they fit into
/// the caches.
struct Blocking {
    /// Chain length, at most.
    chain: usize,
    tiles: usize,
}

impl Blocking {
    fn of(level: SimdLevel) -> Self {
        match level {
            // Panels of 96 KiB and rows of 288 KiB in a second-level cache of 1 MiB or more. A longer chain
            // saves passes over C, which does not fit into it. (Sapphire Rapids, one core, 3072 x 512 x 1408:
            // 96 Gflop/s with chains of 256, 119 with these.)
            SimdLevel::Avx512 => Self { chain: 768, tiles: 8 },
            // A panel of 16 KiB in the first-level cache, rows of 96 KiB in the second.
            SimdLevel::Avx2 | SimdLevel::Portable => Self { chain: 256, tiles: 16 },
        }
    }

    /// Chain length of each pass over `k`, as even as possible.
    fn pass(&self, k: usize) -> usize {
        k.div_ceil(k.div_ceil(self.chain).max(1)).next_multiple_of(4).min(self.chain)
    }
}

/// Rows of values, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(values: &'a [f32], stride: usize) -> Self {
        Self { values, stride }
    }

    /// Those whose first begins at a value.
    pub(crate) fn at(self, value: usize) -> Self {
        Self { values: &self.values[value..], ..self }
    }
}

/// Rows of values to write, `stride` apart.
pub(crate) struct RowsMut<'a> {
    pub values: &'a mut [f32],
    pub stride: usize,
}

impl<'a> RowsMut<'a> {
    pub(crate) fn new(values: &'a mut [f32], stride: usize) -> Self {
        Self { values, stride }
    }

    /// As the result of a product.
    pub(crate) fn into_out(self) -> Out<'a> {
        Out::rows(self.values, self.stride)
    }

    /// Those whose first begins at a value.
    pub(crate) fn at(&mut self, value: usize) -> RowsMut<'_> {
        RowsMut { values: &mut self.values[value..], stride: self.stride }
    }
}

/// A: element (i, k) at `i / R * slab + i % R * row + k * col` where R is the level's tile height.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    data: &'a [f32],
    row: usize,
    col: usize,
    /// `None`: `R * row`.
    slab: Option<usize>,
}

impl<'a> Left<'a> {
    /// Rows `stride` apart, k contiguous.
    pub(crate) fn rows(data: &'a [f32], stride: usize) -> Self {
        Self { data, row: stride, col: 1, slab: None }
    }

    /// Transposed: element (i, k) at `k * stride + i`.
    pub(crate) fn columns(data: &'a [f32], stride: usize) -> Self {
        Self { data, row: 1, col: stride, slab: None }
    }

    /// Columns packed by [`crate::panels::pack_columns`] with the level's tile height as width, of `num_k`
    /// source rows.
    pub(crate) fn packed_columns(data: &'a [f32], level: SimdLevel, num_k: usize) -> Self {
        let width = level.tile_rows();
        Self { data, row: 1, col: width, slab: Some(num_k * width) }
    }
}

/// B: element (k, j) at `j / 16 * panel + k * row + j % 16`; readable to the end of the last panel.
#[derive(Clone, Copy)]
pub(crate) struct Right<'a> {
    data: &'a [f32],
    row: usize,
    panel: usize,
}

impl<'a> Right<'a> {
    /// Panels `[n / 16][num_k][16]`.
    pub(crate) fn panels(data: &'a [f32], num_k: usize) -> Self {
        Self { data, row: PANEL, panel: num_k * PANEL }
    }

    /// Row-major `[k][stride]`, stride a multiple of 16.
    pub(crate) fn rows(data: &'a [f32], stride: usize) -> Self {
        Self { data, row: stride, panel: PANEL }
    }
}

/// C: element (i, j) at `i * row + j / 16 * panel + j % 16`.
pub(crate) struct Out<'a> {
    data: &'a mut [f32],
    row: usize,
    panel: usize,
}

impl<'a> Out<'a> {
    /// Row-major with rows `stride` apart.
    pub(crate) fn rows(data: &'a mut [f32], stride: usize) -> Self {
        Self { data, row: stride, panel: PANEL }
    }

    /// Panels `[n / 16][num_rows][16]`.
    pub(crate) fn panels(data: &'a mut [f32], num_rows: usize) -> Self {
        Self { data, row: PANEL, panel: num_rows * PANEL }
    }
}

/// The shape of `C = A·B`: A is `[m][k]`, B `[k][n]`, C `[m][n]`.
#[derive(Debug, Clone, Copy)]
pub struct ProductShape {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
}

/// Whether chains begin at zero or at the values in C.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainStart {
    Zero,
    Output,
}

/// A and B with checked bounds, and the start of C; shared by the tasks of one product.
#[derive(Clone, Copy)]
struct Operands {
    level: SimdLevel,
    a: *const f32,
    a_row: usize,
    a_col: usize,
    slab: usize,
    b: *const f32,
    b_row: usize,
    b_panel: usize,
    c: *mut f32,
    c_row: usize,
    c_panel: usize,
}

// SAFETY: A and B are only read while they are borrowed; blocks of C written by different tasks are disjoint.
unsafe impl Sync for Operands {}

/// Checks that every element of every operand lies inside its slice.
fn check(
    level: SimdLevel,
    ProductShape { m, n, k }: ProductShape,
    left: &Left,
    right: &Right,
    out: &Out,
) -> Operands {
    let tile_rows = level.tile_rows();
    let slab = left.slab.unwrap_or(tile_rows * left.row);
    if m > 0 && n > 0 {
        if k > 0 {
            let last = (m - 1) / tile_rows * slab + (m - 1) % tile_rows * left.row;
            let before =
                if m > tile_rows { ((m - 1) / tile_rows - 1) * slab + (tile_rows - 1) * left.row } else { 0 };
            assert!(last.max(before) + (k - 1) * left.col < left.data.len(), "A is too short for {m} x {k}");
            assert!(
                (n - 1) / PANEL * right.panel + (k - 1) * right.row + PANEL <= right.data.len(),
                "B is too short for {k} x {n}"
            );
        }
        let last_panel = (n - 1) / PANEL * out.panel + (n - 1) % PANEL;
        let full = if n >= PANEL { (n / PANEL - 1) * out.panel + PANEL - 1 } else { 0 };
        assert!((m - 1) * out.row + last_panel.max(full) < out.data.len(), "C is too short for {m} x {n}");
    }
    Operands {
        level,
        a: left.data.as_ptr(),
        a_row: left.row,
        a_col: left.col,
        slab,
        b: right.data.as_ptr(),
        b_row: right.row,
        b_panel: right.panel,
        c: std::ptr::null_mut(),
        c_row: out.row,
        c_panel: out.panel,
    }
}

/// `C = A·B` or `C += A·B` on the calling thread. The last panel of C is written only up to column n.
pub(crate) fn product(
    level: SimdLevel,
    shape: ProductShape,
    left: &Left,
    right: &Right,
    out: &mut Out,
    begin: ChainStart,
) {
    let mut operands = check(level, shape, left, right, out);
    operands.c = out.data.as_mut_ptr();
    // SAFETY: `check` covered the whole product, and C is borrowed mutably.
    unsafe { block(&operands, shape, 0..shape.m, 0..shape.n.div_ceil(PANEL), begin) }
}

/// Products of one row each, as many as A has rows. Row i is multiplied by the matrix that begins `apart`
/// values after that of row i - 1. Whole panels of B are read and whole panels of C are written: `n` is a
/// multiple of 16.
pub(crate) fn product_apart(
    level: SimdLevel,
    shape: ProductShape,
    left: &Left,
    right: &Right,
    apart: usize,
    out: &mut Out,
    begin: ChainStart,
) {
    let ProductShape { m, n, k } = shape;
    if m == 0 {
        return;
    }
    debug_assert!(left.slab.is_none(), "packed columns have no rows of their own");
    assert!(n.is_multiple_of(PANEL), "{n} columns are no whole panels");
    // The last matrix is as large as the first.
    assert!((m - 1) * apart <= right.data.len(), "B is too short for {m} matrices");
    let mut operands =
        check(level, shape, left, &Right { data: &right.data[(m - 1) * apart..], ..*right }, out);
    operands.b = right.data.as_ptr();
    operands.c = out.data.as_mut_ptr();
    for row in (0..m).step_by(APART) {
        for panel in (0..n / PANEL).step_by(APART) {
            // SAFETY: `check` covered the last matrix, which the others lie before, and all of A and C.
            unsafe {
                let at = Tile {
                    k,
                    a: operands.a.add(row * operands.a_row),
                    a_row: operands.a_row,
                    a_col: operands.a_col,
                    b: operands.b.add(row * apart + panel * operands.b_panel),
                    b_row: operands.b_row,
                    b_panel: operands.b_panel,
                    ahead: 0,
                    c: operands.c.add(row * operands.c_row + panel * operands.c_panel),
                    c_row: operands.c_row,
                    c_panel: operands.c_panel,
                    accumulate: begin == ChainStart::Output,
                };
                tile_apart(level, (m - row).min(APART), (n / PANEL - panel).min(APART), apart, &at);
            }
        }
    }
}

/// [`product`] with its rows or panels divided among the threads.
pub(crate) fn product_parallel(
    threads: &Threads,
    shape: ProductShape,
    left: &Left,
    right: &Right,
    out: &mut Out,
    begin: ChainStart,
) {
    let ProductShape { m, n, k } = shape;
    let num_threads = threads.num_threads();
    let level = threads.level();
    if num_threads == 1 || m * n * k < 100_000 {
        return product(level, shape, left, right, out, begin);
    }
    let mut operands = check(level, shape, left, right, out);
    operands.c = out.data.as_mut_ptr();
    let panels = n.div_ceil(PANEL);
    let tile_rows = level.tile_rows();
    let tasks = if m * n * k < 4_000_000 { num_threads } else { 4 * num_threads };
    // Long, narrow outputs are cut by rows, so that each task reads its own part of A. Short ones are cut by
    // panels.
    if m >= tasks * tile_rows {
        let rows = m.div_ceil(tasks).next_multiple_of(tile_rows);
        threads.run(m.div_ceil(rows), |task| {
            let operands = &operands;
            // SAFETY: `check` covered the whole product; tasks have disjoint rows.
            unsafe { block(operands, shape, task * rows..m.min((task + 1) * rows), 0..panels, begin) }
        });
    } else {
        let width = panels.div_ceil(tasks);
        threads.run(panels.div_ceil(width), |task| {
            let operands = &operands;
            // SAFETY: as above; tasks have disjoint panels.
            unsafe { block(operands, shape, 0..m, task * width..panels.min((task + 1) * width), begin) }
        });
    }
}

/// The outputs of some rows (beginning at a tile) and panels.
///
/// # Safety
/// [`check`] passed for `shape`; nothing else touches these rows and panels of C meanwhile.
unsafe fn block(
    operands: &Operands,
    shape: ProductShape,
    rows: std::ops::Range<usize>,
    panels: std::ops::Range<usize>,
    begin: ChainStart,
) {
    let tile_rows = operands.level.tile_rows();
    let full_panels = shape.n / PANEL;
    let blocking = Blocking::of(operands.level);
    let pass_k = blocking.pass(shape.k);
    let mut first_k = 0;
    loop {
        let k = (shape.k - first_k).min(pass_k);
        let accumulate = begin == ChainStart::Output || first_k > 0;
        let mut first_row = rows.start;
        while first_row < rows.end {
            let end_row = rows.end.min(first_row + blocking.tiles * tile_rows);
            let mut panel = panels.start;
            while panel < panels.end {
                // All tiles of a pass take the same number of panels. The first tile, which is the tallest,
                // decides it.
                let height = (end_row - first_row).min(tile_rows);
                let whole = full_panels.min(panels.end).saturating_sub(panel);
                let width = operands.level.tile_panels(height).min(whole.max(1));
                let mut row = first_row;
                // While this pass computes, the panels of the next one are prefetched, one by each call of a
                // tile.
                let mut ahead = (panel + width..panels.end.min(panel + 2 * width))
                    .map(|next| (next - panel) * operands.b_panel);
                while row < end_row {
                    let height = (end_row - row).min(tile_rows);
                    // SAFETY: inside the checked bounds; `PANEL` columns of C exist if the panel is whole.
                    unsafe {
                        let at = Tile {
                            k,
                            a: operands.a.add(
                                row / tile_rows * operands.slab
                                    + row % tile_rows * operands.a_row
                                    + first_k * operands.a_col,
                            ),
                            a_row: operands.a_row,
                            a_col: operands.a_col,
                            b: operands.b.add(panel * operands.b_panel + first_k * operands.b_row),
                            b_row: operands.b_row,
                            b_panel: operands.b_panel,
                            ahead: 0,
                            c: operands.c.add(row * operands.c_row + panel * operands.c_panel),
                            c_row: operands.c_row,
                            c_panel: operands.c_panel,
                            accumulate,
                        };
                        if whole == 0 {
                            partial(operands.level, height, shape.n % PANEL, &at);
                        } else {
                            pass(operands.level, height, width, &mut ahead, &at);
                        }
                    }
                    row += height;
                }
                panel += width;
            }
            first_row = end_row;
        }
        first_k += k;
        if first_k >= shape.k {
            return;
        }
    }
}

/// A tile over `width` panels, in as many calls as its height needs. `ahead` yields distances in values from
/// the first of them to panels that are still to be prefetched. Each call fetches one, so a pass of few calls
/// leaves some out.
unsafe fn pass(
    level: SimdLevel,
    height: usize,
    width: usize,
    ahead: &mut impl Iterator<Item = usize>,
    at: &Tile,
) {
    let step = level.tile_panels(height);
    let mut done = 0;
    while done < width {
        let panels = step.min(width - done);
        // SAFETY: panels `done..done + panels` of the caller's.
        unsafe {
            let b = at.b.add(done * at.b_panel);
            let ahead = ahead.next().map_or(0, |ahead| ahead - done * at.b_panel);
            let part = Tile { b, ahead, c: at.c.add(done * at.c_panel), ..*at };
            tile(level, height, panels, &part);
        }
        done += panels;
    }
}

/// A tile over the last panel. Only `columns` columns of C exist.
unsafe fn partial(level: SimdLevel, height: usize, columns: usize, at: &Tile) {
    let mut buffer = [0.0f32; 12 * PANEL];
    // SAFETY: only existing columns of C are touched; the buffer holds the tallest tile.
    unsafe {
        if at.accumulate {
            for i in 0..height {
                std::ptr::copy_nonoverlapping(
                    at.c.add(i * at.c_row),
                    buffer.as_mut_ptr().add(i * PANEL),
                    columns,
                );
            }
        }
        tile(level, height, 1, &Tile { c: buffer.as_mut_ptr(), c_row: PANEL, c_panel: PANEL, ..*at });
        for i in 0..height {
            std::ptr::copy_nonoverlapping(buffer.as_ptr().add(i * PANEL), at.c.add(i * at.c_row), columns);
        }
    }
}

/// Operations per second of the register tile on operands in the first-level cache, all threads together: the
/// bound of every product on this machine. One figure for each try, as in [`measure_product`].
pub fn measure_peak(threads: &Threads, num_tries: usize) -> Vec<f64> {
    let m = threads.level().tile_rows();
    let shape = ProductShape { m, n: threads.level().tile_panels(m) * PANEL, k: 128 };
    measure_product(threads, shape, 1, num_tries)
}

/// Operations per second of products of a shape. All threads run at once,
/// each with its own products. Returns one figure for each try; a try takes at least a hundredth of a second.
/// With several matrices `[k][n]`, each is used in turn; they come from memory if the caches do not hold them
/// all.
pub fn measure_product(
    threads: &Threads,
    shape: ProductShape,
    matrices: usize,
    num_tries: usize,
) -> Vec<f64> {
    let ProductShape { m, n, k } = shape;
    let num_threads = threads.num_threads();
    let operations = 2 * m * n * k;
    let repeats = (1_500_000_000 / operations.max(1)).max(matrices);
    // Touched before the first try, so that no page faults are measured.
    let operands: Vec<_> = (0..num_threads)
        .map(|_| {
            let lengths = [m * k, matrices * panels::len(n, k), m * n];
            Mutex::new(lengths.map(|len| {
                let mut floats = Floats::zeros(len);
                floats.fill(0.5);
                floats
            }))
        })
        .collect();
    let measure = |_| {
        let start = std::time::Instant::now();
        threads.run(num_threads, |thread| {
            let [a, b, c] = &mut *operands[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let left = Left::rows(a, k);
            for b in b.chunks_exact(panels::len(n, k).max(1)).cycle().take(repeats) {
                let right = Right::panels(b, k);
                product(threads.level(), shape, &left, &right, &mut Out::rows(c, n), ChainStart::Zero);
                std::hint::black_box(&mut *c);
            }
        });
        (operations * repeats * num_threads) as f64 / start.elapsed().as_secs_f64()
    };
    (0..num_tries).map(measure).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let key = tamis_core::random::Key::new(seed, tamis_core::random::Purpose::Init);
        (0..count as u64).map(|i| key.normal(i) as f32).collect()
    }

    /// One chain of fused multiply-adds (two roundings at the portable level).
    fn chain(
        level: SimdLevel,
        a: impl Fn(usize) -> f32,
        b: impl Fn(usize) -> f32,
        k: usize,
        begin: f32,
    ) -> f32 {
        let fused = level != SimdLevel::Portable || cfg!(target_arch = "aarch64");
        (0..k).fold(begin, |sum, i| if fused { a(i).mul_add(b(i), sum) } else { a(i) * b(i) + sum })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        /// Every level, layout and number of threads gives the scalar chain bit for bit, for any shape.
        #[test]
        fn outputs_are_single_chains(m in 1usize..40, n in 1usize..100, k in prop_oneof![0usize..40, 250usize..530, 760usize..780], seed in 0u64..1000) {
            let (a, w, c) = (numbers(m * k, seed), numbers(n * k, seed + 1), numbers(m * n, seed + 2));
            let packed = panels::from_rows(&w, n, k);
            for level in SimdLevel::available() {
                let expected: Vec<u32> = (0..m * n)
                    .map(|at| chain(level, |i| a[at / n * k + i], |i| w[at % n * k + i], k, c[at]).to_bits())
                    .collect();
                for num_threads in [1, 2] {
                    let threads = Threads::with_level(num_threads, level);
                    let shape = ProductShape { m, n, k };
                    let mut actual = c.clone();
                    product_parallel(&threads, shape, &Left::rows(&a, k), &Right::panels(&packed, k), &mut Out::rows(&mut actual, n), ChainStart::Output);
                    prop_assert_eq!(&actual.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), &expected);
                    // A transposed and packed, C in panels.
                    let transposed: Vec<f32> = (0..m * k).map(|at| a[at % m * k + at / m]).collect();
                    let width = level.tile_rows();
                    let columns = panels::pack_columns(&transposed, k, m, m, width);
                    let mut out = panels::pack_columns(&c, m, n, n, PANEL);
                    product_parallel(&threads, shape, &Left::packed_columns(&columns, level, k), &Right::panels(&packed, k), &mut Out::panels(&mut out, m), ChainStart::Output);
                    let back: Vec<u32> = (0..m * n).map(|at| out[at % n / PANEL * m * PANEL + at / n * PANEL + at % n % PANEL].to_bits()).collect();
                    prop_assert_eq!(&back, &expected);
                    let mut actual = c.clone();
                    product(level, shape, &Left::columns(&transposed, m), &Right::panels(&packed, k), &mut Out::rows(&mut actual, n), ChainStart::Output);
                    prop_assert_eq!(&actual.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), &expected);
                }
            }
        }
    }

    #[test]
    fn beginning_at_zero_ignores_the_output() {
        let a = numbers(7 * 3, 1);
        let w = panels::from_rows(&numbers(5 * 3, 2), 5, 3);
        let shape = ProductShape { m: 7, n: 5, k: 3 };
        let (mut first, mut second) = (vec![f32::NAN; 35], vec![0.0; 35]);
        let level = SimdLevel::detect();
        product(
            level,
            shape,
            &Left::rows(&a, 3),
            &Right::panels(&w, 3),
            &mut Out::rows(&mut first, 5),
            ChainStart::Zero,
        );
        product(
            level,
            shape,
            &Left::rows(&a, 3),
            &Right::panels(&w, 3),
            &mut Out::rows(&mut second, 5),
            ChainStart::Output,
        );
        assert_eq!(first, second);
    }

    #[test]
    #[should_panic(expected = "B is too short")]
    fn bounds_are_checked() {
        let shape = ProductShape { m: 1, n: 17, k: 2 };
        product(
            SimdLevel::Portable,
            shape,
            &Left::rows(&[1.0; 2], 2),
            &Right::panels(&[1.0; 32], 2),
            &mut Out::rows(&mut [0.0; 17], 17),
            ChainStart::Zero,
        );
    }
}
