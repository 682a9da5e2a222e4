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
mod error;
mod layout;
mod repeated;
mod summary;

use std::path::{Path, PathBuf};

use tamis_core::filter::{GroupFilter, OutcomeScale, judge_columns};
use tamis_data::records::{FileFormat, copy_rows};

pub use error::{Absent, FilterFileError};
pub use layout::GroupLayout;
pub use repeated::{Repeats, split_prompts};
pub use summary::FilterSummary;

/// Input, filter and outputs of `tamis filter`.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterOptions {
    /// JSONL or Parquet files, all of one format. A group does not reach over files.
    pub inputs: Vec<PathBuf>,
    /// Layout of groups in rows.
    pub layout: GroupLayout,
    /// The filter.
    pub filter: GroupFilter,
    /// The metric's values for wrong and correct; `None` where it has none (a length).
    pub scale: Option<OutcomeScale>,
    /// File for kept rows, in the format of the input; `None`: none.
    pub kept: Option<PathBuf>,
    /// File for dropped rows.
    pub dropped: Option<PathBuf>,
    /// Whether outputs that exist are replaced.
    pub overwrite: bool,
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

/// Kind of the entry at a path, where it is neither nothing nor a regular file, links followed.
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
