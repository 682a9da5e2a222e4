//! The head on the last layer, forward and backward: the final norm, then either a value head, or logits in
//! blocks of rows with log-probabilities and entropies.

use super::batch::PackedBatch;
use super::beside;
use super::gradients::Gradients;
use super::layer::LayerContext;
use super::value_head;
use crate::config::{OutputHead, TransformerConfig};
use crate::floats::Floats;
use crate::linear::{self, Flipped};
use crate::norm;
use crate::product::{ChainStart, Rows, RowsMut};
use crate::simd::PANEL;
use crate::threads::Parts;
use crate::vocabulary::{self, RowBack, Statistics};

/// Values of one block of logits: 16 MiB.
const BLOCK: usize = 4 << 20;

/// Rows per task of row-wise work.
const ROWS: usize = 16;

/// Options of a training pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassOptions {
    /// Divides the logits; positive.
    pub temperature: f32,
    /// Keep only each layer's input and recompute the rest in the backward pass: a third more work, a
    /// fraction of the memory. The gradients have the same bits.
    pub recompute: bool,
    /// Bytes of logits that are kept for the backward pass; the logits of further rows are recomputed.
    pub keep_logits_bytes: usize,
}

impl PassOptions {
    /// Default bytes of logits that are kept.
    pub const KEEP_LOGITS_BYTES: usize = 256 << 20;
}

impl Default for PassOptions {
    fn default() -> Self {
        Self { temperature: 1.0, recompute: false, keep_logits_bytes: Self::KEEP_LOGITS_BYTES }
    }
}

/// Derivatives of the objective by the head's outputs, flat over the scored tokens: by log-probabilities and
/// entropies, or by values.
pub(super) struct Upstream {
    pub(super) first: Vec<f32>,
    pub(super) second: Option<Vec<f32>>,
}

impl Upstream {
    /// Whether a chunk's gradient is 0 because no output of the head matters.
    pub(super) fn is_zero(&self, batch: &PackedBatch) -> bool {
        let own = batch.first_flat..batch.first_flat + batch.targets.len();
        let columns = std::iter::once(&self.first).chain(&self.second);
        columns.flat_map(|column| &column[own.clone()]).all(|&derivative| derivative == 0.0)
    }
}

/// Scored rows of a chunk that the backward pass needs.
#[derive(Debug, Default)]
pub(super) struct KeptRows {
    /// Scored rows `[S][d]`, before and after the final norm.
    rows: Floats,
    normed: Floats,
    /// `[S][V rounded up]`, if they are kept.
    pub(super) logits: Floats,
    statistics: Vec<Statistics>,
}

#[derive(Debug, Default)]
pub(super) struct HeadScratch {
    logits: Floats,
    derivative: Floats,
    packed: Floats,
    flipped: Floats,
}

impl KeptRows {
    pub(super) fn room(&self) -> usize {
        let Self { rows, normed, logits, .. } = self;
        rows.room() + normed.room() + logits.room()
    }
}

impl HeadScratch {
    pub(super) fn room(&self) -> usize {
        let Self { logits, derivative, packed, flipped } = self;
        logits.room() + derivative.room() + packed.room() + flipped.room()
    }
}

pub(super) fn bytes(config: &TransformerConfig, rows: usize) -> usize {
    4 * rows * config.vocab_size.next_multiple_of(PANEL)
}

/// Rows per block of logits.
pub(crate) fn block_rows(vocab: usize) -> usize {
    (BLOCK / vocab).max(48).next_multiple_of(48)
}

/// Logits of scored rows `first..first + count` into `out`.
fn logits(context: &LayerContext, normed: &[f32], out: &mut [f32], vocab: usize) {
    let LayerContext { threads, model, .. } = *context;
    let out = RowsMut::new(out, vocab);
    linear::forward(threads, model, model.layout().head, None, normed, out, ChainStart::Zero);
}

/// A pass with its buffers.
pub(super) struct HeadPass<'a> {
    pub(super) options: PassOptions,
    /// Whether the logits are kept.
    pub(super) keep: bool,
    pub(super) kept: &'a mut KeptRows,
    pub(super) scratch: &'a mut HeadScratch,
}

/// Outputs for a chunk's targets, in the order of its sequences.
pub(super) struct Outputs<'a> {
    /// Log-probabilities; the values of a critic.
    pub(super) logprobs: &'a mut [f32],
    /// Empty for a critic.
    pub(super) entropies: &'a mut [f32],
    pub(super) top: TopOutputs<'a>,
}

