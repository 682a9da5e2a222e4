//! The worker thread. It owns the engine and the weights, and takes commands between two steps.
//!
//! Samples with the same prompt and the same sampling parameters share the computation of the prompt as long
//! as one of them runs, even across requests.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use tamis_core::random::Key;
use tamis_model::{
    Alternatives, BatchGenerator, Completion, CompletionEnd, CompletionProgress, GenerationRequest,
    GeneratorSettings, Model, RequestId, SamplingParams, Sequence, Threads, Workspace, score_with_top,
};
use tamis_rollout::native::{StopText, token_mask};
use tamis_text::regex_mask::RegexMask;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::metrics::ServeMetrics;
use crate::slow::SlowDown;

/// Treatment of requests while generation is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PauseMode {
    /// Requests in flight are aborted.
    Abort,
    /// Requests in flight are finished.
    Wait,
    /// Requests in flight pause and continue afterwards.
    Keep,
}

/// One prompt of a request, and the channel for its events.
pub(crate) struct Job {
    /// Unique among jobs.
    pub(crate) serial: u64,
    /// The client's name for the request, used to abort it.
    pub(crate) id: Arc<str>,
    /// Token ids.
    pub(crate) prompt: Arc<[u32]>,
    /// One key for each sample.
    pub(crate) keys: Vec<Key>,
    /// Index of the first sample among the request's choices.
    pub(crate) first_choice: usize,
    /// Sampling parameters.
    pub(crate) params: SamplingParams,
    /// Stop strings and stop tokens.
    pub(crate) stop: Arc<StopText>,
    /// Pattern that texts must match, with its token mask.
    pub(crate) form: Option<(String, Arc<RegexMask>)>,
    /// Whether tokens are sent as they are sampled.
    pub(crate) is_streamed: bool,
    /// Channel to the connection.
    pub(crate) events: UnboundedSender<ChoiceEvent>,
}

/// Tokens of a choice, and its end.
#[derive(Debug)]
pub(crate) struct ChoiceEvent {
    /// Index of the choice.
    pub(crate) choice: usize,
    /// Tokens that were not sent before.
    pub(crate) piece: Piece,
    /// With the last piece.
    pub(crate) ended: Option<Ended>,
}

/// Tokens and their data.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) token_ids: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
    /// Empty unless requested.
    pub(crate) alternatives: Vec<Alternatives>,
}

/// The end of a choice.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) finish: CompletionEnd,
    /// Versions of the weights that sampled the tokens: the label, and the end of its span.
    pub(crate) versions: Vec<(Arc<str>, usize)>,
    /// Mean entropy over the tokens, nats.
    pub(crate) entropy: f64,
}

/// Scores of a prompt's tokens except the first.
#[derive(Debug, Default)]
pub(crate) struct PromptScores {
    pub(crate) logprobs: Vec<f32>,
    /// The likeliest has rank 1; equal ones share the best rank.
    pub(crate) ranks: Vec<u32>,
    /// The likeliest tokens at the place of each, the likeliest first.
    pub(crate) likeliest: Vec<Vec<(u32, f32)>>,
}

/// Commands to the engine's worker thread.
pub(crate) enum EngineCommand {
    /// Sample.
    Submit(Job),
    /// Abort the jobs with these ids; `None`: all. Returns the number of jobs.
    Abort { ids: Option<HashSet<String>>, done: oneshot::Sender<usize> },
    /// Abort jobs whose client is gone.
    Forget { serials: Vec<u64> },
    /// Generate nothing new. Answered once nothing is running.
    Pause { mode: PauseMode, clears_cache: bool, done: oneshot::Sender<()> },
    /// Continue.
    Resume { done: oneshot::Sender<()> },
    /// Clear the caches; returns whether that was possible. With `running`, the caches of running samples are
    /// recomputed.
    ResetCache { running: bool, done: oneshot::Sender<bool> },
    /// Sample from these weights from now on.
    Install { model: Box<Model>, done: oneshot::Sender<()> },
    /// Return `log_softmax(logits)` of each token except the first, its rank, and the likeliest `num_top` at
    /// its place, as far as the vocabulary has them.
    Score { tokens: Vec<u32>, num_top: usize, done: oneshot::Sender<PromptScores> },
    /// Set the label of the weights from now on.
    SetVersion { version: Arc<str>, done: oneshot::Sender<()> },
    /// Abort everything and end.
    Stop,
}

