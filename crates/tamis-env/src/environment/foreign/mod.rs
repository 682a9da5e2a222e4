//! External environments, behind the protocol `tamis-environment/1`: in worker processes that speak it in
//! JSON lines, or behind an HTTP server. The Python package (`tamis.environments`) documents the protocol and
//! hosts environments of Gymnasium, of verifiers and of a user's own class. Any other program that speaks the
//! protocol is used in the same way.

pub mod process;
pub mod settings;

use std::borrow::Cow;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tamis_core::random::Key;
use tamis_data::prompt::{Message, Prompt};

use super::names::{is_number_name, named_after, unnamed_warning};
use super::{Environment, EnvironmentFault, EpisodeEnd, TurnOutcome};
use crate::reward::Listener;

/// Name of the protocol in `hello`.
pub const PROTOCOL: &str = "tamis-environment/1";

/// The column with a prompt's level as JSON text.
pub const LEVEL: &str = "level";

/// Time limit for each level that is made, beyond that of one answer.
const TIME_OF_LEVEL: Duration = Duration::from_millis(100);

/// The keys of a request or an answer.
pub type Body = Map<String, Value>;

/// A connection to external environments.
pub trait EnvironmentLine: Send + Sync {
    /// Sends a request and waits for the answer, at most for the time limit. Calls with the same `place`
    /// reach the same process.
    ///
    /// # Errors
    /// No answer in time, an answer that is an error, or a lost connection.
    fn ask(
        &self,
        place: u64,
        op: &'static str,
        body: Body,
        limit: Duration,
    ) -> Result<Body, EnvironmentFault>;

    /// Sends a request without waiting for the answer.
    fn tell(&self, place: u64, op: &'static str, body: Body);

    /// Notes that an episode has ended or a tool call was answered, so the environment works.
    fn note_ended(&self);
}

/// A fault other than a time-out.
pub(crate) fn broke(message: impl Into<String>) -> EnvironmentFault {
    EnvironmentFault::Broke(message.into())
}

/// The keys of an object literal.
pub fn body(value: Value) -> Body {
    match value {
        Value::Object(body) => body,
        _ => Body::new(),
    }
}

/// Reads an answer, or the error in it.
pub fn read_answer(mut answer: Body) -> Result<Body, EnvironmentFault> {
    let Some(error) = answer.remove("error") else { return Ok(answer) };
    let message = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
    Err(broke(match error["hint"].as_str() {
        Some(hint) => format!("its environment reports: {message} (hint: {hint})"),
        None => format!("its environment reports: {message}"),
    }))
}

/// An environment's description of itself, before any episode.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Introduction {
    /// Its own name.
    pub name: String,
    /// Most answers of an episode by its own rules.
    #[serde(default)]
    pub max_turns: Option<usize>,
    /// JSON schemas of its tools, for the chat template.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// The system message of prompts that have none.
    #[serde(default)]
    pub system: Option<String>,
    /// Whether the same level, luck and answers always give the same episode.
    #[serde(default)]
    pub is_deterministic: bool,
    /// Whether it gives a reward for an episode that is cut short.
    #[serde(default)]
    pub scores_cut: bool,
}

impl Introduction {
    /// Its name in metrics: the given one, otherwise one from its own name.
    pub fn metric_name(&self, given: Option<&str>) -> String {
        given.map_or_else(|| named_after(&self.name), str::to_owned)
    }
}

/// A level: its state, and its first message.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Level {
    /// Only for the environment.
    pub level: Value,
    /// A text, or messages.
    pub prompt: Value,
    /// The answer, if there is one.
    #[serde(default)]
    pub ground_truth: Option<String>,
}

impl Level {
    /// Its messages, with the common system message unless it has its own.
    pub fn messages(&self, system: Option<&str>) -> Result<Vec<Message>, EnvironmentFault> {
        let mut messages = match &self.prompt {
            Value::String(text) => vec![Message::new("user", text.clone())],
            other => read_messages(other)?,
        };
        let first = system.filter(|_| !messages.first().is_some_and(Message::is_system));
        if let Some(system) = first {
            messages.insert(0, Message::new("system", system));
        }
        Ok(messages)
    }
}

fn read_messages(value: &Value) -> Result<Vec<Message>, EnvironmentFault> {
    let refused =
        || broke(format!("the observation of its environment is not a list of messages: {}", shorten(value)));
    let read = |message: &Value| Message::read(message, false).ok();
    value.as_array().and_then(|messages| messages.iter().map(read).collect()).ok_or_else(refused)
}

fn shorten(value: &Value) -> String {
    tamis_core::printable::cut_middle(&value.to_string(), 200)
}

