//! Rows of JSON values out of JSONL and Parquet files, and copies of chosen rows.
//!
//! A Parquet file is known by its first four bytes, anything else is read as JSON lines. Structs and maps
//! become objects, lists arrays, dates and decimals text (`2024-02-29`, `12.50`), binary columns text where
//! they are UTF-8 and base64 where not ([`DataRecord::binary`] names these); NaN and infinities, which JSON
//! has no numbers for, become null.

mod copy;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};
use thiserror::Error;

use crate::jsonl::{self, JsonLines};
use crate::parquet_file::ParquetRows;

pub use copy::{Copied, copy_rows};

/// Where a row stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowPlace {
    /// The file.
    pub file: Arc<Path>,
    /// Line of a JSONL file or row of a Parquet file, from 1.
    pub row: u64,
    /// Whether `row` counts lines.
    pub is_line: bool,
}

impl std::fmt::Display for RowPlace {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = if self.is_line { "line" } else { "row" };
        write!(formatter, "{}, {unit} {}", self.file.display(), self.row)
    }
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub struct DataRecord {
    /// Where it stands.
    pub place: RowPlace,
    /// Its columns.
    pub values: Map<String, Value>,
    /// Columns, nested ones by their path, that hold bytes which are no text and stand in `values` as base64.
    pub binary: Vec<String>,
    /// Columns of bytes of which some stand in `values` as text, with all of them as base64: rows of a column
    /// that another row has no text in.
    pub encoded: Map<String, Value>,
}

impl DataRecord {
    /// Whether a column, or something in it, holds bytes that are no text.
    pub fn is_binary(&self, column: &str) -> bool {
        self.binary.iter().any(|path| {
            path.strip_prefix(column).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }
}

/// Why one row cannot be read, while the others may.
#[derive(Debug, Error)]
pub enum RowFault {
    /// It is not JSON.
    #[error("not valid JSON at column {column}: {detail}")]
    Json {
        /// Byte of the line, from 1.
        column: usize,
        /// What the parser expected.
        detail: String,
    },
    /// A number that Python writes and JSON does not know.
    #[error(
        "not valid JSON at column {column}: `{literal}` is no JSON number; write null where there is no \
             value (Python: json.dumps(row, allow_nan=False) refuses such numbers)"
    )]
    NoJsonNumber {
        /// Byte of the line, from 1.
        column: usize,
        /// `NaN`, `Infinity` or `-Infinity`.
        literal: &'static str,
    },
    /// It is JSON, but not an object.
    #[error("expected a JSON object, got {actual}")]
    NotAnObject {
        /// What it is.
        actual: &'static str,
    },
}

/// A file of rows could not be read or written.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The file could not be opened.
    #[error("failed to open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Reading stopped.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// One row is broken; reading may go on.
    #[error("{place}: {fault}")]
    Row {
        /// Where.
        place: RowPlace,
        /// Why.
        fault: RowFault,
    },
    /// A line without end: another file than was meant, or one without line breaks.
    #[error(
        "{place}: the line has more than {}; write one object per line",
        tamis_file::human(tamis_file::MAX_LINE)
    )]
    LineTooLong {
        /// Where.
        place: RowPlace,
    },
    /// The file is a JSON array instead of lines.
    #[error(
        "{} holds one JSON array; write one object per line: jq -c '.[]' {} > rows.jsonl", path.display(), path.display()
    )]
    JsonArray {
        /// The file.
        path: PathBuf,
    },
    /// The whole file is compressed.
    #[error("{} is compressed as a whole (gzip or zstd); decompress it first", path.display())]
    Compressed {
        /// The file.
        path: PathBuf,
    },
    /// The name promises Parquet, the content is something else.
    #[error("{} is not a Parquet file: it does not begin with PAR1", path.display())]
    NotParquet {
        /// The file.
        path: PathBuf,
    },
    /// The Parquet file is damaged or uses what the reader does not know.
    #[error("failed to read {} as Parquet{}: {detail}", path.display(), after(*row))]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Rows read before.
        row: u64,
        /// What the Parquet library said.
        detail: String,
    },
    /// A column is compressed with a codec that this build does not have.
    #[error(
        "column `{column}` of {} is compressed with {codec}, which this build cannot read ({supported}); \
             write the file again with snappy: python -c \"import pandas as pd; \
             pd.read_parquet('{}').to_parquet('{}', compression='snappy')\"",
        path.display(), path.display(), path.display()
    )]
    Codec {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// Its codec.
        codec: String,
        /// What can be read.
        supported: &'static str,
    },
    /// Files of different formats or columns cannot be copied into one.
    #[error("{} and {} differ in {what}, so their rows cannot go into one file", first.display(), second.display())]
    Mixed {
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// `format` or `columns`.
        what: &'static str,
    },
    /// The copy could not be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

fn after(row: u64) -> String {
    if row == 0 { String::new() } else { format!(" after row {row}") }
}

/// Formats that rows come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// One JSON object per line.
    Jsonl,
    /// Apache Parquet.
    Parquet,
}

impl FileFormat {
    /// The format of a file, by its first bytes.
    pub fn of(path: &Path) -> Result<Self, RecordError> {
        if jsonl::magic(path)?.starts_with(b"PAR1") {
            return Ok(Self::Parquet);
        }
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet")) {
            return Err(RecordError::NotParquet { path: path.to_owned() });
        }
        Ok(Self::Jsonl)
    }
}

/// The rows of one file, read as they are asked for.
///
/// After [`RecordError::Row`] the next row follows; after any other error there are no more.
#[derive(Debug)]
pub struct Records(Source);

#[derive(Debug)]
enum Source {
    Jsonl(JsonLines),
    Parquet(ParquetRows),
}

impl Records {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        Ok(Self(match FileFormat::of(path)? {
            FileFormat::Jsonl => Source::Jsonl(JsonLines::open(path)?),
            FileFormat::Parquet => Source::Parquet(ParquetRows::open(path)?),
        }))
    }
}

impl Iterator for Records {
    type Item = Result<DataRecord, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Source::Jsonl(lines) => lines.next(),
            Source::Parquet(rows) => rows.next(),
        }
    }
}

/// A value by column name, or by a dotted path into nested objects (`reward_model.ground_truth`). A column
/// whose own name has the dots wins; at each level the longest name that exists is taken first.
///
/// ```
/// use serde_json::json;
/// use tamis_data::records::lookup;
/// let row = json!({"a.b": 1, "a": {"b": 2, "c": {"d": 3}}});
/// let row = row.as_object().unwrap();
/// assert_eq!(lookup(row, "a.b"), Some(&json!(1)));
/// assert_eq!(lookup(row, "a.c.d"), Some(&json!(3)));
/// assert_eq!(lookup(row, "a.x"), None);
/// ```
pub fn lookup<'row>(row: &'row Map<String, Value>, path: &str) -> Option<&'row Value> {
    if let Some(value) = row.get(path) {
        return Some(value);
    }
    path.rmatch_indices('.').find_map(|(dot, _)| {
        let inner = row.get(path.get(..dot)?)?.as_object()?;
        lookup(inner, path.get(dot + 1..)?)
    })
}

/// What a value is, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests;
