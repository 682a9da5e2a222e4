//! Keys and values of a sequence, in blocks of 64 positions shared by all layers and heads.
//!
//! Blocks return to a free list, so memory follows what is running. Keys lie in the panels that the score
//! product reads.

use std::sync::Arc;

use crate::attention::{Head, HeadsSpan, Span};
use crate::config::TransformerConfig;
use crate::floats::Floats;
use crate::simd::PANEL;
use crate::training::copy_head;

/// Positions per block.
pub(super) const BLOCK: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(super) struct CacheShape {
    layers: usize,
    kv_heads: usize,
    head: Head,
}

impl CacheShape {
    pub(super) fn new(config: &TransformerConfig) -> Self {
        Self { layers: config.num_layers, kv_heads: config.num_kv_heads, head: Head::new(config.head_dim) }
    }

    /// Values per layer and head: keys, then values.
    fn part(&self) -> usize {
        BLOCK * (self.head.dim + self.head.stride)
    }

    pub(super) fn len(&self) -> usize {
        self.layers * self.kv_heads * self.part()
    }

    fn place(&self, layer: usize, kv_head: usize) -> usize {
        (layer * self.kv_heads + kv_head) * self.part()
    }
}

/// The keys and values of consecutive positions.
#[derive(Debug, Default)]
pub(super) struct Cache {
    blocks: Vec<Floats>,
    /// Positions that are written in every layer.
    pub len: usize,
}

impl Cache {
    pub(super) fn reserve(&mut self, shape: CacheShape, count: usize, free: &mut Vec<Floats>) {
        while self.blocks.len() * BLOCK < self.len + count {
            self.blocks.push(free.pop().unwrap_or_else(|| Floats::zeros(shape.len())));
        }
    }

    pub(super) fn release(&mut self, free: &mut Vec<Floats>) {
        free.append(&mut self.blocks);
        self.len = 0;
    }

    /// Drops everything after the first `len` positions.
    pub(super) fn cut(&mut self, len: usize, free: &mut Vec<Floats>) {
        self.len = self.len.min(len);
        free.extend(self.blocks.drain(self.len.div_ceil(BLOCK)..));
    }

    /// A copy of the first `len` positions.
    pub(super) fn copy(&self, len: usize, shape: CacheShape, free: &mut Vec<Floats>) -> Self {
        let mut copy = Self::default();
        copy.reserve(shape, len, free);
        for (to, from) in copy.blocks.iter_mut().zip(&self.blocks) {
            to.copy_from_slice(from);
        }
        copy.len = len;
        copy
    }

    /// Writes one position of one layer and head; `key` has `dim` values, `value` too.
    pub(super) fn write(
        &mut self,
        shape: CacheShape,
        layer: usize,
        kv_head: usize,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let Head { dim, stride, .. } = shape.head;
        let part = &mut self.blocks[position / BLOCK][shape.place(layer, kv_head)..][..shape.part()];
        let at = position % BLOCK;
        let (keys, values) = part.split_at_mut(BLOCK * dim);
        let lane = &mut keys[at / PANEL * dim * PANEL + at % PANEL..];
        lane.iter_mut().step_by(PANEL).zip(key).for_each(|(out, &x)| *out = x);
        copy_head(value, &mut values[at * stride..][..stride]);
    }

    /// The first `len` positions of one layer and head, block by block.
    pub(super) fn spans(
        &self,
        shape: CacheShape,
        layer: usize,
        kv_head: usize,
        len: usize,
    ) -> impl Iterator<Item = Span<'_>> {
        self.blocks.iter().take(len.div_ceil(BLOCK)).enumerate().map(move |(i, block)| {
            let part = &block[shape.place(layer, kv_head)..][..shape.part()];
            let (keys, values) = part.split_at(BLOCK * shape.head.dim);
            Span { keys, values, len: (len - i * BLOCK).min(BLOCK) }
        })
    }

    /// As [`Cache::spans`], for this head and the following ones.
    pub(super) fn heads_spans(
        &self,
        shape: CacheShape,
        layer: usize,
        first_head: usize,
        len: usize,
    ) -> impl Iterator<Item = HeadsSpan<'_>> {
        self.blocks.iter().take(len.div_ceil(BLOCK)).enumerate().map(move |(i, block)| {
            let keys = &block[shape.place(layer, first_head)..];
            let values = &keys[BLOCK * shape.head.dim..];
            let first = Span { keys, values, len: (len - i * BLOCK).min(BLOCK) };
            HeadsSpan { first, apart: shape.part() }
        })
    }
}

/// The positions before a sequence's own, in stretches that other sequences may share.
#[derive(Debug, Clone, Default)]
pub(super) struct Prefix {
    stretches: Vec<Arc<Cache>>,
}

impl Prefix {
    pub(super) fn len(&self) -> usize {
        self.stretches.iter().map(|stretch| stretch.len).sum()
    }

    /// Appends a stretch, which must not change any more.
    pub(super) fn push(&mut self, stretch: Cache) {
        self.stretches.push(Arc::new(stretch));
    }

    pub(super) fn pop(&mut self) -> Option<Arc<Cache>> {
        self.stretches.pop()
    }

    /// Frees the blocks of stretches that nothing else reads.
    pub(super) fn release(&mut self, free: &mut Vec<Floats>) {
        for stretch in self.stretches.drain(..) {
            if let Some(mut cache) = Arc::into_inner(stretch) {
                cache.release(free);
            }
        }
    }

    /// Whether another prefix is the same and not empty.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let (a, b) = (&self.stretches, &other.stretches);
        !a.is_empty() && a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// All positions of one layer and head, block by block.
    pub(super) fn spans(
        &self,
        shape: CacheShape,
        layer: usize,
        kv_head: usize,
    ) -> impl Iterator<Item = Span<'_>> {
        self.stretches.iter().flat_map(move |stretch| stretch.spans(shape, layer, kv_head, stretch.len))
    }

    /// As [`Prefix::spans`], for this head and the following ones.
    pub(super) fn heads_spans(
        &self,
        shape: CacheShape,
        layer: usize,
        first_head: usize,
    ) -> impl Iterator<Item = HeadsSpan<'_>> {
        self.stretches
            .iter()
            .flat_map(move |stretch| stretch.heads_spans(shape, layer, first_head, stretch.len))
    }
}
