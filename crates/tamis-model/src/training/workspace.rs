//! Buffers of the training pass, kept from pass to pass so that a step allocates nothing. Chunks of sequences
//! get buffers that fit them; threads take work buffers from a pool.

use std::cmp::Reverse;
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

/// The results of a chunk of rows that the backward pass needs.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// Input of each layer and output of the last, `[layers + 1][N][d]`.
    pub inputs: Vec<Floats>,
    /// For each layer; empty if they are recomputed.
    pub saved: Vec<Saved>,
    pub head: head::KeptRows,
}

impl Chunk {
    /// Makes room for at least this many layer inputs and saved layers.
    pub(super) fn grow(&mut self, inputs: usize, saved: usize) {
        self.inputs.resize_with(inputs.max(self.inputs.len()), Floats::new);
        self.saved.resize_with(saved.max(self.saved.len()), Saved::default);
    }

    fn input_room(&self) -> usize {
        self.inputs.first().map_or(0, Floats::room)
    }

    fn room(&self) -> usize {
        let inputs: usize = self.inputs.iter().map(Floats::room).sum();
        inputs + self.saved.iter().map(Saved::room).sum::<usize>() + self.head.room()
    }
}

/// What a pass needs of a [`Chunk`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChunkNeed {
    /// Values of a layer's input.
    pub input: usize,
    /// Logits that are kept.
    pub logits: usize,
}

/// Chunks may hold 1/16 more than the largest pass needed. So a pass that is cut in other places seldom has
/// to reallocate.
pub(crate) const CHUNK_SLACK: usize = 16;

/// Chooses the places whose memory is freed, so that the total, including what is then needed, is at most
/// `limit`. Frees as few places as possible, among those with more than they need.
fn choose_surplus(rooms: &[(usize, usize)], limit: usize) -> Vec<usize> {
    let mut total: usize = rooms.iter().map(|&(room, need)| room.max(need)).sum();
    let mut places: Vec<usize> = (0..rooms.len()).collect();
    places.sort_by_key(|&place| Reverse(rooms[place].0.saturating_sub(rooms[place].1)));
    places.retain(|&place| {
        let is_surplus = total > limit && rooms[place].0 > rooms[place].1;
        total -= if is_surplus { rooms[place].0 - rooms[place].1 } else { 0 };
        is_surplus
    });
    places
}

#[derive(Debug, Default)]
pub(super) struct Work {
    /// Chunk used if nothing is kept for a backward pass.
    pub chunk: Chunk,
    /// Results of the current layer, if they are not kept.
    pub saved: Saved,
    pub scratch: LayerScratch,
    pub head: head::HeadScratch,
}

/// One [`Work`] for each thread that needs one at the same time.
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

    fn room(&self) -> usize {
        let works = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room =
            |work: &Work| work.chunk.room() + work.saved.room() + work.scratch.room() + work.head.room();
        works.iter().map(room).sum()
    }
}

/// Buffers of the training pass, kept between calls so that memory is not mapped again.
#[derive(Debug, Default)]
pub struct Workspace {
    pub(super) chunks: Vec<Chunk>,
    /// The most that all chunks of a pass together have needed so far.
    largest: ChunkNeed,
    pub(super) pool: WorkPool,
    pub(super) shards: Vec<Gradients>,
    /// Weights in the order of the backward product, by tensor.
    pub(super) flipped: Vec<Floats>,
    pub(super) rotary: Option<(TransformerConfig, Rotary)>,
    stop: Option<Arc<AtomicBool>>,
}

impl Workspace {
    /// Makes passes with these buffers stop, with [`SequenceError::GivenUp`](super::SequenceError::GivenUp),
    /// soon after the flag is set; `None` never stops them. A pass that is stopped may leave its gradients
    /// incomplete: clear them.
    pub fn stop_on(&mut self, stop: Option<Arc<AtomicBool>>) {
        self.stop = stop;
    }

    pub(super) fn watch(&self) -> PassWatch {
        PassWatch::of(self.stop.clone())
    }

    /// Bytes of all buffers that grow with the batch.
    pub fn bytes(&self) -> usize {
        4 * (self.chunks.iter().map(Chunk::room).sum::<usize>() + self.pool.room())
    }

