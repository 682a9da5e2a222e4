//! The metric and the groups of rollout files, as flat columns.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tamis_data::records::{Record, Records, lookup};

use super::{FilterFileError, Layout};

/// The metric of every trajectory and the group of every row.
#[derive(Debug, Default)]
pub(super) struct Columns {
    /// The metric's name.
    pub(super) metric: String,
    /// Group of each row \[file\]\[row\], and which of its members it is; `None` where the row holds them all.
    rows: Vec<Vec<(usize, Option<usize>)>>,
    /// The metric of each group's trajectories \[P\]\[G\], in row order.
    groups: Vec<Vec<f64>>,
}

impl Columns {
    /// All metrics, groups concatenated, and where groups begin and the last ends.
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

    /// The group of a row, and which of its members it is; `None` where the row holds them all.
    pub(super) fn group_of(&self, file: usize, row: u64) -> Option<(usize, Option<usize>)> {
        self.rows.get(file)?.get(usize::try_from(row).ok()?).copied()
    }

    pub(super) fn num_rows(&self) -> usize {
        self.rows.iter().map(Vec::len).sum()
    }
}

/// Columns of the rows read so far, to say what there is instead of a column that there is not.
const ROWS_LISTED: usize = 100;

/// Reads the columns that the layout names.
pub(super) fn read(inputs: &[PathBuf], layout: &Layout) -> Result<Columns, FilterFileError> {
    let mut columns = Columns {
        metric: match layout {
            Layout::Long { metric, .. } => metric.clone(),
            Layout::Wide { metrics } if metrics.is_empty() => return Err(FilterFileError::NoMetricColumns),
            Layout::Wide { metrics } => metrics.join(", "),
        },
        ..Columns::default()
    };
    if inputs.is_empty() {
        return Err(FilterFileError::NoInput);
    }
    for file in inputs {
        let mut seen = Seen::default();
        let rows = match layout {
            Layout::Long { group_by, metric } => {
                long(file, group_by, metric, &mut columns.groups, &mut seen)?
            }
            Layout::Wide { metrics } => wide(file, metrics, &mut columns.groups, &mut seen)?,
        };
        if rows.is_empty() {
            return Err(FilterFileError::NoRows { file: file.clone() });
        }
        let asked: Vec<&String> = match layout {
            Layout::Long { metric, .. } => vec![metric],
            Layout::Wide { metrics } => metrics.iter().collect(),
        };
        if let Some(column) = asked.into_iter().find(|column| !seen.asked.contains(*column)) {
            return Err(seen.missing(file, column));
        }
        columns.rows.push(rows);
    }
    Ok(columns)
}

/// What columns a file was seen to have.
#[derive(Debug, Default)]
struct Seen {
    rows: usize,
    columns: Vec<String>,
    known: BTreeSet<String>,
    /// Columns asked for and found.
    asked: BTreeSet<String>,
}

impl Seen {
    fn look(&mut self, record: &Record) {
        if self.rows < ROWS_LISTED {
            self.rows += 1;
            self.note("", &record.values, 0);
        }
    }

    fn note(&mut self, prefix: &str, values: &Map<String, Value>, depth: usize) {
        for (name, value) in values {
            let path = format!("{prefix}{name}");
            match value {
                Value::Object(inner) if depth < 3 && !inner.is_empty() => {
                    self.note(&format!("{path}."), inner, depth + 1);
                }
                _ => {
                    if self.known.insert(path.clone()) {
                        self.columns.push(path);
                    }
                }
            }
        }
    }

    fn missing(&self, file: &Path, column: &str) -> FilterFileError {
        let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
        let nearest = self
            .columns
            .iter()
            .map(|name| {
                let whole = strsim::jaro_winkler(column, name);
                (whole.max(strsim::jaro_winkler(&last(column), &last(name)) - 0.05), name)
            })
            .filter(|(similarity, _)| *similarity > 0.8)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, name)| name.clone());
        FilterFileError::MissingColumn {
            file: file.to_owned(),
            column: column.to_owned(),
            columns: self.columns.clone(),
            nearest,
        }
    }
}

/// One row a trajectory: the group of each row.
fn long(
    file: &Path,
    group_by: &[String],
    metric: &str,
    groups: &mut Vec<Vec<f64>>,
    seen: &mut Seen,
) -> Result<Vec<(usize, Option<usize>)>, FilterFileError> {
    let mut rows = Vec::new();
    let mut by_key: HashMap<String, usize> = HashMap::new();
    let mut inferred: Vec<String> = Vec::new();
    for record in Records::open(file)? {
        let record = record?;
        seen.look(&record);
        if group_by.is_empty() && inferred.is_empty() {
            let known = Layout::GROUP_COLUMNS.iter().find(|name| lookup(&record.values, name).is_some());
            inferred = vec![
                (*known.ok_or_else(|| FilterFileError::NoGroupColumn {
                    file: file.to_owned(),
                    columns: seen.columns.clone(),
                })?)
                .to_owned(),
            ];
        }
        let mut key = String::new();
        for column in if group_by.is_empty() { &inferred } else { group_by } {
            match lookup(&record.values, column) {
                None if rows.is_empty() => return Err(seen.missing(file, column)),
                None | Some(Value::Null) => {
                    return Err(FilterFileError::NoGroup { place: record.place, column: column.clone() });
                }
                Some(value) => key.push_str(&value.to_string()),
            }
            key.push('\n');
        }
        let value = number(&record, metric, seen)?;
        let group = *by_key.entry(key).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        let mut member = None;
        if let Some(members) = groups.get_mut(group) {
            member = Some(members.len());
            members.push(value);
        }
        rows.push((group, member));
    }
    Ok(rows)
}

/// One row a group.
fn wide(
    file: &Path,
    metrics: &[String],
    groups: &mut Vec<Vec<f64>>,
    seen: &mut Seen,
) -> Result<Vec<(usize, Option<usize>)>, FilterFileError> {
    let mut rows = Vec::new();
    for record in Records::open(file)? {
        let record = record?;
        seen.look(&record);
        let members: Result<Vec<f64>, _> =
            metrics.iter().map(|metric| number(&record, metric, seen)).collect();
        rows.push((groups.len(), None));
        groups.push(members?);
    }
    Ok(rows)
}

/// A metric's number in a row: NaN where null or not there.
fn number(record: &Record, column: &str, seen: &mut Seen) -> Result<f64, FilterFileError> {
    let Some(value) = lookup(&record.values, column) else { return Ok(f64::NAN) };
    if !seen.asked.contains(column) {
        seen.asked.insert(column.to_owned());
    }
    let actual = match value {
        Value::Null => return Ok(f64::NAN),
        Value::Bool(value) => return Ok(f64::from(u8::from(*value))),
        Value::Number(number) => return Ok(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => format!("the text {:?}", text.chars().take(20).collect::<String>()),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(inner) => {
            let inside: Vec<&String> = inner.keys().take(10).collect();
            format!("an object with {}", super::listed(&inside))
        }
    };
    Err(FilterFileError::NotANumber { place: record.place.clone(), column: column.to_owned(), actual })
}
