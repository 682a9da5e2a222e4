//! The generator: continuous batching over a KV cache. A group's prompt is computed once for all its samples.
//!
//! A step admits waiting samples while there is room, computes new prompts and samples their first token.
//! Then it computes one more token for every running sample. A sample depends only on its key, its prompt,
//! its parameters and the weights. It never depends on its neighbours, on the order of arrival or on the
//! number of threads.
//!
//! The next turn of a sequence reuses the keys and values of its last turn, if these are kept
//! ([`BatchGenerator::submit_turn`]). A prompt reuses those of a prefix that it shares with other prompts.
//! Neither changes any result, or when a sample is admitted.

mod beginnings;
mod cache;
mod infer;
mod kept;
mod request;
mod running;
mod sampling;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::random::Key;

use crate::config::TransformerConfig;
use crate::floats::Floats;
use crate::model::Model;
use crate::rotary::Rotary;
use crate::simd::PANEL;
use crate::threads::{Parts, Threads};
use beginnings::Beginnings;
pub(crate) use beginnings::max_beginning_positions;
use cache::{Cache, CacheShape, Prefix};
use infer::{InferContext, Item, infer};
use kept::KeptSequences;
pub use kept::{SequenceName, TurnPlace};
pub use request::{
    Completion, CompletionEnd, CompletionProgress, GenerationRequest, LOGITS_NOT_FINITE, RequestId,
    StopCheck, TokenMask,
};
use running::{Masked, RequestGroup, Running, extend};
pub use sampling::{Alternatives, SamplingError, SamplingParams};

/// Tokens of prompts computed in one go.
pub(crate) const PREFILL_TOKENS: usize = 2048;

/// Limits of the generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GeneratorSettings {
    /// Most samples that run at once; at least 1. Small models run fewer, which is faster.
    pub max_sequences: usize,
    /// Most positions cached at once. Each running sample counts with its longest possible completion, and
    /// each prompt counts once. One sample runs in any case. Prefixes that prompts share come on top, at most
    /// 2048 positions.
    pub max_cached_tokens: usize,
    /// Keeps a prompt's cache separate even if it has only one sample, so that samples can be added as long
    /// as it runs ([`BatchGenerator::add_sample`]).
    pub shares_prompts: bool,
}

impl Default for GeneratorSettings {
    fn default() -> Self {
        Self { max_sequences: 256, max_cached_tokens: usize::MAX, shares_prompts: false }
    }
}

/// Buffers of one thread's part of a step.
#[derive(Default)]
struct Scratch {
    infer: infer::InferScratch,
    sampling: sampling::SamplingScratch,
}

/// Requests in, completions out; one token per running sample and step.
pub struct BatchGenerator {
    settings: GeneratorSettings,
    config: TransformerConfig,
    shape: CacheShape,
    rotary: Rotary,
    next_id: u64,
    groups: BTreeMap<RequestId, RequestGroup>,
    waiting: VecDeque<RequestId>,
    running: Vec<Running>,
    kept: KeptSequences,
    beginnings: Beginnings,
    free: Vec<Floats>,
    scratch: Vec<Scratch>,
    cached: usize,
    num_generated: u64,
    num_reused: u64,
    num_shared: u64,
    stop: Option<Arc<AtomicBool>>,
}

impl BatchGenerator {
    /// A generator for models of one configuration.
    pub fn new(config: &TransformerConfig, settings: GeneratorSettings) -> Self {
        Self {
            settings,
            config: config.clone(),
            shape: CacheShape::new(config),
            rotary: Rotary::new(config),
            next_id: 0,
            groups: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            kept: KeptSequences::default(),
            beginnings: Beginnings::default(),
            free: Vec::new(),
            scratch: Vec::new(),
            cached: 0,
            num_generated: 0,
            num_reused: 0,
            num_shared: 0,
            stop: None,
        }
    }

