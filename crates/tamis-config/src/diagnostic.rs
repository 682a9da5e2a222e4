//! Findings about a configuration: the problem, its place, and the fix.

use std::fmt;

use crate::source::{Origin, SourceKind};

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The run starts, but something may surprise the user.
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
    /// Severity of the finding.
    pub severity: Severity,
    /// The fault.
    pub problem: Box<Problem>,
    /// Place where it was written; `None` if there is no such place.
    pub origin: Option<Origin>,
}

impl Diagnostic {
    /// An error.
    pub fn error(problem: Problem, origin: Option<Origin>) -> Self {
        Self { severity: Severity::Error, problem: Box::new(problem), origin }
    }

    /// A warning.
    pub fn warning(problem: Problem, origin: Option<Origin>) -> Self {
        Self { severity: Severity::Warning, problem: Box::new(problem), origin }
    }

    /// The fix, if one is known.
    pub fn hint(&self) -> Option<String> {
        self.problem.hint()
    }

    /// Whether it is an error in a given value. A value that is still missing is no mistake.
    pub fn is_mistake(&self) -> bool {
        self.severity == Severity::Error && !matches!(*self.problem, Problem::Rule { is_missing: true, .. })
    }
}

/// The fix of a value whose type is not its key's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypeFix {
    /// Another value switches it off, not a negative number.
    SwitchOff,
    /// This value in its place.
    Write(String),
    /// Quotes around a text that begins with a bracket.
    Quotes,
    /// The key's own page has the values.
    Explain,
}

/// Problems in the text of a configuration.
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
        /// The system whose key it seems to be.
        owner: Option<&'static str>,
    },
    /// A key that another kind of the section has.
    #[error("unknown key `{key}`: the kind here is `{kind}`")]
    OfOtherKind {
        /// The key, with its path.
        key: String,
        /// The kind that the section has.
        kind: &'static str,
        /// The kinds that have the key.
        kinds: Vec<&'static str>,
        /// The keys that the section has.
        known: Vec<String>,
    },
    /// A value whose type is not the key's.
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        /// The key.
        key: String,
        /// The type it has.
        expected: String,
        /// The value found.
        found: String,
        /// The fix, if the key has no null.
        fix: TypeFix,
        /// Whether the value is a word for "off".
        is_off: bool,
        /// Whether the key may be null.
        is_nullable: bool,
    },
    /// A value that is not allowed.
    #[error("`{key}` cannot be `{value}`: it is one of {}", allowed.join(", "))]
    NotAllowed {
        /// The key.
        key: String,
        /// The value given.
        value: String,
        /// The value that was probably meant.
        suggestion: Option<String>,
        /// A hint about another key that has the value.
        elsewhere: Option<String>,
        /// The allowed values.
        allowed: Vec<String>,
    },
    /// A number outside its range, or an empty text or list.
    #[error("`{key}` must be {condition}, got {value}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The value given.
        value: String,
        /// The value expected.
        condition: String,
    },
    /// A missing key that has no default.
    #[error("`{key}` is missing: it is one of {}", allowed.join(", "))]
    MissingKey {
        /// The key.
        key: String,
        /// The allowed values.
        allowed: Vec<String>,
    },
    /// A missing key that must be given.
    #[error("`{key}` is missing: {expected}")]
    Missing {
        /// The key.
        key: String,
        /// The type it has.
        expected: String,
    },
    /// A file that cannot be read.
    #[error("failed to read {}: {message}", path.display())]
    Unreadable {
        /// The file.
        path: std::path::PathBuf,
        /// The system's message.
        message: String,
        /// A file with a similar name, in words.
        similar: Option<String>,
        /// The fix otherwise, if one is known.
        hint: Option<String>,
    },
    /// A setting that the run would be refused for.
    #[error("`{key}`: {message}")]
    Refused {
        /// The key.
        key: String,
        /// The reason.
        message: String,
        /// The fix, if it is known.
        hint: Option<String>,
    },
    /// What a run would end with before it samples anything.
    #[error("{message}")]
    Unready {
        /// The run's own message.
        message: String,
        /// The fix, if it is known.
        hint: Option<String>,
    },
    /// A YAML tag.
    #[error("`{tag}` is a YAML tag, and tags are not supported: every key has a fixed type")]
    Tag {
        /// The tag as it is written.
        tag: String,
    },
    /// Settings that break a rule between keys, or a key of another system that has no translation.
    #[error("{message}")]
    Rule {
        /// The keys that it is about. A key of another system has its own name.
        keys: Vec<String>,
        /// The rule, with the numbers that break it.
        message: String,
        /// The fix.
        hint: String,
        /// Whether a required value is still missing, such as the model.
        is_missing: bool,
    },
    /// Text that is no YAML.
    #[error("invalid YAML: {message}")]
    Syntax {
        /// The parser's message.
        message: String,
        /// The fix, if one is known.
        hint: Option<&'static str>,
    },
    /// A key that was given twice.
    #[error("`{key}` is given twice, first on line {first_line}")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Line where the key was given first.
        first_line: usize,
    },
}

impl Problem {
    /// A problem that is not about a key.
    pub fn rule(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::rule_about(&[], message, hint)
    }