/// The likeliest tokens at the targets' places, `number` of each; empty if none are wanted.
pub(super) struct TopOutputs<'a> {
    pub(super) number: usize,
    pub(super) tokens: &'a mut [u32],
    pub(super) logprobs: &'a mut [f32],
    /// Ranks of the targets.
    pub(super) ranks: &'a mut [u32],
}

/// Computes the outputs of a chunk.
pub(super) fn forward(context: &LayerContext, stream: &[f32], pass: HeadPass<'_>, out: Outputs<'_>) {
    let LayerContext { threads, model, batch, .. } = *context;
    let HeadPass { options, keep, kept, scratch } = pass;
    let config = model.config();
    let (width, size) = (config.hidden_size, config.vocab_size);
    let vocab = size.next_multiple_of(PANEL);
    let scored = &batch.scored;
    let KeptRows { rows, normed, logits: values, statistics } = kept;
    let Outputs { logprobs: out_logprobs, entropies: out_entropies, top: out_top } = out;
    rows.resize(scored.len() * width);
    normed.resize(scored.len() * width);
    for (&row, out) in scored.iter().zip(rows.chunks_exact_mut(width)) {
        out.copy_from_slice(&stream[row * width..][..width]);
    }
    norm::forward(threads, rows, model.weight(model.layout().norm), config.rms_norm_eps as f32, normed);
    if config.head == OutputHead::Value {
        return value_head::forward(context, normed, out_logprobs);
    }
    let block = block_rows(vocab).min(scored.len().max(1));
    let values = if keep { values } else { &mut scratch.logits };
    values.resize(if keep { scored.len() } else { block } * vocab);
    let none = Statistics { max: 0.0, sum: 1.0, weighted: 0.0 };
    statistics.clear();
    statistics.resize(scored.len(), none);
    // In the order of the targets; a row may have several.
    let mut logprobs = vec![0.0; batch.targets.len()];
    let ranked = usize::from(out_top.number > 0);
    let mut ranks = vec![0; ranked * batch.targets.len()];
    // The likeliest tokens of each scored row.
    let mut top: Vec<Vec<(u32, f32)>> = vec![Vec::new(); scored.len()];
    let inverse = 1.0 / options.temperature;
    for first in (0..scored.len()).step_by(block) {
        if context.watch.gives_up() {
            return;
        }
        let count = (scored.len() - first).min(block);
        let place = if keep { first * vocab } else { 0 };
        let values = &mut values[place..place + count * vocab];
        logits(context, &normed[first * width..][..count * width], values, vocab);
        let values = &*values;
        let begin = |task: usize| batch.first_target[(first + task * ROWS).min(first + count)];
        let num_tasks = count.div_ceil(ROWS);
        let parts = (
            Parts::chunks(&mut statistics[first..first + count], ROWS),
            Parts::new(
                &mut logprobs[begin(0)..begin(num_tasks)],
                (0..num_tasks).map(|task| begin(task + 1) - begin(task)),
            ),
            Parts::chunks(&mut top[first..first + count], ROWS),
            Parts::new(
                &mut ranks[ranked * begin(0)..ranked * begin(num_tasks)],
                (0..num_tasks).map(|task| ranked * (begin(task + 1) - begin(task))),
            ),
        );
        threads.run(num_tasks, |task| {
            let (statistics, logprobs, top) = (parts.0.take(task), parts.1.take(task), parts.2.take(task));
            let (mut logprobs, mut ranks) = (logprobs.iter_mut(), parts.3.take(task).iter_mut());
            for (i, (statistics, top)) in statistics.iter_mut().zip(top).enumerate() {
                let at = task * ROWS + i;
                let row = &values[at * vocab..][..size];
                *statistics = vocabulary::statistics(threads.level(), row, inverse);
                if out_top.number > 0 {
                    let likeliest = beside::largest(row, out_top.number).into_iter();
                    let with_logprob = |id: u32| (id, statistics.logprob(row[id as usize], inverse));
                    *top = likeliest.map(with_logprob).collect();
                }
                for (target, out) in batch.targets_of(first + at).iter().zip(&mut logprobs) {
                    let own = row[target.token as usize];
                    *out = statistics.logprob(own, inverse);
                    if let Some(rank) = ranks.next() {
                        *rank = 1 + row.iter().filter(|&&logit| logit > own).count() as u32;
                    }
                }
            }
        });
    }
    let (mut logprobs, mut ranks) = (logprobs.into_iter(), ranks.into_iter());
    for (i, row) in statistics.iter().enumerate() {
        let entropy = row.entropy();
        for (target, logprob) in batch.targets_of(i).iter().zip(&mut logprobs) {
            out_logprobs[target.flat as usize] = logprob;
            out_entropies[target.flat as usize] = entropy;
            if let Some(rank) = ranks.next() {
                out_top.ranks[target.flat as usize] = rank;
            }
            let first = target.flat as usize * out_top.number;
            for place in 0..out_top.number {
                // A row that is not finite has fewer.
                let (token, logprob) = top[i].get(place).copied().unwrap_or((0, f32::NAN));
                (out_top.tokens[first + place], out_top.logprobs[first + place]) = (token, logprob);
            }
        }
    }
}

