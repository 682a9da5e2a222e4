//! Ended sequences that may continue: the cache of one turn is kept for the next one. The next prompt is the
//! last prompt, its completion and what was shown after it. It starts after the tokens that it shares with
//! the kept ones. The keys and values of a position depend only on the tokens up to it, so reusing them gives
//! the same bits. The last sampled token has none yet.
//!
//! A kept sequence takes the place of a running one: running and kept sequences together are never more than
//! the most that have run at once. Beyond that, the oldest are evicted.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use super::cache::{Cache, CacheShape, Prefix};
use crate::floats::Floats;

/// The name of a sequence of several turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceName {
    /// Kind of sequences; `group` counts within it.
    pub kind: u32,
    /// The group among those of its kind.
    pub group: u64,
    /// The member of the group.
    pub member: u32,
}

/// The place of a request's samples in sequences of several turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnPlace {
    /// The sequence of each sample, as many as the request has keys.
    pub sequences: Vec<SequenceName>,
    /// Whether the sequences have begun.
    pub continues: bool,
}

pub(super) struct Kept {
    pub name: SequenceName,
    /// Tokens whose keys and values are kept.
    pub tokens: Vec<u32>,
    pub prefix: Prefix,
    pub own: Cache,
}

impl Kept {
    fn release(mut self, free: &mut Vec<Floats>) {
        self.prefix.release(free);
        self.own.release(free);
    }

    /// Length of the common prefix with other tokens.
    fn num_common(&self, tokens: &[u32]) -> usize {
        self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }

    /// The first `len` positions: a part that others may read too, and a part to append to.
    fn begin(self, len: usize, shape: CacheShape, free: &mut Vec<Floats>) -> (Prefix, Cache) {
        let Self { mut prefix, mut own, .. } = self;
        let mut before = prefix.len();
        while len < before {
            own.release(free);
            let Some(last) = prefix.pop() else { break };
            before -= last.len;
            own = Arc::try_unwrap(last).unwrap_or_else(|last| {
                // The other samples continue from the whole completion.
                let len = len.saturating_sub(before).min(last.len);
                last.copy(len, shape, free)
            });
        }
        own.cut(len - before, free);
        (prefix, own)
    }
}

/// What is kept, the oldest first.
pub(super) struct KeptSequences {
    sequences: VecDeque<Kept>,
    limit: usize,
    /// Most samples that have run at once.
    most_running: usize,
}

impl Default for KeptSequences {
    fn default() -> Self {
        Self { sequences: VecDeque::new(), limit: usize::MAX, most_running: 0 }
    }
}

impl KeptSequences {
    pub(super) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn limit(&mut self, limit: usize, free: &mut Vec<Floats>) {
        self.limit = limit;
        self.forget_oldest(limit, free);
    }

    /// Keeps a sequence. It replaces an older one of the same name.
    pub(super) fn insert(&mut self, kept: Kept, free: &mut Vec<Floats>) {
        if let Some(before) = self.remove(kept.name) {
            before.release(free);
        }
        self.sequences.push_back(kept);
        self.forget_oldest(self.limit, free);
    }

    /// Takes out everything kept under any of the names. Returns the one that shares most with these tokens,
    /// cut to the shared part.
    pub(super) fn take(
        &mut self,
        names: &[SequenceName],
        tokens: &[u32],
        shape: CacheShape,
        free: &mut Vec<Floats>,
    ) -> (Prefix, Cache) {
        let kept = names.iter().filter_map(|&name| self.remove(name));
        let mut found: Vec<(usize, Kept)> = kept.map(|kept| (kept.num_common(tokens), kept)).collect();
        found.sort_by_key(|&(num_common, _)| Reverse(num_common));
        let mut found = found.into_iter();
        let best = found.next();
        found.for_each(|(_, kept)| kept.release(free));
        best.map(|(len, kept)| kept.begin(len, shape, free)).unwrap_or_default()
    }

    /// Evicts the oldest so that kept and running sequences are no more than the most that have run at once.
    pub(super) fn make_room(&mut self, num_running: usize, free: &mut Vec<Floats>) {
        self.most_running = self.most_running.max(num_running);
        self.forget_oldest(self.most_running - num_running, free);
    }

    pub(super) fn forget(&mut self, is_meant: impl Fn(SequenceName) -> bool, free: &mut Vec<Floats>) {
        for kept in std::mem::take(&mut self.sequences) {
            if is_meant(kept.name) {
                kept.release(free);
            } else {
                self.sequences.push_back(kept);
            }
        }
    }

    fn remove(&mut self, name: SequenceName) -> Option<Kept> {
        let place = self.sequences.iter().position(|kept| kept.name == name)?;
        self.sequences.remove(place)
    }

    fn forget_oldest(&mut self, num_left: usize, free: &mut Vec<Floats>) {
        while self.sequences.len() > num_left
            && let Some(kept) = self.sequences.pop_front()
        {
            kept.release(free);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Architecture, TransformerConfig};

    fn name(member: u32) -> SequenceName {
        SequenceName { kind: 0, group: 0, member }
    }

    /// Two of a group, of 100 shared positions and 70 of their own: blocks of 64, six in all.
    fn group(shape: CacheShape, free: &mut Vec<Floats>) -> KeptSequences {
        let mut cache = |len: usize| {
            let mut cache = Cache::default();
            cache.reserve(shape, len, free);
            cache.len = len;
            cache
        };
        let mut prefix = Prefix::default();
        prefix.push(cache(100));
        let members = [0, 1].map(|member| {
            let own = vec![member; 70];
            let tokens = [vec![9; 100], own].concat();
            Kept { name: name(member), tokens, prefix: prefix.clone(), own: cache(70) }
        });
        prefix.release(free);
        let mut kept = KeptSequences::default();
        for member in members {
            kept.insert(member, free);
        }
        kept
    }

    #[test]
    fn blocks_come_back_once_nothing_reads_them() {
        let shape = CacheShape::new(&TransformerConfig::new(Architecture::Llama, 32, 16, 32, 1, 1, 256));
        // The sequence that shares most, cut to what is shared: (tokens, positions before its own, its own,
        // free blocks).
        let own = [vec![9; 100], vec![1; 40]].concat();
        let cases = [
            (own, 100, 40, 3),
            // Cut in the middle of the shared part, which nothing else reads any more.
            (vec![9; 60], 0, 60, 5),
            (vec![8; 60], 0, 0, 6),
        ];
        for (tokens, num_shared, num_own, num_free) in cases {
            let mut free = Vec::new();
            let mut kept = group(shape, &mut free);
            let (mut prefix, mut own) = kept.take(&[name(0), name(1), name(2)], &tokens, shape, &mut free);
            assert_eq!((prefix.len(), own.len, kept.len()), (num_shared, num_own, 0));
            assert_eq!(free.len(), num_free);
            prefix.release(&mut free);
            own.release(&mut free);
            assert_eq!(free.len(), 6);
        }
        // The same while another sequence reads it: copied.
        let mut free = Vec::new();
        let mut kept = group(shape, &mut free);
        let (mut prefix, mut own) = kept.take(&[name(1)], &[9; 60], shape, &mut free);
        assert_eq!((prefix.len(), own.len, kept.len(), free.len()), (0, 60, 1, 1));
        prefix.release(&mut free);
        own.release(&mut free);
        // The most that ever ran are running: there is no room for kept ones.
        kept.make_room(2, &mut free);
        assert_eq!((kept.len(), free.len()), (0, 6));
    }
}
