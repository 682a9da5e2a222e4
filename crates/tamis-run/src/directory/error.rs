//! Why a run directory cannot be made, opened or read.

use std::path::{Path, PathBuf};

use tamis_core::fault;
use tamis_core::fault::Fault;

use super::find::meant;
use super::{MAX_NAME, number_name};
use crate::durable::DiskError;

/// Why a run directory could not be made, opened or cut back.
#[derive(Debug, thiserror::Error)]
pub enum RunDirectoryError {
    /// The run's name is not valid as a folder name.
    #[error(
        "make a folder for the run `{name}`: a name is one part of a path, without `/`, of at most 255 bytes without control characters, and not empty, `.` or `..` \
         (`run.name`; the folder around it is `run.dir`)"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The run's name is taken, and with a number behind it it would be too long.
    #[error(
        "make a folder for the run `{name}` in `{}`: it exists, and `{name}-{number}` has {} bytes, more than the {MAX_NAME} of a folder \
        name (`run.name`)", parent.display(), number_name(name, *.number).len()
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The first number that is free.
        number: u64,
        /// The folder around it.
        parent: PathBuf,
    },
    /// The folder of a new run cannot be made.
    #[error("make a run directory in `{}` (`run.dir`)", parent.display())]
    NoRoom {
        /// The folder around it.
        parent: PathBuf,
        /// The operation that failed.
        #[source]
        cause: DiskError,
    },
    /// This path is not a run.
    #[error("open the run `{}`: {reason}", path.display())]
    NotARun {
        /// The path.
        path: PathBuf,
        /// What was found instead.
        reason: &'static str,
    },
    /// A recorded position names a file outside the run.
    #[error(
        "cut the logs back to the checkpoint of step {step}: it names `{name}`, which is not a log of the run"
    )]
    ForeignLog {
        /// Name of the file in the checkpoint.
        name: String,
        /// The checkpoint's step.
        step: u64,
    },
    /// The disk failed, another process works there, or the folder was removed or moved while the run worked
    /// in it.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<DiskError> for RunDirectoryError {
    fn from(error: DiskError) -> Self {
        let hint = error.hint();
        Fault::of(error).with_known_hint(hint).into()
    }
}

/// Another process works in a run directory; its number, if it could be read.
pub(super) fn held(path: &Path, process: Option<u32>) -> RunDirectoryError {
    let fault = fault!("open the run `{}`: {} holds it", path.display(), holder(process));
    fault.with_hint("wait for it or stop it (Ctrl-C saves first), then resume").into()
}

/// The folder was removed or moved while the run worked in it.
pub(super) fn gone(path: &Path) -> RunDirectoryError {
    let place = path.display();
    let fault =
        fault!("write into the run directory `{place}`: it was removed or moved while the run was using it");
    let hint = "nothing more was written; to continue a moved run from its last checkpoint, use `tamis train --resume` with its new path";
    fault.with_hint(hint).into()
}

pub(super) fn holder(process: Option<u32>) -> String {
    process.map_or_else(|| "another process".to_owned(), |number| format!("process {number}"))
}

impl RunDirectoryError {
    /// The fix, if one is known.
    pub fn hint(&self) -> Option<String> {
        let fixed = match self {
            Self::Fault(fault) => fault.hint()?,
            Self::Name { .. } => return None,
            Self::NameTaken { .. } => "take a shorter `run.name`",
            Self::NoRoom { cause, .. } => {
                cause.hint().unwrap_or("name a folder that you may write to, such as `run.dir=$HOME/runs`")
            }
            Self::NotARun { path, .. } => {
                let usual = "name the folder that a run printed at its start; it holds `config.yaml`";
                let near = meant(path).map(|near| format!("did you mean `{}`?", near.display()));
                return Some(near.unwrap_or_else(|| usual.to_owned()));
            }
            Self::ForeignLog { .. } => {
                "`state.json` of this checkpoint was changed: restore it, or move the checkpoint elsewhere to continue from the previous \
                one, if there is one"
            }
        };
        Some(fixed.to_owned())
    }
}
