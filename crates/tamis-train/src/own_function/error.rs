//! Why a user's function gave no usable numbers.

use tamis_core::fault::Fault;
use tamis_env::reward::RewardFailure;
use tamis_process::with_package;
use thiserror::Error;

use crate::interrupt::Halt;

/// A loss or an advantage in Python failed, or what it returned cannot be used.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{key}{}: {place} {what}", step.map_or_else(String::new, |step| format!(" in step {step}")))]
pub struct FunctionError {
    /// Its key in the configuration.
    pub key: &'static str,
    /// The step of the run; `None` for a check before the first one.
    pub step: Option<u64>,
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

/// A failure of a function while a step is trained.
pub(crate) fn in_step(halt: Halt<FunctionError>, step: u64) -> Halt<FunctionError> {
    halt.map(|error| FunctionError { step: Some(step), ..error })
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

/// A failure of a process, as one of its function. `python` is its interpreter.
pub(super) fn of_failure(
    key: &'static str,
    python: &str,
    place: &str,
    failure: &RewardFailure,
) -> Halt<FunctionError> {
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
    let hint = with_package(&what, python, &format!("{key}.python")).or(hint);
    Halt::Failed(FunctionError { key, step: None, place: place.to_owned(), what, hint })
}
