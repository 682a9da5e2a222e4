//! Causal grouped-query attention over ragged sequences, forward and backward, in blocks of rows and tiles of
//! positions.
//!
//! A row's scores are single chains over the head, its softmax sums sixteen lanes by position, and its mix of
//! values is one chain over positions. None of that depends on how keys are stored. So a row computed
//! piecewise against a cache (generation) has the same bits as in a block (training), and a row after a
//! shared prompt has the same bits as in a sequence of its own. A block passes over its tiles twice: first to
//! find each row's maximum (backward: the sum that the derivatives by its scores need), then to use it. Its
//! scores stay in memory in between, linear in the positions.

use std::ops::Range;

use crate::floats::Floats;
use crate::product::{ChainStart, Left, Out, ProductShape, Right, Rows, RowsMut, product, product_apart};
use crate::simd::lanes::{LANES, Lanes, exp, tree};
use crate::simd::{Arithmetic, PANEL, SimdLevel, multiversion};

mod blocks;

use blocks::{Block, Plan, Seen, tiles};

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

/// Raises each lane to the greatest of the first `visible` scores at its positions. `scores` are whole
/// chunks.
#[inline(always)]
#[allow(clippy::inline_always, reason = "compiled for the caller's CPU feature")]
fn raise<F: Arithmetic>(best: &mut Lanes, scores: &[f32], visible: usize) {
    let raise = |best: &mut Lanes, scores: &Lanes| {
        for i in 0..LANES {
            best[i] = if scores[i] > best[i] { scores[i] } else { best[i] };
        }
    };
    let (chunks, _) = scores.as_chunks::<LANES>();
    let (whole, rest) = chunks.split_at(visible / LANES);
    // Two at a time, to keep two chains of maxima in flight.
    let (pairs, last) = whole.as_chunks::<2>();
    let mut other = *best;
    for [even, odd] in pairs {
        raise(best, even);
        raise(&mut other, odd);
    }
    for chunk in last {
        raise(best, chunk);
    }
    if !visible.is_multiple_of(LANES) {
        raise(&mut other, &F::first(&rest[0], visible % LANES, f32::NEG_INFINITY));
    }
    raise(best, &other);
}

/// Softmax numerators of the first `visible` scores in place, `e^((s - max) * scale)`, added to the lanes of
/// their positions. `scores` are whole chunks; the rest of the last used chunk becomes zero.
#[inline(always)]
#[allow(clippy::inline_always, reason = "compiled for the caller's CPU feature")]
fn exponentiate<F: Arithmetic>(scores: &mut [f32], visible: usize, max: f32, scale: f32, sums: &mut Lanes) {
    let mut add = |chunk: &mut Lanes| {
        for i in 0..LANES {
            chunk[i] = exp::<F>((chunk[i] - max) * scale);
            sums[i] += chunk[i];
        }
    };
    let (chunks, _) = scores.as_chunks_mut::<LANES>();
    let (whole, rest) = chunks.split_at_mut(visible / LANES);
    whole.iter_mut().for_each(&mut add);
    if !visible.is_multiple_of(LANES) {
        rest[0] = F::first(&rest[0], visible % LANES, f32::NEG_INFINITY);
        add(&mut rest[0]);
        // Also if `max` is NaN, which would make NaN of the others.
        rest[0] = F::first(&rest[0], visible % LANES, 0.0);
    }
}

multiversion! {
    /// Softmax numerators of rows in place: `e^((s - max) * scale)` for the first `visible` scores of each,
    /// zero from there to `end` and to the end of its chunk. Rows are whole chunks, `width` apart. `sums`
    /// receives each row's sum.
    fn softmax<F>(scores: &mut [f32], width: usize, visible: &[usize], end: usize, scale: f32, sums: &mut Vec<f32>) {
        for (row, &visible) in scores.chunks_exact_mut(width).zip(visible) {
            let mut best = [f32::NEG_INFINITY; LANES];
            raise::<F>(&mut best, row, visible);
            let mut lanes: Lanes = [0.0; LANES];
            exponentiate::<F>(row, visible, F::greatest(&best), scale, &mut lanes);
            row[visible.next_multiple_of(LANES).min(end)..end].fill(0.0);
            sums.push(F::sum(&lanes));
        }
    }
}

