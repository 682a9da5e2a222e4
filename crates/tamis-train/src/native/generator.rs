//! The engine as a generator: samples with the learner's weights. They are shared, and not copied while
//! nothing is in flight.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use tamis_core::group::{FinishReason, PolicyVersion};
use tamis_core::schedule::Spent;
use tamis_model::{
    BatchGenerator, Completion, CompletionEnd, GenerationRequest, GeneratorSettings, Model, RequestId,
    SequenceName, Threads, TurnPlace,
};
use tamis_rollout::native::{StopText, engine_params, token_mask};
use tamis_rollout::{
    AbortScope, Generator, GeneratorError, GeneratorEvent, InFlight, Load, Publication, Sample, SampleId,
    SamplePurpose, SampleRequest, VersionSpan, Wait, Weights,
};
use tamis_text::regex_mask::RegexMasks;
use tamis_text::tokenizer::Tokenizer;

use super::{EngineSettings, NativeEngine};
use crate::interrupt::Interrupt;
use crate::learner::sample_queue::SampleQueue;
use crate::prompts::codec::Codec;

/// Shared reference to a learner's weights for its generators. A generator holds the weights only while it
/// samples. So the learner changes them in place if nothing is in flight, and changes a copy otherwise.
#[derive(Clone, Default)]
pub(super) struct SharedWeights(Arc<Mutex<Weak<Model>>>);

impl SharedWeights {
    pub(super) fn set(&self, model: &Arc<Model>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(model);
    }

    /// The weights; `None` if the learner is gone.
    fn get(&self) -> Option<Arc<Model>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }
}

/// Samples with the weights of a [`NativeEngine`], or of folders that another learner publishes. It works
/// during [`Generator::next`], on the engine's threads.
///
/// Members of a group that are submitted in sequence share their prompt's computation. The next turn of an
/// episode reuses the keys and values of the previous one. Samples in flight keep the weights that they
/// started with: a publication waits for them or aborts them.
pub(super) struct NativeGenerator {
    threads: Arc<Threads>,
    tokenizer: Arc<Tokenizer>,
    masks: RegexMasks,
    end_token_ids: Vec<u32>,
    max_num_seqs: usize,
    interrupt: Interrupt,
    shared: SharedWeights,
    /// The weights, while anything is in flight.
    weights: Option<Arc<Model>>,
    version: PolicyVersion,
    /// Submitted requests that are not in an engine yet.
    queue: SampleQueue,
    /// Groups that may be trained on.
    rollouts: Lane,
    /// Validation and greedy completions. They come first, and training groups in flight pause. So groups end
    /// in the same order as in a run that is resumed after the validation.
    others: Lane,
    events: Vec<GeneratorEvent>,
    /// Weights read from a folder, if there is no learner in this process.
    own: Option<Arc<Model>>,
    /// Whether it reads folders because there is no learner in this process.
    is_apart: bool,
    /// A publication that waits for samples in flight.
    publishing: Option<Publication>,
    /// Largest number of episodes whose last turn is kept; 0: none.
    max_kept: usize,
    /// Whether an episode has had a second turn. Before that, nothing is kept.
    has_turns: bool,
    /// The weights that computed what is kept. Because of this reference, a learner that changes its weights
    /// changes a copy.
    kept_by: Weak<Model>,
}

/// Samples that one engine generates at the same time.
#[derive(Default)]
struct Lane {
    engine: Option<BatchGenerator>,
    begun: HashMap<RequestId, Begun>,
    places: HashMap<SampleId, (RequestId, usize)>,
}

impl Lane {
    /// Discards everything that other weights computed: turns of episodes, and starts of prompts.
    fn forget(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.forget(|_| true);
            engine.forget_beginnings();
        }
    }

    /// Aborts the samples in scope, in the order of their start.
    fn abort(&mut self, what: &AbortScope) -> Vec<Completion> {
        let mut meant: Vec<(RequestId, usize)> =
            self.places.iter().filter(|(id, _)| what.holds(id)).map(|(_, place)| *place).collect();
        meant.sort_unstable();
        let Some(engine) = &mut self.engine else { return Vec::new() };
        engine.forget(|sequence| is_of(what, sequence));
        // Samples that ended in an interrupted step are lost.
        let end = |(request, sample)| {
            engine
                .abort_sample(request, sample)
                .unwrap_or_else(|| Completion::without_tokens(request, sample))
        };
        meant.into_iter().map(end).collect()
    }
}

