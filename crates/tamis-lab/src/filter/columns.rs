//! The metric and the groups of rollout files, as flat columns.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tamis_data::records::{DataRecord, RecordError, Records, RowPlace, lookup};
use tamis_data::rollouts::find_metric;

use super::layout::GroupLayout;
use crate::Fault;
use crate::other_runs::{self, OtherRun};
use crate::repeats::{name_prompts, split_prompts};

/// The metric of every trajectory and the group of every row.
#[derive(Debug, Default)]
pub(super) struct RolloutColumns {
    pub(super) metric: String,
    /// Group of each row \[file\]\[row\], and the index of its member; `None` if the row holds all members.
    rows: Vec<Vec<(usize, Option<usize>)>>,
    /// The metric of each group's trajectories \[P\]\[G\], in row order.
    groups: Vec<Vec<f64>>,
    pub(super) warnings: Vec<String>,
}

impl RolloutColumns {
    /// All metrics, with groups concatenated, and the offsets of groups with the end.
    pub(super) fn flat(&self) -> (Vec<f64>, Vec<usize>) {
        let mut metric = Vec::with_capacity(self.groups.iter().map(Vec::len).sum());
        let mut offsets = Vec::with_capacity(self.groups.len() + 1);
        offsets.push(0);
        for group in &self.groups {
            metric.extend(group);
            offsets.push(metric.len());
        }
        (metric, offsets)
    }

    /// The metric of each group's trajectories \[P\]\[G\].
    pub(super) fn groups(&self) -> &[Vec<f64>] {
        &self.groups
    }

    /// The group of a row and the index of its member; `None` if the row holds all members.
    pub(super) fn group_of(&self, file: usize, row: u64) -> Option<(usize, Option<usize>)> {
        self.rows.get(file)?.get(usize::try_from(row).ok()?).copied()
    }

    /// The first file in which a row holds a whole group.
    pub(super) fn file_of_whole_groups(&self) -> Option<usize> {
        self.rows.iter().position(|rows| rows.iter().any(|(_, member)| member.is_none()))
    }

    pub(super) fn num_rows(&self) -> usize {
        self.rows.iter().map(Vec::len).sum()
    }
}

/// Rows whose columns are collected for the error about a missing column.
const ROWS_LISTED: usize = 100;

/// The group of a row and the index of its member; `None` if it holds several.
type Place = (usize, Option<usize>);

/// The place of each row.
type GroupOfRow = Vec<Place>;

/// The files to filter.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    pub(super) files: Vec<PathBuf>,
    /// Runs of other trainers, each with the index of its first file.
    runs: Vec<(usize, OtherRun)>,
}

impl Inputs {
    /// The named files. A folder of another trainer is replaced by its training files.
    pub(super) fn find(inputs: &[PathBuf]) -> Result<Self, Fault> {
        let mut found = Self::default();
        for input in inputs {
            match OtherRun::find_rows(input)? {
                Some(other) if other.steps().next().is_some() => {
                    let first = found.files.len();
                    found.files.extend(other.sources());
                    found.runs.push((first, other));
                }
                Some(other) => return Err(other.no_rollouts()),
                None => found.files.push(input.clone()),
            }
        }
        Ok(found)
    }

    /// The run whose first file this is.
    fn run_at(&self, file: usize) -> Option<&OtherRun> {
        self.runs.iter().find(|(first, _)| *first == file).map(|(_, run)| run)
    }

    /// Notes about the runs of other trainers.
    fn notes(&self) -> impl Iterator<Item = String> + '_ {
        let of_run = |run: &OtherRun| -> Vec<String> {
            run.notes().iter().map(|note| format!("{}: {note}", run.path().display())).collect()
        };
        self.runs.iter().flat_map(move |(_, run)| of_run(run))
    }
}

