//! The training pass: the outputs of a model's head for given tokens (log-probabilities and entropies, or a
//! critic's values), and the gradient of an objective of them.
//!
//! Sequences are laid end to end, never padded. Consecutive sequences with the same context share its rows
//! (see [`batch`]); N counts all rows. Only rows whose next token is scored reach the vocabulary product.
//! Weight gradients are one chain over rows per weight and shard (see [`cut::Cut`]), so they are bit-equal
//! for any number of threads.

mod batch;
mod beside;
mod cut;
mod gradients;
mod head;
mod layer;
mod sequence;
mod value_head;
mod watch;
mod workspace;

use tamis_core::fault;
use tamis_core::ragged::Ragged;

use crate::config::OutputHead;
use crate::floats::Floats;
use crate::layout::TensorOrder;
use crate::linear;
use crate::model::Model;
use crate::norm;
use crate::panels;
use crate::product::{ChainStart, RowsMut};
use crate::threads::{Parts, Threads};
use batch::PackedBatch;
use beside::Beside;
pub use beside::{Candidates, TopTokens, backward_beside, forward_hold_beside, score_with_top};
pub(crate) use cut::{Cut, FAR_ROWS, stay_near};
pub use gradients::Gradients;
pub use head::PassOptions;
use head::Upstream;
pub(crate) use head::block_rows;
pub(crate) use layer::{copy_head, place_head};
pub use sequence::{Sequence, SequenceError};
use watch::PassWatch;
pub(crate) use workspace::CHUNK_SLACK;
pub use workspace::Workspace;
use workspace::{Chunk, ChunkNeed, Work, add_shards, clear_shards};

/// Per scored token, row i for sequence i, nats.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenScores {
    /// `log_softmax(logits / temperature)` at the token.
    pub logprobs: Ragged<f32>,
    /// Entropy of `softmax(logits / temperature)` at the token's position.
    pub entropies: Ragged<f32>,
}

/// Derivatives of the objective by each scored token's log-probability and entropy, flat in the order of
/// [`TokenScores`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Coefficients {
    /// d objective / d logp.
    pub logprob: Vec<f32>,
    /// d objective / d H; `None` for zeros.
    pub entropy: Option<Vec<f32>>,
}

/// Log-probabilities and entropies of the scored tokens; no gradient, and no activations kept.
pub fn score(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    sequences: &[Sequence],
    temperature: f32,
) -> Result<TokenScores, SequenceError> {
    let options = PassOptions { temperature, recompute: true, keep_logits_bytes: 0 };
    let pass = Pass { sequences, beside: Beside::Nothing, head: OutputHead::Vocabulary, options };
    let (outputs, _) = forward_pass(threads, model, workspace, pass, false)?;
    Ok(outputs.into_scores())
}

/// Log-probabilities and entropies of the scored tokens, with the same bits as [`score`], and the pass
/// itself, held for [`backward`].
pub fn forward_hold(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    sequences: &[Sequence],
    options: PassOptions,
) -> Result<(TokenScores, HeldPass), SequenceError> {
    let pass = Pass { sequences, beside: Beside::Nothing, head: OutputHead::Vocabulary, options };
    let (outputs, held) = hold(threads, model, workspace, pass)?;
    Ok((outputs.into_scores(), held))
}

/// Adds the gradient of `sum_t (coef_t * logp_t + ent_coef_t * H_t)` over the tokens of a held pass to
/// `gradients`. `model` is the one of the forward pass, unchanged. Rows that go through the layers together
/// and have only zero coefficients add nothing and cost nothing. There is one coefficient for each scored
/// token; any other number is an error. If a pass is stopped ([`SequenceError::GivenUp`]), `gradients` is
/// incomplete.
pub fn backward(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    held: HeldPass,
    coefficients: Coefficients,
    gradients: &mut Gradients,
) -> Result<(), SequenceError> {
    check_head(held.head, OutputHead::Vocabulary)?;
    let Coefficients { logprob, entropy } = coefficients;
    let upstream = Upstream { first: logprob, second: entropy };
    backward_pass(threads, model, workspace, held, &upstream, gradients)
}

