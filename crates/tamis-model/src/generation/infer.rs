//! One forward step of the generator over rows of many sequences: either whole prompts, or one new token
//! each.
//!
//! Every operation is the training pass's own, or keeps its order per row. So the logits have the same bits.

use std::sync::atomic::{AtomicBool, Ordering};

use super::cache::{Cache, CacheShape, Prefix};
use crate::activation;
use crate::attention::{Head, divide, mix, mix_heads, score, score_heads, softmax};
use crate::floats::Floats;
use crate::linear;
use crate::model::Model;
use crate::norm;
use crate::product::{ChainStart, Rows, RowsMut};
use crate::rotary::Rotary;
use crate::simd::{APART, PANEL};
use crate::threads::{Parts, Threads};
use crate::training::{copy_head, embed_token, place_head};

/// Query rows per block of a prompt's attention.
const ROWS: usize = 24;

pub(super) struct Item<'a> {
    pub tokens: &'a [u32],
    /// Cached positions before the sequence's own.
    pub prefix: Option<&'a Prefix>,
    /// The sequence's own positions, with room for the new tokens.
    pub cache: &'a mut Cache,
}

impl Item<'_> {
    fn prefix_len(&self) -> usize {
        self.prefix.map_or(0, Prefix::len)
    }

    /// Whether both attend to the same prefix, with one new token each.
    fn joins(&self, other: &Self) -> bool {
        let same = match (self.prefix, other.prefix) {
            (Some(a), Some(b)) => a.is_same(b),
            _ => false,
        };
        same && self.tokens.len() == 1 && other.tokens.len() == 1
    }
}

/// Consecutive rows that attend together: tokens `from..to` of `first_item`, or one token of each of several
/// items.
#[derive(Clone, Copy)]
struct Unit {
    row: usize,
    rows: usize,
    item: usize,
    /// First token of the item, for a prompt.
    token: usize,
    joined: bool,
}

#[derive(Debug, Default)]
pub(super) struct InferScratch {
    stream: Floats,
    normed: Floats,
    raw_q: Floats,
    raw_k: Floats,
    raw_v: Floats,
    /// `[kv heads][rows][heads per kv][stride]`.
    queries: Floats,
    mixed_heads: Floats,
    mixed: Floats,
    gate: Floats,
    up: Floats,
    act: Floats,
    head: Vec<f32>,
    /// `[items][V]` of the last token of each item.
    pub logits: Floats,
}

#[derive(Clone, Copy)]
pub(super) struct InferContext<'a> {
    pub threads: &'a Threads,
    pub model: &'a Model,
    pub rotary: &'a Rotary,
    pub shape: CacheShape,
    /// Nothing is sampled after these tokens; only their keys and values are needed.
    pub fills_caches: bool,
    /// Polled between layers, see [`BatchGenerator::stop_on`](super::BatchGenerator::stop_on).
    pub stop: Option<&'a AtomicBool>,
}

impl<'a> InferContext<'a> {
    pub(super) fn new(
        threads: &'a Threads,
        model: &'a Model,
        rotary: &'a Rotary,
        shape: CacheShape,
        stop: Option<&'a AtomicBool>,
    ) -> Self {
        Self { threads, model, rotary, shape, fills_caches: false, stop }
    }

    /// The same context, without sampling.
    pub(super) fn filling_caches(self) -> Self {
        Self { fills_caches: true, ..self }
    }
}

