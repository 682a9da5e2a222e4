//! A language model as a judge: it is asked about each completion, at a server with OpenAI's chat interface,
//! and its score is read out of what it answers.
//!
//! A fault that passes (a server that is busy or does not answer, a broken connection) is tried again after a
//! growing pause, at the next server; what does not (the request is refused, no score is in the answer)
//! leaves the completion without this score, as any external reward that fails. Answers are no function of
//! the run's keys: whoever scores journals them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use regex::Regex;
use serde_json::{Map, Value, json};
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_env::reward::{Listener, RewardFailure, RewardFunction, RewardInput, RewardOutcome};
use thiserror::Error;

use crate::clock::Bell;
use crate::http::{Address, Exchange, HttpClient, HttpError, HttpSettings, Line, Transport as _};
use crate::wire::{Call, Fault, FaultClass, Finish, openai, vllm};
use crate::{FailureKind, GeneratorError};

/// Pause before the second attempt; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause before an attempt.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Interval at which a wait checks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// When it is first said that answers are waited for; then whenever that time has doubled.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of characters that a message shows of an answer without a score.
const SHOWN: usize = 200;

/// Settings of a judge: its request and its limits.
#[derive(Debug, Clone)]
pub struct JudgeSetup {
    /// The servers, asked in turn.
    pub servers: Vec<Address>,
    /// The model's name there; `None` for the first that a server has.
    pub model: Option<String>,
    /// Goes along as `Authorization: Bearer`.
    pub key: Option<String>,
    /// System message for the judge; `None` sends none.
    pub system: Option<String>,
    /// Template of the judge's prompt.
    pub template: Template,
    /// Finds the score in its answer: the last match counts, its first group where there is one.
    pub pattern: Regex,
    /// Scores of what is found, where that is a word: capital letters make no difference.
    pub verdicts: Vec<(String, f64)>,
    /// Smallest number that is a score.
    pub min_score: Option<f64>,
    /// Largest number that is a score.
    pub max_score: Option<f64>,
    /// The score from which on a completion is right (`acc`); `None`: it says nothing of that.
    pub pass_score: Option<f64>,
    /// Sampling temperature of the judge.
    pub temperature: f64,
    /// Longest answer, in tokens.
    pub max_tokens: usize,
    /// Further parameters of the request, by the server's names.
    pub parameters: Map<String, Value>,
    /// Longest time of one answer.
    pub timeout: Duration,
    /// Most requests for one completion before the judge has failed on it, at least 1.
    pub max_attempts: u32,
    /// Number of completions that are judged at once, at least 1.
    pub concurrency: usize,
}

/// A judge cannot be set up.
#[derive(Debug, Error)]
pub enum JudgeError {
    /// The client could not be set up.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// No server answers, or none has the model.
    #[error(transparent)]
    Servers(#[from] GeneratorError),
}

/// A text with names of what is filled in, in braces: `{prompt}`, `{completion}`, `{ground_truth}`,
/// `{data_source}`, and columns of the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Text and the name after it, in turn; the last has none.
    parts: Vec<(String, Option<String>)>,
}

impl Template {
    /// Reads a template; braces around anything but a name stand for themselves.
    ///
    /// ```
    /// use tamis_rollout::judge::Template;
    /// let template = Template::new("Rate {completion} as {\"score\": n} for {prompt}.");
    /// assert_eq!(template.names().collect::<Vec<_>>(), ["completion", "prompt"]);
    /// ```
    pub fn new(text: &str) -> Self {
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let mut parts = Vec::new();
        let mut before = String::new();
        let mut rest = text;
        while let Some((left, right)) = rest.split_once('{') {
            before.push_str(left);
            if let Some((name, after)) = right.split_once('}').filter(|(name, _)| is_name(name)) {
                parts.push((std::mem::take(&mut before), Some(name.to_owned())));
                rest = after;
            } else {
                before.push('{');
                rest = right;
            }
        }
        before.push_str(rest);
        parts.push((before, None));
        Self { parts }
    }

    /// The names in it, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|(_, name)| name.as_deref())
    }

    /// The text about a completion, or the name that its row has nothing for.
    fn fill(&self, input: &RewardInput<'_>) -> Result<String, String> {
        let mut text = String::new();
        for (before, name) in &self.parts {
            text.push_str(before);
            if let Some(name) = name {
                text.push_str(&value_of(name, input).ok_or_else(|| name.clone())?);
            }
        }
        Ok(text)
    }
}

