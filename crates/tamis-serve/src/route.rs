//! From a request to its answer: access, route, size of the body, and model.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tamis_rollout::api::error::ApiError;
use tamis_rollout::api::field::{Fields, token_ids};
use tamis_rollout::api::json::{Document, JsonForm};
use tamis_rollout::api::off_thread;
use tamis_rollout::body::BodyLimits;
use tamis_rollout::caller::{is_same, stranger};
use tokio::time::timeout;

use crate::log::{PendingLine, RequestLog};
use crate::models::Models;
use crate::stream::{AnswerBody, Stream};
use crate::{App, Reply, SHORT, chat, completion, control, generate, page};

const REQUEST_ID: &str = "x-request-id";

/// Answers any request.
pub(crate) async fn answer(
    models: Arc<Models>,
    request: Request<Incoming>,
    log: Option<RequestLog>,
) -> Result<Response<AnswerBody>, Infallible> {
    let (parts, body) = request.into_parts();
    let app = models.first();
    let mut line = log.map(|log| PendingLine::begin(log, &parts));
    let id = parts.headers.get(REQUEST_ID).cloned();
    let mut response = match route(&models, &parts, body).await {
        Ok(Reply::Empty) => respond(StatusCode::OK, None, Vec::new()),
        Ok(Reply::Json(value)) => {
            respond(StatusCode::OK, Some("application/json"), value.to_string().into_bytes())
        }
        Ok(Reply::Written(text)) => respond(StatusCode::OK, Some("application/json"), text.into_bytes()),
        Ok(Reply::Sampled(text, usage)) => {
            if let Some(line) = &mut line {
                line.usage = Some(usage);
            }
            respond(StatusCode::OK, Some("application/json"), text.into_bytes())
        }
        Ok(Reply::Page) => page::respond(app.random_number()),
        Ok(Reply::Text(text)) => {
            let form = "text/plain; version=0.0.4; charset=utf-8";
            respond(StatusCode::OK, Some(form), text.into_bytes())
        }
        Ok(Reply::Stream(running, chunks)) => {
            let mut response = respond(StatusCode::OK, Some("text/event-stream; charset=utf-8"), Vec::new());
            if let Some(line) = &mut line {
                line.status = StatusCode::OK.as_u16();
            }
            let stream = Stream::new(running, chunks, app.settings.request_timeout, line.take());
            *response.body_mut() = AnswerBody::Stream(Box::new(stream));
            response
        }
        Err(error) => {
            let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let mut response =
                respond(status, Some("application/json"), error.body().to_string().into_bytes());
            if error.is_passing() {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            response
        }
    };
    let id = id.or_else(|| HeaderValue::from_str(&format!("{:016x}", app.random_number())).ok());
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    if let Some(line) = &mut line {
        line.status = response.status().as_u16();
    }
    Ok(response)
}

pub(crate) fn respond(status: StatusCode, form: Option<&'static str>, body: Vec<u8>) -> Response<AnswerBody> {
    let bytes = (!body.is_empty()).then(|| Bytes::from(body));
    let mut response = Response::new(AnswerBody::Whole(bytes));
    *response.status_mut() = status;
    if let Some(form) = form {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(form));
    }
    response
}

