//! Tasks that make their own prompts: procedural arithmetic, levels of environments, and the calculator
//! annotations of GSM8K.

pub mod arithmetic;
pub mod environment;
pub mod expression;
pub mod gsm8k_calculator;

use std::ops::Deref;
use std::path::{Path, PathBuf};

use tamis_core::choice;
use tamis_core::fault::Fault;
use tamis_data::prompt::Prompt;
use tamis_data::records::RecordError;
use thiserror::Error;

choice! {
    /// A built-in task.
    pub enum TaskKind {
        /// Procedural sums, drawn by key; its levels are under `data.arithmetic`.
        Arithmetic = "arithmetic",
        /// Levels of the game under `environment`, drawn by key and played turn by turn.
        Environment = "environment",
        /// The calculator annotations of files in GSM8K's format as prompts; the files are `data.train` and
        /// `data.val`.
        Gsm8kCalculator = "gsm8k_calculator",
    }
}

impl Deref for TaskKind {
    type Target = dyn Task;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Arithmetic => &arithmetic::ArithmeticTask,
            Self::Environment => &environment::EnvironmentTask,
            Self::Gsm8kCalculator => &gsm8k_calculator::Gsm8kCalculator,
        }
    }
}

/// A built-in task: one file, and its lines in [`TaskKind`].
pub trait Task {
    /// The kind of the reward that a run has where the user names no verifier.
    fn verifier(&self) -> &'static str {
        "number"
    }

    /// Whether its prompts come from the files of `data.train` and `data.val`.
    fn reads_files(&self) -> bool;

    /// The keys that its errors are about, the likeliest first.
    fn keys(&self) -> &'static [&'static str];

    /// Prompts of the task, at most `most` of a side.
    fn prompts(&self, source: &TaskSource<'_>, most: usize) -> Result<TaskPrompts, TaskError>;
}

/// The parts of a configuration that tasks read.
#[derive(Debug, Clone)]
pub struct TaskSource<'a> {
    /// `run.seed`.
    pub seed: u64,
    /// `data.arithmetic`.
    pub arithmetic: &'a arithmetic::ArithmeticSettings,
    /// `environment`.
    pub environment: Option<environment::EnvironmentLevels>,
    /// `data.train`.
    pub train: &'a [PathBuf],
    /// `data.val`.
    pub held_out: &'a [PathBuf],
}

/// The prompts of a task, ids from 0 on each side.
#[derive(Debug, Clone)]
pub struct TaskPrompts {
    /// Prompts for training.
    pub train: Vec<Prompt>,
    /// Held-out prompts, for evaluation alone.
    pub held_out: Vec<Prompt>,
    /// Lines for the log: what was read, made and left out.
    pub notes: Vec<String>,
    /// Characters of completions that are in no prompt and no answer, for tokenizers that are made for the
    /// task.
    pub alphabet: String,
}

/// Sides of a task's partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// Prompts for training.
    Train,
    /// Held-out prompts, for evaluation alone.
    HeldOut,
}

/// A task could not be made.
#[derive(Debug, Error)]
pub enum TaskError {
    /// The task is an environment, and none is described.
    #[error("data.task is environment, and `environment` does not say which")]
    NoEnvironment,
    /// The environment cannot be made.
    #[error("the environment cannot be made: {0}")]
    Environment(#[from] Fault),
    /// No difficulty level was given.
    #[error("a task needs at least one difficulty level")]
    NoLevel,
    /// A level cannot be built.
    #[error("difficulty level {level} needs {what}, got {actual}")]
    Difficulty {
        /// Place in the list of levels, from 1.
        level: usize,
        /// The value expected.
        what: &'static str,
        /// The value found.
        actual: String,
    },
    /// A level has no expression on a side.
    #[error(
        "difficulty level {level} ({description}) has no expression on the {split} side; use more digits or terms"
    )]
    NoExpression {
        /// Place in the list of levels, from 1.
        level: usize,
        /// The level in words.
        description: String,
        /// The side.
        split: &'static str,
    },
    /// A file cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
    /// A Parquet file cannot be read.
    #[error(transparent)]
    Parquet(#[from] RecordError),
    /// A line of a file is no GSM8K row.
    #[error("{}, line {line}: expected a JSON object with a text field `answer`: {reason}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Line, or row of a Parquet file, from 1.
        line: usize,
        /// The fault.
        reason: String,
    },
    /// A file holds no usable annotation.
    #[error("no usable calculator annotation like <<48/2=24>> in {}{}", path.display(), but_in_train(*.in_train))]
    NoAnnotation {
        /// The file (the first of a list).
        path: PathBuf,
        /// Annotations that it has, all of which the training files have, too.
        in_train: usize,
    },
}

impl TaskError {
    /// The file that is at fault; `None` where none is.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Read { path, .. } | Self::Row { path, .. } | Self::NoAnnotation { path, .. } => Some(path),
            Self::NoEnvironment
            | Self::Environment(_)
            | Self::Parquet(_)
            | Self::NoLevel
            | Self::Difficulty { .. }
            | Self::NoExpression { .. } => None,
        }
    }
}

fn but_in_train(count: usize) -> String {
    if count == 0 { String::new() } else { format!(" that is not in the training files, too ({count} are)") }
}
