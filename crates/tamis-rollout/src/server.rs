//! One inference server: samples, new weights and health over a [`Transport`], without waiting for anything.
//!
//! An [`HttpServer`] keeps what it has asked for under numbers, and turns what comes back into [`ServerEvent`]s. Each request comes to
//! exactly one end, whatever the server does: a duplicate or late answer belongs to no number any more. Retries and routing are the
//! [fleet](crate::fleet)'s.

mod probe;
mod protocol;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tamis_core::group::{FinishReason, PolicyVersion};
use tamis_text::stop::StopStrings;
use tamis_text::tokenizer::Tokenizer;

pub use probe::{FILE as PROBE_FILE, Probe, ProbeError};
pub use protocol::{Control, OpenAi, Protocol, Sglang, Told, Vllm};

use crate::generator::{
    AbortScope, InFlight, Publication, Sample, SampleId, SamplePurpose, SampleRequest, Sampling, VersionSpan,
    Weights,
};
use crate::http::{Broken, Exchange, Transport};
use crate::wire::vllm::Figures;
use crate::wire::{Ask, Checked, Expected, Fault, FaultClass, Finish, LabelSpan, LogprobsOf, ParameterError};
use crate::wire::{parameters, vllm};

/// vLLM behind [`Server`].
pub type VllmServer = HttpServer<Vllm>;
/// SGLang behind [`Server`].
pub type SglangServer = HttpServer<Sglang>;
/// Any OpenAI-compatible server behind [`Server`].
pub type OpenAiServer = HttpServer<OpenAi>;

/// How long a request that was given up may still be answered before its connection is closed.
const ABORT_GRACE: Duration = Duration::from_secs(2);

/// How soon something is asked again that was not possible just now.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// How often a prefix cache is reset in vain before the server counts as broken.
const MOST_RESETS: u32 = 40;

/// What to do where a server's log-probabilities are of another distribution than those that are trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherLogprobs {
    /// Samples come without them, for the learner to compute.
    Recompute,
    /// Rollouts are refused.
    Refuse,
}

/// What a server is used with.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// What to call it in messages: its address.
    pub name: String,
    /// The model's name there; `None` for the first that it serves.
    pub model: Option<String>,
    /// Number of token ids that the model has.
    pub vocabulary: usize,
    /// Tokens that end a completion.
    pub end_token_ids: Vec<u32>,
    /// Parameters of the server, by name.
    pub extra: Map<String, Value>,
    /// Longest time of one sample.
    pub answer_timeout: Duration,
    /// Longest time of a health check.
    pub check_timeout: Duration,
    /// Longest time of each step of a publication, and of the first check: a server may compile at its first request.
    pub publish_timeout: Duration,
    /// Begins request ids and labels of weights; differs between runs and between starts of a run.
    pub nonce: String,
    /// Whether seeds are sent. vLLM samples slower with them.
    pub seeds: bool,
    /// Whether answers come in parts, so that tokens of broken ones are counted.
    pub stream: bool,
    /// Of which distribution its log-probabilities are; `None` to find out.
    pub logprobs_of: Option<LogprobsOf>,
    /// What to do where they are not ours.
    pub other_logprobs: OtherLogprobs,
}

/// What happened at a server.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerEvent {
    /// A sample is complete.
    Sampled {
        /// Which.
        id: SampleId,
        /// The completion.
        sample: Sample,
    },
    /// A sample did not come about.
    Failed {
        /// Which.
        id: SampleId,
        /// Why, with the tokens that were spent.
        fault: Fault,
    },
    /// A sample was given up.
    Aborted {
        /// Which.
        id: SampleId,
        /// Tokens that were spent.
        num_tokens: u64,
    },
    /// The server holds this version and has shown it.
    Published {
        /// Which.
        version: PolicyVersion,
    },
    /// The server does not hold this version.
    NotPublished {
        /// Which.
        version: PolicyVersion,
        /// Why not.
        fault: Fault,
    },
    /// A check came to an end.
    Checked(Result<Report, Fault>),
}

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Report {
    /// Whether it holds the weights that were published to it last; `None` where none were, or where it cannot say.
    pub holds_current: Option<bool>,
    /// How busy it says it is.
    pub figures: Figures,
}