/// Runs the items' new tokens and extends their caches. Leaves the logits after each item's last token in the
/// scratch, unless it only [fills caches](InferContext::fills_caches).
pub(super) fn infer(context: InferContext, items: &mut [Item], scratch: &mut InferScratch) {
    let InferContext { threads, model, .. } = context;
    let config = model.config();
    let layout = model.layout();
    let rows: usize = items.iter().map(|item| item.tokens.len()).sum();
    let (d, f) = (config.hidden_size, config.intermediate_size);
    let head = Head::new(config.head_dim);
    let (q_width, kv_width) = (config.num_heads * head.dim, config.num_kv_heads * head.dim);
    let eps = config.rms_norm_eps as f32;
    let mut units = units(items, config.heads_per_kv());
    let mut positions: Vec<usize> = items
        .iter()
        .flat_map(|item| (0..item.tokens.len()).map(|t| item.prefix_len() + item.cache.len + t))
        .collect();
    for (buffer, width) in [
        (&mut scratch.stream, d),
        (&mut scratch.normed, d),
        (&mut scratch.raw_k, kv_width),
        (&mut scratch.raw_v, kv_width),
    ] {
        buffer.resize(rows * width);
    }
    let tokens = items.iter().flat_map(|item| item.tokens);
    for (&token, row) in tokens.zip(scratch.stream.chunks_exact_mut(d)) {
        embed_token(model, token, row);
    }
    let mut is_whole = true;
    for (index, tensors) in layout.layers.iter().enumerate() {
        if context.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            // The result is not used, but has the right shape.
            is_whole = false;
            break;
        }
        norm::forward(threads, &scratch.stream, model.weight(tensors.input_norm), eps, &mut scratch.normed);
        let bias = |i: usize| tensors.qkv_bias.map(|bias| bias[i]);
        for (i, weight, out) in [(1, tensors.k, &mut scratch.raw_k), (2, tensors.v, &mut scratch.raw_v)] {
            linear::forward(
                threads,
                model,
                weight,
                bias(i),
                &scratch.normed,
                RowsMut::new(out, kv_width),
                ChainStart::Zero,
            );
        }
        place_keys(context, index, items, scratch);
        if context.fills_caches && index + 1 == layout.layers.len() {
            break;
        }
        if index + 1 == layout.layers.len() && positions.len() > items.len() {
            // After the last layer, only rows that are sampled from are read.
            keep_last(items, d, scratch);
            units = last_units(items);
            positions =
                items.iter().map(|item| item.prefix_len() + item.cache.len + item.tokens.len() - 1).collect();
        }
        let rows = positions.len();
        for (buffer, width) in [
            (&mut scratch.raw_q, q_width),
            (&mut scratch.queries, config.num_heads * head.stride),
            (&mut scratch.mixed_heads, config.num_heads * head.stride),
            (&mut scratch.mixed, q_width),
            (&mut scratch.gate, f),
            (&mut scratch.up, f),
            (&mut scratch.act, f),
        ] {
            buffer.resize(rows * width);
        }
        linear::forward(
            threads,
            model,
            tensors.q,
            bias(0),
            &scratch.normed,
            RowsMut::new(&mut scratch.raw_q, q_width),
            ChainStart::Zero,
        );
        place_queries(context, index, &positions, scratch);
        attend(context, index, items, &units, scratch, rows);
        linear::forward(
            threads,
            model,
            tensors.o,
            tensors.o_bias,
            &scratch.mixed,
            RowsMut::new(&mut scratch.stream, d),
            ChainStart::Output,
        );
        norm::forward(threads, &scratch.stream, model.weight(tensors.mlp_norm), eps, &mut scratch.normed);
        linear::forward(
            threads,
            model,
            tensors.gate,
            None,
            &scratch.normed,
            RowsMut::new(&mut scratch.gate, f),
            ChainStart::Zero,
        );
        linear::forward(
            threads,
            model,
            tensors.up,
            None,
            &scratch.normed,
            RowsMut::new(&mut scratch.up, f),
            ChainStart::Zero,
        );
        activation::forward(threads, &scratch.gate, &scratch.up, &mut scratch.act);
        linear::forward(
            threads,
            model,
            tensors.down,
            None,
            &scratch.act,
            RowsMut::new(&mut scratch.stream, d),
            ChainStart::Output,
        );
    }
    for item in items.iter_mut() {
        item.cache.len += item.tokens.len();
    }
    if context.fills_caches {
        return;
    }
    let vocab = config.vocab_size.next_multiple_of(PANEL);
    scratch.logits.resize(items.len() * vocab);
    if !is_whole {
        scratch.logits.fill(0.0);
        return;
    }
    norm::forward(threads, &scratch.stream, model.weight(layout.norm), eps, &mut scratch.normed);
    linear::forward(
        threads,
        model,
        layout.head,
        None,
        &scratch.normed,
        RowsMut::new(&mut scratch.logits, vocab),
        ChainStart::Zero,
    );
}

