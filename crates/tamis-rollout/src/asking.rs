//! Servers that score, as rewards and teachers use them: in turn, several requests at once. A request whose
//! fault may pass is retried after a growing pause.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tamis_core::figure::counted;

use tamis_env::reward::{Listener, RewardFailure};
use thiserror::Error;

use crate::clock::Bell;
use crate::http::{Address, Exchange, HttpClient, HttpError, HttpSettings, ServerLine, Transport as _};
use crate::wire::{Call, Fault, FaultClass, vllm};
use crate::{FailureKind, GeneratorError};

/// Pause before the second attempt; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Interval at which a wait checks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time until the first message that answers are still missing; after that, each time this doubles.
const PATIENCE: Duration = Duration::from_secs(10);

/// Scoring servers that cannot be used.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The client could not be set up.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// No server answers, or none has the model.
    #[error(transparent)]
    Servers(#[from] GeneratorError),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct AskLimits {
    /// Time limit of one answer.
    pub timeout: Duration,
    /// Most attempts for one request, at least 1.
    pub max_attempts: u32,
    /// Number of requests at once, at least 1.
    pub concurrency: usize,
}

/// Whether a request is retried after a fault that may pass.
pub(crate) enum AfterFault {
    /// It is tried again until its attempts are used up.
    Counts,
    /// It is tried again, and the attempt is not counted.
    Passes,
    /// No request can succeed any more.
    Ends(RewardFailure),
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unanswered {
    /// The last fault in words.
    pub message: String,
    /// Whether the server refuses the request itself, so that another one may be answered.
    pub is_refused: bool,
}

/// A request without an answer.
struct Open<T> {
    place: usize,
    request: T,
    /// The server that is asked, at each attempt the next.
    server: usize,
    attempts: u32,
    again_at: Instant,
}

pub(crate) struct ScoringServers {
    addresses: Vec<Address>,
    key: Option<String>,
    client: Mutex<HttpClient>,
    /// The next server in turn.
    next: AtomicUsize,
    /// The part of the run that asks, for messages: reward `judge`.
    asker: String,
    /// The kind of server, for messages: `judge`.
    what: &'static str,
    listener: Arc<dyn Listener>,
}

impl ScoringServers {
    /// Sends no request yet.
    pub(crate) fn new(
        addresses: Vec<Address>,
        key: Option<String>,
        asker: String,
        what: &'static str,
        listener: Arc<dyn Listener>,
    ) -> Result<Self, HttpError> {
        let encrypted = addresses.iter().any(Address::is_encrypted);
        let client = Mutex::new(HttpClient::start(HttpSettings::default(), encrypted)?);
        let next = AtomicUsize::new(0);
        Ok(Self { addresses, key, client, next, asker, what, listener })
    }

    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    pub(crate) fn addresses(&self) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        addresses.join(", ")
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.listener.is_interrupted()
    }

    /// The error for a server's fault at the start of a run.
    pub(crate) fn unreachable(&self, server: usize, fault: &Fault) -> ConnectError {
        let address = &self.addresses[server];
        let tried = vec![format!("{address} ({}): {fault}", self.asker)];
        GeneratorError::Unreachable { tried }.into()
    }

    fn line(&self, server: usize, bell: &Bell) -> Result<ServerLine, HttpError> {
        let address = self.addresses[server].clone();
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        client.line(address, self.key.as_deref(), bell.clone())
    }

    /// One answer of a server, waited for until then; `None` if the wait was abandoned.
    pub(crate) fn ask_one(
        &self,
        server: usize,
        call: Call,
        until: Instant,
    ) -> Result<Option<Exchange>, HttpError> {
        let bell = Bell::default();
        let mut line = self.line(server, &bell)?;
        line.send(0, call, until.saturating_duration_since(Instant::now()).max(LOOK_EVERY));
        loop {
            bell.wait(LOOK_EVERY);
            if self.listener.is_interrupted() {
                return Ok(None);
            }
            if let Some((_, exchange)) = line.receive().pop() {
                return Ok(Some(exchange));
            }
        }
    }

