//! Prompt prefixes that several prompts share, such as a system prompt or worked examples. They are computed
//! once and copied.
//!
//! The keys and values of a position depend only on the weights and on the tokens up to it, so a copy has the
//! same bits. Shared prefixes are found by comparing new prompts with each other and with recent ones. Only
//! the tokens of recent prompts are remembered, so a prefix takes memory only once it has been seen twice. At
//! most [`MOST`] prefixes are kept, with at most [`MOST_POSITIONS`] positions together; the least recently
//! used is evicted first. They come on top of
//! [`GeneratorSettings::max_cached_tokens`](super::GeneratorSettings::max_cached_tokens).

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::cache::{Cache, CacheShape};
use super::infer::{InferContext, Item, infer};
use super::running::RequestGroup;
use super::{BatchGenerator, PREFILL_TOKENS, RequestId, Scratch, in_blocks};
use crate::floats::Floats;
use crate::model::{Model, WeightsState};
use crate::threads::Threads;

/// Fewest tokens of a prefix. A shorter one is not worth a pass or a copy.
const LEAST: usize = 16;

/// Most prefixes that are kept.
const MOST: usize = 8;

/// Most positions of all kept prefixes, in whole blocks.
const MOST_POSITIONS: usize = PREFILL_TOKENS;

/// Most prompts whose tokens are remembered.
const REMEMBERED: usize = 16;

/// Most positions that prefixes can take if no prompt has more than `prompt_tokens` tokens.
pub(crate) fn max_beginning_positions(prompt_tokens: usize) -> usize {
    if prompt_tokens <= LEAST { 0 } else { MOST_POSITIONS.min(MOST * in_blocks(prompt_tokens - 1)) }
}

struct Beginning {
    tokens: Vec<u32>,
    cache: Cache,
}

/// The kept prefixes, and the tokens of recent prompts.
#[derive(Default)]
pub(super) struct Beginnings {
    /// The least recently used first.
    computed: Vec<Beginning>,
    /// The weights that computed them.
    weights: Option<WeightsState>,
    /// The oldest first.
    last_prompts: VecDeque<Vec<u32>>,
}