/// Keeps each item's last row of the residual stream and of the normed rows.
fn keep_last(items: &[Item], width: usize, scratch: &mut InferScratch) {
    for buffer in [&mut scratch.stream, &mut scratch.normed] {
        let mut end = 0;
        for (i, item) in items.iter().enumerate() {
            end += item.tokens.len();
            buffer.copy_within((end - 1) * width..end * width, i * width);
        }
        buffer.resize(items.len() * width);
    }
}

/// One unit per item: only its last token.
fn last_units(items: &[Item]) -> Vec<Unit> {
    let unit = |(i, item): (usize, &Item)| Unit {
        row: i,
        rows: 1,
        item: i,
        token: item.tokens.len() - 1,
        joined: false,
    };
    items.iter().enumerate().map(unit).collect()
}

/// Cuts the rows into units of attention.
fn units(items: &[Item], shared: usize) -> Vec<Unit> {
    let step = (ROWS / shared).max(1);
    let mut units: Vec<Unit> = Vec::new();
    let mut row = 0;
    for (i, item) in items.iter().enumerate() {
        let count = item.tokens.len();
        match units.last_mut() {
            Some(unit) if unit.joined && items[i - 1].joins(item) && unit.rows < 2 * step => unit.rows += 1,
            _ if count == 1 => units.push(Unit { row, rows: 1, item: i, token: 0, joined: true }),
            _ => units.extend((0..count).step_by(step).map(|token| Unit {
                row: row + token,
                rows: (count - token).min(step),
                item: i,
                token,
                joined: false,
            })),
        }
        row += count;
    }
    units
}

fn place_keys(context: InferContext, layer: usize, items: &mut [Item], scratch: &mut InferScratch) {
    let InferContext { threads, model, rotary, shape, .. } = context;
    let config = model.config();
    let (kv, head) = (config.num_kv_heads, Head::new(config.head_dim));
    let eps = config.rms_norm_eps as f32;
    let norm = model.layout().layers[layer].qk_norm.map(|[_, k]| model.weight(k));
    let InferScratch { head: buffer, raw_k, raw_v, .. } = scratch;
    buffer.resize(head.dim, 0.0);
    let mut row = 0;
    for item in items {
        let first = item.prefix_len() + item.cache.len;
        for t in 0..item.tokens.len() {
            for h in 0..kv {
                let from = (row * kv + h) * head.dim;
                place_head(threads, &raw_k[from..][..head.dim], norm, eps, rotary.at(first + t), buffer);
                let position = item.cache.len + t;
                item.cache.write(shape, layer, h, position, buffer, &raw_v[from..][..head.dim]);
            }
            row += 1;
        }
    }
}

fn place_queries(context: InferContext, layer: usize, positions: &[usize], scratch: &mut InferScratch) {
    let InferContext { threads, model, rotary, .. } = context;
    let config = model.config();
    let (heads, shared, head) = (config.num_heads, config.heads_per_kv(), Head::new(config.head_dim));
    let eps = config.rms_norm_eps as f32;
    let norm = model.layout().layers[layer].qk_norm.map(|[q, _]| model.weight(q));
    let InferScratch { raw_q, queries, .. } = scratch;
    for (row, &position) in positions.iter().enumerate() {
        let angles = rotary.at(position);
        for h in 0..heads {
            let raw = &raw_q[(row * heads + h) * head.dim..][..head.dim];
            let at = ((h / shared * positions.len() + row) * shared + h % shared) * head.stride;
            place_head(threads, raw, norm, eps, angles, &mut queries[at..][..head.stride]);
        }
    }
}

