//! Answers the calls of the wire with a learner of this process.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::json;
use tamis_core::fault::chain;
use tamis_core::group::PolicyVersion;
use tamis_rollout::call_server::{self, Answer, AnswerAtOnce, Question};
use tamis_rollout::wire::HttpMethod;
use tamis_run::durable::{DiskError, DiskOperation};

use super::message::{MessageError, SAFETENSORS, WireColumn, WireMessage};
use super::{
    BackwardRequest, Capabilities, CheckAnswer, CopyRequest, EmptyRequest, ErrorAnswer, ErrorBody,
    ForwardRequest, HoldRequest, INCARNATION, InfoAnswer, LoadRequest, NetworkRequest, NetworksAnswer,
    OpenAnswer, OpenRequest, PROTOCOL, PublishRequest, SECONDS, SEQUENCE, SaveRequest, StepAnswer,
    StepRequest, check_absolute, one,
};
use crate::checkpoint::SaveError;
use crate::interrupt::Halt;
use crate::learner::{
    CopyTo, LearnerError, LearnerInfo, LearnerSequence, LoadContent, Network, RunLearner, Trained, Wave,
};

/// Most bytes of a request.
pub const MAX_BODY_BYTES: usize = 1 << 30;

/// Most bytes of JSON in a request: of a body without columns, or of the header of one with columns.
pub const MAX_JSON_BYTES: usize = 4 << 20;

/// Loads a learner as a request asks for it.
pub type Opener<'a> = Box<dyn FnMut(&OpenRequest) -> Result<Box<dyn RunLearner>, LearnerError> + 'a>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    status: u16,
    error: Box<ErrorBody>,
    is_no_critic: bool,
}

impl Refusal {
    fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        let error = ErrorBody { kind: kind.to_owned(), message: message.into(), ..ErrorBody::default() };
        Self { status, error: Box::new(error), is_no_critic: false }
    }

    fn answer(self) -> Answer {
        answer(self.status, &WireMessage::new(&ErrorAnswer { error: *self.error }))
    }
}

impl From<MessageError> for Refusal {
    fn from(MessageError(message): MessageError) -> Self {
        Self::new(400, "request", message)
    }
}

impl From<LearnerError> for Refusal {
    fn from(error: LearnerError) -> Self {
        let (message, hint) = (error.to_string(), error.hint());
        match error {
            LearnerError::LogitsNotFinite => {
                let mut refusal = Self::new(422, "refused", message);
                refusal.error.hint = hint;
                refusal
            }
            LearnerError::NothingHeld | LearnerError::NoReference => Self::new(409, "state", message),
            LearnerError::NoTeacher { .. } => Self::new(400, "request", message),
            LearnerError::Misused { reason } => Self::new(400, "request", reason),
            LearnerError::NoCritic => Self { is_no_critic: true, ..Self::new(409, "state", message) },
            LearnerError::Files(error) => error.into(),
            LearnerError::Engine { reason } => Self::new(422, "refused", reason),
            LearnerError::NoAdapter | LearnerError::NoGeneration | LearnerError::NoGpu => {
                Self::new(422, "refused", message)
            }
            _ => Self::new(500, "failed", message),
        }
    }
}

impl From<SaveError> for Refusal {
    fn from(error: SaveError) -> Self {
        let (message, hint) = (chain(&error), error.hint());
        let SaveError::Disk(DiskError { operation, path, cause, .. }) = error else {
            let mut refusal = Self::new(422, "files", message);
            refusal.error.hint = hint;
            return refusal;
        };
        let mut refusal = Self::new(500, "disk", message);
        refusal.error.hint = hint;
        refusal.error.operation = Some(operation);
        refusal.error.path = Some(path);
        refusal.error.errno = cause.raw_os_error();
        refusal
    }
}

impl From<Halt<LearnerError>> for Refusal {
    fn from(halt: Halt<LearnerError>) -> Self {
        match halt {
            Halt::Interrupted => Self::new(500, "failed", "the learner is ending"),
            Halt::Failed(error) => error.into(),
        }
    }
}

fn answer(status: u16, message: &WireMessage) -> Answer {
    let (content_type, body) = message.to_body();
    Answer { status, content_type, body: body.into() }
}

/// State of the learner for calls that are answered at once.
struct Shown {
    info: InfoAnswer,
    is_busy: bool,
    is_held: bool,
    /// When the last call came.
    asked: Instant,
}