fn read<T: for<'de> Deserialize<'de>>(op: &str, answer: Body) -> Result<T, EnvironmentFault> {
    let shown = shorten(&Value::Object(answer.clone()));
    serde_json::from_value(Value::Object(answer)).map_err(|error| {
        broke(format!("its environment gave an invalid answer to `{op}` ({error}): {shown}"))
    })
}

/// Reads an answer to `hello`.
pub fn read_introduction(mut answer: Body) -> Result<Introduction, EnvironmentFault> {
    match answer.remove("protocol") {
        None => {}
        Some(protocol) if protocol == PROTOCOL => {}
        Some(other) => return Err(broke(format!("its environment speaks {other}, and tamis {PROTOCOL}"))),
    }
    read("hello", answer)
}

/// External environments.
pub struct Foreign {
    line: Arc<dyn EnvironmentLine>,
    introduction: Introduction,
    /// Longest time of an answer.
    limit: Duration,
    max_turns: usize,
    /// Number of the next episode, and the prefix before it, because several runs may use one server.
    next: AtomicU64,
    name: String,
    unnamed: Arc<Unnamed>,
}

/// Numbers whose names are invalid for metrics. The first causes a warning.
struct Unnamed {
    environment: String,
    listener: Arc<dyn Listener>,
    is_said: AtomicBool,
}

impl Unnamed {
    fn note(&self, name: &str) {
        if !self.is_said.swap(true, Ordering::SeqCst) {
            let whose = format!("the environment `{}`", self.environment);
            self.listener.warn(&unnamed_warning(&whose, name));
        }
    }
}

impl Foreign {
    /// Makes it over a connection whose other end has introduced itself. `named` is its name in metrics,
    /// `limit` the longest time of an answer, `max_turns` the most turns of an episode whatever the
    /// environment's own limit, and `listener` gets warnings.
    pub fn new(
        line: Arc<dyn EnvironmentLine>,
        introduction: Introduction,
        named: &str,
        limit: Duration,
        max_turns: usize,
        listener: Arc<dyn Listener>,
    ) -> Self {
        let name = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let environment = named.to_owned();
        let unnamed = Arc::new(Unnamed { environment, listener, is_said: AtomicBool::new(false) });
        Self { line, introduction, limit, max_turns, next: AtomicU64::new(0), name, unnamed }
    }

    /// Its description of itself.
    pub fn introduction(&self) -> &Introduction {
        &self.introduction
    }

    /// The first levels of a side; fewer if there are no more.
    pub fn levels(&self, is_held_out: bool, count: usize, seed: u64) -> Result<Vec<Level>, EnvironmentFault> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let split = if is_held_out { "held_out" } else { "train" };
        let asked = body(json!({"split": split, "count": count, "seed": seed}));
        let limit =
            self.limit.saturating_add(TIME_OF_LEVEL.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX)));
        let mut answer = self.line.ask(0, "levels", asked, limit)?;
        let levels = answer.remove("levels").unwrap_or_default();
        let mut levels: Vec<Level> =
            read("levels", body(json!({"levels": levels}))).map(|Levels { levels }| levels)?;
        levels.truncate(count);
        Ok(levels)
    }

    /// An episode of a prompt's level; `None` for a prompt without a level.
    pub fn begin(
        &self,
        prompt: &Prompt,
        luck: Key,
    ) -> Result<Option<Box<dyn Environment>>, EnvironmentFault> {
        let Some(level) = prompt.columns.get(LEVEL).and_then(Value::as_str) else { return Ok(None) };
        let level: Value = serde_json::from_str(level).map_err(|error| broke(error.to_string()))?;
        Ok(Some(Box::new(self.begin_level(&level, luck)?)))
    }

    fn begin_level(&self, level: &Value, luck: Key) -> Result<ForeignEpisode, EnvironmentFault> {
        let place = self.next.fetch_add(1, Ordering::Relaxed);
        // It is closed in any case, because an episode whose start took too long may still be running.
        let mut begun = ForeignEpisode {
            line: Arc::clone(&self.line),
            unnamed: Arc::clone(&self.unnamed),
            place,
            episode: format!("{}-{place}", self.name),
            opening: None,
            shown: Vec::new(),
            is_success: None,
            num_turns: 0,
            limits: (self.limit, self.max_turns),
            scores_cut: self.introduction.scores_cut,
        };
        let asked = body(json!({"episode": begun.episode, "level": level, "luck": luck.bits(0).to_string()}));
        let mut answer = self.line.ask(place, "reset", asked, self.limit)?;
        begun.opening = match answer.remove("messages") {
            None | Some(Value::Null) => None,
            Some(messages) => Some(read_messages(&messages)?),
        };
        Ok(begun)
    }

    /// Calls of tools in one trajectory.
    pub fn begin_calls(&self, luck: Key) -> Result<ForeignCalls, EnvironmentFault> {
        self.begin_level(&json!({}), luck).map(ForeignCalls::over)
    }
}

