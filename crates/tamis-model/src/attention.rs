//! Causal grouped-query attention over ragged sequences, forward and backward, in blocks of rows.
//!
//! A row's scores are single chains over the head; its softmax sums sixteen lanes by position; its mix of values is one chain over
//! positions. None of that depends on how keys are stored, so a row computed against a cache in pieces (generation) has the bits
//! of the same row computed in a block (training).

use crate::floats::Floats;
use crate::lanes::{LANES, Lanes, dot, exp, padded, tree};
use crate::panels::{self, pack_rows};
use crate::product::{Begin, Left, Out, Right, Shape, product};
use crate::simd::{Level, PANEL, multiversion};

/// Query rows per block.
const BLOCK: usize = 24;

/// Sizes of a head: `dim` values in rows `stride` apart (`dim` rounded up to a panel, the rest zero).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub dim: usize,
    pub stride: usize,
    /// `1 / sqrt(dim)`.
    pub scale: f32,
}

impl Head {
    pub(crate) fn new(dim: usize) -> Self {
        Self { dim, stride: dim.next_multiple_of(PANEL), scale: 1.0 / (dim as f32).sqrt() }
    }
}

/// Consecutive positions of one key and value head.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    /// Panels `[len / 16][dim][16]`.
    pub keys: &'a [f32],
    /// `[len][stride]`.
    pub values: &'a [f32],
    pub len: usize,
}

multiversion! {
    /// Softmax numerators in place: `e^((s - max) * scale)` for the first `visible` scores, zero up to `end`. Returns the maximum
    /// (unscaled) and the sum. `scores` reaches to the next multiple of 16 after `visible`.
    fn softmax<F>(scores: &mut [f32], visible: usize, end: usize, scale: f32) -> (f32, f32) {
        let (live, rest) = scores.split_at_mut(visible);
        let mut best = [f32::NEG_INFINITY; LANES];
        let (chunks, tail) = live.as_chunks_mut::<LANES>();
        for chunk in chunks.iter() {
            for i in 0..LANES {
                best[i] = if chunk[i] > best[i] { chunk[i] } else { best[i] };
            }
        }
        let max = best.iter().chain(tail.iter()).fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max });
        let mut sums: Lanes = [0.0; LANES];
        for chunk in chunks {
            for i in 0..LANES {
                chunk[i] = exp::<F>((chunk[i] - max) * scale);
                sums[i] += chunk[i];
            }
        }
        let mut last = padded(tail, f32::NEG_INFINITY);
        for i in 0..LANES {
            last[i] = exp::<F>((last[i] - max) * scale);
            sums[i] += last[i];
        }
        tail.copy_from_slice(&last[..tail.len()]);
        rest[..end - visible].fill(0.0);
        (max, tree(&sums))
    }
}

/// Scores of `rows` queries (`stride` apart) against a span, into rows `width` apart; up to 15 columns beyond the span are junk.
pub(crate) fn score(
    level: Level,
    head: Head,
    queries: &[f32],
    rows: usize,
    span: &Span,
    scores: &mut [f32],
    width: usize,
) {
    let shape = Shape { m: rows, n: span.len.next_multiple_of(PANEL), k: head.dim };
    product(
        level,
        shape,
        &Left::rows(queries, head.stride),
        &Right::panels(span.keys, head.dim),
        &mut Out::rows(scores, width),
        Begin::Zero,
    );
}

#[expect(clippy::too_many_arguments, reason = "a product's operands with their sizes")]
/// Adds (or sets) each row's mix of a span's values.
pub(crate) fn mix(
    level: Level,
    head: Head,
    weights: &[f32],
    width: usize,
    rows: usize,
    span: &Span,
    out: &mut [f32],
    begin: Begin,
) {
    let shape = Shape { m: rows, n: head.stride, k: span.len };
    product(
        level,
        shape,
        &Left::rows(weights, width),
        &Right::rows(span.values, head.stride),
        &mut Out::rows(out, head.stride),
        begin,
    );
}

/// One key and value head of one sequence of `len` tokens, with the query heads that share it.
pub(crate) struct Group<'a> {
    pub len: usize,
    /// `[heads][len][stride]`.
    pub q: &'a [f32],
    /// `[len][stride]`.
    pub k: &'a [f32],
    /// `[len][stride]`.
    pub v: &'a [f32],
}

