//! Errors as the exceptions of `tamis.errors`.

use pyo3::prelude::*;
use tamis_config::ConfigErrors;

/// Raises an exception of `tamis.errors` with these arguments.
fn raise(py: Python<'_>, class: &str, arguments: impl for<'py> IntoPyObject<'py>) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let class = py.import("tamis.errors")?.getattr(class)?;
        Ok(PyErr::from_value(class.call1((arguments,))?))
    };
    made().unwrap_or_else(|error| error)
}

/// `ConfigError`: the errors in settings, each message with its hint.
pub(crate) fn config_error(py: Python<'_>, problems: Vec<(String, Option<String>)>) -> PyErr {
    raise(py, "ConfigError", problems)
}

/// `ConfigError` with one message.
pub(crate) fn refused(py: Python<'_>, message: &impl ToString, hint: Option<String>) -> PyErr {
    config_error(py, vec![(message.to_string(), hint)])
}

/// The `ConfigError` for a configuration that was refused.
pub(crate) fn not_loaded(py: Python<'_>, errors: &ConfigErrors) -> PyErr {
    // Values that only a run needs may be missing here.
    let mistakes = errors.diagnostics.iter().filter(|found| found.is_mistake());
    config_error(py, mistakes.map(|found| (found.problem.to_string(), found.hint())).collect())
}

/// `ColumnError`: columns that are missing, do not fit together or cannot be read.
pub(crate) fn column_error(py: Python<'_>, message: &impl ToString) -> PyErr {
    raise(py, "ColumnError", message.to_string())
}

/// `EventError`: an event that does not fit the scheduling machine.
pub(crate) fn event_error(py: Python<'_>, message: &impl ToString) -> PyErr {
    raise(py, "EventError", message.to_string())
}
