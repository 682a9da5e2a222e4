//! What is wrong with a configuration, where, and what to do about it.

use std::fmt;

use crate::source::{Origin, SourceKind};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The run starts; something is not as the user may think.
    Warning,
    /// The run does not start.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One finding: what, where, and the fix.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub problem: Problem,
    /// Where it was written; `None` where no place is to blame.
    pub origin: Option<Origin>,
}

impl Diagnostic {
    /// An error.
    pub fn error(problem: Problem, origin: Option<Origin>) -> Self {
        Self { severity: Severity::Error, problem, origin }
    }

    /// A warning.
    pub fn warning(problem: Problem, origin: Option<Origin>) -> Self {
        Self { severity: Severity::Warning, problem, origin }
    }

    /// The fix, where one is known.
    pub fn hint(&self) -> Option<String> {
        self.problem.hint()
    }
}

/// What can be wrong with the text of a configuration.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A key that does not exist.
    #[error("unknown key `{key}`")]
    UnknownKey {
        /// The key, with its path.
        key: String,
        /// The key that was probably meant.
        suggestion: Option<String>,
        /// The keys that the section has.
        known: Vec<String>,
    },
    /// A value of another type than its key has.
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        /// The key.
        key: String,
        /// The type it has.
        expected: String,
        /// What there was.
        found: String,
    },
    /// A value that is none of those allowed.
    #[error("`{key}` cannot be `{value}`: it is one of {}", allowed.join(", "))]
    NotAllowed {
        /// The key.
        key: String,
        /// What there was.
        value: String,
        /// The value that was probably meant.
        suggestion: Option<String>,
        /// The allowed values.
        allowed: Vec<String>,
    },
    /// A number outside its range, or an empty text or list.
    #[error("`{key}` must be {condition}, got {value}")]
    OutOfRange {
        /// The key.
        key: String,
        /// What there was.
        value: String,
        /// What it must be.
        condition: String,
    },
    /// A key that has no default and is not there.
    #[error("`{key}` is missing: it is one of {}", allowed.join(", "))]
    MissingKey {
        /// The key.
        key: String,
        /// The allowed values.
        allowed: Vec<String>,
    },
    /// Text that is no YAML.
    #[error("invalid YAML: {message}")]
    Syntax {
        /// What the parser said.
        message: String,
    },
    /// A key that was given twice.
    #[error("`{key}` is given twice, first on line {first_line}")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where it was given first.
        first_line: usize,
    },
}

impl Problem {
    fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey { suggestion: Some(suggestion), .. } => {
                Some(format!("did you mean `{suggestion}`?"))
            }
            Self::UnknownKey { known, .. } => Some(format!("the keys here are {}", known.join(", "))),
            Self::NotAllowed { suggestion: Some(suggestion), .. } => {
                Some(format!("did you mean `{suggestion}`?"))
            }
            Self::DuplicateKey { .. } => Some("remove one of the two".to_owned()),
            Self::NotAllowed { .. }
            | Self::WrongType { .. }
            | Self::OutOfRange { .. }
            | Self::MissingKey { .. }
            | Self::Syntax { .. } => None,
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity, self.problem)?;
        if let Some(origin) = &self.origin
            && !matches!(origin.source.kind, SourceKind::Default)
        {
            let gutter = origin.line.to_string().len();
            match &origin.source.kind {
                SourceKind::File(path) => {
                    write!(f, "\n{:gutter$}--> {}:{}:{}", "", path.display(), origin.line, origin.column)?;
                }
                _ => write!(f, "\n{:gutter$}--> {origin}", "")?,
            }
            if let Some(line) = origin.excerpt() {
                let line = line.trim_end();
                let indent = origin.column.saturating_sub(1);
                // A tab in front of the caret stays a tab, so that the two lines agree at any tab width.
                let space: String = line
                    .chars()
                    .chain(std::iter::repeat(' '))
                    .take(indent)
                    .map(|c| if c == '\t' { '\t' } else { ' ' })
                    .collect();
                let carets = "^".repeat(origin.length.max(1));
                write!(f, "\n{:gutter$} |\n{} | {line}\n{:gutter$} | {space}{carets}", "", origin.line, "")?;
            }
        }
        if let Some(hint) = self.hint() {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}
