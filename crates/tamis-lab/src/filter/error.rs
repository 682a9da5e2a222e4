//! Why a rollout file cannot be filtered.

use std::io::ErrorKind;
use std::path::PathBuf;

use tamis_core::filter::FilterError;
use tamis_data::records::{FileFormat, RecordError, RowFault, RowPlace};
use thiserror::Error;

use super::layout::GroupLayout;

/// A rollout file could not be filtered. No output is half written.
#[derive(Debug, Error)]
pub enum FilterFileError {
    /// A file could not be read, or a copy not written.
    #[error(transparent)]
    Records(#[from] RecordError),
    /// Columns asked for that no row has: all of them at once.
    #[error("{} has {}; it has {}", file.display(), all_of(absent), list_names(columns))]
    MissingColumns {
        /// The file.
        file: PathBuf,
        /// The columns that are missing.
        absent: Vec<Absent>,
        /// The columns there are, nested ones by their path.
        columns: Vec<String>,
    },
    /// A row does not say which group it belongs to.
    #[error("{place}: no value in the group column `{column}`")]
    NoGroup {
        /// Location of the row.
        place: RowPlace,
        /// The column.
        column: String,
    },
    /// A metric is not a number, a boolean or null.
    #[error("{place}: `{column}` must be a number, true, false or null, got {actual}")]
    NotANumber {
        /// Location of the row.
        place: RowPlace,
        /// The column.
        column: String,
        /// The value found.
        actual: String,
    },
    /// Rows of lists, and one that has none.
    #[error("{place}: `{column}` must be a list of numbers, as in the first row, got {actual}")]
    NotAList {
        /// Location of the row.
        place: RowPlace,
        /// The column.
        column: String,
        /// The value found.
        actual: String,
    },
    /// The wide layout needs columns.
    #[error("the wide layout needs at least one metric column")]
    NoMetricColumns,
    /// There is nothing to judge.
    #[error("{} has no rows", file.display())]
    NoRows {
        /// The file.
        file: PathBuf,
    },
    /// The filter chooses members of a group, and all of them are in one row.
    #[error("the {filter} filter chooses among the members of a group, but a row of {} holds a whole group", file.display())]
    WholeGroups {
        /// The filter.
        filter: &'static str,
        /// The first file of that layout.
        file: PathBuf,
    },
    /// No file was given.
    #[error("no rollout file was given")]
    NoInput,
    /// Writing would destroy what is read, or the other output.
    #[error("{} is {other} too; choose another output", path.display())]
    OutputClash {
        /// The output.
        path: PathBuf,
        /// The kind that the path has.
        other: &'static str,
    },
    /// An output's name promises another format than its rows would have.
    #[error("{} would hold {}, as {} does", path.display(), format_name(*format), input.display())]
    OutputFormat {
        /// The output.
        path: PathBuf,
        /// The input that is copied from.
        input: PathBuf,
        /// The input's format.
        format: FileFormat,
    },
    /// The output is there already.
    #[error("{} exists already", path.display())]
    OutputExists {
        /// The output.
        path: PathBuf,
    },
    /// Something other than a file stands where the output would be put: replacing it would destroy it.
    #[error("{} is {what}, not a regular file", path.display())]
    OutputKind {
        /// The output.
        path: PathBuf,
        /// Description of the value.
        what: &'static str,
    },
    /// A number that names a group has more digits than are read of it, so different groups could look like
    /// one.
    #[error("{place}: the group column `{column}` holds a number with more digits than are read ({read})")]
    GroupDigits {
        /// Location of the row.
        place: RowPlace,
        /// The column.
        column: String,
        /// The nearest number that can be held.
        read: String,
    },
    /// The filter's settings do not make sense.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// A column asked for that a file does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absent {
    /// The metric's column.
    Metric {
        /// The column.
        column: String,
        /// The most similar of those there are, if one is.
        nearest: Option<String>,
    },
    /// A column that should name the group.
    Group {
        /// The column.
        column: String,
        /// The most similar of those there are, if one is.
        nearest: Option<String>,
    },
    /// No group column was named, and none of the usual ones is there.
    AnyGroup,
}

impl std::fmt::Display for Absent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (role, column, nearest) = match self {
            Self::Metric { column, nearest } => ("metric", column, nearest),
            Self::Group { column, nearest } => ("group", column, nearest),
            Self::AnyGroup => {
                return write!(
                    formatter,
                    "no column that is known to name the group ({})",
                    list_names(&GroupLayout::GROUP_COLUMNS)
                );
            }
        };
        write!(formatter, "no {role} column `{column}`")?;
        nearest.as_ref().map_or(Ok(()), |name| write!(formatter, " (did you mean `{name}`?)"))
    }
}

