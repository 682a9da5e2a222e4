//! What failed, as a person reads it: the error of whatever no caller tells apart.
//! An error that somebody matches is an enum; every other one is a [`Fault`], whose message is complete when
//! it is made.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::setting::OutOfRange;

/// A message, the fix if one is known, and the error below it. Two are equal if they have the same message.
///
/// ```
/// use tamis_core::fault;
/// let fault = fault!("failed to read {}", "a.json").with_source(std::io::Error::other("no such disk"));
/// assert_eq!(fault.to_string(), "failed to read a.json");
/// assert_eq!(std::error::Error::source(&fault).map(ToString::to_string).as_deref(), Some("no such disk"));
/// ```
#[derive(Debug, Clone)]
pub struct Fault {
    message: String,
    hint: Option<String>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// A [`Fault`] with a message as `format!` makes it.
#[macro_export]
macro_rules! fault {
    ($($message:tt)+) => { $crate::fault::Fault::new(format!($($message)+)) };
}

impl Fault {
    /// A message without an error below it.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, source: None }
    }

    /// With an error's own message.
    pub fn of(error: impl Error + Send + Sync + 'static) -> Self {
        Self::new(error.to_string()).with_source(error)
    }

    /// With the fix.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The fix, if one is known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// With the error that it comes from.
    #[must_use]
    pub fn with_source(self, source: impl Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Arc::new(source)), ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl PartialEq for Fault {
    fn eq(&self, other: &Self) -> bool {
        self.message == other.message
    }
}

impl Eq for Fault {}

impl From<OutOfRange> for Fault {
    fn from(error: OutOfRange) -> Self {
        Self::new(error.to_string())
    }
}
