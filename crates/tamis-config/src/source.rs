//! Origin of a value: the text of a configuration source and a position in it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The kinds of text in which a value is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceKind {
    /// The built-in defaults.
    Default,
    /// A built-in preset, by name.
    Preset(&'static str),
    /// A file, as the user named it. A relative path in it is relative to its folder.
    File(PathBuf),
    /// A file of another system, as the user named it. A relative path in it is relative to the working
    /// directory, as in those systems.
    TranslatedFile(PathBuf),
    /// The `config.yaml` of a run. It holds absolute paths. A relative path, which a user wrote there, is
    /// relative to the working directory.
    RunFile(PathBuf),
    /// One `key=value` argument of the command line.
    Argument,
    /// A translated argument of another system, by the system's name.
    Translated(&'static str),
}

impl SourceKind {
    /// Whether it is above all our files: an argument, or the translation of another system's argument or
    /// file.
    pub(crate) fn is_command_line(&self) -> bool {
        matches!(self, Self::Argument | Self::Translated(_) | Self::TranslatedFile(_))
    }

    /// Whether it is the translation of another system's key.
    pub(crate) fn is_translated(&self) -> bool {
        matches!(self, Self::Translated(_) | Self::TranslatedFile(_))
    }

    /// The file; `None` if it is no file.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) | Self::TranslatedFile(path) | Self::RunFile(path) => Some(path),
            Self::Default | Self::Preset(_) | Self::Argument | Self::Translated(_) => None,
        }
    }
}

/// A text that holds configuration values: a file, a preset, one argument.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// Kind of the text.
    pub kind: SourceKind,
    /// The whole text, for excerpts.
    pub text: String,
}

impl Source {
    /// A source to which origins of values can refer.
    pub fn new(kind: SourceKind, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { kind, text: text.into() })
    }
}

/// The position of one value: a source, a line and a column (both counted from 1, in characters), and its
/// number of characters on that line.
#[derive(Clone, PartialEq, Eq)]
pub struct Origin {
    /// The text with the value.
    pub source: Arc<Source>,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// Characters on the line, at least 1.
    pub length: usize,
}

impl Origin {
    /// The start of a source.
    pub fn start_of(source: &Arc<Source>) -> Self {
        Self { source: Arc::clone(source), line: 1, column: 1, length: 1 }
    }

    /// Whether a user wrote the value (in a file or on the command line), so it is not from the defaults or a
    /// preset.
    pub fn is_from_user(&self) -> bool {
        !matches!(self.source.kind, SourceKind::Default | SourceKind::Preset(_))
    }

    /// The line of the source that the origin points at, if the source has it.
    pub fn excerpt(&self) -> Option<&str> {
        self.source.text.lines().nth(self.line.checked_sub(1)?)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source.kind {
            SourceKind::Default => f.write_str("default"),
            SourceKind::Preset(name) => write!(f, "preset {name}"),
            SourceKind::File(path) | SourceKind::TranslatedFile(path) | SourceKind::RunFile(path) => {
                write!(f, "{}:{}", path.display(), self.line)
            }
            SourceKind::Argument => f.write_str("command line"),
            SourceKind::Translated(owner) => write!(f, "command line, {owner} key"),
        }
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}:{}", self.column)
    }
}
