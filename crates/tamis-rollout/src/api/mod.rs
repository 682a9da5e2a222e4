//! Shared parts of tamis's HTTP servers: errors in OpenAI's form, the fields of a JSON body,
//! server-sent events.
//!
//! The endpoint of programs ([`programs`](crate::programs)) and `tamis serve` are built on it.

use std::time::{SystemTime, UNIX_EPOCH};

use self::error::ApiError;

pub mod error;
pub mod event;
pub mod field;
pub mod json;

/// The longest bodies that there is room for at once.
pub const BODIES_AT_ONCE: usize = 4;

/// Named in answers as the system that made them.
pub const FINGERPRINT: &str = concat!("tamis-", env!("CARGO_PKG_VERSION"));

/// Seconds since 1970.
pub fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Work that may take a while, off the thread that all connections share.
pub async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ApiError::internal(format!("the request failed inside the server: {error}")))
}
