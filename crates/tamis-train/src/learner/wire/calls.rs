//! Calls to a learner in another process, each carried out once whatever becomes of connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tamis_config::{LearnerBackend, PublishMode};
use tamis_rollout::clock::Bell;
use tamis_rollout::http::{Address, HttpClient, HttpError, HttpSettings, ServerLine, Transport as _};
use tamis_rollout::wire::{Call, Fault, FaultClass, HttpAnswer};
use tamis_run::durable::DiskError;

use super::message::{MessageError, WireMessage};
use super::{ErrorAnswer, ErrorBody, INCARNATION, SECONDS, SEQUENCE};
use crate::checkpoint::SaveError;
use crate::interrupt::{Halt, Interrupt};
use crate::learner::torch::TorchProcess;
use crate::learner::{LearnerError, Pass};
const LOOK_EVERY: Duration = Duration::from_millis(20);
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Number of health checks in a row that find nothing running before a call whose answer does not come is
/// sent again; it doubles with every time.
const FIRST_IDLE: u32 = 2;
const CHECK_AGAIN: Duration = Duration::from_millis(500);
/// Longest time of a health check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a call is sent again whose connection broke; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Most bytes of an answer.
const MAX_ANSWER_BYTES: usize = 1 << 30;

/// Status of an answer to a controller whose learner is another one now.
const GONE: u16 = 410;

/// Waits until a program answers health checks at a learner's address. Returns whether it does within the
/// time. An invalid address is an error.
pub fn wait_until_it_answers(
    url: &str,
    timeout: Duration,
    interrupt: &Interrupt,
) -> Result<bool, Halt<LearnerError>> {
    let no_address = |error: HttpError| LearnerError::Remote {
        url: url.to_owned(),
        what: "cannot be used",
        message: error.to_string(),
        hint: None,
    };
    let address = Address::parse(url).map_err(no_address)?;
    let mut client =
        HttpClient::start(HttpSettings::default(), address.is_encrypted()).map_err(no_address)?;
    let bell = Bell::default();
    let mut line = client.line(address, None, bell.clone()).map_err(no_address)?;
    let began = Instant::now();
    let (mut number, mut is_open, mut ask_at) = (0, false, began);
    while began.elapsed() < timeout {
        if interrupt.is_requested() {
            return Err(Halt::Interrupted);
        }
        if !is_open && Instant::now() >= ask_at {
            number += 1;
            line.send(number, Call::get("/v1/health"), CHECK_TIMEOUT);
            is_open = true;
        }
        bell.wait(LOOK_EVERY);
        for (_, exchange) in line.receive() {
            // A refusal because of a missing token is a sign of life, too. A learner that is ending gives
            // none.
            if exchange.is_ok_and(|answer| answer.status < 500) {
                return Ok(true);
            }
            (is_open, ask_at) = (false, Instant::now() + CHECK_AGAIN);
        }
    }
    Ok(false)
}

/// The address of a learner, and its time limits.
#[derive(Debug, Clone)]
pub struct WireSettings {
    /// Its address: `http://HOST:PORT` or `unix:PATH`.
    pub url: String,
    /// The token that it requires.
    pub token: Option<String>,
    /// Time limit of one call.
    pub timeout: Duration,
    /// Longest time without a sign of life: a connection, or an answer to a health check.
    pub lost_timeout: Duration,
    /// The kind of learner that the configuration names.
    pub backend: LearnerBackend,
    /// Weights that it is to publish; `None` if it samples itself.
    pub publish: Option<PublishMode>,
    /// The key of the run that needs the entropies of tokens; `None` if nothing does.
    pub entropy: Option<&'static str>,
    /// Whether the loss compares with a teacher's likeliest tokens.
    pub distills: bool,
}

/// Sends signs of life to a learner that ends without calls, while the run is busy elsewhere. Ends with
/// this value.
pub(super) struct SignsOfLife {
    #[expect(dead_code, reason = "the thread ends when it is dropped")]
    end: Sender<()>,
}