multiversion! {
    fn greatest<F>(best: &Lanes) -> f32 {
        F::greatest(best)
    }
}

multiversion! {
    /// The greatest of each lane of a row, after `visible` more scores.
    fn raise_maxima<F>(scores: &[f32], visible: usize, best: &mut Lanes) {
        raise::<F>(best, scores, visible);
    }
}

multiversion! {
    /// Softmax numerators of a part of a row, its first `visible` scores; zero after them.
    fn softmax_part<F>(scores: &mut [f32], visible: usize, max: f32, scale: f32, sums: &mut Lanes) {
        exponentiate::<F>(scores, visible, max, scale, sums);
        scores[visible.next_multiple_of(LANES)..].fill(0.0);
    }
}

/// Scores of `rows` queries (a head's stride apart) against a span. Up to 15 columns beyond the span hold
/// junk.
pub(crate) fn score(
    level: SimdLevel,
    head: Head,
    queries: &[f32],
    rows: usize,
    span: &Span,
    scores: RowsMut,
) {
    let shape = ProductShape { m: rows, n: span.len.next_multiple_of(PANEL), k: head.dim };
    product(
        level,
        shape,
        &Left::rows(queries, head.stride),
        &Right::panels(span.keys, head.dim),
        &mut scores.into_out(),
        ChainStart::Zero,
    );
}

/// Adds (or sets) each row's mix of a span's values.
pub(crate) fn mix(
    level: SimdLevel,
    head: Head,
    weights: Rows,
    rows: usize,
    span: &Span,
    out: &mut [f32],
    begin: ChainStart,
) {
    let shape = ProductShape { m: rows, n: head.stride, k: span.len };
    product(
        level,
        shape,
        &Left::rows(weights.values, weights.stride),
        &Right::rows(span.values, head.stride),
        &mut Out::rows(out, head.stride),
        begin,
    );
}

/// Consecutive positions of several key and value heads.
#[derive(Clone, Copy)]
pub(crate) struct HeadsSpan<'a> {
    /// The first head's; the other heads follow.
    pub first: Span<'a>,
    /// Distance in values from one head to the next.
    pub apart: usize,
}

/// [`score`] of one query for each of several heads, one row each.
pub(crate) fn score_heads(
    level: SimdLevel,
    head: Head,
    count: usize,
    queries: Rows,
    span: &HeadsSpan,
    scores: RowsMut,
) {
    let shape = ProductShape { m: count, n: span.first.len.next_multiple_of(PANEL), k: head.dim };
    product_apart(
        level,
        shape,
        &Left::rows(queries.values, queries.stride),
        &Right::panels(span.first.keys, head.dim),
        span.apart,
        &mut scores.into_out(),
        ChainStart::Zero,
    );
}

/// [`mix`] of one row for each of several heads, one row each.
pub(crate) fn mix_heads(
    level: SimdLevel,
    head: Head,
    count: usize,
    weights: Rows,
    span: &HeadsSpan,
    out: RowsMut,
    begin: ChainStart,
) {
    let shape = ProductShape { m: count, n: head.stride, k: span.first.len };
    product_apart(
        level,
        shape,
        &Left::rows(weights.values, weights.stride),
        &Right::rows(span.first.values, head.stride),
        span.apart,
        &mut out.into_out(),
        begin,
    );
}

/// One key and value head of a group's rows, with the query heads that share it. The rows are a prompt
/// (possibly empty), then each member's rows, which see the prompt and their own.
pub(crate) struct AttentionGroup<'a> {
    /// Rows of the prompt.
    pub prompt: usize,
    /// Rows of each member.
    pub members: &'a [usize],
    /// `[heads][rows]` rows of `stride`.
    pub q: &'a [f32],
    /// `[rows][stride]`.
    pub k: &'a [f32],
    /// `[rows][stride]`.
    pub v: &'a [f32],
}

