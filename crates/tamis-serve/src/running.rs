//! A request in the engine: its events, and its abort when the client is gone.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll};

use tamis_model::{CompletionEnd, LOGITS_NOT_FINITE};
use tamis_rollout::api::error::ApiError;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::App;
use crate::engine::{ChoiceEvent, Ended, EngineCommand, Job, Piece, PromptScores};
use crate::sampling::HowSampled;

/// If it is dropped before its end, it is aborted.
pub(crate) struct Running {
    events: UnboundedReceiver<ChoiceEvent>,
    serials: Vec<u64>,
    /// Choices that have not ended.
    open: usize,
    commands: Sender<EngineCommand>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.open > 0 {
            let _ = self.commands.send(EngineCommand::Forget { serials: std::mem::take(&mut self.serials) });
        }
    }
}

pub(crate) struct Choice {
    pub(crate) piece: Piece,
    pub(crate) ended: Ended,
}

impl Running {
    /// The next event; `None` if the engine failed.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<ChoiceEvent>> {
        self.events.poll_recv(context).map(|event| {
            if event.as_ref().is_some_and(|event| event.ended.is_some()) {
                self.open -= 1;
            }
            event
        })
    }

    /// Whether every choice has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.open == 0
    }

    /// Every choice, in order.
    pub(crate) async fn collect(mut self) -> Result<Vec<Choice>, ApiError> {
        let mut choices: Vec<Option<Choice>> = (0..self.open).map(|_| None).collect();
        while !self.is_finished() {
            let event = std::future::poll_fn(|context| self.poll_next(context)).await;
            let Some(ChoiceEvent { choice, piece, ended }) = event else { return Err(broken_error()) };
            ended.as_ref().map_or(Ok(()), check_finite)?;
            if let (Some(place), Some(ended)) = (choices.get_mut(choice), ended) {
                *place = Some(Choice { piece, ended });
            }
        }
        choices.into_iter().map(|choice| choice.ok_or_else(broken_error)).collect()
    }
}

/// Refuses a choice that ended because the logits were not finite.
pub(crate) fn check_finite(ended: &Ended) -> Result<(), ApiError> {
    if ended.finish == CompletionEnd::NotFinite { Err(not_finite_error()) } else { Ok(()) }
}

/// The error for weights that give logits which are not finite.
fn not_finite_error() -> ApiError {
    ApiError::internal(format!("{LOGITS_NOT_FINITE}; load other weights (`reload_weights`)"))
}

/// The engine failed meanwhile.
pub(crate) fn broken_error() -> ApiError {
    ApiError::internal("the engine broke off; see the server's log")
}

impl App {
    /// Submits prompts to the engine. A client can abort the request by `id`. With `numbered`, each prompt's
    /// id has its number appended, as in vLLM for completions.
    pub(crate) fn submit(
        &self,
        id: &str,
        numbered: bool,
        prompts: Vec<Vec<u32>>,
        how: &HowSampled,
        is_streamed: bool,
    ) -> Result<Running, ApiError> {
        if how.is_keyed && prompts.len() > 1 {
            return Err(ApiError::field(
                "tamis",
                "`tamis` has keys for one prompt; send one prompt a request",
            ));
        }
        for prompt in &prompts {
            self.check_prompt(prompt)?;
        }
        self.check_open()?;
        let count = prompts.len() * how.n;
        let limit = self.settings.max_queued;
        if count > limit {
            let message = format!(
                "the request asks for {count} samples, but the server takes at most {limit} (--max-queued)"
            );
            return Err(ApiError::bad(message));
        }
        if !self.metrics.enter(count, limit) {
            self.metrics.rejected.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return Err(ApiError::busy(limit));
        }
        let (sender, events) = unbounded_channel();
        let mut serials = Vec::with_capacity(prompts.len());
        for (i, prompt) in prompts.into_iter().enumerate() {
            let serial = self.next_number();
            serials.push(serial);
            let job = Job {
                serial,
                id: if numbered { format!("{id}-{i}").into() } else { id.into() },
                prompt: Arc::from(prompt),
                keys: how.keys(i),
                first_choice: i * how.n,
                params: how.params.clone(),
                stop: how.stop.clone(),
                form: how.regex.clone().zip(how.mask.clone()),
                is_streamed,
                events: sender.clone(),
            };
            if self.commands.send(EngineCommand::Submit(job)).is_err() {
                return Err(broken_error());
            }
        }
        Ok(Running { events, serials, open: count, commands: self.commands.clone() })
    }

    /// Log-probabilities of the tokens of submitted prompts, without the first of each.
    pub(crate) async fn score(
        &self,
        prompts: Vec<Vec<u32>>,
        num_top: usize,
    ) -> Result<Vec<PromptScores>, ApiError> {
        let mut rows = Vec::with_capacity(prompts.len());
        // One by one, so that sampling continues between them.
        for tokens in prompts {
            let (done, scored) = tokio::sync::oneshot::channel();
            self.commands.send(EngineCommand::Score { tokens, num_top, done }).map_err(|_| broken_error())?;
            let scores = scored.await.map_err(|_| broken_error())?;
            if scores.logprobs.iter().any(|score| !score.is_finite()) {
                return Err(not_finite_error());
            }
            rows.push(scores);
        }
        Ok(rows)
    }

    /// Refuses prompts that the engine cannot start with.
    fn check_prompt(&self, prompt: &[u32]) -> Result<(), ApiError> {
        let limit = self.max_model_len();
        if prompt.is_empty() {
            return Err(ApiError::bad("the prompt has no tokens"));
        }
        if prompt.len() >= limit {
            let message = format!(
                "This model's maximum context length is {limit} tokens. However, your prompt contains {} \
                     input tokens, which leaves no room for output tokens. Please reduce the length of the \
                     input prompt.",
                prompt.len()
            );
            return Err(ApiError::field("input_tokens", message));
        }
        match prompt.iter().find(|&&token| token as usize >= self.model.vocab_size) {
            Some(token) => Err(ApiError::bad(format!("Token id {token} is out of vocabulary"))),
            None => Ok(()),
        }
    }
}