/// A server, as a [fleet](crate::fleet) uses it. Nothing here waits.
pub trait Server: Send {
    /// What to call it in messages.
    fn name(&self) -> &str;

    /// Takes a request in; its id is that of no other in flight here.
    fn submit(&mut self, request: SampleRequest);

    /// Gives requests up; each comes to [`ServerEvent::Aborted`], or to what it had come to before.
    fn abort(&mut self, what: AbortScope, now: Instant);

    /// Gives everything in flight up at once and says what it was: nothing more is heard of it. A publication or check ends too.
    fn drop_all(&mut self) -> Vec<SampleId>;

    /// Brings new weights; comes to [`ServerEvent::Published`] or [`ServerEvent::NotPublished`]. One at a time, and nothing is submitted
    /// meanwhile.
    fn publish(&mut self, publication: &Publication, in_flight: InFlight, now: Instant);

    /// Looks whether it lives; comes to [`ServerEvent::Checked`]. One at a time.
    fn check(&mut self);

    /// Takes in what has come back.
    fn poll(&mut self, now: Instant, events: &mut Vec<ServerEvent>);

    /// When [`Self::poll`] has something to do although nothing came back; `now` for at once.
    fn wake_at(&self, now: Instant) -> Option<Instant>;

    /// Samples that have not come to an end.
    fn num_in_flight(&self) -> usize;
}

/// What was asked under a number.
enum Errand {
    Sample(Box<Pending>),
    Abort,
    Publishing,
    Checking,
}

struct Pending {
    request: SampleRequest,
    request_id: String,
    /// Of the weights at submission.
    version: PolicyVersion,
    logprobs: bool,
    is_given_up: bool,
    /// When a paused server turned it away first.
    turned_away: Option<Instant>,
}

/// A sample that a paused server did not take.
struct TurnedAway {
    request: SampleRequest,
    /// When it is asked for again.
    again_at: Instant,
    /// When it was turned away first.
    since: Instant,
}

/// Steps of a publication, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Until nothing is in flight.
    Emptying,
    Pause,
    Reload,
    ResetCache,
    SetLabel,
    Resume,
    Probe,
}

impl Stage {
    const ALL: [Self; 7] = [
        Self::Emptying,
        Self::Pause,
        Self::Reload,
        Self::ResetCache,
        Self::SetLabel,
        Self::Resume,
        Self::Probe,
    ];

    fn next(self) -> Option<Self> {
        let place = Self::ALL.iter().position(|&stage| stage == self)?;
        Self::ALL.get(place + 1).copied()
    }
}

struct Publishing {
    version: PolicyVersion,
    folder: String,
    label: String,
    in_flight: InFlight,
    probe: Option<Probe>,
    stage: Stage,
    /// Answers in vain at this stage.
    tries: u32,
    ask_again_at: Option<Instant>,
}

/// Steps of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Health,
    Program,
    Models,
    /// A process that ended in the middle of a publication has left it paused.
    Resume,
    Mode,
    Label,
    Figures,
}

struct Checking {
    left: VecDeque<Look>,
    report: Report,
}

/// A server over HTTP.
pub struct HttpServer<P> {
    protocol: P,
    transport: Box<dyn Transport>,
    settings: Arc<ServerSettings>,
    tokenizer: Tokenizer,
    next_number: u64,
    errands: HashMap<u64, Errand>,
    by_id: HashMap<SampleId, u64>,
    /// Samples that the server turned away while it is paused, in the order in which they are asked for again.
    turned_away: VecDeque<TurnedAway>,
    /// When connections of samples that were given up are closed.
    closing: VecDeque<(Instant, u64)>,
    /// What happened before anything was sent.
    ready: Vec<ServerEvent>,
    /// Samples that ended between the resume and the probe's answer: of weights that have not been shown yet.
    held: Vec<ServerEvent>,
    version: PolicyVersion,
    /// Label of the weights that it was given; `None` before the first publication.
    label: Option<String>,
    publishing: Option<Publishing>,
    checking: Option<Checking>,
    /// Found at the first check.
    model: Option<String>,
    max_model_len: Option<usize>,
    mode: Option<LogprobsOf>,
    is_known: bool,
}