/// Products of a block's queries with the positions of a tile that they see (packed in panels). Of the
/// pieces' own stretches, these are the panels that begin in the tile.
fn score_tile(
    level: SimdLevel,
    head: Head,
    queries: &[f32],
    block: &Block,
    tile: &Range<usize>,
    packed: &[f32],
    mut scores: RowsMut,
) {
    let span = |panels: usize, part: &Range<usize>| Span {
        keys: &packed[panels + part.start * head.dim..],
        values: &[],
        len: part.len(),
    };
    if let Some(part) = block.of_prefix(tile) {
        score(level, head, queries, block.rows, &span(0, &part), scores.at(part.start));
    }
    for piece in &block.pieces {
        let Some(part) = piece.of_own(tile) else { continue };
        let part = part.start.next_multiple_of(PANEL)..part.end;
        if part.is_empty() {
            continue;
        }
        let queries = &queries[piece.at * head.stride..];
        let scores = scores.at(piece.at * scores.stride + piece.stretch.prefix + part.start);
        let span = span(piece.stretch.panels, &part);
        score(level, head, queries, piece.to - piece.from, &span, scores);
    }
}

/// Adds the mix of `source` to each row of a block, over those rows of the tile that it sees. The first tile
/// sets it.
fn mix_tile(
    level: SimdLevel,
    head: Head,
    weights: Rows,
    block: &Block,
    tile: &Range<usize>,
    source: &[f32],
    out: &mut [f32],
) {
    let stride = head.stride;
    let begin = |at: usize| if at == 0 { ChainStart::Zero } else { ChainStart::Output };
    if let Some(part) = block.of_prefix(tile) {
        let span = Span { keys: &[], values: &source[part.start * stride..], len: part.len() };
        mix(level, head, weights.at(part.start), block.rows, &span, out, begin(part.start));
    }
    for piece in &block.pieces {
        let Some(part) = piece.of_own(tile) else { continue };
        let values = &source[(piece.stretch.first + part.start) * stride..];
        let span = Span { keys: &[], values, len: part.len() };
        let column = piece.stretch.prefix + part.start;
        let (weights, out) = (weights.at(piece.at * weights.stride + column), &mut out[piece.at * stride..]);
        mix(level, head, weights, piece.to - piece.from, &span, out, begin(column));
    }
}

/// Adds the block's rows, each times its weights, to those rows of `out` in a tile that the block sees.
fn spread_tile(
    level: SimdLevel,
    head: Head,
    weights: Rows,
    block: &Block,
    tile: &Range<usize>,
    rows: &[f32],
    out: &mut [f32],
) {
    let stride = head.stride;
    let add = |weights: Rows, rows: &[f32], m: usize, k: usize, out: &mut [f32]| {
        product(
            level,
            ProductShape { m, n: stride, k },
            &Left::columns(weights.values, weights.stride),
            &Right::rows(rows, stride),
            &mut Out::rows(out, stride),
            ChainStart::Output,
        );
    };
    if let Some(part) = block.of_prefix(tile) {
        add(weights.at(part.start), rows, part.len(), block.rows, &mut out[part.start * stride..]);
    }
    for piece in &block.pieces {
        let Some(part) = piece.of_own(tile) else { continue };
        add(
            weights.at(piece.at * weights.stride + piece.stretch.prefix + part.start),
            &rows[piece.at * stride..],
            part.len(),
            piece.to - piece.from,
            &mut out[(piece.stretch.first + part.start) * stride..],
        );
    }
}

#[derive(Default)]
struct Scratch {
    keys: Floats,
    values: Floats,
    scores: Floats,
    dp: Floats,
    /// Lanes of each row of a block.
    state: Vec<Lanes>,
}

thread_local! {
    static SCRATCH: std::cell::RefCell<Scratch> = std::cell::RefCell::default();
}

