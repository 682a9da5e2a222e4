//! Error answers: vLLM's and OpenAI's `{"error": {message, type, param, code}}`.

use serde_json::{Value, json};
use tamis_core::fault::Fault;

/// An error answer.
#[derive(Debug, Clone)]
pub struct ApiError {
    /// The HTTP status.
    pub status: u16,
    /// The message.
    pub message: String,
    kind: &'static str,
    param: Option<String>,
    /// Machine-readable code: the status, or a name.
    code: Option<&'static str>,
}

impl ApiError {
    /// An error with this status and type.
    pub fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind, param: None, code: None }
    }

    /// Replaces the status by a name for machines.
    #[must_use]
    pub fn coded(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The request as a whole is wrong.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequestError", message)
    }

    /// One field of the request is wrong.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::bad(message) }
    }

    /// The field means something that this server does not do.
    pub fn unsupported(param: &str, instead: &str) -> Self {
        Self::field(param, format!("`{param}` is not supported by this server: {instead}"))
    }

    /// No key, or another than the server's.
    pub fn unauthorized() -> Self {
        let message = "this server requires its key: send the header `Authorization: Bearer KEY`";
        Self { code: Some("invalid_api_key"), ..Self::new(401, "AuthenticationError", message) }
    }

    /// A request from a browser's page, or under another name of this machine.
    pub fn foreign(message: impl Into<String>) -> Self {
        Self::new(403, "PermissionDeniedError", message)
    }

    /// An unknown model.
    pub fn no_model(asked: &str, served: &str) -> Self {
        let message = format!("The model `{asked}` does not exist. Valid aliases: {served}.");
        Self { param: Some("model".to_owned()), ..Self::new(404, "NotFoundError", message) }
    }

    /// An unknown route.
    pub fn no_route() -> Self {
        Self::new(404, "NotFoundError", "Not Found")
    }

    /// The route wants another method.
    pub fn wrong_method() -> Self {
        Self::new(405, "MethodNotAllowedError", "Method Not Allowed")
    }

    /// The client took too long.
    pub fn slow_client(seconds: u64) -> Self {
        let message = format!("the body did not arrive within {seconds} s");
        Self::new(408, "RequestTimeoutError", message)
    }

    /// The body is over the limit.
    pub fn too_large(limit: usize) -> Self {
        let message = format!(
            "the body is larger than {limit} bytes, the most that this server reads (--max-body-bytes)"
        );
        Self::new(413, "RequestTooLargeError", message)
    }

    /// Other bodies take all the room.
    pub fn no_room() -> Self {
        let message = "the server has no room for another long body: ask again later";
        Self::new(503, "ServiceUnavailableError", message).coded("overloaded")
    }

    /// Too much is in flight.
    pub fn busy(limit: usize) -> Self {
        let message = format!(
            "the server has {limit} samples in flight, the most that it takes (--max-queued): ask again later"
        );
        Self { code: Some("overloaded"), ..Self::new(429, "RateLimitError", message) }
    }

    /// The engine broke, or the request broke it.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalServerError", message)
    }

    /// Generation is paused and the server refuses requests meanwhile.
    pub fn paused() -> Self {
        let message = "generation is paused: ask again after /resume";
        Self { code: Some("engine_paused"), ..Self::new(503, "ServiceUnavailableError", message) }
    }

    /// The server is about to end.
    pub fn stopping() -> Self {
        Self::new(503, "ServiceUnavailableError", "the server is stopping")
    }

    /// Generation took longer than allowed.
    pub fn timed_out(seconds: u64) -> Self {
        let message =
            format!("not finished within {seconds} s, the most that this server takes (--request-timeout)");
        Self::new(504, "TimeoutError", message)
    }

    /// The field that is wrong, if it is one.
    pub fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// Whether asking again later helps.
    pub fn is_passing(&self) -> bool {
        matches!(self.status, 429 | 503)
    }

    /// The body as the client gets it. An unknown route also has FastAPI's form.
    pub fn body(&self) -> Value {
        let code = self.code.map_or_else(|| json!(self.status), |code| json!(code));
        let error = json!({"message": self.message, "type": self.kind, "param": self.param, "code": code});
        match self.status {
            404 | 405 if self.param.is_none() => json!({"detail": self.message, "error": error}),
            _ => json!({"error": error}),
        }
    }
}

impl From<Fault> for ApiError {
    fn from(error: Fault) -> Self {
        Self::internal(format!("failed to make text of tokens: {error}"))
    }
}
