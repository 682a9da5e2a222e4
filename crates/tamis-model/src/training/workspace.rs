//! Buffers of the training pass, and how its rows are cut.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Gradients;
use super::head;
use super::layer::{LayerScratch, Saved};
use crate::config::TransformerConfig;
use crate::floats::Floats;
use crate::model::Model;
use crate::rotary::Rotary;
use crate::threads::{Parts, Threads};

/// Rows that go through the layers together at most, so that what one operation writes is near when the next
/// reads it; the fewer, the oftener weights and gradients are read. (Measured on AVX2: 1 M weights 1.15 times
/// as fast as with 12,000 rows at once, 31 M weights 1.04 times as fast as with 3,000.)
const NEAR_ROWS: usize = 512;
const FAR_ROWS: usize = 1536;

/// Rows that are worth a gradient of their own, and how many of those there are at most.
const SHARD_ROWS: usize = 256;
const SHARDS: usize = 8;

/// Whether so many weights stay in the caches: up to 16 MiB.
pub(crate) fn stay_near(num_parameters: usize) -> bool {
    num_parameters <= 4 << 20
}

/// How the rows of a pass are cut: a function of model and rows, never of the number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Sums of gradients gathered side by side, each over consecutive chunks. One where weights are many:
    /// then the threads share each product, otherwise each thread takes chunks of its own, with nothing to
    /// wait for.
    pub shards: usize,
    /// Chunks in all.
    pub chunks: usize,
}

impl Cut {
    pub(crate) fn of(num_parameters: usize, rows: usize) -> Self {
        if !stay_near(num_parameters) {
            return Self { shards: 1, chunks: rows.div_ceil(FAR_ROWS) };
        }
        let shards = if rows < SHARD_ROWS / 2 { 1 } else { (rows / SHARD_ROWS).clamp(2, SHARDS) };
        Self { shards, chunks: shards * rows.div_ceil(shards * NEAR_ROWS) }
    }
}

/// What the backward pass needs of some rows.
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
    /// Where nothing is kept for a backward pass.
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

/// Whether a pass is still wanted: asked between two layers and between two blocks of logits.
#[derive(Debug, Default)]
pub(super) struct PassWatch {
    stop: Option<Arc<AtomicBool>>,
    given_up: AtomicBool,
}

impl PassWatch {
    /// Whether what is under way is to be left as it is. Once it is, the pass has no result.
    pub(super) fn gives_up(&self) -> bool {
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            self.given_up.store(true, Ordering::Relaxed);
        }
        self.has_given_up()
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }
}

impl Workspace {
    /// Has passes with these buffers given up, with
    /// [`SequenceError::GivenUp`](super::SequenceError::GivenUp), soon after the flag is set; `None`: never.
    /// A pass that gives up part of its gradients first leaves them incomplete: clear them.
    pub fn stop_on(&mut self, stop: Option<Arc<AtomicBool>>) {
        self.stop = stop;
    }

    pub(super) fn watch(&self) -> PassWatch {
        PassWatch { stop: self.stop.clone(), given_up: AtomicBool::new(false) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_evenly() {
        let cut = |rows| {
            let Cut { shards, chunks } = Cut::of(1 << 20, rows);
            (shards, chunks)
        };
        assert_eq!(
            [0, 100, 200, 1000, 1100, 9000].map(cut),
            [(1, 0), (1, 1), (2, 2), (3, 3), (4, 4), (8, 24)]
        );
        assert_eq!(Cut::of(1 << 25, 4000), Cut { shards: 1, chunks: 3 });
    }
}
