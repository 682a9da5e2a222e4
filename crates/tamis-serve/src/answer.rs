//! The common part of the routes that sample: a request goes to the engine, and is answered in one piece or
//! in parts. A route's [`RouteFormat`] gives the form of the answer.

use std::sync::Arc;

use serde_json::{Value, json};
use tamis_rollout::api::error::ApiError;
use tamis_rollout::api::field::Fields;
use tamis_rollout::api::{FINGERPRINT, off_thread, seconds};

use crate::engine::{ChoiceEvent, Ended, Piece, PromptScores};
use crate::running::{Choice, broken_error, check_finite};
use crate::sampling::HowSampled;
use crate::stream::Chunks;
use crate::text::{GrowingText, TokenTexts, stop_reason, whole};
use crate::{App, Reply, SHORT, Usage};

/// Facts about a request before it is sampled.
pub(crate) struct OpenRequest {
    pub(crate) app: Arc<App>,
    /// Id with the route's prefix.
    pub(crate) id: String,
    created: u64,
    pub(crate) how: HowSampled,
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Number of the likeliest tokens returned with each token; `None` returns no log-probabilities.
    pub(crate) logprobs: Option<usize>,
    /// Whether token ids are returned beside their text.
    pub(crate) tells_ids: bool,
    as_ids: bool,
    is_streamed: bool,
    includes_usage: bool,
    /// Scores of each prompt, if requested.
    scores: Option<Vec<PromptScores>>,
}

/// Output of a choice: all of it, or the new part.
pub(crate) struct ChoiceOutput<'a> {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) piece: &'a Piece,
    /// Whether nothing of the choice was returned before.
    pub(crate) is_first: bool,
    pub(crate) logprobs: Value,
    /// At its end.
    pub(crate) ended: Option<&'a Ended>,
    /// Null before its end.
    pub(crate) stop_reason: Value,
}

pub(crate) trait RouteFormat: Send {
    /// Whether the text is returned; otherwise it is made only for stop strings.
    fn tells_text(&self) -> bool {
        true
    }

    /// Sampled tokens with their log-probabilities; only called if log-probabilities were requested.
    fn logprobs(&self, texts: &mut TokenTexts, piece: &Piece, count: usize) -> Result<Value, ApiError>;

    fn choice(&self, asked: &OpenRequest, output: ChoiceOutput<'_>) -> Value;

    fn whole(&self, asked: &OpenRequest, choices: Value, usage: Value) -> Value;

    fn part(&self, asked: &OpenRequest, output: ChoiceOutput<'_>) -> Value;

    /// A part of an answer: a choice, or the `usage` after the last one.
    fn chunk(&self, asked: &OpenRequest, choices: Value, usage: Option<Value>, is_first: bool) -> Value;

    /// Parts before the first token.
    fn opening_chunks(&self, _: &OpenRequest) -> Vec<Value> {
        Vec::new()
    }
}

impl Usage {
    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        })
    }
}

impl OpenRequest {
    /// From the fields that all routes share.
    pub(crate) fn read(
        app: &Arc<App>,
        fields: Fields<'_>,
        id: String,
        how: HowSampled,
        prompts: Vec<Vec<u32>>,
        logprobs: Option<usize>,
    ) -> Result<Self, ApiError> {
        let options = fields.object("stream_options", "stream_options.")?;
        let is_streamed = fields.flag("stream")?;
        if is_streamed && how.prompt_logprobs.is_some() {
            return Err(ApiError::field("prompt_logprobs", "`prompt_logprobs` are not returned in a stream"));
        }
        Ok(Self {
            app: app.clone(),
            id,
            created: seconds(),
            how,
            prompts,
            logprobs,
            tells_ids: fields.flag("return_token_ids")?,
            as_ids: fields.flag("return_tokens_as_token_ids")?,
            is_streamed,
            includes_usage: options.map_or(Ok(false), |options| options.flag("include_usage"))?,
            scores: None,
        })
    }

    /// Samples and answers; `numbered` as in [`App::submit`].
    pub(crate) async fn answer(
        mut self,
        form: impl RouteFormat + 'static,
        numbered: bool,
    ) -> Result<Reply, ApiError> {
        let running =
            self.app.submit(&self.id, numbered, self.prompts.clone(), &self.how, self.is_streamed)?;
        if self.is_streamed {
            return Ok(Reply::Stream(running, Box::new(Parts::new(self, form))));
        }
        if let Some(num_top) = self.how.prompt_logprobs {
            self.scores = Some(self.app.score(self.prompts.clone(), num_top).await?);
        }
        let done = running.collect().await?;
        let num_tokens: usize = done.iter().map(|choice| choice.piece.token_ids.len()).sum();
        let usage = self.usage(num_tokens);
        let listed = 1 + self.how.prompt_logprobs.unwrap_or(0);
        let prompts: usize = self.scores.iter().flatten().map(|scores| scores.logprobs.len() * listed).sum();
        let work = move || self.whole(&form, done).map(|value| value.to_string());
        let text = if num_tokens + prompts <= SHORT { work() } else { off_thread(work).await? }?;
        Ok(Reply::Sampled(text, usage))
    }

