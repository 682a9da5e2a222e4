//! From a request to its answer: who may ask, which route, how much of a body.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::body::{BodyLimits, read_json};
use super::error::ApiError;
use super::field::{Fields, token_ids};
use super::stream::{AnswerBody, Stream};
use super::{App, Reply, chat, completion, control, generate};

const REQUEST_ID: &str = "x-request-id";

/// Answers a request, whatever it is.
pub(super) async fn answer(
    app: Arc<App>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible> {
    let (parts, body) = request.into_parts();
    let id = parts.headers.get(REQUEST_ID).cloned();
    let mut response = match route(&app, &parts, body).await {
        Ok(Reply::Empty) => respond(StatusCode::OK, None, Vec::new()),
        Ok(Reply::Json(value)) => {
            respond(StatusCode::OK, Some("application/json"), value.to_string().into_bytes())
        }
        Ok(Reply::Text(text)) => {
            let form = "text/plain; version=0.0.4; charset=utf-8";
            respond(StatusCode::OK, Some(form), text.into_bytes())
        }
        Ok(Reply::Stream(running, chunks)) => {
            let mut response = respond(StatusCode::OK, Some("text/event-stream; charset=utf-8"), Vec::new());
            let stream = Stream::new(running, chunks, app.settings.request_timeout);
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
    Ok(response)
}

fn respond(status: StatusCode, form: Option<&'static str>, body: Vec<u8>) -> Response<AnswerBody> {
    let bytes = (!body.is_empty()).then(|| Bytes::from(body));
    let mut response = Response::new(AnswerBody::Whole(bytes));
    *response.status_mut() = status;
    if let Some(form) = form {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(form));
    }
    response
}

async fn route(app: &Arc<App>, parts: &Parts, body: Incoming) -> Result<Reply, ApiError> {
    let path = parts.uri.path();
    let (is_get, is_post) = (parts.method == Method::GET, parts.method == Method::POST);
    if matches!(path, "/health" | "/ping") {
        return if is_get || is_post { Ok(Reply::Empty) } else { Err(ApiError::wrong_method()) };
    }
    check_client(app, &parts.headers)?;
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
        "/v1/models" => Ok(Reply::Json(models(app))),
        "/metrics" => Ok(Reply::Text(app.metrics.text(&app.name))),
        "/load" => Ok(Reply::Json(json!({"server_load": app.metrics.num_in_flight()}))),
        "/is_paused" => Ok(Reply::Json(json!({"is_paused": app.metrics.is_paused.load(Ordering::SeqCst)}))),
        "/weight_info" => Ok(Reply::Json(control::weight_info(app))),
        "/pause" => control::pause(app, query).await,
        "/resume" => control::resume(app).await,
        "/reset_prefix_cache" => control::reset_prefix_cache(app, query).await,
        _ => {
            let limits = BodyLimits {
                most: app.settings.max_body_bytes,
                forgotten: 0,
                patience: app.settings.idle_timeout,
                takes_any_form: false,
                too_large: ApiError::too_large,
            };
            let body = read_json(&parts.headers, body, limits).await?;
            match path {
                "/abort_requests" => control::abort(app, &body, true).await,
                "/inference/v1/abort_requests" => control::abort(app, &body, false).await,
                "/collective_rpc" => control::collective_rpc(app, &body).await,
                "/update_weight_version" => control::update_weight_version(app, &body).await,
                "/tokenize" => tokenize(app, &body).await,
                "/detokenize" => detokenize(app, &body),
                _ => {
                    let limit = app.settings.request_timeout;
                    let answered = async {
                        match path {
                            "/v1/completions" => completion::answer(app, &body, id).await,
                            "/v1/chat/completions" => chat::answer(app, &body, id).await,
                            _ => generate::answer(app, &body, id).await,
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

/// With a key, only who knows it. Without one the server listens on this machine alone, and a web page that a
/// browser on it shows is not this machine: neither under its own name (`Origin`), nor under one that it has
/// pointed here (`Host`).
fn check_client(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if let Some(key) = &app.settings.api_key {
        let given = text(AUTHORIZATION).and_then(|given| given.strip_prefix("Bearer ")).unwrap_or_default();
        return if same(given.trim().as_bytes(), key.as_bytes()) {
            Ok(())
        } else {
            Err(ApiError::unauthorized())
        };
    }
    if let Some(host) = text(HOST)
        && !is_own(host, &app.settings.host)
    {
        return Err(ApiError::foreign(format!(
            "this server has no key and answers only to names of its own machine, and not to {host:?}"
        )));
    }
    match text(ORIGIN) {
        Some(origin)
            if !is_own(origin.split_once("://").map_or(origin, |parts| parts.1), &app.settings.host) =>
        {
            Err(ApiError::foreign("this server has no key and does not answer web pages of other machines"))
        }
        _ => Ok(()),
    }
}

/// Whether `host[:port]` names this machine to itself.
fn is_own(host: &str, own: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |parts| parts.0),
    };
    name == "localhost" || name == own || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether two secrets are the same, in a time that does not tell where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// `server` tells clients that this is tamis, and `keys` that requests may carry its random keys.
fn version() -> Value {
    json!({"version": env!("CARGO_PKG_VERSION"), "server": "tamis", "keys": true})
}

fn models(app: &App) -> Value {
    let root = app.folder().display().to_string();
    json!({
        "object": "list",
        "data": [{
            "id": app.name,
            "object": "model",
            "created": app.created,
            "owned_by": "tamis",
            "root": root,
            "parent": null,
            "max_model_len": app.max_model_len(),
            "permission": [],
        }],
    })
}

async fn tokenize(app: &Arc<App>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body)?;
    app.check_model(fields)?;
    let tokens = match fields.text("prompt")? {
        Some(text) => {
            let adds = fields.optional_flag("add_special_tokens")?.unwrap_or(true);
            app.encode(text.to_owned(), adds).await?
        }
        None if fields.get("messages").is_some() => chat::prompt(app, fields).await?,
        None => return Err(ApiError::field("prompt", "`prompt` or `messages` is missing")),
    };
    let texts: Option<Vec<String>> = fields
        .flag("return_token_strs")?
        .then(|| tokens.iter().map(|&token| app.tokenizer.token(token).unwrap_or_default()).collect());
    Ok(Reply::Json(json!({
        "count": tokens.len(),
        "max_model_len": app.max_model_len(),
        "tokens": tokens,
        "token_strs": texts,
    })))
}

fn detokenize(app: &App, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body)?;
    app.check_model(fields)?;
    let tokens = fields.get("tokens").and_then(token_ids);
    let Some(tokens) = tokens else {
        return Err(ApiError::field("tokens", "`tokens` must be a list of token ids"));
    };
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= app.model.vocab_size) {
        return Err(ApiError::field("tokens", format!("Token id {token} is out of vocabulary")));
    }
    Ok(Reply::Json(json!({"prompt": app.tokenizer.decode(&tokens, false)?})))
}
