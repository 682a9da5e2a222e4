//! The exchange between this process and inference servers: request bodies and answers as plain types,
//! without any input or output.
//!
//! A [`Sampling`](crate::Sampling) becomes the parameters of one server ([`vllm`], [`sglang`],
//! [`openai`]). Its answer becomes a [`WireCompletion`], which is checked against the request before it
//! becomes a sample. An answer that fails the check is a [`Fault`] of a named class, never a sample.

pub mod completion;
pub mod fault;
pub mod openai;
pub mod parameters;
pub mod prometheus;
pub mod sglang;
pub mod sse;
pub mod vllm;

use std::time::Duration;

pub use completion::{Checked, Expected, Finish, LabelSpan, WireCompletion};
pub use fault::{Fault, FaultClass};
pub use parameters::{Ask, LogprobsOf, ParameterError};

/// An HTTP request of one server, without its address.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// `GET` or `POST`.
    pub method: HttpMethod,
    /// Path and query, from the slash on.
    pub path: String,
    /// The body; empty for none.
    pub body: Vec<u8>,
    /// Media type of the body.
    pub content_type: &'static str,
    /// Headers beside those that every request has, by name in lower case.
    pub headers: Vec<(&'static str, String)>,
}

const JSON: &str = "application/json";

/// HTTP method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpMethod {
    /// Without a body.
    Get,
    /// With a body, which may be empty.
    Post,
}

impl Call {
    /// A question without a body.
    pub fn get(path: &str) -> Self {
        Self { method: HttpMethod::Get, ..Self::post_empty(path) }
    }

    /// A request with a JSON body.
    pub fn post(path: &str, body: &serde_json::Value) -> Self {
        Self { body: body.to_string().into_bytes(), ..Self::post_empty(path) }
    }

    /// A request whose parameters are in the path.
    pub fn post_empty(path: &str) -> Self {
        let (path, body, headers) = (path.to_owned(), Vec::new(), Vec::new());
        Self { method: HttpMethod::Post, path, body, content_type: JSON, headers }
    }
}

/// Answer of a server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpAnswer {
    /// Status code.
    pub status: u16,
    /// Media type; empty if there is none.
    pub content_type: String,
    /// The body, whole.
    pub body: Vec<u8>,
    /// When it wants the next request, if it answered with a number of seconds (`Retry-After`).
    pub retry_after: Option<Duration>,
}

impl HttpAnswer {
    /// The JSON of a success, or the fault that the answer is.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, Fault> {
        self.success()?;
        read_json(&self.body)
    }

    /// `Ok` if the status is a success; otherwise the fault of the answer.
    pub fn success(&self) -> Result<(), Fault> {
        if (200..300).contains(&self.status) {
            Ok(())
        } else {
            Err(Fault { retry_after: self.retry_after, ..fault::of_status(self.status, &self.body) })
        }
    }

    /// Whether the body is a stream of server-sent events.
    pub fn is_stream(&self) -> bool {
        self.content_type.starts_with("text/event-stream")
    }
}

/// Reads JSON; distinguishes text that is not JSON from JSON of another shape.
pub fn read_json<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(body).map_err(|error| {
        let class = match error.classify() {
            serde_json::error::Category::Data => FaultClass::BadShape,
            // Python writes the values that JSON lacks as bare words.
            _ if fault::has_bare_number(body) => FaultClass::LogprobOutOfRange,
            _ => FaultClass::BadJson,
        };
        Fault::new(class, error.to_string())
    })
}