pub(super) fn read(inputs: &Inputs, layout: &GroupLayout) -> Result<RolloutColumns, Fault> {
    let mut columns = RolloutColumns {
        metric: match layout {
            GroupLayout::Long { metric, .. } => metric.clone(),
            GroupLayout::Wide { metrics } if metrics.is_empty() => {
                return Err(Fault::usage("the wide layout needs at least one metric column"));
            }
            GroupLayout::Wide { metrics } => metrics.join(", "),
        },
        ..RolloutColumns::default()
    };
    if inputs.files.is_empty() {
        return Err(Fault::usage("no rollout file was given"));
    }
    for (place, file) in inputs.files.iter().enumerate() {
        // Already read with the rest of its run.
        if place < columns.rows.len() {
            continue;
        }
        let mut seen = BTreeSet::new();
        let rows = match layout {
            GroupLayout::Long { group_by, metric } if group_by.is_empty() => match inputs.run_at(place) {
                Some(run) => {
                    of_another(run, metric, &mut columns)?;
                    continue;
                }
                None if holds_lists(file, metric)? => lists(file, metric, &mut columns.groups, &mut seen)?,
                None => long(file, group_by, metric, &mut columns, &mut seen)?,
            },
            GroupLayout::Long { group_by, metric } => long(file, group_by, metric, &mut columns, &mut seen)?,
            GroupLayout::Wide { metrics } => wide(file, metrics, &mut columns.groups, &mut seen)?,
        };
        if rows.is_empty() {
            return Err(Fault::failed(format!("{} has no rows", file.display())));
        }
        let asked: &[String] = match layout {
            GroupLayout::Long { metric, .. } => std::slice::from_ref(metric),
            GroupLayout::Wide { metrics } => metrics,
        };
        let absent: Vec<String> = asked.iter().filter(|metric| !seen.contains(*metric)).cloned().collect();
        if !absent.is_empty() {
            return Err(missing(file, &listed(file), &absent, &[], true));
        }
        columns.rows.push(rows);
    }
    columns.warnings.splice(..0, inputs.notes());
    Ok(columns)
}

/// Reads the files of another trainer's run, in the same groups as every command does.
fn of_another(run: &OtherRun, metric: &String, columns: &mut RolloutColumns) -> Result<(), Fault> {
    let files = run.sources();
    let mut rows: Vec<Vec<Option<Place>>> = vec![Vec::new(); files.len()];
    let mut names = BTreeSet::new();
    let mut has_metric = false;
    for step in run.steps() {
        let read = run.trajectories(step)?;
        let first = columns.groups.len();
        for (row, places) in read.rows.iter().zip(&read.places) {
            let value = other_runs::number(row, metric);
            has_metric |= value.is_some();
            names.extend(row.scores.keys().cloned());
            names.extend(Some("reward".to_owned()).filter(|_| !row.reward.is_nan()));
            let group = first + row.group as usize;
            if columns.groups.len() <= group {
                columns.groups.resize_with(group + 1, Vec::new);
            }
            let member = columns.groups[group].len();
            columns.groups[group].push(value.unwrap_or(f64::NAN));
            for &(file, place) in places {
                let (of_file, place) = (&mut rows[file], place as usize);
                if of_file.len() <= place {
                    of_file.resize(place + 1, None);
                }
                match &mut of_file[place] {
                    none @ None => *none = Some((group, Some(member))),
                    // A row with several members of a group is kept or dropped as a whole.
                    Some((known, member)) if *known == group => *member = None,
                    Some(_) => {
                        let (place, file) = (place + 1, files[file].display());
                        let message = format!("row {place} of {file} has trajectories of several groups");
                        return Err(Fault::usage(message).with_hint(
                            "`filter` copies whole rows: it cannot keep one group of such a row and drop another",
                        ));
                    }
                }
            }
        }
    }
    if !has_metric {
        let names: Vec<String> = names.into_iter().collect();
        let fault = missing(run.path(), &names, std::slice::from_ref(metric), &[], true);
        let note = run.notes().pop().filter(|_| other_runs::is_total(metric));
        return Err(match note {
            Some(note) => fault.with_hint(note),
            None => fault,
        });
    }
    for (file, rows) in files.iter().zip(rows) {
        let whole: Option<Vec<_>> = rows.iter().copied().collect();
        columns.rows.push(whole.ok_or_else(|| {
            let row = rows.iter().position(Option::is_none).unwrap_or(0) + 1;
            Fault::failed(format!("row {row} of {} has no group", file.display()))
                .with_hint("it may be half written: remove it, or wait until the run has written it")
        })?);
    }
    Ok(())
}

/// The columns of the first rows of a file, nested ones by their path.
fn listed(file: &Path) -> Vec<String> {
    fn note(columns: &mut Vec<String>, prefix: &str, values: &Map<String, Value>, depth: usize) {
        for (name, value) in values {
            let path = format!("{prefix}{name}");
            match value {
                Value::Object(inner) if depth < 3 && !inner.is_empty() => {
                    note(columns, &format!("{path}."), inner, depth + 1);
                }
                _ if !columns.contains(&path) => columns.push(path),
                _ => {}
            }
        }
    }
    let mut columns = Vec::new();
    for record in Records::open(file).into_iter().flatten().take(ROWS_LISTED).map_while(Result::ok) {
        note(&mut columns, "", &record.values, 0);
    }
    columns
}

