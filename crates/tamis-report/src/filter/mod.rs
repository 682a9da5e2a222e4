//! `tamis filter`: any filter over rollout files that anyone produced; the files together are the round of a
//! pool filter.
//!
//! ```text
//! files ─ columns::read ─▶ one number per trajectory, rows of each group ─ judge_columns ─▶ verdicts
//!                                              summary ◀──────────────────────────────────────┤
//!          rows kept, rows dropped, as they were ◀─ tamis_data::records::copy_rows ────────────┘
//! ```
//!
//! Nothing is written before all rows are read and judged, so a broken row leaves no half result. Every row
//! goes to exactly one of the two outputs, byte for byte (JSONL) or value for value (Parquet).

mod columns;
mod summary;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tamis_core::filter::{FilterError, GroupFilter, OutcomeScale, judge_columns};
use tamis_data::records::{FileFormat, RecordError, RowFault, RowPlace, copy_rows};
use thiserror::Error;

pub use summary::FilterSummary;

/// How rows make up groups. Columns may be nested: `175b_finetuning.is_correct`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupLayout {
    /// One row a trajectory; or, where the metric of the first row is a list and no group is named, one row a
    /// group with a number a trajectory.
    Long {
        /// Columns whose values together name the group; the rows of one need not stand together. Empty: the
        /// first there is of [`GroupLayout::GROUP_COLUMNS`].
        group_by: Vec<String>,
        /// The metric's column.
        metric: String,
    },
    /// One row a group.
    Wide {
        /// The metric's columns, one a trajectory.
        metrics: Vec<String>,
    },
}

