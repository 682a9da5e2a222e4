//! One transformer layer over ragged rows, forward and backward.

use super::batch::{PackedBatch, PackedGroup};
use super::gradients::Gradients;
use super::watch::PassWatch;
use crate::activation;
use crate::attention::{self, AttentionGroup, Back, Head};
use crate::floats::Floats;
use crate::layout::Layer;
use crate::linear::{self, Flipped};
use crate::model::Model;
use crate::norm;
use crate::product::{ChainStart, Rows, RowsMut};
use crate::rotary::{Angles, Rotary, rotate, rotate_back, rotate_into};
use crate::simd::lanes::{LANES, pad};
use crate::threads::{Parts, Threads};

/// Rows per task of row-wise work, whatever the number of threads.
const ROWS: usize = 64;

/// Inputs of a layer beside its activations.
#[derive(Clone, Copy)]
pub(super) struct LayerContext<'a> {
    pub threads: &'a Threads,
    pub model: &'a Model,
    pub rotary: &'a Rotary,
    pub batch: &'a PackedBatch,
    /// Weights in the order of the backward product, if they are kept.
    pub flipped: Option<&'a [Floats]>,
    /// Polled before each layer; a layer that has begun is finished.
    pub watch: &'a PassWatch,
}

/// Results of a layer's forward pass that the backward pass needs.
#[derive(Debug, Default)]
pub(super) struct Saved {
    /// Before norm and rotation `[N][heads * dim]`; kept if heads are normalised.
    raw_q: Floats,
    raw_k: Floats,
    /// By group of sequences: `[heads][rows][stride]`.
    q: Floats,
    k: Floats,
    v: Floats,
    /// By group: `[heads][rows]`.
    lse: Floats,
    /// Attention's output `[N][heads * dim]`.
    mixed: Floats,
    /// After attention `[N][d]`.
    middle: Floats,
    gate: Floats,
    up: Floats,
}

/// Buffers shared by all layers.
#[derive(Debug, Default)]
pub(super) struct LayerScratch {
    /// Derivative by the residual stream `[N][d]`.
    pub stream: Floats,
    normed: Floats,
    /// Used if [`Saved`] does not keep them.
    raw_q: Floats,
    raw_k: Floats,
    raw_v: Floats,
    act: Floats,
    heads: Floats,
    dheads: Floats,
    dq: Floats,
    dk: Floats,
    dv: Floats,
    drows: Floats,
    dnormed: Floats,
    packed: Floats,
    flipped: Floats,
}

impl Saved {
    pub(super) fn room(&self) -> usize {
        let Self { raw_q, raw_k, q, k, v, lse, mixed, middle, gate, up } = self;
        [raw_q, raw_k, q, k, v, lse, mixed, middle, gate, up].iter().map(|buffer| buffer.room()).sum()
    }
}

impl LayerScratch {
    pub(super) fn room(&self) -> usize {
        let Self {
            stream,
            normed,
            raw_q,
            raw_k,
            raw_v,
            act,
            heads,
            dheads,
            dq,
            dk,
            dv,
            drows,
            dnormed,
            packed,
            flipped,
        } = self;
        [stream, normed, raw_q, raw_k, raw_v, act, heads, dheads, dq, dk, dv, drows, dnormed, packed, flipped]
            .iter()
            .map(|buffer| buffer.room())
            .sum()
    }
}

#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv: usize,
    shared: usize,
    head: Head,
}

/// A part of a `[group][kv head]` buffer.
struct Part<'a> {
    group: &'a PackedGroup,
    kv_head: usize,
    /// Its first row, if each row of the buffer is one.
    first: usize,
}

impl<'c> LayerContext<'c> {
    fn shape(&self) -> Shape {
        let config = self.model.config();
        Shape {
            heads: config.num_heads,
            kv: config.num_kv_heads,
            shared: config.heads_per_kv(),
            head: Head::new(config.head_dim),
        }
    }