    /// Makes steps end early, between two layers, once the flag is set. Their results and all cached state
    /// are then invalid. Check the flag after each step, and drop the generator if it is set.
    pub fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// Limits the sequences that are kept for a next turn; 0 keeps none. In any case, running and kept
    /// sequences together are no more than the most that have run at once, so memory is bounded.
    pub fn keep_at_most(&mut self, num_sequences: usize) {
        self.kept.limit(num_sequences, &mut self.free);
    }

    /// Evicts the kept sequences for which `is_meant` is true. Evict all of them when the weights have
    /// changed.
    pub fn forget(&mut self, is_meant: impl Fn(SequenceName) -> bool) {
        self.kept.forget(is_meant, &mut self.free);
    }

    /// Evicts the shared prefixes to free their memory. Prefixes computed with other weights are never used
    /// in any case.
    pub fn forget_beginnings(&mut self) {
        self.beginnings.forget(&mut self.free);
    }

    /// Sequences that are kept for a next turn.
    pub fn num_kept(&self) -> usize {
        self.kept.len()
    }

    /// Queues a request.
    pub fn submit(&mut self, request: GenerationRequest) -> Result<RequestId, Fault> {
        self.queue(request, None)
    }

    /// Queues a request whose samples are turns of longer sequences. It reuses the cache of what its prompt
    /// shares with the kept sequences. Its own cache is kept when it ends, unless it is aborted.
    ///
    /// A request that continues its sequences is admitted before those that do not. So kept sequences are
    /// soon used, and few need to be kept.
    pub fn submit_turn(&mut self, request: GenerationRequest, turn: TurnPlace) -> Result<RequestId, Fault> {
        self.queue(request, Some(turn))
    }

    fn queue(&mut self, request: GenerationRequest, turn: Option<TurnPlace>) -> Result<RequestId, Fault> {
        request.params.validate()?;
        let (len, limit, vocab_size) =
            (request.prompt.len(), self.config.max_position_embeddings, self.config.vocab_size);
        if len == 0 {
            return Err(fault!("the prompt is empty"));
        }
        if request.keys.is_empty() {
            return Err(fault!("the request asks for no samples"));
        }
        if len >= limit {
            return Err(fault!(
                "the prompt has {len} tokens, which leaves no room within max_position_embeddings ({limit})"
            ));
        }
        if let Some(&token) = request.prompt.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(fault!("the prompt holds token {token}, but the vocabulary has {vocab_size}"));
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let open = request.keys.len();
        let group = RequestGroup {
            request,
            queue: (0..open).collect(),
            is_begun: false,
            open,
            turn,
            prefix: Prefix::default(),
            cache: Cache::default(),
            is_taken: false,
            logits: Vec::new(),
        };
        let continues = |id: &RequestId| self.groups.get(id).is_some_and(RequestGroup::continues);
        let place = if group.continues() {
            self.waiting.iter().take_while(|&id| continues(id)).count()
        } else {
            self.waiting.len()
        };
        self.waiting.insert(place, id);
        self.groups.insert(id, group);
        Ok(id)
    }

    /// Adds a sample to a request whose prompt it can still share, and returns its index. `None` if the
    /// request has ended, or if its only sample has started and owns the prompt's keys and values.
    pub fn add_sample(&mut self, request: RequestId, key: Key) -> Option<usize> {
        let group = self.groups.get_mut(&request)?;
        if group.is_taken {
            return None;
        }
        if group.queue.is_empty() {
            self.waiting.push_back(request);
        }
        let sample = group.request.keys.len();
        group.request.keys.push(key);
        group.queue.push_back(sample);
        group.open += 1;
        Some(sample)
    }

    /// Samples that are running.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Positions that are reserved, see [`GeneratorSettings::max_cached_tokens`].
    pub fn num_cached_tokens(&self) -> usize {
        self.cached
    }

    /// Bytes of a cached position.
    pub fn bytes_per_cached_token(&self) -> usize {
        size_of::<f32>() * self.shape.len() / cache::BLOCK
    }

    /// Whether nothing is running or waiting.
    pub fn is_idle(&self) -> bool {
        self.groups.is_empty()
    }

