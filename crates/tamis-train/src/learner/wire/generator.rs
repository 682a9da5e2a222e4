//! A learner in another process as generator: `generate`, a call at a time.
//!
//! The learner samples only during these calls, so that learning and sampling take turns, and
//! everything sampled between two publications has the first one's version. Samples in flight pause
//! while it learns. They continue with the new weights, and record which tokens have which version.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tamis_core::group::{FinishReason, PolicyVersion};
use tamis_core::schedule::Spent;
use tamis_model::StopCheck as _;
use tamis_rollout::native::StopText;
use tamis_rollout::{
    AbortScope, FailureKind, Generator, GeneratorError, GeneratorEvent, InFlight, Load, Publication, Sample,
    SampleId, SamplePurpose, SampleRequest, Sampling, VersionSpan, Wait, Weights,
};
use tamis_text::tokenizer::Tokenizer;

use super::calls::{Calls, SharedCalls, lock};
use super::message::WireMessage;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::generate::{
    BeginningGroup, Drawing, Generate, GrownSamples, RefusedSample, SampleGrowth,
};
use crate::learner::sample_queue::{SampleQueue, is_other};
use crate::learner::{LearnerError, Pass};
use crate::prompts::codec::Codec;

/// Time limit of one call; it may cut the wait, and never changes the result.
const LONGEST_CALL: Duration = Duration::from_secs(1);
/// The same if completions end at texts, which this side finds between two calls.
const LONGEST_CALL_WITH_STOP_TEXTS: Duration = Duration::from_millis(200);

/// One call of `generate`. The flag `stop` ends the wait for it.
pub(super) fn generate(calls: &mut Calls, asked: &Generate, stop: Option<&AtomicBool>) -> Pass<GrownSamples> {
    let mut answer = calls.call("/v1/generate", &WireMessage::of_generate(asked), stop)?;
    Ok(answer.take_generated(calls.gives_entropy).map_err(|error| calls.misunderstood(&error))?)
}

/// Samples with the weights of a learner in another process.
///
/// Members of a group that are submitted one after the other share their prompt's computation. The
/// result of a sample is a function of its key, its prompt and the weights, up to the effect of
/// neighbouring sequences on the learner's arithmetic.
pub(super) struct WireGenerator {
    calls: SharedCalls,
    tokenizer: Arc<Tokenizer>,
    end_token_ids: Vec<u32>,
    interrupt: Interrupt,
    version: PolicyVersion,
    /// Submitted, not begun.
    queue: SampleQueue,
    /// Samples in progress, by their numbers at the learner.
    open: HashMap<u64, Open>,
    /// Aborted here, and not yet there.
    to_abort: Vec<u64>,
    events: Vec<GeneratorEvent>,
    /// A call was abandoned, or failed: the samples in progress at the learner are unknown.
    is_lost: bool,
    /// Why a call failed, until it is returned.
    failure: Option<GeneratorError>,
}

struct Open {
    id: SampleId,
    stop: Arc<StopText>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    /// Sum over the tokens.
    entropy: f64,
    /// Versions that sampled, each up to a token.
    versions: Vec<VersionSpan>,
}

impl Open {
    /// Takes in new tokens; returns why the sample ended, if it did.
    ///
    /// # Errors
    /// [`GeneratorError::NotFinite`] for a token without a log-probability: a run on it would be lost.
    fn grow(
        &mut self,
        grown: SampleGrowth,
        version: PolicyVersion,
    ) -> Result<Option<FinishReason>, GeneratorError> {
        let SampleGrowth { tokens, logprobs, entropies, end, .. } = grown;
        let mut finish = end;
        for ((token, logprob), entropy) in tokens.into_iter().zip(logprobs).zip(entropies) {
            if !logprob.is_finite() {
                return Err(GeneratorError::NotFinite { id: self.id, token: self.tokens.len() });
            }
            self.tokens.push(token);
            self.logprobs.push(logprob);
            self.entropy += f64::from(entropy);
            // Tokens after a stop text are dropped.
            if !self.stop.strings().is_empty() && self.stop.should_stop(&self.tokens) {
                finish = Some(FinishReason::Stop);
                break;
            }
        }
        let end = self.tokens.len() as u32;
        match self.versions.last_mut() {
            Some(span) if span.version == version => span.end = end,
            last => {
                let start = last.map_or(0, |span| span.end);
                self.versions.push(VersionSpan { version, start, end });
            }
        }
        Ok(finish)
    }

