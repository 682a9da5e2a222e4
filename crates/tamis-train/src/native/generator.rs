//! The engine as generator.

use std::collections::HashMap;
use std::sync::Arc;

use tamis_core::group::{FinishReason, PolicyVersion};
use tamis_model::{
    Completion, FinishReason as EngineFinish, Generator as EngineGenerator, GeneratorSettings, Request,
    RequestId, SamplingParams, StopCheck,
};
use tamis_rollout::{
    Backend, GroupGenerator, GroupGeneratorError, GroupRequest, Outcome, Sample, Sampling, Ticket,
    VersionSpan,
};
use tamis_text::stop::StopStrings;
use tamis_text::tokenizer::Tokenizer;

use super::NativeEngine;

/// Tokens decoded beyond the longest stop string, for characters that need several tokens.
const STOP_WINDOW: usize = 16;

/// Requests in flight.
#[derive(Default)]
pub(super) struct Generation {
    engine: Option<EngineGenerator>,
    pending: HashMap<RequestId, Pending>,
    tickets: HashMap<Ticket, RequestId>,
    failed: Vec<Outcome>,
    counted: u64,
}

struct Pending {
    ticket: Ticket,
    samples: Vec<Option<Sample>>,
    open: usize,
    stop: Arc<StopAt>,
    version: PolicyVersion,
}

/// Stop strings over the text of the tokens so far.
struct StopAt {
    strings: StopStrings,
    tokenizer: Tokenizer,
    longest: usize,
}

impl StopAt {
    /// Text of a completion without end tokens and, where one was met, the stop string and what follows it.
    fn text(&self, tokens: &[u32]) -> Result<String, GroupGeneratorError> {
        let mut text = self
            .tokenizer
            .decode(tokens, true)
            .map_err(|error| GroupGeneratorError::Broken { reason: error.to_string() })?;
        if let Some(hit) = self.strings.find(&text, 0) {
            text.truncate(hit.start);
        }
        Ok(text)
    }
}

impl StopCheck for StopAt {
    fn should_stop(&self, generated: &[u32]) -> bool {
        let from = generated.len().saturating_sub(self.longest + STOP_WINDOW);
        self.tokenizer
            .decode(&generated[from..], true)
            .is_ok_and(|text| self.strings.find(&text, 0).is_some())
    }
}

/// How the engine samples, its end tokens aside.
pub(crate) fn params(sampling: &Sampling) -> SamplingParams {
    let greedy = sampling.temperature <= 0.0;
    SamplingParams {
        temperature: if greedy { 1.0 } else { sampling.temperature as f32 },
        top_k: sampling.top_k.unwrap_or(0) as usize,
        top_p: sampling.top_p as f32,
        min_p: sampling.min_p as f32,
        repetition_penalty: sampling.repetition_penalty as f32,
        max_new_tokens: sampling.max_response_length,
        stop_token_ids: Vec::new(),
        greedy,
        num_alternatives: None,
    }
}

impl NativeEngine {
    fn params(&self, sampling: &Sampling) -> SamplingParams {
        SamplingParams { stop_token_ids: self.codec.end_token_ids().to_vec(), ..params(sampling) }
    }

    fn finish(&mut self, completion: Completion) -> Result<Option<Outcome>, GroupGeneratorError> {
        let Some(pending) = self.generation.pending.get_mut(&completion.request) else { return Ok(None) };
        let text = pending.stop.text(&completion.tokens)?;
        if let Some(place) = pending.samples.get_mut(completion.sample) {
            *place = Some(Sample {
                text,
                versions: vec![VersionSpan {
                    version: pending.version,
                    start: 0,
                    end: completion.tokens.len() as u32,
                }],
                entropy: Some(completion.entropy).filter(|entropy| !entropy.is_nan()),
                token_ids: completion.tokens,
                logprobs: completion.logprobs,
                finish_reason: match completion.finish {
                    EngineFinish::Stop => FinishReason::Stop,
                    EngineFinish::Length | EngineFinish::Aborted => FinishReason::Length,
                },
            });
            pending.open -= 1;
        }
        if pending.open > 0 {
            return Ok(None);
        }
        let Some(done) = self.generation.pending.remove(&completion.request) else { return Ok(None) };
        self.generation.tickets.remove(&done.ticket);
        Ok(Some(Outcome::Finished {
            ticket: done.ticket,
            samples: done.samples.into_iter().flatten().collect(),
        }))
    }
}

