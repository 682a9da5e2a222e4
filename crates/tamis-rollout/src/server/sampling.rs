//! One sample at one server: refused, sent, and checked when it comes back.

use std::sync::Arc;
use std::time::Instant;

use tamis_core::group::{FinishReason, PolicyVersion};
use tamis_core::schedule::Spent;
use tamis_text::image_tokens::contract;
use tamis_text::regex_mask::{RegexMaskError, WholeRegex};
use tamis_text::stop::StopStrings;

use super::publication::version_of;
use super::{ASK_AGAIN, Errand, HttpServer, OtherLogprobs, Protocol, ServerEvent, other_logprobs};
use crate::generator::{Sample, SamplePurpose, SampleRequest, Sampling, VersionSpan};
use crate::http::Exchange;
use crate::wire::{Ask, Checked, Expected, Fault, FaultClass, Finish, LabelSpan, parameters};

pub(super) struct Pending {
    pub(super) request: SampleRequest,
    pub(super) request_id: String,
    /// Version of the weights at submission.
    pub(super) version: PolicyVersion,
    /// Whether an adapter samples it, from its beginning to its end.
    pub(super) of_adapter: bool,
    pub(super) logprobs: bool,
    /// Pattern that the text must match.
    pub(super) form: Option<Arc<WholeRegex>>,
    pub(super) is_given_up: bool,
    /// When a paused server turned it away first.
    pub(super) turned_away: Option<Instant>,
}

/// A sample that a paused server did not take.
pub(super) struct TurnedAway {
    pub(super) request: SampleRequest,
    pub(super) again_at: Instant,
    /// When it was turned away first.
    pub(super) since: Instant,
}

fn finish_reason(finish: Option<&Finish>, spent: u64) -> Result<FinishReason, Fault> {
    let (class, detail) = match finish {
        Some(Finish::Stop) => return Ok(FinishReason::Stop),
        Some(Finish::Length) => return Ok(FinishReason::Length),
        Some(Finish::Abort) => {
            (FaultClass::AbortedByServer, "the server aborted the request by itself".to_owned())
        }
        Some(Finish::Other(name)) => (FaultClass::FinishReason, format!("finish reason {name:?}")),
        None => (FaultClass::HalfBody, "the answer ended before the completion did".to_owned()),
    };
    Err(Fault::new(class, detail).with_tokens(spent))
}

/// Characters of a text that does not match, as they are shown.
const MOST_SHOWN: usize = 60;

/// A server that does not know a field ignores it, and kinds of servers read expressions differently.
fn check_form(form: &WholeRegex, text: &str, is_whole: bool) -> Result<(), Fault> {
    // A text that was cut may end within a character.
    let fits = if is_whole { form.matches(text) } else { form.may_begin(text.trim_end_matches('\u{fffd}')) };
    if fits {
        return Ok(());
    }
    let shown: String = text.chars().take(MOST_SHOWN).collect();
    let detail = format!(
        "{shown:?} does not match the expression: the server does not support structured outputs, or reads the expression differently \
        (write characters out instead of `.`, `\\w` and `\\s`)"
    );
    Err(Fault::new(FaultClass::NoMatch, detail))
}

/// Refuses a sample whose images became other tokens at the server than in the prompt that is learned from.
fn check_images(request: &SampleRequest, read: Option<&[i64]>) -> Result<(), Fault> {
    if request.images.is_empty() {
        return Ok(());
    }
    let ours = request.prompt_token_ids.iter().map(|&id| i64::from(id));
    let detail = match read {
        Some(read) if ours.eq(read.iter().copied()) => return Ok(()),
        Some(read) => format!(
            "the server made {} tokens of a prompt with images that has {} here: its model has a different preprocessor_config.json, or \
            --mm-processor-kwargs is set",
            read.len(),
            request.prompt_token_ids.len()
        ),
        None => {
            "the server does not return the tokens that it made of the images (prompt_token_ids); vLLM 0.32 does"
                .to_owned()
        }
    };
    Err(Fault::new(FaultClass::Refused, detail))
}

impl<P: Protocol> HttpServer<P> {
    /// Pattern that a sample's text must match.
    fn form(&mut self, sampling: &Sampling) -> Result<Option<Arc<WholeRegex>>, RegexMaskError> {
        let Some(regex) = &sampling.regex else { return Ok(None) };
        if let Some((_, form)) = self.form.as_ref().filter(|(of, _)| of == regex) {
            return Ok(Some(form.clone()));
        }
        let form = Arc::new(WholeRegex::new(regex)?);
        self.form = Some((regex.clone(), form.clone()));
        Ok(Some(form))
    }