    /// Lengths of the parts of a `[group][kv head]` buffer with `per_row` values each.
    fn parts(&self, per_row: usize) -> impl Iterator<Item = usize> + '_ {
        let kv = self.model.config().num_kv_heads;
        self.batch.groups.iter().flat_map(move |group| std::iter::repeat_n(group.rows.len() * per_row, kv))
    }

    fn part(&self, task: usize) -> Part<'c> {
        let kv = self.model.config().num_kv_heads;
        let (group, kv_head) = (&self.batch.groups[task / kv], task % kv);
        Part { group, kv_head, first: group.rows.start * kv + kv_head * group.rows.len() }
    }

    fn num_parts(&self) -> usize {
        self.batch.groups.len() * self.model.config().num_kv_heads
    }
}

/// `out = layer(x)`.
pub(super) fn forward(
    context: &LayerContext,
    tensors: &Layer,
    x: &[f32],
    saved: &mut Saved,
    scratch: &mut LayerScratch,
    out: &mut [f32],
) {
    let LayerContext { threads, model, batch, .. } = *context;
    let config = model.config();
    let shape = context.shape();
    let rows = batch.num_rows();
    let eps = config.rms_norm_eps as f32;
    let (q_width, kv_width) = (shape.heads * shape.head.dim, shape.kv * shape.head.dim);

    scratch.normed.resize(rows * config.hidden_size);
    norm::forward(threads, x, model.weight(tensors.input_norm), eps, &mut scratch.normed);
    let bias = |i: usize| tensors.qkv_bias.map(|bias| bias[i]);
    // Only a norm's backward pass needs queries and keys as they were before it.
    let Saved { raw_q, raw_k, q, k, v, .. } = &mut *saved;
    let LayerScratch { normed, raw_q: lost_q, raw_k: lost_k, raw_v, .. } = &mut *scratch;
    let (raw_q, raw_k) = if tensors.qk_norm.is_some() { (raw_q, raw_k) } else { (lost_q, lost_k) };
    for (i, weight, out, width) in [
        (0, tensors.q, &mut *raw_q, q_width),
        (1, tensors.k, &mut *raw_k, kv_width),
        (2, tensors.v, &mut *raw_v, kv_width),
    ] {
        out.resize(rows * width);
        linear::forward(threads, model, weight, bias(i), normed, RowsMut::new(out, width), ChainStart::Zero);
    }
    split_heads(context, tensors, [raw_q, raw_k, raw_v], [q, k, v]);
    attend(context, saved, &mut scratch.heads);
    merge_heads(context, &scratch.heads, &mut saved.mixed);

    saved.middle.resize(rows * config.hidden_size);
    saved.middle.copy_from_slice(x);
    linear::forward(
        threads,
        model,
        tensors.o,
        tensors.o_bias,
        &saved.mixed,
        RowsMut::new(&mut saved.middle, config.hidden_size),
        ChainStart::Output,
    );
    norm::forward(threads, &saved.middle, model.weight(tensors.mlp_norm), eps, &mut scratch.normed);
    let width = config.intermediate_size;
    for (weight, out) in [(tensors.gate, &mut saved.gate), (tensors.up, &mut saved.up)] {
        out.resize(rows * width);
        linear::forward(
            threads,
            model,
            weight,
            None,
            &scratch.normed,
            RowsMut::new(out, width),
            ChainStart::Zero,
        );
    }
    scratch.act.resize(rows * width);
    activation::forward(threads, &saved.gate, &saved.up, &mut scratch.act);
    out.copy_from_slice(&saved.middle);
    linear::forward(
        threads,
        model,
        tensors.down,
        None,
        &scratch.act,
        RowsMut::new(out, config.hidden_size),
        ChainStart::Output,
    );
}

/// Normalises one head (if the family does) and rotates it, from `raw` into `out`.
pub(crate) fn place_head(
    threads: &Threads,
    raw: &[f32],
    weight: Option<&[f32]>,
    eps: f32,
    angles: Angles,
    out: &mut [f32],
) {
    let (live, padding) = out.split_at_mut(raw.len());
    match weight {
        Some(weight) => {
            norm::rms_norm(threads.level(), raw, weight, eps, live);
            rotate(threads.level(), live, angles);
        }
        None => rotate_into(threads.level(), raw, angles, live),
    }
    padding.fill(0.0);
}