/// A request to the engine: samples of one prompt.
struct Begun {
    stop: Arc<StopText>,
    samples: Vec<SampleId>,
    num_open: usize,
    /// Version of the weights that sample it.
    version: PolicyVersion,
}

/// The engine's name for the episode of a sample.
fn sequence_of(id: &SampleId) -> SequenceName {
    SequenceName { kind: id.purpose as u32, group: id.group, member: id.member }
}

/// Whether all turns of an episode are in scope.
fn is_of(what: &AbortScope, sequence: SequenceName) -> bool {
    match what {
        AbortScope::Sample(sample) => sequence == sequence_of(sample),
        AbortScope::Group { purpose, group } => (sequence.kind, sequence.group) == (*purpose as u32, *group),
        AbortScope::Purpose(purpose) => sequence.kind == *purpose as u32,
    }
}

fn engine_error(error: &dyn std::fmt::Display) -> GeneratorError {
    GeneratorError::stopped(error)
}

impl NativeGenerator {
    /// A generator beside a learner whose weights have this version.
    pub(super) fn of(learner: &NativeEngine, codec: &Codec, version: PolicyVersion) -> Self {
        let shared = learner.shared.clone();
        let threads = Arc::clone(&learner.threads);
        Self::new(codec, learner.settings, version, &learner.interrupt, threads, shared, false)
    }

    /// A generator without a learner: it samples with the weights of the last published folder.
    pub(super) fn apart(
        codec: &Codec,
        settings: EngineSettings,
        version: PolicyVersion,
        interrupt: &Interrupt,
    ) -> Self {
        let threads = Arc::new(Threads::new(settings.threads));
        Self::new(codec, settings, version, interrupt, threads, SharedWeights::default(), true)
    }

    fn new(
        codec: &Codec,
        settings: EngineSettings,
        version: PolicyVersion,
        interrupt: &Interrupt,
        threads: Arc<Threads>,
        shared: SharedWeights,
        is_apart: bool,
    ) -> Self {
        let tokenizer = Arc::new(codec.tokenizer().clone());
        Self {
            threads,
            masks: RegexMasks::new(Arc::clone(&tokenizer)),
            tokenizer,
            end_token_ids: codec.end_token_ids().to_vec(),
            max_num_seqs: settings.max_num_seqs,
            interrupt: interrupt.clone(),
            shared,
            weights: None,
            version,
            queue: SampleQueue::default(),
            rollouts: Lane::default(),
            others: Lane::default(),
            events: Vec::new(),
            own: None,
            is_apart,
            publishing: None,
            max_kept: usize::MAX,
            has_turns: false,
            kept_by: Weak::new(),
        }
    }

    /// Submits waiting requests that may start to the engine, all samples of a prompt together. While a
    /// publication waits, nothing starts.
    fn begin(&mut self) -> Result<(), GeneratorError> {
        if self.publishing.is_some() {
            return Ok(());
        }
        for members in self.queue.take(!self.others.begun.is_empty()) {
            self.begin_group(members)?;
        }
        Ok(())
    }

