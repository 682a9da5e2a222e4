//! `/v1/chat/completions`: a conversation through the checkpoint's own template.

use std::sync::Arc;

use serde_json::{Value, json};
use tamis_rollout::api::error::ApiError;
use tamis_rollout::api::field::{Fields, Refused, joined_text};
use tamis_rollout::api::json::Document;
use tamis_rollout::api::off_thread;

use crate::answer::{ChoiceOutput, OpenRequest, RouteFormat};
use crate::engine::Piece;
use crate::sampling::MOST_ALTERNATIVES;
use crate::text::{TokenTexts, finish_name};
use crate::{App, Reply};

/// Fields that would change the conversation or the form of the answer.
const REFUSED: [Refused; 6] = [
    ("tools", |value| value.as_array().is_some_and(Vec::is_empty), "describe them in the conversation"),
    ("functions", |value| value.as_array().is_some_and(Vec::is_empty), "describe them in the conversation"),
    ("response_format", |value| value["type"] == "text", "only `{\"type\": \"text\"}` is"),
    ("audio", |_| false, "leave it out"),
    ("modalities", |value| value == &json!(["text"]), "only text is"),
    ("echo", |value| value == &Value::Bool(false), "leave it out"),
];

pub(crate) async fn answer(
    app: &Arc<App>,
    body: Document,
    request_id: Option<&str>,
) -> Result<Reply, ApiError> {
    let fields = Fields::of(&body.value)?;
    fields.refuse(&REFUSED)?;
    let prompt = prompt(app, fields).await?;
    let wants_logprobs = fields.flag("logprobs")?;
    let top = fields.count("top_logprobs", 0, MOST_ALTERNATIVES)?;
    if top.is_some_and(|top| top > 0) && !wants_logprobs {
        return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs: true`"));
    }
    let max_tokens = match fields.count("max_completion_tokens", 1, i64::MAX)? {
        Some(count) => Some(count),
        None => fields.count("max_tokens", 1, i64::MAX)?,
    };
    let mut how = app.how_sampled(fields, fields, max_tokens, app.max_model_len()).await?;
    let id = format!("chatcmpl-{}", app.request_id(fields, request_id)?);
    how.params.num_alternatives = top.filter(|&count| count > 0);
    let logprobs = wants_logprobs.then(|| top.unwrap_or(0));
    let asked = OpenRequest::read(app, fields, id, how, vec![prompt], logprobs)?;
    drop(body);
    asked.answer(Chat, false).await
}

/// The tokens of a conversation in the template's form.
pub(crate) async fn prompt(app: &Arc<App>, fields: Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let Some(list) = fields.list("messages")? else {
        return Err(ApiError::field("messages", "`messages` is missing"));
    };
    let mut messages: Vec<Value> = list.to_vec();
    for (i, message) in messages.iter_mut().enumerate() {
        let name = format!("messages.{i}");
        if !message["role"].is_string() {
            return Err(ApiError::field(name, "a message must be an object with a text `role`"));
        }
        if let Some(Value::Array(parts)) = message.get("content") {
            let text = joined_text(parts)
                .map_err(|_| ApiError::field(name, "only parts of the type `text` can be read"))?;
            message["content"] = json!(text);
        }
    }
    let mut arguments = app.template_arguments.clone();
    if let Some(own) = fields.get("chat_template_kwargs") {
        let own = own.as_object().ok_or_else(|| {
            ApiError::field("chat_template_kwargs", "`chat_template_kwargs` must be an object")
        })?;
        arguments.extend(own.clone());
    }
    let continues = fields.flag("continue_final_message")?;
    let adds = fields.optional_flag("add_generation_prompt")?.unwrap_or(!continues);
    if continues && adds {
        let message = "`continue_final_message` and `add_generation_prompt` cannot both be set";
        return Err(ApiError::field("continue_final_message", message));
    }
    if continues && messages.last().is_none_or(|last| last["role"] != "assistant") {
        let message = "`continue_final_message` needs a final message of the assistant";
        return Err(ApiError::field("continue_final_message", message));
    }
    if fields.text("chat_template")?.is_some() {
        let instead = "the checkpoint's own template is used";
        return Err(ApiError::unsupported("chat_template", instead));
    }
    let app = app.clone();
    off_thread(move || {
        let template = app.template.as_ref().ok_or_else(|| {
            ApiError::bad("the tokenizer has no chat template: ask /v1/completions, with the prompt as text or token ids")
        })?;
        let rendered = if continues {
            template.prompt(&messages, &arguments).map(|rendered| rendered.text)
        } else {
            arguments.insert("add_generation_prompt".to_owned(), Value::Bool(adds));
            if messages.is_empty() {
                return Err(ApiError::field("messages", "the conversation is empty"));
            }
            template.render(&messages, &arguments)
        };
        let text = rendered.map_err(|error| ApiError::field("messages", error.to_string()))?;
        app.encode_now("messages", &text, false)
    })
    .await?
}

/// The form of chat answers.
struct Chat;

impl RouteFormat for Chat {
    fn logprobs(&self, texts: &mut TokenTexts, piece: &Piece, count: usize) -> Result<Value, ApiError> {
        texts.logprobs(piece, count)
    }

    fn choice(&self, asked: &OpenRequest, output: ChoiceOutput<'_>) -> Value {
        json!({
            "index": output.index,
            "message": {
                "role": "assistant",
                "content": output.text,
                "refusal": null,
                "annotations": null,
                "audio": null,
                "function_call": null,
                "reasoning": null,
            },
            "logprobs": output.logprobs,
            "finish_reason": output.ended.map(finish_name),
            "stop_reason": output.stop_reason,
            "token_ids": asked.tells_ids.then_some(&output.piece.token_ids),
            "routed_experts": null,
        })
    }

    fn whole(&self, asked: &OpenRequest, choices: Value, usage: Value) -> Value {
        let mut value = asked.openai_whole("chat.completion", choices, usage);
        value["prompt_logprobs"] = asked.prompt_logprobs(0);
        value["prompt_token_ids"] = json!(asked.tells_ids.then(|| asked.prompt(0)));
        value
    }

    fn part(&self, asked: &OpenRequest, output: ChoiceOutput<'_>) -> Value {
        let mut choice = json!({
            "index": output.index,
            "delta": {"content": output.text},
            "logprobs": output.logprobs,
            "finish_reason": output.ended.map(finish_name),
        });
        if output.ended.is_some() {
            choice["stop_reason"] = output.stop_reason;
        }
        if asked.tells_ids {
            choice["token_ids"] = json!(output.piece.token_ids);
        }
        choice
    }

    fn chunk(&self, asked: &OpenRequest, choices: Value, usage: Option<Value>, _: bool) -> Value {
        asked.openai_chunk("chat.completion.chunk", choices, usage)
    }

    /// The chunk that names the role, for each choice.
    fn opening_chunks(&self, asked: &OpenRequest) -> Vec<Value> {
        let opening = |index| {
            let delta = json!({"role": "assistant", "content": ""});
            let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
            let mut value = self.chunk(asked, json!([choice]), None, index == 0);
            if index == 0 && asked.tells_ids {
                value["prompt_token_ids"] = json!(asked.prompt(0));
            }
            value
        };
        (0..asked.how.n).map(opening).collect()
    }
}