/// A sample in flight.
struct Live {
    serial: u64,
    id: Arc<str>,
    choice: usize,
    is_streamed: bool,
    /// Tokens sent already.
    num_sent: usize,
    events: UnboundedSender<ChoiceEvent>,
    /// Labels and the ends of their spans, without the current one.
    versions: Vec<(Arc<str>, usize)>,
    since: Instant,
    begun: bool,
}

/// Samples with equal keys share the prompt's computation.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PromptKey {
    prompt: Arc<[u32]>,
    numbers: [u32; 4],
    counts: [usize; 2],
    greedy: bool,
    alternatives: Option<usize>,
    stop_token_ids: Vec<u32>,
    stop: Vec<String>,
    regex: Option<String>,
}

impl PromptKey {
    fn of(job: &Job) -> Self {
        let params = &job.params;
        Self {
            prompt: job.prompt.clone(),
            numbers: [params.temperature, params.top_p, params.min_p, params.repetition_penalty]
                .map(f32::to_bits),
            counts: [params.top_k, params.max_new_tokens],
            greedy: params.greedy,
            alternatives: params.num_alternatives,
            stop_token_ids: params.stop_token_ids.clone(),
            stop: job.stop.strings().strings().to_vec(),
            regex: job.form.as_ref().map(|form| form.0.clone()),
        }
    }
}

/// A request in the engine to which samples can be added.
struct Open {
    key: PromptKey,
    /// Samples in flight.
    count: usize,
}

/// The engine, the weights, and the clients that wait.
pub(crate) struct Worker {
    threads: Threads,
    model: Box<Model>,
    generator: BatchGenerator,
    commands: Receiver<EngineCommand>,
    metrics: Arc<ServeMetrics>,
    version: Arc<str>,
    live: HashMap<(RequestId, usize), Live>,
    num_streamed: usize,
    open: HashMap<RequestId, Open>,
    shared: HashMap<PromptKey, RequestId>,
    /// `Some` while paused.
    paused: Option<PauseMode>,
    clears_cache: bool,
    /// Jobs that arrived while paused.
    held: VecDeque<(Job, Instant)>,
    /// Senders that wait for everything in flight to finish.
    drained: Vec<oneshot::Sender<()>>,
    /// Whether caches come from other weights.
    is_stale: bool,
    slow_down: Option<SlowDown>,
}

/// Initial state of the worker.
pub(crate) struct Setup {
    pub(crate) threads: usize,
    pub(crate) model: Box<Model>,
    pub(crate) settings: GeneratorSettings,
    pub(crate) metrics: Arc<ServeMetrics>,
    pub(crate) version: Arc<str>,
    pub(crate) slow_down: Option<SlowDown>,
}

impl Worker {
    pub(crate) fn new(setup: Setup, commands: Receiver<EngineCommand>) -> Self {
        let Setup { threads, model, settings, metrics, version, slow_down } = setup;
        let generator = BatchGenerator::new(model.config(), settings);
        Self {
            threads: Threads::new(threads),
            generator,
            model,
            commands,
            metrics,
            version,
            live: HashMap::new(),
            num_streamed: 0,
            open: HashMap::new(),
            shared: HashMap::new(),
            paused: None,
            clears_cache: true,
            held: VecDeque::new(),
            drained: Vec::new(),
            is_stale: false,
            slow_down,
        }
    }

    /// Works until it gets `Stop`, or the channel is closed.
    pub(crate) fn run(mut self) {
        loop {
            let runs = !self.generator.is_idle() && self.paused != Some(PauseMode::Keep);
            let first = if runs {
                match self.commands.try_recv() {
                    Ok(command) => Some(command),
                    Err(TryRecvError::Empty) => None,
                    Err(TryRecvError::Disconnected) => return,
                }
            } else {
                match self.commands.recv() {
                    Ok(command) => Some(command),
                    Err(_) => return,
                }
            };
            let mut next = first;
            while let Some(command) = next {
                if matches!(command, EngineCommand::Stop) {
                    self.abort(|_, _| true);
                    return;
                }
                self.obey(command);
                next = self.commands.try_recv().ok();
            }
            if self.paused != Some(PauseMode::Keep) && !self.generator.is_idle() {
                self.step();
            }
            self.tell_drained();
            self.report();
        }
    }