impl GroupGenerator for NativeEngine {
    fn submit(&mut self, request: GroupRequest, sampling: &Sampling) -> Result<(), GroupGeneratorError> {
        let ticket = request.ticket;
        if self.generation.tickets.contains_key(&ticket) {
            return Err(GroupGeneratorError::TicketInUse { ticket });
        }
        let params = self.params(sampling);
        let strings = StopStrings::new(sampling.stop.clone())
            .map_err(|error| GroupGeneratorError::Broken { reason: error.to_string() })?;
        let longest = sampling.stop.iter().map(String::len).max().unwrap_or(0);
        let stop = Arc::new(StopAt { strings, tokenizer: self.codec.tokenizer().clone(), longest });
        let num_samples = request.keys.len();
        let settings =
            GeneratorSettings { max_sequences: self.settings.max_num_seqs, ..GeneratorSettings::default() };
        let engine = self.generation.engine.get_or_insert_with(|| {
            let mut engine = EngineGenerator::new(self.model.config(), settings);
            engine.stop_on(self.interrupt.flag());
            engine
        });
        let check: Option<Arc<dyn StopCheck>> =
            if stop.strings.is_empty() { None } else { Some(stop.clone()) };
        let submitted = engine.submit(Request {
            prompt: request.prompt_token_ids.to_vec(),
            keys: request.keys,
            params,
            stop: check,
        });
        match submitted {
            Ok(id) => {
                let pending = Pending {
                    ticket,
                    samples: (0..num_samples).map(|_| None).collect(),
                    open: num_samples,
                    stop,
                    version: self.version,
                };
                self.generation.pending.insert(id, pending);
                self.generation.tickets.insert(ticket, id);
            }
            // One prompt that cannot be generated from fails its group, not the run.
            Err(error) => self.generation.failed.push(Outcome::Failed { ticket, reason: error.to_string() }),
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Vec<Outcome>, GroupGeneratorError> {
        let mut outcomes = std::mem::take(&mut self.generation.failed);
        while outcomes.is_empty() {
            let Some(engine) = &mut self.generation.engine else { break };
            if engine.is_idle() {
                break;
            }
            if self.interrupt.is_requested() {
                return Err(GroupGeneratorError::Interrupted);
            }
            let completions = engine.step(&self.threads, &self.model);
            if self.interrupt.is_requested() {
                return Err(GroupGeneratorError::Interrupted);
            }
            for completion in completions {
                outcomes.extend(self.finish(completion)?);
            }
        }
        Ok(outcomes)
    }

    fn abort(&mut self, ticket: Ticket) {
        if let Some(id) = self.generation.tickets.remove(&ticket) {
            self.generation.pending.remove(&id);
            if let Some(engine) = &mut self.generation.engine {
                engine.abort(id);
            }
        }
    }

    fn version(&self) -> PolicyVersion {
        self.version
    }

    fn take_num_generated_tokens(&mut self) -> u64 {
        let total = self.generation.engine.as_ref().map_or(0, EngineGenerator::num_generated_tokens);
        total - std::mem::replace(&mut self.generation.counted, total)
    }
}

impl Backend for NativeEngine {}

#[cfg(test)]
mod tests {
    use tamis_core::random::{Key, Purpose};
    use tamis_model::{AdamWConfig, Architecture, Model, ModelConfig};
    use tamis_rollout::TicketPurpose;

    use super::*;
    use crate::codec::Codec;
    use crate::native::EngineSettings;

    fn engine() -> NativeEngine {
        let tokenizer = Tokenizer::characters("0123").expect("characters");
        let mut config = ModelConfig::new(Architecture::Llama, tokenizer.num_rows(), 16, 32, 1, 1, 16);
        config.num_kv_heads = 1;
        let codec = Codec::new(tokenizer, None, serde_json::Map::new(), None).expect("a codec");
        let model = Model::init(config, Key::new(1, Purpose::Init)).expect("a model");
        let settings = EngineSettings {
            threads: 1,
            temperature: 1.0,
            max_grad_norm: None,
            recompute_activations: false,
            max_num_seqs: 8,
            optimizer: AdamWConfig::default(),
        };
        NativeEngine::new(model, codec, settings)
    }

    /// A ticket in flight is not given again, and a request for another purpose with the same number is another one.
    #[test]
    fn a_ticket_in_flight_is_refused() {
        let mut engine = engine();
        let sampling = Sampling {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            max_response_length: 4,
            stop: Vec::new(),
        };
        let request = |purpose| GroupRequest {
            ticket: Ticket { purpose, index: 3 },
            prompt_token_ids: Arc::from([1]),
            keys: vec![Key::new(1, Purpose::Rollout)],
        };
        engine.submit(request(TicketPurpose::Rollout), &sampling).expect("taken");
        engine.submit(request(TicketPurpose::Validation), &sampling).expect("another one");
        let refused = engine.submit(request(TicketPurpose::Rollout), &sampling).expect_err("in flight");
        assert_eq!(refused.to_string(), "group 3 is in flight already");
        let mut finished = Vec::new();
        loop {
            let outcomes = engine.poll().expect("generates");
            if outcomes.is_empty() {
                break;
            }
            finished.extend(outcomes.iter().map(Outcome::ticket));
        }
        finished.sort();
        let purposes: Vec<TicketPurpose> = finished.iter().map(|ticket| ticket.purpose).collect();
        assert_eq!(purposes, [TicketPurpose::Rollout, TicketPurpose::Validation]);
        engine.submit(request(TicketPurpose::Rollout), &sampling).expect("free again");
    }
}