impl GroupLayout {
    /// Columns that name the group in rollouts of tamis and verl.
    pub const GROUP_COLUMNS: [&'static str; 4] = ["group_id", "uid", "group", "prompt_id"];
}

/// What to filter, how, and where to.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterOptions {
    /// JSONL or Parquet files, all of one format. A group does not reach over files.
    pub inputs: Vec<PathBuf>,
    /// How rows make up groups.
    pub layout: GroupLayout,
    /// The filter.
    pub filter: GroupFilter,
    /// Where the metric says wrong and correct; `None` where it says neither (a length).
    pub scale: Option<OutcomeScale>,
    /// Where kept rows go, in the format of the input; `None`: nowhere.
    pub kept: Option<PathBuf>,
    /// Where dropped rows go.
    pub dropped: Option<PathBuf>,
    /// Whether outputs that exist are replaced.
    pub overwrite: bool,
}

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
        /// What there is not.
        absent: Vec<Absent>,
        /// The columns there are, nested ones by their path.
        columns: Vec<String>,
    },
    /// A row does not say which group it belongs to.
    #[error("{place}: no value in the group column `{column}`")]
    NoGroup {
        /// Where.
        place: RowPlace,
        /// The column.
        column: String,
    },
    /// A metric is not a number, a boolean or null.
    #[error("{place}: `{column}` must be a number, true, false or null, got {actual}")]
    NotANumber {
        /// Where.
        place: RowPlace,
        /// The column.
        column: String,
        /// What it is.
        actual: String,
    },
    /// Rows of lists, and one that has none.
    #[error("{place}: `{column}` must be a list of numbers, as in the first row, got {actual}")]
    NotAList {
        /// Where.
        place: RowPlace,
        /// The column.
        column: String,
        /// What it is.
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
        /// What else it is.
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
        /// What it is.
        what: &'static str,
    },
    /// A number that names a group has more digits than are read of it, so different groups could look like
    /// one.
    #[error("{place}: the group column `{column}` holds a number with more digits than are read ({read})")]
    GroupDigits {
        /// Where.
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

fn list_names(names: &[impl AsRef<str>]) -> String {
    const MOST: usize = 40;
    let mut text: Vec<String> = names.iter().take(MOST).map(|name| format!("`{}`", name.as_ref())).collect();
    if names.len() > MOST {
        text.push(format!("and {} more", names.len() - MOST));
    }
    text.join(", ")
}

/// Filters rollout files: reads, judges, writes the outputs asked for, and says what was found.
///
/// Rows of a group may be scattered over its file. A metric that is null, missing in a row or NaN makes its
/// trajectory *unscored* (outside the group's statistics, never a zero); booleans count as 0 and 1.
///
/// # Errors
/// [`FilterFileError`]; nothing is written unless every row could be read.
pub fn filter_file(options: &FilterOptions) -> Result<FilterSummary, FilterFileError> {
    let filter = options.filter;
    filter.check()?;
    check_outputs(options)?;
    let columns = columns::read(&options.inputs, &options.layout)?;
    if let Some(file) = columns.file_of_whole_groups().filter(|_| filter.chooses_members()) {
        return Err(FilterFileError::WholeGroups {
            filter: filter.name(),
            file: options.inputs[file].clone(),
        });
    }
    let (metric, offsets) = columns.flat();
    let (verdicts, statistics) = judge_columns(&*filter, options.scale, &metric, &offsets)?;
    // A filter that chooses among the members of a group keeps their rows only, where each has its own.
    let chosen: Vec<Option<Vec<bool>>> =
        columns.groups().iter().map(|members| filter.members(members)).collect();
    let mut copies = Vec::new();
    for (target, wants_kept) in [(&options.kept, true), (&options.dropped, false)] {
        if let Some(target) = target {
            let choose = |file: usize, row: u64| {
                let is_kept = columns.group_of(file, row).is_some_and(|(group, member)| {
                    let chosen = chosen.get(group).and_then(Option::as_ref);
                    let is_chosen =
                        |member: usize| chosen.is_none_or(|chosen| chosen.get(member) == Some(&true));
                    verdicts.get(group).is_some_and(|verdict| verdict.is_kept())
                        && member.is_none_or(is_chosen)
                });
                is_kept == wants_kept
            };
            // A link stays one: the file that it leads to is replaced.
            let behind = target.is_symlink().then(|| target.canonicalize().ok()).flatten();
            let copied = copy_rows(&options.inputs, choose, behind.as_ref().unwrap_or(target))?;
            copies.push((target.clone(), copied.num_kept));
        }
    }
    Ok(FilterSummary::new(filter.name(), &filter, &columns, &verdicts, &statistics, copies))
}

/// Refuses outputs that would destroy something, before anything is read.
fn check_outputs(options: &FilterOptions) -> Result<(), FilterFileError> {
    let real = |path: &Path| path.canonicalize().ok();
    let outputs: Vec<&PathBuf> = options.kept.iter().chain(&options.dropped).collect();
    for path in &outputs {
        let is_input =
            |input: &PathBuf| *path == input || (real(path).is_some() && real(path) == real(input));
        if options.inputs.iter().any(is_input) {
            return Err(FilterFileError::OutputClash { path: (*path).clone(), other: "an input" });
        }
    }
    if let [kept, dropped] = outputs[..]
        && (kept == dropped || (real(kept).is_some() && real(kept) == real(dropped)))
    {
        return Err(FilterFileError::OutputClash { path: kept.clone(), other: "the other output" });
    }
    for path in &outputs {
        if let Some(what) = other_than_file(path) {
            return Err(FilterFileError::OutputKind { path: (*path).clone(), what });
        }
    }
    if let Some(path) = outputs.iter().find(|path| !options.overwrite && path.exists()) {
        return Err(FilterFileError::OutputExists { path: (*path).clone() });
    }
    let Some(input) = options.inputs.first().filter(|_| !outputs.is_empty()) else { return Ok(()) };
    let format = FileFormat::of(input)?;
    let promises_other = |path: &&PathBuf| {
        let promised =
            path.extension().and_then(|ending| match ending.to_string_lossy().to_lowercase().as_str() {
                "parquet" => Some(FileFormat::Parquet),
                "jsonl" | "json" | "ndjson" => Some(FileFormat::Jsonl),
                _ => None,
            });
        promised.is_some_and(|promised| promised != format)
    };
    match outputs.into_iter().find(promises_other) {
        Some(path) => Err(FilterFileError::OutputFormat { path: path.clone(), input: input.clone(), format }),
        None => Ok(()),
    }
}

/// What stands at a path, where it is neither nothing nor a regular file, links followed.
fn other_than_file(path: &Path) -> Option<&'static str> {
    match path.metadata() {
        Ok(metadata) if metadata.is_file() => None,
        Ok(metadata) if metadata.is_dir() => Some("a folder"),
        Ok(_) => Some("a pipe, a socket or a device"),
        Err(_) => path.is_symlink().then_some("a link that leads nowhere"),
    }
}

#[cfg(test)]
mod tests;