    fn obey(&mut self, command: EngineCommand) {
        // A closed channel means that the client is gone.
        match command {
            EngineCommand::Submit(job) if self.paused.is_some() => self.held.push_back((job, Instant::now())),
            EngineCommand::Submit(job) => self.submit(job, Instant::now()),
            EngineCommand::Abort { ids, done } => {
                let wanted = |id: &str| ids.as_ref().is_none_or(|ids| ids.contains(id));
                let _ = done.send(self.abort(|id, _| wanted(id)));
            }
            EngineCommand::Forget { serials } => {
                self.abort(|_, serial| serials.contains(&serial));
            }
            EngineCommand::Pause { mode, clears_cache, done } => {
                if self.paused == Some(PauseMode::Keep) && mode == PauseMode::Wait && self.clears_cache {
                    self.refresh();
                }
                self.clears_cache = clears_cache;
                self.set_paused(Some(mode));
                if mode == PauseMode::Abort {
                    self.abort(|_, _| true);
                }
                if mode == PauseMode::Wait {
                    self.drained.push(done);
                } else {
                    let _ = done.send(());
                }
            }
            EngineCommand::Resume { done } => {
                let was = self.paused;
                self.set_paused(None);
                if was == Some(PauseMode::Keep) && self.clears_cache {
                    self.refresh();
                }
                for (job, since) in std::mem::take(&mut self.held) {
                    self.submit(job, since);
                }
                let _ = done.send(());
            }
            EngineCommand::ResetCache { running, done } => {
                let is_busy = !self.generator.is_idle();
                self.generator.forget_beginnings();
                if running {
                    self.refresh();
                }
                let _ = done.send(running || !is_busy);
            }
            EngineCommand::Install { model, done } => {
                self.install(model);
                let _ = done.send(());
            }
            EngineCommand::SetVersion { version, done } => {
                self.set_version(version);
                let _ = done.send(());
            }
            EngineCommand::Score { tokens, num_top, done } => {
                // Invalid tokens were refused before; if scoring fails, the caller sees the closed channel.
                let sequence = Sequence { tokens: &tokens, start: 1 };
                let workspace = &mut Workspace::default();
                let num_top = num_top.min(self.model.config().vocab_size);
                // The rank comes with the likeliest.
                let number = num_top.max(1);
                if tokens.len() < 2 {
                    let _ = done.send(PromptScores::default());
                } else if let Ok((scores, top)) =
                    score_with_top(&self.threads, &self.model, workspace, &[sequence], 1.0, number)
                {
                    let listed = top.tokens.into_iter().zip(top.logprobs).collect::<Vec<_>>();
                    let likeliest = listed.chunks(number).map(|listed| listed[..num_top].to_vec());
                    let likeliest = likeliest.collect();
                    let logprobs = scores.logprobs.values().to_vec();
                    let _ = done.send(PromptScores { logprobs, ranks: top.ranks, likeliest });
                }
            }
            EngineCommand::Stop => {}
        }
    }

    fn set_paused(&mut self, paused: Option<PauseMode>) {
        self.paused = paused;
        self.metrics.is_paused.store(paused.is_some(), Ordering::SeqCst);
        let refuses = matches!(paused, Some(PauseMode::Abort | PauseMode::Wait));
        self.metrics.is_drained.store(refuses, Ordering::SeqCst);
    }

    fn submit(&mut self, mut job: Job, since: Instant) {
        let longest = job.params.max_new_tokens;
        let drawn = self.slow_down.as_ref().and_then(|slow| slow.draw_length(&job.keys, longest));
        if let Some(length) = drawn {
            // The drawn length replaces end tokens and the pattern of the text.
            job.params.max_new_tokens = length;
            job.params.stop_token_ids.clear();
            job.form = None;
        }
        let key = PromptKey::of(&job);
        let counters = &self.metrics;
        for (i, &sample_key) in job.keys.iter().enumerate() {
            let length = job.prompt.len() as u64;
            counters.prompt_tokens.fetch_add(length, Ordering::Relaxed);
            let shared = self.shared.get(&key).copied();
            let added = shared.and_then(|id| Some((id, self.generator.add_sample(id, sample_key)?)));
            let place = added.or_else(|| {
                let request = GenerationRequest {
                    prompt: job.prompt.to_vec(),
                    keys: vec![sample_key],
                    params: job.params.clone(),
                    stop: job.stop.check(),
                    mask: job.form.as_ref().map(|form| token_mask(&form.1)),
                };
                // Every reason to refuse it was checked before; if it fails, the caller sees the closed
                // channel.
                let id = self.generator.submit(request).ok()?;
                self.shared.insert(key.clone(), id);
                Some((id, 0))
            });
            let Some((request, sample)) = place else {
                counters.leave(1);
                continue;
            };
            if added.is_some() {
                counters.shared_prompt_tokens.fetch_add(length, Ordering::Relaxed);
            }
            self.open.entry(request).or_insert_with(|| Open { key: key.clone(), count: 0 }).count += 1;
            self.num_streamed += usize::from(job.is_streamed);
            let live = Live {
                serial: job.serial,
                id: job.id.clone(),
                choice: job.first_choice + i,
                is_streamed: job.is_streamed,
                num_sent: 0,
                events: job.events.clone(),
                versions: Vec::new(),
                since,
                begun: false,
            };
            self.live.insert((request, sample), live);
        }
    }