impl SignsOfLife {
    /// For a learner that waits so long for a request.
    pub(super) fn begin(url: &str, orphan_timeout: Duration) -> Result<Self, HttpError> {
        let address = Address::parse(url)?;
        let mut client = HttpClient::start(HttpSettings::default(), address.is_encrypted())?;
        let mut line = client.line(address, None, Bell::default())?;
        let every = (orphan_timeout / 4).max(LOOK_EVERY);
        let (end, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let _client = client;
            for number in 0.. {
                if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                // A learner that is lost is found to be so by the next call.
                drop(line.receive());
                line.send(number, Call::get("/v1/health"), CHECK_TIMEOUT);
            }
        });
        Ok(Self { end })
    }
}

/// Calls to a learner, each carried out once.
pub(super) struct Calls {
    #[expect(dead_code, reason = "its thread ends with it")]
    client: HttpClient,
    line: ServerLine,
    bell: Bell,
    /// Ctrl-C ends the wait for a learner that does not answer.
    interrupted: Arc<AtomicBool>,
    pub(super) settings: WireSettings,
    /// Number of the next request on the line.
    next: u64,
    pub(super) incarnation: Option<String>,
    seq: u64,
    has_answered: bool,
    /// Time of calls in which the learner did not compute, since it was last taken.
    pub(super) wire_time: Duration,
    /// Whether it returns the entropies of tokens.
    pub(super) gives_entropy: bool,
    /// Number of samples begun so far, which is the number of the next one.
    pub(super) num_samples: u64,
    /// A call that was not waited for to its end.
    abandoned: Option<Call>,
    /// The process at the other end, if the run started it.
    pub(super) process: Option<TorchProcess>,
}

/// Part of the answer of `health`.
#[derive(Deserialize)]
struct Health {
    phase: String,
}

/// Why a call has no answer.
pub(super) enum Unanswered {
    Interrupted,
    Lost(String),
}

impl Calls {
    pub(super) fn new(
        settings: WireSettings,
        process: Option<TorchProcess>,
        interrupt: &Interrupt,
    ) -> Result<Self, HttpError> {
        let address = Address::parse(&settings.url)?;
        let limits = HttpSettings { max_answer_bytes: MAX_ANSWER_BYTES, ..HttpSettings::default() };
        let mut client = HttpClient::start(limits, address.is_encrypted())?;
        let bell = Bell::default();
        let line = client.line(address, settings.token.as_deref(), bell.clone())?;
        Ok(Self {
            client,
            line,
            bell,
            interrupted: interrupt.flag(),
            settings,
            next: 0,
            incarnation: None,
            seq: 0,
            has_answered: false,
            wire_time: Duration::ZERO,
            gives_entropy: true,
            num_samples: 0,
            abandoned: None,
            process,
        })
    }

    pub(super) fn lost(&self, reason: impl std::fmt::Display) -> LearnerError {
        let what = if self.incarnation.is_some() { "is lost" } else { "cannot be reached" };
        let end = self.process.as_ref().and_then(TorchProcess::find_end);
        let reason = end.unwrap_or_else(|| reason.to_string());
        let (url, reason) = (self.settings.url.clone(), format!("{what}: {reason}"));
        LearnerError::Lost {
            url,
            reason,
            is_own: self.process.is_some(),
            has_answered: self.has_answered,
            backend: self.settings.backend,
        }
    }

    fn send(&mut self, call: Call, timeout: Duration) -> u64 {
        self.next += 1;
        self.line.send(self.next, call, timeout);
        self.next
    }