impl<P: Protocol + Default> HttpServer<P> {
    /// A server at the other end of a transport; nothing is asked of it yet.
    pub fn new(transport: Box<dyn Transport>, settings: Arc<ServerSettings>, tokenizer: Tokenizer) -> Self {
        let protocol = P::default();
        Self {
            model: settings.model.clone(),
            mode: settings.logprobs_of.or(protocol.known_mode()),
            protocol,
            transport,
            settings,
            tokenizer,
            next_number: 0,
            errands: HashMap::new(),
            by_id: HashMap::new(),
            turned_away: VecDeque::new(),
            closing: VecDeque::new(),
            ready: Vec::new(),
            held: Vec::new(),
            version: PolicyVersion(0),
            label: None,
            publishing: None,
            checking: None,
            max_model_len: None,
            is_known: false,
        }
    }
}

/// Refuses a sampling that a kind of server cannot carry out, or that its log-probabilities would not be right for.
pub fn check_sampling<P: Protocol>(
    sampling: &Sampling,
    extra: &Map<String, Value>,
    mode: Option<LogprobsOf>,
    other: OtherLogprobs,
) -> Result<(), ParameterError> {
    P::check(sampling, extra)?;
    match mode.and_then(|of| of.differs(sampling, parameters::altering(extra)).map(|with| (of, with))) {
        Some((of, with)) if other == OtherLogprobs::Refuse => Err(ParameterError::OtherLogprobs {
            server: P::KIND,
            of: of.describe(),
            with,
            hint: "turn that off, start vLLM with the --logprobs-mode that fits (raw_logprobs at temperature 1, \
                   processed_logprobs without truncation), or let the learner compute them again",
        }),
        _ => Ok(()),
    }
}

impl<P: Protocol> HttpServer<P> {
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// The parts of a completion that no server is asked for are checked here, before anything is sent.
    fn refusal(&self, request: &SampleRequest) -> Option<Fault> {
        let settings = &*self.settings;
        let other = match request.id.purpose {
            SamplePurpose::Rollout => settings.other_logprobs,
            // Nothing of it is trained on.
            SamplePurpose::Validation | SamplePurpose::Greedy => OtherLogprobs::Recompute,
        };
        if let Err(error) = check_sampling::<P>(&request.sampling, &settings.extra, self.mode, other) {
            return Some(Fault::new(FaultClass::Refused, error.to_string()));
        }
        let (prompt, limit) = (request.prompt_token_ids.len(), request.sampling.max_response_length);
        let context = self.max_model_len.filter(|&context| prompt + limit > context)?;
        let detail = format!(
            "a prompt of {prompt} tokens and {limit} more do not fit into the server's context of {context} \
             (max_model_len)"
        );
        Some(Fault::new(FaultClass::Refused, detail))
    }