/// [`forward_hold`], then `objective` on its results, then [`backward`].
pub fn forward_backward(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    sequences: &[Sequence],
    options: PassOptions,
    gradients: &mut Gradients,
    objective: impl FnOnce(&TokenScores) -> Coefficients,
) -> Result<TokenScores, SequenceError> {
    let (scores, held) = forward_hold(threads, model, workspace, sequences, options)?;
    backward(threads, model, workspace, held, objective(&scores), gradients)?;
    Ok(scores)
}

/// Values of a critic at each scored token, row i for sequence i. The value is that of the state in which the
/// token is chosen, before it is seen. No gradient, and no activations kept.
pub fn values(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    sequences: &[Sequence],
) -> Result<Ragged<f32>, SequenceError> {
    let options = PassOptions { recompute: true, keep_logits_bytes: 0, ..PassOptions::default() };
    let pass = Pass { sequences, beside: Beside::Nothing, head: OutputHead::Value, options };
    let (outputs, _) = forward_pass(threads, model, workspace, pass, false)?;
    Ok(outputs.into_values())
}

/// As [`values`], and the pass itself, held for [`values_backward`].
pub fn values_forward_hold(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    sequences: &[Sequence],
    options: PassOptions,
) -> Result<(Ragged<f32>, HeldPass), SequenceError> {
    let pass = Pass { sequences, beside: Beside::Nothing, head: OutputHead::Value, options };
    let (outputs, held) = hold(threads, model, workspace, pass)?;
    Ok((outputs.into_values(), held))
}

/// Adds the gradient of `sum_t coef_t * value_t` over the tokens of a critic's held pass to `gradients`.
/// Errors and stopped passes as in [`backward`].
pub fn values_backward(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    held: HeldPass,
    coefficients: Vec<f32>,
    gradients: &mut Gradients,
) -> Result<(), SequenceError> {
    check_head(held.head, OutputHead::Value)?;
    let upstream = Upstream { first: coefficients, second: None };
    backward_pass(threads, model, workspace, held, &upstream, gradients)
}

/// Logits of one sequence at every position, row-major `[T][V]`.
pub fn logits(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    tokens: &[u32],
) -> Result<Vec<f32>, SequenceError> {
    let config = model.config();
    check_head(config.head, OutputHead::Vocabulary)?;
    let batch = PackedBatch::whole(config, tokens)?;
    let rotary = workspace.rotary(config, tokens.len());
    let watch = PassWatch::default();
    let context =
        layer::LayerContext { threads, model, rotary: &rotary, batch: &batch, flipped: None, watch: &watch };
    let mut from = Floats::zeros(tokens.len() * config.hidden_size);
    let mut to = Floats::zeros(from.len());
    embed(model, &batch, &mut from);
    workspace.pool.with(|Work { saved, scratch, .. }| {
        for tensors in &model.layout().layers {
            layer::forward(&context, tensors, &from, saved, scratch, &mut to);
            std::mem::swap(&mut from, &mut to);
        }
    });
    norm::forward(threads, &from, model.weight(model.layout().norm), config.rms_norm_eps as f32, &mut to);
    let mut out = vec![0.0; tokens.len() * config.vocab_size];
    let head = model.layout().head;
    let rows = RowsMut::new(&mut out, config.vocab_size);
    linear::forward(threads, model, head, None, &to, rows, ChainStart::Zero);
    workspace.rotary = Some((config.clone(), rotary));
    Ok(out)
}

/// Columns of the head over the scored tokens, before they are cut into sequences.
struct RawOutputs {
    /// Scored tokens of each sequence.
    lengths: Vec<usize>,
    /// Log-probabilities, each token's followed by those of its candidates; values of a critic.
    first: Vec<f32>,
    /// Entropies in the same places; empty for a critic.
    second: Vec<f32>,
    top: TopTokens,
}

impl RawOutputs {
    fn into_scores(self) -> TokenScores {
        TokenScores::of(&self.lengths, self.first, self.second)
    }

    fn into_values(self) -> Ragged<f32> {
        Ragged::from_lengths(self.first, &self.lengths).unwrap_or_default()
    }
}

fn check_head(found: OutputHead, wanted: OutputHead) -> Result<(), SequenceError> {
    if found == wanted {
        Ok(())
    } else {
        Err(fault!("the model is {found}, and what is asked for comes from {wanted}").into())
    }
}

/// What a forward pass computes.
struct Pass<'a> {
    sequences: &'a [Sequence<'a>],
    beside: Beside<'a>,
    head: OutputHead,
    options: PassOptions,
}