/// Attention of every unit, into `mixed`.
fn attend(
    context: InferContext,
    layer: usize,
    items: &[Item],
    units: &[Unit],
    scratch: &mut InferScratch,
    rows: usize,
) {
    let InferContext { threads, model, .. } = context;
    let config = model.config();
    let (heads, kv, shared) = (config.num_heads, config.num_kv_heads, config.heads_per_kv());
    let head = Head::new(config.head_dim);
    let per_row = shared * head.stride;
    {
        let lengths = (0..kv).flat_map(|_| units.iter().map(|unit| unit.rows * per_row));
        let parts = Parts::new(&mut scratch.mixed_heads, lengths);
        let queries = &scratch.queries;
        let at_once = heads_at_once(shared, kv * units.len(), threads.num_threads());
        let tasks: Vec<(usize, usize)> = (0..units.len())
            .flat_map(|index| {
                let step = if units[index].joined { at_once } else { 1 };
                (0..kv).step_by(step).map(move |first| (index, first))
            })
            .collect();
        threads.run(tasks.len(), |task| {
            let (index, first) = tasks[task];
            let unit = units[index];
            let count = if unit.joined { at_once.min(kv - first) } else { 1 };
            let at = Heads {
                layer,
                first,
                count,
                queries: &queries[(first * rows + unit.row) * per_row..],
                apart: rows * per_row,
            };
            attend_unit(context, items, unit, at, |i| parts.take((first + i) * units.len() + index));
        });
    }
    let width = heads * head.dim;
    for (row, out) in scratch.mixed.chunks_exact_mut(width).enumerate() {
        for (h, out) in out.chunks_exact_mut(head.dim).enumerate() {
            let at = ((h / shared * rows + row) * shared + h % shared) * head.stride;
            copy_head(&scratch.mixed_heads[at..][..head.dim], out);
        }
    }
}

/// Heads that a sequence attends with at once. One query per key is too short a chain to fill the processor's
/// pipelines, so several heads are computed together. If queries share a key there are several chains anyway,
/// and heads are left to the threads.
fn heads_at_once(shared: usize, num_parts: usize, num_threads: usize) -> usize {
    if shared == 1 && (num_threads == 1 || num_parts >= 4 * APART * num_threads) { APART } else { 1 }
}

/// Key and value heads of a layer that a unit attends with.
#[derive(Clone, Copy)]
struct Heads<'a> {
    layer: usize,
    first: usize,
    count: usize,
    /// The unit's queries of the first head; those of the next are `apart` values behind.
    queries: &'a [f32],
    apart: usize,
}

thread_local! {
    /// Scores of the current unit, and the mix of values.
    static SCORES: std::cell::RefCell<[Floats; 2]> = const { std::cell::RefCell::new([Floats::new(), Floats::new()]) };
}

