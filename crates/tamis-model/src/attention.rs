//! Causal grouped-query attention over ragged sequences, forward and backward, in blocks of rows.
//!
//! A row's scores are single chains over the head; its softmax sums sixteen lanes by position; its mix of
//! values is one chain over positions. None of that depends on how keys are stored, so a row computed against
//! a cache in pieces (generation) has the bits of the same row computed in a block (training), and a row that
//! follows a shared prompt those of the same row in a sequence alone.

use crate::floats::Floats;
use crate::lanes::{LANES, Lanes, dot, exp, pad, tree};
use crate::panels::{self, pack_rows};
use crate::product::{ChainStart, Left, Out, ProductShape, Right, product, product_apart};
use crate::simd::{PANEL, SimdLevel, multiversion};

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
    /// Softmax numerators in place: `e^((s - max) * scale)` for the first `visible` scores, zero up to `end`.
    /// Returns the maximum (unscaled) and the sum. `scores` reaches to the next multiple of 16 after
    /// `visible`.
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
        let mut last = pad(tail, f32::NEG_INFINITY);
        for i in 0..LANES {
            last[i] = exp::<F>((last[i] - max) * scale);
            sums[i] += last[i];
        }
        tail.copy_from_slice(&last[..tail.len()]);
        rest[..end - visible].fill(0.0);
        (max, tree(&sums))
    }
}

/// Scores of `rows` queries (`stride` apart) against a span, into rows `width` apart; up to 15 columns beyond
/// the span are junk.
pub(crate) fn score(
    level: SimdLevel,
    head: Head,
    queries: &[f32],
    rows: usize,
    span: &Span,
    scores: &mut [f32],
    width: usize,
) {
    let shape = ProductShape { m: rows, n: span.len.next_multiple_of(PANEL), k: head.dim };
    product(
        level,
        shape,
        &Left::rows(queries, head.stride),
        &Right::panels(span.keys, head.dim),
        &mut Out::rows(scores, width),
        ChainStart::Zero,
    );
}

#[expect(clippy::too_many_arguments, reason = "a product's operands with their sizes")]
/// Adds (or sets) each row's mix of a span's values.
pub(crate) fn mix(
    level: SimdLevel,
    head: Head,
    weights: &[f32],
    width: usize,
    rows: usize,
    span: &Span,
    out: &mut [f32],
    begin: ChainStart,
) {
    let shape = ProductShape { m: rows, n: head.stride, k: span.len };
    product(
        level,
        shape,
        &Left::rows(weights, width),
        &Right::rows(span.values, head.stride),
        &mut Out::rows(out, head.stride),
        begin,
    );
}

/// Consecutive positions of several key and value heads.
#[derive(Clone, Copy)]
pub(crate) struct HeadsSpan<'a> {
    /// Of the first head, and those of the others behind it.
    pub first: Span<'a>,
    /// Values between a head and the next.
    pub apart: usize,
}

/// [`score`] of one query for each of several heads: queries and scores of a head `strides` after those of the one before.
pub(crate) fn score_heads(
    level: SimdLevel,
    head: Head,
    count: usize,
    queries: &[f32],
    span: &HeadsSpan,
    scores: &mut [f32],
    strides: (usize, usize),
) {
    let shape = ProductShape { m: count, n: span.first.len.next_multiple_of(PANEL), k: head.dim };
    product_apart(
        level,
        shape,
        &Left::rows(queries, strides.0),
        (&Right::panels(span.first.keys, head.dim), span.apart),
        &mut Out::rows(scores, strides.1),
        ChainStart::Zero,
    );
}

#[expect(clippy::too_many_arguments, reason = "a product's operands with their sizes")]
/// [`mix`] of one row for each of several heads: weights and outputs of a head `strides` after those of the one before.
pub(crate) fn mix_heads(
    level: SimdLevel,
    head: Head,
    count: usize,
    weights: &[f32],
    span: &HeadsSpan,
    out: &mut [f32],
    strides: (usize, usize),
    begin: ChainStart,
) {
    let shape = ProductShape { m: count, n: head.stride, k: span.first.len };
    product_apart(
        level,
        shape,
        &Left::rows(weights, strides.0),
        (&Right::rows(span.first.values, head.stride), span.apart),
        &mut Out::rows(out, strides.1),
        begin,
    );
}

/// One key and value head of the rows of a group, with the query heads that share it: a prompt (possibly of
/// no rows), then the rows of each member, which see the prompt and their own.
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

/// Consecutive rows that are causal among themselves and see `prefix` positions before them.
#[derive(Clone, Copy)]
struct Stretch {
    first: usize,
    rows: usize,
    prefix: usize,
    /// Offset of the panels.
    panels: usize,
}