pub(crate) fn copy_head(values: &[f32], out: &mut [f32]) {
    let (lanes, tail) = values.as_chunks::<LANES>();
    let (out, out_tail) = out.as_chunks_mut::<LANES>();
    // Whole registers at once: a call for so few values would cost more than the copy.
    out.iter_mut().zip(lanes).for_each(|(out, lanes)| *out = *lanes);
    if let Some(last) = out.get_mut(lanes.len()) {
        *last = pad(tail, 0.0);
    } else {
        out_tail.copy_from_slice(tail);
    }
}

fn split_heads(
    context: &LayerContext,
    tensors: &Layer,
    [raw_q, raw_k, raw_v]: [&Floats; 3],
    [q, k, v]: [&mut Floats; 3],
) {
    let LayerContext { threads, model, rotary, batch, .. } = *context;
    let Shape { heads, kv, shared, head } = context.shape();
    let eps = model.config().rms_norm_eps as f32;
    let weights = tensors.qk_norm.map(|[q, k]| (model.weight(q), model.weight(k)));
    let rows = batch.num_rows();
    q.resize(rows * heads * head.stride);
    k.resize(rows * kv * head.stride);
    v.resize(rows * kv * head.stride);
    let parts = (
        Parts::new(q, context.parts(shared * head.stride)),
        Parts::new(k, context.parts(head.stride)),
        Parts::new(v, context.parts(head.stride)),
    );
    threads.run(context.num_parts(), |task| {
        let Part { group, kv_head, .. } = context.part(task);
        let (q, k, v) = (parts.0.take(task), parts.1.take(task), parts.2.take(task));
        let len = group.rows.len();
        for (t, row) in group.rows.clone().enumerate() {
            let angles = rotary.at(batch.rows[row].position as usize);
            for i in 0..shared {
                let raw = &raw_q[(row * heads + kv_head * shared + i) * head.dim..][..head.dim];
                let out = &mut q[(i * len + t) * head.stride..][..head.stride];
                place_head(threads, raw, weights.map(|w| w.0), eps, angles, out);
            }
            let from = (row * kv + kv_head) * head.dim;
            let out = &mut k[t * head.stride..][..head.stride];
            place_head(threads, &raw_k[from..][..head.dim], weights.map(|w| w.1), eps, angles, out);
            copy_head(&raw_v[from..][..head.dim], &mut v[t * head.stride..][..head.stride]);
        }
    });
}

fn attend(context: &LayerContext, saved: &mut Saved, out: &mut Floats) {
    let LayerContext { threads, batch, .. } = *context;
    let Shape { heads, shared, head, .. } = context.shape();
    out.resize(saved.q.len());
    saved.lse.resize(batch.num_rows() * heads);
    let parts = (
        Parts::new(out, context.parts(shared * head.stride)),
        Parts::new(&mut saved.lse, context.parts(shared)),
    );
    let Saved { q, k, v, .. } = saved;
    threads.run(context.num_parts(), |task| {
        let group = group(context, q, k, v, task);
        attention::forward(threads.level(), head, &group, parts.0.take(task), parts.1.take(task));
    });
}

fn group<'a>(
    context: &LayerContext<'a>,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    task: usize,
) -> AttentionGroup<'a> {
    let Shape { shared, head, .. } = context.shape();
    let Part { group, first, .. } = context.part(task);
    let (first, size) = (first * head.stride, group.rows.len() * head.stride);
    AttentionGroup {
        prompt: group.shared,
        members: &group.members,
        q: &q[first * shared..][..size * shared],
        k: &k[first..][..size],
        v: &v[first..][..size],
    }
}

fn merge_heads(context: &LayerContext, heads_out: &[f32], rows_out: &mut Floats) {
    let LayerContext { threads, batch, .. } = *context;
    let Shape { heads, head, .. } = context.shape();
    let width = heads * head.dim;
    rows_out.resize(batch.num_rows() * width);
    let parts = Parts::chunks(rows_out, ROWS * width);
    threads.run(batch.num_rows().div_ceil(ROWS), |task| {
        for (i, out) in parts.take(task).chunks_exact_mut(width).enumerate() {
            for (h, out) in out.chunks_exact_mut(head.dim).enumerate() {
                let from = place(context, task * ROWS + i, h, heads) * head.stride;
                copy_head(&heads_out[from..][..head.dim], out);
            }
        }
    });
}

