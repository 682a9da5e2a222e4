//! `/v1/completions`.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tamis_rollout::api::error::ApiError;
use tamis_rollout::api::field::{Fields, token_ids};
use tamis_rollout::api::json::Document;

use crate::answer::{ChoiceOutput, OpenRequest, RouteFormat};
use crate::engine::Piece;
use crate::sampling::MOST_ALTERNATIVES;
use crate::text::{TokenTexts, finish_name};
use crate::{App, Reply};

/// Default number of completion tokens (OpenAI's).
const MAX_TOKENS: usize = 16;

/// Most prompts in one request.
const MOST_PROMPTS: usize = 1024;

pub(crate) async fn answer(
    app: &Arc<App>,
    body: Document,
    request_id: Option<&str>,
) -> Result<Reply, ApiError> {
    let fields = Fields::of(&body.value)?;
    fields.refuse(&[
        ("echo", |value| value == &Value::Bool(false), "put the prompt before the text yourself"),
        ("suffix", |value| value == "", "leave it out"),
        ("prompt_embeds", |_| false, "send `prompt`"),
    ])?;
    let prompts = prompts(app, fields).await?;
    let logprobs = fields.count("logprobs", 0, MOST_ALTERNATIVES)?;
    let max_tokens = fields.count("max_tokens", 1, i64::MAX)?;
    let mut how = app.how_sampled(fields, fields, max_tokens, MAX_TOKENS).await?;
    let id = format!("cmpl-{}", app.request_id(fields, request_id)?);
    how.params.num_alternatives = logprobs.filter(|&count| count > 0);
    let asked = OpenRequest::read(app, fields, id, how, prompts, logprobs)?;
    drop(body);
    asked.answer(Completion, true).await
}

/// The prompts of a request: a text, a list of token ids, or a list of either.
async fn prompts(app: &Arc<App>, fields: Fields<'_>) -> Result<Vec<Vec<u32>>, ApiError> {
    let wrong = || {
        ApiError::field(
            "prompt",
            "`prompt` must be a text, a list of token ids (whole numbers from 0), or a list of such prompts",
        )
    };
    let prompts = match fields.get("prompt") {
        None => return Err(ApiError::field("prompt", "`prompt` is missing")),
        Some(Value::String(text)) => vec![app.encode(text.clone(), true).await?],
        Some(Value::Array(values)) if values.is_empty() => {
            return Err(ApiError::bad("You must pass at least one prompt"));
        }
        Some(value @ Value::Array(values)) => match &values[0] {
            Value::Number(_) => vec![token_ids(value).ok_or_else(wrong)?],
            _ if values.len() > MOST_PROMPTS => {
                return Err(ApiError::field(
                    "prompt",
                    format!("at most {MOST_PROMPTS} prompts go into a request"),
                ));
            }
            _ => {
                let mut prompts = Vec::with_capacity(values.len());
                for value in values {
                    prompts.push(match value {
                        Value::String(text) => app.encode(text.clone(), true).await?,
                        value => token_ids(value).ok_or_else(wrong)?,
                    });
                }
                prompts
            }
        },
        Some(_) => return Err(wrong()),
    };
    Ok(prompts)
}

struct Completion;

impl RouteFormat for Completion {
    fn logprobs(&self, texts: &mut TokenTexts, piece: &Piece, count: usize) -> Result<Value, ApiError> {
        let (mut offsets, mut tokens, mut tops) = (Vec::new(), Vec::new(), Vec::new());
        for (i, (&token, &logprob)) in piece.token_ids.iter().zip(&piece.logprobs).enumerate() {
            let (text, offset) = texts.next(token)?;
            let mut top = Map::new();
            top.insert(text.clone(), json!(f64::from(logprob)));
            let likeliest = piece.alternatives.get(i).map_or(&[][..], |alternatives| &alternatives.likeliest);
            for &(other, logprob) in likeliest.iter().take(count) {
                if other != token {
                    top.entry(texts.alone(other)?).or_insert_with(|| json!(f64::from(logprob)));
                }
            }
            offsets.push(offset);
            tokens.push(text);
            tops.push(Value::Object(top));
        }
        let logprobs: Vec<f64> = piece.logprobs.iter().copied().map(f64::from).collect();
        Ok(
            json!({"text_offset": offsets, "token_logprobs": logprobs, "tokens": tokens, "top_logprobs": tops}),
        )
    }

    fn choice(&self, asked: &OpenRequest, output: ChoiceOutput<'_>) -> Value {
        json!({
            "index": output.index,
            "text": output.text,
            "logprobs": output.logprobs,
            "finish_reason": output.ended.map(finish_name),
            "stop_reason": output.stop_reason,
            "token_ids": asked.tells_ids.then_some(&output.piece.token_ids),
            "prompt_logprobs": asked.prompt_logprobs(output.index),
            "prompt_token_ids": asked.tells_ids.then(|| asked.prompt(output.index)),
            "routed_experts": null,
        })
    }

    fn whole(&self, asked: &OpenRequest, choices: Value, usage: Value) -> Value {
        asked.openai_whole("text_completion", choices, usage)
    }

    fn part(&self, asked: &OpenRequest, output: ChoiceOutput<'_>) -> Value {
        json!({
            "index": output.index,
            "text": output.text,
            "logprobs": output.logprobs,
            "finish_reason": output.ended.map(finish_name),
            "stop_reason": output.stop_reason,
            "prompt_token_ids": (asked.tells_ids && output.is_first).then(|| asked.prompt(output.index)),
            "token_ids": asked.tells_ids.then_some(&output.piece.token_ids),
        })
    }

    fn chunk(&self, asked: &OpenRequest, choices: Value, usage: Option<Value>, _: bool) -> Value {
        asked.openai_chunk("text_completion", choices, usage)
    }
}
