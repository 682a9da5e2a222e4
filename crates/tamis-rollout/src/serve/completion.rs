//! `/v1/completions`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::engine::{Event, Piece};
use super::error::ApiError;
use super::field::{Fields, token_ids};
use super::running::{Choice, Running};
use super::sampling::{HowSampled, MOST_ALTERNATIVES};
use super::stream::Chunks;
use super::text::{GrowingText, TokenTexts, finish_name, whole};
use super::{App, Reply};

/// Completion tokens where the request does not say (OpenAI's default).
const MAX_TOKENS: usize = 16;

/// Prompts in one request, at most.
const MOST_PROMPTS: usize = 1024;

/// What of an answer only the form of it needs.
#[derive(Clone)]
struct Form {
    app: Arc<App>,
    id: String,
    created: u64,
    how: Arc<HowSampled>,
    logprobs: Option<usize>,
    tells_ids: bool,
    as_ids: bool,
    includes_usage: bool,
    prompts: Arc<Vec<Vec<u32>>>,
}

pub(super) async fn answer(
    app: &Arc<App>,
    body: &Value,
    request_id: Option<&str>,
) -> Result<Reply, ApiError> {
    let fields = Fields::of(body)?;
    app.check_model(fields)?;
    fields.refuse(&[
        ("echo", |value| value == &Value::Bool(false), "put the prompt before the text yourself"),
        ("suffix", |value| value == "", "leave it out"),
        ("prompt_embeds", |_| false, "send `prompt`"),
    ])?;
    let prompts = prompts(app, fields).await?;
    let logprobs = fields.count("logprobs", 0, MOST_ALTERNATIVES)?;
    let max_tokens = fields.count("max_tokens", 1, i64::MAX)?;
    let mut how = HowSampled::read(fields, fields, max_tokens, &app.defaults(MAX_TOKENS))?;
    how.params.num_alternatives = logprobs.filter(|&count| count > 0);
    let is_streamed = fields.flag("stream")?;
    let id = format!("cmpl-{}", app.request_id(fields, request_id)?);
    let options = fields.object("stream_options", "stream_options.")?;
    let form = Form {
        id,
        created: super::seconds(),
        logprobs,
        tells_ids: fields.flag("return_token_ids")?,
        as_ids: fields.flag("return_tokens_as_token_ids")?,
        includes_usage: options.map_or(Ok(false), |options| options.flag("include_usage"))?,
        prompts: Arc::new(prompts.clone()),
        how: Arc::new(how),
        app: app.clone(),
    };
    let running = app.submit(&form.id, true, prompts, &form.how, is_streamed)?;
    if is_streamed {
        return Ok(Reply::Stream(running, Box::new(CompletionChunks::new(form))));
    }
    let value = form.whole(running).await?;
    Ok(Reply::Json(value))
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

impl Form {
    fn prompt(&self, choice: usize) -> &[u32] {
        self.prompts.get(choice / self.how.n).map_or(&[], Vec::as_slice)
    }

    fn head(&self) -> Map<String, Value> {
        let mut head = Map::new();
        head.insert("id".to_owned(), json!(self.id));
        head.insert("object".to_owned(), json!("text_completion"));
        head.insert("created".to_owned(), json!(self.created));
        head.insert("model".to_owned(), json!(self.app.name));
        head
    }

    fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(Vec::len).sum()
    }

    fn logprobs(&self, texts: &mut TokenTexts, piece: &Piece) -> Result<Value, ApiError> {
        let Some(count) = self.logprobs else { return Ok(Value::Null) };
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
                "text": text,
                "logprobs": self.logprobs(&mut texts, &piece)?,
                "finish_reason": finish_name(ended.finish),
                "stop_reason": stop_reason,
                "token_ids": self.tells_ids.then_some(&piece.token_ids),
                "prompt_logprobs": null,
                "prompt_token_ids": self.tells_ids.then(|| self.prompt(index)),
                "routed_experts": null,
            }));
        }
        let mut value = self.head();
        value.insert("choices".to_owned(), Value::Array(choices));
        value.insert("service_tier".to_owned(), Value::Null);
        value.insert("system_fingerprint".to_owned(), json!(super::FINGERPRINT));
        value.insert("usage".to_owned(), super::usage(self.prompt_tokens(), completion_tokens));
        Ok(Value::Object(value))
    }
}

struct CompletionChunks {
    form: Form,
    choices: Vec<Growing>,
    completion_tokens: usize,
}

struct Growing {
    text: GrowingText,
    tokens: TokenTexts,
    is_begun: bool,
}

impl CompletionChunks {
    fn new(form: Form) -> Self {
        let choices = (0..form.prompts.len() * form.how.n)
            .map(|_| Growing {
                text: GrowingText::new(form.app.tokenizer.clone(), form.how.clone()),
                tokens: TokenTexts::new(form.app.tokenizer.clone(), form.as_ids),
                is_begun: false,
            })
            .collect();
        Self { form, choices, completion_tokens: 0 }
    }
}

impl Chunks for CompletionChunks {
    fn chunk(&mut self, event: Event) -> Result<Value, ApiError> {
        let Event { choice: index, piece, ended } = event;
        self.completion_tokens += piece.token_ids.len();
        let form = &self.form;
        let Some(growing) = self.choices.get_mut(index) else { return Err(super::running::broken()) };
        let text = growing.text.push(&piece.token_ids, ended.is_some())?;
        let finish = ended.map(|ended| ended.finish);
        let is_first = !std::mem::replace(&mut growing.is_begun, true);
        let choice = json!({
            "index": index,
            "text": text,
            "logprobs": form.logprobs(&mut growing.tokens, &piece)?,
            "finish_reason": finish.map(finish_name),
            "stop_reason": finish.map_or(Value::Null, |finish| growing.text.stop_reason(&form.app.end_token_ids, finish)),
            "prompt_token_ids": (form.tells_ids && is_first).then(|| form.prompt(index)),
            "token_ids": form.tells_ids.then_some(&piece.token_ids),
        });
        let mut value = form.head();
        value.insert("choices".to_owned(), json!([choice]));
        Ok(Value::Object(value))
    }

    fn tail(&mut self) -> Vec<Value> {
        if !self.form.includes_usage {
            return Vec::new();
        }
        let mut value = self.form.head();
        value.insert("choices".to_owned(), json!([]));
        value.insert("usage".to_owned(), super::usage(self.form.prompt_tokens(), self.completion_tokens));
        vec![Value::Object(value)]
    }
}