/// Index of a row's head in a `[group][heads][rows]` buffer.
fn place(context: &LayerContext, row: usize, head: usize, heads: usize) -> usize {
    let rows = &context.batch.groups[context.batch.rows[row].group as usize].rows;
    rows.start * heads + head * rows.len() + row - rows.start
}

/// Turns the derivative by the layer's output in `stream` into that by its input, and adds to the weights'
/// gradients.
pub(super) fn backward(
    context: &LayerContext,
    tensors: &Layer,
    x: &[f32],
    saved: &mut Saved,
    scratch: &mut LayerScratch,
    gradients: &mut Gradients,
    stream: &mut [f32],
) {
    let LayerContext { threads, model, batch, .. } = *context;
    let config = model.config();
    let shape = context.shape();
    let rows = batch.num_rows();
    let eps = config.rms_norm_eps as f32;
    let (d, f) = (config.hidden_size, config.intermediate_size);
    let LayerScratch { normed, act, packed, flipped, dnormed, .. } = scratch;
    let flipped = &mut Flipped { all: context.flipped, scratch: flipped };
    normed.resize(rows * d);
    dnormed.resize(rows * d);

    // Feed-forward: `act` holds the derivative by the activation's output, then that output.
    act.resize(rows * f);
    let dy = Rows::new(stream, d);
    linear::backward_input(threads, model, tensors.down, dy, act, flipped, ChainStart::Zero);
    activation::backward(threads, &mut saved.gate, &mut saved.up, act);
    linear::pack_input(threads, act, f, packed);
    linear::backward_weight(threads, model, tensors.down, packed, dy, gradients);
    norm::forward(threads, &saved.middle, model.weight(tensors.mlp_norm), eps, normed);
    linear::pack_input(threads, normed, d, packed);
    for (weight, dy, begin) in
        [(tensors.gate, &saved.gate, ChainStart::Zero), (tensors.up, &saved.up, ChainStart::Output)]
    {
        let dy = Rows::new(dy, f);
        linear::backward_weight(threads, model, weight, packed, dy, gradients);
        linear::backward_input(threads, model, weight, dy, dnormed, flipped, begin);
    }
    let weight = model.weight(tensors.mlp_norm);
    norm::backward(threads, &saved.middle, weight, eps, dnormed, stream, gradients.of_mut(tensors.mlp_norm));

    // Attention.
    let q_width = shape.heads * shape.head.dim;
    if let Some(bias) = tensors.o_bias {
        linear::backward_bias(stream, d, gradients.of_mut(bias));
    }
    linear::pack_input(threads, &saved.mixed, q_width, packed);
    let (dy, drows) = (Rows::new(stream, d), &mut scratch.drows);
    linear::backward_weight(threads, model, tensors.o, packed, dy, gradients);
    drows.resize(rows * q_width);
    linear::backward_input(threads, model, tensors.o, dy, drows, flipped, ChainStart::Zero);
    attend_backward(context, saved, scratch);
    norm::forward(threads, x, model.weight(tensors.input_norm), eps, &mut scratch.normed);
    linear::pack_input(threads, &scratch.normed, d, &mut scratch.packed);
    let widths = [q_width, shape.kv * shape.head.dim, shape.kv * shape.head.dim];
    for (i, weight) in [tensors.q, tensors.k, tensors.v].into_iter().enumerate() {
        rows_backward(context, tensors, saved, scratch, i, gradients);
        let LayerScratch { drows, dnormed, packed, flipped, .. } = &mut *scratch;
        let flipped = &mut Flipped { all: context.flipped, scratch: flipped };
        let n = widths[i];
        if let Some(bias) = tensors.qkv_bias {
            linear::backward_bias(drows, n, gradients.of_mut(bias[i]));
        }
        let dy = Rows::new(drows, n);
        linear::backward_weight(threads, model, weight, packed, dy, gradients);
        let begin = if i == 0 { ChainStart::Zero } else { ChainStart::Output };
        linear::backward_input(threads, model, weight, dy, dnormed, flipped, begin);
    }
    let weight = model.weight(tensors.input_norm);
    norm::backward(threads, x, weight, eps, &scratch.dnormed, stream, gradients.of_mut(tensors.input_norm));
}