/// Length of the common prefix of two token lists.
fn num_common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Beginnings {
    /// Evicts what other weights have computed.
    pub(super) fn expect_weights(&mut self, weights: WeightsState, free: &mut Vec<Floats>) {
        if self.weights.replace(weights) != Some(weights) {
            self.forget(free);
        }
    }

    pub(super) fn forget(&mut self, free: &mut Vec<Floats>) {
        self.computed.drain(..).for_each(|mut old| old.cache.release(free));
    }

    /// The index of the prefix that shares most tokens with these, and how many: [`LEAST`] or more.
    fn find_longest(&self, tokens: &[u32]) -> Option<(usize, usize)> {
        let commons = self.computed.iter().map(|beginning| num_common(&beginning.tokens, tokens));
        commons.enumerate().filter(|&(_, len)| len >= LEAST).max_by_key(|&(_, len)| len)
    }

    /// Marks the longest shared prefix as used. Returns how many tokens it shares, or 0 if there is none.
    fn touch(&mut self, tokens: &[u32]) -> usize {
        let Some((place, len)) = self.find_longest(tokens) else { return 0 };
        self.computed[place..].rotate_left(1);
        len
    }

    /// A copy of the longest part of these tokens that is kept; empty if it is shorter than [`LEAST`].
    pub(super) fn begin(&mut self, tokens: &[u32], shape: CacheShape, free: &mut Vec<Floats>) -> Cache {
        match (self.touch(tokens), self.computed.last()) {
            (len, Some(used)) if len > 0 => used.cache.copy(len, shape, free),
            _ => Cache::default(),
        }
    }

    /// Returns the prefixes worth computing for these prompts, and remembers the prompts. Each is at least
    /// [`LEAST`] tokens longer than what is kept, and at least two prompts share it, one of them among these.
    /// If a prompt shares a long prefix with few prompts and a short one with many, the one that saves more
    /// tokens is chosen.
    pub(super) fn find_new(&mut self, prompts: &[&[u32]]) -> Vec<Vec<u32>> {
        // New prefixes must not evict those that these prompts use.
        for prompt in prompts {
            self.touch(prompt);
        }
        let mut found: Vec<(usize, &[u32])> =
            (0..prompts.len()).filter_map(|place| self.find_shared(prompts, place)).collect();
        found.sort_by_key(|&(spared, _)| Reverse(spared));
        let (mut new, mut positions) = (Vec::<Vec<u32>>::new(), 0);
        for (_, tokens) in found {
            // A prompt that starts with a chosen prefix needs no other. A chosen prefix that starts with this
            // one can be copied from.
            let is_there = |new: &Vec<u32>| tokens.starts_with(new) || new.starts_with(tokens);
            if new.len() == MOST || new.iter().any(is_there) {
                continue;
            }
            if positions + in_blocks(tokens.len()) <= MOST_POSITIONS {
                positions += in_blocks(tokens.len());
                new.push(tokens.to_vec());
            }
        }
        for prompt in prompts.iter().filter(|prompt| prompt.len() >= LEAST) {
            self.last_prompts.retain(|last| last != prompt);
            self.last_prompts.push_back(prompt.to_vec());
        }
        let too_many = self.last_prompts.len().saturating_sub(REMEMBERED);
        self.last_prompts.drain(..too_many);
        new
    }

    /// The prefix of a prompt that saves most tokens over all prompts that share it, and how many it saves.
    fn find_shared<'a>(&self, prompts: &[&'a [u32]], place: usize) -> Option<(usize, &'a [u32])> {
        let prompt = prompts[place];
        let others = prompts.iter().enumerate().filter(|&(other, _)| other != place).map(|(_, other)| *other);
        let mut shared: Vec<usize> = others
            .chain(self.last_prompts.iter().map(Vec::as_slice))
            .map(|other| num_common(prompt, other).min(MOST_POSITIONS))
            .collect();
        shared.sort_unstable_by_key(|&len| Reverse(len));
        let there = self.find_longest(prompt).map_or(0, |(_, len)| len);
        shared
            .into_iter()
            .enumerate()
            .filter(|&(_, len)| len >= there + LEAST)
            .map(|(num_longer, len)| ((num_longer + 1) * (len - there), &prompt[..len]))
            .max_by_key(|&(spared, _)| spared)
    }

    /// Adds a computed prefix. It replaces those that are prefixes of it.
    pub(super) fn insert(&mut self, tokens: Vec<u32>, cache: Cache, free: &mut Vec<Floats>) {
        for mut old in self.computed.extract_if(.., |old| tokens.starts_with(&old.tokens)) {
            old.cache.release(free);
        }
        self.computed.push(Beginning { tokens, cache });
        let positions = |these: &[Beginning]| -> usize {
            these.iter().map(|beginning| in_blocks(beginning.tokens.len())).sum()
        };
        while self.computed.len() > MOST || positions(&self.computed) > MOST_POSITIONS {
            self.computed.remove(0).cache.release(free);
        }
    }
}

