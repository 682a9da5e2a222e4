//! Why a run or a log cannot be followed.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// A path cannot be followed.
#[derive(Debug, Error)]
pub enum MonitorError {
    /// There is nothing at this path.
    #[error("there is no file or folder {}", path.display())]
    NothingThere {
        /// The path.
        path: PathBuf,
    },
    /// A folder that is no run.
    #[error(
        "{} is no run directory: there is neither `config.yaml` nor `metrics.jsonl` nor `run.log` in it",
        folder.display()
    )]
    NotARun {
        /// The folder.
        folder: PathBuf,
    },
    /// A file that is neither regular nor a folder.
    #[error("{} is a device or a pipe, which cannot be read again from its start", path.display())]
    Special {
        /// The path.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        cause: std::io::Error,
    },
    /// A file that is no text.
    #[error("{} is no log: it holds bytes that are no text", path.display())]
    NoText {
        /// The file.
        path: PathBuf,
    },
    /// A text without a line that is understood.
    #[error("none of the {lines} lines of {} says anything about steps or generated batches", path.display())]
    NothingKnown {
        /// The file.
        path: PathBuf,
        /// Number of its lines.
        lines: u64,
    },
}

impl MonitorError {
    /// Whether what was asked for is wrong, rather than what the machine does.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Read { .. })
    }

    /// The fix, where one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NothingThere { path } => Some(tamis_file::suggest(path).unwrap_or_else(|| {
                "name the folder that a run printed at its start, a `metrics.jsonl`, or a log".to_owned()
            })),
            Self::NotARun { folder } => Some(run_inside(folder).map_or_else(
                || "name the folder that a run printed at its start, or a log".to_owned(),
                |run| format!("there are runs in it: did you mean `{}`?", run.display()),
            )),
            Self::Special { .. } => {
                Some("write the output to a file (`... | tee train.log`), and name that".to_owned())
            }
            Self::Read { cause, .. } => (cause.kind() == std::io::ErrorKind::PermissionDenied)
                .then(|| "its owner can make it readable with `chmod a+r`".to_owned()),
            Self::NoText { .. } => Some(
                "name the log as text: unpack it if it is compressed, or name the run's folder".to_owned(),
            ),
            Self::NothingKnown { .. } => Some(
                "a log is understood where it has the lines of tamis, verl (its filter-group log lines too) or EasyR1 \
                 (docs/monitor.md shows each); name the file that has what the trainer prints"
                    .to_owned(),
            ),
        }
    }
}

/// The first run in a folder.
fn run_inside(folder: &Path) -> Option<PathBuf> {
    let mut runs: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| super::watch::is_run(path))
        .collect();
    runs.sort();
    runs.into_iter().next()
}