    /// The parts of a completion that no server is asked for are checked here, before anything is sent.
    pub(super) fn refusal(&mut self, request: &SampleRequest) -> Option<Fault> {
        if let Err(error) = self.form(&request.sampling) {
            return Some(Fault::new(FaultClass::Refused, format!("regex: {error}")));
        }
        let settings = &*self.settings;
        let other = match request.id.purpose {
            SamplePurpose::Rollout => settings.other_logprobs,
            // These samples are not trained on.
            SamplePurpose::Validation | SamplePurpose::Greedy => OtherLogprobs::Recompute,
        };
        if let Some(reason) = self.protocol.refuses_images().filter(|_| !request.images.is_empty()) {
            return Some(Fault::new(FaultClass::Refused, reason));
        }
        if let Err(error) = P::check(&request.sampling, &settings.extra) {
            return Some(Fault::new(FaultClass::Refused, error.to_string()));
        }
        let differs = other_logprobs::<P>(&request.sampling, &settings.extra, self.mode);
        if let Some(error) = differs.filter(|_| other == OtherLogprobs::Refuse) {
            return Some(Fault::new(FaultClass::OtherLogprobs, error.to_string()));
        }
        let (prompt, limit) = (request.prompt_token_ids.len(), request.sampling.max_response_length);
        let context = self.max_model_len.filter(|&context| prompt + limit > context)?;
        let detail = format!(
            "a prompt of {prompt} tokens and {limit} more do not fit into the server's context of {context} \
             (max_model_len)"
        );
        Some(Fault::new(FaultClass::Refused, detail))
    }

    pub(super) fn send_sample(&mut self, request: SampleRequest, turned_away: Option<Instant>) {
        let settings = Arc::clone(&self.settings);
        let number = self.number();
        let request_id = format!("{}-{number}", settings.nonce);
        let altering = parameters::find_altering(&settings.extra);
        let logprobs =
            !P::IS_TEXT_ONLY && self.mode.is_some_and(|of| of.differs(&request.sampling, altering).is_none());
        let prompt_text =
            if P::IS_TEXT_ONLY { self.prompt_text(&request.prompt_token_ids) } else { String::new() };
        let short = settings.image_token_id.filter(|_| !request.images.is_empty());
        let short = short.map(|image| contract(&request.prompt_token_ids, image));
        let ask = Ask {
            request_id: &request_id,
            prompt: short.as_deref().unwrap_or(&request.prompt_token_ids),
            images: &request.images,
            prompt_text: &prompt_text,
            sampling: &request.sampling,
            seed: settings.seeds.then(|| request.key.bits(0)),
            key: Some(request.key),
            end_token_ids: &settings.end_token_ids,
            model: self.adapter.as_deref().or(self.model.as_deref()),
            cache_salt: self.label.as_deref(),
            logprobs,
            extra: &settings.extra,
        };
        let call = self.protocol.sample(&ask);
        self.by_id.insert(request.id, number);
        let form = self.form(&request.sampling).ok().flatten();
        let (version, of_adapter) = (self.version, self.adapter.is_some());
        let is_given_up = false;
        let pending =
            Pending { request, request_id, version, of_adapter, logprobs, form, is_given_up, turned_away };
        self.errands.insert(number, Errand::Sample(Box::new(pending)));
        self.transport.send(number, call, settings.answer_timeout);
    }

    /// The prompt as text from which a server that adds the beginning token itself makes the same ids.
    fn prompt_text(&self, ids: &[u32]) -> String {
        let text = |ids: &[u32]| self.tokenizer.decode(ids, false).unwrap_or_default();
        match (ids, self.tokenizer.bos_id()) {
            ([first, rest @ ..], Some(begin)) if *first == begin => {
                let without = text(rest);
                let adds = self.tokenizer.encode(&without, true).is_ok_and(|encoded| encoded == ids);
                if adds { without } else { text(ids) }
            }
            _ => text(ids),
        }
    }

    pub(super) fn finish_sample(
        &mut self,
        pending: Pending,
        exchange: Exchange,
        now: Instant,
    ) -> Option<ServerEvent> {
        let id = pending.request.id;
        let outcome = exchange
            .and_then(|answer| {
                if pending.of_adapter && answer.status == 404 {
                    let detail = "it does not know the adapter: it was restarted";
                    return Err(Fault::new(FaultClass::StaleWeights, detail));
                }
                self.protocol.read(&answer)
            })
            .and_then(|read| self.sample_of(&pending, read));
        Some(match outcome {
            Ok(sample) => ServerEvent::Sampled { id, sample },
            Err(fault) if pending.is_given_up => ServerEvent::Aborted { id, num_tokens: fault.num_tokens },
            Err(fault) if fault.class == FaultClass::Paused => {
                let since = pending.turned_away.unwrap_or(now);
                if now.saturating_duration_since(since) >= self.settings.answer_timeout {
                    let detail = format!("refused for {} s: {}", (now - since).as_secs(), fault.detail);
                    return Some(ServerEvent::Failed { id, fault: Fault::new(FaultClass::TimedOut, detail) });
                }
                let again_at = now + ASK_AGAIN;
                self.turned_away.push_back(TurnedAway { request: pending.request, again_at, since });
                return None;
            }
            Err(fault) => ServerEvent::Failed { id, fault },
        })
    }