fn value_of(name: &str, input: &RewardInput<'_>) -> Option<String> {
    let prompt = input.prompt;
    match name {
        "prompt" => Some(question(prompt)),
        "completion" => Some(input.completion.to_owned()),
        "ground_truth" => prompt.ground_truth.clone(),
        "data_source" => Some(prompt.data_source.clone()),
        column => match prompt.columns.get(column)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        },
    }
}

/// The policy's prompt as the judge reads it: one message as it is, several with their roles.
fn question(prompt: &Prompt) -> String {
    match &prompt.content {
        PromptContent::Text(text) => text.clone(),
        PromptContent::Messages(messages) => match messages.as_slice() {
            [only] => only.content.clone(),
            several => {
                let lines = several.iter().map(|message| format!("{}: {}", message.role, message.content));
                lines.collect::<Vec<_>>().join("\n")
            }
        },
    }
}

/// A completion that has not been scored.
struct Open {
    row: usize,
    text: String,
    /// The server that is asked, at each attempt the next.
    server: usize,
    attempts: u32,
    again_at: Instant,
}

/// The reward function.
pub struct Judge {
    settings: JudgeSetup,
    /// By server.
    models: Vec<Option<String>>,
    client: Mutex<HttpClient>,
    /// The server that is asked next.
    next: std::sync::atomic::AtomicUsize,
    name: String,
    listener: Arc<dyn Listener>,
}

impl Judge {
    /// A judge, once each of its servers has said what models it has; waits as long as `startup_timeout` for
    /// them. A server that has no such route is taken at its word.
    ///
    /// # Errors
    /// Where a server does not answer, or serves no such model.
    pub fn connect(
        settings: JudgeSetup,
        startup_timeout: Duration,
        name: &str,
        listener: Arc<dyn Listener>,
    ) -> Result<Option<Self>, JudgeError> {
        let encrypted = settings.servers.iter().any(Address::is_encrypted);
        let client = HttpClient::start(HttpSettings::default(), encrypted)?;
        let mut judge = Self {
            models: Vec::new(),
            client: Mutex::new(client),
            next: std::sync::atomic::AtomicUsize::new(0),
            name: name.to_owned(),
            listener,
            settings,
        };
        let until = Instant::now() + startup_timeout;
        for server in 0..judge.settings.servers.len() {
            let model = judge.model_at(server, until)?;
            judge.models.push(model);
        }
        Ok(Some(judge).filter(|judge| !judge.listener.is_interrupted()))
    }

    fn line(&self, server: usize, bell: &Bell) -> Result<Line, HttpError> {
        let address = self.settings.servers[server].clone();
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        client.line(address, self.settings.key.as_deref(), bell.clone())
    }