    /// Aborts the jobs for which `is_meant(id, serial)` is true. Returns their number.
    fn abort(&mut self, is_meant: impl Fn(&str, u64) -> bool) -> usize {
        let mut places: Vec<(RequestId, usize)> = Vec::new();
        let mut serials: Vec<u64> = Vec::new();
        for (&place, live) in &self.live {
            if is_meant(&live.id, live.serial) {
                places.push(place);
                serials.push(live.serial);
            }
        }
        places.sort_unstable();
        for (request, sample) in places {
            if let Some(completion) = self.generator.abort_sample(request, sample) {
                self.finish(completion);
            }
        }
        let held = std::mem::take(&mut self.held);
        for (job, since) in held {
            if !is_meant(&job.id, job.serial) {
                self.held.push_back((job, since));
                continue;
            }
            serials.push(job.serial);
            self.metrics.leave(job.keys.len());
            for i in 0..job.keys.len() {
                let ended = Ended {
                    finish: CompletionEnd::Aborted,
                    versions: vec![(self.version.clone(), 0)],
                    entropy: f64::NAN,
                };
                self.metrics.count_finished(CompletionEnd::Aborted, since.elapsed());
                let event =
                    ChoiceEvent { choice: job.first_choice + i, piece: Piece::default(), ended: Some(ended) };
                let _ = job.events.send(event);
            }
        }
        serials.sort_unstable();
        serials.dedup();
        serials.len()
    }

    /// Installs other weights. Running samples keep the caches of the old weights until [`Self::refresh`].
    /// Waiting samples do not, nor do new ones.
    fn install(&mut self, model: Box<Model>) {
        self.model = model;
        self.is_stale = self.generator.num_running() > 0;
        self.metrics.reloads.fetch_add(1, Ordering::Relaxed);
        self.shared.clear();
        let running: Vec<(RequestId, usize)> =
            self.generator.running().map(|running| (running.request, running.sample)).collect();
        // Waiting samples whose prompt was computed with the old weights are resubmitted.
        let mut waiting: Vec<(RequestId, usize)> =
            self.live.keys().filter(|place| !running.contains(place)).copied().collect();
        waiting.sort_unstable();
        for (request, sample) in waiting {
            let (Some(live), Some(open)) = (self.live.remove(&(request, sample)), self.open.get(&request))
            else {
                continue;
            };
            let Some((again, key)) = self.generator.request(request).and_then(|request| {
                let key = *request.keys.get(sample)?;
                Some((GenerationRequest { keys: vec![key], ..request.clone() }, key))
            }) else {
                continue;
            };
            let prompt = open.key.clone();
            self.generator.abort_sample(request, sample);
            self.close(request);
            let shared = self.shared.get(&prompt).copied();
            let added = shared.and_then(|id| Some((id, self.generator.add_sample(id, key)?)));
            let place = added.or_else(|| {
                let id = self.generator.submit(again).ok()?;
                self.shared.insert(prompt.clone(), id);
                Some((id, 0))
            });
            let Some(place) = place else {
                self.metrics.leave(1);
                continue;
            };
            self.open.entry(place.0).or_insert(Open { key: prompt, count: 0 }).count += 1;
            self.live.insert(place, live);
        }
    }

    /// Recomputes caches of the old weights, if there are any.
    fn refresh(&mut self) {
        if std::mem::take(&mut self.is_stale) {
            self.generator.recompute(&self.threads, &self.model);
        }
    }

    fn set_version(&mut self, version: Arc<str>) {
        let was = std::mem::replace(&mut self.version, version);
        for running in self.generator.running() {
            if let Some(live) = self.live.get_mut(&(running.request, running.sample)) {
                live.end_span(&was, running.tokens.len());
            }
        }
        self.metrics.set_version(self.version.clone());
    }

