//! Why rewards cannot be set up, or scoring cannot go on.

use thiserror::Error;

use super::failure::RewardFailure;

/// A reward cannot be set up, or scoring cannot go on.
#[derive(Debug, Error)]
pub enum RewardError {
    /// No function was given.
    #[error("a run needs at least one reward function")]
    NoFunction,
    /// A name is taken or empty.
    #[error("reward function name `{name}` {reason}")]
    Name {
        /// The name.
        name: String,
        /// The fault.
        reason: &'static str,
    },
    /// A weight is no finite number.
    #[error("weight of reward function `{name}` must be a finite number, got {weight}")]
    Weight {
        /// The function.
        name: String,
        /// The weight.
        weight: f64,
    },
    /// A parameter is out of range.
    #[error("reward `{kind}` needs {expected}, got {actual}")]
    Parameter {
        /// Kind of function.
        kind: &'static str,
        /// The value expected.
        expected: &'static str,
        /// The value found.
        actual: String,
    },
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
    #[error("reward function `{name}` cannot go on: {failure}")]
    BrokenDown {
        /// The function.
        name: String,
        /// The failure.
        failure: RewardFailure,
    },
    /// Whoever waits for the scores does not want them any more.
    #[error("interrupted")]
    Interrupted,
}

impl RewardError {
    /// A failure of a function that no later call can mend.
    pub(super) fn fatal(name: &str, failure: &RewardFailure) -> Self {
        match failure {
            RewardFailure::Interrupted => Self::Interrupted,
            failure => Self::BrokenDown { name: name.to_owned(), failure: failure.clone() },
        }
    }
}