/// A forward pass with its activations, for one backward pass.
#[derive(Debug)]
pub struct HeldPass {
    head: OutputHead,
    options: PassOptions,
    cut: Cut,
    batches: Vec<PackedBatch>,
    /// At least as many as batches.
    chunks: Vec<Chunk>,
    /// Number of chunks, from the first on, whose logits are kept.
    keep_logits: usize,
    num_targets: usize,
    /// Candidates of each scored token.
    num_candidates: usize,
    reach: usize,
}

fn hold(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    pass: Pass<'_>,
) -> Result<(RawOutputs, HeldPass), SequenceError> {
    let (outputs, mut held) = forward_pass(threads, model, workspace, pass, true)?;
    held.chunks = std::mem::take(&mut workspace.chunks);
    Ok((outputs, held))
}

/// Forward. If activations are kept, they are in the workspace's chunks.
fn forward_pass(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    Pass { sequences, beside, head: wanted, options }: Pass<'_>,
    keep: bool,
) -> Result<(RawOutputs, HeldPass), SequenceError> {
    check_head(model.config().head, wanted)?;
    if !(options.temperature > 0.0 && options.temperature.is_finite()) {
        return Err(fault!(
            "temperature must be positive and finite, got {temperature}",
            temperature = options.temperature
        )
        .into());
    }
    let config = model.config();
    let (cut, mut batches) =
        PackedBatch::cut(config, sequences, |rows| Cut::of(model.num_parameters(), rows))?;
    if let Beside::Candidates(candidates) = beside {
        for batch in &mut batches {
            batch.add_candidates(candidates);
        }
    }
    let num_top = beside.num_top();
    let longest = sequences.iter().map(|sequence| sequence.tokens.len()).max().unwrap_or(0);
    let rotary = workspace.rotary(config, longest);
    let watch = workspace.watch();
    // Either the threads take whole chunks, or they share each operation.
    let serial = Threads::with_level(1, threads.level());
    let near = stay_near(model.num_parameters());
    let (outer, inner) = if near { (threads, &serial) } else { (&serial, threads) };

    let scored_so_far = batches.iter().scan(0, |rows, batch| {
        *rows += batch.scored.len();
        Some(*rows)
    });
    let has_logits = keep && wanted == OutputHead::Vocabulary;
    let fits = |rows: &usize| has_logits && head::bytes(config, *rows) <= options.keep_logits_bytes;
    let keep_logits = scored_so_far.take_while(fits).count();
    if keep {
        let need = |(place, batch): (usize, &PackedBatch)| ChunkNeed {
            input: batch.num_rows() * config.hidden_size,
            logits: if place < keep_logits { head::bytes(config, batch.scored.len()) / 4 } else { 0 },
        };
        let needs: Vec<ChunkNeed> = batches.iter().enumerate().map(need).collect();
        workspace.arrange_chunks(&needs);
    }
    let Workspace { chunks, pool, .. } = workspace;
    let lengths: Vec<usize> =
        sequences.iter().map(|sequence| sequence.tokens.len() - sequence.start).collect();
    let num_targets = lengths.iter().sum::<usize>() * (beside.num_candidates() + 1);
    // A value is one column.
    let seconds = usize::from(wanted == OutputHead::Vocabulary);
    let (mut first, mut second) = (vec![0.0; num_targets], vec![0.0; seconds * num_targets]);
    let ranked = usize::from(num_top > 0);
    let mut top = TopTokens {
        tokens: vec![0; num_targets * num_top],
        logprobs: vec![0.0; num_targets * num_top],
        ranks: vec![0; num_targets * ranked],
    };
    {
        let targets = || batches.iter().map(|batch| batch.targets.len());
        let parts = (
            Parts::chunks(chunks, 1),
            Parts::new(&mut first, targets()),
            Parts::new(&mut second, targets().map(|len| seconds * len)),
            Parts::new(&mut top.tokens, targets().map(|len| num_top * len)),
            Parts::new(&mut top.logprobs, targets().map(|len| num_top * len)),
            Parts::new(&mut top.ranks, targets().map(|len| ranked * len)),
        );
        outer.run(batches.len(), |task| {
            let context = layer::LayerContext {
                threads: inner,
                model,
                rotary: &rotary,
                batch: &batches[task],
                flipped: None,
                watch: &watch,
            };
            let out = head::Outputs {
                logprobs: parts.1.take(task),
                entropies: parts.2.take(task),
                top: head::TopOutputs {
                    number: num_top,
                    tokens: parts.3.take(task),
                    logprobs: parts.4.take(task),
                    ranks: parts.5.take(task),
                },
            };
            pool.with(|work| {
                let mut own = std::mem::take(&mut work.chunk);
                let chunk = if keep { &mut parts.0.take(task)[0] } else { &mut own };
                forward(&context, options, keep, task < keep_logits, chunk, work, out);
                work.chunk = own;
            });
        });
    }
    workspace.rotary = Some((config.clone(), rotary));
    if watch.has_given_up() {
        return Err(SequenceError::GivenUp);
    }
    let (chunks, num_candidates) = (Vec::new(), beside.num_candidates());
    let held = HeldPass {
        head: wanted,
        options,
        cut,
        batches,
        chunks,
        keep_logits,
        num_targets,
        num_candidates,
        reach: longest,
    };
    Ok((RawOutputs { lengths, first, second, top }, held))
}

