//! `/v1/chat/completions`: a conversation through the checkpoint's own template.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::engine::{Event, Piece};
use super::error::ApiError;
use super::field::{Fields, Refused};
use super::running::{Choice, Running, broken};
use super::sampling::{HowSampled, MOST_ALTERNATIVES};
use super::stream::Chunks;
use super::text::{GrowingText, TokenTexts, finish_name, whole};
use super::{App, Reply};

#[derive(Clone)]
struct Form {
    app: Arc<App>,
    id: String,
    created: u64,
    how: Arc<HowSampled>,
    /// How many of the likeliest tokens are told with each; `None` tells no log-probabilities.
    logprobs: Option<usize>,
    tells_ids: bool,
    as_ids: bool,
    includes_usage: bool,
    prompt: Vec<u32>,
}

/// Fields that would change the conversation or the form of the answer.
const REFUSED: [Refused; 6] = [
    ("tools", |value| value.as_array().is_some_and(Vec::is_empty), "describe them in the conversation"),
    ("functions", |value| value.as_array().is_some_and(Vec::is_empty), "describe them in the conversation"),
    ("response_format", |value| value["type"] == "text", "only `{\"type\": \"text\"}` is"),
    ("audio", |_| false, "leave it out"),
    ("modalities", |value| value == &json!(["text"]), "only text is"),
    ("echo", |value| value == &Value::Bool(false), "leave it out"),
];

pub(super) async fn answer(
    app: &Arc<App>,
    body: &Value,
    request_id: Option<&str>,
) -> Result<Reply, ApiError> {
    let fields = Fields::of(body)?;
    app.check_model(fields)?;
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
    let mut how = HowSampled::read(fields, fields, max_tokens, &app.defaults(app.max_model_len()))?;
    how.params.num_alternatives = top.filter(|&count| count > 0);
    let is_streamed = fields.flag("stream")?;
    let options = fields.object("stream_options", "stream_options.")?;
    let form = Form {
        id: format!("chatcmpl-{}", app.request_id(fields, request_id)?),
        created: super::seconds(),
        logprobs: wants_logprobs.then(|| top.unwrap_or(0)),
        tells_ids: fields.flag("return_token_ids")?,
        as_ids: fields.flag("return_tokens_as_token_ids")?,
        includes_usage: options.map_or(Ok(false), |options| options.flag("include_usage"))?,
        prompt: prompt.clone(),
        how: Arc::new(how),
        app: app.clone(),
    };
    let running = app.submit(&form.id, false, vec![prompt], &form.how, is_streamed)?;
    if is_streamed {
        return Ok(Reply::Stream(running, Box::new(ChatChunks::new(form))));
    }
    Ok(Reply::Json(form.whole(running).await?))
}

/// The tokens of a conversation, as the template writes it.
pub(super) async fn prompt(app: &Arc<App>, fields: Fields<'_>) -> Result<Vec<u32>, ApiError> {
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
            let texts: Option<Vec<&str>> = parts
                .iter()
                .map(|part| {
                    part["text"].as_str().filter(|_| part["type"] == "text" || part["type"].is_null())
                })
                .collect();
            let Some(texts) = texts else {
                return Err(ApiError::field(name, "only parts of the type `text` can be read"));
            };
            message["content"] = json!(texts.join("\n"));
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
    super::off_thread(move || {
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
        app.tokenizer.encode(&text, false).map_err(|error| ApiError::field("messages", error.to_string()))
    })
    .await?
}

impl Form {
    fn head(&self, object: &str) -> Map<String, Value> {
        let mut head = Map::new();
        head.insert("id".to_owned(), json!(self.id));
        head.insert("object".to_owned(), json!(object));
        head.insert("created".to_owned(), json!(self.created));
        head.insert("model".to_owned(), json!(self.app.name));
        head
    }

    fn logprobs(&self, texts: &mut TokenTexts, piece: &Piece) -> Result<Value, ApiError> {
        self.logprobs.map_or(Ok(Value::Null), |count| texts.logprobs(piece, count))
    }

