//! A learner in another process.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tamis_config::{LearnerBackend, PublishMode};
use tamis_core::group::PolicyVersion;
use tamis_rollout::Generator;
use tamis_rollout::clock::Bell;
use tamis_rollout::http::{Address, HttpClient, HttpError, HttpSettings, Line, Transport as _};
use tamis_rollout::wire::{Call, Fault, FaultClass, HttpAnswer};
use tamis_run::durable::DiskError;

use super::generator::WireGenerator;
use super::message::{MessageError, WireMessage};
use super::{
    BackwardRequest, CheckAnswer, CopyRequest, EmptyRequest, ErrorAnswer, ErrorBody, ForwardRequest,
    HoldRequest, INCARNATION, InfoAnswer, LoadRequest, NetworkRequest, NetworksAnswer, OpenAnswer,
    OpenRequest, PublishRequest, RANK_SECONDS, SECONDS, SEQUENCE, SaveRequest, StepAnswer, StepRequest,
};
use crate::checkpoint::{Hexadecimal, SaveError, covers};
use crate::interrupt::{Halt, Interrupt};
use crate::learner::generate::{Generate, GrownSamples};
use crate::learner::progress::UpdateProgress;
use crate::learner::rank_balance::RankBalance;
use crate::learner::texts::{TextPlaces, Texts};
use crate::learner::torch::TorchProcess;
use crate::learner::{
    CopyTo, Learner, LearnerEndpoint, LearnerError, LearnerInfo, LoadContent, Network, NotFinite,
    OptimizerReport, Pass, RunLearner, SaveContent, Saved, TokenColumns, Trained, Wave, command_of,
};
use crate::prompts::codec::Codec;

/// Interval of looks at an interrupt while an answer is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Interval of health checks while an answer is waited for.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Number of health checks in a row that find nothing running before a call whose answer does not come is
/// sent again; it doubles with every time.
const FIRST_IDLE: u32 = 2;
/// Pause between two checks for a learner that is waited for.
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

/// Waits until something answers health checks at a learner's address; whether it does within the time.
///
/// # Errors
/// An address that is none.
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
            // A refusal for want of a token is a sign of life, too; of one that ends there is none.
            if exchange.is_ok_and(|answer| answer.status < 500) {
                return Ok(true);
            }
            (is_open, ask_at) = (false, Instant::now() + CHECK_AGAIN);
        }
    }
    Ok(false)
}

/// Where a learner is, and how long it may take.
#[derive(Debug, Clone)]
pub struct WireSettings {
    /// Its address: `http://HOST:PORT` or `unix:PATH`.
    pub url: String,
    /// The token that it asks for.
    pub token: Option<String>,
    /// Longest time of one call.
    pub timeout: Duration,
    /// Longest time without a sign of life: a connection, or an answer to a health check.
    pub lost_timeout: Duration,
    /// The kind of learner that the configuration names.
    pub backend: LearnerBackend,
    /// Weights that it is to publish; `None` where it samples itself.
    pub publish: Option<PublishMode>,
}

/// Shows a learner that ends when nobody asks it for anything that its run is there, while the run does other
/// things than calling it. Ends with this value.
struct SignsOfLife {
    #[expect(dead_code, reason = "the thread ends when it is dropped")]
    end: Sender<()>,
}

