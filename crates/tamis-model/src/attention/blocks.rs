//! How the rows of a group are cut into blocks of queries, and what each row of a block sees.

use std::ops::Range;

use super::Head;
use crate::floats::Floats;
use crate::panels::{self, pack_rows};
use crate::simd::{PANEL, SimdLevel};

/// Query rows per block.
const BLOCK: usize = 24;

/// Query rows per block that sees [`FAR`] positions or more. So many keys and values are in no cache near the
/// core, and larger blocks read them half as often.
pub(super) const FAR_BLOCK: usize = 48;

/// See [`FAR_BLOCK`]. With fewer positions, the rows of a large block would differ too much in what they see.
pub(super) const FAR: usize = 1024;

/// Positions of a tile. A block's results for one tile fit into the second-level cache until they are used.
pub(super) const TILE: usize = 512;

/// Most rows of a block whose first row sees this many positions.
fn block_rows(positions: usize) -> usize {
    if positions < FAR { BLOCK } else { FAR_BLOCK }
}

/// Consecutive rows that are causal among themselves and see `prefix` positions before them.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) prefix: usize,
    /// Offset of the panels.
    pub(super) panels: usize,
}

/// Rows of a stretch within a block of queries: `from..to`, the first at `at` in the block.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) stretch: Stretch,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) at: usize,
}

impl Piece {
    pub(super) fn end(&self) -> usize {
        self.stretch.prefix + self.to
    }

    /// Positions that row `i` of the piece sees.
    pub(super) fn visible(&self, i: usize) -> usize {
        self.stretch.prefix + self.from + i + 1
    }
}

/// Query rows `first..first + rows` of a group: one piece of the prompt, or pieces of several members.
pub(super) struct Block {
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) prefix: usize,
    pub(super) pieces: Vec<Piece>,
}

/// A group's rows cut into stretches and blocks.
pub(super) struct Plan {
    pub(super) rows: usize,
    pub(super) stretches: Vec<Stretch>,
    pub(super) blocks: Vec<Block>,
    /// Values of all panels of a `[rows][dim]` matrix.
    pub(super) packed: usize,
    /// Distance between rows of scores.
    pub(super) width: usize,
    /// Rows of the tallest block.
    pub(super) tallest: usize,
}

impl Plan {
    pub(super) fn new(head: Head, prompt: usize, members: &[usize]) -> Self {
        let mut plan =
            Self { rows: 0, stretches: Vec::new(), blocks: Vec::new(), packed: 0, width: 0, tallest: 0 };
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
        // An odd number of cache lines. Rows a power of two apart would all compete for the same few sets of
        // the cache.
        plan.width = ((plan.width / PANEL) | 1) * PANEL;
        for stretch in &plan.stretches {
            let mut from = 0;
            while from < stretch.rows {
                let most = block_rows(if stretch.prefix > 0 { stretch.prefix } else { from });
                // Rows after a prompt share a block with neighbouring ones while there is room.
                let joins = |block: &Block| stretch.prefix > 0 && block.prefix > 0 && block.rows < most;
                if !plan.blocks.last().is_some_and(joins) {
                    let first = stretch.first + from;
                    plan.blocks.push(Block { first, rows: 0, prefix: stretch.prefix, pieces: Vec::new() });
                }
                let Some(block) = plan.blocks.last_mut() else { break };
                let to = stretch.rows.min(from + most - block.rows);
                block.pieces.push(Piece { stretch: *stretch, from, to, at: block.rows });
                block.rows += to - from;
                plan.tallest = plan.tallest.max(block.rows);
                from = to;
            }
        }
        plan
    }

    /// Packs the rows of every stretch into panels of its own.
    pub(super) fn pack(&self, level: SimdLevel, head: Head, source: &[f32], out: &mut Floats) {
        out.resize(self.packed);
        for stretch in &self.stretches {
            let out = &mut out[stretch.panels..][..panels::len(stretch.rows, head.dim)];
            let source = &source[stretch.first * head.stride..];
            pack_rows(level, source, stretch.rows, head.dim, head.stride, out);
        }
    }
}

/// The positions that a block sees, in tiles.
pub(super) fn tiles(end: usize) -> impl Iterator<Item = Range<usize>> {
    (0..end).step_by(TILE).map(move |from| from..end.min(from + TILE))
}

impl Block {
    /// Calls `run` with each row's piece, its index in the piece and its index in the block.
    pub(super) fn for_each_row(&self, mut run: impl FnMut(&Piece, usize, usize)) {
        for piece in &self.pieces {
            (0..piece.to - piece.from).for_each(|i| run(piece, i, piece.at + i));
        }
    }

    /// Positions that its last row sees.
    pub(super) fn end(&self) -> usize {
        self.pieces.iter().map(Piece::end).max().unwrap_or(0)
    }

    /// The part of a tile in the prefix, which all rows see.
    pub(super) fn of_prefix(&self, tile: &Range<usize>) -> Option<Range<usize>> {
        let part = tile.start..tile.end.min(self.prefix);
        (!part.is_empty()).then_some(part)
    }
}

/// Numbers of positions of a tile.
pub(super) struct Seen {
    /// Those that a row sees.
    pub by_row: usize,
    /// Those that the last row of its piece sees.
    pub by_last: usize,
}

impl Piece {
    /// The part of a tile that lies in the piece's own stretch, counted from the stretch's first row.
    pub(super) fn of_own(&self, tile: &Range<usize>) -> Option<Range<usize>> {
        let prefix = self.stretch.prefix;
        let part = tile.start.saturating_sub(prefix)..tile.end.saturating_sub(prefix).min(self.to);
        (!part.is_empty()).then_some(part)
    }

    /// What row `i` sees of a tile.
    pub(super) fn seen(&self, i: usize, tile: &Range<usize>) -> Seen {
        let of_tile = |position: usize| position.clamp(tile.start, tile.end) - tile.start;
        Seen { by_row: of_tile(self.visible(i)), by_last: of_tile(self.end()) }
    }
}