/// Attention of a group: `out` as `q`; `lse` `[heads][rows]` receives `log sum e^(scale * s)`.
pub(crate) fn forward(
    level: SimdLevel,
    head: Head,
    group: &AttentionGroup,
    out: &mut [f32],
    lse: &mut [f32],
) {
    let plan = Plan::new(head, group.prompt, group.members);
    let (len, width, stride) = (plan.rows, plan.width, head.stride);
    if len == 0 {
        return;
    }
    SCRATCH.with_borrow_mut(|Scratch { keys, scores, state, .. }| {
        plan.pack(level, head, group.k, keys);
        scores.resize(plan.tallest * width);
        let heads = group.q.chunks_exact(len * stride).zip(out.chunks_exact_mut(len * stride));
        for ((q, out), lse) in heads.zip(lse.chunks_exact_mut(len)) {
            for block in &plan.blocks {
                let end = block.end();
                state.clear();
                state.resize(block.rows, [f32::NEG_INFINITY; LANES]);
                for tile in tiles(end) {
                    let queries = &q[block.first * stride..];
                    score_tile(level, head, queries, block, &tile, keys, RowsMut::new(scores, width));
                    block.for_each_row(|piece, i, at| {
                        let visible = piece.seen(i, &tile).by_row;
                        let row = &scores[at * width + tile.start..][..visible.next_multiple_of(LANES)];
                        raise_maxima(level, row, visible, &mut state[at]);
                    });
                }
                let maxima: Vec<f32> = state.iter().map(|best| greatest(level, best)).collect();
                state.fill([0.0; LANES]);
                let out = &mut out[block.first * stride..][..block.rows * stride];
                for tile in tiles(end) {
                    block.for_each_row(|piece, i, at| {
                        let Seen { by_row: visible, by_last: end } = piece.seen(i, &tile);
                        let row = &mut scores[at * width + tile.start..][..end.next_multiple_of(LANES)];
                        softmax_part(level, row, visible, maxima[at], head.scale, &mut state[at]);
                    });
                    mix_tile(level, head, Rows::new(scores, width), block, &tile, group.v, out);
                }
                for (at, row) in out.chunks_exact_mut(stride).enumerate() {
                    let sum = tree(&state[at]);
                    lse[block.first + at] = maxima[at] * head.scale + sum.ln();
                    normalise(level, row, sum);
                }
            }
        }
    });
}

multiversion! {
    /// Divides rows by their softmax sums, into `out`.
    fn divide<F>(rows: &[f32], stride: usize, sums: &[f32], out: &mut [f32]) {
        for ((row, out), &sum) in rows.chunks_exact(stride).zip(out.chunks_exact_mut(stride)).zip(sums) {
            let factor = 1.0 / sum;
            for (out, &value) in out.iter_mut().zip(row) {
                *out = value * factor;
            }
        }
    }
}

multiversion! {
    /// Divides a row by its softmax sum, as [`divide`].
    fn normalise<F>(row: &mut [f32], sum: f32) {
        let factor = 1.0 / sum;
        for value in row {
            *value *= factor;
        }
    }
}

multiversion! {
    /// Turns the scores of a part of a row into probabilities, zero from `visible` on. Adds `p * dp` to the
    /// lanes of their positions, with `dp = dO·V`. Scores and `dp` are whole chunks.
    fn probabilities<F>(scores: &mut [f32], dp: &[f32], visible: usize, scale: f32, lse: f32, sums: &mut Lanes) {
        let mut add = |s: &mut Lanes, d: &Lanes| {
            for i in 0..LANES {
                s[i] = exp::<F>(F::fma(s[i], scale, -lse));
                sums[i] = F::fma(s[i], d[i], sums[i]);
            }
        };
        let (chunks, _) = scores.as_chunks_mut::<LANES>();
        let (others, _) = dp.as_chunks::<LANES>();
        let (whole, rest) = chunks.split_at_mut(visible / LANES);
        whole.iter_mut().zip(others).for_each(|(s, d)| add(s, d));
        let mut rest = rest.iter_mut();
        if !visible.is_multiple_of(LANES) && let Some(last) = rest.next() {
            let count = visible % LANES;
            *last = F::first(last, count, f32::NEG_INFINITY);
            add(last, &F::first(&others[visible / LANES], count, 0.0));
            *last = F::first(last, count, 0.0);
        }
        rest.for_each(|chunk| *chunk = [0.0; LANES]);
    }
}