fn backward_pass(
    threads: &Threads,
    model: &Model,
    workspace: &mut Workspace,
    held: HeldPass,
    upstream: &Upstream,
    gradients: &mut Gradients,
) -> Result<(), SequenceError> {
    check_head(model.config().head, held.head)?;
    let HeldPass {
        head, options, cut, batches, mut chunks, keep_logits, num_targets: expected, reach, ..
    } = held;
    let names = match head {
        OutputHead::Vocabulary => ["log-probability", "entropy"],
        OutputHead::Value => ["value", ""],
    };
    let counts = [Some(upstream.first.len()), upstream.second.as_ref().map(Vec::len)];
    for (what, found) in names.into_iter().zip(counts) {
        if let Some(found) = found.filter(|&found| found != expected) {
            workspace.chunks = chunks;
            return Err(
                fault!("expected {expected} {what} coefficients, one per scored token, got {found}").into()
            );
        }
    }
    if batches.iter().all(|batch| upstream.is_zero(batch)) {
        workspace.chunks = chunks;
        return Ok(());
    }
    let config = model.config();
    let rotary = workspace.rotary(config, reach);
    let watch = workspace.watch();
    let Workspace { pool, shards, flipped, .. } = workspace;
    let serial = Threads::with_level(1, threads.level());
    let near = stay_near(model.num_parameters());
    let (outer, inner) = if near { (threads, &serial) } else { (&serial, threads) };
    if near {
        linear::flip_all(threads, model, flipped);
    }
    let flipped = near.then_some(&flipped[..]);
    let num_shards = cut.shards.min(batches.len());
    clear_shards(shards, model, num_shards.saturating_sub(1));
    // Shard s takes the chunks from `first(s)` to `first(s + 1)`.
    let first = |shard: usize| shard * batches.len() / num_shards.max(1);
    {
        let mut sums: Vec<&mut Gradients> =
            std::iter::once(&mut *gradients).chain(shards.iter_mut()).collect();
        let parts = (
            Parts::new(&mut chunks, (0..num_shards).map(|shard| first(shard + 1) - first(shard))),
            Parts::chunks(&mut sums, 1),
        );
        outer.run(num_shards, |shard| {
            let (chunks, gradients) = (parts.0.take(shard), &mut parts.1.take(shard)[0]);
            let own = chunks.iter_mut().zip(&batches[first(shard)..]);
            for (place, (chunk, batch)) in (first(shard)..).zip(own) {
                if upstream.is_zero(batch) {
                    continue;
                }
                let context = layer::LayerContext {
                    threads: inner,
                    model,
                    rotary: &rotary,
                    batch,
                    flipped,
                    watch: &watch,
                };
                pool.with(|work| {
                    let keep_logits = place < keep_logits;
                    backward_chunk(&context, options, keep_logits, chunk, work, upstream, gradients);
                });
            }
        });
    }
    add_shards(threads, &shards[..num_shards.saturating_sub(1)], gradients);
    workspace.rotary = Some((config.clone(), rotary));
    workspace.chunks = chunks;
    if watch.has_given_up() { Err(SequenceError::GivenUp) } else { Ok(()) }
}