fn nearest(columns: &[String], column: &str) -> Option<String> {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    columns
        .iter()
        .map(|name| {
            let whole = strsim::jaro_winkler(column, name);
            (whole.max(strsim::jaro_winkler(&last(column), &last(name)) - 0.05), name)
        })
        .filter(|(similarity, _)| *similarity > 0.78)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name.clone())
}

/// The error of metrics that no row has, and of group columns that the first row does not have.
fn missing(
    file: &Path,
    columns: &[String],
    metrics: &[String],
    groups: &[String],
    has_any_group: bool,
) -> Fault {
    let absent = |role: &str, column: &String| match nearest(columns, column) {
        Some(name) => format!("no {role} column `{column}` (did you mean `{name}`?)"),
        None => format!("no {role} column `{column}`"),
    };
    let metrics = metrics.iter().map(|metric| absent("metric", metric));
    let mut all: Vec<String> = metrics.chain(groups.iter().map(|group| absent("group", group))).collect();
    if !has_any_group {
        let known = list_names(&GroupLayout::GROUP_COLUMNS);
        all.push(format!("no column that is known as a group ({known})"));
    }
    let (file, there) = (file.display(), list_names(columns));
    let fault = Fault::usage(format!("{file} has {}; it has {there}", all.join(" and ")));
    if has_any_group {
        return fault;
    }
    // If only the prompt shows which rows belong together (verl's own dumps), it names the group.
    let prompt =
        ["prompt", "input", "question"].into_iter().find(|name| columns.iter().any(|column| column == name));
    fault.with_hint(prompt.map_or_else(
        || {
            "name it with `--group COLUMN`; if each row holds a whole group, give `--metric` once for each of its columns"
                .to_owned()
        },
        |prompt| {
            format!(
                "name it with `--group COLUMN`; `--group {prompt}` puts rows of the same {prompt} together"
            )
        },
    ))
}

/// The error about group columns that the first row lacks. It includes the metric if no row has that either.
fn no_group(file: &Path, first: &DataRecord, groups: &[String], metric: &String, rest: Records) -> Fault {
    let has_metric = metric_value(&first.values, metric).is_some()
        || rest.map_while(Result::ok).any(|record| metric_value(&record.values, metric).is_some());
    let metrics = if has_metric { &[] } else { std::slice::from_ref(metric) };
    missing(file, &listed(file), metrics, groups, !groups.is_empty())
}