    fn send_sample(&mut self, request: SampleRequest, turned_away: Option<Instant>) {
        let settings = Arc::clone(&self.settings);
        let number = self.number();
        let request_id = format!("{}-{number}", settings.nonce);
        let altering = parameters::altering(&settings.extra);
        let logprobs =
            !P::IS_TEXT_ONLY && self.mode.is_some_and(|of| of.differs(&request.sampling, altering).is_none());
        let prompt_text =
            if P::IS_TEXT_ONLY { self.prompt_text(&request.prompt_token_ids) } else { String::new() };
        let ask = Ask {
            request_id: &request_id,
            prompt: &request.prompt_token_ids,
            prompt_text: &prompt_text,
            sampling: &request.sampling,
            seed: settings.seeds.then(|| request.key.bits(0)),
            key: Some(request.key),
            end_token_ids: &settings.end_token_ids,
            model: self.model.as_deref(),
            cache_salt: self.label.as_deref(),
            logprobs,
            stream: settings.stream,
            extra: &settings.extra,
        };
        let call = self.protocol.sample(&ask);
        self.by_id.insert(request.id, number);
        let pending =
            Pending { request, request_id, version: self.version, logprobs, is_given_up: false, turned_away };
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

    fn finish_sample(&mut self, pending: Pending, exchange: Exchange, now: Instant) -> Option<ServerEvent> {
        let id = pending.request.id;
        let outcome = match exchange {
            Ok(answer) => self.protocol.read(&answer).and_then(|read| self.sample_of(&pending, read)),
            Err(Broken { fault, partial }) => {
                // Parts that arrived say how much was spent.
                let spent = partial.filter(crate::wire::Answer::is_stream).and_then(|answer| {
                    let parts = vllm::read_parts(&answer.body).ok()?;
                    Some(parts.iter().map(crate::wire::Completion::num_tokens).sum())
                });
                Err(fault.spending(spent.unwrap_or(0)))
            }
        };
        Some(match outcome {
            Ok(sample) => ServerEvent::Sampled { id, sample },
            Err(fault) if pending.is_given_up => ServerEvent::Aborted { id, num_tokens: fault.num_tokens },
            Err(fault) if fault.class == FaultClass::Paused => {
                let since = pending.turned_away.unwrap_or(now);
                if now.saturating_duration_since(since) >= self.settings.answer_timeout {
                    let detail = format!("turned away since {} s: {}", (now - since).as_secs(), fault.detail);
                    return Some(ServerEvent::Failed { id, fault: Fault::new(FaultClass::TimedOut, detail) });
                }
                let again_at = now + ASK_AGAIN;
                self.turned_away.push_back(TurnedAway { request: pending.request, again_at, since });
                return None;
            }
            Err(fault) => ServerEvent::Failed { id, fault },
        })
    }

    fn sample_of(&self, pending: &Pending, read: crate::wire::Completion) -> Result<Sample, Fault> {
        let limit = pending.request.sampling.max_response_length;
        let stop = StopStrings::new(pending.request.sampling.stop.clone())
            .map_err(|error| Fault::new(FaultClass::Refused, error.to_string()))?;
        let undecodable = |error: tamis_text::tokenizer::TokenizerError, spent: usize| {
            Fault::new(FaultClass::Undecodable, error.to_string()).spending(spent as u64)
        };
        if P::IS_TEXT_ONLY {
            let spent = read.num_tokens();
            let finish_reason = finish_reason(read.finish.as_ref(), spent)?;
            let text = read.text.unwrap_or_default();
            // For its length only: ids that were not sampled are never trained on, and have no log-probabilities.
            let token_ids = self.tokenizer.encode(&text, false).map_err(|error| undecodable(error, 0))?;
            let versions =
                vec![VersionSpan { version: pending.version, start: 0, end: token_ids.len() as u32 }];
            return Ok(Sample {
                token_ids,
                logprobs: Vec::new(),
                entropy: None,
                text,
                finish_reason,
                versions,
            });
        }
        let answered_id = self.protocol.answered_id(&pending.request_id);
        let expected = Expected {
            request_id: &answered_id,
            vocabulary: self.settings.vocabulary,
            limit,
            logprobs: pending.logprobs,
        };
        let Checked { token_ids, logprobs, finish, spans } = read.check(&expected)?;
        let num_tokens = token_ids.len() as u64;
        let finish_reason = finish_reason(Some(&finish), num_tokens)?;
        let versions = self.versions(pending, spans, num_tokens as u32)?;
        let mut text =
            self.tokenizer.decode(&token_ids, true).map_err(|error| undecodable(error, token_ids.len()))?;
        if let Some(hit) = stop.find(&text, 0) {
            text.truncate(hit.start);
        }
        Ok(Sample { token_ids, logprobs, entropy: None, text, finish_reason, versions })
    }

    /// The versions behind the labels: those that were current since the request was sent, and no others.
    fn versions(
        &self,
        pending: &Pending,
        spans: Option<Vec<LabelSpan>>,
        num_tokens: u32,
    ) -> Result<Vec<VersionSpan>, Fault> {
        let whole = vec![VersionSpan { version: pending.version, start: 0, end: num_tokens }];
        let (Some(spans), Some(_)) = (spans, &self.label) else { return Ok(whole) };
        let newest =
            self.publishing.as_ref().map_or(self.version, |publishing| publishing.version.max(self.version));
        let mut versions: Vec<VersionSpan> = Vec::new();
        for span in spans {
            let version = version_of(&self.settings.nonce, &span.label)
                .filter(|version| (pending.version..=newest).contains(version));
            let Some(version) = version else {
                let detail = format!(
                    "sampled by weights {:?}, where version {} is current: the server was restarted or given others",
                    span.label, self.version.0
                );
                return Err(Fault::new(FaultClass::StaleWeights, detail).spending(u64::from(num_tokens)));
            };
            match versions.last_mut() {
                Some(last) if last.version == version => last.end = span.end,
                _ => versions.push(VersionSpan { version, start: span.start, end: span.end }),
            }
        }
        Ok(if versions.is_empty() { whole } else { versions })
    }

    fn ask(&mut self, control: &Control<'_>, errand: Errand, timeout: Duration) -> bool {
        let number = self.number();
        let request_id = format!("{}-{number}", self.settings.nonce);
        let Some(call) = self.protocol.control(control, self.model.as_deref(), &request_id) else {
            return false;
        };
        self.errands.insert(number, errand);
        self.transport.send(number, call, timeout);
        true
    }

    /// Asks for the stage that the publication stands at, and for the next where the server has no such stage.
    fn publish_stage(&mut self) {
        while let Some(publishing) = &self.publishing {
            if publishing.stage == Stage::Emptying && !self.by_id.is_empty() {
                return;
            }
            let (folder, label) = (publishing.folder.clone(), publishing.label.clone());
            let tokens = publishing.probe.as_ref().map(|probe| probe.token_ids.clone());
            let control = match publishing.stage {
                Stage::Emptying => None,
                Stage::Pause => Some(Control::Pause(publishing.in_flight)),
                Stage::Reload => Some(Control::Reload(&folder, &label)),
                Stage::ResetCache => Some(Control::ResetCache),
                Stage::SetLabel => Some(Control::SetLabel(&label)),
                Stage::Resume => Some(Control::Resume),
                Stage::Probe => tokens.as_deref().map(Control::Score),
            };
            let timeout = self.settings.publish_timeout;
            if control.is_some_and(|control| self.ask(&control, Errand::Publishing, timeout)) {
                return;
            }
            self.next_stage();
        }
    }

    fn next_stage(&mut self) {
        let Some(publishing) = &mut self.publishing else { return };
        publishing.tries = 0;
        if let Some(stage) = publishing.stage.next() {
            publishing.stage = stage;
            return;
        }
        if let Some(done) = self.publishing.take() {
            self.version = done.version;
            self.label = Some(done.label);
            self.ready.append(&mut self.held);
            self.ready.push(ServerEvent::Published { version: done.version });
        }
    }

    fn published_stage(&mut self, exchange: Exchange, now: Instant) {
        let Some(publishing) = &mut self.publishing else { return };
        let control = match publishing.stage {
            Stage::Emptying => return,
            Stage::Pause => Control::Pause(publishing.in_flight),
            Stage::Reload => Control::Reload(&publishing.folder, &publishing.label),
            Stage::ResetCache => Control::ResetCache,
            Stage::SetLabel => Control::SetLabel(&publishing.label),
            Stage::Resume => Control::Resume,
            Stage::Probe => {
                Control::Score(publishing.probe.as_ref().map_or(&[][..], |probe| &probe.token_ids))
            }
        };
        let told = exchange
            .map_err(|broken| broken.fault)
            .and_then(|answer| self.protocol.read_control(&control, &answer));
        let fault = match told {
            Ok(Told::NotYet) if publishing.tries < MOST_RESETS => {
                publishing.tries += 1;
                publishing.ask_again_at = Some(now + ASK_AGAIN);
                return;
            }
            Ok(Told::NotYet) => {
                let detail = format!("the prefix cache could not be reset in {MOST_RESETS} tries");
                Some(Fault::new(FaultClass::ServerError, detail))
            }
            Ok(Told::Scores(scores)) => publishing.probe.as_ref().and_then(|probe| {
                let difference = probe.difference(&scores);
                let fits = difference <= probe.tolerance;
                (!fits).then(|| {
                    let detail = format!(
                        "after loading {} the server's log-probabilities of a known text are off by {difference:.3} nats \
                         on average ({} allowed): it holds other weights (a model with tied embeddings needs an untied \
                         copy on some builds: `tamis export --untie`)",
                        publishing.folder, probe.tolerance
                    );
                    Fault::new(FaultClass::Probe, detail)
                })
            }),
            Ok(_) => None,
            Err(fault) => Some(fault),
        };
        if let Some(fault) = fault {
            self.fail_publication(&fault);
        } else {
            self.next_stage();
            self.publish_stage();
        }
    }

    fn fail_publication(&mut self, fault: &Fault) {
        let Some(publishing) = self.publishing.take() else { return };
        for event in std::mem::take(&mut self.held) {
            self.ready.push(match event {
                ServerEvent::Sampled { id, sample } => {
                    ServerEvent::Failed { id, fault: fault.clone().spending(sample.token_ids.len() as u64) }
                }
                other => other,
            });
        }
        let hint = if fault.class == FaultClass::Refused { P::NO_CONTROL } else { "" };
        let detail = format!("version {} was not loaded: {}{hint}", publishing.version.0, fault.detail);
        let fault = Fault { detail, ..fault.clone() };
        self.ready.push(ServerEvent::NotPublished { version: publishing.version, fault });
    }

    fn look(&mut self) {
        while let Some(checking) = &mut self.checking {
            let Some(&look) = checking.left.front() else {
                let report = checking.report;
                self.checking = None;
                self.is_known = true;
                self.ready.push(ServerEvent::Checked(Ok(report)));
                return;
            };
            let timeout =
                if self.is_known { self.settings.check_timeout } else { self.settings.publish_timeout };
            if self.ask(&control_of(look), Errand::Checking, timeout) {
                return;
            }
            if let Some(checking) = &mut self.checking {
                checking.left.pop_front();
            }
        }
    }

    fn looked(&mut self, exchange: Exchange) {
        let Some(checking) = &mut self.checking else { return };
        let Some(look) = checking.left.pop_front() else { return };
        let told = exchange
            .map_err(|broken| broken.fault)
            .and_then(|answer| self.protocol.read_control(&control_of(look), &answer));
        let fault = match told {
            Ok(Told::NotYet) => {
                checking.left.push_front(look);
                None
            }
            Ok(Told::Models(models)) => {
                let wanted =
                    |model: &&vllm::Model| self.settings.model.as_ref().is_none_or(|name| model.id == *name);
                if let Some(model) = models.iter().find(wanted) {
                    self.max_model_len = model.max_model_len;
                    self.model = Some(model.id.clone());
                    None
                } else {
                    let served: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
                    let wanted = self.settings.model.as_deref().unwrap_or("at all");
                    let detail = format!("it serves no model {wanted:?}, but {}", served.join(", "));
                    Some(Fault::new(FaultClass::Refused, detail))
                }
            }
            Ok(Told::Mode(mode)) => {
                self.mode = Some(mode);
                None
            }
            Ok(Told::Label(label)) => {
                checking.report.holds_current = self.label.as_ref().map(|ours| *ours == label);
                None
            }
            Ok(Told::Figures(figures)) => {
                checking.report.figures = figures;
                None
            }
            Ok(Told::Done | Told::Scores(_)) => None,
            // Routes that a server may lack: it says neither what its weights are called nor how busy it is, and is never paused.
            Err(fault)
                if matches!(look, Look::Program | Look::Resume | Look::Label | Look::Figures)
                    && fault.class == FaultClass::Refused =>
            {
                None
            }
            Err(fault) => Some(fault),
        };
        match fault {
            Some(fault) => {
                self.checking = None;
                self.ready.push(ServerEvent::Checked(Err(fault)));
            }
            None => self.look(),
        }
    }
}

fn control_of(look: Look) -> Control<'static> {
    match look {
        Look::Health => Control::Health,
        Look::Program => Control::Program,
        Look::Models => Control::Models,
        Look::Resume => Control::Resume,
        Look::Mode => Control::LogprobsMode,
        Look::Label => Control::Label,
        Look::Figures => Control::Figures,
    }
}

