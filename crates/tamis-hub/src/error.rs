//! Why the files of a name are not available.

use std::io;
use std::path::Path;

use tamis_config::locate::{LocateError, LocateFailure};
use thiserror::Error;

/// The files of a name are not available. Messages never contain a token or a signed address.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct HubError {
    /// The kind of error, for callers.
    pub cause: HubCause,
    message: String,
    hint: String,
    #[source]
    source: Option<io::Error>,
}

/// Kinds of errors that callers distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HubCause {
    /// The network is disabled, and the cache lacks something.
    Offline,
    /// Nothing answers.
    Unreachable {
        /// Whether a retry may succeed.
        is_passing: bool,
    },
    /// The hub answers with an error status.
    Status {
        /// The status.
        status: u16,
        /// Seconds after which it allows a retry.
        after: Option<u64>,
    },
    /// There is no such repository, or none that this user may see.
    NoRepository,
    /// A data set without a file that can be read.
    NoRows,
    /// A data set with several configurations, and no choice between them.
    WhichConfiguration,
    /// A data set without that configuration or split.
    NoSplit,
    /// The received bytes are not the file.
    Damaged,
    /// The hub refuses it, or the repository's content does not allow it.
    Refused,
    /// Not a hub's answer, or an operation on this disk fails.
    Failed,
}

impl HubError {
    pub(crate) fn new(cause: HubCause, message: String, hint: impl Into<String>) -> Self {
        Self { cause, message, hint: hint.into(), source: None }
    }

    /// Nothing answers at this scheme and host.
    pub(crate) fn unreachable(endpoint: &str, reason: &str, is_passing: bool) -> Self {
        Self::new(
            HubCause::Unreachable { is_passing },
            format!("the hub {endpoint} cannot be reached: {reason}"),
            "without a network, fill the cache elsewhere (`hf download NAME`) and copy it, or name a folder; HTTPS_PROXY names \
             a proxy, HF_ENDPOINT another hub",
        )
    }

    /// The hub answers with an error status. The address is shown without its query.
    pub(crate) fn status(address: &str, status: u16, after: Option<u64>) -> Self {
        let hint = if status == 429 {
            let when = after.map_or_else(|| "later".to_owned(), |seconds| format!("in {seconds} s"));
            format!("too many requests from here: try again {when}; HF_TOKEN raises the limit")
        } else {
            "try again later; what was downloaded is kept".to_owned()
        };
        let message = format!("the hub answers {address} with status {status}");
        Self::new(HubCause::Status { status, after }, message, hint)
    }

    /// The answer from this address (shown without its query) is not one of a hub.
    pub(crate) fn answer(address: &str, what: &str) -> Self {
        let message = format!("{address} did not answer as a hub does: {what}");
        Self::new(HubCause::Failed, message, "does HF_ENDPOINT name a hub?")
    }

    /// The received file differs from the one that the hub names.
    pub(crate) fn damaged(name: &str, file: &str, expected: &str, got: &str) -> Self {
        Self::new(
            HubCause::Damaged,
            format!("{file} of `{name}` arrived damaged: expected {expected}, got {got}"),
            "try again: the damaged part was deleted",
        )
    }

    /// An operation, such as `write`, fails on this disk.
    pub fn disk(operation: &str, path: &Path, source: io::Error) -> Self {
        let hint = if source.kind() == io::ErrorKind::StorageFull {
            "free some space there, or name a cache on another disk with HF_HOME"
        } else {
            "HF_HOME names another place for the cache"
        };
        let message = format!("failed to {operation} {}", path.display());
        Self { source: Some(source), ..Self::new(HubCause::Failed, message, hint) }
    }

    /// The kind of failure.
    pub fn kind(&self) -> LocateFailure {
        match self.cause {
            HubCause::Unreachable { .. } | HubCause::Status { status: 429 | 500.., .. } => {
                LocateFailure::Unreachable
            }
            HubCause::Status { .. } | HubCause::Damaged | HubCause::Failed => LocateFailure::Failed,
            _ => LocateFailure::Refused,
        }
    }

    /// Whether a retry may succeed.
    pub(crate) fn is_passing(&self) -> bool {
        match self.cause {
            HubCause::Unreachable { is_passing } => is_passing,
            HubCause::Status { status, .. } => matches!(status, 408 | 429 | 500..),
            _ => false,
        }
    }

    /// The fix.
    pub fn hint(&self) -> Option<String> {
        Some(self.hint.clone())
    }
}

impl From<HubError> for LocateError {
    fn from(error: HubError) -> Self {
        let cause = error.source.as_ref().map_or_else(String::new, |cause| format!(": {cause}"));
        Self {
            message: format!("{error}{cause}"),
            hint: error.hint(),
            failure: error.kind(),
            may_be_path: matches!(
                error.cause,
                HubCause::NoRepository | HubCause::Offline | HubCause::Unreachable { .. }
            ),
        }
    }
}

/// Names in one line: the first few, and how many more there are.
pub(crate) fn listed<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    const SHOWN: usize = 8;
    let more = names.len().saturating_sub(SHOWN);
    let shown: Vec<String> = names.take(SHOWN).map(|name| format!("`{name}`")).collect();
    match more {
        _ if shown.is_empty() => "none".to_owned(),
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
