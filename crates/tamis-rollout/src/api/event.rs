//! Server-sent events.

use serde_json::Value;

/// The last event.
pub const DONE: &str = "data: [DONE]\n\n";

/// Appends an event.
pub fn put(text: &mut String, value: &Value) {
    text.push_str("data: ");
    text.push_str(&value.to_string());
    text.push_str("\n\n");
}
