//! The JSON document of a body.

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::error::ApiError;
use super::off_thread;
use crate::body::{BodyFault, BodyLimits, BodyRoom, SHORT};
use crate::json_tree::{self, MOST_TREE_BYTES};

/// How a server reads bodies as JSON.
#[derive(Clone, Copy)]
pub struct JsonForm {
    /// Whether a body is read as JSON regardless of its content type.
    pub takes_any_form: bool,
    /// Refuses one of more bytes than these.
    pub too_large: fn(usize) -> ApiError,
}

/// A received document. Its reader drops it soon: while a long one exists, no other is read.
pub struct Document {
    /// The parsed value.
    pub value: Value,
    _held: [Option<OwnedSemaphorePermit>; 2],
}

impl From<Value> for Document {
    /// A document that this process made itself.
    fn from(value: Value) -> Self {
        Self { value, _held: [None, None] }
    }
}

impl Document {
    /// Reads a body.
    pub async fn read(
        headers: &HeaderMap,
        body: Incoming,
        room: &BodyRoom,
        limits: BodyLimits,
        form: JsonForm,
    ) -> Result<Self, ApiError> {
        let held = room.read(body, limits).await.map_err(|fault| match fault {
            BodyFault::TooLarge(most) => (form.too_large)(most),
            BodyFault::Slow(patience) => ApiError::slow_client(patience.as_secs()),
            BodyFault::NoRoom => ApiError::no_room(),
            BodyFault::Broken(reason) => ApiError::bad(format!("the body broke off: {reason}")),
        })?;
        let (bytes, taken) = (held.bytes, held.room);
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !form.takes_any_form && !kind.eq_ignore_ascii_case("application/json") && !bytes.is_empty() {
            return Err(ApiError::bad(
                "Unsupported Media Type: send the body with the header `Content-Type: application/json`",
            ));
        }
        let parse = |bytes: &[u8]| json_tree::read(bytes, MOST_TREE_BYTES, false);
        let (read, held) = if bytes.len() <= SHORT {
            (parse(&bytes), [taken, None])
        } else {
            let held = [taken, room.turn().await];
            // If a client leaves meanwhile, the room of a document in use is not freed.
            off_thread(move || (parse(&bytes), held)).await?
        };
        let value = read.map_err(|error| ApiError::bad(format!("Invalid JSON format: {error}")))?;
        Ok(Self { value, _held: held })
    }
}
