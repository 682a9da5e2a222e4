//! Rows of files, and the counts of a copy.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

/// A column of a Parquet file.
#[derive(Debug, Clone, Copy)]
pub struct FileColumn<'file> {
    /// Its name.
    pub name: &'file str,
    /// Whether it may have one number or boolean for each row; a JSON column may.
    pub is_number: bool,
}

/// Location of a row.
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
    /// Location of the row.
    pub place: RowPlace,
    /// Values of the row by column.
    pub values: Map<String, Value>,
    /// Columns (nested ones by their path) with bytes that are not text. In `values` they are base64.
    pub binary: Vec<String>,
    /// All values as base64, for columns of bytes that are text in some rows and not in others.
    pub encoded: Map<String, Value>,
}

impl DataRecord {
    /// Whether a column, or something in it, holds bytes that are not text.
    pub fn is_binary(&self, column: &str) -> bool {
        self.binary.iter().any(|path| {
            path.strip_prefix(column).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }
}

/// Counts of a copy: rows taken and left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    /// Rows written.
    pub num_kept: u64,
    /// Rows left out.
    pub num_dropped: u64,
}

/// JSON type of a value, for messages.
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
