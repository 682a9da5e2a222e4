//! Classes of faults of a server or its answer, by name.

use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use crate::generator::FailureKind;

/// A kind of fault; each is counted for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultClass {
    /// No connection.
    Connect,
    /// The connection ended before an answer began.
    Reset,
    /// The connection ended within an answer.
    HalfBody,
    /// No whole answer in time.
    TimedOut,
    /// An answer larger than any that was requested.
    TooLarge,
    /// The server has no room for the request now (429, 503): it is asked again, and sent fewer at once.
    Busy,
    /// The server is paused for new weights and turns requests away meanwhile (503 `engine_paused`): no
    /// failure, it is waited for.
    Paused,
    /// The server failed (another 5xx).
    ServerError,
    /// The server refuses the request itself (4xx).
    Refused,
    /// The server refuses this client (401, 403).
    Unauthorized,
    /// The body is not JSON.
    BadJson,
    /// The body is JSON, but not of the shape that the interface has.
    BadShape,
    /// The answer is to another request.
    WrongRequest,
    /// The counts of tokens, of log-probabilities and the server's own count differ, or there is no
    /// token.
    TokenCount,
    /// A token id outside the vocabulary.
    TokenOutOfVocabulary,
    /// A log-probability that is missing, not finite, above 0, or would make the sampled token
    /// impossible.
    LogprobOutOfRange,
    /// More tokens than requested.
    TooLong,
    /// The server ended the completion at its own limit, below the requested one.
    Clamped,
    /// An unknown finish reason.
    FinishReason,
    /// Spans of weight versions that leave a gap, overlap or end elsewhere than the tokens.
    Versions,
    /// Sampled by weights that are not those of the run's current version.
    StaleWeights,
    /// Tokens that cannot be decoded.
    Undecodable,
    /// A text that does not match the expression that it was asked to match.
    NoMatch,
    /// The server aborted the request by itself.
    AbortedByServer,
    /// The server's weights give other log-probabilities than those that were published.
    Probe,
    /// The server's log-probabilities are of another distribution than the one that is trained on: it was
    /// started again with other flags.
    OtherLogprobs,
    /// Weights did not come from the learner to the server over their communicator (NCCL).
    Transfer,
}

impl FaultClass {
    /// Name of the class in metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::HalfBody => "half_body",
            Self::TimedOut => "timed_out",
            Self::TooLarge => "too_large",
            Self::Busy => "busy",
            Self::Paused => "paused",
            Self::ServerError => "server_error",
            Self::Refused => "refused",
            Self::Unauthorized => "unauthorized",
            Self::BadJson => "bad_json",
            Self::BadShape => "bad_shape",
            Self::WrongRequest => "wrong_request",
            Self::TokenCount => "token_count",
            Self::TokenOutOfVocabulary => "token_out_of_vocabulary",
            Self::LogprobOutOfRange => "logprob_out_of_range",
            Self::TooLong => "too_long",
            Self::Clamped => "clamped",
            Self::FinishReason => "finish_reason",
            Self::Versions => "versions",
            Self::StaleWeights => "stale_weights",
            Self::Undecodable => "undecodable",
            Self::NoMatch => "no_match",
            Self::AbortedByServer => "aborted_by_server",
            Self::Probe => "probe",
            Self::OtherLogprobs => "other_logprobs",
            Self::Transfer => "transfer",
        }
    }

    /// Whether the request may succeed another time or elsewhere.
    pub fn kind(self) -> FailureKind {
        match self {
            Self::Refused | Self::Clamped | Self::NoMatch => FailureKind::Permanent,
            _ => FailureKind::Transient,
        }
    }

    /// Whether it shows that the server, and not only one of its answers, cannot be relied on now.
    pub fn is_of_server(self) -> bool {
        matches!(
            self,
            Self::Connect
                | Self::Reset
                | Self::ServerError
                | Self::Unauthorized
                | Self::StaleWeights
                | Self::Probe
                | Self::OtherLogprobs
        )
    }
}

/// Something wrong with a server or its answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}: {detail}", class.name())]
pub struct Fault {
    /// Class of the fault.
    pub class: FaultClass,
    /// Details for the user.
    pub detail: String,
    /// Completion tokens that it cost, as far as the answer reports them.
    pub num_tokens: u64,
    /// When the server wants the next request, if it answered that (`Retry-After`).
    pub retry_after: Option<Duration>,
}

impl Fault {
    /// A fault on which no token is known to have been spent.
    pub fn new(class: FaultClass, detail: impl Into<String>) -> Self {
        Self { class, detail: detail.into(), num_tokens: 0, retry_after: None }
    }

    /// Sets the number of tokens that it cost.
    #[must_use]
    pub fn with_tokens(mut self, num_tokens: u64) -> Self {
        self.num_tokens = num_tokens;
        self
    }
}

/// Longest message of a server that is passed on.
const LONGEST_DETAIL: usize = 300;

#[derive(Deserialize)]
struct ErrorBody {
    error: Option<ErrorDetail>,
    detail: Option<serde_json::Value>,
    message: Option<String>,
}

#[derive(Deserialize)]
struct ErrorDetail {
    message: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    code: Option<serde_json::Value>,
}

/// The fault that an answer with an unsuccessful status is: vLLM's and OpenAI's `{"error": {..}}`, FastAPI's
/// `{"detail": ..}`, or plain text.
pub fn of_status(status: u16, body: &[u8]) -> Fault {
    let parsed: Option<ErrorBody> = serde_json::from_slice(body).ok();
    let is_paused = parsed.as_ref().and_then(|body| body.error.as_ref()).is_some_and(|error| {
        error.kind.as_deref() == Some("engine_paused")
            || error.code.as_ref().and_then(serde_json::Value::as_str) == Some("engine_paused")
    });
    let message = match parsed {
        Some(ErrorBody { error: Some(ErrorDetail { message: Some(message), .. }), .. }) => message,
        Some(ErrorBody { detail: Some(detail), .. }) => {
            detail.as_str().map_or_else(|| detail.to_string(), str::to_owned)
        }
        Some(ErrorBody { message: Some(message), .. }) => message,
        _ => String::from_utf8_lossy(body).into_owned(),
    };
    let class = match status {
        503 if is_paused => FaultClass::Paused,
        429 | 503 => FaultClass::Busy,
        401 | 403 => FaultClass::Unauthorized,
        408 | 409 | 425 | 500..600 => FaultClass::ServerError,
        400..500 => FaultClass::Refused,
        _ => FaultClass::BadShape,
    };
    Fault::new(class, format!("HTTP {status}: {}", shorten(message.trim())))
}

fn shorten(message: &str) -> String {
    match message.char_indices().nth(LONGEST_DETAIL) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None if message.is_empty() => "no message".to_owned(),
        None => message.to_owned(),
    }
}

/// Whether a body holds a number that JSON lacks, as Python writes it, outside of strings.
pub(super) fn has_bare_number(body: &[u8]) -> bool {
    let mut in_string = false;
    let mut escaped = false;
    for (index, &byte) in body.iter().enumerate() {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'N') if body[index..].starts_with(b"NaN") => return true,
            (false, b'I') if body[index..].starts_with(b"Infinity") => return true,
            _ => {}
        }
    }
    false
}