impl FilterFileError {
    /// Whether what was asked for is wrong, rather than what the files hold.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::MissingColumns { .. }
            | Self::NoMetricColumns
            | Self::NoInput
            | Self::WholeGroups { .. }
            | Self::OutputClash { .. }
            | Self::OutputFormat { .. }
            | Self::OutputExists { .. }
            | Self::OutputKind { .. }
            | Self::Filter(_)
            | Self::Records(RecordError::Open { .. } | RecordError::Mixed { .. }) => true,
            Self::Records(_)
            | Self::NoGroup { .. }
            | Self::GroupDigits { .. }
            | Self::NotANumber { .. }
            | Self::NotAList { .. }
            | Self::NoRows { .. } => false,
        }
    }

    /// The fix, where one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Filter(error) => error.hint(),
            Self::MissingColumns { absent, columns, .. } if absent.contains(&Absent::AnyGroup) => {
                // Where nothing but the prompt says what belongs together (verl's own dumps), the prompt
                // does.
                let prompt = ["prompt", "input", "question"]
                    .into_iter()
                    .find(|name| columns.iter().any(|column| column == name));
                Some(prompt.map_or_else(
                    || "name it with `--group COLUMN`; where each row holds a whole group, give `--metric` \
                         once for each of its columns".to_owned(),
                    |prompt| format!("name it with `--group COLUMN`; `--group {prompt}` puts rows of the same {prompt} together"),
                ))
            }
            Self::OutputFormat { path, format, .. } => {
                let path = path.with_extension(file_extension(*format));
                Some(format!("rows keep the format they come in: name it {}", path.display()))
            }
            Self::Records(RecordError::Open { path, source }) if source.kind() == ErrorKind::NotFound => {
                Some(tamis_file::suggest(path).unwrap_or_else(|| "name a JSONL or Parquet file".to_owned()))
            }
            Self::Records(RecordError::Open { path, source }) if source.kind() == ErrorKind::IsADirectory => {
                let rollouts = [path.join("rollouts"), path.clone()].into_iter().find(|folder| folder.is_dir())?;
                Some(format!("name its files: {}/*.parquet", rollouts.display()))
            }
            Self::Records(RecordError::Row { place, fault: RowFault::Json { .. } }) if place.row == 1 => {
                Some("rollouts are read as JSON lines (one object a line) or as Parquet".to_owned())
            }
            Self::WholeGroups { .. } => Some(
                "write one row a trajectory, with a column that names its group, or choose a strategy that keeps or drops whole groups"
                    .to_owned(),
            ),
            Self::OutputExists { .. } => Some("`--overwrite` replaces it".to_owned()),
            Self::OutputKind { .. } => {
                Some("name a file, there already or not; leave the option out to write nothing".to_owned())
            }
            Self::GroupDigits { .. } => {
                Some("its last digits would be lost and groups merged; write such ids as text".to_owned())
            }
            Self::NoGroup { .. } => {
                Some("a row without a group cannot be judged; take such rows out first".to_owned())
            }
            _ => None,
        }
    }
}

fn format_name(format: FileFormat) -> &'static str {
    match format {
        FileFormat::Jsonl => "JSON lines",
        FileFormat::Parquet => "Parquet",
    }
}

fn file_extension(format: FileFormat) -> &'static str {
    match format {
        FileFormat::Jsonl => "jsonl",
        FileFormat::Parquet => "parquet",
    }
}

fn all_of(absent: &[Absent]) -> String {
    absent.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

pub(super) fn list_names(names: &[impl AsRef<str>]) -> String {
    const MOST: usize = 40;
    let mut text: Vec<String> = names.iter().take(MOST).map(|name| format!("`{}`", name.as_ref())).collect();
    if names.len() > MOST {
        text.push(format!("and {} more", names.len() - MOST));
    }
    text.join(", ")
}