struct LastCall {
    number: u64,
    path: String,
    /// CRC-32 of its body.
    body: u32,
    answer: Answer,
}

/// Calls that bear a number.
const NUMBERED: [&str; 14] = [
    "/v1/forward",
    "/v1/forward_hold",
    "/v1/backward",
    "/v1/optim_step",
    "/v1/grad_norm",
    "/v1/keep",
    "/v1/restore",
    "/v1/copy",
    "/v1/reset_optimizer",
    "/v1/check",
    "/v1/publish",
    "/v1/save",
    "/v1/load",
    "/v1/generate",
];

/// A learner behind the wire: one call after the other.
pub struct LearnerService<'a> {
    open: Opener<'a>,
    learner: Option<Box<dyn RunLearner>>,
    incarnation: Option<String>,
    last: Option<LastCall>,
    /// Network and number of tokens of the held pass.
    /// The network of a held pass, with its number of tokens and of candidates of each.
    held: Option<(Trained, (usize, usize))>,
    has_critic: bool,
    orphan_timeout: Option<f64>,
    shown: Arc<Mutex<Shown>>,
    random: RandomState,
}

impl<'a> LearnerService<'a> {
    /// Without a learner, until one is opened. `implementation` and `device` are for people.
    pub fn new(implementation: &str, device: &str, dtypes: &[&str], open: Opener<'a>) -> Self {
        let info = InfoAnswer {
            protocol: PROTOCOL.to_owned(),
            implementation: implementation.to_owned(),
            incarnation: None,
            seq: 0,
            num_ranks: 1,
            device: device.to_owned(),
            capabilities: Capabilities {
                critic: true,
                lora: false,
                publish: vec!["folder".to_owned()],
                generate: true,
                dtypes: dtypes.iter().map(|&dtype| dtype.to_owned()).collect(),
                max_body_bytes: MAX_BODY_BYTES as u64,
                entropy: true,
                weights: true,
                candidates: true,
            },
        };
        Self {
            open,
            learner: None,
            incarnation: None,
            last: None,
            held: None,
            has_critic: false,
            orphan_timeout: None,
            shown: Arc::new(Mutex::new(Shown {
                info,
                is_busy: false,
                is_held: false,
                asked: Instant::now(),
            })),
            random: RandomState::new(),
        }
    }

    /// Answers calls that need no learner, at any time: `GET` calls, and refused calls. `token`: the
    /// one that callers must send.
    pub fn answer_at_once(&self, token: Option<String>) -> Arc<AnswerAtOnce> {
        let shown = Arc::clone(&self.shown);
        Arc::new(move |question: &Question| {
            shown.lock().unwrap_or_else(PoisonError::into_inner).asked = Instant::now();
            if question.has_header("origin") {
                return Some(Refusal::new(403, "request", "a web page may not ask this").answer());
            }
            if let Some(stranger) = question.stranger.as_ref().filter(|_| token.is_none()) {
                return Some(Refusal::new(403, "request", stranger.as_str()).answer());
            }
            let is_health = question.method == HttpMethod::Get && question.path == "/v1/health";
            if let Some(token) = token.as_deref().filter(|_| !is_health) {
                let shown = question.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
                if !shown.is_some_and(|shown| call_server::is_same(shown.as_bytes(), token.as_bytes())) {
                    return Some(Refusal::new(401, "token", "a bearer token is missing, or wrong").answer());
                }
            }
            if question.method == HttpMethod::Post {
                return None;
            }
            let shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
            let phase = match (shown.is_busy, shown.is_held) {
                (true, _) => "busy",
                (false, true) => "held",
                (false, false) => "idle",
            };
            Some(match question.path.as_str() {
                "/v1/health" => {
                    answer(200, &WireMessage::new(&json!({"phase": phase, "seq": shown.info.seq})))
                }
                "/v1/info" => answer(200, &WireMessage::new(&shown.info)),
                path => unknown_path(path).answer(),
            })
        })
    }

    /// Whether the time without calls has exceeded the limit set at opening.
    pub fn is_orphan(&self) -> bool {
        let asked = self.shown.lock().unwrap_or_else(PoisonError::into_inner).asked;
        self.orphan_timeout.is_some_and(|most| asked.elapsed().as_secs_f64() >= most)
    }

