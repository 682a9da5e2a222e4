//! The contract of what turns a name on a hub into files on this machine. `tamis-hub` fulfils it.

use std::fmt::Debug;
use std::path::PathBuf;

use thiserror::Error;

/// How far a name is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Whether it is there: nothing is downloaded.
    Look,
    /// To its files.
    Files,
}

/// A model that there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundModel {
    /// The commit of the revision.
    pub commit: String,
    /// The folder with its files; `None` if they were only looked for and are not all in the cache.
    pub folder: Option<PathBuf>,
}

/// A split that there is.
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

/// The split of a data set that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedSplit<'w> {
    /// Its configuration; `None`: the only one, or the default one.
    pub configuration: Option<&'w str>,
    /// Its name; `None`: the first of `or` that there is.
    pub split: Option<&'w str>,
    /// Names to try if none is given.
    pub or: &'w [&'w str],
}

/// Sorts of failure, for an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocateFailure {
    /// What was asked for is not there, or not for this user.
    Refused,
    /// The hub does not answer.
    Unreachable,
    /// This machine, or what came over the wire, is at fault.
    Failed,
}

/// The files of a name cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct LocateError {
    /// What is wrong, with its causes.
    pub message: String,
    /// The fix, if one is known.
    pub hint: Option<String>,
    /// The sort of failure.
    pub failure: LocateFailure,
    /// Whether there may be no such name at all, so that a path was meant.
    pub may_be_path: bool,
}

/// Finds what has a name.
pub trait Locate: Debug + Send + Sync {
    /// Finds a model; `revision` is a branch, tag or commit of it (`None`: the main branch).
    ///
    /// # Errors
    /// If there is none, or its files cannot be had.
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
