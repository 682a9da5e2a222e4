//! Failures that no caller distinguishes, as text for a person.
//! An error that some caller matches is an enum. Every other error is a [`Fault`], whose message is complete
//! when it is created.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::setting::OutOfRange;

/// An error and its sources, the outermost first. A source is left out if an earlier text ends with it or
/// contains it: a wrapper that shows its source need not show it twice.
pub fn causes(error: &dyn Error) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if !texts.iter().any(|earlier| earlier.contains(&text)) {
            texts.push(text);
        }
        next = cause.source();
    }
    texts
}

/// An error and its sources in one text: the texts of [`causes`], joined by colons.
///
/// ```
/// use tamis_core::fault::{self, Fault};
/// let fault = Fault::new("failed to read a.json").with_source(std::io::Error::other("no such disk"));
/// assert_eq!(fault::chain(&fault), "failed to read a.json: no such disk");
/// ```
pub fn chain(error: &dyn Error) -> String {
    causes(error).join(": ")
}

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

/// A [`Fault`] with a message formatted as by `format!`.
#[macro_export]
macro_rules! fault {
    ($($message:tt)+) => { $crate::fault::Fault::new(format!($($message)+)) };
}

/// Turns errors that no caller of an enum distinguishes into the enum's variant `Fault`.
///
/// ```
/// use tamis_core::{fault::Fault, faults};
/// enum ReadError {
///     Fault(Fault),
/// }
/// faults!(ReadError: std::io::Error);
/// let ReadError::Fault(fault) = std::io::Error::other("no such disk").into();
/// assert_eq!(fault.to_string(), "no such disk");
/// ```
#[macro_export]
macro_rules! faults {
    ($name:ty: $($error:ty),+) => { $(
        impl From<$error> for $name {
            fn from(error: $error) -> Self {
                Self::Fault($crate::fault::Fault::of(error))
            }
        }
    )+ };
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

    /// With the fix, if one is known.
    #[must_use]
    pub fn with_known_hint(self, hint: Option<impl Into<String>>) -> Self {
        Self { hint: hint.map(Into::into), ..self }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_was_shown_is_not_shown_again() {
        let of = |texts: [&str; 3]| {
            let [outer, middle, inner] = texts.map(Fault::new);
            chain(&outer.with_source(middle.with_source(inner)))
        };
        assert_eq!(of(["read", "open", "no such disk"]), "read: open: no such disk");
        // The text before it ends with it or contains it, or an earlier one contains it.
        assert_eq!(
            of(["read: no such disk", "no such disk", "os error 2"]),
            "read: no such disk: os error 2"
        );
        assert_eq!(
            of(["no such disk (while reading)", "no such disk", "disk"]),
            "no such disk (while reading)"
        );
        assert_eq!(of(["read: no such disk", "open", "no such disk"]), "read: no such disk: open");
        // A wrapper that shows less than its source does not hide the source.
        assert_eq!(of(["read", "read a.json", ""]), "read: read a.json");
    }
}