fn finish_reason(finish: Option<&Finish>, spent: u64) -> Result<FinishReason, Fault> {
    let (class, detail) = match finish {
        Some(Finish::Stop) => return Ok(FinishReason::Stop),
        Some(Finish::Length) => return Ok(FinishReason::Length),
        Some(Finish::Abort) => (FaultClass::AbortedByServer, "the server gave it up unasked".to_owned()),
        Some(Finish::Other(name)) => (FaultClass::FinishReason, format!("finish reason {name:?}")),
        None => (FaultClass::HalfBody, "the answer ended before the completion did".to_owned()),
    };
    Err(Fault::new(class, detail).spending(spent))
}

/// What a version's weights are called at servers.
fn label_of(nonce: &str, version: PolicyVersion) -> String {
    format!("{nonce}-v{}", version.0)
}

fn version_of(nonce: &str, label: &str) -> Option<PolicyVersion> {
    label.strip_prefix(nonce)?.strip_prefix("-v")?.parse().ok().map(PolicyVersion)
}

/// A folder that a server can load, looked at first because a bad one kills vLLM at its next sample.
fn check_folder(folder: &Path) -> Result<(), Fault> {
    let refused = |what: String| Fault::new(FaultClass::Refused, format!("{}: {what}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(|error| refused(error.to_string()))?;
    let names: BTreeSet<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if !names.contains("config.json") {
        return Err(refused("no config.json".to_owned()));
    }
    if !names
        .iter()
        .any(|name| Path::new(name).extension().is_some_and(|extension| extension == "safetensors"))
    {
        return Err(refused("no .safetensors file".to_owned()));
    }
    Ok(())
}

impl<P: Protocol> Server for HttpServer<P> {
    fn name(&self) -> &str {
        &self.settings.name
    }

    fn submit(&mut self, request: SampleRequest) {
        match self.refusal(&request) {
            Some(fault) => self.ready.push(ServerEvent::Failed { id: request.id, fault }),
            None => self.send_sample(request, None),
        }
    }

    fn abort(&mut self, what: AbortScope, now: Instant) {
        let mut request_ids = Vec::new();
        let mut numbers = Vec::new();
        for (&id, &number) in self.by_id.iter().filter(|(id, _)| what.holds(id)) {
            if let Some(Errand::Sample(pending)) = self.errands.get_mut(&number)
                && !pending.is_given_up
            {
                pending.is_given_up = true;
                request_ids.push(pending.request_id.clone());
                numbers.push((id, number));
            }
        }
        let is_meant = |away: &TurnedAway| what.holds(&away.request.id);
        let (gone, kept): (VecDeque<_>, VecDeque<_>) = self.turned_away.drain(..).partition(is_meant);
        self.turned_away = kept;
        let aborted = |away: TurnedAway| ServerEvent::Aborted { id: away.request.id, num_tokens: 0 };
        self.ready.extend(gone.into_iter().map(aborted));
        if numbers.is_empty() {
            return;
        }
        let calls = self.protocol.abort(&request_ids);
        if calls.is_empty() {
            for (id, number) in numbers {
                self.transport.cancel(number);
                self.errands.remove(&number);
                self.by_id.remove(&id);
                self.ready.push(ServerEvent::Aborted { id, num_tokens: 0 });
            }
            return;
        }
        for call in calls {
            let number = self.number();
            self.errands.insert(number, Errand::Abort);
            self.transport.send(number, call, self.settings.check_timeout);
        }
        self.closing.extend(numbers.into_iter().map(|(_, number)| (now + ABORT_GRACE, number)));
    }

    fn drop_all(&mut self) -> Vec<SampleId> {
        for &number in self.errands.keys() {
            self.transport.cancel(number);
        }
        self.errands.clear();
        self.closing.clear();
        self.publishing = None;
        self.checking = None;
        let held = std::mem::take(&mut self.held).into_iter().filter_map(|event| match event {
            ServerEvent::Sampled { id, .. }
            | ServerEvent::Failed { id, .. }
            | ServerEvent::Aborted { id, .. } => Some(id),
            _ => None,
        });
        let turned_away = std::mem::take(&mut self.turned_away).into_iter().map(|away| away.request.id);
        let dropped = std::mem::take(&mut self.by_id).into_keys();
        // Events that were ready are facts, and are still told.
        dropped.chain(turned_away).chain(held).collect()
    }

    fn publish(&mut self, publication: &Publication, in_flight: InFlight, now: Instant) {
        let Publication { version, weights } = publication;
        let refused = |detail: String| ServerEvent::NotPublished {
            version: *version,
            fault: Fault::new(FaultClass::Refused, detail),
        };
        let Weights::Folder(folder) = weights else {
            self.ready.push(refused("weights in this process cannot be sent to a server".to_owned()));
            return;
        };
        let probe = check_folder(folder)
            .map_err(|fault| fault.detail)
            .and_then(|()| Probe::read(folder).map_err(|error| error.to_string()));
        let probe = match probe {
            Ok(probe) => probe,
            Err(detail) => {
                self.ready.push(refused(detail));
                return;
            }
        };
        let in_flight = match in_flight {
            InFlight::Keep if !self.protocol.reports_spans() => InFlight::Wait,
            other => other,
        };
        if in_flight == InFlight::Abort {
            for purpose in [SamplePurpose::Rollout, SamplePurpose::Validation, SamplePurpose::Greedy] {
                self.abort(AbortScope::Purpose(purpose), now);
            }
        }
        self.publishing = Some(Publishing {
            version: *version,
            folder: folder.display().to_string(),
            label: label_of(&self.settings.nonce, *version),
            in_flight,
            probe,
            stage: if in_flight == InFlight::Keep { Stage::Pause } else { Stage::Emptying },
            tries: 0,
            ask_again_at: None,
        });
        self.publish_stage();
    }

    fn check(&mut self) {
        let looks =
            [Look::Health, Look::Program, Look::Models, Look::Resume, Look::Mode, Look::Label, Look::Figures];
        let is_needed = |look: &Look| match look {
            Look::Program | Look::Resume => !self.is_known,
            Look::Mode => self.mode.is_none() && !P::IS_TEXT_ONLY,
            _ => true,
        };
        let report = Report::default();
        self.checking = Some(Checking { left: looks.into_iter().filter(is_needed).collect(), report });
        self.look();
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<ServerEvent>) {
        for (number, exchange) in self.transport.receive() {
            match self.errands.remove(&number) {
                Some(Errand::Sample(pending)) => {
                    let id = pending.request.id;
                    self.by_id.remove(&id);
                    if let Some(event) = self.finish_sample(*pending, exchange, now) {
                        let is_unproven = self
                            .publishing
                            .as_ref()
                            .is_some_and(|publishing| publishing.stage == Stage::Probe);
                        if is_unproven { self.held.push(event) } else { self.ready.push(event) }
                    }
                }
                Some(Errand::Publishing) => self.published_stage(exchange, now),
                Some(Errand::Checking) => self.looked(exchange),
                // An abort is acknowledged whatever it did; a number that is not known was given up.
                Some(Errand::Abort) | None => {}
            }
        }
        while self.closing.front().is_some_and(|&(at, _)| at <= now) {
            let Some((_, number)) = self.closing.pop_front() else { break };
            if let Some(Errand::Sample(pending)) = self.errands.remove(&number) {
                self.transport.cancel(number);
                self.by_id.remove(&pending.request.id);
                self.ready.push(ServerEvent::Aborted { id: pending.request.id, num_tokens: 0 });
            }
        }
        while self.turned_away.front().is_some_and(|away| away.again_at <= now) {
            if let Some(away) = self.turned_away.pop_front() {
                self.send_sample(away.request, Some(away.since));
            }
        }
        if let Some(publishing) = &mut self.publishing {
            let is_due = publishing.ask_again_at.is_some_and(|at| at <= now);
            if is_due {
                publishing.ask_again_at = None;
            }
            if is_due || publishing.stage == Stage::Emptying {
                self.publish_stage();
            }
        }
        events.append(&mut self.ready);
    }

    fn wake_at(&self, now: Instant) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(now);
        }
        let closing = self.closing.front().map(|&(at, _)| at);
        let again = self.turned_away.front().map(|away| away.again_at);
        let asking = self.publishing.as_ref().and_then(|publishing| publishing.ask_again_at);
        [closing, again, asking].into_iter().flatten().min()
    }

    fn num_in_flight(&self) -> usize {
        self.by_id.len() + self.turned_away.len()
    }
}
