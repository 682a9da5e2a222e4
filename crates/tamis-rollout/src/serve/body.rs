//! The body of a request: how much of it, for how long, and that it is JSON.

use std::pin::Pin;
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use serde_json::Value;
use tokio::time::timeout;

use super::error::ApiError;

/// Limits of a body.
#[derive(Clone, Copy)]
pub(crate) struct BodyLimits {
    /// Bytes, at most.
    pub(crate) most: usize,
    /// Bytes beyond those that are read and forgotten: a client that is refused while it still writes may never
    /// read why.
    pub(crate) forgotten: usize,
    /// Longest time until all of it is there.
    pub(crate) patience: Duration,
    /// Whether it is read as JSON whatever its content type says.
    pub(crate) takes_any_form: bool,
    /// Refuses one of more bytes than these.
    pub(crate) too_large: fn(usize) -> ApiError,
}

/// The JSON document of a body.
pub(crate) async fn read_json(
    headers: &HeaderMap,
    body: Incoming,
    limits: BodyLimits,
) -> Result<Value, ApiError> {
    let form = headers.get(CONTENT_TYPE).and_then(|form| form.to_str().ok()).unwrap_or_default();
    let form = form.split(';').next().unwrap_or_default().trim();
    let bytes = timeout(limits.patience, read(body, limits))
        .await
        .unwrap_or_else(|_| Err(ApiError::slow_client(limits.patience.as_secs())))?;
    if !limits.takes_any_form && !form.eq_ignore_ascii_case("application/json") && !bytes.is_empty() {
        return Err(ApiError::bad(
            "Unsupported Media Type: send the body with the header `Content-Type: application/json`",
        ));
    }
    serde_json::from_slice(&bytes).map_err(|error| ApiError::bad(format!("Invalid JSON format: {error}")))
}

async fn read(mut body: Incoming, limits: BodyLimits) -> Result<Vec<u8>, ApiError> {
    let BodyLimits { most, forgotten, too_large, .. } = limits;
    if body.size_hint().lower() > most as u64 + forgotten as u64 {
        return Err(too_large(most));
    }
    let (mut bytes, mut length) = (Vec::new(), 0);
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|error| ApiError::bad(format!("the body broke off: {error}")))?;
        if let Ok(data) = frame.into_data() {
            length += data.len();
            if length > most.saturating_add(forgotten) {
                break;
            }
            if length <= most {
                bytes.extend_from_slice(&data);
            }
        }
    }
    if length > most { Err(too_large(most)) } else { Ok(bytes) }
}
