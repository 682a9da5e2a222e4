//! Which keys a finding is about.

use tamis_core::setting::Shape;

use crate::diagnostic::{Diagnostic, Problem};
use crate::table;

impl Diagnostic {
    /// The keys that it is about. Those of a rule are the ones that its message names.
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
            Problem::Rule { message, .. } => {
                let is_key = |word: &&str| {
                    let section = word.split(['.', '[']).next().unwrap_or_default();
                    !matches!(table::root().of_key(section), Shape::Free)
                };
                message.split('`').skip(1).step_by(2).filter(is_key).collect()
            }
            Problem::Unreadable { .. }
            | Problem::Unready { .. }
            | Problem::Tag { .. }
            | Problem::Syntax { .. } => Vec::new(),
        }
    }
}