multiversion! {
    /// Computes the derivative by the scores of a part of a row, `p * (dp - delta) * scale`, into `dp`, zero
    /// from `visible` on; `delta = sum(p dp)` over the whole row. That sum is over the same products that it
    /// is subtracted from, so the derivatives of a row sum to zero as closely as f32 allows.
    fn differentiate<F>(p: &[f32], dp: &mut [f32], visible: usize, scale: f32, delta: f32) {
        for (&p, d) in p[..visible].iter().zip(&mut dp[..visible]) {
            *d = p * (*d - delta) * scale;
        }
        dp[visible..].fill(0.0);
    }
}

/// Gradients that flow back through a group.
pub(crate) struct Back<'a> {
    /// Derivative by the output `[heads][rows][stride]`.
    pub out: &'a [f32],
    /// `[heads][rows]` of [`forward`].
    pub lse: &'a [f32],
}

/// Derivatives by q, k and v. `dk` and `dv` are zero on entry. The prompt's derivatives are summed over the
/// members in order.
pub(crate) fn backward(
    level: SimdLevel,
    head: Head,
    group: &AttentionGroup,
    back: &Back,
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
) {
    let plan = Plan::new(head, group.prompt, group.members);
    let (len, width, stride) = (plan.rows, plan.width, head.stride);
    if len == 0 {
        return;
    }
    SCRATCH.with_borrow_mut(|Scratch { keys, values, scores, dp, state }| {
        plan.pack(level, head, group.k, keys);
        plan.pack(level, head, group.v, values);
        scores.resize(plan.tallest * width);
        dp.resize(plan.tallest * width);
        for (index, q) in group.q.chunks_exact(len * stride).enumerate() {
            let this = index * len * stride..(index + 1) * len * stride;
            let (dout, dq) = (&back.out[this.clone()], &mut dq[this]);
            let lse = &back.lse[index * len..][..len];
            for block in &plan.blocks {
                let here = block.first * stride..(block.first + block.rows) * stride;
                let (q, dout) = (&q[here.clone()], &dout[here.clone()]);
                let end = block.end();
                state.clear();
                state.resize(block.rows, [0.0; LANES]);
                for tile in tiles(end) {
                    score_tile(level, head, q, block, &tile, keys, RowsMut::new(scores, width));
                    score_tile(level, head, dout, block, &tile, values, RowsMut::new(dp, width));
                    block.for_each_row(|piece, i, at| {
                        let Seen { by_row: visible, by_last: end } = piece.seen(i, &tile);
                        let from = at * width + tile.start;
                        let chunks = end.next_multiple_of(LANES);
                        let (s, d) = (&mut scores[from..][..chunks], &dp[from..][..chunks]);
                        let lse = lse[block.first + at];
                        probabilities(level, s, d, visible, head.scale, lse, &mut state[at]);
                    });
                    spread_tile(level, head, Rows::new(scores, width), block, &tile, dout, dv);
                }
                for tile in tiles(end) {
                    block.for_each_row(|piece, i, at| {
                        let Seen { by_row: visible, by_last: end } = piece.seen(i, &tile);
                        let from = at * width + tile.start;
                        let (p, d) = (&scores[from..][..end], &mut dp[from..][..end]);
                        differentiate(level, p, d, visible, head.scale, tree(&state[at]));
                    });
                    let slopes = Rows::new(dp, width);
                    mix_tile(level, head, slopes, block, &tile, group.k, &mut dq[here.clone()]);
                    spread_tile(level, head, slopes, block, &tile, q, dk);
                }
            }
        }
    });
}

#[cfg(test)]
mod tests;
