//! The engine in this process, without HTTP (`tamis chat`). It takes a request in a route's form and answers
//! it piece by piece.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::Value;
use tamis_rollout::api::error::ApiError;
use tamis_rollout::connections::set_or;
use tokio::runtime::Runtime;

use crate::running::broken_error;
use crate::{App, Fault, Reply, ServeSettings, ServedPolicy, Usage, chat, completion, runtime};

/// An engine for a single caller.
pub struct LocalEngine {
    app: Arc<App>,
    runtime: Runtime,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// Text of the answer.
    pub text: String,
    /// `stop`, `length`, or another `finish_reason` of the route; `None` if the caller stopped it.
    pub finish_reason: Option<String>,
    /// Tokens of the request.
    pub usage: Usage,
}

impl LocalEngine {
    /// Starts the engine. Settings for addresses and connections are ignored.
    ///
    /// # Errors
    /// The engine's thread cannot be started.
    pub fn begin(policy: ServedPolicy, settings: ServeSettings) -> Result<Self, Fault> {
        // The engine ends with the last sender of its commands.
        let (app, _) = App::begin(policy, settings, 1)?;
        Ok(Self { app, runtime: runtime()? })
    }

    /// Answers a request for one sample with `stream: true`: as `/v1/chat/completions` if it has `messages`,
    /// otherwise as `/v1/completions`. `show` gets each piece of the text. If `stop` is set meanwhile, the
    /// answer ends with what it has.
    ///
    /// # Errors
    /// The request is refused, with the server's message, or the engine fails.
    pub fn answer(
        &self,
        request: Value,
        stop: &AtomicBool,
        mut show: impl FnMut(&str),
    ) -> Result<Answered, Fault> {
        let answered = async {
            let is_chat = request.get("messages").is_some();
            let (app, body) = (&self.app, request.into());
            let reply = if is_chat {
                chat::answer(app, body, None).await?
            } else {
                completion::answer(app, body, None).await?
            };
            let Reply::Stream(mut running, mut chunks) = reply else {
                return Err(ApiError::field("stream", "`stream` must be true"));
            };
            let (mut text, mut finish_reason) = (String::new(), None);
            let mut stopped = pin!(set_or(stop, || false));
            while !running.is_finished() {
                let event = tokio::select! {
                    event = poll_fn(|context| running.poll_next(context)) => event.ok_or_else(broken_error)?,
                    () = &mut stopped => break,
                };
                let chunk = chunks.chunk(event)?;
                let choice = &chunk["choices"][0];
                let piece =
                    choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
                show(piece);
                text.push_str(piece);
                finish_reason = choice["finish_reason"].as_str().map(str::to_owned);
            }
            Ok(Answered { text, finish_reason, usage: chunks.usage() })
        };
        self.runtime.block_on(answered).map_err(|error: ApiError| Fault::new(error.message, None))
    }
}
