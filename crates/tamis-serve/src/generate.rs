//! `/inference/v1/generate`: token ids in and out, with the log-probabilities and the versions of the weights
//! that training needs.

use std::sync::Arc;

use serde_json::{Value, json};
use tamis_rollout::api::error::ApiError;
use tamis_rollout::api::field::Fields;
use tamis_rollout::api::json::Document;

use crate::answer::{ChoiceOutput, OpenRequest, RouteFormat};
use crate::engine::{Ended, Piece};
use crate::sampling::MOST_ALTERNATIVES;
use crate::text::{TokenTexts, finish_name};
use crate::{App, Reply};

/// Default number of completion tokens (vLLM's).
const MAX_TOKENS: usize = 16;

pub(crate) async fn answer(
    app: &Arc<App>,
    body: Document,
    request_id: Option<&str>,
) -> Result<Reply, ApiError> {
    let fields = Fields::of(&body.value)?;
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
    let mut how = app.how_sampled(sampling, fields, max_tokens, MAX_TOKENS).await?;
    let id = format!("generate-tokens-{}", app.request_id(fields, request_id)?);
    how.params.num_alternatives = logprobs;
    let asked = OpenRequest::read(app, fields, id, how, vec![prompt], logprobs)?;
    drop(body);
    asked.answer(Generate { is_text }, false).await
}

/// The spans of versions, in vLLM's form.
fn spans(ended: &Ended) -> Value {
    let mut start = 0;
    let spans = ended.versions.iter().map(|(version, end)| {
        let span = json!({"version": version.as_ref(), "start": start, "end": end});
        start = *end;
        span
    });
    spans.collect()
}

/// The form of the route's answers: token ids, or also text.
struct Generate {
    is_text: bool,
}

impl Generate {
    fn mode(&self) -> &'static str {
        if self.is_text { "text" } else { "tokens" }
    }
}

impl RouteFormat for Generate {
    fn tells_text(&self) -> bool {
        self.is_text
    }

    /// By token id, or by text in text mode.
    fn logprobs(&self, texts: &mut TokenTexts, piece: &Piece, count: usize) -> Result<Value, ApiError> {
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

    /// A request with our own field gets our own field back.
    fn choice(&self, asked: &OpenRequest, output: ChoiceOutput<'_>) -> Value {
        let mut choice = json!({
            "index": output.index,
            "finish_reason": output.ended.map(finish_name),
            "stop_reason": output.stop_reason,
            "token_ids": output.piece.token_ids,
            "routed_experts": null,
            "sampling_mask": null,
            "weight_versions": output.ended.map(spans),
        });
        if let Some(ended) = output.ended.filter(|_| asked.how.is_keyed) {
            choice["tamis"] = json!({"entropy": Some(ended.entropy).filter(|entropy| entropy.is_finite())});
        }
        if self.is_text {
            choice["text"] = json!(output.text);
        }
        choice["logprobs"] = output.logprobs;
        choice
    }

    fn whole(&self, asked: &OpenRequest, choices: Value, usage: Value) -> Value {
        json!({
            "request_id": asked.id,
            "model": asked.app.name,
            "created": asked.created(),
            "usage": usage,
            "prompt_logprobs": asked.prompt_logprobs(0),
            "prompt_token_ids": asked.tells_ids.then(|| asked.prompt(0)),
            "output_mode": self.mode(),
            "choices": choices,
        })
    }

    fn part(&self, asked: &OpenRequest, output: ChoiceOutput<'_>) -> Value {
        self.choice(asked, output)
    }

    fn chunk(&self, asked: &OpenRequest, choices: Value, usage: Option<Value>, is_first: bool) -> Value {
        let mut value = json!({"request_id": asked.id, "usage": usage});
        if asked.tells_ids && is_first {
            value["prompt_token_ids"] = json!(asked.prompt(0));
        }
        value["output_mode"] = json!(self.mode());
        value["choices"] = choices;
        value
    }
}
