//! A language model as a judge: a server with OpenAI's chat interface gets a request about each
//! completion, and the score is read out of its answer.
//!
//! A fault that passes (a busy or silent server, a broken connection) is retried after a growing pause,
//! at the next server. After any other fault (the request is refused, the answer has no score) the
//! completion has no such score, as with any external reward that fails. Answers are not a function of
//! the run's keys: the scorer journals them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use regex::Regex;
use serde_json::{Map, Value, json};
use tamis_env::reward::{Listener, RewardFailure, RewardFunction, RewardInput, RewardOutcome};

use crate::asking::{AfterFault, AskLimits, ConnectError, ScoringServers};
use crate::http::{Address, Exchange};
use crate::prompt_template::PromptTemplate;
use crate::wire::{Call, Fault, FaultClass, Finish, openai};

/// Number of characters that a message shows of an answer without a score.
const SHOWN: usize = 200;

/// Settings of a judge: its request and its limits.
#[derive(Debug, Clone)]
pub struct JudgeSetup {
    /// The servers, used in turn.
    pub servers: Vec<Address>,
    /// The model's name there; `None` for the first that a server has.
    pub model: Option<String>,
    /// Key, sent as `Authorization: Bearer`.
    pub key: Option<String>,
    /// System message for the judge; `None` sends none.
    pub system: Option<String>,
    /// Template of the judge's prompt.
    pub template: PromptTemplate,
    /// Finds the score in its answer: the last match counts, by its first group if the pattern has one.
    pub pattern: Regex,
    /// Scores of verdicts that are words, whatever their case.
    pub verdicts: Vec<(String, f64)>,
    /// Smallest number that is a score.
    pub min_score: Option<f64>,
    /// Largest number that is a score.
    pub max_score: Option<f64>,
    /// The score from which on a completion is right (`acc`); `None`: `acc` is not set.
    pub pass_score: Option<f64>,
    /// Sampling temperature of the judge.
    pub temperature: f64,
    /// Longest answer, in tokens.
    pub max_tokens: usize,
    /// Further parameters of the request, by the server's names.
    pub parameters: Map<String, Value>,
    /// Time limit of one answer.
    pub timeout: Duration,
    /// Most requests for one completion before the judge has failed on it, at least 1.
    pub max_attempts: u32,
    /// Number of completions that are judged at once, at least 1.
    pub concurrency: usize,
}

/// The reward function.
pub struct Judge {
    settings: JudgeSetup,
    models: Vec<Option<String>>,
    servers: ScoringServers,
}

impl Judge {
    /// A judge, once each of its servers has listed its models; waits as long as `startup_timeout` for
    /// them. A server without this route is trusted.
    ///
    /// # Errors
    /// If a server does not answer, or serves no such model.
    pub fn connect(
        settings: JudgeSetup,
        startup_timeout: Duration,
        name: &str,
        listener: Arc<dyn Listener>,
    ) -> Result<Option<Self>, ConnectError> {
        let (addresses, key) = (settings.servers.clone(), settings.key.clone());
        let servers = ScoringServers::new(addresses, key, format!("reward `{name}`"), "judge", listener)?;
        let until = Instant::now() + startup_timeout;
        let model_at = |server| servers.model_at(server, settings.model.as_deref(), until);
        let models = (0..servers.len()).map(model_at).collect::<Result<_, _>>()?;
        Ok(Some(Self { settings, models, servers }).filter(|judge| !judge.servers.is_interrupted()))
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
        // Parameters set to null are left out: some servers take no temperature, or have another name
        // for the limit.
        for (name, value) in &self.settings.parameters {
            if value.is_null() {
                body.remove(name);
            } else {
                body.insert(name.clone(), value.clone());
            }
        }
        Call::post("/v1/chat/completions", &Value::Object(body))
    }

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
            return Err(format!("the judge's answer has no score: {}", shown()));
        };
        let found = found.as_str().trim();
        if let Some((_, score)) = settings.verdicts.iter().find(|(word, _)| word.eq_ignore_ascii_case(found))
        {
            return Ok(*score);
        }
        let score: f64 = match found.parse() {
            Ok(score) => score,
            Err(_) => return Err(format!("{found:?} in the judge's answer {} is not a score", shown())),
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

    /// Reads an answer: an outcome, or a fault that may pass.
    fn read(&self, exchange: Exchange) -> Result<RewardOutcome, Fault> {
        let failed = |message: String| Ok(RewardOutcome::Failed(RewardFailure::Function { message }));
        let read = exchange.and_then(|answer| {
            let read = openai::read(&answer)?;
            match read.finish {
                Some(Finish::Abort) => {
                    Err(Fault::new(FaultClass::AbortedByServer, "the judge's server aborted the answer"))
                }
                // An answer in one piece is complete even if the server gives no reason for its end.
                None if answer.is_stream() => {
                    Err(Fault::new(FaultClass::HalfBody, "the judge's answer broke off early"))
                }
                _ => Ok(read),
            }
        });
        match read {
            // A number in an unfinished answer is not the judge's result.
            Ok(answer) if answer.finish == Some(Finish::Length) => {
                failed("the judge's answer was cut at `max_tokens`: raise it".to_owned())
            }
            Ok(answer) if answer.finish == Some(Finish::Other("content_filter".to_owned())) => {
                failed("the judge's server cut the answer (content_filter)".to_owned())
            }
            Ok(answer) => match self.score_of(&answer.text) {
                Ok(score) => Ok(RewardOutcome::judged(score, self.settings.pass_score)),
                Err(message) => failed(message),
            },
            Err(fault) => Err(fault),
        }
    }
}

impl RewardFunction for Judge {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        let failed = |message: String| RewardOutcome::Failed(RewardFailure::Function { message });
        let texts: Vec<Result<String, String>> =
            batch.iter().map(|input| self.settings.template.fill(input)).collect();
        let limits = AskLimits {
            timeout: self.settings.timeout,
            max_attempts: self.settings.max_attempts,
            concurrency: self.settings.concurrency,
        };
        let answers = self.servers.ask(
            texts.iter().flatten().collect(),
            limits,
            |text, server| self.call(text, server),
            |_, exchange| self.read(exchange),
            |_| AfterFault::Counts,
        );
        let mut answers = match answers {
            Ok(answers) => answers.into_iter(),
            Err(failure) => return vec![RewardOutcome::Failed(failure); batch.len()],
        };
        let outcome = |text: Result<String, String>| match text {
            Ok(_) => match answers.next() {
                Some(Ok(outcome)) => outcome,
                Some(Err(unanswered)) => failed(unanswered.message),
                None => RewardOutcome::NoAnswer,
            },
            Err(name) => failed(format!("the row has no `{name}`, which the judge's prompt needs")),
        };
        texts.into_iter().map(outcome).collect()
    }

    fn concurrency(&self) -> usize {
        self.settings.concurrency
    }

    fn failure_hint(&self) -> Option<String> {
        Some(format!("check that the judge's server at {} answers", self.servers.addresses()))
    }

    fn how_to_give_acc(&self) -> Option<&'static str> {
        Some("set its `pass_score`: completions with at least that score count as correct")
    }
}
