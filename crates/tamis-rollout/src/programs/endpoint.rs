//! From a program's HTTP request to its answer: routes, the key that names the episode, and refusals in the
//! form of OpenAI's errors.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use super::EpisodeNumber;
use super::call::ChatCall;
use super::ledger::Ledger;
use super::refused::Refusal;
use super::responses::chat_body;
use crate::api::error::ApiError;
use crate::api::json::{Document, JsonForm};
use crate::api::seconds;
use crate::body::BodyLimits;

/// Header that decides whether OpenAI's clients retry a call.
const SHOULD_RETRY: &str = "x-should-retry";

enum Reply {
    Json(Value),
    /// A whole stream of server-sent events.
    Events(String),
}

/// Answers any request.
pub(super) async fn answer(
    ledger: Arc<Ledger>,
    patience: Duration,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let response = match route(&ledger, &head, body, patience).await {
        Ok(Ok(Reply::Json(value))) => respond(StatusCode::OK, "application/json", value.to_string()),
        Ok(Ok(Reply::Events(text))) => respond(StatusCode::OK, "text/event-stream; charset=utf-8", text),
        Ok(Err(error)) => respond_error(&error, false),
        Err(refusal) => {
            let is_passing = refusal.is_passing();
            respond_error(&refusal.into_error(), is_passing)
        }
    };
    Ok(response)
}

fn respond(status: StatusCode, form: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(form));
    response
}

fn respond_error(error: &ApiError, is_passing: bool) -> Response<Full<Bytes>> {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = respond(status, "application/json", error.body().to_string());
    let retries = HeaderValue::from_static(if is_passing { "true" } else { "false" });
    response.headers_mut().insert(SHOULD_RETRY, retries);
    if is_passing {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// The answer of the policy's, or of its owner that there is none; a refusal has been counted.
async fn route(
    ledger: &Arc<Ledger>,
    head: &Parts,
    body: Incoming,
    patience: Duration,
) -> Result<Result<Reply, ApiError>, Refusal> {
    let path = head.uri.path();
    let own = path.strip_prefix("/e/").and_then(|rest| rest.split_once('/'));
    let (token, route) = own.unwrap_or_default();
    let key = head.headers.get(AUTHORIZATION).and_then(|key| key.to_str().ok()).unwrap_or_default();
    let episode = ledger.admit(token, key.strip_prefix("Bearer ").unwrap_or(key).trim())?;
    match (route.trim_end_matches('/'), &head.method) {
        ("v1/models", &Method::GET) => Ok(Ok(Reply::Json(models(&ledger.settings.model)))),
        ("v1/chat/completions", &Method::POST) => chat(ledger, episode, head, body, false, patience).await,
        ("v1/responses", &Method::POST) => chat(ledger, episode, head, body, true, patience).await,
        ("v1/models" | "v1/chat/completions" | "v1/responses", _) => {
            refuse(ledger, episode, ApiError::wrong_method())
        }
        ("v1/completions", _) => {
            let message = "`v1/completions` continues a text, and a policy is trained on conversations: send the text as \
                           a message of the role user to `POST v1/chat/completions`";
            refuse(ledger, episode, ApiError::new(404, "NotFoundError", message))
        }
        (other, _) => {
            let other: String = other.chars().take(60).collect();
            let message = format!(
                "there is no `{other}` here: `POST v1/chat/completions` and `POST v1/responses` are answered, and \
                 `GET v1/models`"
            );
            refuse(ledger, episode, ApiError::new(404, "NotFoundError", message))
        }
    }
}

fn refuse<T>(ledger: &Ledger, episode: EpisodeNumber, error: ApiError) -> Result<T, Refusal> {
    let refusal = Refusal::from(error);
    ledger.refuse(episode, &refusal);
    Err(refusal)
}

async fn chat(
    ledger: &Arc<Ledger>,
    episode: EpisodeNumber,
    head: &Parts,
    body: Incoming,
    is_response: bool,
    patience: Duration,
) -> Result<Result<Reply, ApiError>, Refusal> {
    let limits = BodyLimits { most: ledger.settings.max_body_bytes, patience };
    let form = JsonForm {
        // A hand-written call may omit the content type; its body can only be JSON.
        takes_any_form: true,
        too_large: |most| {
            let message = format!("the call is longer than the limit of {most} bytes");
            ApiError::new(413, "RequestTooLargeError", message)
        },
    };
    let read = Document::read(&head.headers, body, &ledger.room, limits, form).await;
    let read = read.and_then(|body| {
        if is_response {
            return ChatCall::read(&chat_body(&body.value)?);
        }
        ChatCall::read(&body.value)
    });
    let call = match read {
        Ok(call) => call,
        Err(error) => return refuse(ledger, episode, error),
    };
    let (is_streamed, tells_usage, tells_logprobs) = (call.stream, call.stream_usage, call.logprobs);
    let waiting = ledger.ask(episode, call)?;
    let (number, model) = (format!("{:016x}", waiting.call.0), &ledger.settings.model);
    let id = format!("chatcmpl-{number}");
    Ok(match waiting.answered().await? {
        Ok(answer) if is_response && is_streamed => Ok(Reply::Events(answer.response_events(&number, model))),
        Ok(answer) if is_response => Ok(Reply::Json(answer.response(&number, model))),
        Ok(answer) if is_streamed => {
            Ok(Reply::Events(answer.stream(&id, model, tells_usage, tells_logprobs)))
        }
        Ok(answer) => Ok(Reply::Json(answer.whole(&id, model, tells_logprobs))),
        Err(error) => Err(error.into()),
    })
}

fn models(name: &str) -> Value {
    let model = json!({"id": name, "object": "model", "created": seconds(), "owned_by": "tamis"});
    json!({"object": "list", "data": [model]})
}
