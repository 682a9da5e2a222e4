//! Why a page cannot be made.

use std::path::PathBuf;

use thiserror::Error;

use crate::compare::series::SeriesError;

/// A page cannot be made.
#[derive(Debug, Error)]
pub enum PageError {
    /// There is nothing at this path.
    #[error("there is no file or folder {}", path.display())]
    NothingThere {
        /// The path.
        path: PathBuf,
    },
    /// A folder that is no run.
    #[error(
        "{} is no run directory: there is neither `config.yaml` nor `metrics.jsonl` nor a `rollouts` folder in it",
        folder.display()
    )]
    NotARun {
        /// The folder.
        folder: PathBuf,
    },
    /// A run is given twice.
    #[error("{} is given twice", path.display())]
    Twice {
        /// The run.
        path: PathBuf,
    },
    /// No run was given.
    #[error("no run is given")]
    NoRun,
    /// Metrics cannot be read.
    #[error(transparent)]
    Series(#[from] SeriesError),
    /// No run has a step among those asked for.
    #[error("no run has one of the {range} that `--steps` asks for; {there}")]
    NoSuchStep {
        /// The steps.
        range: String,
        /// The steps that there are, in words.
        there: String,
    },
}

impl PageError {
    /// Whether what was asked for is wrong, rather than what the files hold.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Series(_))
    }

    /// The fix, where one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NothingThere { path } => Some(tamis_file::suggest(path).unwrap_or_else(|| {
                "name the folder that a run printed at its start, or a `metrics.jsonl`".to_owned()
            })),
            Self::NotARun { folder } => {
                // The folder around runs is taken for one of them.
                let inside = std::fs::read_dir(folder).ok().and_then(|entries| {
                    let mut runs: Vec<PathBuf> = entries
                        .flatten()
                        .map(|entry| entry.path())
                        .filter(|path| path.join("metrics.jsonl").is_file())
                        .collect();
                    runs.sort();
                    runs.into_iter().next()
                });
                Some(inside.map_or_else(
                    || "name the folder that a run printed at its start".to_owned(),
                    |run| format!("there are runs in it: did you mean `{}`?", run.display()),
                ))
            }
            Self::Twice { .. } => Some("name each run once".to_owned()),
            Self::NoRun => Some("`tamis report runs/quickstart`".to_owned()),
            Self::NoSuchStep { .. } => Some("leave `--steps` out for all of them".to_owned()),
            Self::Series(SeriesError::NoRow { .. }) => {
                Some("name a run directory, or a `metrics.jsonl` of tamis or with verl's names".to_owned())
            }
            Self::Series(_) => None,
        }
    }
}