    /// The model's name at a server, where one is known; waited for no longer where the run is to stop.
    fn model_at(&self, server: usize, until: Instant) -> Result<Option<String>, JudgeError> {
        let address = &self.settings.servers[server];
        let unreachable = |fault: &Fault| GeneratorError::Unreachable {
            tried: vec![format!("{address} (reward `{}`): {fault}", self.name)],
        };
        loop {
            let bell = Bell::default();
            let mut line = self.line(server, &bell)?;
            line.send(0, vllm::models(), until.saturating_duration_since(Instant::now()).max(LOOK_EVERY));
            let exchange = loop {
                bell.wait(LOOK_EVERY);
                if self.listener.is_interrupted() {
                    return Ok(None);
                }
                if let Some((_, exchange)) = line.receive().pop() {
                    break exchange;
                }
            };
            let listed = exchange.and_then(|answer| vllm::read_models(&answer));
            match listed {
                Ok(models) => {
                    let is_it = |name: &String| models.iter().any(|model| model.id == *name);
                    return match &self.settings.model {
                        Some(name) if is_it(name) => Ok(Some(name.clone())),
                        Some(name) => {
                            let served: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
                            let detail = format!("it serves no model {name:?}, but {}", served.join(", "));
                            Err(unreachable(&Fault::new(FaultClass::Refused, detail)).into())
                        }
                        None => Ok(models.into_iter().next().map(|model| model.id)),
                    };
                }
                // A server without the route.
                Err(fault) if fault.class == FaultClass::Refused => return Ok(self.settings.model.clone()),
                Err(fault) if fault.class == FaultClass::Unauthorized || Instant::now() >= until => {
                    return Err(unreachable(&fault).into());
                }
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn call(&self, text: &str, server: usize) -> Call {
        let mut messages = Vec::new();
        if let Some(system) = &self.settings.system {
            messages.push(json!({"role": "system", "content": system}));
        }
        messages.push(json!({"role": "user", "content": text}));
        let mut body = Map::new();
        if let Some(model) = &self.models[server] {
            body.insert("model".to_owned(), json!(model));
        }
        body.insert("messages".to_owned(), Value::Array(messages));
        body.insert("temperature".to_owned(), json!(self.settings.temperature));
        body.insert("max_tokens".to_owned(), json!(self.settings.max_tokens));
        // What is set to null is left out: some servers take no temperature, or call the limit otherwise.
        for (name, value) in &self.settings.parameters {
            if value.is_null() {
                body.remove(name);
            } else {
                body.insert(name.clone(), value.clone());
            }
        }
        Call::post("/v1/chat/completions", &Value::Object(body))
    }

    /// The score in what the judge answered.
    fn score_of(&self, answer: &str) -> Result<f64, String> {
        let settings = &self.settings;
        let shown = || {
            let mut shown: String = answer.chars().take(SHOWN).collect();
            if shown.len() < answer.len() {
                shown.push('…');
            }
            format!("{shown:?}")
        };
        let found = settings.pattern.captures_iter(answer).last().and_then(|all| all.get(1).or(all.get(0)));
        let Some(found) = found else {
            return Err(format!("no score is in the judge's answer {}", shown()));
        };
        let found = found.as_str().trim();
        if let Some((_, score)) = settings.verdicts.iter().find(|(word, _)| word.eq_ignore_ascii_case(found))
        {
            return Ok(*score);
        }
        let score: f64 = match found.parse() {
            Ok(score) => score,
            Err(_) => return Err(format!("{found:?} in the judge's answer {} is no score", shown())),
        };
        let is_within = settings.min_score.is_none_or(|min| score >= min)
            && settings.max_score.is_none_or(|max| score <= max)
            && score.is_finite();
        if is_within {
            Ok(score)
        } else {
            Err(format!("the judge's score {found} is out of range in {}", shown()))
        }
    }

    /// Addresses of the judge's servers, for messages.
    fn servers(&self) -> String {
        let servers: Vec<String> = self.settings.servers.iter().map(ToString::to_string).collect();
        servers.join(", ")
    }

    fn outcome(&self, score: f64) -> RewardOutcome {
        match self.settings.pass_score {
            Some(pass) => RewardOutcome::verified(score, score >= pass),
            None => RewardOutcome::score(score),
        }
    }

    /// Reads an answer: an outcome, or a fault that may pass.
    fn read(&self, exchange: Exchange) -> Result<RewardOutcome, Fault> {
        let failed = |message: String| Ok(RewardOutcome::Failed(RewardFailure::Function { message }));
        let read = exchange.and_then(|answer| {
            let read = openai::read(&answer)?;
            match read.finish {
                Some(Finish::Abort) => {
                    Err(Fault::new(FaultClass::AbortedByServer, "the judge's server aborted the answer"))
                }
                // In one piece it is whole also where the server does not say why it ended.
                None if answer.is_stream() => {
                    Err(Fault::new(FaultClass::HalfBody, "the judge's answer broke off before its end"))
                }
                _ => Ok(read),
            }
        });
        match read {
            // A number in unfinished words is not what the judge came to.
            Ok(answer) if answer.finish == Some(Finish::Length) => {
                failed("the judge's answer was cut at `max_tokens`: raise it".to_owned())
            }
            Ok(answer) if answer.finish == Some(Finish::Other("content_filter".to_owned())) => {
                failed("the judge's server cut the answer (content_filter)".to_owned())
            }
            Ok(answer) => match self.score_of(&answer.text) {
                Ok(score) => Ok(self.outcome(score)),
                Err(message) => failed(message),
            },
            Err(fault)
                if fault.class.kind() == FailureKind::Permanent
                    || fault.class == FaultClass::Unauthorized =>
            {
                failed(format!("the judge refuses: {fault}"))
            }
            Err(fault) => Err(fault),
        }
    }
}

fn pause_after(attempts: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(LONGEST_PAUSE)
}

impl RewardFunction for Judge {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let failed = |message: String| RewardOutcome::Failed(RewardFailure::Function { message });
        let mut outcomes: Vec<Option<RewardOutcome>> = vec![None; batch.len()];
        let mut waiting: VecDeque<Open> = VecDeque::new();
        let num_servers = self.settings.servers.len();
        let bell = Bell::default();
        let mut lines = match (0..num_servers).map(|server| self.line(server, &bell)).collect() {
            Ok::<Vec<Line>, HttpError>(lines) => lines,
            Err(error) => return vec![failed(error.to_string()); batch.len()],
        };
        let began = Instant::now();
        for (row, input) in batch.iter().enumerate() {
            match self.settings.template.fill(input) {
                Ok(text) => {
                    let server = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % num_servers;
                    waiting.push_back(Open { row, text, server, attempts: 0, again_at: began });
                }
                Err(name) => {
                    outcomes[row] =
                        Some(failed(format!("the row has no `{name}`, which the judge's prompt needs")));
                }
            }
        }
        let mut asked: std::collections::HashMap<u64, Open> = std::collections::HashMap::new();
        let mut next_number = 0;
        let mut patience = PATIENCE;
        while !(waiting.is_empty() && asked.is_empty()) {
            let now = Instant::now();
            let mut later = VecDeque::new();
            while let Some(mut open) = waiting.pop_front() {
                if open.again_at > now || asked.len() >= self.settings.concurrency {
                    later.push_back(open);
                    continue;
                }
                open.attempts += 1;
                next_number += 1;
                let call = self.call(&open.text, open.server);
                lines[open.server].send(next_number, call, self.settings.timeout);
                asked.insert(next_number, open);
            }
            waiting = later;
            bell.wait(LOOK_EVERY);
            if self.listener.is_interrupted() {
                for (number, open) in &asked {
                    lines[open.server].cancel(*number);
                }
                let interrupted = || RewardOutcome::Failed(RewardFailure::Interrupted);
                return outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(interrupted)).collect();
            }
            let answers: Vec<(u64, Exchange)> = lines.iter_mut().flat_map(Line::receive).collect();
            for (number, exchange) in answers {
                let Some(mut open) = asked.remove(&number) else { continue };
                match self.read(exchange) {
                    Ok(outcome) => outcomes[open.row] = Some(outcome),
                    Err(fault) if open.attempts >= self.settings.max_attempts => {
                        let message =
                            format!("no answer of the judge in {} attempts: {fault}", open.attempts);
                        outcomes[open.row] = Some(failed(message));
                    }
                    Err(fault) => {
                        let asked_for = fault.retry_after.unwrap_or_default().min(self.settings.timeout);
                        open.again_at = Instant::now() + pause_after(open.attempts).max(asked_for);
                        open.server = (open.server + 1) % num_servers;
                        waiting.push_back(open);
                    }
                }
            }
            if began.elapsed() >= patience {
                patience *= 2;
                self.listener.say(&format!(
                    "reward `{}`: {} requests to the judge at {} have had no answer for {} s",
                    self.name,
                    asked.len() + waiting.len(),
                    self.servers(),
                    began.elapsed().as_secs()
                ));
            }
        }
        outcomes.into_iter().map(|outcome| outcome.unwrap_or(RewardOutcome::NoAnswer)).collect()
    }

    fn extra_names(&self) -> &[&str] {
        if self.settings.pass_score.is_some() { &["acc"] } else { &[] }
    }

    fn is_external(&self) -> bool {
        true
    }

    fn concurrency(&self) -> usize {
        self.settings.concurrency
    }

    fn failure_hint(&self) -> Option<String> {
        Some(format!("check that the judge's server at {} answers", self.servers()))
    }

    fn how_to_give_acc(&self) -> Option<&'static str> {
        Some("set its `pass_score`: a completion with that score or more is right")
    }
}
