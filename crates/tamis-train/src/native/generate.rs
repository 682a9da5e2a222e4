//! The engine as a generator for a controller in another process, one call at a time, with the current
//! weights.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tamis_core::group::FinishReason;
use tamis_model::{
    BatchGenerator, Completion, CompletionEnd, GenerationRequest, GeneratorSettings, Model, RequestId,
    SamplingParams, Threads,
};

use super::NativeEngine;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::generate::{
    BeginningGroup, Drawing, Generate, GrownSamples, RefusedSample, SampleGrowth,
};
use crate::learner::{LearnerError, Pass};

/// Samples of a controller that have started and not ended.
pub(super) struct OpenSamples {
    engine: BatchGenerator,
    /// Sample numbers of each request, by their index in it.
    requests: HashMap<RequestId, Vec<u64>>,
    open: BTreeMap<u64, Place>,
}

struct Place {
    request: RequestId,
    index: usize,
    /// Tokens that have been reported to the controller.
    num_told: usize,
}

fn params(drawing: &Drawing) -> SamplingParams {
    let greedy = drawing.temperature <= 0.0;
    SamplingParams {
        temperature: if greedy { 1.0 } else { drawing.temperature as f32 },
        top_k: drawing.top_k as usize,
        top_p: drawing.top_p as f32,
        min_p: drawing.min_p as f32,
        repetition_penalty: drawing.repetition_penalty as f32,
        max_new_tokens: drawing.max_tokens,
        stop_token_ids: drawing.end_tokens.clone(),
        greedy,
        num_alternatives: None,
    }
}

impl OpenSamples {
    fn new(model: &Model, max_sequences: usize, interrupt: &Interrupt) -> Self {
        let settings = GeneratorSettings { max_sequences, ..GeneratorSettings::default() };
        let mut engine = BatchGenerator::new(model.config(), settings);
        engine.stop_on(interrupt.flag());
        Self { engine, requests: HashMap::new(), open: BTreeMap::new() }
    }

    fn begin(&mut self, group: BeginningGroup, refused: &mut Vec<RefusedSample>) -> Result<(), LearnerError> {
        let BeginningGroup { prompt, drawing, samples } = group;
        if let Some((taken, _)) = samples.iter().find(|(sample, _)| self.open.contains_key(sample)) {
            return Err(LearnerError::Misused { reason: format!("sample {taken} is open already") });
        }
        let (numbers, keys): (Vec<u64>, Vec<_>) = samples.into_iter().unzip();
        let submitted = self.engine.submit(GenerationRequest {
            prompt,
            keys,
            params: params(&drawing),
            stop: None,
            mask: None,
        });
        match submitted {
            Ok(request) => {
                for (index, &sample) in numbers.iter().enumerate() {
                    self.open.insert(sample, Place { request, index, num_told: 0 });
                }
                self.requests.insert(request, numbers);
            }
            Err(error) => {
                let reason = error.to_string();
                refused.extend(
                    numbers.into_iter().map(|sample| RefusedSample { sample, reason: reason.clone() }),
                );
            }
        }
        Ok(())
    }

    fn abort(&mut self, sample: u64) {
        if let Some(Place { request, index, .. }) = self.open.remove(&sample) {
            self.engine.abort_sample(request, index);
            self.forget(request);
        }
    }

    /// Resubmits waiting samples, so that they start with the current weights and reuse nothing that earlier
    /// weights computed for their prompt. Running samples continue with their keys and values.
    pub(super) fn begin_anew(&mut self) -> Result<(), LearnerError> {
        let running: HashSet<(RequestId, usize)> =
            self.engine.running().map(|running| (running.request, running.sample)).collect();
        // In order of arrival.
        let mut waiting: BTreeMap<(RequestId, usize), u64> = BTreeMap::new();
        for (&sample, place) in &self.open {
            waiting.insert((place.request, place.index), sample);
        }
        waiting.retain(|place, _| !running.contains(place));
        let mut waiting = waiting.into_iter().peekable();
        while let Some(((request, first), sample)) = waiting.next() {
            let mut members = vec![(first, sample)];
            while let Some(((_, index), sample)) = waiting.next_if(|((other, _), _)| *other == request) {
                members.push((index, sample));
            }
            let Some(before) = self.engine.request(request).cloned() else { continue };
            let keys = members.iter().map(|&(index, _)| before.keys[index]).collect();
            for &(index, _) in &members {
                self.engine.abort_sample(request, index);
            }
            let again = self.engine.submit(GenerationRequest { keys, ..before });
            let again = again.map_err(|error| LearnerError::Engine { reason: error.to_string() })?;
            for (index, &(_, sample)) in members.iter().enumerate() {
                self.open.insert(sample, Place { request: again, index, num_told: 0 });
            }
            self.requests.insert(again, members.into_iter().map(|(_, sample)| sample).collect());
            self.forget(request);
        }
        Ok(())
    }