/// Outputs of the head for a chunk's targets. What the backward pass needs is kept, if it is wanted.
fn forward(
    context: &layer::LayerContext,
    options: PassOptions,
    keep: bool,
    keep_logits: bool,
    chunk: &mut Chunk,
    work: &mut Work,
    out: head::Outputs<'_>,
) {
    let num_layers = context.model.config().num_layers;
    let keep_layers = keep && !options.recompute;
    chunk.grow(if keep { num_layers + 1 } else { 2 }, if keep_layers { num_layers } else { 0 });
    let Chunk { inputs, saved, head } = chunk;
    for input in &mut *inputs {
        input.resize(context.batch.num_rows() * context.model.config().hidden_size);
    }
    embed(context.model, context.batch, &mut inputs[0]);
    for (i, tensors) in context.model.layout().layers.iter().enumerate() {
        if context.watch.gives_up() {
            return;
        }
        let (from, to) = if keep { (i, i + 1) } else { (i % 2, (i + 1) % 2) };
        let mut out = std::mem::take(&mut inputs[to]);
        let saved = if keep_layers { &mut saved[i] } else { &mut work.saved };
        layer::forward(context, tensors, &inputs[from], saved, &mut work.scratch, &mut out);
        inputs[to] = out;
    }
    let last = if keep { num_layers } else { num_layers % 2 };
    let pass = head::HeadPass { options, keep: keep_logits, kept: head, scratch: &mut work.head };
    head::forward(context, &inputs[last], pass, out);
}

fn backward_chunk(
    context: &layer::LayerContext,
    options: PassOptions,
    keep_logits: bool,
    chunk: &mut Chunk,
    work: &mut Work,
    upstream: &Upstream,
    gradients: &mut Gradients,
) {
    let Chunk { inputs, saved, head } = chunk;
    let Work { saved: recomputed, scratch, head: head_scratch, .. } = work;
    // The derivative by the residual stream, from the last layer's output down to the embedding.
    let mut stream = std::mem::take(&mut scratch.stream);
    stream.resize(context.batch.num_rows() * context.model.config().hidden_size);
    let pass = head::HeadPass { options, keep: keep_logits, kept: head, scratch: head_scratch };
    head::backward(context, pass, upstream, gradients, &mut stream);
    for (i, tensors) in context.model.layout().layers.iter().enumerate().rev() {
        if context.watch.gives_up() {
            break;
        }
        if options.recompute {
            let mut out = std::mem::take(&mut inputs[i + 1]);
            layer::forward(context, tensors, &inputs[i], recomputed, scratch, &mut out);
            inputs[i + 1] = out;
        }
        let saved = if options.recompute { &mut *recomputed } else { &mut saved[i] };
        layer::backward(context, tensors, &inputs[i], saved, scratch, gradients, &mut stream);
    }
    embed_backward(context.model, context.batch, &stream, gradients);
    scratch.stream = stream;
}

fn embed(model: &Model, batch: &PackedBatch, out: &mut [f32]) {
    let width = model.config().hidden_size;
    for (&token, row) in batch.tokens.iter().zip(out.chunks_exact_mut(width)) {
        embed_token(model, token, row);
    }
}

pub(crate) fn embed_token(model: &Model, token: u32, row: &mut [f32]) {
    let (weight, width, token) = (model.weight(model.layout().embedding), row.len(), token as usize);
    if model.layout().tensors[model.layout().embedding].order == TensorOrder::Panels {
        let lane = &weight[panels::place(width, token, 0)..];
        row.iter_mut().zip(lane.iter().step_by(crate::simd::PANEL)).for_each(|(out, &value)| *out = value);
    } else {
        row.copy_from_slice(&weight[token * width..][..width]);
    }
}

/// Adds each row's derivative to its token's embedding, in order.
fn embed_backward(model: &Model, batch: &PackedBatch, stream: &[f32], gradients: &mut Gradients) {
    let width = model.config().hidden_size;
    let tied = model.layout().tensors[model.layout().embedding].order == TensorOrder::Panels;
    let gradient = gradients.of_mut(model.layout().embedding);
    for (&token, row) in batch.tokens.iter().zip(stream.chunks_exact(width)) {
        if tied {
            let lane = &mut gradient[panels::place(width, token as usize, 0)..];
            lane.iter_mut().step_by(crate::simd::PANEL).zip(row).for_each(|(out, &value)| *out += value);
        } else {
            norm::add_rows(row, &mut gradient[token as usize * width..][..width]);
        }
    }
}