/// Turns the derivative by attention's rows (`drows`) into those by its heads (`dq`, `dk`, `dv`).
fn attend_backward(context: &LayerContext, saved: &Saved, scratch: &mut LayerScratch) {
    let threads = context.threads;
    let Shape { heads, shared, head, .. } = context.shape();
    let LayerScratch { drows, dheads, dq, dk, dv, .. } = scratch;
    dheads.resize(saved.q.len());
    dq.resize(saved.q.len());
    dk.resize(saved.k.len());
    dv.resize(saved.v.len());
    let parts = (
        Parts::new(dheads, context.parts(shared * head.stride)),
        Parts::new(dq, context.parts(shared * head.stride)),
        Parts::new(dk, context.parts(head.stride)),
        Parts::new(dv, context.parts(head.stride)),
    );
    threads.run(context.num_parts(), |task| {
        let group = group(context, &saved.q, &saved.k, &saved.v, task);
        let Part { group: PackedGroup { rows, .. }, kv_head, first } = context.part(task);
        let len = rows.len();
        let dout = parts.0.take(task);
        let (dq, dk, dv) = (parts.1.take(task), parts.2.take(task), parts.3.take(task));
        for i in 0..shared {
            for (t, row) in rows.clone().enumerate() {
                let from = (row * heads + kv_head * shared + i) * head.dim;
                let at = i * len + t;
                copy_head(&drows[from..][..head.dim], &mut dout[at * head.stride..][..head.stride]);
            }
        }
        dk.fill(0.0);
        dv.fill(0.0);
        let back = Back { out: dout, lse: &saved.lse[first * shared..][..shared * len] };
        attention::backward(threads.level(), head, &group, &back, dq, dk, dv);
    });
}

/// Computes the derivative by the rows of q, k or v (`which` = 0, 1, 2) into `drows`: rotated back, and back
/// through the head norm.
fn rows_backward(
    context: &LayerContext,
    tensors: &Layer,
    saved: &Saved,
    scratch: &mut LayerScratch,
    which: usize,
    gradients: &mut Gradients,
) {
    let LayerContext { threads, model, rotary, batch, .. } = *context;
    let Shape { heads, kv, head, .. } = context.shape();
    let eps = model.config().rms_norm_eps as f32;
    let count = if which == 0 { heads } else { kv };
    let source = [&scratch.dq, &scratch.dk, &scratch.dv][which];
    let raw = [&saved.raw_q, &saved.raw_k, &saved.raw_k][which];
    let norm = tensors.qk_norm.filter(|_| which < 2).map(|norms| norms[which]);
    let width = count * head.dim;
    scratch.drows.resize(batch.num_rows() * width);
    let num_tasks = batch.num_rows().div_ceil(ROWS);
    let mut sums = vec![0.0; if norm.is_some() { num_tasks * head.dim } else { 0 }];
    {
        let parts = Parts::chunks(&mut scratch.drows, ROWS * width);
        let sums = Parts::chunks(&mut sums, head.dim);
        threads.run(num_tasks, |task| {
            let sum = if norm.is_some() { sums.take(task) } else { &mut [] };
            let mut head_buffer = vec![0.0; head.dim];
            for (i, out) in parts.take(task).chunks_exact_mut(width).enumerate() {
                let row = task * ROWS + i;
                let angles = rotary.at(batch.rows[row].position as usize);
                for (h, out) in out.chunks_exact_mut(head.dim).enumerate() {
                    let from = &source[place(context, row, h, count) * head.stride..][..head.dim];
                    if which < 2 {
                        rotate_back(threads.level(), from, angles, out);
                    } else {
                        copy_head(from, out);
                    }
                    if let Some(norm) = norm {
                        head_buffer.copy_from_slice(out);
                        let raw = &raw[(row * count + h) * head.dim..][..head.dim];
                        norm::rms_norm_backward(
                            threads.level(),
                            raw,
                            model.weight(norm),
                            eps,
                            &head_buffer,
                            false,
                            out,
                            sum,
                        );
                    }
                }
            }
        });
    }
    if let Some(norm) = norm {
        norm::add_rows(&sums, gradients.of_mut(norm));
    }
}
