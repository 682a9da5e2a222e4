//! What failed, as a person reads it: the error of whatever no caller tells apart.
//! An error that somebody matches is an enum; every other one is a [`Fault`], whose message is complete when
//! it is made.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::setting::OutOfRange;

/// A message, and the error below it. Two are equal if they have the same message.
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
        Self { message: message.into(), source: None }
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
