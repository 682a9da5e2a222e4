//! Tasks that make their own prompts: procedural arithmetic, and the calculator annotations of GSM8K.

pub mod arithmetic;
pub mod expression;
pub mod gsm8k_calculator;

use std::path::PathBuf;

use thiserror::Error;

/// Which side of a task's partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// What is trained on.
    Train,
    /// What is only evaluated.
    HeldOut,
}

/// A task could not be made.
#[derive(Debug, Error)]
pub enum TaskError {
    /// No difficulty level was given.
    #[error("a task needs at least one difficulty level")]
    NoLevel,
    /// A level cannot be built.
    #[error("difficulty level {level} needs {what}, got {actual}")]
    Difficulty {
        /// Place in the list of levels, from 1.
        level: usize,
        /// What was expected.
        what: &'static str,
        /// What was given.
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
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A line of a file is no GSM8K row.
    #[error("{}, line {line}: expected a JSON object with a text field `answer`: {reason}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A file holds no usable annotation.
    #[error("no usable calculator annotation like <<48/2=24>> in {}", path.display())]
    NoAnnotation {
        /// The file (the first of a list).
        path: PathBuf,
    },
}