    fn begin_group(&mut self, members: Vec<SampleRequest>) -> Result<(), GeneratorError> {
        let Some(first) = members.first() else { return Ok(()) };
        let gone = || GeneratorError::stopped("there are no weights to sample with");
        let weights = if let Some(weights) = &self.weights {
            weights
        } else {
            let weights = self.weights.insert(self.shared.get().ok_or_else(gone)?);
            // The weights may have changed without a publication.
            let now = Arc::downgrade(weights);
            if !Weak::ptr_eq(&self.kept_by, &now) {
                self.rollouts.forget();
                self.others.forget();
                self.kept_by = now;
            }
            weights
        };
        self.has_turns |= first.id.turn > 0;
        let sampling = &first.sampling;
        let stop = StopText::new(sampling.stop.clone(), Arc::clone(&self.tokenizer));
        let stop = match stop {
            Ok(stop) => Arc::new(stop),
            Err(error) => {
                self.events.extend(self.queue.fail(&members, &error.to_string()));
                return Ok(());
            }
        };
        let mask = match &sampling.regex {
            Some(regex) => {
                let mask = self.masks.get(regex, &self.end_token_ids);
                Some(token_mask(&mask.map_err(|error| engine_error(&error))?))
            }
            None => None,
        };
        let (lane, other) = match first.id.purpose {
            SamplePurpose::Rollout => (&mut self.rollouts, &mut self.others),
            SamplePurpose::Validation | SamplePurpose::Greedy => (&mut self.others, &mut self.rollouts),
        };
        // An idle engine can lend its memory.
        if lane.engine.is_none() && other.begun.is_empty() {
            lane.engine = other.engine.take();
        }
        let engine = lane.engine.get_or_insert_with(|| {
            let settings =
                GeneratorSettings { max_sequences: self.max_num_seqs, ..GeneratorSettings::default() };
            let mut engine = BatchGenerator::new(weights.config(), settings);
            engine.stop_on(self.interrupt.flag());
            engine.keep_at_most(self.max_kept);
            engine
        });
        let request = GenerationRequest {
            prompt: first.prompt_token_ids.to_vec(),
            keys: members.iter().map(|member| member.key).collect(),
            params: engine_params(sampling, self.end_token_ids.clone()),
            stop: stop.check(),
            mask,
        };
        // Depends on turns and not on what is kept, so samples end in the same order either way.
        let turn = TurnPlace {
            sequences: members.iter().map(|member| sequence_of(&member.id)).collect(),
            continues: first.id.turn > 0,
        };
        let submitted =
            if self.has_turns { engine.submit_turn(request, turn) } else { engine.submit(request) };
        match submitted {
            Ok(request) => {
                for (sample, member) in members.iter().enumerate() {
                    lane.places.insert(member.id, (request, sample));
                }
                let samples: Vec<SampleId> = members.into_iter().map(|member| member.id).collect();
                let begun = Begun { stop, num_open: samples.len(), samples, version: self.version };
                lane.begun.insert(request, begun);
            }
            Err(error) => self.events.extend(self.queue.fail(&members, &error.to_string())),
        }
        Ok(())
    }

    /// Whether nothing is in flight.
    fn is_idle(&self) -> bool {
        self.rollouts.begun.is_empty() && self.others.begun.is_empty()
    }

    fn end(&mut self, is_rollout: bool, completion: Completion) -> Result<(), GeneratorError> {
        let lane = if is_rollout { &mut self.rollouts } else { &mut self.others };
        let Some(begun) = lane.begun.get_mut(&completion.request) else { return Ok(()) };
        let Some(&id) = begun.samples.get(completion.sample) else { return Ok(()) };
        if lane.places.remove(&id).is_none() {
            return Ok(());
        }
        self.queue.end(&id);
        let num_tokens = completion.tokens.len();
        if completion.finish == CompletionEnd::NotFinite {
            return Err(GeneratorError::NotFinite { id, token: num_tokens });
        }
        let event = if completion.finish == CompletionEnd::Aborted {
            GeneratorEvent::Aborted { id, spent: Spent::on_answer(num_tokens as u64) }
        } else {
            let sample = Sample {
                episode: None,
                lost: Spent::default(),
                text: begun.stop.text(&completion.tokens).map_err(|error| engine_error(&error))?,
                versions: vec![VersionSpan { version: begun.version, start: 0, end: num_tokens as u32 }],
                entropy: Some(completion.mean_entropy()).filter(|entropy| !entropy.is_nan()),
                token_ids: completion.tokens,
                logprobs: completion.logprobs,
                finish_reason: match completion.finish {
                    CompletionEnd::Stop => FinishReason::Stop,
                    CompletionEnd::Length | CompletionEnd::Aborted | CompletionEnd::NotFinite => {
                        FinishReason::Length
                    }
                },
            };
            GeneratorEvent::Sampled { id, sample }
        };
        begun.num_open -= 1;
        if begun.num_open == 0 {
            lane.begun.remove(&completion.request);
        }
        self.events.push(event);
        if self.is_idle() {
            self.weights = None;
        }
        Ok(())
    }