    /// Answers a call.
    pub fn answer(&mut self, question: &Question) -> Answer {
        self.show(|shown| shown.is_busy = true);
        let answered = self.answer_post(question);
        let (incarnation, is_held) = (self.incarnation.clone(), self.held.is_some());
        let seq = self.last.as_ref().map_or(0, |last| last.number);
        self.show(|shown| {
            (shown.info.incarnation, shown.info.seq) = (incarnation, seq);
            (shown.is_busy, shown.is_held) = (false, is_held);
            shown.asked = Instant::now();
        });
        answered
    }

    fn show(&self, change: impl FnOnce(&mut Shown)) {
        change(&mut self.shown.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn answer_post(&mut self, question: &Question) -> Answer {
        let message = read(question);
        if question.path == "/v1/open" {
            if [INCARNATION, SEQUENCE].iter().any(|name| question.header(name).is_some()) {
                let message = "`open` carries no Tamis-Incarnation and no Tamis-Seq";
                return Refusal::new(400, "request", message).answer();
            }
            let opened = message.and_then(|message| self.open(&message));
            return opened.map_or_else(Refusal::answer, |opened| answer(200, &opened));
        }
        if !NUMBERED.contains(&question.path.as_str()) {
            return unknown_path(&question.path).answer();
        }
        let body = crc32fast::hash(&question.body);
        let number = match self.check_number(question, body) {
            Ok(number) => number,
            Err(refusal) => return refusal.answer(),
        };
        if let Some(last) = self.last.as_ref().filter(|last| last.number == number) {
            return last.answer.clone();
        }
        let began = Instant::now();
        let called = message.and_then(|message| self.call(&question.path, message));
        let called = called.map(|answer| answer.with_number(SECONDS, began.elapsed().as_secs_f64()));
        // Without a critic in `open` there cannot be one; otherwise there is none yet.
        let called = called.map_err(|refusal| match refusal {
            Refusal { is_no_critic: true, .. } if !self.has_critic => {
                Refusal::new(422, "refused", refusal.error.message)
            }
            refusal => refusal,
        });
        let answered = called.map_or_else(Refusal::answer, |message| answer(200, &message));
        let path = question.path.clone();
        self.last = Some(LastCall { number, path, body, answer: answered.clone() });
        answered
    }

    /// The number of a call on the state in memory, which must be the last one's or the next.
    fn check_number(&self, question: &Question, body: u32) -> Result<u64, Refusal> {
        let meant = question.header(INCARNATION);
        let Some(incarnation) = self.incarnation.as_deref().filter(|_| meant == self.incarnation.as_deref())
        else {
            let message = match (meant, &self.incarnation) {
                (None, _) => {
                    return Err(Refusal::new(400, "request", "there is no header Tamis-Incarnation"));
                }
                (Some(meant), None) => format!("nothing is open, and the call is meant for {meant}"),
                (Some(meant), Some(open)) => format!("{open} is open, and the call is meant for {meant}"),
            };
            return Err(Refusal::new(410, "incarnation", message));
        };
        let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let number = question.header(SEQUENCE).filter(is_number).and_then(|text| text.parse::<u64>().ok());
        let number =
            number.ok_or_else(|| Refusal::new(400, "request", "there is no number in a header Tamis-Seq"))?;
        let last = self.last.as_ref();
        let next = last.map_or(0, |last| last.number) + 1;
        let is_again =
            |last: &LastCall| (last.number, &last.path, last.body) == (number, &question.path, body);
        if number == next || last.is_some_and(is_again) {
            return Ok(number);
        }
        let message = if last.is_some_and(|last| last.number == number) {
            format!("call {number} of {incarnation} came again as another one")
        } else {
            format!("call {number} of {incarnation} came, but {next} was expected")
        };
        let mut refusal = Refusal::new(409, "sequence", message);
        refusal.error.expected = Some(next);
        Err(refusal)
    }

    fn open(&mut self, message: &WireMessage) -> Result<WireMessage, Refusal> {
        // The state that was open before is dropped, even if this call fails; its memory is free for
        // the next.
        (self.learner, self.incarnation, self.last, self.held) = (None, None, None, None);
        let request: OpenRequest = message.settings()?;
        message.refuse_columns()?;
        request.check()?;
        let mut learner = (self.open)(&request)?;
        self.has_critic = request.critic.is_some();
        let mut hasher = self.random.build_hasher();
        hasher.write_u128(std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos()));
        let incarnation = format!("{:016x}", hasher.finish());
        let networks = NetworksAnswer::of(learner.info());
        let dtype = learner.info().dtype.clone();
        let (num_ranks, device) = (learner.info().num_ranks, learner.info().device.clone());
        self.show(|shown| (shown.info.num_ranks, shown.info.device) = (num_ranks, device));
        self.orphan_timeout = request.orphan_timeout;
        let work = learner.training_work();
        self.learner = Some(learner);
        self.incarnation = Some(incarnation.clone());
        Ok(WireMessage::new(&OpenAnswer { incarnation, dtype, networks, adopted: false, holds: None, work }))
    }

    fn call(&mut self, path: &str, mut message: WireMessage) -> Result<WireMessage, Refusal> {
        let gone = || Refusal::new(410, "incarnation", "nothing is open");
        let learner = self.learner.as_mut().ok_or_else(gone)?;
        // Others take the columns that they need, and refuse the rest.
        if !["/v1/forward", "/v1/forward_hold", "/v1/backward", "/v1/generate"].contains(&path) {
            message.refuse_columns()?;
        }
        let empty = |()| WireMessage::new(&EmptyRequest {});
        Ok(match path {
            "/v1/forward" => {
                let ForwardRequest { network, sharpness, top, images } = message.settings()?;
                refuse_images(images.as_deref())?;
                if !(sharpness > 0.0 && sharpness.is_finite()) {
                    let message = format!("sharpness is {sharpness}, and must be above 0");
                    return Err(Refusal::new(400, "request", message));
                }
                if network == Network::Critic && sharpness.to_bits() != one().to_bits() {
                    return Err(Refusal::new(400, "request", "values have no sharpness"));
                }
                let wave = message.take_wave()?;
                check_tokens(&wave.wave(), learner.info())?;
                if let Some(number) = top {
                    if number == 0 || network == Network::Critic || sharpness.to_bits() != one().to_bits() {
                        let message = "`top` is at least 1, of a network with probabilities and sharpness 1";
                        return Err(Refusal::new(400, "request", message));
                    }
                    let top = learner.forward_top(network, &wave.wave(), number)?;
                    return Ok(WireMessage::new(&EmptyRequest {}).with_top(top));
                }
                let columns = learner.forward(network, &wave.wave(), sharpness)?;
                WireMessage::new(&EmptyRequest {}).with_tokens(network, columns)
            }
            "/v1/forward_hold" => {
                let HoldRequest { network, images } = message.settings()?;
                refuse_images(images.as_deref())?;
                let wave = message.take_wave()?;
                check_tokens(&wave.wave(), learner.info())?;
                self.held = None;
                let columns = learner.forward_hold(network, &wave.wave())?;
                self.held = Some((network, (wave.wave().num_tokens(), wave.wave().num_candidates())));
                WireMessage::new(&EmptyRequest {}).with_tokens(network.into(), columns)
            }
            "/v1/backward" => {
                let BackwardRequest { discard } = message.settings()?;
                if discard {
                    message.refuse_columns()?;
                    self.held = None;
                    return Ok(empty(learner.discard()?));
                }
                let (network, sizes) = self.held.ok_or(LearnerError::NothingHeld)?;
                let derivatives = message.take_derivatives(network.into(), sizes)?;
                self.held = None;
                empty(learner.backward(derivatives)?)
            }
            "/v1/optim_step" => {
                let StepRequest { network, learning_rate } = message.settings()?;
                if !(learning_rate >= 0.0 && learning_rate.is_finite()) {
                    let message = format!("learning_rate is {learning_rate}, and must not be below 0");
                    return Err(Refusal::new(400, "request", message));
                }
                if self.held.is_some_and(|(held, _)| held == network) {
                    return Err(Refusal::new(409, "state", "a pass of this network is held"));
                }
                let report = learner.optim_step(network, learning_rate)?;
                let answer = StepAnswer { skipped: report.skipped, num_steps: learner.info().num_steps };
                WireMessage::new(&answer).with("grad_norm", WireColumn::F64(vec![report.grad_norm]))
            }
            "/v1/grad_norm" => {
                let NetworkRequest { network } = message.settings()?;
                let norm = learner.grad_norm(network)?;
                WireMessage::new(&EmptyRequest {}).with("grad_norm", WireColumn::F64(vec![norm]))
            }
            "/v1/keep" => {
                let EmptyRequest {} = message.settings()?;
                empty(learner.keep()?)
            }
            "/v1/restore" => {
                let EmptyRequest {} = message.settings()?;
                // If nothing was kept, nothing is restored, and a held graph stays.
                if learner.progress().can_restore() {
                    self.held = None;
                }
                learner.restore()?;
                WireMessage::new(&NetworksAnswer::of(learner.info()))
            }
            "/v1/copy" => {
                let CopyRequest { to } = message.settings()?;
                learner.copy_policy(to)?;
                if to == CopyTo::Critic {
                    self.held.take_if(|(network, _)| *network == Trained::Critic);
                }
                WireMessage::new(&NetworksAnswer::of(learner.info()))
            }
            "/v1/reset_optimizer" => {
                let NetworkRequest { network } = message.settings()?;
                empty(learner.reset_optimizer(network)?)
            }
            "/v1/check" => {
                let EmptyRequest {} = message.settings()?;
                WireMessage::new(&CheckAnswer { not_finite: learner.find_not_finite()? })
            }
            "/v1/publish" => {
                let PublishRequest { version } = message.settings()?;
                empty(learner.publish(PolicyVersion(version))?)
            }
            "/v1/save" => {
                let request: SaveRequest = message.settings()?;
                check_absolute(&request.folder)?;
                check_empty(&request.folder)?;
                WireMessage::new(&learner.save(&request.folder, request.content())?)
            }
            "/v1/load" => {
                let LoadRequest { folder, content } = message.settings()?;
                check_absolute(&folder)?;
                learner.load(&folder, content)?;
                if content == LoadContent::Checkpoint {
                    self.held = None;
                }
                WireMessage::new(&NetworksAnswer::of(learner.info()))
            }
            "/v1/generate" => {
                let asked = message.take_generate()?;
                let known = learner.info().policy.vocab_size;
                check_vocabulary(asked.begin.iter().flat_map(|group| group.prompt.iter().copied()), known)?;
                WireMessage::of_generated(learner.generate(asked)?)
            }
            path => return Err(unknown_path(path)),
        })
    }
}

fn check_tokens(wave: &Wave<'_>, info: &LearnerInfo) -> Result<(), Refusal> {
    if let Some(rank) = wave.ranks.iter().find(|&&rank| rank as usize >= info.num_ranks) {
        let message = format!("rank {rank} is none of the {} of this learner", info.num_ranks);
        return Err(Refusal::new(400, "request", message));
    }
    let tokens =
        |sequence: &LearnerSequence<'_>| [sequence.prompt, sequence.completion, sequence.candidates].concat();
    check_vocabulary(wave.sequences.iter().flat_map(tokens), info.policy.vocab_size)
}

fn check_vocabulary(mut tokens: impl Iterator<Item = u32>, known: usize) -> Result<(), Refusal> {
    match tokens.find(|&token| token as usize >= known) {
        None => Ok(()),
        Some(token) => {
            let message = format!("token {token} is none of the {known} of the vocabulary");
            Err(Refusal::new(400, "request", message))
        }
    }
}

fn refuse_images(images: Option<&[Vec<String>]>) -> Result<(), Refusal> {
    if images.is_some_and(|images| images.iter().any(|of_prompt| !of_prompt.is_empty())) {
        let message = "the native engine does not support images: use a learner in PyTorch";
        return Err(Refusal::new(422, "refused", message));
    }
    Ok(())
}

fn check_empty(folder: &Path) -> Result<(), Refusal> {
    let read = |cause| SaveError::Disk(DiskError::new(DiskOperation::Open, folder, cause));
    if folder.read_dir().map_err(read)?.next().is_some() {
        let message = format!("the folder {} is not empty", folder.display());
        return Err(Refusal::new(400, "request", message));
    }
    Ok(())
}

fn unknown_path(path: &str) -> Refusal {
    Refusal::new(404, "path", format!("there is no call {path} in {PROTOCOL}"))
}

/// The message of a call. Parsed JSON takes many times its bytes, so its length is checked first.
fn read(question: &Question) -> Result<WireMessage, Refusal> {
    let has_columns = question.content_type.split(';').next().unwrap_or_default().trim() == SAFETENSORS;
    let header = question.body.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    let length = if has_columns { header } else { question.body.len() as u64 };
    if length > MAX_JSON_BYTES as u64 {
        let what = if has_columns { "the header" } else { "the body" };
        let message = format!("{what} has {length} bytes of JSON, and at most {MAX_JSON_BYTES} are taken");
        return Err(Refusal::new(413, "request", message));
    }
    Ok(WireMessage::read(&question.content_type, &question.body)?)
}

#[cfg(test)]
mod tests;