    /// Removes a request without open samples.
    fn forget(&mut self, request: RequestId) {
        let is_of_it = |place: &Place| place.request == request;
        let is_over =
            |numbers: &Vec<u64>| !numbers.iter().any(|sample| self.open.get(sample).is_some_and(is_of_it));
        if self.requests.get(&request).is_some_and(is_over) {
            self.requests.remove(&request);
        }
    }

    fn end(&mut self, completion: Completion) -> Option<SampleGrowth> {
        let sample = *self.requests.get(&completion.request)?.get(completion.sample)?;
        let Place { num_told, .. } = self.open.remove(&sample)?;
        self.forget(completion.request);
        let Completion { mut tokens, mut logprobs, mut entropies, finish, .. } = completion;
        tokens.drain(..num_told);
        logprobs.drain(..num_told);
        entropies.drain(..num_told);
        let end = Some(if finish == CompletionEnd::Stop { FinishReason::Stop } else { FinishReason::Length });
        Some(SampleGrowth { sample, tokens, logprobs, entropies, end })
    }

    /// New tokens of running samples.
    fn growth(&mut self) -> Vec<SampleGrowth> {
        let mut grown = Vec::new();
        for running in self.engine.running() {
            let number = self.requests.get(&running.request).and_then(|numbers| numbers.get(running.sample));
            let Some((&sample, place)) = number.and_then(|sample| Some((sample, self.open.get_mut(sample)?)))
            else {
                continue;
            };
            let new = place.num_told..running.tokens.len();
            place.num_told = new.end;
            if !new.is_empty() {
                grown.push(SampleGrowth {
                    sample,
                    tokens: running.tokens[new.clone()].to_vec(),
                    logprobs: running.logprobs[new.clone()].to_vec(),
                    entropies: running.entropies[new].to_vec(),
                    end: None,
                });
            }
        }
        grown.sort_unstable_by_key(|grown| grown.sample);
        grown
    }

    /// Samples until a sample ends or the time is over.
    fn sample(
        &mut self,
        threads: &Threads,
        model: &Model,
        until: Instant,
    ) -> Result<Vec<SampleGrowth>, LearnerError> {
        let mut ended = Vec::new();
        while ended.is_empty() && !self.engine.is_idle() && Instant::now() < until {
            let completions = self.engine.step(threads, model);
            if completions.iter().any(|completion| completion.finish == CompletionEnd::NotFinite) {
                return Err(LearnerError::LogitsNotFinite);
            }
            ended.extend(completions.into_iter().filter_map(|completion| self.end(completion)));
        }
        Ok(ended)
    }
}

impl NativeEngine {
    /// See [`crate::learner::RunLearner::generate`].
    pub(super) fn sample_for(&mut self, asked: Generate) -> Pass<GrownSamples> {
        let Some(max_sequences) = self.settings.max_open_samples else {
            return Err(LearnerError::NoGeneration.into());
        };
        let policy = self.kept.as_ref().map_or(&self.policy.model, |kept| &kept.policy.0);
        let (model, threads) = (Arc::clone(policy), Arc::clone(&self.threads));
        let samples =
            self.samples.get_or_insert_with(|| OpenSamples::new(&model, max_sequences, &self.interrupt));
        for sample in asked.abort {
            samples.abort(sample);
        }
        let mut refused = Vec::new();
        for group in asked.begin {
            samples.begin(group, &mut refused)?;
        }
        // A time beyond the clock's range means no limit.
        let longest =
            Duration::try_from_secs_f64(asked.seconds).unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
        let grown = samples.sample(&threads, &model, Instant::now() + longest);
        // The result of an interrupted step is discarded.
        if self.interrupt.is_requested() {
            return Err(Halt::Interrupted);
        }
        let mut grown = grown?;
        grown.extend(samples.growth());
        let num_open = samples.open.len();
        if num_open == 0 {
            // Frees memory for training.
            self.samples = None;
        }
        Ok(GrownSamples { grown, refused, num_open })
    }
}