    /// Takes the new weights if nothing in flight needs the old ones.
    fn finish_publication(&mut self) -> Result<(), GeneratorError> {
        if !self.is_idle() {
            return Ok(());
        }
        let Some(Publication { version, weights }) = self.publishing.take() else { return Ok(()) };
        self.rollouts.forget();
        self.others.forget();
        if let Weights::Folder(folder) = weights {
            // Frees the old weights before the new ones are loaded.
            self.own = None;
            let model = Model::load(&folder).map_err(|error| engine_error(&error))?;
            self.shared.set(self.own.insert(Arc::new(model)));
        }
        self.version = version;
        self.events.push(GeneratorEvent::Published { version });
        Ok(())
    }

    /// Generates one more token of everything that runs. Returns false if there was nothing to do.
    fn work(&mut self) -> Result<bool, GeneratorError> {
        let is_rollout = self.others.begun.is_empty();
        let lane = if is_rollout { &mut self.rollouts } else { &mut self.others };
        let (Some(engine), Some(weights)) = (&mut lane.engine, &self.weights) else { return Ok(false) };
        if engine.is_idle() || self.interrupt.is_requested() {
            return Ok(false);
        }
        let completions = engine.step(&self.threads, weights);
        // The result of an interrupted step is discarded.
        if self.interrupt.is_requested() {
            return Ok(false);
        }
        for completion in completions {
            self.end(is_rollout, completion)?;
        }
        self.finish_publication()?;
        Ok(true)
    }
}

impl Generator for NativeGenerator {
    fn submit(&mut self, request: SampleRequest) -> Result<(), GeneratorError> {
        self.queue.submit(request)
    }

    fn abort(&mut self, what: AbortScope) {
        self.events.extend(self.queue.abort(&what));
        for is_rollout in [true, false] {
            let lane = if is_rollout { &mut self.rollouts } else { &mut self.others };
            for completion in lane.abort(&what) {
                // A sample that did not reach its end has no text that could fail.
                let _ = self.end(is_rollout, completion);
            }
        }
    }

    fn publish(&mut self, weights: &Publication, in_flight: InFlight) -> Result<(), GeneratorError> {
        if let Weights::Folder(folder) = &weights.weights
            && !self.is_apart
        {
            let reason = format!(
                "the native engine samples with the learner's weights in memory, and was asked to read {}",
                folder.display()
            );
            return Err(GeneratorError::stopped(reason));
        }
        match in_flight {
            // A switch in mid-sample gains nothing: the computed keys and values would have to be recomputed.
            InFlight::Wait | InFlight::Keep => {}
            InFlight::Abort => {
                for purpose in [SamplePurpose::Rollout, SamplePurpose::Validation, SamplePurpose::Greedy] {
                    self.abort(AbortScope::Purpose(purpose));
                }
            }
        }
        self.publishing = Some(weights.clone());
        self.finish_publication()
    }

    fn next(&mut self, wait: Wait) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        // Nothing starts before the pending events are returned: after a publication the caller may save the
        // state first.
        if wait != Wait::No && self.events.is_empty() {
            self.begin()?;
        }
        while wait != Wait::No && self.events.is_empty() && self.work()? {
            if matches!(wait, Wait::Until(time) if Instant::now() >= time) {
                break;
            }
        }
        Ok(std::mem::take(&mut self.events))
    }

    fn load(&self) -> Load {
        let in_flight = self.queue.num_open();
        Load { in_flight, room: self.max_num_seqs.saturating_sub(in_flight) }
    }
}

#[cfg(test)]
mod tests;
