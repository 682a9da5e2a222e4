//! Why rewards cannot be set up, or scoring cannot continue.

use tamis_core::fault;
use tamis_core::fault::Fault;
use thiserror::Error;

use super::failure::RewardFailure;

/// A reward cannot be set up, or scoring cannot continue.
#[derive(Debug, Error)]
pub enum RewardError {
    /// The functions, or one of their parameters, cannot be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A pattern is no regular expression.
    #[error(
        "reward `format` cannot use the pattern `{pattern}` (look-around and back-references are not supported)"
    )]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The underlying error.
        #[source]
        source: Box<regex::Error>,
    },
    /// An external function cannot be started.
    #[error("reward `command` {failure}; is the program installed and on PATH?")]
    Start {
        /// The failure.
        failure: RewardFailure,
    },
    /// A function broke down for good.
    #[error("reward function `{name}` cannot continue: {failure}")]
    BrokenDown {
        /// The function.
        name: String,
        /// The failure.
        failure: RewardFailure,
    },
    /// The caller no longer wants the scores.
    #[error("interrupted")]
    Interrupted,
}

impl RewardError {
    pub(super) fn parameter(kind: &str, expected: &str, actual: &str) -> Self {
        fault!("reward `{kind}` needs {expected}, got {actual}").into()
    }

    /// A failure of a function that no later call can fix.
    pub(super) fn fatal(name: &str, failure: &RewardFailure) -> Self {
        match failure {
            RewardFailure::Interrupted => Self::Interrupted,
            failure => Self::BrokenDown { name: name.to_owned(), failure: failure.clone() },
        }
    }
}