/// Rows of a stretch within a block of queries: `from..to`, the first of them at `at` in the block.
#[derive(Clone, Copy)]
struct Piece {
    stretch: Stretch,
    from: usize,
    to: usize,
    at: usize,
}

impl Piece {
    /// Positions that the last row sees.
    fn end(&self) -> usize {
        self.stretch.prefix + self.to
    }

    /// Positions that row `i` of the piece sees.
    fn visible(&self, i: usize) -> usize {
        self.stretch.prefix + self.from + i + 1
    }
}

/// Query rows `first..first + rows` of a group: one piece of the prompt, or pieces of several members.
struct Block {
    first: usize,
    rows: usize,
    prefix: usize,
    pieces: Vec<Piece>,
}

/// A group's rows cut into stretches and blocks.
struct Plan {
    rows: usize,
    stretches: Vec<Stretch>,
    blocks: Vec<Block>,
    /// Values of all panels of a `[rows][dim]` matrix.
    packed: usize,
    /// Between rows of scores.
    width: usize,
}

impl Plan {
    fn new(head: Head, prompt: usize, members: &[usize]) -> Self {
        let mut plan = Self { rows: 0, stretches: Vec::new(), blocks: Vec::new(), packed: 0, width: 0 };
        for (i, &rows) in std::iter::once(&prompt).chain(members).enumerate() {
            let prefix = if i == 0 { 0 } else { prompt };
            if rows > 0 {
                plan.stretches.push(Stretch { first: plan.rows, rows, prefix, panels: plan.packed });
                plan.packed += panels::len(rows, head.dim);
                plan.rows += rows;
                // Scores are written in whole panels from the prefix's end on.
                plan.width = plan.width.max((prefix + rows.next_multiple_of(PANEL)).next_multiple_of(PANEL));
            }
        }
        // An odd number of cache lines: rows a power of two apart would all fall into the same few sets of the cache.
        plan.width = ((plan.width / PANEL) | 1) * PANEL;
        for stretch in &plan.stretches {
            let mut from = 0;
            while from < stretch.rows {
                // Rows after a prompt share a block with their neighbours' while there is room.
                let joins = |block: &Block| stretch.prefix > 0 && block.prefix > 0 && block.rows < BLOCK;
                if !plan.blocks.last().is_some_and(joins) {
                    let first = stretch.first + from;
                    plan.blocks.push(Block { first, rows: 0, prefix: stretch.prefix, pieces: Vec::new() });
                }
                let Some(block) = plan.blocks.last_mut() else { break };
                let to = stretch.rows.min(from + BLOCK - block.rows);
                block.pieces.push(Piece { stretch: *stretch, from, to, at: block.rows });
                block.rows += to - from;
                from = to;
            }
        }
        plan
    }

    /// Packs the rows of every stretch into panels of its own.
    fn pack(&self, head: Head, source: &[f32], out: &mut Floats) {
        out.resize(self.packed);
        for stretch in &self.stretches {
            let out = &mut out[stretch.panels..][..panels::len(stretch.rows, head.dim)];
            pack_rows(&source[stretch.first * head.stride..], stretch.rows, head.dim, head.stride, out);
        }
    }
}

/// Products of a block's queries with what they see (packed in panels), into rows `width` apart.
fn score_block(
    level: SimdLevel,
    head: Head,
    queries: &[f32],
    block: &Block,
    packed: &[f32],
    scores: &mut [f32],
    width: usize,
) {
    if block.prefix > 0 {
        let span = Span { keys: packed, values: &[], len: block.prefix };
        score(level, head, queries, block.rows, &span, scores, width);
    }
    for piece in &block.pieces {
        let span = Span { keys: &packed[piece.stretch.panels..], values: &[], len: piece.to };
        let queries = &queries[piece.at * head.stride..];
        let scores = &mut scores[piece.at * width + piece.stretch.prefix..];
        score(level, head, queries, piece.to - piece.from, &span, scores, width);
    }
}

/// Sets each row of a block to its weights' mix of the rows of `source` that it sees.
fn mix_block(
    level: SimdLevel,
    head: Head,
    weights: &[f32],
    width: usize,
    block: &Block,
    source: &[f32],
    out: &mut [f32],
) {
    let stride = head.stride;
    let mut begin = ChainStart::Zero;
    if block.prefix > 0 {
        let span = Span { keys: &[], values: source, len: block.prefix };
        mix(level, head, weights, width, block.rows, &span, out, begin);
        begin = ChainStart::Output;
    }
    for piece in &block.pieces {
        let span = Span { keys: &[], values: &source[piece.stretch.first * stride..], len: piece.to };
        let (weights, out) =
            (&weights[piece.at * width + piece.stretch.prefix..], &mut out[piece.at * stride..]);
        mix(level, head, weights, width, piece.to - piece.from, &span, out, begin);
    }
}

