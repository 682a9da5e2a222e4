//! Panels: the layout in which matrices enter the product, sixteen columns side by side along k.
//!
//! A weight `[n][k]` (out, in) is stored as `[n / 16][k][16]`, the last panel padded with zeros. The same
//! buffer serves the forward product and takes the gradient, so nothing is repacked after an update. Only the
//! backward product by the weight's transpose needs another order ([`flip`]).

use crate::simd::{PANEL, SimdLevel, transpose};

/// Length of the panels of an `[n][k]` matrix.
pub(crate) fn len(n: usize, k: usize) -> usize {
    n.next_multiple_of(PANEL) * k
}

/// Place of element (row, col) of an `[n][k]` matrix.
pub(crate) fn place(k: usize, row: usize, col: usize) -> usize {
    (row / PANEL * k + col) * PANEL + row % PANEL
}

/// Row-major `[n][k]` into panels.
#[cfg(test)]
pub(crate) fn from_rows(rows: &[f32], n: usize, k: usize) -> Vec<f32> {
    let mut panels = vec![0.0; len(n, k)];
    for (row, values) in rows.chunks_exact(k.max(1)).take(n).enumerate() {
        set_row(&mut panels, k, row, values.iter().copied());
    }
    panels
}

pub(crate) fn set_row(panels: &mut [f32], k: usize, row: usize, values: impl Iterator<Item = f32>) {
    let lane = panels.iter_mut().skip(place(k, row, 0)).step_by(PANEL).take(k);
    lane.zip(values).for_each(|(out, value)| *out = value);
}

/// Panels back into row-major `[n][k]`.
pub(crate) fn to_rows(panels: &[f32], n: usize, k: usize) -> Vec<f32> {
    let mut rows = Vec::with_capacity(n * k);
    for row in 0..n {
        rows.extend(panels.iter().skip(place(k, row, 0)).step_by(PANEL).take(k));
    }
    rows
}

/// `[rows][cols]` (rows `stride` apart) into `[cols / width][rows][width]`, padded with zeros.
#[cfg(test)]
pub(crate) fn pack_columns(
    source: &[f32],
    rows: usize,
    cols: usize,
    stride: usize,
    width: usize,
) -> Vec<f32> {
    let mut packed = vec![0.0; cols.div_ceil(width) * rows * width];
    pack_slabs(source, 0, cols, stride, width, rows, &mut packed);
    packed
}

/// Slabs `first ..` of `[rows][cols]`, packed `width` columns wide. `out` is `[slabs][rows][width]`, as many
/// slabs as fit in it.
///
/// Rows are read once for all slabs, so that a source far larger than the cache is read in whole lines.
pub(crate) fn pack_slabs(
    source: &[f32],
    first: usize,
    cols: usize,
    stride: usize,
    width: usize,
    rows: usize,
    out: &mut [f32],
) {
    // Known widths are copied in registers. A call for so few values would cost more than the copy.
    match width {
        4 => pack_width::<4>(source, first, cols, stride, rows, out),
        6 => pack_width::<6>(source, first, cols, stride, rows, out),
        12 => pack_width::<12>(source, first, cols, stride, rows, out),
        _ => pack_width::<PANEL>(source, first, cols, stride, rows, out),
    }
}

fn pack_width<const WIDTH: usize>(
    source: &[f32],
    first: usize,
    cols: usize,
    stride: usize,
    rows: usize,
    out: &mut [f32],
) {
    let (out, _) = out.as_chunks_mut::<WIDTH>();
    let num_slabs = out.len().checked_div(rows).unwrap_or(0);
    for row in 0..rows {
        let values = &source[row * stride + first * WIDTH..][..(cols - first * WIDTH).min(num_slabs * WIDTH)];
        let (whole, tail) = values.as_chunks::<WIDTH>();
        for (slab, values) in whole.iter().enumerate() {
            out[slab * rows + row] = *values;
        }
        if !tail.is_empty() {
            let last = &mut out[whole.len() * rows + row];
            *last = [0.0; WIDTH];
            last[..tail.len()].copy_from_slice(tail);
        }
    }
}

