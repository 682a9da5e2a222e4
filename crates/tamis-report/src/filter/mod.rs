//! `tamis filter`: any filter over rollout files that anyone produced; the files together are the round of a pool filter.
//!
//! ```text
//! files ─ columns::read ─▶ one number per trajectory, rows of each group ─ judge_columns ─▶ verdicts
//!                                              summary ◀──────────────────────────────────────┤
//!          rows kept, rows dropped, as they were ◀─ tamis_data::records::copy_rows ────────────┘
//! ```
//!
//! Nothing is written before all rows are read and judged, so a broken row leaves no half result. Every row goes to exactly one of
//! the two outputs, byte for byte (JSONL) or value for value (Parquet).

mod columns;
mod summary;

use std::path::{Path, PathBuf};

use tamis_core::filter::{Filter, FilterError, GroupFilter, OutcomeScale, judge_columns};
use tamis_data::records::{Place, RecordError, copy_rows};
use thiserror::Error;

pub use summary::FilterSummary;

/// How rows make up groups. Columns may be nested: `175b_finetuning.is_correct`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// One row a trajectory.
    Long {
        /// Columns whose values together name the group; the rows of one need not stand together. Empty: the first there is of
        /// [`Layout::GROUP_COLUMNS`].
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

impl Layout {
    /// Columns that name the group in rollouts of tamis and verl.
    pub const GROUP_COLUMNS: [&'static str; 4] = ["group_id", "uid", "group", "prompt_id"];
}

/// What to filter, how, and where to.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterOptions {
    /// JSONL or Parquet files, all of one format. A group does not reach over files.
    pub inputs: Vec<PathBuf>,
    /// How rows make up groups.
    pub layout: Layout,
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
    /// No row has such a column.
    #[error(
        "{} has no column `{column}`{}; it has {}",
        file.display(),
        nearest.as_ref().map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default(),
        listed(columns)
    )]
    MissingColumn {
        /// The file.
        file: PathBuf,
        /// The column asked for.
        column: String,
        /// The columns there are, nested ones by their path.
        columns: Vec<String>,
        /// The most similar of them, if one is.
        nearest: Option<String>,
    },
    /// No group column was named and none of the usual ones is there.
    #[error(
        "{} has no column that is known to name the group ({}); name it; it has {}",
        file.display(),
        listed(&Layout::GROUP_COLUMNS),
        listed(columns)
    )]
    NoGroupColumn {
        /// The file.
        file: PathBuf,
        /// The columns there are.
        columns: Vec<String>,
    },
    /// A row does not say which group it belongs to.
    #[error("{place}: no value in the group column `{column}`")]
    NoGroup {
        /// Where.
        place: Place,
        /// The column.
        column: String,
    },
    /// A metric is not a number, a boolean or null.
    #[error("{place}: `{column}` must be a number, true, false or null, got {actual}")]
    NotANumber {
        /// Where.
        place: Place,
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
    /// The output is there already.
    #[error("{} exists already; remove it, choose another output or allow overwriting", path.display())]
    OutputExists {
        /// The output.
        path: PathBuf,
    },
    /// The filter's settings do not make sense.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

fn listed(names: &[impl AsRef<str>]) -> String {
    const MOST: usize = 40;
    let mut text: Vec<String> = names.iter().take(MOST).map(|name| format!("`{}`", name.as_ref())).collect();
    if names.len() > MOST {
        text.push(format!("and {} more", names.len() - MOST));
    }
    text.join(", ")
}

/// Filters rollout files: reads, judges, writes the outputs asked for, and says what was found.
///
/// Rows of a group may be scattered over its file. A metric that is null, missing in a row or NaN makes its trajectory *unscored*
/// (outside the group's statistics, never a zero); booleans count as 0 and 1.
///
/// # Errors
/// [`FilterFileError`]; nothing is written unless every row could be read.
pub fn filter_file(options: &FilterOptions) -> Result<FilterSummary, FilterFileError> {
    let filter = options.filter.checked()?;
    check_outputs(options)?;
    let columns = columns::read(&options.inputs, &options.layout)?;
    let (metric, offsets) = columns.flat();
    let (verdicts, statistics) = judge_columns(&filter, options.scale, &metric, &offsets)?;
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
            let copied = copy_rows(&options.inputs, choose, target)?;
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
    match outputs.into_iter().find(|path| !options.overwrite && path.exists()) {
        Some(path) => Err(FilterFileError::OutputExists { path: path.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