#[derive(Deserialize)]
struct Levels {
    levels: Vec<Level>,
}

#[derive(Deserialize)]
struct Stepped {
    #[serde(default)]
    messages: Value,
    // Null if it is not judged. A missing value is an error.
    #[serde(deserialize_with = "Option::deserialize")]
    reward: Option<f64>,
    #[serde(default)]
    terminated: bool,
    #[serde(default)]
    truncated: bool,
    #[serde(default)]
    success: Option<bool>,
    #[serde(default)]
    info: Map<String, Value>,
}

/// External tools, for the calls of one trajectory.
pub struct ForeignCalls(ForeignEpisode);

impl ForeignCalls {
    fn over(mut episode: ForeignEpisode) -> Self {
        // A trajectory has turns, and a call is no turn.
        episode.limits.1 = usize::MAX;
        Self(episode)
    }

    /// The text of a tool's answer, and whether the call failed.
    ///
    /// # Errors
    /// No answer in time, or a lost connection.
    pub fn call(&mut self, name: &str, arguments: &Value) -> Result<(String, bool), EnvironmentFault> {
        let outcome = self.0.step(&json!({"name": name, "arguments": arguments}).to_string())?;
        self.0.line.note_ended();
        let failed = outcome.info.iter().any(|(name, value)| name == "tool_failed" && *value > 0.0);
        Ok((self.0.observe(), failed))
    }
}

struct ForeignEpisode {
    line: Arc<dyn EnvironmentLine>,
    unnamed: Arc<Unnamed>,
    place: u64,
    episode: String,
    opening: Option<Vec<Message>>,
    shown: Vec<Message>,
    is_success: Option<bool>,
    num_turns: usize,
    limits: (Duration, usize),
    scores_cut: bool,
}

impl ForeignEpisode {
    fn step(&mut self, text: &str) -> Result<TurnOutcome, EnvironmentFault> {
        let asked = body(json!({"episode": self.episode, "action": text}));
        let mut outcome = self.ask("step", asked)?;
        self.num_turns += 1;
        if outcome.end.is_none() && self.num_turns >= self.limits.1 {
            self.shown.clear();
            outcome.end = Some(EpisodeEnd::Truncated);
            if let Some(more) = self.cut() {
                outcome.add(more);
            }
            self.line.note_ended();
        }
        Ok(outcome)
    }

    /// The outcome of a call of the episode; its message goes into `shown`.
    fn ask(&mut self, op: &'static str, asked: Body) -> Result<TurnOutcome, EnvironmentFault> {
        let stepped: Stepped = read(op, self.line.ask(self.place, op, asked, self.limits.0)?)?;
        if let Some(reward) = stepped.reward.filter(|reward| !reward.is_finite()) {
            return Err(broke(format!("its environment gave the reward {reward}")));
        }
        self.is_success = stepped.success;
        let end = match (stepped.terminated, stepped.truncated || op == "cut") {
            (true, _) => Some(EpisodeEnd::Terminated),
            (false, true) => Some(EpisodeEnd::Truncated),
            (false, false) => None,
        };
        self.shown = if end.is_some() { Vec::new() } else { read_messages(&stepped.messages)? };
        if end.is_none() && self.shown.is_empty() {
            return Err(broke("its environment shows nothing after an answer, but the episode continues"));
        }
        if end.is_some() {
            self.line.note_ended();
        }
        let mut info: Vec<(Cow<'static, str>, f64)> = Vec::new();
        for (name, value) in stepped.info {
            match value.as_f64() {
                Some(value) if is_number_name(&name) => info.push((name.into(), value)),
                Some(_) => self.unnamed.note(&name),
                None => {}
            }
        }
        Ok(TurnOutcome { reward: stepped.reward, end, info, fault: None })
    }
}

impl Environment for ForeignEpisode {
    fn observe(&self) -> String {
        let contents: Vec<&str> = self.shown.iter().map(|message| message.content.as_str()).collect();
        contents.join("\n")
    }

    fn opening(&self) -> Option<Vec<Message>> {
        self.opening.clone()
    }

    fn messages(&self) -> Vec<Message> {
        self.shown.clone()
    }

    fn act(&mut self, text: &str) -> TurnOutcome {
        self.step(text).unwrap_or_else(TurnOutcome::failed)
    }

    fn cut(&mut self) -> Option<TurnOutcome> {
        if !self.scores_cut {
            return None;
        }
        let asked = body(json!({"episode": self.episode}));
        Some(self.ask("cut", asked).unwrap_or_else(TurnOutcome::failed))
    }

    fn is_success(&self) -> Option<bool> {
        self.is_success
    }
}

impl Drop for ForeignEpisode {
    fn drop(&mut self) {
        self.line.tell(self.place, "close", body(json!({"episode": self.episode})));
    }
}

#[cfg(test)]
mod tests;
