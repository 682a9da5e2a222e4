//! Why a user's function gave no usable numbers.

use tamis_core::fault::Fault;
use tamis_env::reward::RewardFailure;
use thiserror::Error;

use crate::interrupt::Halt;

/// A loss or an advantage in Python failed, or what it returned cannot be used.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{key}: {place} {what}")]
pub struct FunctionError {
    /// Its key in the configuration.
    pub key: &'static str,
    /// The function: `loss (my.py)`.
    pub place: String,
    /// What is wrong, after the function's name.
    pub what: String,
    /// The fix, if one is known.
    pub hint: Option<String>,
}

impl FunctionError {
    /// The fix, if one is known.
    pub fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}

impl From<FunctionError> for Fault {
    fn from(error: FunctionError) -> Self {
        let hint = error.hint();
        Self::of(error).with_known_hint(hint)
    }
}

impl From<FunctionError> for Halt<Fault> {
    fn from(error: FunctionError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Halt<FunctionError>> for Halt<Fault> {
    fn from(halt: Halt<FunctionError>) -> Self {
        halt.map(Fault::from)
    }
}

impl<S> From<S> for Halt<FunctionError>
where
    FunctionError: From<S>,
{
    fn from(source: S) -> Self {
        Self::Failed(source.into())
    }
}

/// A failure of a process, as one of its function.
pub(super) fn of_failure(key: &'static str, place: &str, failure: &RewardFailure) -> Halt<FunctionError> {
    let (what, hint) = match failure {
        RewardFailure::Interrupted => return Halt::Interrupted,
        RewardFailure::Function { message } => (format!("failed: {message}"), None),
        RewardFailure::Start { program, reason } => (
            format!("cannot be called: `{program}` cannot be started: {reason}"),
            Some(format!("{key}.python, or run.python, names the interpreter")),
        ),
        RewardFailure::TimedOut { .. } => (
            format!("gave no numbers: {failure}"),
            Some(format!("{key}.timeout is the time of one call, {key}.startup_timeout that of the import")),
        ),
        failure => (
            format!("gave no numbers: {failure}"),
            Some(format!("its file is imported by {key}.python, and must end without an error by itself")),
        ),
    };
    Halt::Failed(FunctionError { key, place: place.to_owned(), what, hint })
}