async fn route(models: &Models, parts: &Parts, body: Incoming) -> Result<Reply, ApiError> {
    let path = parts.uri.path();
    let (is_get, is_post) = (parts.method == Method::GET, parts.method == Method::POST);
    if matches!(path, "/health" | "/ping") {
        return if is_get || is_post { Ok(Reply::Empty) } else { Err(ApiError::wrong_method()) };
    }
    // The page contains nothing of the model, and its requests need the key.
    if path == "/" {
        return if is_get { Ok(Reply::Page) } else { Err(ApiError::wrong_method()) };
    }
    check_client(models.first(), &parts.headers)?;
    let query = parts.uri.query().unwrap_or_default();
    let id = parts.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let wants_get = match path {
        "/version" | "/v1/models" | "/metrics" | "/load" | "/is_paused" | "/weight_info" => true,
        "/v1/completions"
        | "/v1/chat/completions"
        | "/inference/v1/generate"
        | "/tokenize"
        | "/detokenize"
        | "/abort_requests"
        | "/inference/v1/abort_requests"
        | "/pause"
        | "/resume"
        | "/reset_prefix_cache"
        | "/collective_rpc"
        | "/update_weight_version" => false,
        _ => return Err(ApiError::no_route()),
    };
    if if wants_get { !is_get } else { !is_post } {
        return Err(ApiError::wrong_method());
    }
    match path {
        "/version" => Ok(Reply::Json(version())),
        "/v1/models" => Ok(Reply::Json(models.list())),
        "/metrics" => Ok(Reply::Text(models.metrics())),
        "/load" => Ok(Reply::Json(json!({"server_load": models.num_in_flight()}))),
        "/is_paused" => {
            let is_paused = models.only()?.metrics.is_paused.load(Ordering::SeqCst);
            Ok(Reply::Json(json!({"is_paused": is_paused})))
        }
        "/weight_info" => Ok(Reply::Json(control::weight_info(models.only()?))),
        "/pause" => control::pause(models.only()?, query).await,
        "/resume" => control::resume(models.only()?).await,
        "/reset_prefix_cache" => control::reset_prefix_cache(models.only()?, query).await,
        _ => {
            let App { settings, room, .. } = &**models.first();
            let (most, patience) = (settings.max_body_bytes, settings.idle_timeout);
            let limits = BodyLimits { most, patience };
            let form = JsonForm { takes_any_form: false, too_large: ApiError::too_large };
            let body = Document::read(&parts.headers, body, room, limits, form).await?;
            match path {
                "/abort_requests" => control::abort(models.only()?, &body.value, true).await,
                "/inference/v1/abort_requests" => control::abort(models.only()?, &body.value, false).await,
                "/collective_rpc" => control::collective_rpc(models.only()?, body).await,
                "/update_weight_version" => control::update_weight_version(models.only()?, &body.value).await,
                "/tokenize" => tokenize(models.named_in(&body.value)?, body).await,
                "/detokenize" => detokenize(models.named_in(&body.value)?, body).await,
                _ => {
                    let app = models.named_in(&body.value)?;
                    let limit = settings.request_timeout;
                    let answered = async {
                        match path {
                            "/v1/completions" => completion::answer(app, body, id).await,
                            "/v1/chat/completions" => chat::answer(app, body, id).await,
                            _ => generate::answer(app, body, id).await,
                        }
                    };
                    timeout(limit, answered)
                        .await
                        .unwrap_or_else(|_| Err(ApiError::timed_out(limit.as_secs())))
                }
            }
        }
    }
}

/// With a key, only clients that send it are served. Without a key, the server only listens on this machine.
fn check_client(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = &app.settings.api_key else {
        return stranger(headers, &app.settings.host).map_or(Ok(()), |reason| Err(ApiError::foreign(reason)));
    };
    let given = headers.get(AUTHORIZATION).and_then(|given| given.to_str().ok());
    let given = given.and_then(|given| given.strip_prefix("Bearer ")).unwrap_or_default();
    if is_same(given.trim().as_bytes(), key.as_bytes()) { Ok(()) } else { Err(ApiError::unauthorized()) }
}

/// `server` shows clients that this is tamis, and `keys` that requests may carry its random keys.
fn version() -> Value {
    json!({"version": env!("CARGO_PKG_VERSION"), "server": "tamis", "keys": true})
}

async fn tokenize(app: &Arc<App>, body: Document) -> Result<Reply, ApiError> {
    let fields = Fields::of(&body.value)?;
    let tokens = match fields.text("prompt")? {
        Some(text) => {
            let adds = fields.optional_flag("add_special_tokens")?.unwrap_or(true);
            app.encode(text.to_owned(), adds).await?
        }
        None if fields.get("messages").is_some() => chat::prompt(app, fields).await?,
        None => return Err(ApiError::field("prompt", "`prompt` or `messages` is missing")),
    };
    let (app, with_texts) = (app.clone(), fields.flag("return_token_strs")?);
    drop(body);
    written(tokens, move |tokens| {
        let text = |&token: &u32| app.tokenizer.token(token).unwrap_or_default();
        let texts: Option<Vec<String>> = with_texts.then(|| tokens.iter().map(text).collect());
        Ok(json!({
            "count": tokens.len(),
            "max_model_len": app.max_model_len(),
            "tokens": tokens,
            "token_strs": texts,
        }))
    })
    .await
}

async fn detokenize(app: &Arc<App>, body: Document) -> Result<Reply, ApiError> {
    let fields = Fields::of(&body.value)?;
    let Some(tokens) = fields.get("tokens").and_then(token_ids) else {
        return Err(ApiError::field("tokens", "`tokens` must be a list of token ids"));
    };
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= app.model.vocab_size) {
        return Err(ApiError::field("tokens", format!("Token id {token} is out of vocabulary")));
    }
    let app = app.clone();
    drop(body);
    written(tokens, move |tokens| Ok(json!({"prompt": app.tokenizer.decode(&tokens, false)?}))).await
}

/// The text of tokens; for many tokens it is built in another thread.
async fn written(
    tokens: Vec<u32>,
    say: impl FnOnce(Vec<u32>) -> Result<Value, ApiError> + Send + 'static,
) -> Result<Reply, ApiError> {
    let is_short = tokens.len() <= SHORT;
    let work = move || say(tokens).map(|value| value.to_string());
    Ok(Reply::Written(if is_short { work() } else { off_thread(work).await? }?))
}
