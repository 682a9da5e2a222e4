//! An error of which nobody asks what it is.

use std::error::Error;

/// What failed, in a message that is complete, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What failed.
    pub message: String,
    /// The fix, if one is known.
    pub hint: Option<String>,
    /// The cause that the message does not show.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl Fault {
    /// A fault with its fix.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: Some(hint.into()), source: None }
    }

    /// A fault whose cause says what to do.
    pub fn caused_by(message: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Self {
        Self { message: message.into(), hint: None, source: Some(Box::new(source)) }
    }
}