    /// Sends a call until it is answered. It bears its number, so that it is carried out once however often
    /// it is sent.
    pub(super) fn exchange(
        &mut self,
        call: &Call,
        stop: Option<&AtomicBool>,
    ) -> Result<HttpAnswer, Unanswered> {
        let (began, mut alive, mut pause) = (Instant::now(), Instant::now(), FIRST_PAUSE);
        let WireSettings { timeout, lost_timeout, .. } = self.settings;
        let check_every = CHECK_EVERY.min(lost_timeout / 4).max(LOOK_EVERY);
        let mut sent = Some(self.send(call.clone(), timeout));
        let (mut resend_at, mut checked, mut check) = (began, began, None);
        // Checks in a row that found nothing running, and how many of them are one too many.
        let (mut num_idle, mut most_idle) = (0, FIRST_IDLE);
        loop {
            self.bell.wait(LOOK_EVERY);
            let mut fault = None;
            for (number, exchange) in self.line.receive() {
                match exchange {
                    Ok(answer) if Some(number) == sent => {
                        self.has_answered = true;
                        return Ok(answer);
                    }
                    Ok(answer) => {
                        alive = Instant::now();
                        let is_idle = answer.json::<Health>().is_ok_and(|health| health.phase != "busy");
                        num_idle = if is_idle { num_idle + 1 } else { 0 };
                    }
                    Err(found) if Some(number) == sent => {
                        sent = None;
                        resend_at = Instant::now() + pause;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                        fault = Some(found);
                    }
                    Err(found) if Some(number) == check => fault = Some(found),
                    Err(_) => {}
                }
                if Some(number) == check {
                    check = None;
                }
            }
            if stop.is_some_and(|stop| stop.load(Ordering::SeqCst)) {
                self.give_up(sent, check);
                return Err(Unanswered::Interrupted);
            }
            if let Some(ended) = self.process.as_ref().and_then(TorchProcess::ended) {
                self.give_up(sent, check);
                return Err(Unanswered::Lost(ended));
            }
            if num_idle >= most_idle
                && let Some(unanswered) = sent.take()
            {
                // The call or its answer went astray. It is carried out once however often it is sent.
                self.line.cancel(unanswered);
                (num_idle, most_idle) = (0, most_idle.saturating_mul(2));
            }
            let is_late = began.elapsed() >= timeout || self.interrupted.load(Ordering::SeqCst);
            if let Some(fault) = fault.filter(|_| is_late || alive.elapsed() >= lost_timeout) {
                self.give_up(sent, check);
                return Err(Unanswered::Lost(describe(&fault)));
            }
            if sent.is_none() && Instant::now() >= resend_at {
                sent = Some(self.send(call.clone(), timeout));
                num_idle = 0;
            }
            if sent.is_some() && check.is_none() && checked.elapsed() >= check_every {
                checked = Instant::now();
                check = Some(self.send(Call::get("/v1/health"), CHECK_TIMEOUT));
            }
        }
    }

    fn give_up(&mut self, sent: Option<u64>, check: Option<u64>) {
        for number in [sent, check].into_iter().flatten() {
            self.line.cancel(number);
        }
    }

    /// A call with its number. The flag `stop` ends the wait for it.
    pub(super) fn call(
        &mut self,
        path: &str,
        message: &WireMessage,
        stop: Option<&AtomicBool>,
    ) -> Pass<WireMessage> {
        if let Some(call) = self.abandoned.take() {
            // Its result no longer matters, only that it has ended.
            self.exchange(&call, None).map_err(|unanswered| self.unanswered(unanswered))?;
        }
        let began = Instant::now();
        let (content_type, body) = message.to_body();
        self.seq += 1;
        let incarnation = self.incarnation.clone().unwrap_or_default();
        let headers = vec![(INCARNATION, incarnation), (SEQUENCE, self.seq.to_string())];
        let call = Call { body, content_type, headers, ..Call::post_empty(path) };
        match self.exchange(&call, stop) {
            Ok(answer) => {
                let answer = match self.read(&answer) {
                    Err(LearnerError::Lost { .. }) if answer.status == GONE && self.is_taken() => {
                        return Err(LearnerError::Taken { url: self.settings.url.clone() }.into());
                    }
                    answer => answer?,
                };
                if let Some(computed) = answer.number(SECONDS) {
                    let computed = Duration::try_from_secs_f64(computed).unwrap_or_default();
                    self.wire_time += began.elapsed().saturating_sub(computed);
                }
                Ok(answer)
            }
            Err(unanswered) => {
                self.abandoned = Some(call);
                Err(self.unanswered(unanswered))
            }
        }
    }