impl SignsOfLife {
    /// For a learner that waits so long for a request.
    fn begin(url: &str, orphan_timeout: Duration) -> Result<Self, HttpError> {
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
    line: Line,
    bell: Bell,
    /// Ctrl-C: a learner that does not answer is not waited for any more.
    interrupted: Arc<AtomicBool>,
    settings: WireSettings,
    /// Number of the next request on the line.
    next: u64,
    incarnation: Option<String>,
    seq: u64,
    /// Whether the learner has ever answered.
    has_answered: bool,
    /// Time of calls in which the learner did not compute, since it was last taken.
    wire_time: Duration,
    /// Samples that were begun so far: each has the number of those before it.
    pub(super) num_samples: u64,
    /// A call that was not waited for to its end.
    abandoned: Option<Call>,
    /// The process at the other end, where the run started it.
    process: Option<TorchProcess>,
}

/// What `health` says, in part.
#[derive(Deserialize)]
struct Health {
    phase: String,
}

/// Why a call has no answer.
enum Unanswered {
    Interrupted,
    Lost(String),
}

impl Calls {
    fn new(
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
            num_samples: 0,
            abandoned: None,
            process,
        })
    }

    fn lost(&self, reason: impl std::fmt::Display) -> LearnerError {
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
    fn exchange(&mut self, call: &Call, stop: Option<&AtomicBool>) -> Result<HttpAnswer, Unanswered> {
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

    /// A call with its number; `stop`: a flag on which it is not waited for any more.
    pub(super) fn call(
        &mut self,
        path: &str,
        message: &WireMessage,
        stop: Option<&AtomicBool>,
    ) -> Pass<WireMessage> {
        if let Some(call) = self.abandoned.take() {
            // What became of it concerns nobody any more, only that it came to its end.
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

    fn unanswered(&self, unanswered: Unanswered) -> Halt<LearnerError> {
        match unanswered {
            Unanswered::Interrupted => Halt::Interrupted,
            Unanswered::Lost(reason) => Halt::Failed(self.lost(reason)),
        }
    }

    /// The message of an answer, or the error that it is.
    fn read(&self, answer: &HttpAnswer) -> Result<WireMessage, LearnerError> {
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
        // The paths are those of this machine: what the learner meets there is what this process would.
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
                return Err(self.lost("it was started again, and does not hold this run any more"));
            }
            "lost" => return Err(self.lost(message)),
            "failed" | "disk" => "failed",
            _ => "refused",
        };
        let hint = hint.or_else(|| {
            (kind == "token").then(|| {
                "name the token that it was started with by learner.api_key_file or learner.api_key_env"
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
            hint: Some("take the learner from the same build as `tamis`; its log may say more".to_owned()),
        }
    }

    fn settings_of<S: DeserializeOwned>(&self, message: &WireMessage) -> Result<S, LearnerError> {
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

/// The calls, for one of them.
pub(super) fn lock(calls: &SharedCalls) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a learner said when it was opened.
struct Opened {
    incarnation: String,
    adopted: bool,
    holds: Option<BTreeMap<String, Hexadecimal>>,
}

/// A learner that another process holds.
pub struct WireLearner {
    calls: SharedCalls,
    /// Without one there is no generator.
    codec: Option<Codec>,
    interrupt: Interrupt,
    info: LearnerInfo,
    progress: UpdateProgress,
    /// Network of the held pass.
    held: Option<Trained>,
    /// Where its numbers belong, where its sequences were several texts each.
    held_texts: Option<TextPlaces>,
    balance: RankBalance,
    opened: Opened,
    #[expect(dead_code, reason = "its thread ends with it")]
    signs_of_life: Option<SignsOfLife>,
}

impl WireLearner {
    /// Opens a learner: what it held before is lost. `process`: that of the learner, where it is to end with
    /// this value.
    ///
    /// # Errors
    /// An address that is none or that nothing answers on, a learner of another protocol, a refusal.
    pub fn open(
        settings: WireSettings,
        process: Option<TorchProcess>,
        request: &OpenRequest,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt<LearnerError>> {
        let (url, backend, publish) = (settings.url.clone(), settings.backend, settings.publish);
        let wrong = |message: String, hint: String| {
            let url = url.clone();
            Halt::Failed(LearnerError::Remote { url, what: "cannot be used", message, hint: Some(hint) })
        };
        let no_address = |error: HttpError| {
            wrong(error.to_string(), "set learner.url to http://HOST:PORT or unix:PATH".to_owned())
        };
        let command = command_of(backend);
        let no_learner = |error: MessageError| {
            let hint =
                format!("is it of this build of `tamis`? `{command}` starts one and prints its address");
            wrong(error.to_string(), hint)
        };
        let mut calls = Calls::new(settings, process, interrupt).map_err(no_address)?;
        let flag = interrupt.flag();
        let mut ask = |call: &Call| -> Pass<WireMessage> {
            let answer = calls.exchange(call, Some(&flag)).map_err(|error| calls.unanswered(error))?;
            Ok(calls.read(&answer)?)
        };
        let known: InfoAnswer = ask(&Call::get("/v1/info"))?.settings().map_err(no_learner)?;
        if let Some((message, hint)) = known.find_unfit(request, publish) {
            return Err(wrong(message, hint));
        }
        let (content_type, body) = WireMessage::new(request).to_body();
        let opened = ask(&Call { body, content_type, ..Call::post_empty("/v1/open") })?;
        let OpenAnswer { incarnation, dtype, networks, adopted, holds } =
            opened.settings().map_err(no_learner)?;
        let known: InfoAnswer = ask(&Call::get("/v1/info"))?.settings().map_err(no_learner)?;
        calls.incarnation = Some(incarnation.clone());
        let where_it_is = if calls.process.is_some() { String::new() } else { format!(" at {url}") };
        let device = format!("learner{where_it_is}: {} on {}", known.implementation, known.device);
        let num_ranks = known.num_ranks.max(1);
        let mut info = LearnerInfo { device, num_ranks, dtype, ..LearnerInfo::default() };
        networks.note(&mut info);
        let (calls, interrupt) = (Arc::new(Mutex::new(calls)), interrupt.clone());
        let progress = UpdateProgress::new(&interrupt);
        let orphan_timeout = request.orphan_timeout.and_then(|time| Duration::try_from_secs_f64(time).ok());
        let signs_of_life = orphan_timeout.map(|time| SignsOfLife::begin(&url, time)).transpose();
        let signs_of_life = signs_of_life.map_err(no_address)?;
        let opened = Opened { incarnation, adopted, holds };
        let balance = RankBalance::default();
        let (codec, held, held_texts) = (None, None, None);
        Ok(Self { calls, codec, interrupt, info, progress, held, held_texts, balance, opened, signs_of_life })
    }

    /// The name of the state in its memory, by which a later process of the run may [adopt](OpenRequest::adopt) it.
    pub fn incarnation(&self) -> &str {
        &self.opened.incarnation
    }

    /// Whether it kept what an earlier process of the run had it load.
    pub fn is_adopted(&self) -> bool {
        self.opened.adopted
    }

    /// Whether it held this checkpoint when it was opened, to the bit.
    pub fn holds(&self, checkpoint: &Path) -> bool {
        self.opened.holds.as_ref().is_some_and(|files| covers(checkpoint, files))
    }

    /// With generators that sample through it, which needs the tokenizer.
    #[must_use]
    pub fn with_generators(self, codec: &Codec) -> Self {
        Self { codec: Some(codec.clone()), ..self }
    }

    /// A call that an interrupt does not give up.
    fn call(&mut self, path: &str, message: &WireMessage) -> Result<WireMessage, LearnerError> {
        let called = lock(&self.calls).call(path, message, None);
        match called {
            Ok(answer) => Ok(answer),
            Err(Halt::Failed(error)) => Err(error),
            Err(Halt::Interrupted) => Err(lock(&self.calls).lost("the call was given up")),
        }
    }

    fn ask(&mut self, path: &str, request: &impl Serialize) -> Result<WireMessage, LearnerError> {
        self.call(path, &WireMessage::new(request))
    }

    /// A pass, which an interrupt gives up where the step may be.
    fn pass(&mut self, path: &str, message: &WireMessage) -> Pass<WireMessage> {
        if self.progress.gives_up() {
            return Err(Halt::Interrupted);
        }
        let stop: Option<Arc<AtomicBool>> = self.progress.stop_flag();
        lock(&self.calls).call(path, message, stop.as_deref())
    }

    fn columns(
        &mut self,
        path: &str,
        network: Network,
        message: &WireMessage,
        num_tokens: usize,
    ) -> Pass<TokenColumns> {
        let mut answer = self.pass(path, message)?;
        self.note_pass(&answer);
        let columns =
            answer.take_token_columns(num_tokens).map_err(|error| lock(&self.calls).misunderstood(&error))?;
        let is_whole = match network {
            Network::Critic => columns.values.len() == num_tokens,
            _ => columns.logprobs.len() == num_tokens && columns.entropies.len() == num_tokens,
        };
        if is_whole {
            return Ok(columns);
        }
        let error = MessageError("a column of the tokens is missing".to_owned());
        Err(Halt::Failed(lock(&self.calls).misunderstood(&error)))
    }

    /// Counts a pass whose answer says how long each rank computed.
    fn note_pass(&mut self, answer: &WireMessage) {
        if let Some(seconds) = answer.numbers(RANK_SECONDS) {
            self.balance.add_pass(&seconds);
        }
    }

    fn note_networks(&mut self, answer: &WireMessage) -> Result<(), LearnerError> {
        lock(&self.calls).settings_of::<NetworksAnswer>(answer)?.note(&mut self.info);
        Ok(())
    }

    fn norm(&self, answer: &mut WireMessage) -> Result<f64, LearnerError> {
        answer.take_f64("grad_norm").map_err(|error| lock(&self.calls).misunderstood(&error))
    }
}

impl Learner for WireLearner {
    fn info(&self) -> &LearnerInfo {
        &self.info
    }

    fn forward(&mut self, network: Network, wave: &Wave<'_>, sharpness: f64) -> Pass<TokenColumns> {
        if let Some(texts) = Texts::of(wave) {
            return Ok(texts.places.spread(&self.forward(network, &texts.wave, sharpness)?));
        }
        let message = WireMessage::new(&ForwardRequest { network, sharpness, images: None }).with_wave(wave);
        self.columns("/v1/forward", network, &message, wave.num_tokens())
    }

    fn forward_hold(&mut self, network: Trained, wave: &Wave<'_>) -> Pass<TokenColumns> {
        self.held_texts = None;
        if let Some(texts) = Texts::of(wave) {
            let columns = self.forward_hold(network, &texts.wave)?;
            self.held_texts = Some(texts.places.clone());
            return Ok(texts.places.spread(&columns));
        }
        let message = WireMessage::new(&HoldRequest { network, images: None }).with_wave(wave);
        self.held = None;
        self.balance.add_wave(wave, self.info.num_ranks);
        let columns = self.columns("/v1/forward_hold", network.into(), &message, wave.num_tokens())?;
        self.held = Some(network);
        Ok(columns)
    }

    fn backward(&mut self, derivatives: TokenColumns) -> Pass<()> {
        let network = self.held.take().ok_or(LearnerError::NothingHeld)?;
        let texts = self.held_texts.take();
        let derivatives = match texts {
            Some(texts) => texts.gather(&derivatives),
            None => derivatives,
        };
        let message = WireMessage::new(&BackwardRequest { discard: false });
        let message = message.with_derivatives(network.into(), derivatives);
        let answer = self.pass("/v1/backward", &message)?;
        self.note_pass(&answer);
        Ok(())
    }

    fn discard(&mut self) -> Result<(), LearnerError> {
        self.held = None;
        self.ask("/v1/backward", &BackwardRequest { discard: true }).map(|_| ())
    }

    fn optim_step(&mut self, network: Trained, learning_rate: f64) -> Result<OptimizerReport, LearnerError> {
        let mut answer = self.ask("/v1/optim_step", &StepRequest { network, learning_rate })?;
        let grad_norm = self.norm(&mut answer)?;
        let StepAnswer { skipped, num_steps } = lock(&self.calls).settings_of(&answer)?;
        if network == Trained::Policy {
            self.info.num_steps = num_steps;
        }
        if !skipped {
            self.progress.note_moved();
        }
        Ok(OptimizerReport { grad_norm, skipped })
    }

    fn grad_norm(&mut self, network: Trained) -> Result<f64, LearnerError> {
        let mut answer = self.ask("/v1/grad_norm", &NetworkRequest { network })?;
        self.norm(&mut answer)
    }
}

impl RunLearner for WireLearner {
    fn endpoint(&self) -> Option<LearnerEndpoint> {
        let calls = lock(&self.calls);
        let WireSettings { url, token, .. } = &calls.settings;
        let incarnation = self.opened.incarnation.clone();
        Some(LearnerEndpoint { url: url.clone(), token: token.clone(), incarnation })
    }

    fn take_wire_time(&mut self) -> Option<Duration> {
        Some(std::mem::take(&mut lock(&self.calls).wire_time))
    }

    fn take_rank_balance(&mut self) -> Option<RankBalance> {
        let balance = std::mem::take(&mut self.balance);
        (self.info.num_ranks > 1).then_some(balance)
    }

    fn progress(&mut self) -> &mut UpdateProgress {
        &mut self.progress
    }

    fn keep(&mut self) -> Result<(), LearnerError> {
        self.ask("/v1/keep", &EmptyRequest {})?;
        self.progress.note_kept(true);
        Ok(())
    }

    fn restore(&mut self) -> Result<(), LearnerError> {
        if !self.progress.can_restore() {
            return Ok(());
        }
        let answer = self.ask("/v1/restore", &EmptyRequest {})?;
        self.note_networks(&answer)?;
        self.progress.note_restored();
        Ok(())
    }

    fn copy_policy(&mut self, to: CopyTo) -> Result<(), LearnerError> {
        let answer = self.ask("/v1/copy", &CopyRequest { to })?;
        self.note_networks(&answer)
    }

    fn reset_optimizer(&mut self, network: Trained) -> Result<(), LearnerError> {
        self.ask("/v1/reset_optimizer", &NetworkRequest { network })?;
        if network == Trained::Policy {
            self.info.num_steps = 0;
        }
        Ok(())
    }

    fn find_not_finite(&mut self) -> Result<Option<NotFinite>, LearnerError> {
        let answer = self.ask("/v1/check", &EmptyRequest {})?;
        Ok(lock(&self.calls).settings_of::<CheckAnswer>(&answer)?.not_finite)
    }

    fn publish(&mut self, version: PolicyVersion) -> Result<(), LearnerError> {
        self.ask("/v1/publish", &PublishRequest { version: version.0 })?;
        self.progress.note_kept(false);
        Ok(())
    }

    fn save(&mut self, folder: &Path, content: SaveContent) -> Result<Saved, LearnerError> {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let url = lock(&self.calls).settings.url.clone();
        let is_elsewhere = |what, message| LearnerError::Remote {
            url,
            what,
            message,
            hint: Some(
                "run directory and learner must see the same file system under the same path".to_owned(),
            ),
        };
        let answer = match self.ask("/v1/save", &SaveRequest::new(&folder, content)) {
            // The folder is here.
            Err(LearnerError::Files(SaveError::Disk(error)))
                if error.cause.kind() == std::io::ErrorKind::NotFound =>
            {
                return Err(is_elsewhere("does not find what is here", folder.display().to_string()));
            }
            answer => answer?,
        };
        let saved: Saved = lock(&self.calls).settings_of(&answer)?;
        let is_here =
            |name: &str, bytes: u64| folder.join(name).metadata().is_ok_and(|found| found.len() == bytes);
        match saved.files.iter().find(|file| !is_here(&file.name, file.bytes)) {
            None => Ok(saved),
            Some(file) => {
                let message = format!("{} is not here", folder.join(&file.name).display());
                Err(is_elsewhere("wrote where nobody finds it", message))
            }
        }
    }

    fn load(&mut self, folder: &Path, content: LoadContent) -> Result<(), LearnerError> {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let answer = self.ask("/v1/load", &LoadRequest { folder, content })?;
        self.note_networks(&answer)
    }

    fn generate(&mut self, asked: Generate) -> Pass<GrownSamples> {
        let flag = self.interrupt.flag();
        super::generator::generate(&mut lock(&self.calls), &asked, Some(&flag))
    }

    fn generator(&self, version: PolicyVersion) -> Option<Box<dyn Generator>> {
        let codec = self.codec.as_ref()?;
        Some(Box::new(WireGenerator::new(Arc::clone(&self.calls), codec, version, &self.interrupt)))
    }
}
