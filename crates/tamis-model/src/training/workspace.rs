//! Buffers of the training pass.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use super::gradients::Gradients;
use super::head;
use super::layer::{LayerScratch, Saved};
use super::watch::PassWatch;
use crate::config::TransformerConfig;
use crate::floats::Floats;
use crate::model::Model;
use crate::rotary::Rotary;
use crate::threads::{Parts, Threads};

/// Results of some rows that the backward pass needs.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// Input of each layer and output of the last, `[layers + 1][N][d]`.
    pub inputs: Vec<Floats>,
    /// Of each layer; none where they are recomputed.
    pub saved: Vec<Saved>,
    pub head: head::KeptRows,
}

impl Chunk {
    /// Makes room for so many layer inputs and saved layers; more may be there.
    pub(super) fn grow(&mut self, inputs: usize, saved: usize) {
        self.inputs.resize_with(inputs.max(self.inputs.len()), Floats::new);
        self.saved.resize_with(saved.max(self.saved.len()), Saved::default);
    }

    fn len(&self) -> usize {
        let inputs: usize = self.inputs.iter().map(|input| input.len()).sum();
        inputs + self.saved.iter().map(Saved::len).sum::<usize>() + self.head.len()
    }
}

/// Buffers of a thread at work.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Chunk used where nothing is kept for a backward pass.
    pub chunk: Chunk,
    /// Of the layer at hand, where it is not kept.
    pub saved: Saved,
    pub scratch: LayerScratch,
    pub head: head::HeadScratch,
}

/// [`Work`] for as many threads as ask at once.
#[derive(Debug, Default)]
pub(super) struct WorkPool(Mutex<Vec<Work>>);

impl WorkPool {
    /// Lends buffers to `run`.
    pub(super) fn with<T>(&self, run: impl FnOnce(&mut Work) -> T) -> T {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = lock().pop();
        let mut work = taken.unwrap_or_default();
        let result = run(&mut work);
        lock().push(work);
        result
    }

    fn len(&self) -> usize {
        let works = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let len = |work: &Work| work.chunk.len() + work.saved.len() + work.scratch.len() + work.head.len();
        works.iter().map(len).sum()
    }
}

/// Buffers of the training pass, kept between calls so that memory is not mapped anew.
#[derive(Debug, Default)]
pub struct Workspace {
    pub(super) chunks: Vec<Chunk>,
    pub(super) pool: WorkPool,
    /// Gradients of the shards after the first.
    pub(super) shards: Vec<Gradients>,
    /// Weights in the order of the backward product, by tensor.
    pub(super) flipped: Vec<Floats>,
    pub(super) rotary: Option<(TransformerConfig, Rotary)>,
    stop: Option<Arc<AtomicBool>>,
}

impl Workspace {
    /// Has passes with these buffers given up, with
    /// [`SequenceError::GivenUp`](super::SequenceError::GivenUp), soon after the flag is set; `None`: never.
    /// A pass that gives up part of its gradients first leaves them incomplete: clear them.
    pub fn stop_on(&mut self, stop: Option<Arc<AtomicBool>>) {
        self.stop = stop;
    }

    pub(super) fn watch(&self) -> PassWatch {
        PassWatch::of(self.stop.clone())
    }

    /// Bytes of the activations and of what computes them, as far as they grow with the batch.
    pub fn bytes(&self) -> usize {
        4 * (self.chunks.iter().map(Chunk::len).sum::<usize>() + self.pool.len())
    }

    /// Rotary angles of a configuration, made once.
    pub(super) fn rotary(&mut self, config: &TransformerConfig, reach: usize) -> Rotary {
        let mut rotary = match self.rotary.take() {
            Some((known, rotary)) if known == *config => rotary,
            _ => Rotary::new(config),
        };
        rotary.reach(reach);
        rotary
    }
}

/// Zeros for `count` shards.
pub(super) fn clear_shards(shards: &mut Vec<Gradients>, model: &Model, count: usize) {
    if shards.first().is_some_and(|shard| !std::sync::Arc::ptr_eq(&shard.layout, model.layout())) {
        shards.clear();
    }
    shards.iter_mut().take(count).for_each(Gradients::clear);
    while shards.len() < count {
        shards.push(Gradients::new(model));
    }
}

/// Adds the shards' gradients, in order.
pub(super) fn add_shards(threads: &Threads, shards: &[Gradients], out: &mut Gradients) {
    const CHUNK: usize = 16 * 1024;
    let num_tasks = out.values.len().div_ceil(CHUNK);
    let parts = Parts::chunks(&mut out.values, CHUNK);
    threads.run(num_tasks, |task| {
        let out = parts.take(task);
        for shard in shards {
            let values = &shard.values[task * CHUNK..][..out.len()];
            out.iter_mut().zip(values).for_each(|(out, &value)| *out += value);
        }
    });
}