    /// Tokens generated since the generator was made.
    pub fn num_generated_tokens(&self) -> u64 {
        self.num_generated
    }

    /// Prompt tokens that were reused from an earlier turn instead of computed.
    pub fn num_reused_tokens(&self) -> u64 {
        self.num_reused
    }

    /// Prompt tokens that were copied from a prefix shared with another prompt instead of computed.
    pub fn num_shared_tokens(&self) -> u64 {
        self.num_shared
    }

    /// A request that has not ended, with the keys added to it.
    pub fn request(&self, request: RequestId) -> Option<&GenerationRequest> {
        self.groups.get(&request).map(|group| &group.request)
    }

    /// The running samples, in no particular order. Finished ones are not included.
    pub fn running(&self) -> impl Iterator<Item = CompletionProgress<'_>> {
        self.running.iter().map(|running| CompletionProgress {
            request: running.request,
            sample: running.sample,
            tokens: &running.tokens,
            logprobs: &running.logprobs,
            entropies: &running.entropies,
            alternatives: &running.alternatives,
        })
    }

    /// Ends a request. Unfinished samples return what they have; those not started return nothing. An unknown
    /// id returns nothing.
    pub fn abort(&mut self, request: RequestId) -> Vec<Completion> {
        let Some(group) = self.groups.get_mut(&request) else { return Vec::new() };
        let queue = std::mem::take(&mut group.queue);
        for running in self.running.iter_mut().filter(|running| running.request == request) {
            running.finish = Some(CompletionEnd::Aborted);
        }
        let mut aborted = self.collect();
        aborted.extend(queue.into_iter().map(|sample| Completion::without_tokens(request, sample)));
        self.remove(request);
        aborted
    }

    /// Ends one sample of a request and returns what it has. `None` if there is no such sample, or it has
    /// finished.
    pub fn abort_sample(&mut self, request: RequestId, sample: usize) -> Option<Completion> {
        let group = self.groups.get_mut(&request)?;
        if let Some(at) = group.queue.iter().position(|&waiting| waiting == sample) {
            group.queue.remove(at);
            group.open -= 1;
            if group.open == 0 {
                self.remove(request);
            } else if group.queue.is_empty() {
                self.waiting.retain(|&id| id != request);
            }
            return Some(Completion::without_tokens(request, sample));
        }
        let is_it = |running: &&mut Running| running.request == request && running.sample == sample;
        self.running.iter_mut().find(is_it)?.finish = Some(CompletionEnd::Aborted);
        self.collect().pop()
    }

    fn remove(&mut self, request: RequestId) {
        self.waiting.retain(|&id| id != request);
        if let Some(mut group) = self.groups.remove(&request) {
            self.cached -= group.cached();
            group.release(&mut self.free);
        }
    }

    /// Recomputes all caches with the given weights, so that samples started under other weights continue as
    /// if these had computed their tokens. Their tokens and log-probabilities stay as they are. With
    /// unchanged weights nothing changes at all. Kept sequences are evicted.
    pub fn recompute(&mut self, threads: &Threads, model: &Model) {
        let mut prompts: Vec<RequestId> = Vec::new();
        let mut tokens = 0;
        self.forget(|_| true);
        for group in self.groups.values_mut() {
            group.release(&mut self.free);
        }
        let is_shared = |group: &RequestGroup| group.is_begun && !group.is_taken;
        let shared: Vec<RequestId> =
            self.groups.iter().filter(|(_, group)| is_shared(group)).map(|(&id, _)| id).collect();
        for id in shared {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let len = group.request.prompt.len();
            if tokens > 0 && tokens + len > PREFILL_TOKENS {
                self.prefill(threads, model, &prompts);
                prompts.clear();
                tokens = 0;
            }
            prompts.push(id);
            tokens += len;
        }
        self.prefill(threads, model, &prompts);
        let groups = &self.groups;
        let known = |running: &Running| {
            let drawn = &running.tokens[..running.tokens.len() - 1];
            match groups.get(&running.request) {
                Some(group) if group.is_taken => [&group.request.prompt[..], drawn].concat(),
                _ => drawn.to_vec(),
            }
        };
        self.scratch.resize_with(1.max(self.scratch.len()), Scratch::default);
        let scratch = &mut self.scratch[0].infer;
        let stop = self.stop.as_deref();
        let context = InferContext::new(threads, model, &self.rotary, self.shape, stop).filling_caches();
        for running in &mut self.running {
            let tokens = known(running);
            running.cache.release(&mut self.free);
            if tokens.is_empty() {
                continue;
            }
            running.cache.reserve(self.shape, tokens.len(), &mut self.free);
            let prefix = groups.get(&running.request).map(|group| &group.prefix);
            infer(context, &mut [Item { tokens: &tokens, prefix, cache: &mut running.cache }], scratch);
        }
    }

    /// One step with the given weights; returns the samples that finished. Samples that started under other
    /// weights continue with their cached keys and values.
    pub fn step(&mut self, threads: &Threads, model: &Model) -> Vec<Completion> {
        self.admit(threads, model);
        let mut finished = self.collect();
        if !self.running.is_empty() {
            self.decode(threads, model);
            finished.extend(self.collect());
        }
        finished
    }

    /// Runs until idle.
    pub fn run(&mut self, threads: &Threads, model: &Model) -> Vec<Completion> {
        let mut finished = Vec::new();
        while !self.is_idle() {
            finished.extend(self.step(threads, model));
        }
        finished
    }

    /// Starts waiting samples while there is room.
    fn admit(&mut self, threads: &Threads, model: &Model) {
        let width = self.settings.max_sequences.max(1).min(width(
            threads.level(),
            threads.num_threads(),
            model.num_parameters(),
        ));
        let room = width.saturating_sub(self.running.len());
        let waiting: usize =
            self.waiting.iter().filter_map(|id| self.groups.get(id)).map(|group| group.queue.len()).sum();
        // A few samples at a time: a single prompt is a small product.
        if !self.running.is_empty() && room < (width / 4).min(waiting) {
            return;
        }
        let mut chosen: Vec<(RequestId, usize)> = Vec::new();
        let mut prompts: Vec<RequestId> = Vec::new();
        let (mut room, mut tokens) = (room, 0);
        let mut alone = self.running.is_empty();
        while let (Some(&id), true) = (self.waiting.front(), room > 0) {
            let Some(group) = self.groups.get_mut(&id) else {
                self.waiting.pop_front();
                continue;
            };
            let prompt = if group.is_begun { 0 } else { group.request.prompt.len() };
            let longest = group.longest(&self.config);
            let spare = self.settings.max_cached_tokens.saturating_sub(self.cached + prompt);
            let mut count = group.queue.len().min(room).min(spare / longest);
            if count == 0 && alone {
                count = 1;
            }
            if count == 0 || (prompt > 0 && tokens > 0 && tokens + prompt > PREFILL_TOKENS) {
                break;
            }
            alone = false;
            // A prompt counts in full even if a part of it is kept, so that reuse does not change when it
            // starts.
            if prompt > 0 {
                prompts.push(id);
                tokens += prompt;
            }
            self.cached += prompt + count * longest;
            room -= count;
            chosen.extend(group.queue.drain(..count).map(|sample| (id, sample)));
            group.is_begun = true;
            if group.queue.is_empty() {
                self.waiting.pop_front();
            }
        }
        if chosen.is_empty() {
            return;
        }
        self.take_up(&prompts);
        self.kept.make_room(self.running.len() + chosen.len(), &mut self.free);
        self.prefill(threads, model, &prompts);
        let level = threads.level();
        let scratch = &mut self.scratch[0].sampling;
        for (request, sample) in chosen {
            let Some(group) = self.groups.get_mut(&request) else { continue };
            let mut running = Running {
                request,
                sample,
                cache: std::mem::take(&mut group.cache),
                tokens: Vec::new(),
                masked: group.request.mask.as_deref().map(|mask| Masked::at(mask, mask.start())),
                logprobs: Vec::new(),
                entropies: Vec::new(),
                alternatives: Vec::new(),
                finish: None,
            };
            extend(level, &self.config, group, &mut running, &group.logits, scratch);
            self.running.push(running);
            self.num_generated += 1;
        }
    }

    /// Reuses what is kept of each prompt.
    fn take_up(&mut self, prompts: &[RequestId]) {
        for id in prompts {
            let Some(group) = self.groups.get_mut(id) else { continue };
            let Some(turn) = &group.turn else { continue };
            // The last token is left out, because the logits after it are needed.
            let known = &group.request.prompt[..group.request.prompt.len() - 1];
            (group.prefix, group.cache) = self.kept.take(&turn.sequences, known, self.shape, &mut self.free);
        }
    }

    fn prefill(&mut self, threads: &Threads, model: &Model, prompts: &[RequestId]) {
        self.share_beginnings(threads, model, prompts);
        let mut groups: Vec<&mut RequestGroup> = Vec::new();
        for (id, group) in &mut self.groups {
            if prompts.contains(id) {
                let num_rest = group.rest().len();
                group.cache.reserve(self.shape, num_rest, &mut self.free);
                self.rotary.reach(group.request.prompt.len());
                groups.push(group);
            }
        }
        let vocab = self.config.vocab_size.next_multiple_of(PANEL);
        let size = self.config.vocab_size;
        let cuts = cuts(threads, model, groups.iter().map(|group| group.rest().len()));
        self.scratch.resize_with(cuts.len().max(1), Scratch::default);
        let serial = Threads::with_level(1, threads.level());
        let inner = if cuts.len() > 1 { &serial } else { threads };
        let stop = self.stop.as_deref();
        let context = InferContext::new(inner, model, &self.rotary, self.shape, stop);
        let parts = (Parts::new(&mut groups, cuts.iter().copied()), Parts::chunks(&mut self.scratch, 1));
        threads.run(cuts.len(), |task| {
            let (groups, scratch) = (parts.0.take(task), &mut parts.1.take(task)[0].infer);
            let mut items: Vec<_> = groups
                .iter_mut()
                .map(|group| {
                    let RequestGroup { request, prefix, cache, .. } = &mut **group;
                    let tokens = &request.prompt[prefix.len() + cache.len..];
                    Item { tokens, prefix: Some(prefix), cache }
                })
                .collect();
            infer(context, &mut items, scratch);
            for (group, row) in groups.iter_mut().zip(scratch.logits.chunks_exact(vocab)) {
                group.logits = row[..size].to_vec();
            }
        });
        for group in groups {
            // With one sample, the prompt becomes the start of that sample's cache, which is then read in one
            // stretch.
            group.is_taken = group.request.keys.len() == 1 && !self.settings.shares_prompts;
            if !group.is_taken {
                group.prefix.push(std::mem::take(&mut group.cache));
            }
        }
    }

    fn decode(&mut self, threads: &Threads, model: &Model) {
        // Samples of a group go side by side, so that they attend to its prompt together.
        self.running.sort_by_key(|running| (running.request, running.sample));
        for running in &mut self.running {
            running.cache.reserve(self.shape, 1, &mut self.free);
            if let Some(group) = self.groups.get(&running.request) {
                self.rotary.reach(group.prefix.len() + running.cache.len + 1);
            }
        }
        let vocab = self.config.vocab_size.next_multiple_of(PANEL);
        let size = self.config.vocab_size;
        self.num_generated += self.running.len() as u64;
        let cuts = cuts(threads, model, self.running.iter().map(|_| 1));
        self.scratch.resize_with(cuts.len(), Scratch::default);
        let level = threads.level();
        let serial = Threads::with_level(1, level);
        let inner = if cuts.len() > 1 { &serial } else { threads };
        let stop = self.stop.as_deref();
        let context = InferContext::new(inner, model, &self.rotary, self.shape, stop);
        let (groups, config) = (&self.groups, &self.config);
        let parts =
            (Parts::new(&mut self.running, cuts.iter().copied()), Parts::chunks(&mut self.scratch, 1));
        threads.run(cuts.len(), |task| {
            let (running, scratch) = (parts.0.take(task), &mut parts.1.take(task)[0]);
            let mut items: Vec<_> = running
                .iter_mut()
                .map(|running| Item {
                    tokens: &running.tokens[running.tokens.len() - 1..],
                    prefix: groups.get(&running.request).map(|group| &group.prefix),
                    cache: &mut running.cache,
                })
                .collect();
            infer(context, &mut items, &mut scratch.infer);
            for (running, row) in running.iter_mut().zip(scratch.infer.logits.chunks_exact(vocab)) {
                if let Some(group) = groups.get(&running.request) {
                    extend(level, config, group, running, &row[..size], &mut scratch.sampling);
                }
            }
        });
    }

    fn collect(&mut self) -> Vec<Completion> {
        let mut finished = Vec::new();
        let mut running_on = Vec::with_capacity(self.running.len());
        let is_stopped = self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
        for mut running in self.running.drain(..) {
            let Some(finish) = running.finish else {
                running_on.push(running);
                continue;
            };
            if let Some(group) = self.groups.get(&running.request)
                && matches!(finish, CompletionEnd::Stop | CompletionEnd::Length)
                && !is_stopped
                && let Some(kept) = group.keep(&mut running)
            {
                self.kept.insert(kept, &mut self.free);
            }
            running.cache.release(&mut self.free);
            if let Some(group) = self.groups.get_mut(&running.request) {
                self.cached -= group.longest(&self.config);
                group.open -= 1;
                if group.open == 0
                    && let Some(mut group) = self.groups.remove(&running.request)
                {
                    self.cached -= group.cached();
                    group.release(&mut self.free);
                }
            }
            let Running { request, sample, tokens, logprobs, entropies, alternatives, .. } = running;
            finished.push(Completion { request, sample, tokens, logprobs, entropies, alternatives, finish });
        }
        self.running = running_on;
        finished
    }
}

