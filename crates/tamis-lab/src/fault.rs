//! The error of this crate's commands: one message with a hint, and a kind from which the exit code follows.

use std::error::Error;
use std::fmt;
use std::io;

use tamis_core::filter::FilterError;
use tamis_data::records::RecordError;
use tamis_run::directory::FolderError;
use tamis_run::durable::DiskError;

/// Who caused a fault. The command line has an exit code for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The request is wrong.
    Usage,
    /// Runs with another configuration are in the way.
    Mismatch,
    /// A file or the machine is the cause.
    Failed,
}

/// An error of a command: the whole message, the fix if one is known, and the cause.
#[derive(Debug)]
pub struct Fault {
    kind: FaultKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Fault {
    fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Usage, message)
    }

    pub(crate) fn mismatch(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Mismatch, message)
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Failed, message)
    }

    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn with_source(self, source: impl Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Box::new(source)), ..self }
    }

    /// Nothing is at a path. The hint names a similar path if there is one.
    pub(crate) fn nothing_there(path: &std::path::Path, otherwise: &str) -> Self {
        let hint = tamis_run::directory::suggest(path).unwrap_or_else(|| otherwise.to_owned());
        Self::usage(format!("there is no file or folder {}", path.display())).with_hint(hint)
    }

    /// An error of another crate, with its own message.
    fn from_error(kind: FaultKind, error: impl Error + Send + Sync + 'static) -> Self {
        Self::new(kind, error.to_string()).with_source(error)
    }

    /// Who caused it.
    pub fn kind(&self) -> FaultKind {
        self.kind
    }

    /// The fix, if one is known.
    pub fn hint(&self) -> Option<String> {
        self.hint.clone()
    }

    pub(crate) fn cause<E: Error + 'static>(&self) -> Option<&E> {
        self.source.as_deref().and_then(|source| source.downcast_ref())
    }

    /// Whether a file is missing.
    pub(crate) fn is_not_found(&self) -> bool {
        self.cause::<io::Error>().is_some_and(|cause| cause.kind() == io::ErrorKind::NotFound)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl From<RecordError> for Fault {
    fn from(error: RecordError) -> Self {
        let is_usage = matches!(error, RecordError::Open { .. } | RecordError::Mixed { .. });
        Self::from_error(if is_usage { FaultKind::Usage } else { FaultKind::Failed }, error)
    }
}

impl From<FolderError> for Fault {
    fn from(error: FolderError) -> Self {
        Self::from_error(FaultKind::Failed, error)
    }
}

impl From<DiskError> for Fault {
    fn from(error: DiskError) -> Self {
        let hint = error.hint().map(str::to_owned);
        Self { hint, ..Self::from_error(FaultKind::Failed, error) }
    }
}

impl From<FilterError> for Fault {
    fn from(error: FilterError) -> Self {
        let hint = error.hint().map(str::to_owned);
        Self { hint, ..Self::from_error(FaultKind::Usage, error) }
    }
}