    fn sample_of(&self, pending: &Pending, read: crate::wire::WireCompletion) -> Result<Sample, Fault> {
        let limit = pending.request.sampling.max_response_length;
        let stop = StopStrings::new(pending.request.sampling.stop.clone())
            .map_err(|error| Fault::new(FaultClass::Refused, error.to_string()))?;
        let undecodable = |error: tamis_core::fault::Fault, spent: usize| {
            Fault::new(FaultClass::Undecodable, error.to_string()).with_tokens(spent as u64)
        };
        if P::IS_TEXT_ONLY {
            let spent = read.num_tokens();
            let finish_reason = finish_reason(read.finish.as_ref(), spent)?;
            let text = read.text.unwrap_or_default();
            // For its length only: ids that were not sampled are never trained on, and have no
            // log-probabilities.
            let token_ids = self.tokenizer.encode(&text, false).map_err(|error| undecodable(error, 0))?;
            let versions =
                vec![VersionSpan { version: pending.version, start: 0, end: token_ids.len() as u32 }];
            return Ok(Sample {
                episode: None,
                lost: Spent::default(),
                token_ids,
                logprobs: Vec::new(),
                entropy: None,
                text,
                finish_reason,
                versions,
            });
        }
        check_images(&pending.request, read.prompt_token_ids.as_deref())
            .map_err(|fault| fault.with_tokens(read.num_tokens()))?;
        let answered_id = self.protocol.answer_id(&pending.request_id);
        let expected = Expected {
            request_id: &answered_id,
            vocabulary: self.settings.vocabulary,
            limit,
            logprobs: pending.logprobs,
        };
        let Checked { token_ids, logprobs, finish, spans, entropy } = read.check(&expected)?;
        let num_tokens = token_ids.len() as u64;
        let finish_reason = finish_reason(Some(&finish), num_tokens)?;
        let versions = self.versions(pending, spans, num_tokens as u32)?;
        let mut text =
            self.tokenizer.decode(&token_ids, true).map_err(|error| undecodable(error, token_ids.len()))?;
        let hit = stop.find(&text, 0);
        if let Some(hit) = &hit {
            text.truncate(hit.start);
        }
        if let Some(form) = &pending.form {
            let is_whole = hit.is_none() && finish_reason == FinishReason::Stop;
            check_form(form, &text, is_whole).map_err(|fault| fault.with_tokens(num_tokens))?;
        }
        Ok(Sample {
            token_ids,
            logprobs,
            entropy,
            text,
            finish_reason,
            versions,
            episode: None,
            lost: Spent::default(),
        })
    }

    /// The versions behind the labels: those that were current since the request was sent, and no others.
    fn versions(
        &self,
        pending: &Pending,
        spans: Option<Vec<LabelSpan>>,
        num_tokens: u32,
    ) -> Result<Vec<VersionSpan>, Fault> {
        let whole = vec![VersionSpan { version: pending.version, start: 0, end: num_tokens }];
        let (Some(spans), Some(_), false) = (spans, &self.label, pending.of_adapter) else {
            return Ok(whole);
        };
        let newest =
            self.publishing.as_ref().map_or(self.version, |publishing| publishing.version.max(self.version));
        let mut versions: Vec<VersionSpan> = Vec::new();
        for span in spans {
            let version = version_of(&self.settings.nonce, &span.label)
                .filter(|version| (pending.version..=newest).contains(version));
            let Some(version) = version else {
                let detail = format!(
                    "sampled with weights {:?}, but version {} is current: the server was restarted, or \
                         another program changed its weights",
                    span.label, self.version.0
                );
                return Err(Fault::new(FaultClass::StaleWeights, detail).with_tokens(u64::from(num_tokens)));
            };
            match versions.last_mut() {
                Some(last) if last.version == version => last.end = span.end,
                _ => versions.push(VersionSpan { version, start: span.start, end: span.end }),
            }
        }
        Ok(if versions.is_empty() { whole } else { versions })
    }
}