    /// Whether another controller has opened the learner; one that was started again has not been opened.
    fn is_taken(&mut self) -> bool {
        #[derive(Deserialize)]
        struct Info {
            incarnation: Option<String>,
        }
        let answer = self.exchange(&Call::get("/v1/info"), None);
        answer.is_ok_and(|answer| answer.json::<Info>().is_ok_and(|info| info.incarnation.is_some()))
    }

    pub(super) fn unanswered(&self, unanswered: Unanswered) -> Halt<LearnerError> {
        match unanswered {
            Unanswered::Interrupted => Halt::Interrupted,
            Unanswered::Lost(reason) => Halt::Failed(self.lost(reason)),
        }
    }

    pub(super) fn read(&self, answer: &HttpAnswer) -> Result<WireMessage, LearnerError> {
        if answer.status == 200 {
            let message = WireMessage::read(&answer.content_type, &answer.body);
            return message.map_err(|error| self.misunderstood(&error));
        }
        let error = serde_json::from_slice(&answer.body).map(|ErrorAnswer { error }| error);
        let ErrorBody { kind, message, hint, path, operation, errno, .. } = error.unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(&answer.body);
            let text = tamis_core::printable::cut_middle(text.trim(), 300);
            ErrorBody { message: format!("status {}: {text}", answer.status), ..ErrorBody::default() }
        });
        let url = self.settings.url.clone();
        // The paths are those of this machine, so this process would get the same fault as the learner.
        if kind == "disk"
            && hint.is_none()
            && let (Some(path), Some(operation), Some(errno)) = (&path, operation, errno)
        {
            let cause = std::io::Error::from_raw_os_error(errno);
            return Err(LearnerError::Files(DiskError::new(operation, path, cause).into()));
        }
        if kind == "files" || kind == "disk" && hint.is_some() {
            return Err(LearnerError::Files(SaveError::Elsewhere { url, message, path, hint }));
        }
        let what = match kind.as_str() {
            "incarnation" => {
                return Err(self.lost("it was restarted, and no longer holds this run"));
            }
            "lost" => return Err(self.lost(message)),
            "failed" | "disk" => "failed",
            _ => "refused",
        };
        let hint = hint.or_else(|| {
            (kind == "token").then(|| {
                "set the token that it was started with in learner.api_key_file or learner.api_key_env"
                    .to_owned()
            })
        });
        Err(LearnerError::Remote { url, what, message, hint })
    }

    pub(super) fn misunderstood(&self, error: &MessageError) -> LearnerError {
        LearnerError::Remote {
            url: self.settings.url.clone(),
            what: "gave an answer that breaks the protocol",
            message: error.to_string(),
            hint: Some("take the learner from the same build as `tamis`; see also its log".to_owned()),
        }
    }

    pub(super) fn settings_of<S: DeserializeOwned>(&self, message: &WireMessage) -> Result<S, LearnerError> {
        message.settings().map_err(|error| self.misunderstood(&error))
    }
}

fn describe(fault: &Fault) -> String {
    match fault.class {
        FaultClass::Connect => format!("nothing answers there ({})", fault.detail),
        FaultClass::TimedOut => fault.detail.clone(),
        _ => format!("the connection broke ({})", fault.detail),
    }
}

/// The calls of a learner and of the generators that sample through it.
pub(super) type SharedCalls = Arc<Mutex<Calls>>;

pub(super) fn lock(calls: &SharedCalls) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}