/// Rows `[rows][k]` (rows `stride` apart) into panels `[rows / 16][k][16]`, the last one padded with zeros.
pub(crate) fn pack_rows(
    level: SimdLevel,
    source: &[f32],
    rows: usize,
    k: usize,
    stride: usize,
    out: &mut [f32],
) {
    for (panel, out) in out.chunks_exact_mut(k * PANEL).enumerate().take(rows.div_ceil(PANEL)) {
        let first = panel * PANEL;
        let count = (rows - first).min(PANEL);
        let source = &source[first * stride..];
        let squares = k / PANEL * PANEL;
        for col in (0..squares).step_by(PANEL) {
            let out = &mut out[col * PANEL..];
            if count == PANEL {
                transpose(level, &source[col..], stride, out);
            } else {
                let mut square = [0.0; PANEL * PANEL];
                for (lane, row) in square.chunks_exact_mut(PANEL).enumerate().take(count) {
                    row.copy_from_slice(&source[lane * stride + col..][..PANEL]);
                }
                transpose(level, &square, PANEL, out);
            }
        }
        for (col, lanes) in out.chunks_exact_mut(PANEL).enumerate().skip(squares) {
            for (lane, out) in lanes.iter_mut().enumerate() {
                *out = if lane < count { source[lane * stride + col] } else { 0.0 };
            }
        }
    }
}

/// Slab `slab` (sixteen columns) of the transpose: from panels `[n / 16][k][16]` to `out` = `[n][16]` holding
/// columns `16 * slab ..` of each row.
pub(crate) fn flip_slab(level: SimdLevel, panels: &[f32], n: usize, k: usize, slab: usize, out: &mut [f32]) {
    let first = slab * PANEL;
    let count = (k - first).min(PANEL);
    for (panel, out) in out[..n * PANEL].chunks_mut(PANEL * PANEL).enumerate() {
        let source = &panels[(panel * k + first) * PANEL..][..count * PANEL];
        if count == PANEL && out.len() == PANEL * PANEL {
            transpose(level, source, PANEL, out);
            continue;
        }
        for (lane, row) in out.chunks_exact_mut(PANEL).enumerate() {
            row.fill(0.0);
            for (out, values) in row.iter_mut().zip(source.chunks_exact(PANEL)) {
                *out = values[lane];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_and_back() {
        for (n, k) in [(19, 5), (16, 16), (50, 37)] {
            let rows: Vec<f32> = (0..n * k).map(|i| i as f32 + 1.0).collect();
            let panels = from_rows(&rows, n, k);
            assert_eq!(panels.len(), len(n, k));
            assert_eq!(to_rows(&panels, n, k), rows);
            for level in SimdLevel::available() {
                let mut packed = vec![f32::NAN; panels.len()];
                pack_rows(level, &rows, n, k, k, &mut packed);
                assert_eq!(packed, panels, "{level:?} {n} {k}");
            }
        }
    }

    #[test]
    fn the_flip_is_the_panels_of_the_transpose() {
        for (n, k) in [(37, 20), (32, 48)] {
            let rows: Vec<f32> = (0..n * k).map(|i| i as f32 + 1.0).collect();
            let panels = from_rows(&rows, n, k);
            let transposed: Vec<f32> = (0..n * k).map(|at| rows[at % n * k + at / n]).collect();
            let expected = from_rows(&transposed, k, n);
            for level in SimdLevel::available() {
                let mut flipped = vec![f32::NAN; expected.len()];
                for (slab, out) in flipped.chunks_exact_mut(n * PANEL).enumerate() {
                    flip_slab(level, &panels, n, k, slab, out);
                }
                assert_eq!(flipped, expected, "{level:?} {n} {k}");
            }
        }
    }
}
