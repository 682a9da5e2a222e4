//! One inference server: samples, new weights and health over a [`Transport`], without waiting for
//! anything.
//!
//! An [`HttpServer`] keeps its requests under numbers, and turns the results into [`ServerEvent`]s.
//! Each request ends exactly once, whatever the server does: the number of a duplicate or late answer
//! is no longer in use. Retries and routing are the [fleet](crate::fleet)'s.

mod checking;
mod probe;
mod protocol;
mod publication;
mod publishing;
mod sampling;
mod sending;
mod settings;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tamis_core::fault;
use tamis_core::group::PolicyVersion;
use tamis_text::regex_mask::WholeRegex;
use tamis_text::tokenizer::Tokenizer;

pub use probe::{FILE as PROBE_FILE, Probe};
pub use protocol::{Control, ControlReply, OpenAi, Protocol, Sglang, Vllm};
pub use publication::HANDLES;
pub use sending::{GRACE, Past, Restart, SendTimes, Sender, TRANSFER};
pub use settings::{OtherLogprobs, ServerSettings};

use checking::Checking;
use publication::{Publishing, Stage};
use sampling::{Pending, TurnedAway};

use crate::generator::{AbortScope, InFlight, Publication, Sample, SampleId, SampleRequest, Sampling};
use crate::http::Transport;
use crate::wire::vllm::Figures;
use crate::wire::{Call, Fault, FaultClass, LogprobsOf, ParameterError, parameters};

/// vLLM behind [`Server`].
pub type VllmServer = HttpServer<Vllm>;
/// SGLang behind [`Server`].
pub type SglangServer = HttpServer<Sglang>;
/// Any OpenAI-compatible server behind [`Server`].
pub type OpenAiServer = HttpServer<OpenAi>;

/// Time in which an aborted request may still be answered before its connection is closed.
const ABORT_GRACE: Duration = Duration::from_secs(2);

/// Pause before a request is repeated that was not possible just now.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// An event at one server.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerEvent {
    /// A sample is complete.
    Sampled {
        /// Id of the sample.
        id: SampleId,
        /// The completion.
        sample: Sample,
    },
    /// A sample did not come about.
    Failed {
        /// Id of the sample.
        id: SampleId,
        /// Why, with the tokens that were spent.
        fault: Fault,
    },
    /// A sample was aborted.
    Aborted {
        /// Id of the sample.
        id: SampleId,
        /// Tokens that were spent.
        num_tokens: u64,
    },
    /// The server holds this version and has shown it.
    Published {
        /// The version.
        version: PolicyVersion,
    },
    /// The server does not hold this version.
    NotPublished {
        /// The version.
        version: PolicyVersion,
        /// Why not.
        fault: Fault,
    },
    /// Weights could not be sent to it over a communicator; it is given them by a folder in the same
    /// publication.
    ByFolder {
        /// The reason.
        fault: Fault,
    },
    /// The server sleeps, or does not.
    Slept(Result<(), Fault>),
    /// A check ended.
    Checked(Result<ServerReport, Fault>),
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ServerReport {
    /// Whether it holds the weights that were published to it last; `None` if none were, or if it
    /// cannot report it.
    pub holds_current: Option<bool>,
    /// Load figures that the server reports.
    pub figures: Figures,
}

/// A server, as a [fleet](crate::fleet) uses it. Nothing here waits.
pub trait Server: Send {
    /// Name of the server in messages.
    fn name(&self) -> &str;

    /// Takes a request in; its id is that of no other in flight here.
    fn submit(&mut self, request: SampleRequest);

    /// Aborts requests; each ends in [`ServerEvent::Aborted`], or in its own event if it ended before.
    fn abort(&mut self, what: AbortScope, now: Instant);

    /// Drops everything in flight at once and returns its ids: it has no more events. A publication or
    /// check ends too.
    fn drop_all(&mut self) -> Vec<SampleId>;

    /// Brings new weights; comes to [`ServerEvent::Published`] or [`ServerEvent::NotPublished`]. One at a
    /// time, and nothing is submitted meanwhile.
    fn publish(&mut self, publication: &Publication, in_flight: InFlight, now: Instant);

    /// Has it free its GPU until the next publication, which wakes it; ends in [`ServerEvent::Slept`].
    /// Allowed only if nothing is in flight, published or checked.
    fn sleep(&mut self);

    /// Checks whether it is alive; ends in [`ServerEvent::Checked`]. One at a time.
    fn check(&mut self);