    fn whole(&self, form: &impl RouteFormat, done: Vec<Choice>) -> Result<Value, ApiError> {
        let Self { app, how, .. } = self;
        let mut choices = Vec::with_capacity(done.len());
        let mut num_tokens = 0;
        for (index, Choice { piece, ended }) in done.into_iter().enumerate() {
            let reads = form.tells_text() || !how.stop.strings().is_empty();
            let read = if reads { &piece.token_ids[..] } else { &[] };
            let (text, by_text) = whole(&app.tokenizer, how, &app.end_token_ids, read, ended.finish)?;
            let last = piece.token_ids.last();
            let by_token = stop_reason(how, &app.end_token_ids, last, None, ended.finish);
            num_tokens += piece.token_ids.len();
            let output = ChoiceOutput {
                index,
                text,
                is_first: true,
                logprobs: self.logprobs(form, &mut self.texts(), &piece)?,
                ended: Some(&ended),
                stop_reason: if by_token.is_null() { by_text } else { by_token },
                piece: &piece,
            };
            choices.push(form.choice(self, output));
        }
        Ok(form.whole(self, Value::Array(choices), self.usage(num_tokens).json()))
    }

    fn texts(&self) -> TokenTexts {
        TokenTexts::new(self.app.tokenizer.clone(), self.as_ids)
    }

    fn logprobs(
        &self,
        form: &impl RouteFormat,
        texts: &mut TokenTexts,
        piece: &Piece,
    ) -> Result<Value, ApiError> {
        self.logprobs.map_or(Ok(Value::Null), |count| form.logprobs(texts, piece, count))
    }

    fn usage(&self, completion_tokens: usize) -> Usage {
        Usage { prompt_tokens: self.prompts.iter().map(Vec::len).sum(), completion_tokens }
    }

    pub(crate) fn prompt(&self, choice: usize) -> &[u32] {
        self.prompts.get(choice / self.how.n).map_or(&[], Vec::as_slice)
    }

    /// Log-probabilities of a choice's prompt tokens and of the likeliest at their places, in vLLM's form:
    /// null for the first, and null for all if not requested.
    pub(crate) fn prompt_logprobs(&self, choice: usize) -> Value {
        let Some(scores) = self.scores.as_ref().and_then(|scores| scores.get(choice / self.how.n)) else {
            return Value::Null;
        };
        let entry = |token: u32, logprob: f32, rank: u32| {
            let text = self.app.tokenizer.decode(&[token], false).ok();
            let value = json!({"logprob": f64::from(logprob), "rank": rank, "decoded_token": text});
            (token.to_string(), value)
        };
        let PromptScores { logprobs, ranks, likeliest } = scores;
        let listed = logprobs.iter().zip(ranks).zip(likeliest);
        let tokens =
            self.prompt(choice).iter().skip(1).zip(listed).map(|(&token, ((&logprob, &rank), top))| {
                let top = (1..).zip(top).filter(|(_, (other, _))| *other != token);
                let others = top.map(|(rank, &(other, logprob))| entry(other, logprob, rank));
                Value::Object(std::iter::once(entry(token, logprob, rank)).chain(others).collect())
            });
        std::iter::once(Value::Null).chain(tokens).collect()
    }

    pub(crate) fn openai_whole(&self, object: &str, choices: Value, usage: Value) -> Value {
        let mut value = self.openai_chunk(object, choices, None);
        value["service_tier"] = Value::Null;
        value["system_fingerprint"] = json!(FINGERPRINT);
        value["usage"] = usage;
        value
    }

    /// A part of an answer.
    pub(crate) fn openai_chunk(&self, object: &str, choices: Value, usage: Option<Value>) -> Value {
        let mut value = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.app.name,
        });
        value["choices"] = choices;
        if let Some(usage) = usage {
            value["usage"] = usage;
        }
        value
    }

    /// When the request arrived, in seconds since 1970.
    pub(crate) fn created(&self) -> u64 {
        self.created
    }
}

/// Chunks of one form.
struct Parts<F> {
    asked: OpenRequest,
    form: F,
    choices: Vec<Growing>,
    is_begun: bool,
    num_tokens: usize,
}

struct Growing {
    text: GrowingText,
    tokens: TokenTexts,
    is_begun: bool,
}

impl<F> Parts<F> {
    fn new(asked: OpenRequest, form: F) -> Self {
        let how = Arc::new(asked.how.clone());
        let growing = |_| Growing {
            text: GrowingText::new(asked.app.tokenizer.clone(), how.clone()),
            tokens: asked.texts(),
            is_begun: false,
        };
        let choices = (0..asked.prompts.len() * how.n).map(growing).collect();
        Self { asked, form, choices, is_begun: false, num_tokens: 0 }
    }
}

impl<F: RouteFormat> Chunks for Parts<F> {
    fn head(&mut self) -> Vec<Value> {
        self.form.opening_chunks(&self.asked)
    }

    fn chunk(&mut self, event: ChoiceEvent) -> Result<Value, ApiError> {
        let ChoiceEvent { choice: index, piece, ended } = event;
        ended.as_ref().map_or(Ok(()), check_finite)?;
        let Self { asked, form, choices, .. } = self;
        self.num_tokens += piece.token_ids.len();
        let Some(growing) = choices.get_mut(index) else { return Err(broken_error()) };
        let text = growing.text.push(&piece.token_ids, ended.is_some())?;
        let output = ChoiceOutput {
            index,
            text,
            is_first: !std::mem::replace(&mut growing.is_begun, true),
            logprobs: asked.logprobs(form, &mut growing.tokens, &piece)?,
            stop_reason: ended.as_ref().map_or(Value::Null, |ended| {
                growing.text.stop_reason(&asked.app.end_token_ids, ended.finish)
            }),
            ended: ended.as_ref(),
            piece: &piece,
        };
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        let choice = form.part(asked, output);
        Ok(form.chunk(asked, json!([choice]), None, is_first))
    }

    fn tail(&mut self) -> Vec<Value> {
        if !self.asked.includes_usage {
            return Vec::new();
        }
        vec![self.form.chunk(&self.asked, json!([]), Some(self.usage().json()), false)]
    }

    fn usage(&self) -> Usage {
        self.asked.usage(self.num_tokens)
    }
}