    async fn whole(&self, running: Running) -> Result<Value, ApiError> {
        let done = running.collect().await?;
        let mut choices = Vec::with_capacity(done.len());
        let mut completion_tokens = 0;
        for (index, Choice { piece, ended }) in done.into_iter().enumerate() {
            let Self { app, how, .. } = self;
            let (text, stop_reason) =
                whole(&app.tokenizer, how, &app.end_token_ids, &piece.token_ids, ended.finish)?;
            let mut texts = TokenTexts::new(app.tokenizer.clone(), self.as_ids);
            completion_tokens += piece.token_ids.len();
            choices.push(json!({
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": text,
                    "refusal": null,
                    "annotations": null,
                    "audio": null,
                    "function_call": null,
                    "reasoning": null,
                },
                "logprobs": self.logprobs(&mut texts, &piece)?,
                "finish_reason": finish_name(ended.finish),
                "stop_reason": stop_reason,
                "token_ids": self.tells_ids.then_some(&piece.token_ids),
                "routed_experts": null,
            }));
        }
        let mut value = self.head("chat.completion");
        value.insert("choices".to_owned(), Value::Array(choices));
        value.insert("service_tier".to_owned(), Value::Null);
        value.insert("system_fingerprint".to_owned(), json!(super::FINGERPRINT));
        value.insert("usage".to_owned(), super::usage(self.prompt.len(), completion_tokens));
        value.insert("prompt_logprobs".to_owned(), Value::Null);
        value.insert("prompt_token_ids".to_owned(), json!(self.tells_ids.then_some(&self.prompt)));
        Ok(Value::Object(value))
    }
}

struct ChatChunks {
    form: Form,
    choices: Vec<(GrowingText, TokenTexts)>,
    completion_tokens: usize,
}

impl ChatChunks {
    fn new(form: Form) -> Self {
        let Form { app, how, .. } = &form;
        let choices = (0..how.n)
            .map(|_| {
                let text = GrowingText::new(app.tokenizer.clone(), how.clone());
                (text, TokenTexts::new(app.tokenizer.clone(), form.as_ids))
            })
            .collect();
        Self { form, choices, completion_tokens: 0 }
    }

    fn value(&self, choices: Value) -> Map<String, Value> {
        let mut value = self.form.head("chat.completion.chunk");
        value.insert("choices".to_owned(), choices);
        value
    }
}

impl Chunks for ChatChunks {
    fn head(&mut self) -> Vec<Value> {
        (0..self.form.how.n)
            .map(|index| {
                let delta = json!({"role": "assistant", "content": ""});
                let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
                let mut value = self.value(json!([choice]));
                if index == 0 && self.form.tells_ids {
                    value.insert("prompt_token_ids".to_owned(), json!(self.form.prompt));
                }
                Value::Object(value)
            })
            .collect()
    }

    fn chunk(&mut self, event: Event) -> Result<Value, ApiError> {
        let Event { choice: index, piece, ended } = event;
        self.completion_tokens += piece.token_ids.len();
        let Some((text, tokens)) = self.choices.get_mut(index) else { return Err(broken()) };
        let content = text.push(&piece.token_ids, ended.is_some())?;
        let mut choice = json!({
            "index": index,
            "delta": {"content": content},
            "logprobs": self.form.logprobs(tokens, &piece)?,
            "finish_reason": ended.as_ref().map(|ended| finish_name(ended.finish)),
        });
        if let Some(ended) = ended {
            choice["stop_reason"] = text.stop_reason(&self.form.app.end_token_ids, ended.finish);
        }
        if self.form.tells_ids {
            choice["token_ids"] = json!(piece.token_ids);
        }
        Ok(Value::Object(self.value(json!([choice]))))
    }

    fn tail(&mut self) -> Vec<Value> {
        if !self.form.includes_usage {
            return Vec::new();
        }
        let mut value = self.value(json!([]));
        value.insert("usage".to_owned(), super::usage(self.form.prompt.len(), self.completion_tokens));
        vec![Value::Object(value)]
    }
}
