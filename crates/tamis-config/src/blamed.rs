//! Which keys a finding is about.

use crate::diagnostic::{Diagnostic, Problem};

impl Diagnostic {
    /// The keys that it is about.
    pub fn keys(&self) -> Vec<&str> {
        match &*self.problem {
            Problem::UnknownKey { key, .. }
            | Problem::OfOtherKind { key, .. }
            | Problem::WrongType { key, .. }
            | Problem::NotAllowed { key, .. }
            | Problem::OutOfRange { key, .. }
            | Problem::MissingKey { key, .. }
            | Problem::Missing { key, .. }
            | Problem::Refused { key, .. }
            | Problem::DuplicateKey { key, .. } => vec![key],
            Problem::Rule { keys, .. } => keys.iter().map(String::as_str).collect(),
            Problem::Unreadable { .. }
            | Problem::Unready { .. }
            | Problem::Tag { .. }
            | Problem::Syntax { .. } => Vec::new(),
        }
    }
}