#[cfg(test)]
mod tests {
    use tamis_core::group::PolicyVersion;
    use tamis_core::random::{Key, Purpose};
    use tamis_model::{AdamWConfig, SaveDtype};
    use tamis_run::durable::Disk;

    use super::*;
    use crate::learner::wire::{OpenRequest, WireGeneration, WireOptimizer};
    use crate::learner::{LearnerSequence, Network, RunLearner, TokenColumns, Trained, Wave};
    use crate::native;
    use crate::support::{drawing, model};

    const PROMPT: [u32; 3] = [1, 2, 3];

    /// A tiny policy that samples one sequence at a time.
    fn learner() -> Box<dyn RunLearner> {
        let folder = tempfile::tempdir().expect("a folder");
        model().save(folder.path(), SaveDtype::F32).expect("saved");
        let request = OpenRequest {
            policy: folder.path().to_owned(),
            temperature: 1.0,
            optimizer: WireOptimizer::new(AdamWConfig::default(), None),
            critic: None,
            reference: None,
            teachers: Vec::new(),
            recompute_activations: false,
            orphan_timeout: None,
            generation: Some(WireGeneration { max_sequences: 1 }),
            adopt: None,
            options: serde_json::Map::new(),
        };
        native::open(&request, 1, &Disk::new(), &Interrupt::new()).expect("opened")
    }

    /// `num_samples` samples of the prompt, of four tokens each.
    fn begin(num_samples: u64) -> Vec<BeginningGroup> {
        let samples = (0..num_samples).map(|sample| (sample, Key::new(sample, Purpose::Rollout))).collect();
        vec![BeginningGroup { prompt: PROMPT.to_vec(), drawing: drawing(4), samples }]
    }

    /// Changes the weights and publishes them.
    fn train(learner: &mut dyn RunLearner, tokens: &[u32], learning_rate: f64) {
        let wave = Wave::of(&[LearnerSequence::of_text(&PROMPT, tokens)]);
        learner.forward_hold(Trained::Policy, &wave).expect("held");
        let logprobs = vec![-1.0; tokens.len()];
        learner.backward(TokenColumns { logprobs, ..TokenColumns::default() }).expect("back");
        learner.optim_step(Trained::Policy, learning_rate).expect("a step");
        learner.publish(PolicyVersion(1)).expect("published");
    }

    fn generate(learner: &mut dyn RunLearner, begin: Vec<BeginningGroup>) -> GrownSamples {
        learner.generate(Generate { begin, abort: Vec::new(), seconds: 60.0 }).expect("generated")
    }

    /// Log-probabilities of a completion under the current policy.
    fn scored(learner: &mut dyn RunLearner, tokens: &[u32]) -> Vec<f32> {
        let wave = Wave::of(&[LearnerSequence::of_text(&PROMPT, tokens)]);
        learner.forward(Network::Policy, &wave, 1.0).expect("scored").logprobs
    }

    #[test]
    fn samples_that_wait_at_a_publication_begin_by_the_new_weights() {
        let mut learner = learner();
        let first = generate(&mut *learner, begin(3));
        assert_eq!((first.grown.len(), first.grown[0].sample, first.num_open), (1, 0, 2));
        let before = scored(&mut *learner, &first.grown[0].tokens);
        assert_eq!(before, first.grown[0].logprobs);
        train(&mut *learner, &first.grown[0].tokens, 0.1);
        assert_ne!(scored(&mut *learner, &first.grown[0].tokens), before);
        for number in [1, 2] {
            let next = generate(&mut *learner, Vec::new());
            let [grown] = &next.grown[..] else { panic!("one at a time: {next:?}") };
            assert_eq!((grown.sample, grown.tokens.len()), (number, 4));
            assert_eq!(grown.logprobs, scored(&mut *learner, &grown.tokens), "sample {number}");
        }
    }

    #[test]
    fn weights_without_finite_logits_give_an_error_and_no_sample() {
        let mut learner = learner();
        train(&mut *learner, &[1, 2], 1e13);
        assert_eq!(learner.find_not_finite().expect("looked"), None, "the weights are numbers");
        let asked = Generate { begin: begin(1), abort: Vec::new(), seconds: 60.0 };
        let Err(Halt::Failed(error)) = learner.generate(asked) else { panic!("sampled") };
        assert!(matches!(error, LearnerError::LogitsNotFinite), "{error}");
    }
}
