//! `/inference/v1/generate`: token ids in and out, with the log-probabilities and the versions of the weights that training needs.

use std::sync::Arc;

use serde_json::{Value, json};

use super::engine::{Ended, Event, Piece};
use super::error::ApiError;
use super::field::Fields;
use super::running::{Choice, Running, broken};
use super::sampling::{HowSampled, MOST_ALTERNATIVES};
use super::stream::Chunks;
use super::text::{GrowingText, TokenTexts, finish_name, stop_reason, whole};
use super::{App, Reply};

/// Completion tokens where the request does not say (vLLM's default).
const MAX_TOKENS: usize = 16;

#[derive(Clone)]
struct Form {
    app: Arc<App>,
    id: String,
    created: u64,
    how: Arc<HowSampled>,
    logprobs: Option<usize>,
    tells_prompt: bool,
    is_text: bool,
    includes_usage: bool,
    prompt: Vec<u32>,
}

pub(super) async fn answer(
    app: &Arc<App>,
    body: &Value,
    request_id: Option<&str>,
) -> Result<Reply, ApiError> {
    let fields = Fields::of(body)?;
    app.check_model(fields)?;
    let Some(prompt) = fields.token_ids("token_ids")? else {
        return Err(ApiError::field("token_ids", "`token_ids` is missing"));
    };
    let Some(sampling) = fields.object("sampling_params", "sampling_params.")? else {
        let message = "`sampling_params` is missing; `{}` takes every default";
        return Err(ApiError::field("sampling_params", message));
    };
    let is_text = match fields.text("output_mode")? {
        None | Some("tokens") => false,
        Some("text") => true,
        Some(other) => {
            let message = format!("`output_mode` must be `tokens` or `text`, got `{other}`");
            return Err(ApiError::field("output_mode", message));
        }
    };
    let logprobs = sampling.count("logprobs", 0, MOST_ALTERNATIVES)?;
    let max_tokens = sampling.count("max_tokens", 1, i64::MAX)?;
    let mut how = HowSampled::read(sampling, fields, max_tokens, &app.defaults(MAX_TOKENS))?;
    how.params.num_alternatives = logprobs;
    let is_streamed = fields.flag("stream")?;
    let options = fields.object("stream_options", "stream_options.")?;
    let form = Form {
        id: format!("generate-tokens-{}", app.request_id(fields, request_id)?),
        created: super::seconds(),
        logprobs,
        tells_prompt: fields.flag("return_token_ids")?,
        is_text,
        includes_usage: options.map_or(Ok(false), |options| options.flag("include_usage"))?,
        prompt: prompt.clone(),
        how: Arc::new(how),
        app: app.clone(),
    };
    let running = app.submit(&form.id, false, vec![prompt], &form.how, is_streamed)?;
    if is_streamed {
        return Ok(Reply::Stream(running, Box::new(GenerateChunks::new(form))));
    }
    Ok(Reply::Json(form.whole(running).await?))
}

/// The spans of versions, as vLLM tells them.
fn spans(ended: &Ended) -> Value {
    let mut start = 0;
    let spans = ended.versions.iter().map(|(version, end)| {
        let span = json!({"version": version.as_ref(), "start": start, "end": end});
        start = *end;
        span
    });
    spans.collect()
}

impl Form {
    /// By token id; in text mode by text.
    fn logprobs(&self, texts: &mut TokenTexts, piece: &Piece) -> Result<Value, ApiError> {
        let Some(count) = self.logprobs else { return Ok(Value::Null) };
        if self.is_text {
            return texts.logprobs(piece, count);
        }
        let mut content = Vec::with_capacity(piece.token_ids.len());
        for (i, (&token, &logprob)) in piece.token_ids.iter().zip(&piece.logprobs).enumerate() {
            let alternatives = piece.alternatives.get(i);
            let rank = alternatives.map(|alternatives| alternatives.rank);
            let logprob = f64::from(logprob);
            let mut top = vec![json!({"token_id": token, "logprob": logprob, "rank": rank})];
            let likeliest = alternatives.map_or(&[][..], |alternatives| &alternatives.likeliest);
            for (place, &(other, logprob)) in likeliest.iter().enumerate() {
                if other != token && top.len() < count {
                    top.push(json!({"token_id": other, "logprob": f64::from(logprob), "rank": place + 1}));
                }
            }
            content.push(json!({"token_id": token, "logprob": logprob, "rank": rank, "top_logprobs": top}));
        }
        Ok(json!({"content": content}))
    }