    fn step(&mut self) {
        let begun = Instant::now();
        let counts =
            |generator: &BatchGenerator| [generator.num_generated_tokens(), generator.num_shared_tokens()];
        let (before, running) = (counts(&self.generator), self.generator.num_running());
        let completions = self.generator.step(&self.threads, &self.model);
        let [generated, shared] = counts(&self.generator);
        self.metrics.generated_tokens.fetch_add(generated - before[0], Ordering::Relaxed);
        self.metrics.shared_prompt_tokens.fetch_add(shared - before[1], Ordering::Relaxed);
        if let Some(slow_down) = &self.slow_down {
            slow_down.stretch(begun, running.max(self.generator.num_running()));
        }
        for completion in completions {
            self.finish(completion);
        }
        if self.num_streamed > 0 {
            self.tell_progress();
        }
        if self.generator.num_running() == 0 {
            self.is_stale = false;
        }
    }

    /// Sends new tokens to streaming clients.
    fn tell_progress(&mut self) {
        for running in self.generator.running() {
            let Some(live) = self.live.get_mut(&(running.request, running.sample)) else { continue };
            if live.is_streamed && running.tokens.len() > live.num_sent {
                let CompletionProgress { tokens, logprobs, alternatives, .. } = running;
                let piece = Piece {
                    token_ids: tokens[live.num_sent..].to_vec(),
                    logprobs: logprobs[live.num_sent..].to_vec(),
                    alternatives: alternatives.get(live.num_sent..).unwrap_or_default().to_vec(),
                };
                live.num_sent = tokens.len();
                if !std::mem::replace(&mut live.begun, true) {
                    self.metrics.record_first_token(live.since.elapsed());
                }
                let _ = live.events.send(ChoiceEvent { choice: live.choice, piece, ended: None });
            }
        }
    }

    fn close(&mut self, request: RequestId) {
        if let Some(open) = self.open.get_mut(&request) {
            open.count -= 1;
            if open.count == 0
                && let Some(open) = self.open.remove(&request)
                && self.shared.get(&open.key) == Some(&request)
            {
                self.shared.remove(&open.key);
            }
        }
    }

    fn finish(&mut self, completion: Completion) {
        let entropy = completion.mean_entropy();
        let Completion { request, sample, mut tokens, mut logprobs, mut alternatives, finish, .. } =
            completion;
        self.close(request);
        let Some(mut live) = self.live.remove(&(request, sample)) else { return };
        self.metrics.leave(1);
        self.num_streamed -= usize::from(live.is_streamed);
        live.end_span(&self.version, tokens.len());
        if live.versions.is_empty() {
            live.versions.push((self.version.clone(), 0));
        }
        let finish = match &self.slow_down {
            Some(slow_down) => slow_down.reason(finish),
            None => finish,
        };
        self.metrics.count_finished(finish, live.since.elapsed());
        tokens.drain(..live.num_sent);
        logprobs.drain(..live.num_sent);
        if !alternatives.is_empty() {
            alternatives.drain(..live.num_sent);
        }
        let piece = Piece { token_ids: tokens, logprobs, alternatives };
        let ended = Ended { finish, versions: live.versions, entropy };
        let _ = live.events.send(ChoiceEvent { choice: live.choice, piece, ended: Some(ended) });
    }

    /// Answers the callers that wait for the last sample in flight.
    fn tell_drained(&mut self) {
        if self.live.is_empty() {
            for done in self.drained.drain(..) {
                let _ = done.send(());
            }
        }
    }

    fn report(&self) {
        let running = self.generator.num_running();
        self.metrics.running.store(running, Ordering::Relaxed);
        let held: usize = self.held.iter().map(|(job, _)| job.keys.len()).sum();
        self.metrics.deferred.store(held, Ordering::Relaxed);
        self.metrics.waiting.store(self.live.len().saturating_sub(running), Ordering::Relaxed);
        self.metrics.cached_tokens.store(self.generator.num_cached_tokens(), Ordering::Relaxed);
    }
}

impl Live {
    /// Ends the current span: the tokens before `end` were sampled with these weights.
    fn end_span(&mut self, version: &Arc<str>, end: usize) {
        if self.versions.last().map_or(0, |last| last.1) < end {
            self.versions.push((version.clone(), end));
        }
    }
}
