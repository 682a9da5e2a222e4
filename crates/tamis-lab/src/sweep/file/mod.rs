//! Reads `SWEEP.yaml` into typed values, and reports every mistake.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis_config::reader::Reader;
use tamis_config::source::{Origin, Source, SourceKind};
use tamis_config::{ConfigErrors, Diagnostic, Problem, take_argument_from, yaml};

use super::name::Template;
use parse::FileParser;

mod parse;

/// One argument of `tamis train`, with its place in the file; `None` for the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Argument {
    /// A file, or an override.
    pub text: String,
    /// Place where it was written.
    pub origin: Option<Origin>,
}

impl Argument {
    /// An override from a sweep's file. A relative path in it starts at that file's folder.
    fn written(text: &str, origin: &Origin, folder: &Path) -> Self {
        Self { text: take_from(folder, text), origin: Some(origin.clone()) }
    }

    /// The key that an override sets.
    pub fn key(&self) -> &str {
        self.text.trim_start_matches(['+', '~']).split('=').next().unwrap_or_default()
    }

    /// Whether it is an override rather than a file.
    pub fn is_override(&self) -> bool {
        self.text.contains('=') || self.text.starts_with(['~', '+'])
    }
}

/// An override with paths relative to a folder in the form for the working directory. `tamis train` also
/// reads `++key=value`, which sets a key.
fn take_from(folder: &Path, argument: &str) -> String {
    match argument.strip_prefix("++") {
        Some(rest) => format!("++{}", take_argument_from(folder, rest)),
        None => take_argument_from(folder, argument),
    }
}

/// Text that the user wrote, with its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// The text.
    pub text: String,
    /// Place where it was written.
    pub origin: Origin,
}

/// Values of axes, by the axes' names.
pub type Values = Vec<(Written, Vec<Written>)>;

/// One axis of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Its name, which templates use.
    pub name: Written,
    /// The key that gets its values; `None` if they are named sets of overrides.
    pub key: Option<String>,
    /// Its values, by condition.
    pub cases: Vec<Case>,
}

/// Values of an axis under a condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Values that other axes must have; one of several for each axis.
    pub when: Values,
    /// The values.
    pub values: Vec<AxisValue>,
}

/// One value of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisValue {
    /// Its name in run names.
    pub label: Written,
    /// Overrides that it sets.
    pub set: Vec<Argument>,
}

/// A point that the file lists: the baseline, or an item of the list.
#[derive(Debug, Clone, PartialEq)]
pub struct Explicit {
    /// Values of axes. They set the same overrides as in the grid.
    pub at: Values,
    /// Values that only appear in names and set nothing.
    pub labels: Values,
    /// Overrides.
    pub set: Vec<Argument>,
    /// Place where it was written.
    pub origin: Origin,
}

impl Explicit {
    /// Names of the axes that it names.
    pub fn axes(&self) -> Vec<&str> {
        self.at.iter().chain(&self.labels).map(|(axis, _)| axis.text.as_str()).collect()
    }
}

/// The content of a sweep's file.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepFile {
    /// The file.
    pub path: PathBuf,
    /// Template of the runs' names.
    pub name: Template,
    /// Place of the template.
    pub name_origin: Origin,
    /// Folder of the runs' folders, relative to the working directory.
    pub results: PathBuf,
    /// Files and overrides of every run.
    pub base: Vec<Argument>,
    /// The axes of the grid, the slowest first.
    pub axes: Vec<Axis>,
    /// The baseline.
    pub baseline: Option<Explicit>,
    /// Points in addition to the grid.
    pub list: Vec<Explicit>,
    /// Seeds; empty: the seed of the base.
    pub seeds: Vec<u64>,
    /// Named parts of the sweep.
    pub only: Vec<(Written, Values)>,
    /// Number of runs at the same time.
    pub parallel: usize,
}

impl SweepFile {
    /// The value of an axis with this label, which may be missing in the grid.
    pub(super) fn value_of(&self, axis: &Axis, label: &Written) -> AxisValue {
        let argument = |key: &String| {
            Argument::written(&format!("{key}={}", label.text), &label.origin, folder_of(&self.path))
        };
        AxisValue { label: label.clone(), set: axis.key.iter().map(argument).collect() }
    }

    /// Reads a sweep.
    ///
    /// # Errors
    /// All mistakes, each with its line.
    pub fn read(path: &Path) -> Result<Self, ConfigErrors> {
        let one = |found: Diagnostic| ConfigErrors { diagnostics: vec![found] };
        let source = read_source(path).map_err(|problem| one(Diagnostic::error(problem, None)))?;
        let tree = yaml::parse(&source).map_err(|diagnostics| ConfigErrors { diagnostics })?;
        let mut parser = FileParser { reader: Reader::default(), folder: folder_of(path) };
        let sweep = parser.sweep(path, &tree);
        let diagnostics = parser.reader.into_diagnostics();
        if diagnostics.is_empty() { Ok(sweep) } else { Err(ConfigErrors { diagnostics }) }
    }
}

/// The folder from which a file's relative paths are taken.
fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Reads the file, which must be regular, UTF-8 and of limited size.
fn read_source(path: &Path) -> Result<Arc<Source>, Problem> {
    let unreadable = |message: String, hint: Option<String>| Problem::Unreadable {
        path: path.to_owned(),
        message,
        similar: None,
        hint,
    };
    let bytes = tamis_file::read(path, tamis_file::MAX_CONFIGURATION).map_err(|error| {
        let hint = (error.kind() == std::io::ErrorKind::NotFound).then(|| {
            tamis_file::suggest(path).unwrap_or_else(|| {
                "name the file of a sweep, such as configs/sweeps/ragen_filtering.yaml".to_owned()
            })
        });
        unreadable(error.to_string(), hint)
    })?;
    let text = String::from_utf8(bytes)
        .map_err(|error| unreadable(error.to_string(), Some("save the file as UTF-8".to_owned())))?;
    Ok(Source::new(SourceKind::File(path.to_owned()), text))
}