/// Number of samples that is fastest to run at once. Near weights cost little to read again, but the keys and
/// values of every running sample are read for each token. Two tiles of rows per thread keep both near
/// (measured with 1 M weights on AVX2: 1.6 times the tokens per second of 64 at once). Weights that stream
/// from memory want as many rows as there are.
pub(crate) fn width(level: crate::simd::SimdLevel, num_threads: usize, num_parameters: usize) -> usize {
    if crate::training::stay_near(num_parameters) { 2 * level.tile_rows() * num_threads } else { usize::MAX }
}

/// Positions of the whole blocks for this many.
pub(crate) fn in_blocks(positions: usize) -> usize {
    positions.next_multiple_of(cache::BLOCK)
}

/// Whether all weights stay near the cores.
fn near(model: &Model) -> bool {
    crate::training::stay_near(model.num_parameters())
}

/// Number of items that each thread computes by itself; one part if all threads share every product.
fn cuts(threads: &Threads, model: &Model, weights: impl ExactSizeIterator<Item = usize>) -> Vec<usize> {
    let weights: Vec<usize> = weights.collect();
    let (rows, num_threads): (usize, _) = (weights.iter().sum(), threads.num_threads());
    if num_threads == 1 || weights.len() < num_threads || (!near(model) && rows < 32 * num_threads) {
        return vec![weights.len()];
    }
    // Cut when the running sum passes each thread's share.
    let (mut cuts, mut sum, mut count) = (Vec::new(), 0, 0);
    for weight in weights {
        sum += weight;
        count += 1;
        if sum * num_threads >= rows * (cuts.len() + 1) && cuts.len() + 1 < num_threads {
            cuts.push(count);
            count = 0;
        }
    }
    cuts.push(count);
    cuts.retain(|&count| count > 0);
    cuts
}