impl BatchGenerator {
    /// Gives prompts a shared prefix if it is at least [`LEAST`] tokens longer than what is kept of them. New
    /// prefixes are only looked for among prompts with less than that kept.
    pub(super) fn share_beginnings(&mut self, threads: &Threads, model: &Model, prompts: &[RequestId]) {
        let Self { groups, beginnings, rotary, free, shape, .. } = self;
        let shape = *shape;
        beginnings.expect_weights(model.state(), free);
        let groups: Vec<&mut RequestGroup> =
            groups.iter_mut().filter(|(id, _)| prompts.contains(id)).map(|(_, group)| group).collect();
        // The last token is left out, because the logits after it are needed.
        let known = |group: &RequestGroup| group.request.prompt.len() - 1;
        let prompts: Vec<&[u32]> = groups
            .iter()
            .filter(|group| group.num_kept() < LEAST)
            .map(|group| &group.request.prompt[..known(group)])
            .collect();
        // New prefixes must not evict those that the other prompts use, either.
        for group in groups.iter().filter(|group| group.num_kept() >= LEAST) {
            beginnings.touch(&group.request.prompt[..known(group)]);
        }
        let new = beginnings.find_new(&prompts);
        let mut num_computed = 0;
        if !new.is_empty() {
            let mut caches: Vec<Cache> =
                new.iter().map(|tokens| beginnings.begin(tokens, shape, free)).collect();
            for (tokens, cache) in new.iter().zip(&mut caches) {
                let num_new = tokens.len() - cache.len;
                cache.reserve(shape, num_new, free);
                rotary.reach(tokens.len());
                num_computed += num_new;
            }
            let mut items: Vec<Item> = new
                .iter()
                .zip(&mut caches)
                .map(|(tokens, cache)| Item { tokens: &tokens[cache.len..], prefix: None, cache })
                .collect();
            self.scratch.resize_with(1.max(self.scratch.len()), Scratch::default);
            let stop = self.stop.as_deref();
            let context = InferContext::new(threads, model, rotary, shape, stop).filling_caches();
            infer(context, &mut items, &mut self.scratch[0].infer);
            if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                return;
            }
            for (tokens, cache) in new.into_iter().zip(caches) {
                beginnings.insert(tokens, cache, free);
            }
        }
        let (mut num_copied, mut num_reused) = (0, 0);
        for group in groups {
            let tokens = &group.request.prompt[..known(group)];
            let num_kept = group.num_kept();
            if beginnings.find_longest(tokens).is_some_and(|(_, len)| len >= num_kept + LEAST) {
                group.prefix.release(free);
                group.cache.release(free);
                group.cache = beginnings.begin(tokens, shape, free);
                num_copied += group.cache.len;
            } else {
                num_reused += num_kept;
            }
        }
        self.num_reused += num_reused as u64;
        self.num_shared += num_copied.saturating_sub(num_computed) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Architecture, TransformerConfig};
    use tamis_core::random::{Key, Purpose};

    fn prompt(system: u32, len: usize, question: u32) -> Vec<u32> {
        [vec![system; len], vec![question; 8]].concat()
    }

    fn find(beginnings: &mut Beginnings, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
        beginnings.find_new(&prompts.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    #[test]
    fn what_prompts_have_in_common_is_found_where_it_is_worth_it() {
        let new = |prompts: &[Vec<u32>]| find(&mut Beginnings::default(), prompts);
        let asked =
            |questions: std::ops::Range<u32>, len| questions.map(move |question| prompt(1, len, question));
        assert_eq!(new(&asked(2..6, 30).collect::<Vec<_>>()), [vec![1; 30]]);
        assert!(new(&asked(2..6, LEAST - 1).collect::<Vec<_>>()).is_empty(), "too short");
        assert!(new(&[prompt(1, 30, 2)]).is_empty(), "nothing to compare with");
        // Two system prompts, and one prompt that shares nothing.
        let two = [prompt(1, 30, 2), prompt(3, 20, 2), prompt(4, 40, 5), prompt(3, 20, 6), prompt(1, 30, 7)];
        assert_eq!(new(&two), [vec![1; 30], vec![3; 20]]);
        // Nested prefixes: three prompts share 80 tokens, and three share 30.
        let nested: Vec<_> = (0..6).map(|i| prompt(1, [80, 30][i / 3], 10 + i as u32)).collect();
        assert_eq!(new(&nested), [vec![1; 80]], "all copy from the longer");
        // Two of ten share 38 tokens: 2 x 38 is less than 10 x 30.
        let pair = [vec![1; 30], vec![9; 8]].concat();
        let mut ten: Vec<_> = asked(2..8, 30).chain(asked(10..12, 30)).collect();
        ten.splice(0..0, [[&pair[..], &[5]].concat(), [&pair[..], &[6]].concat()]);
        assert_eq!(new(&ten), [vec![1; 30]]);
        // No longer than the limit.
        let long: Vec<_> = (0..2).map(|question| prompt(1, 3 * MOST_POSITIONS, question + 2)).collect();
        assert_eq!(new(&long), [vec![1; MOST_POSITIONS]]);
        // If a prefix does not fit beside a longer one, a shorter one may.
        let [long, longer, short] = [(1, 1500), (2, 1400), (3, 100)]
            .map(|(system, len)| (0..2).map(move |question| prompt(system, len, 9 - question)));
        let found = new(&long.chain(longer).chain(short).collect::<Vec<_>>());
        assert_eq!(found, [vec![1; 1500], vec![3; 100]]);
        let many: Vec<_> = (0..40).map(|i| prompt(100 + i / 2, 100, i)).collect();
        assert_eq!(new(&many).len(), MOST);
    }

    #[test]
    fn prompts_are_compared_with_the_last_ones_and_with_what_is_there() {
        let shape = CacheShape::new(&TransformerConfig::new(Architecture::Llama, 32, 16, 32, 1, 1, 256));
        let (mut beginnings, mut free) = (Beginnings::default(), Vec::new());
        let computed = |len: usize, free: &mut Vec<Floats>| {
            let mut cache = Cache::default();
            cache.reserve(shape, len, free);
            cache.len = len;
            cache
        };
        assert!(find(&mut beginnings, &[prompt(1, 30, 2)]).is_empty());
        assert_eq!(find(&mut beginnings, &[prompt(1, 30, 3)]), [vec![1; 30]]);
        beginnings.insert(vec![1; 30], computed(30, &mut free), &mut free);
        assert!(find(&mut beginnings, &[prompt(1, 30, 4)]).is_empty(), "it is there");
        let longer = prompt(1, 50, 4);
        assert!(find(&mut beginnings, &[prompt(1, 45, 5), longer.clone()]).is_empty(), "15 more");
        assert_eq!(find(&mut beginnings, &[prompt(1, 50, 6)]), [vec![1; 50]]);
        assert_eq!(beginnings.begin(&longer, shape, &mut free).len, 30);
        assert_eq!(beginnings.begin(&[1; 29], shape, &mut free).len, 29, "a part of it");
        assert_eq!(beginnings.begin(&[1; LEAST - 1], shape, &mut free).len, 0);
        // The longer one replaces the shorter one, and also serves its prompts.
        beginnings.insert(vec![1; 50], computed(50, &mut free), &mut free);
        assert_eq!(beginnings.computed.len(), 1);
        assert_eq!(beginnings.begin(&longer, shape, &mut free).len, 50);
        assert_eq!(beginnings.begin(&prompt(1, 30, 2), shape, &mut free).len, 30);
        // The least recently used is evicted first, but none that a prompt of this step uses.
        for i in 0..MOST as u32 - 1 {
            beginnings.insert(vec![100 + i; 20], computed(20, &mut free), &mut free);
        }
        let new = find(&mut beginnings, &[longer.clone(), prompt(60, 30, 2), prompt(60, 30, 3)]);
        assert_eq!(new, [vec![60; 30]]);
        beginnings.insert(vec![60; 30], computed(30, &mut free), &mut free);
        assert_eq!(beginnings.begin(&longer, shape, &mut free).len, 50);
        assert_eq!(beginnings.begin(&[100; 20], shape, &mut free).len, 0);
        assert_eq!(beginnings.begin(&[101; 20], shape, &mut free).len, 20);
        assert_eq!(beginnings.begin(&longer, shape, &mut free).len, 50);
        // The limit on positions holds.
        beginnings.insert(
            vec![200; MOST_POSITIONS - 64],
            computed(MOST_POSITIONS - 64, &mut free),
            &mut free,
        );
        assert_eq!(beginnings.computed.len(), 2);
        assert_eq!(beginnings.begin(&longer, shape, &mut free).len, 50);
    }

    #[test]
    fn other_weights_begin_anew() {
        let config = TransformerConfig::new(Architecture::Llama, 32, 16, 32, 1, 1, 256);
        let mut model = Model::init(config, Key::new(1, Purpose::Init)).unwrap();
        let shape = CacheShape::new(model.config());
        let (mut beginnings, mut free) = (Beginnings::default(), Vec::new());
        beginnings.expect_weights(model.state(), &mut free);
        let mut cache = Cache::default();
        cache.reserve(shape, 30, &mut free);
        beginnings.insert(vec![1; 30], cache, &mut free);
        beginnings.expect_weights(model.clone().state(), &mut free);
        assert_eq!((beginnings.computed.len(), free.len()), (1, 0), "a copy has the same weights");
        assert!(model.nudge("model.norm.weight", |_| 0.5));
        beginnings.expect_weights(model.state(), &mut free);
        assert_eq!((beginnings.computed.len(), free.len()), (0, 1));
    }
}