    /// The model's name at a server, if one is known. The wait ends when the run is to stop. A server
    /// without this route is trusted.
    pub(crate) fn model_at(
        &self,
        server: usize,
        wanted: Option<&str>,
        until: Instant,
    ) -> Result<Option<String>, ConnectError> {
        loop {
            let Some(exchange) = self.ask_one(server, vllm::models(), until)? else { return Ok(None) };
            match exchange.and_then(|answer| vllm::read_models(&answer)) {
                Ok(models) => {
                    return match wanted {
                        Some(name) if models.iter().any(|model| model.id == *name) => {
                            Ok(Some(name.to_owned()))
                        }
                        Some(name) => {
                            let served: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
                            let detail =
                                format!("it does not serve the model {name:?}, but {}", served.join(", "));
                            Err(self.unreachable(server, &Fault::new(FaultClass::Refused, detail)))
                        }
                        None => Ok(models.into_iter().next().map(|model| model.id)),
                    };
                }
                // A server without the route.
                Err(fault) if fault.class == FaultClass::Refused => return Ok(wanted.map(str::to_owned)),
                Err(fault) if fault.class == FaultClass::Unauthorized || Instant::now() >= until => {
                    return Err(self.unreachable(server, &fault));
                }
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// Sends all requests, and returns an answer or a message for each, in their order. `read` turns a
    /// response into an answer or a fault that may pass; `after` decides what to do after a fault.
    ///
    /// # Errors
    /// A failure of all requests: interrupted, or one that [`AfterFault::Ends`] holds.
    pub(crate) fn ask<T, A>(
        &self,
        requests: Vec<T>,
        limits: AskLimits,
        call: impl Fn(&T, usize) -> Call,
        read: impl Fn(&T, Exchange) -> Result<A, Fault>,
        mut after: impl FnMut(&Fault) -> AfterFault,
    ) -> Result<Vec<Result<A, Unanswered>>, RewardFailure> {
        let bell = Bell::default();
        let lines: Result<Vec<ServerLine>, HttpError> =
            (0..self.len()).map(|server| self.line(server, &bell)).collect();
        let mut lines = lines.map_err(|error| RewardFailure::Function { message: error.to_string() })?;
        let began = Instant::now();
        let mut answers: Vec<Option<Result<A, Unanswered>>> = requests.iter().map(|_| None).collect();
        let mut waiting: VecDeque<Open<T>> = VecDeque::new();
        for (place, request) in requests.into_iter().enumerate() {
            let server = self.next.fetch_add(1, Ordering::Relaxed) % self.len();
            waiting.push_back(Open { place, request, server, attempts: 0, again_at: began });
        }
        let mut asked: HashMap<u64, Open<T>> = HashMap::new();
        let mut next_number = 0;
        let mut patience = PATIENCE;
        while !(waiting.is_empty() && asked.is_empty()) {
            let now = Instant::now();
            let mut later = VecDeque::new();
            while let Some(mut open) = waiting.pop_front() {
                if open.again_at > now || asked.len() >= limits.concurrency {
                    later.push_back(open);
                    continue;
                }
                open.attempts += 1;
                next_number += 1;
                lines[open.server].send(next_number, call(&open.request, open.server), limits.timeout);
                asked.insert(next_number, open);
            }
            waiting = later;
            bell.wait(LOOK_EVERY);
            if self.listener.is_interrupted() {
                for (number, open) in &asked {
                    lines[open.server].cancel(*number);
                }
                return Err(RewardFailure::Interrupted);
            }
            let arrived: Vec<(u64, Exchange)> = lines.iter_mut().flat_map(ServerLine::receive).collect();
            for (number, exchange) in arrived {
                let Some(mut open) = asked.remove(&number) else { continue };
                let fault = match read(&open.request, exchange) {
                    Ok(answer) => {
                        answers[open.place] = Some(Ok(answer));
                        continue;
                    }
                    Err(fault) => fault,
                };
                if fault.class.kind() == FailureKind::Permanent || fault.class == FaultClass::Unauthorized {
                    let message = format!("the {} refuses: {fault}", self.what);
                    let is_refused = fault.class.kind() == FailureKind::Permanent;
                    answers[open.place] = Some(Err(Unanswered { message, is_refused }));
                    continue;
                }
                match after(&fault) {
                    AfterFault::Ends(failure) => return Err(failure),
                    AfterFault::Passes => open.attempts -= 1,
                    AfterFault::Counts => {}
                }
                if open.attempts >= limits.max_attempts {
                    let message = format!(
                        "no answer from the {} in {}: {fault}",
                        self.what,
                        counted(open.attempts, "attempt")
                    );
                    answers[open.place] = Some(Err(Unanswered { message, is_refused: false }));
                } else {
                    let asked_for = fault.retry_after.unwrap_or_default().min(limits.timeout);
                    open.again_at = Instant::now() + pause_after(open.attempts).max(asked_for);
                    open.server = (open.server + 1) % self.len();
                    waiting.push_back(open);
                }
            }
            if began.elapsed() >= patience {
                patience *= 2;
                self.listener.say(&format!(
                    "{}: {} to the {} at {} had no answer for {} s",
                    self.asker,
                    counted(asked.len() + waiting.len(), "request"),
                    self.what,
                    self.addresses(),
                    began.elapsed().as_secs()
                ));
            }
        }
        // All were answered, or the loop went on.
        Ok(answers.into_iter().flatten().collect())
    }
}

fn pause_after(attempts: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(LONGEST_PAUSE)
}
