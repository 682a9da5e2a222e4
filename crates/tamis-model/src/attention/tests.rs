use tamis_core::random::{Key, Purpose};

use super::blocks::{FAR, FAR_BLOCK, TILE};
use super::*;
use crate::panels::{self, pack_rows};

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let key = Key::new(seed, Purpose::Init);
    (0..count as u64).map(|i| key.normal(i) as f32).collect()
}

/// Prompts that end within a panel, at a tile's end and beyond a block's tiles, and no prompt at all.
const GROUPS: [(usize, &[usize]); 5] = [
    (0, &[1, 50]),
    (37, &[3, 0, 40]),
    (TILE, &[5, 20]),
    (FAR + 6, &[30, 2, TILE + 9]),
    (FAR + 2 * FAR_BLOCK + 5, &[]),
];

/// Fills the scratch buffers with NaN: none of it may reach a result.
fn spoil_scratch() {
    SCRATCH.with_borrow_mut(|Scratch { keys, values, scores, dp, .. }| {
        for buffer in [keys, values, scores, dp] {
            buffer.resize(1 << 20);
            buffer.fill(f32::NAN);
        }
    });
}

/// The positions that each row sees: a part of the prompt, and a range of its own.
fn seen(prompt: usize, members: &[usize]) -> Vec<Range<usize>> {
    let mut seen: Vec<_> = (0..prompt).map(|row| 0..row + 1).collect();
    for &rows in members {
        let first = seen.len();
        seen.extend((first..first + rows).map(|row| first..row + 1));
    }
    seen
}

#[test]
fn rows_of_blocks_are_those_of_generation_to_the_bit() {
    for ((prompt, members), dim) in GROUPS.into_iter().zip([5, 37, 20, 5, 37]) {
        let head = Head::new(dim);
        let own = seen(prompt, members);
        let (rows, stride) = (own.len(), head.stride);
        let (q, k, v) = (numbers(2 * rows * stride, 1), numbers(rows * stride, 2), numbers(rows * stride, 3));
        let group = AttentionGroup { prompt, members, q: &q, k: &k, v: &v };
        for level in SimdLevel::available() {
            let (mut out, mut lse) = (vec![f32::NAN; q.len()], vec![f32::NAN; 2 * rows]);
            spoil_scratch();
            forward(level, head, &group, &mut out, &mut lse);
            // Some rows of each block are enough.
            for (row, own) in own.iter().enumerate().step_by(7) {
                let gather = |from: &[f32]| -> Vec<f32> {
                    let before = if row < prompt { 0..0 } else { 0..prompt };
                    [
                        &from[before.start * stride..before.end * stride],
                        &from[own.start * stride..own.end * stride],
                    ]
                    .concat()
                };
                let (keys, values) = (gather(&k), gather(&v));
                let len = keys.len() / stride;
                let mut packed = vec![0.0; panels::len(len, head.dim)];
                pack_rows(level, &keys, len, head.dim, stride, &mut packed);
                let span = Span { keys: &packed, values: &values, len };
                for i in 0..2 {
                    let at = (i * rows + row) * stride;
                    let mut scores = vec![0.0; len.next_multiple_of(PANEL)];
                    let width = scores.len();
                    score(level, head, &q[at..], 1, &span, RowsMut::new(&mut scores, width));
                    let mut sums = Vec::new();
                    softmax(level, &mut scores, width, &[len], len, head.scale, &mut sums);
                    let mut expected = vec![0.0; stride];
                    let weights = Rows::new(&scores, width);
                    mix(level, head, weights, 1, &span, &mut expected, ChainStart::Zero);
                    normalise(level, &mut expected, sums[0]);
                    assert_eq!(out[at..][..stride], expected, "{level:?} {prompt} {members:?} row {row}");
                }
            }
        }
    }
}

#[test]
fn derivatives_of_blocks_and_tiles_are_those_of_the_formulas() {
    for ((prompt, members), dim) in GROUPS.into_iter().zip([5, 37, 20, 5, 37]) {
        let head = Head::new(dim);
        let own = seen(prompt, members);
        let (rows, stride) = (own.len(), head.stride);
        let (q, k, v) = (numbers(rows * stride, 1), numbers(rows * stride, 2), numbers(rows * stride, 3));
        let dout = numbers(rows * stride, 4);
        let group = AttentionGroup { prompt, members, q: &q, k: &k, v: &v };
        // In f64, row by row: p = softmax, dv = p dO, ds = p (dp - sum p dp), dq = ds k, dk = ds q.
        let dot = |a: &[f32], i: usize, b: &[f32], j: usize| -> f64 {
            (0..head.dim).map(|d| f64::from(a[i * stride + d]) * f64::from(b[j * stride + d])).sum()
        };
        let mut expected = [vec![0.0f64; rows * stride], vec![0.0; rows * stride], vec![0.0; rows * stride]];
        for (row, own) in own.iter().enumerate() {
            let seen: Vec<usize> = (0..if row < prompt { 0 } else { prompt }).chain(own.clone()).collect();
            let e: Vec<f64> =
                seen.iter().map(|&j| (dot(&q, row, &k, j) * f64::from(head.scale)).exp()).collect();
            let sum: f64 = e.iter().sum();
            let dp: Vec<f64> = seen.iter().map(|&j| dot(&dout, row, &v, j)).collect();
            let delta: f64 = e.iter().zip(&dp).map(|(e, dp)| e / sum * dp).sum();
            for ((&j, e), dp) in seen.iter().zip(&e).zip(&dp) {
                let p = e / sum;
                let ds = p * (dp - delta) * f64::from(head.scale);
                for d in 0..head.dim {
                    expected[0][row * stride + d] += ds * f64::from(k[j * stride + d]);
                    expected[1][j * stride + d] += ds * f64::from(q[row * stride + d]);
                    expected[2][j * stride + d] += p * f64::from(dout[row * stride + d]);
                }
            }
        }
        for level in SimdLevel::available() {
            let (mut out, mut lse) = (vec![0.0; q.len()], vec![0.0; rows]);
            spoil_scratch();
            forward(level, head, &group, &mut out, &mut lse);
            let mut found = [vec![0.0f32; q.len()], vec![0.0; q.len()], vec![0.0; q.len()]];
            let [dq, dk, dv] = &mut found;
            let back = Back { out: &dout, lse: &lse };
            spoil_scratch();
            backward(level, head, &group, &back, dq, dk, dv);
            for (found, expected) in found.iter().zip(&expected) {
                for at in (0..rows * stride).filter(|at| at % stride < head.dim) {
                    let (found, expected) = (f64::from(found[at]), expected[at]);
                    assert!(
                        (found - expected).abs() < 2e-4 * (1.0 + expected.abs()),
                        "{level:?} {prompt} {members:?} {at}: {found} {expected}"
                    );
                }
            }
        }
    }
}
