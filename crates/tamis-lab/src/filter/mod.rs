//! `tamis filter`: any filter over rollout files of any program. All files together are the round of a pool
//! filter.
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
mod layout;
mod summary;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tamis_core::filter::{GroupFilter, OutcomeScale, judge_columns};
use tamis_data::records::{FileFormat, RecordError, RowFault, copy_rows};

use crate::Fault;

pub use crate::repeats::{Repeats, split_prompts};
pub use layout::GroupLayout;
pub use summary::FilterSummary;

/// Input, filter and outputs of `tamis filter`.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterOptions {
    /// JSONL or Parquet files, all of one format. A group lies within one file.
    pub inputs: Vec<PathBuf>,
    /// Layout of groups in rows.
    pub layout: GroupLayout,
    /// The filter.
    pub filter: GroupFilter,
    /// The metric's values for wrong and correct; `None` if it has none (a length).
    pub scale: Option<OutcomeScale>,
    /// File for kept rows, in the format of the input; `None`: none.
    pub kept: Option<PathBuf>,
    /// File for dropped rows.
    pub dropped: Option<PathBuf>,
    /// Whether existing outputs are replaced.
    pub overwrite: bool,
}

/// Filters rollout files: reads, judges, writes the requested outputs, and returns a summary.
///
/// The rows of a group may be anywhere in its file. If the metric of a row is null, missing or NaN, the
/// trajectory is *unscored*: it does not count in the group's statistics, and is never a zero. Booleans count
/// as 0 and 1.
///
/// # Errors
/// An output would destroy something, or columns or rows lack what the layout names. Nothing is written
/// unless every row can be read.
pub fn filter_file(options: &FilterOptions) -> Result<FilterSummary, Fault> {
    judge_file(options).map_err(|fault| match fault.cause().and_then(unread_hint) {
        Some(hint) => fault.with_hint(hint),
        None => fault,
    })
}

/// The fix for a file that cannot be read, if one is known.
fn unread_hint(error: &RecordError) -> Option<String> {
    match error {
        RecordError::Open { path, source } if source.kind() == ErrorKind::NotFound => {
            Some(tamis_file::suggest(path).unwrap_or_else(|| "name a JSONL or Parquet file".to_owned()))
        }
        RecordError::Open { path, source } if source.kind() == ErrorKind::IsADirectory => {
            let rollouts =
                [path.join("rollouts"), path.clone()].into_iter().find(|folder| folder.is_dir())?;
            Some(format!("name its files: {}/*.parquet", rollouts.display()))
        }
        RecordError::Row { place, fault: RowFault::Json { .. } } if place.row == 1 => {
            Some("rollouts are read as JSON lines (one object a line) or as Parquet".to_owned())
        }
        _ => None,
    }
}

fn judge_file(options: &FilterOptions) -> Result<FilterSummary, Fault> {
    let filter = options.filter;
    filter.check()?;
    let found = columns::Inputs::find(&options.inputs)?;
    let inputs = &found.files;
    check_outputs(options, inputs)?;
    let columns = columns::read(&found, &options.layout)?;
    if let Some(file) = columns.file_of_whole_groups().filter(|_| filter.chooses_members()) {
        let message = format!(
            "the {} filter chooses among the members of a group, but a row of {} holds a whole group",
            filter.name(),
            inputs[file].display()
        );
        return Err(Fault::usage(message).with_hint(
            "write one row a trajectory, with a column that names its group, or choose a strategy that keeps or drops whole groups",
        ));
    }
    let (metric, offsets) = columns.flat();
    let (verdicts, statistics) = judge_columns(&*filter, options.scale, &metric, &offsets)?;
    // If a filter chooses among the members of a group, and each has a row of its own, only the chosen rows
    // are kept.
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
            // A link stays a link: the file behind it is replaced.
            let behind = target.is_symlink().then(|| target.canonicalize().ok()).flatten();
            let copied = copy_rows(inputs, choose, behind.as_ref().unwrap_or(target))?;
            copies.push((target.clone(), copied.num_kept));
        }
    }
    Ok(FilterSummary::new(filter.name(), &filter, &columns, &verdicts, &statistics, copies))
}

/// Refuses outputs that would destroy something, before anything is read.
fn check_outputs(options: &FilterOptions, inputs: &[PathBuf]) -> Result<(), Fault> {
    let clash = |path: &Path, other: &str| {
        Fault::usage(format!("{} is also {other}; choose another output", path.display()))
    };
    let real = |path: &Path| path.canonicalize().ok();
    let outputs: Vec<&PathBuf> = options.kept.iter().chain(&options.dropped).collect();
    for path in &outputs {
        let is_input =
            |input: &PathBuf| *path == input || (real(path).is_some() && real(path) == real(input));
        if inputs.iter().any(is_input) {
            return Err(clash(path, "an input"));
        }
    }
    if let [kept, dropped] = outputs[..]
        && (kept == dropped || (real(kept).is_some() && real(kept) == real(dropped)))
    {
        return Err(clash(kept, "the other output"));
    }
    for path in &outputs {
        if let Some(what) = other_than_file(path) {
            let message = format!("{} is {what}, not a regular file", path.display());
            let hint = "name a file, new or existing; leave the option out to write nothing";
            return Err(Fault::usage(message).with_hint(hint));
        }
    }
    if let Some(path) = outputs.iter().find(|path| !options.overwrite && path.exists()) {
        let message = format!("{} exists already", path.display());
        return Err(Fault::usage(message).with_hint("`--overwrite` replaces it"));
    }
    let Some(input) = inputs.first().filter(|_| !outputs.is_empty()) else { return Ok(()) };
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
        Some(path) => {
            let (name, ending) = match format {
                FileFormat::Jsonl => ("JSON lines", "jsonl"),
                FileFormat::Parquet => ("Parquet", "parquet"),
            };
            let message = format!("{} would hold {name}, as {} does", path.display(), input.display());
            let path = path.with_extension(ending);
            let hint = format!("rows keep the format they come in: name it {}", path.display());
            Err(Fault::usage(message).with_hint(hint))
        }
        None => Ok(()),
    }
}

/// Kind of the entry at a path, unless nothing or a regular file is there. Links are followed.
fn other_than_file(path: &Path) -> Option<&'static str> {
    match path.metadata() {
        Ok(metadata) if metadata.is_file() => None,
        Ok(metadata) if metadata.is_dir() => Some("a folder"),
        Ok(_) => Some("a pipe, a socket or a device"),
        Err(_) => path.is_symlink().then_some("a broken link"),
    }
}

#[cfg(test)]
mod tests;