/// Opens a file with the columns that name groups and hold metrics.
fn open(file: &Path, groups: &[String], metrics: &[String]) -> Result<Records, RecordError> {
    /// Columns that [`find_metric`] reads besides the metric's own.
    const OF_OURS: [&str; 4] = ["metric", "metric_value", "verdict", "reward"];
    Records::open_with(file, |column| {
        let leads_to = |path: &String| {
            path.strip_prefix(column.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let is_score = |metric: &String| {
            let score = metric.strip_prefix("scores.");
            score.is_some_and(|score| {
                column.name == score || column.name.strip_prefix("score_") == Some(score)
            })
        };
        groups.iter().chain(metrics).any(leads_to)
            || metrics.iter().any(is_score)
            || OF_OURS.contains(&column.name)
            || groups.is_empty() && GroupLayout::GROUP_COLUMNS.contains(&column.name)
            || column.name == "loss_mask" && metrics.iter().any(|metric| metric == "length")
    })
}

/// One row per trajectory: finds the group of each row.
fn long(
    file: &Path,
    group_by: &[String],
    metric: &String,
    read: &mut RolloutColumns,
    seen: &mut BTreeSet<String>,
) -> Result<GroupOfRow, Fault> {
    let mut rows = Vec::new();
    let mut spellings: BTreeMap<String, Spellings> = BTreeMap::new();
    let mut by_key: HashMap<String, usize> = HashMap::new();
    let mut inferred: Vec<String> = Vec::new();
    let mut records = open(file, group_by, std::slice::from_ref(metric))?;
    while let Some(record) = records.next() {
        let record = record?;
        if group_by.is_empty() && inferred.is_empty() {
            match GroupLayout::GROUP_COLUMNS.into_iter().find(|name| lookup(&record.values, name).is_some()) {
                Some(name) => inferred.push(name.to_owned()),
                None => return Err(no_group(file, &record, &[], metric, records)),
            }
        }
        let columns = if group_by.is_empty() { &inferred } else { group_by };
        if rows.is_empty() {
            let is_absent = |column: &&String| lookup(&record.values, column).is_none();
            let absent: Vec<String> = columns.iter().filter(is_absent).cloned().collect();
            if !absent.is_empty() {
                return Err(no_group(file, &record, &absent, metric, records));
            }
        }
        let mut key = String::new();
        for column in columns {
            match lookup(&record.values, column) {
                None | Some(Value::Null) => {
                    let message = format!("{}: no value in the group column `{column}`", record.place);
                    let hint = "a row without a group cannot be judged; remove such rows first";
                    return Err(Fault::failed(message).with_hint(hint));
                }
                Some(value) => {
                    if let Some(number) = inexact(value) {
                        let message = format!(
                            "{}: the group column `{column}` holds a number with more digits than are read ({number:e})",
                            record.place
                        );
                        return Err(Fault::failed(message).with_hint(
                            "its last digits would be lost and groups merged; write such ids as text",
                        ));
                    }
                    match spellings.get_mut(column) {
                        Some(known) => known.note(value),
                        None => spellings.entry(column.clone()).or_default().note(value),
                    }
                    key.push_str(&value.to_string());
                }
            }
            key.push('\n');
        }
        let value = number(&record, metric, seen)?;
        let next = by_key.len();
        let group = *by_key.entry(key).or_insert(next);
        rows.push((group, value));
    }
    read.warnings.extend(spellings.iter().filter_map(|(column, spellings)| spellings.warning(file, column)));
    let mut keys: Vec<usize> = rows.iter().map(|(key, _)| *key).collect();
    let columns = if group_by.is_empty() { &inferred } else { group_by };
    if name_prompts(columns) {
        let warning = split_prompts(&mut keys).warning(&columns.join("`, `"));
        read.warnings.extend(warning.map(|warning| format!("{}: {warning}", file.display())));
    }
    let groups = &mut read.groups;
    let first = groups.len();
    let mut of_rows: GroupOfRow = Vec::with_capacity(rows.len());
    for (key, (_, value)) in keys.into_iter().zip(rows) {
        let group = first + key;
        if groups.len() <= group {
            groups.resize_with(group + 1, Vec::new);
        }
        of_rows.push((group, Some(groups[group].len())));
        groups[group].push(value);
    }
    Ok(of_rows)
}

/// Spellings of the ids in one column: `1`, `1.0` and `"1"` name three groups, which is rarely intended.
#[derive(Debug, Default)]
struct Spellings {
    /// The spellings of each number.
    by_number: HashMap<i128, BTreeSet<String>>,
}

impl Spellings {
    fn note(&mut self, value: &Value) {
        /// From 2^53 on, doubles skip integers, and two ids would be one.
        const FIRST_SKIPPED: f64 = 9_007_199_254_740_992.0;
        let whole =
            |number: f64| (number.fract() == 0.0 && number.abs() < FIRST_SKIPPED).then_some(number as i128);
        let number = match value {
            Value::Number(number) => number
                .as_i64()
                .map(i128::from)
                .or_else(|| number.as_u64().map(i128::from))
                .or_else(|| whole(number.as_f64()?)),
            Value::String(text) => {
                let text = text.trim();
                text.parse()
                    .ok()
                    // An id with an exponent (`1e5`, as in a hash) is a text.
                    .or_else(|| whole(text.parse().ok().filter(|_| !text.contains(['e', 'E']))?))
            }
            _ => None,
        };
        if let Some(number) = number {
            self.by_number.entry(number).or_default().insert(value.to_string());
        }
    }

    fn warning(&self, file: &Path, column: &str) -> Option<String> {
        let several = self.by_number.iter().filter(|(_, written)| written.len() > 1);
        let (_, written) = several.clone().min_by_key(|(number, _)| **number)?;
        let written: Vec<String> = written.iter().map(|written| format!("`{written}`")).collect();
        Some(format!(
            "{}: {} ids in column `{column}` are written in more than one way, such as {}: each way counts as a separate group; write \
            them all as numbers or all as text",
            file.display(),
            several.count(),
            written.join(" and ")
        ))
    }
}

/// One row per group.
fn wide(
    file: &Path,
    metrics: &[String],
    groups: &mut Vec<Vec<f64>>,
    seen: &mut BTreeSet<String>,
) -> Result<Vec<(usize, Option<usize>)>, Fault> {
    let mut rows = Vec::new();
    for record in open(file, &[], metrics)? {
        let record = record?;
        let members: Result<Vec<f64>, _> =
            metrics.iter().map(|metric| number(&record, metric, seen)).collect();
        rows.push((groups.len(), None));
        groups.push(members?);
    }
    Ok(rows)
}

/// Whether the metric of the first row is a list, so that each row is a group.
fn holds_lists(file: &Path, metric: &String) -> Result<bool, Fault> {
    let first = open(file, &[], std::slice::from_ref(metric))?.next().transpose()?;
    Ok(first.is_some_and(|record| matches!(lookup(&record.values, metric), Some(Value::Array(_)))))
}

/// One row per group, with its members in a list.
fn lists(
    file: &Path,
    metric: &String,
    groups: &mut Vec<Vec<f64>>,
    seen: &mut BTreeSet<String>,
) -> Result<Vec<(usize, Option<usize>)>, Fault> {
    let mut rows = Vec::new();
    seen.insert(metric.to_owned());
    for record in open(file, &[], std::slice::from_ref(metric))? {
        let record = record?;
        let not_a_list = |actual: String| {
            let place = &record.place;
            Fault::failed(format!(
                "{place}: `{metric}` must be a list of numbers, as in the first row, got {actual}"
            ))
        };
        let members = match lookup(&record.values, metric) {
            Some(Value::Array(members)) if members.is_empty() => {
                return Err(not_a_list("an empty one".to_owned()));
            }
            Some(Value::Array(members)) => members,
            Some(other) => return Err(not_a_list(describe(other))),
            None => return Err(not_a_list("nothing".to_owned())),
        };
        let members = members.iter().enumerate().map(|(place, member)| {
            as_number(member)
                .ok_or_else(|| not_a_number(&record.place, &format!("{metric}[{place}]"), member))
        });
        let members: Result<Vec<f64>, _> = members.collect();
        rows.push((groups.len(), None));
        groups.push(members?);
    }
    Ok(rows)
}

/// The value of a metric in a row: of the column with its name, or as rollouts of tamis hold it. A column
/// that merely has the name of a tamis number (a reward's) does not count.
fn metric_value<'row>(row: &'row Map<String, Value>, metric: &str) -> Option<Cow<'row, Value>> {
    let column = || lookup(row, metric).map(Cow::Borrowed);
    if matches!(metric, "length" | "entropy" | "seq_reward") {
        find_metric(row, metric).or_else(column)
    } else {
        column().or_else(|| find_metric(row, metric))
    }
}

