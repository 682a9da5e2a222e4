//! A line for each request (`tamis serve -v`): never keys, prompts or completions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::http::request::Parts;

use crate::Usage;

/// Gets a line when a request has been answered, or its client has left.
pub type RequestLog = Arc<dyn Fn(&RequestLine) + Send + Sync>;

/// Status of a request whose client left before its answer began, as nginx writes it.
const CLIENT_LEFT: u16 = 499;

/// The facts of a request that are logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestLine {
    /// Method as sent.
    pub method: String,
    /// Path as sent, without the query.
    pub path: String,
    /// HTTP status; 499 if the client left before its answer began.
    pub status: u16,
    /// Tokens, if any were sampled. If the client left during a stream, the tokens until then.
    pub usage: Option<Usage>,
    /// Time from the request's headers to the last byte of a stream, or until any other answer was ready.
    pub elapsed: Duration,
}

/// A line that is logged when it is dropped.
pub(crate) struct PendingLine {
    log: RequestLog,
    began: Instant,
    method: String,
    path: String,
    pub(crate) status: u16,
    pub(crate) usage: Option<Usage>,
}

impl PendingLine {
    pub(crate) fn begin(log: RequestLog, parts: &Parts) -> Self {
        Self {
            log,
            began: Instant::now(),
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            status: CLIENT_LEFT,
            usage: None,
        }
    }
}

impl Drop for PendingLine {
    fn drop(&mut self) {
        (self.log)(&RequestLine {
            method: std::mem::take(&mut self.method),
            path: std::mem::take(&mut self.path),
            status: self.status,
            usage: self.usage,
            elapsed: self.began.elapsed(),
        });
    }
}