    fn into_sample(self, finish_reason: FinishReason) -> Result<Sample, GeneratorError> {
        let text = self.stop.text(&self.tokens).map_err(|error| broken(&error))?;
        let entropy = self.entropy / self.tokens.len() as f64;
        Ok(Sample {
            episode: None,
            lost: Spent::default(),
            token_ids: self.tokens,
            logprobs: self.logprobs,
            entropy: Some(entropy).filter(|entropy| !entropy.is_nan()),
            text,
            finish_reason,
            versions: self.versions,
        })
    }
}

fn broken(error: &dyn std::fmt::Display) -> GeneratorError {
    GeneratorError::stopped(error)
}

fn drawing(sampling: &Sampling, end_tokens: Vec<u32>) -> Drawing {
    Drawing {
        temperature: sampling.temperature.max(0.0),
        top_k: sampling.top_k.unwrap_or(0),
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        max_tokens: sampling.max_response_length,
        end_tokens,
    }
}

impl WireGenerator {
    /// Through these calls, by weights of this version.
    pub(super) fn new(
        calls: SharedCalls,
        codec: &Codec,
        version: PolicyVersion,
        interrupt: &Interrupt,
    ) -> Self {
        Self {
            calls,
            tokenizer: Arc::new(codec.tokenizer().clone()),
            end_token_ids: codec.end_token_ids().to_vec(),
            interrupt: interrupt.clone(),
            version,
            queue: SampleQueue::default(),
            open: HashMap::new(),
            to_abort: Vec::new(),
            events: Vec::new(),
            is_lost: false,
            failure: None,
        }
    }

    /// Waiting samples that may begin, those of a prompt together.
    fn begin(&mut self) -> Result<Vec<BeginningGroup>, GeneratorError> {
        let others_run = self.open.values().any(|open| is_other(&open.id));
        let mut groups = Vec::new();
        for members in self.queue.take(others_run) {
            let Some(first) = members.first() else { continue };
            let sampling = &first.sampling;
            if sampling.regex.is_some() {
                // Refused with the configuration.
                return Err(broken(&"a learner in another process samples without `rollout.regex`"));
            }
            let stop = StopText::new(sampling.stop.clone(), Arc::clone(&self.tokenizer));
            let stop = match stop {
                Ok(stop) => Arc::new(stop),
                Err(error) => {
                    self.events.extend(self.queue.fail(&members, &error.to_string()));
                    continue;
                }
            };
            let mut group = BeginningGroup {
                prompt: first.prompt_token_ids.to_vec(),
                drawing: drawing(sampling, self.end_token_ids.clone()),
                samples: Vec::new(),
            };
            let mut calls = lock(&self.calls);
            for member in members {
                let number = calls.num_samples;
                calls.num_samples += 1;
                group.samples.push((number, member.key));
                self.open.insert(
                    number,
                    Open {
                        id: member.id,
                        stop: Arc::clone(&stop),
                        tokens: Vec::new(),
                        logprobs: Vec::new(),
                        entropy: 0.0,
                        versions: Vec::new(),
                    },
                );
            }
            groups.push(group);
        }
        Ok(groups)
    }

    /// A call; whether the learner has answered it.
    fn call(&mut self, begin: Vec<BeginningGroup>, longest: Duration) -> Result<bool, GeneratorError> {
        let asked =
            Generate { begin, abort: std::mem::take(&mut self.to_abort), seconds: longest.as_secs_f64() };
        let flag = self.interrupt.flag();
        let generated = generate(&mut lock(&self.calls), &asked, Some(&flag));
        match generated {
            Ok(generated) => self.take_in(generated).map(|()| true),
            Err(Halt::Interrupted) => {
                self.is_lost = true;
                Ok(false)
            }
            Err(Halt::Failed(error)) => {
                self.is_lost = true;
                Err(GeneratorError::Learner(Box::<LearnerError>::from(error)))
            }
        }
    }

    fn take_in(&mut self, generated: GrownSamples) -> Result<(), GeneratorError> {
        for RefusedSample { sample, reason } in generated.refused {
            // One prompt that cannot be generated from fails its group, not the run.
            if let Some(Open { id, .. }) = self.open.remove(&sample) {
                self.queue.end(&id);
                let kind = FailureKind::Permanent;
                self.events.push(GeneratorEvent::Failed { id, kind, reason, spent: Spent::default() });
            }
        }
        for grown in generated.grown {
            let number = grown.sample;
            let is_over_there = grown.end.is_some();
            let Some(open) = self.open.get_mut(&number) else { continue };
            let Some(finish) = open.grow(grown, self.version)? else { continue };
            if !is_over_there {
                self.to_abort.push(number);
            }
            if let Some(open) = self.open.remove(&number) {
                self.queue.end(&open.id);
                let id = open.id;
                self.events.push(GeneratorEvent::Sampled { id, sample: open.into_sample(finish)? });
            }
        }
        Ok(())
    }