    /// Takes in the results that have arrived.
    fn poll(&mut self, now: Instant, events: &mut Vec<ServerEvent>);

    /// When [`Self::poll`] has something to do although nothing came back; `now` for at once.
    fn wake_at(&self, now: Instant) -> Option<Instant>;

    /// Samples that have not ended.
    fn num_in_flight(&self) -> usize;

    /// Why its log-probabilities are not those that are trained on, if that is known.
    fn other_logprobs(&self, _: &Sampling) -> Option<ParameterError> {
        None
    }
}

/// Purpose of an exchange, by its number.
enum Errand {
    Sample(Box<Pending>),
    /// A request whose answer is ignored.
    Unheard,
    Publishing,
    Checking,
    Sleeping,
}

/// A server over HTTP.
pub struct HttpServer<P> {
    protocol: P,
    transport: Box<dyn Transport>,
    settings: Arc<ServerSettings>,
    tokenizer: Tokenizer,
    /// The expression of the latest sample that had one.
    form: Option<(String, Arc<WholeRegex>)>,
    next_number: u64,
    errands: HashMap<u64, Errand>,
    by_id: HashMap<SampleId, u64>,
    /// Samples that the server turned away while it is paused, in the order in which they are requested
    /// again.
    turned_away: VecDeque<TurnedAway>,
    /// Times at which connections of aborted samples are closed.
    closing: VecDeque<(Instant, u64)>,
    /// Events that happened without an exchange.
    ready: Vec<ServerEvent>,
    /// Samples that ended between the resume and the probe's answer: of weights that have not been shown yet.
    held: Vec<ServerEvent>,
    version: PolicyVersion,
    /// Label of the weights that it was given; `None` before the first publication.
    label: Option<String>,
    publishing: Option<Publishing>,
    /// The learner, if it sends weights over a communicator.
    sender: Option<Sender>,
    /// Name of the adapter that samples, if one was published.
    adapter: Option<String>,
    /// Names of the adapters that the server holds, the newest last.
    adapters: VecDeque<String>,
    checking: Option<Checking>,
    /// Found at the first check.
    model: Option<String>,
    max_model_len: Option<usize>,
    mode: Option<LogprobsOf>,
    /// Whether the server's program and its start parameters are known.
    is_known: bool,
    /// A publication that failed may have left it paused.
    left_paused: bool,
    past: Past,
    /// It was put to sleep and has not woken.
    is_asleep: bool,
    /// Deviation of its log-probabilities from those of the first weights that it was given, as a part of
    /// their spread.
    rounding: Option<f64>,
}

impl<P: Protocol> HttpServer<P> {
    /// A server at the other end of a transport; no request is sent yet.
    pub fn new(transport: Box<dyn Transport>, settings: Arc<ServerSettings>, tokenizer: Tokenizer) -> Self {
        let protocol = P::default();
        Self {
            model: settings.model.clone(),
            mode: protocol.known_mode(),
            protocol,
            transport,
            settings,
            tokenizer,
            form: None,
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
            sender: None,
            adapter: None,
            adapters: VecDeque::new(),
            checking: None,
            max_model_len: None,
            is_known: false,
            left_paused: false,
            past: Past::default(),
            is_asleep: false,
            rounding: None,
        }
    }

    /// Adds a learner that sends it weights over a communicator.
    #[must_use]
    pub fn with_sender(self, sender: Sender) -> Self {
        Self { past: sender.past().clone(), sender: Some(sender), ..self }
    }
}

/// Why the log-probabilities of a kind of server are not those that are trained on; `None` if they are.
fn other_logprobs<P: Protocol>(
    sampling: &Sampling,
    extra: &Map<String, Value>,
    mode: Option<LogprobsOf>,
) -> Option<ParameterError> {
    let of = mode?;
    let with = of.differs(sampling, parameters::find_altering(extra))?;
    Some(fault!(
        "{} reports log-probabilities {}, but with {with} training uses different ones",
        P::KIND,
        of.describe()
    ))
}

impl<P: Protocol> HttpServer<P> {
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Forgets the server's properties: the next answer here may come from another process, started
    /// otherwise.
    fn forget(&mut self) {
        self.protocol = P::default();
        self.mode = self.protocol.known_mode();
        self.is_known = false;
        self.adapter = None;
        self.adapters.clear();
        if let Some(sender) = &mut self.sender {
            sender.forget();
        }
    }

