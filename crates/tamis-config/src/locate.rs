//! The interface that resolves a name on a hub to files on this machine. `tamis-hub` implements it.

use std::fmt::Debug;
use std::path::PathBuf;

use thiserror::Error;

/// How far a name is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Only whether it exists; nothing is downloaded.
    Look,
    /// To its files.
    Files,
}

/// A model that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundModel {
    /// The commit of the revision.
    pub commit: String,
    /// The folder with its files; `None` if they were only looked for and are not all in the cache.
    pub folder: Option<PathBuf>,
}

/// A split that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSplit {
    /// The commit of the revision.
    pub commit: String,
    /// The configuration that it is of.
    pub configuration: String,
    /// Its name.
    pub split: String,
    /// Its files, in order; `None` if they were only looked for and are not all in the cache.
    pub files: Option<Vec<PathBuf>>,
}

/// The requested split of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedSplit<'w> {
    /// Its configuration; `None`: the only one, or the default one.
    pub configuration: Option<&'w str>,
    /// Its name; `None`: the first of `or` that exists.
    pub split: Option<&'w str>,
    /// Names to try if none is given.
    pub or: &'w [&'w str],
}

/// Sorts of failure, for an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocateFailure {
    /// It does not exist, or this user has no access.
    Refused,
    /// The hub does not answer.
    Unreachable,
    /// A fault of this machine or of the received data.
    Failed,
}

/// The files of a name cannot be obtained.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct LocateError {
    /// What is wrong, with its causes.
    pub message: String,
    /// The fix, if one is known.
    pub hint: Option<String>,
    /// The sort of failure.
    pub failure: LocateFailure,
    /// Whether the name may not exist, so a path may have been meant.
    pub may_be_path: bool,
}

/// Resolves names.
pub trait Locate: Debug + Send + Sync {
    /// Finds a model; `revision` is a branch, tag or commit of it (`None`: the main branch).
    ///
    /// # Errors
    /// If there is none, or its files cannot be obtained.
    fn model(&self, id: &str, revision: Option<&str>, extent: Extent) -> Result<FoundModel, LocateError>;

    /// Finds the folder with a model's `config.json`, and downloads nothing else.
    fn model_configuration(&self, id: &str, revision: Option<&str>) -> Result<PathBuf, LocateError>;

    /// Finds a split of a data set.
    fn split(
        &self,
        id: &str,
        revision: Option<&str>,
        wanted: WantedSplit<'_>,
        extent: Extent,
    ) -> Result<FoundSplit, LocateError>;
}