    /// A call's worth of sampling, until `until`; whether there was anything to do.
    fn work(&mut self, until: Option<Instant>) -> Result<bool, GeneratorError> {
        if self.is_lost || self.interrupt.is_requested() {
            return Ok(false);
        }
        let begin = self.begin()?;
        if self.open.is_empty() && self.to_abort.is_empty() {
            return Ok(false);
        }
        let has_stop_texts = self.open.values().any(|open| !open.stop.strings().is_empty());
        let longest = if has_stop_texts { LONGEST_CALL_WITH_STOP_TEXTS } else { LONGEST_CALL };
        let left = until.map_or(longest, |until| until.saturating_duration_since(Instant::now()));
        let has_sampled = !self.open.is_empty();
        Ok(self.call(begin, longest.min(left))? && has_sampled)
    }
}

impl Generator for WireGenerator {
    fn submit(&mut self, request: SampleRequest) -> Result<(), GeneratorError> {
        self.queue.submit(request)
    }

    fn abort(&mut self, what: AbortScope) {
        self.events.extend(self.queue.abort(&what));
        let meant = self.open.iter().filter(|(_, open)| what.holds(&open.id));
        let mut meant: Vec<u64> = meant.map(|(number, _)| *number).collect();
        meant.sort_unstable();
        for number in meant {
            if let Some(open) = self.open.remove(&number) {
                self.queue.end(&open.id);
                self.to_abort.push(number);
                let num_tokens = open.tokens.len() as u64;
                self.events
                    .push(GeneratorEvent::Aborted { id: open.id, spent: Spent::on_answer(num_tokens) });
            }
        }
        if self.open.is_empty() && !self.to_abort.is_empty() && !self.is_lost {
            // The next samples may come much later, and the learner's updates need their memory.
            self.failure = self.call(Vec::new(), Duration::ZERO).err();
        }
    }

    fn publish(&mut self, weights: &Publication, in_flight: InFlight) -> Result<(), GeneratorError> {
        if let Weights::Folder(folder) = &weights.weights {
            let folder = folder.display();
            return Err(broken(&format!(
                "a learner samples with its own weights, and was asked to read {folder}"
            )));
        }
        match in_flight {
            // The weights have changed: samples in flight continue with the new ones.
            InFlight::Wait | InFlight::Keep => {}
            InFlight::Abort => {
                for purpose in [SamplePurpose::Rollout, SamplePurpose::Validation, SamplePurpose::Greedy] {
                    self.abort(AbortScope::Purpose(purpose));
                }
            }
        }
        self.version = weights.version;
        self.events.push(GeneratorEvent::Published { version: weights.version });
        Ok(())
    }

    fn next(&mut self, wait: Wait) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let until = match wait {
            Wait::Until(time) => Some(time),
            Wait::No | Wait::Forever => None,
        };
        while wait != Wait::No && self.events.is_empty() && self.work(until)? {
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
        }
        Ok(std::mem::take(&mut self.events))
    }

    fn load(&self) -> Load {
        // The learner queues samples without room.
        Load { in_flight: self.queue.num_open(), room: usize::MAX }
    }
}

#[cfg(test)]
mod tests {
    use tamis_core::group::GroupId;

    use super::*;

    #[test]
    fn a_token_without_a_log_probability_is_no_part_of_a_sample() {
        let tokenizer = Arc::new(Tokenizer::characters("ab").expect("characters"));
        let mut open = Open {
            id: SampleId::of_member(GroupId(3), 1),
            stop: Arc::new(StopText::new(Vec::new(), tokenizer).expect("no text")),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            entropy: 0.0,
            versions: Vec::new(),
        };
        let grown = |logprobs: &[f32]| SampleGrowth {
            sample: 7,
            tokens: vec![2; logprobs.len()],
            logprobs: logprobs.to_vec(),
            entropies: vec![0.5; logprobs.len()],
            end: None,
        };
        assert_eq!(open.grow(grown(&[-1.0, -0.5]), PolicyVersion(1)).expect("grows"), None);
        for bad in [f32::NAN, f32::NEG_INFINITY, f32::INFINITY] {
            let mut open = Open {
                tokens: open.tokens.clone(),
                versions: Vec::new(),
                logprobs: Vec::new(),
                stop: Arc::clone(&open.stop),
                ..open
            };
            let error = open.grow(grown(&[-1.0, bad, -1.0]), PolicyVersion(1)).expect_err("refused");
            assert_eq!(
                error.to_string(),
                "the policy's logits are NaN or infinite: its training has diverged, or its weights are damaged \
                 (group 3, member 1, token 3)"
            );
        }
    }
}
