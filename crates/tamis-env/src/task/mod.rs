//! Tasks that make their own prompts: procedural arithmetic, and the calculator annotations of GSM8K.

pub mod arithmetic;
pub mod expression;
pub mod gsm8k_calculator;

use std::path::PathBuf;

use thiserror::Error;

/// A prompt and the completion that a supervised phase teaches for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supervised {
    /// What the model is given.
    pub prompt: String,
    /// What it should answer.
    pub completion: String,
}

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
    Level {
        /// Place in the list of levels, from 1.
        level: usize,
        /// What was expected.
        what: &'static str,
        /// What was given.
        actual: String,
    },
    /// A level holds fewer different expressions than asked for.
    #[error(
        "difficulty level {level} ({description}) has too few different expressions on the {split} side: needed {needed}, found {found}; use more digits or operations, or ask for fewer prompts"
    )]
    TooFewExpressions {
        /// Place in the list of levels, from 1.
        level: usize,
        /// The level in words.
        description: String,
        /// The side.
        split: &'static str,
        /// Number asked of this level.
        needed: usize,
        /// Number found.
        found: usize,
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
