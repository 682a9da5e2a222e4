//! A teacher at vLLM servers: log-probabilities of texts that the policy wrote.
//!
//! A request holds the token ids of one text, and asks for `prompt_logprobs: k`: the log-probability of each
//! of its own tokens, at temperature 1, and of the k likeliest at its place. One more token is generated, as
//! vLLM requires, and is not used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tamis_env::reward::{Listener, RewardFailure};

use crate::asking::{AfterFault, AskLimits, ConnectError, ScoringServers};
use crate::http::{Address, Exchange};
use crate::wire::vllm::{self, Interface};
use crate::wire::{Fault, FaultClass};

/// Settings of a teacher at servers.
#[derive(Debug, Clone)]
pub struct TeacherSetup {
    /// The servers, at least one.
    pub servers: Vec<Address>,
    /// Their API key.
    pub key: Option<String>,
    /// Name of the model there; `None`: the first that a server lists.
    pub model: Option<String>,
    /// Name of the teacher in messages: `teacher[0]`.
    pub name: String,
    /// Time limit of one answer.
    pub timeout: Duration,
    /// Most attempts for one request, at least 1.
    pub max_attempts: u32,
    /// Number of requests at once, at least 1.
    pub concurrency: usize,
    /// Number of likeliest tokens that are wanted at every place, k.
    pub num_top: usize,
}

/// Why a teacher gives no log-probabilities. It is `Halt<String>` of `tamis-train`, a crate above this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotRated {
    /// The run is to stop.
    Interrupted,
    /// The message of the first text without an answer.
    Failed(String),
}

/// A text to rate.
#[derive(Debug, Clone)]
pub struct RatedText {
    /// Its tokens, with at least one before `start`.
    pub token_ids: Vec<u32>,
    /// Index of the first token whose log-probability is wanted.
    pub start: usize,
}

/// What a teacher found of the tokens of a text from its `start` on, n of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RatedTokens {
    /// Their log-probabilities \[n\], in nats.
    pub logprobs: Vec<f32>,
    /// The likeliest tokens at their places \[n k\], the likeliest first.
    pub top: Vec<u32>,
    /// Log-probabilities of those \[n k\].
    pub top_logprobs: Vec<f32>,
}

/// A teacher at servers.
pub struct TeacherServers {
    servers: ScoringServers,
    models: Vec<Option<String>>,
    limits: AskLimits,
    name: String,
    num_top: usize,
    /// Requests so far: a server refuses two with the same id at once.
    num_requests: AtomicU64,
}

impl TeacherServers {
    /// A teacher, once each server has listed its models and has rated one text; waits as long as
    /// `startup_timeout` for them. `None` if the wait was abandoned.
    ///
    /// # Errors
    /// A server does not answer, serves no such model, or gives no log-probabilities of prompts.
    pub fn connect(
        setup: TeacherSetup,
        startup_timeout: Duration,
        listener: Arc<dyn Listener>,
    ) -> Result<Option<Self>, ConnectError> {
        let TeacherSetup { servers, key, model, name, timeout, max_attempts, concurrency, num_top } = setup;
        let servers = ScoringServers::new(servers, key, name.clone(), "teacher", listener)?;
        let until = Instant::now() + startup_timeout;
        let model_at = |server| servers.model_at(server, model.as_deref(), until);
        let models = (0..servers.len()).map(model_at).collect::<Result<_, _>>()?;
        let limits = AskLimits { timeout, max_attempts, concurrency };
        let teacher = Self { servers, models, limits, name, num_top, num_requests: AtomicU64::new(0) };
        for server in 0..teacher.servers.len() {
            // The ids of the test need only be in every vocabulary.
            let test = RatedText { token_ids: vec![0, 1], start: 1 };
            let Some(exchange) = teacher.servers.ask_one(server, teacher.call(&test, server), until)? else {
                return Ok(None);
            };
            if let Err(fault) = read(&test, num_top, exchange) {
                return Err(teacher.servers.unreachable(server, &fault));
            }
        }
        Ok(Some(teacher).filter(|teacher| !teacher.servers.is_interrupted()))
    }

    /// Log-probabilities of the tokens from `start` on of each text, and the likeliest tokens there.
    ///
    /// # Errors
    /// [`NotRated`]: interrupted, or a text without an answer.
    pub fn rate(&self, texts: Vec<RatedText>) -> Result<Vec<RatedTokens>, NotRated> {
        let answers = self.servers.ask(
            texts,
            self.limits,
            |text, server| self.call(text, server),
            |text, exchange| read(text, self.num_top, exchange),
            |_| AfterFault::Counts,
        );
        let answers = answers.map_err(|failure| match failure {
            RewardFailure::Interrupted => NotRated::Interrupted,
            failure => NotRated::Failed(format!("{}: {failure}", self.name)),
        })?;
        answers
            .into_iter()
            .map(|answer| answer.map_err(|why| NotRated::Failed(format!("{}: {}", self.name, why.message))))
            .collect()
    }

    fn call(&self, text: &RatedText, server: usize) -> crate::wire::Call {
        let number = self.num_requests.fetch_add(1, Ordering::Relaxed);
        let id = format!("tamis-teacher-{}-{number}", std::process::id());
        let model = self.models.get(server).and_then(Option::as_deref);
        vllm::score_with_top(Interface::Completions, model, &id, &text.token_ids, self.num_top)
    }
}

/// The numbers of a text's tokens from `start` on.
fn read(text: &RatedText, num_top: usize, exchange: Exchange) -> Result<RatedTokens, Fault> {
    let scores = vllm::read_scores_with_top(&exchange?, &text.token_ids, num_top)?;
    // The first token of all has none.
    let wanted = scores.get(text.start.saturating_sub(1)..).unwrap_or_default();
    let checked = |place: usize, logprob: f64| {
        // Rounding may put a certain token a little above 0.
        if logprob.is_finite() && logprob < 1e-3 {
            return Ok(logprob.min(0.0) as f32);
        }
        let detail = format!("log-probability {logprob} of token {}", text.start + place);
        Err(Fault::new(FaultClass::LogprobOutOfRange, detail))
    };
    let mut rated = RatedTokens::default();
    for (place, score) in wanted.iter().enumerate() {
        rated.logprobs.push(checked(place, score.logprob)?);
        for &(token, logprob) in &score.top {
            rated.top.push(token);
            rated.top_logprobs.push(checked(place, logprob)?);
        }
    }
    Ok(rated)
}
