//! Tasks that make their own prompts: procedural arithmetic, levels of environments, and the calculator
//! annotations of GSM8K.

pub mod arithmetic;
pub mod environment;
pub mod expression;
pub mod gsm8k_calculator;

use std::ops::Deref;
use std::path::PathBuf;

use tamis_core::choice;
use tamis_core::fault::Fault;
use tamis_data::prompt::Prompt;

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
    /// The kind of the default verifier.
    fn verifier(&self) -> &'static str {
        "number"
    }

    /// Whether its prompts come from the files of `data.train` and `data.val`.
    fn reads_files(&self) -> bool;

    /// The keys that its errors are about, the likeliest first.
    fn keys(&self) -> &'static [&'static str];

    /// Prompts of the task, at most `most` on each side.
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
    /// Held-out prompts, only for evaluation.
    pub held_out: Vec<Prompt>,
    /// Lines for the log about rows that were read, made and left out.
    pub notes: Vec<String>,
    /// Characters of completions that are in no prompt and no answer, for tokenizers of the task.
    pub alphabet: String,
}

/// A task could not be made.
#[derive(Debug)]
pub struct TaskError {
    /// What failed.
    pub fault: Fault,
    /// The file that is at fault, if one is.
    pub path: Option<PathBuf>,
}

impl From<Fault> for TaskError {
    fn from(fault: Fault) -> Self {
        Self { fault, path: None }
    }
}

/// Sides of a task's partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// Prompts for training.
    Train,
    /// Held-out prompts, only for evaluation.
    HeldOut,
}