fn attend_unit<'a>(
    context: InferContext,
    items: &[Item],
    unit: Unit,
    heads: Heads,
    out: impl Fn(usize) -> &'a mut [f32],
) {
    let InferContext { threads, model, shape, .. } = context;
    let Heads { layer, first, count, queries, apart } = heads;
    let shared = model.config().heads_per_kv();
    let (level, head) = (threads.level(), Head::new(model.config().head_dim));
    let mine =
        if unit.joined { &items[unit.item..unit.item + unit.rows] } else { &items[unit.item..=unit.item] };
    // Items that attend separately to positions of their own.
    let apart_items = if unit.joined { mine } else { &[] };
    let prefix_len = mine[0].prefix_len();
    // Positions that all rows score together: the prefix, and in a prompt also its own positions up to the
    // unit's last row.
    let own = |item: &Item| item.cache.len + if unit.joined { 1 } else { unit.token + unit.rows };
    let together = prefix_len + if unit.joined { 0 } else { own(&mine[0]) };
    let longest = mine.iter().map(|item| prefix_len + own(item)).max().unwrap_or(0);
    let width = longest.next_multiple_of(PANEL) + PANEL;
    let rows = unit.rows * shared;
    let (scores_apart, mixed_apart) = (rows * width, rows * head.stride);
    let common = |kv_head: usize| {
        let prefix = mine[0].prefix.into_iter().flat_map(move |prefix| prefix.spans(shape, layer, kv_head));
        let own = (!unit.joined).then(|| mine[0].cache.spans(shape, layer, kv_head, own(&mine[0])));
        prefix.chain(own.into_iter().flatten())
    };
    let common_heads =
        || mine[0].prefix.into_iter().flat_map(|prefix| prefix.heads_spans(shape, layer, first));
    SCORES.with_borrow_mut(|[scores, mixed]| {
        scores.resize(count * scores_apart);
        mixed.resize(count * mixed_apart);
        if count > 1 && rows == 1 {
            let mut at = 0;
            for span in common_heads() {
                let scores = RowsMut::new(&mut scores[at..], scores_apart);
                score_heads(level, head, count, Rows::new(queries, apart), &span, scores);
                at += span.first.len;
            }
        } else {
            for i in 0..count {
                let mut at = i * scores_apart;
                for span in common(first + i) {
                    let scores = RowsMut::new(&mut scores[at..], width);
                    score(level, head, &queries[i * apart..], rows, &span, scores);
                    at += span.len;
                }
            }
        }
        for (i, item) in apart_items.iter().enumerate() {
            let queries = &queries[i * shared * head.stride..];
            let mut at = i * shared * width + together;
            if count > 1 {
                for span in item.cache.heads_spans(shape, layer, first, own(item)) {
                    let scores = RowsMut::new(&mut scores[at..], scores_apart);
                    score_heads(level, head, count, Rows::new(queries, apart), &span, scores);
                    at += span.first.len;
                }
            } else {
                for span in item.cache.spans(shape, layer, first, own(item)) {
                    let scores = RowsMut::new(&mut scores[at..], width);
                    score(level, head, queries, shared, &span, scores);
                    at += span.len;
                }
            }
        }
        let visible: Vec<usize> = (0..count * rows)
            .map(|i| {
                let (item, row) = (i % rows / shared, i / shared);
                if unit.joined { prefix_len + own(&mine[item]) } else { together - unit.rows + row + 1 }
            })
            .collect();
        let mut sums = Vec::with_capacity(visible.len());
        softmax(level, scores, width, &visible, longest, head.scale, &mut sums);
        let begin = if together > 0 { ChainStart::Output } else { ChainStart::Zero };
        if count > 1 && rows == 1 {
            let (mut begin, mut at) = (ChainStart::Zero, 0);
            for span in common_heads() {
                let weights = Rows::new(&scores[at..], scores_apart);
                mix_heads(level, head, count, weights, &span, RowsMut::new(mixed, mixed_apart), begin);
                begin = ChainStart::Output;
                at += span.first.len;
            }
        } else {
            for i in 0..count {
                let (mut begin, mut at) = (ChainStart::Zero, i * scores_apart);
                for span in common(first + i) {
                    let out = &mut mixed[i * mixed_apart..];
                    mix(level, head, Rows::new(&scores[at..], width), rows, &span, out, begin);
                    begin = ChainStart::Output;
                    at += span.len;
                }
            }
        }
        for (i, item) in apart_items.iter().enumerate() {
            let (mut begin, mut at) = (begin, i * shared * width + together);
            let out = &mut mixed[i * shared * head.stride..];
            if count > 1 {
                for span in item.cache.heads_spans(shape, layer, first, own(item)) {
                    let (weights, out) =
                        (Rows::new(&scores[at..], scores_apart), RowsMut::new(out, mixed_apart));
                    mix_heads(level, head, count, weights, &span, out, begin);
                    begin = ChainStart::Output;
                    at += span.first.len;
                }
            } else {
                for span in item.cache.spans(shape, layer, first, own(item)) {
                    mix(level, head, Rows::new(&scores[at..], width), shared, &span, out, begin);
                    begin = ChainStart::Output;
                    at += span.len;
                }
            }
        }
        for (i, mixed) in mixed.chunks_exact(mixed_apart).enumerate() {
            divide(level, mixed, head.stride, &sums[i * rows..], out(i));
        }
    });
}