/// A metric's number in a row; NaN if it is null or missing.
fn number(record: &DataRecord, column: &str, seen: &mut BTreeSet<String>) -> Result<f64, Fault> {
    let Some(value) = metric_value(&record.values, column) else { return Ok(f64::NAN) };
    if !seen.contains(column) {
        seen.insert(column.to_owned());
    }
    as_number(&value).ok_or_else(|| not_a_number(&record.place, column, &value))
}

fn not_a_number(place: &RowPlace, column: &str, value: &Value) -> Fault {
    let actual = describe(value);
    Fault::failed(format!("{place}: `{column}` must be a number, true, false or null, got {actual}"))
}

/// A number or flag; NaN for null.
fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Null => Some(f64::NAN),
        Value::Bool(value) => Some(f64::from(u8::from(*value))),
        Value::Number(number) => Some(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A number that is not exact: an integer beyond 64 bits is read as the nearest double, which stands for
/// several integers.
fn inexact(value: &Value) -> Option<f64> {
    /// From 2^53 on, doubles skip integers.
    const FIRST_SKIPPED: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) if number.is_f64() => {
            number.as_f64().filter(|number| number.abs() >= FIRST_SKIPPED)
        }
        Value::Array(values) => values.iter().find_map(inexact),
        Value::Object(values) => values.values().find_map(inexact),
        _ => None,
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("the single value {value}"),
        Value::String(text) => format!("the text {:?}", text.chars().take(20).collect::<String>()),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(inner) => {
            let inside: Vec<&String> = inner.keys().take(10).collect();
            format!("an object with {}", list_names(&inside))
        }
    }
}

fn list_names(names: &[impl AsRef<str>]) -> String {
    const MOST: usize = 40;
    let mut text: Vec<String> = names.iter().take(MOST).map(|name| format!("`{}`", name.as_ref())).collect();
    if names.len() > MOST {
        text.push(format!("and {} more", names.len() - MOST));
    }
    text.join(", ")
}