/// Attention of a group: `out` as `q`; `lse` `[heads][len]` receives `log sum e^(scale * s)`.
pub(crate) fn forward(level: Level, head: Head, group: &Group, out: &mut [f32], lse: &mut [f32]) {
    let len = group.len;
    let width = len.next_multiple_of(PANEL);
    let mut keys = Floats::zeros(panels::len(len, head.dim));
    pack_rows(group.k, len, head.dim, head.stride, &mut keys);
    let mut scores = Floats::zeros(BLOCK * width);
    let heads = group.q.chunks_exact(len * head.stride).zip(out.chunks_exact_mut(len * head.stride));
    for ((q, out), lse) in heads.zip(lse.chunks_exact_mut(len)) {
        for first in (0..len).step_by(BLOCK) {
            let rows = (len - first).min(BLOCK);
            let end = first + rows;
            let span = Span { keys: &keys, values: group.v, len: end };
            score(level, head, &q[first * head.stride..], rows, &span, &mut scores, width);
            let mut sums = [0.0; BLOCK];
            for (i, row) in scores.chunks_exact_mut(width).take(rows).enumerate() {
                let (max, sum) = softmax(level, row, first + i + 1, end, head.scale);
                sums[i] = sum;
                lse[first + i] = max * head.scale + sum.ln();
            }
            let out = &mut out[first * head.stride..][..rows * head.stride];
            mix(level, head, &scores, width, rows, &span, out, Begin::Zero);
            for (row, sum) in out.chunks_exact_mut(head.stride).zip(sums) {
                normalise(level, row, sum);
            }
        }
    }
}

multiversion! {
    /// Divides a row by its softmax sum.
    fn normalise<F>(row: &mut [f32], sum: f32) {
        let factor = F::fma(1.0 / sum, 1.0, 0.0);
        for value in row {
            *value *= factor;
        }
    }
}

multiversion! {
    /// From scores and `dp = dO·V` of one row: probabilities into `scores`, `ds = p * (dp - sum(p dp)) * scale` into `dp`; both
    /// zero from `visible` to `end`. The sum is taken over the same products that it is subtracted from, so `ds` sums to zero as
    /// closely as f32 allows.
    fn softmax_backward<F>(scores: &mut [f32], dp: &mut [f32], visible: usize, end: usize, scale: f32, lse: f32) {
        for s in &mut scores[..visible] {
            *s = exp::<F>(F::fma(*s, scale, -lse));
        }
        let delta = dot::<F>(&scores[..visible], &dp[..visible]);
        for (&p, d) in scores[..visible].iter().zip(&mut dp[..visible]) {
            *d = p * (*d - delta) * scale;
        }
        scores[visible..end].fill(0.0);
        dp[visible..end].fill(0.0);
    }
}

/// What flows back through a group.
pub(crate) struct Back<'a> {
    /// Derivative by the output `[heads][len][stride]`.
    pub out: &'a [f32],
    /// `[heads][len]` of [`forward`].
    pub lse: &'a [f32],
}

/// Derivatives by q, k and v; `dk` and `dv` are zero on entry.
pub(crate) fn backward(
    level: Level,
    head: Head,
    group: &Group,
    back: &Back,
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
) {
    let (len, stride) = (group.len, head.stride);
    let width = len.next_multiple_of(PANEL);
    let mut keys = Floats::zeros(panels::len(len, head.dim));
    let mut values = Floats::zeros(panels::len(len, head.dim));
    pack_rows(group.k, len, head.dim, stride, &mut keys);
    pack_rows(group.v, len, head.dim, stride, &mut values);
    let (mut scores, mut dp) = (Floats::zeros(BLOCK * width), Floats::zeros(BLOCK * width));
    for (index, q) in group.q.chunks_exact(len * stride).enumerate() {
        let this = index * len * stride..(index + 1) * len * stride;
        let (dout, dq) = (&back.out[this.clone()], &mut dq[this]);
        let lse = &back.lse[index * len..][..len];
        for first in (0..len).step_by(BLOCK) {
            let rows = (len - first).min(BLOCK);
            let end = first + rows;
            let here = first * stride..end * stride;
            let (q, dout) = (&q[here.clone()], &dout[here.clone()]);
            score(level, head, q, rows, &Span { keys: &keys, values: group.v, len: end }, &mut scores, width);
            score(
                level,
                head,
                dout,
                rows,
                &Span { keys: &values, values: group.v, len: end },
                &mut dp,
                width,
            );
            let both = scores.chunks_exact_mut(width).zip(dp.chunks_exact_mut(width));
            for (i, (s, d)) in both.take(rows).enumerate() {
                let at = first + i;
                softmax_backward(level, s, d, at + 1, end, head.scale, lse[at]);
            }
            let shape = Shape { m: rows, n: stride, k: end };
            product(
                level,
                shape,
                &Left::rows(&dp, width),
                &Right::rows(group.k, stride),
                &mut Out::rows(&mut dq[here], stride),
                Begin::Zero,
            );
            let shape = Shape { m: end, n: stride, k: rows };
            product(
                level,
                shape,
                &Left::columns(&dp, width),
                &Right::rows(q, stride),
                &mut Out::rows(dk, stride),
                Begin::Output,
            );
            product(
                level,
                shape,
                &Left::columns(&scores, width),
                &Right::rows(dout, stride),
                &mut Out::rows(dv, stride),
                Begin::Output,
            );
        }
    }
}