    /// A broken rule about some keys, or a key of another system that has no translation.
    pub fn rule_about(keys: &[&str], message: impl Into<String>, hint: impl Into<String>) -> Self {
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        Self::Rule { keys, message: message.into(), hint: hint.into(), is_missing: false }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey { owner: Some(owner), .. } => Some(format!(
                "this is a key of {owner}: pass it as `key=value` on the command line, or convert the whole \
                 file with `tamis config import`"
            )),
            Self::UnknownKey { suggestion: Some(suggestion), .. }
            | Self::NotAllowed { suggestion: Some(suggestion), .. } => {
                Some(format!("did you mean `{suggestion}`?"))
            }
            Self::NotAllowed { elsewhere: Some(elsewhere), .. } => Some(elsewhere.clone()),
            Self::OfOtherKind { kinds, known, .. } => {
                let kinds: Vec<String> = kinds.iter().map(|kind| format!("`{kind}`")).collect();
                let (last, others) = kinds.split_last()?;
                let (names, have) = match others {
                    [] => (last.clone(), "has"),
                    _ => (format!("{} and {last}", others.join(", ")), "have"),
                };
                let known: Vec<&str> =
                    known.iter().map(String::as_str).filter(|key| *key != "kind").collect();
                Some(match known.as_slice() {
                    [] => format!("{names} {have} it"),
                    _ => format!("{names} {have} it; the keys here are {}", known.join(", ")),
                })
            }
            Self::UnknownKey { key, known, .. } if known.is_empty() => {
                let (value, _) = key.rsplit_once('.')?;
                Some(format!("`{value}` has no keys: it is a value itself"))
            }
            Self::UnknownKey { known, .. } => Some(format!("the keys here are {}", known.join(", "))),
            Self::DuplicateKey { .. } => Some("remove one of the two".to_owned()),
            Self::Unreadable { similar, hint, .. } => similar.clone().or_else(|| hint.clone()),
            Self::Refused { hint, .. } | Self::Unready { hint, .. } => hint.clone(),
            Self::Tag { .. } => Some("remove the tag; put a text in quotes".to_owned()),
            Self::Rule { hint, .. } => Some(hint.clone()),
            Self::WrongType { key, fix: TypeFix::SwitchOff, .. } => {
                Some(format!("see `tamis config explain {}` for what switches it off", explained(key)))
            }
            Self::WrongType { key, is_off: true, is_nullable: true, .. } => {
                Some(format!("write null (see `tamis config explain {}` for what that does)", explained(key)))
            }
            Self::WrongType { fix: TypeFix::Write(value), .. } => Some(format!("write {value}")),
            Self::WrongType { fix: TypeFix::Quotes, .. } => {
                Some("put a text that begins with a bracket in quotes, such as '[0-9]+'".to_owned())
            }
            Self::NotAllowed { key, .. }
            | Self::WrongType { key, .. }
            | Self::OutOfRange { key, .. }
            | Self::MissingKey { key, .. }
            | Self::Missing { key, .. } => Some(format!("see `tamis config explain {}`", explained(key))),
            Self::Syntax { hint, .. } => hint.map(str::to_owned),
        }
    }
}

/// Whether a text means "off".
pub(crate) fn is_no(text: &str) -> bool {
    ["off", "none", "no", "false", "disabled"].contains(&text.to_ascii_lowercase().as_str())
}

/// A key in the form for `explain`, without the numbers of items.
fn explained(key: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for c in key.chars() {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            c if !inside => text.push(c),
            _ => {}
        }
    }
    text
}

/// Most characters of a line that are shown.
const EXCERPT: usize = 120;

/// A printable line: control characters become spaces, and a long line is cut to the part around a column.
/// Returns the column in it too.
fn printable(line: &str, column: usize) -> (String, usize) {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let line = line.trim_end();
    if line.chars().count() <= EXCERPT {
        return (line.chars().map(clean).collect(), column);
    }
    let start = column.saturating_sub(EXCERPT / 3);
    let part: String = line.chars().skip(start).take(EXCERPT).map(clean).collect();
    let before = if start > 0 { "..." } else { "" };
    let after = if start + EXCERPT < line.chars().count() { "..." } else { "" };
    (format!("{before}{part}{after}"), column - start + before.len())
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity, self.problem)?;
        if let Some(origin) = &self.origin
            && !matches!(origin.source.kind, SourceKind::Default)
        {
            let gutter = origin.line.to_string().len();
            match origin.source.kind.file() {
                Some(path) => {
                    write!(f, "\n{:gutter$}--> {}:{}:{}", "", path.display(), origin.line, origin.column)?;
                }
                None => write!(f, "\n{:gutter$}--> {origin}", "")?,
            }
            if let Some(line) = origin.excerpt() {
                let (line, column) = printable(line, origin.column);
                let carets = "^".repeat(origin.length.clamp(1, EXCERPT));
                write!(f, "\n{:gutter$} |\n{} | {line}\n{:gutter$} | ", "", origin.line, "")?;
                write!(f, "{:width$}{carets}", "", width = column.saturating_sub(1))?;
            }
        }
        if let Some(hint) = self.hint() {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

/// All findings about a configuration; at least one is an error.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub struct ConfigErrors {
    /// The findings, warnings among them, in the order of the sources.
    pub diagnostics: Vec<Diagnostic>,
}

impl ConfigErrors {
    /// Number of errors among the findings.
    pub fn num_errors(&self) -> usize {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for diagnostic in &self.diagnostics {
            writeln!(f, "{diagnostic}\n")?;
        }
        let num_errors = self.num_errors();
        write!(f, "{num_errors} {} in the configuration", if num_errors == 1 { "error" } else { "errors" })
    }
}