    /// What all choices have; our own field comes where ours came.
    fn choice(&self, index: usize, piece: &Piece, ended: Option<&Ended>, stop_reason: &Value) -> Value {
        let mut choice = json!({
            "index": index,
            "finish_reason": ended.map(|ended| finish_name(ended.finish)),
            "stop_reason": stop_reason,
            "token_ids": piece.token_ids,
            "routed_experts": null,
            "sampling_mask": null,
            "weight_versions": ended.map(spans),
        });
        if let Some(ended) = ended.filter(|_| self.how.is_keyed) {
            choice["tamis"] = json!({"entropy": Some(ended.entropy).filter(|entropy| entropy.is_finite())});
        }
        choice
    }

    async fn whole(&self, running: Running) -> Result<Value, ApiError> {
        let Self { app, how, .. } = self;
        let done = running.collect().await?;
        let mut choices = Vec::with_capacity(done.len());
        let mut completion_tokens = 0;
        for (index, Choice { piece, ended }) in done.into_iter().enumerate() {
            completion_tokens += piece.token_ids.len();
            // Nobody reads a text where it is not asked for and cannot be why a completion ended.
            let read =
                if self.is_text || !how.stop.strings().is_empty() { &piece.token_ids[..] } else { &[] };
            let (text, stopped_by) = whole(&app.tokenizer, how, &app.end_token_ids, read, ended.finish)?;
            let by_token = stop_reason(how, &app.end_token_ids, piece.token_ids.last(), None, ended.finish);
            let stop_reason = if by_token.is_null() { stopped_by } else { by_token };
            let mut choice = self.choice(index, &piece, Some(&ended), &stop_reason);
            if self.is_text {
                choice["text"] = json!(text);
            }
            let mut texts = TokenTexts::new(app.tokenizer.clone(), false);
            choice["logprobs"] = self.logprobs(&mut texts, &piece)?;
            choices.push(choice);
        }
        Ok(json!({
            "request_id": self.id,
            "model": app.name,
            "created": self.created,
            "usage": super::usage(self.prompt.len(), completion_tokens),
            "prompt_logprobs": null,
            "prompt_token_ids": self.tells_prompt.then_some(&self.prompt),
            "output_mode": self.mode(),
            "choices": choices,
        }))
    }

    fn mode(&self) -> &'static str {
        if self.is_text { "text" } else { "tokens" }
    }
}

struct GenerateChunks {
    form: Form,
    choices: Vec<(GrowingText, TokenTexts)>,
    is_begun: bool,
    completion_tokens: usize,
}

impl GenerateChunks {
    fn new(form: Form) -> Self {
        let tokenizer = || form.app.tokenizer.clone();
        let choices = (0..form.how.n)
            .map(|_| (GrowingText::new(tokenizer(), form.how.clone()), TokenTexts::new(tokenizer(), false)))
            .collect();
        Self { form, choices, is_begun: false, completion_tokens: 0 }
    }
}

impl Chunks for GenerateChunks {
    fn chunk(&mut self, event: Event) -> Result<Value, ApiError> {
        let Event { choice: index, piece, ended } = event;
        self.completion_tokens += piece.token_ids.len();
        let form = &self.form;
        let Some((growing, tokens)) = self.choices.get_mut(index) else { return Err(broken()) };
        let text = growing.push(&piece.token_ids, ended.is_some())?;
        let stop_reason = ended
            .as_ref()
            .map_or(Value::Null, |ended| growing.stop_reason(&form.app.end_token_ids, ended.finish));
        let mut choice = form.choice(index, &piece, ended.as_ref(), &stop_reason);
        if form.is_text {
            choice["text"] = json!(text);
        }
        choice["logprobs"] = form.logprobs(tokens, &piece)?;
        let mut value = json!({"request_id": form.id, "usage": null});
        if form.tells_prompt && !std::mem::replace(&mut self.is_begun, true) {
            value["prompt_token_ids"] = json!(form.prompt);
        }
        value["output_mode"] = json!(form.mode());
        value["choices"] = json!([choice]);
        Ok(value)
    }

    fn tail(&mut self) -> Vec<Value> {
        let form = &self.form;
        if !form.includes_usage {
            return Vec::new();
        }
        vec![json!({
            "request_id": form.id,
            "usage": super::usage(form.prompt.len(), self.completion_tokens),
            "output_mode": form.mode(),
            "choices": [],
        })]
    }
}