/// Sets `out` (the derivative by the last layer's output) and adds to the gradients of the head and the final
/// norm.
pub(super) fn backward(
    context: &LayerContext,
    mut pass: HeadPass<'_>,
    upstream: &Upstream,
    gradients: &mut Gradients,
    out: &mut [f32],
) {
    let LayerContext { threads, model, batch, .. } = *context;
    let config = model.config();
    let width = config.hidden_size;
    let scored = &batch.scored;
    pass.scratch.derivative.resize(scored.len() * width);
    match config.head {
        OutputHead::Vocabulary => {
            vocabulary_backward(context, &mut pass, upstream, gradients);
        }
        OutputHead::Value => {
            let derivative = &mut pass.scratch.derivative;
            value_head::backward(context, &pass.kept.normed, &upstream.first, derivative, gradients);
        }
    }
    let KeptRows { rows, normed, .. } = pass.kept;
    // `normed` is no longer needed, so it takes the derivative by the rows.
    normed.fill(0.0);
    let norm = model.layout().norm;
    let eps = config.rms_norm_eps as f32;
    let derivative = &pass.scratch.derivative;
    norm::backward(threads, rows, model.weight(norm), eps, derivative, normed, gradients.of_mut(norm));
    out.fill(0.0);
    for (&row, from) in scored.iter().zip(normed.chunks_exact(width)) {
        out[row * width..][..width].copy_from_slice(from);
    }
}

/// Sets `scratch.derivative` (by the normalised rows) and adds to the gradient of the vocabulary's weights.
fn vocabulary_backward(
    context: &LayerContext,
    pass: &mut HeadPass<'_>,
    upstream: &Upstream,
    gradients: &mut Gradients,
) {
    let LayerContext { threads, model, batch, .. } = *context;
    let HeadPass { options, keep, kept, scratch } = pass;
    let config = model.config();
    let (width, size) = (config.hidden_size, config.vocab_size);
    let vocab = size.next_multiple_of(PANEL);
    let (scored, keep) = (&batch.scored, *keep);
    let KeptRows { normed, logits: values, statistics, .. } = &mut **kept;
    let HeadScratch { logits: block_values, derivative, packed, flipped } = &mut **scratch;
    let block = block_rows(vocab).min(scored.len().max(1));
    let values = if keep {
        values
    } else {
        block_values.resize(block * vocab);
        block_values
    };
    let mut flipped = Flipped { all: context.flipped, scratch: flipped };
    let inverse = 1.0 / options.temperature;
    let head = model.layout().head;
    for first in (0..scored.len()).step_by(block) {
        if context.watch.gives_up() {
            return;
        }
        let count = (scored.len() - first).min(block);
        let here = first * width..(first + count) * width;
        let place = if keep { first * vocab } else { 0 };
        let values = &mut values[place..place + count * vocab];
        if !keep {
            logits(context, &normed[here.clone()], values, vocab);
        }
        {
            let parts = Parts::chunks(values, ROWS * vocab);
            threads.run(count.div_ceil(ROWS), |task| {
                for (i, row) in parts.take(task).chunks_exact_mut(vocab).enumerate() {
                    let at = first + task * ROWS + i;
                    let (mut logprob, mut entropy) = (0.0, 0.0);
                    for target in batch.targets_of(at) {
                        logprob += upstream.first[batch.first_flat + target.flat as usize];
                        entropy += upstream
                            .second
                            .as_ref()
                            .map_or(0.0, |entropy| entropy[batch.first_flat + target.flat as usize]);
                    }
                    let (live, padding) = row.split_at_mut(size);
                    let back = RowBack { logprob, entropy };
                    vocabulary::backward(threads.level(), live, inverse, &statistics[at], back);
                    for target in batch.targets_of(at) {
                        live[target.token as usize] +=
                            upstream.first[batch.first_flat + target.flat as usize] * inverse;
                    }
                    padding.fill(0.0);
                }
            });
        }
        linear::pack_input(threads, &normed[here.clone()], width, packed);
        let (dy, dx) = (Rows::new(values, vocab), &mut derivative[here]);
        linear::backward_weight(threads, model, head, packed, dy, gradients);
        linear::backward_input(threads, model, head, dy, dx, &mut flipped, ChainStart::Zero);
    }
}