    /// The next request; `None` if this kind of server does not have it. `model` names the model that
    /// it is for.
    fn call_of(&self, control: &Control<'_>, model: Option<&str>) -> Option<Call> {
        let request_id = format!("{}-{}", self.settings.nonce, self.next_number + 1);
        self.protocol.control(control, model, &request_id)
    }

    fn send(&mut self, call: Call, errand: Errand, timeout: Duration) -> u64 {
        let number = self.number();
        self.errands.insert(number, errand);
        self.transport.send(number, call, timeout);
        number
    }

    fn ask(&mut self, control: &Control<'_>, errand: Errand, timeout: Duration) -> bool {
        let call = self.call_of(control, self.model.as_deref());
        let is_asked = call.is_some();
        if let Some(call) = call {
            self.send(call, errand, timeout);
        }
        is_asked
    }
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
            self.send(call, Errand::Unheard, self.settings.check_timeout);
        }
        self.closing.extend(numbers.into_iter().map(|(_, number)| (now + ABORT_GRACE, number)));
    }

    fn drop_all(&mut self) -> Vec<SampleId> {
        for &number in self.errands.keys() {
            self.transport.cancel(number);
        }
        self.errands.clear();
        self.closing.clear();
        self.left_paused |= self.publishing.take().is_some_and(|publishing| publishing.may_be_paused());
        self.checking = None;
        self.forget();
        let held = std::mem::take(&mut self.held).into_iter().filter_map(|event| match event {
            ServerEvent::Sampled { id, .. }
            | ServerEvent::Failed { id, .. }
            | ServerEvent::Aborted { id, .. } => Some(id),
            _ => None,
        });
        let turned_away = std::mem::take(&mut self.turned_away).into_iter().map(|away| away.request.id);
        let dropped = std::mem::take(&mut self.by_id).into_keys();
        // Events that were ready are facts, and are still reported.
        dropped.chain(turned_away).chain(held).collect()
    }

    fn publish(&mut self, publication: &Publication, in_flight: InFlight, now: Instant) {
        self.begin_publication(publication, in_flight, now);
    }

    fn sleep(&mut self) {
        let control = Control::Sleep(self.settings.sleep_level);
        if !self.ask(&control, Errand::Sleeping, self.settings.publish_timeout) {
            let detail = format!("servers of `rollout.backend: {}` do not sleep", P::KIND);
            self.ready.push(ServerEvent::Slept(Err(Fault::new(FaultClass::Refused, detail))));
        }
    }

    fn check(&mut self) {
        self.begin_check();
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<ServerEvent>) {
        for (number, exchange) in self.transport.receive() {
            match self.errands.remove(&number) {
                Some(Errand::Sample(pending)) => {
                    let id = pending.request.id;
                    self.by_id.remove(&id);
                    if let Some(event) = self.finish_sample(*pending, exchange, now) {
                        // The server resumes before we read its answer.
                        let is_unproven = self.publishing.as_ref().is_some_and(|publishing| {
                            matches!(publishing.stage, Stage::Resume | Stage::Probe)
                        });
                        if is_unproven { self.held.push(event) } else { self.ready.push(event) }
                    }
                }
                Some(Errand::Publishing) => self.finish_stage(exchange, now),
                Some(Errand::Checking) => self.read_check(exchange, now),
                Some(Errand::Sleeping) => {
                    let slept = exchange.and_then(|answer| answer.success()).map_err(|fault| {
                        let detail = format!("it did not go to sleep: {}{}", fault.detail, P::NO_SLEEP);
                        Fault { detail, ..fault }
                    });
                    self.is_asleep |= slept.is_ok();
                    self.ready.push(ServerEvent::Slept(slept));
                }
                // An unknown number belongs to an aborted sample.
                Some(Errand::Unheard) | None => {}
            }
        }
        if let Some(exchange) = self.sender.as_mut().and_then(Sender::receive) {
            self.hear_learner(exchange, now);
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
        if let Some(checking) = &mut self.checking
            && checking.again_at.take_if(|at| *at <= now).is_some()
        {
            self.look();
        }
        self.look_whether_stuck(now);
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
        let stuck = self.publishing.as_ref().and_then(|publishing| publishing.stuck_at);
        let checking = self.checking.as_ref().and_then(|checking| checking.again_at);
        [closing, again, asking, stuck, checking].into_iter().flatten().min()
    }

    fn num_in_flight(&self) -> usize {
        self.by_id.len() + self.turned_away.len()
    }

    fn other_logprobs(&self, sampling: &Sampling) -> Option<ParameterError> {
        other_logprobs::<P>(sampling, &self.settings.extra, self.mode)
    }
}