/// Adds to the rows of `out` that a block sees the block's rows, each by its weights.
fn spread_block(
    level: SimdLevel,
    head: Head,
    weights: &[f32],
    width: usize,
    block: &Block,
    rows: &[f32],
    out: &mut [f32],
) {
    let stride = head.stride;
    let add = |weights: &[f32], rows: &[f32], shape: ProductShape, out: &mut [f32]| {
        product(
            level,
            shape,
            &Left::columns(weights, width),
            &Right::rows(rows, stride),
            &mut Out::rows(out, stride),
            ChainStart::Output,
        );
    };
    if block.prefix > 0 {
        add(weights, rows, ProductShape { m: block.prefix, n: stride, k: block.rows }, out);
    }
    for piece in &block.pieces {
        add(
            &weights[piece.at * width + piece.stretch.prefix..],
            &rows[piece.at * stride..],
            ProductShape { m: piece.to, n: stride, k: piece.to - piece.from },
            &mut out[piece.stretch.first * stride..],
        );
    }
}

/// Buffers of a thread.
#[derive(Default)]
struct Scratch {
    keys: Floats,
    values: Floats,
    scores: Floats,
    dp: Floats,
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
    SCRATCH.with_borrow_mut(|Scratch { keys, scores, .. }| {
        plan.pack(head, group.k, keys);
        scores.resize(BLOCK * width);
        let heads = group.q.chunks_exact(len * stride).zip(out.chunks_exact_mut(len * stride));
        for ((q, out), lse) in heads.zip(lse.chunks_exact_mut(len)) {
            for block in &plan.blocks {
                score_block(level, head, &q[block.first * stride..], block, keys, scores, width);
                let mut sums = [0.0; BLOCK];
                for piece in &block.pieces {
                    for i in 0..piece.to - piece.from {
                        let at = piece.at + i;
                        let row = &mut scores[at * width..][..width];
                        let (max, sum) = softmax(level, row, piece.visible(i), piece.end(), head.scale);
                        sums[at] = sum;
                        lse[block.first + at] = max * head.scale + sum.ln();
                    }
                }
                let out = &mut out[block.first * stride..][..block.rows * stride];
                mix_block(level, head, scores, width, block, group.v, out);
                for (row, sum) in out.chunks_exact_mut(stride).zip(sums) {
                    normalise(level, row, sum);
                }
            }
        }
    });
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
    /// From scores and `dp = dO·V` of one row: probabilities into `scores`,
    /// `ds = p * (dp - sum(p dp)) * scale` into `dp`; both zero from `visible` to `end`. The sum is taken
    /// over the same products that it is subtracted from, so `ds` sums to zero as closely as f32 allows.
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

/// Gradients that flow back through a group.
pub(crate) struct Back<'a> {
    /// Derivative by the output `[heads][rows][stride]`.
    pub out: &'a [f32],
    /// `[heads][rows]` of [`forward`].
    pub lse: &'a [f32],
}

/// Derivatives by q, k and v; `dk` and `dv` are zero on entry. Those of the prompt gather over the members in
/// order.
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
    SCRATCH.with_borrow_mut(|Scratch { keys, values, scores, dp }| {
        plan.pack(head, group.k, keys);
        plan.pack(head, group.v, values);
        scores.resize(BLOCK * width);
        dp.resize(BLOCK * width);
        for (index, q) in group.q.chunks_exact(len * stride).enumerate() {
            let this = index * len * stride..(index + 1) * len * stride;
            let (dout, dq) = (&back.out[this.clone()], &mut dq[this]);
            let lse = &back.lse[index * len..][..len];
            for block in &plan.blocks {
                let here = block.first * stride..(block.first + block.rows) * stride;
                let (q, dout) = (&q[here.clone()], &dout[here.clone()]);
                score_block(level, head, q, block, keys, scores, width);
                score_block(level, head, dout, block, values, dp, width);
                for piece in &block.pieces {
                    for i in 0..piece.to - piece.from {
                        let at = piece.at + i;
                        let (s, d) = (&mut scores[at * width..][..width], &mut dp[at * width..][..width]);
                        let lse = lse[block.first + at];
                        softmax_backward(level, s, d, piece.visible(i), piece.end(), head.scale, lse);
                    }
                }
                mix_block(level, head, dp, width, block, group.k, &mut dq[here]);
                spread_block(level, head, dp, width, block, q, dk);
                spread_block(level, head, scores, width, block, dout, dv);
            }
        }
    });
}