    /// Provides at least one chunk for each need. Together they hold hardly more than the largest pass so far
    /// ([`CHUNK_SLACK`]), however passes are cut. For logits there is no slack.
    pub(super) fn arrange_chunks(&mut self, needs: &[ChunkNeed]) {
        let Self { chunks, largest, .. } = self;
        chunks.resize_with(needs.len().max(chunks.len()), Chunk::default);
        // The largest chunk goes to the largest need.
        let mut places: Vec<usize> = (0..needs.len()).collect();
        places.sort_by_key(|&place| Reverse(needs[place].input));
        chunks.sort_by_key(|chunk| Reverse(chunk.input_room()));
        let surplus = chunks.split_off(needs.len());
        let mut placed: Vec<(usize, Chunk)> = places.into_iter().zip(chunks.drain(..)).collect();
        placed.sort_by_key(|&(place, _)| place);
        chunks.extend(placed.into_iter().map(|(_, chunk)| chunk).chain(surplus));
        largest.input = needs.iter().map(|need| need.input).sum::<usize>().max(largest.input);
        largest.logits = needs.iter().map(|need| need.logits).sum::<usize>().max(largest.logits);
        let need = |place: usize| needs.get(place).copied().unwrap_or_default();
        let of_inputs: Vec<_> =
            chunks.iter().enumerate().map(|(place, chunk)| (chunk.input_room(), need(place).input)).collect();
        for place in choose_surplus(&of_inputs, largest.input + largest.input / CHUNK_SLACK) {
            chunks[place] = Chunk::default();
        }
        // A chunk that is too small is replaced, so that it grows to what is needed and not to twice its
        // size.
        for (chunk, _) in chunks.iter_mut().zip(needs).filter(|(chunk, need)| chunk.input_room() < need.input)
        {
            *chunk = Chunk::default();
        }
        let of_logits: Vec<_> = chunks
            .iter()
            .enumerate()
            .map(|(place, chunk)| (chunk.head.logits.room(), need(place).logits))
            .collect();
        for place in choose_surplus(&of_logits, largest.logits) {
            chunks[place].head.logits = Floats::new();
        }
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
    fn as_few_rooms_as_possible_are_given_back() {
        assert!(choose_surplus(&[], 0).is_empty());
        assert!(choose_surplus(&[(9, 4), (2, 7)], 16).is_empty(), "9 + 7");
        assert_eq!(choose_surplus(&[(9, 4), (2, 7), (6, 5)], 17), [0]);
        assert_eq!(choose_surplus(&[(9, 4), (2, 7), (6, 5)], 16), [0, 2]);
        assert_eq!(choose_surplus(&[(6, 5), (9, 4), (3, 0)], 9), [1, 2, 0]);
        assert!(choose_surplus(&[(4, 4), (2, 7)], 3).is_empty(), "nothing is to be had");
    }

    /// Passes over the same rows, cut in other places.
    #[test]
    fn chunks_hold_what_the_largest_pass_held() {
        let need = |input| ChunkNeed { input: input << 10, logits: (input / 2) << 10 };
        let mut workspace = Workspace::default();
        let mut arrange = |needs: &[usize]| {
            let needs: Vec<ChunkNeed> = needs.iter().copied().map(need).collect();
            workspace.arrange_chunks(&needs);
            for (chunk, need) in workspace.chunks.iter_mut().zip(&needs) {
                chunk.grow(1, 0);
                chunk.inputs[0].resize(need.input);
                chunk.head.logits.resize(need.logits);
            }
            let rooms = |room: &dyn Fn(&Chunk) -> usize| {
                workspace.chunks.iter().map(|chunk| room(chunk) >> 10).collect::<Vec<_>>()
            };
            (rooms(&Chunk::input_room), rooms(&|chunk| chunk.head.logits.room()))
        };
        assert_eq!(arrange(&[60, 20, 20]), (vec![60, 20, 20], vec![30, 10, 10]));
        assert_eq!(
            arrange(&[20, 60, 20]),
            (vec![20, 60, 20], vec![10, 30, 10]),
            "the large one is used again"
        );
        assert_eq!(arrange(&[62, 18, 20]).0, [62, 20, 20], "62 and not twice 60; a sixteenth more is let be");
        assert_eq!(arrange(&[40, 40]), (vec![40, 40, 20], vec![20, 20, 10]));
        assert_eq!(arrange(&[40, 40, 20]), (vec![40, 40, 20], vec![20, 20, 10]));
        assert_eq!(arrange(&[80, 20]), (vec![80, 20, 0], vec![40, 10, 0]), "the third has to give way");
        assert_eq!(arrange(&[10]).0, [80, 20, 0], "and is not needed");
    }
}
