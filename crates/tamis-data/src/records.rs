//! Rows of JSON values from JSONL and Parquet files, and copies of chosen rows.
//!
//! A Parquet file is recognised by its first four bytes; anything else is read as JSON lines. Structs and
//! maps become objects, lists arrays, dates and decimals text (`2024-02-29`, `12.50`). Binary columns become
//! text if they are UTF-8 and base64 if not ([`DataRecord::binary`] lists those). NaN and infinities become
//! null, because JSON has no numbers for them. A column or a nested field of the logical type JSON becomes
//! what its text holds: the `datasets` library writes values this way if their types differ between rows.

mod copy;

use std::path::Path;

use serde_json::{Map, Value};

use crate::jsonl::JsonLines;
use crate::parquet_file::ParquetRows;

pub use crate::data_record::{Copied, DataRecord, FileColumn, RowPlace};
pub use crate::file_format::FileFormat;
pub use crate::record_error::{RecordError, RowFault};
pub use copy::copy_rows;

/// The rows of one file, read on demand.
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
            FileFormat::Parquet => Source::Parquet(ParquetRows::open(path, &|_| true)?),
        }))
    }

    /// Opens a file for some of its columns. Other columns of a Parquet file are not decoded, which saves
    /// most of the work if they are lists of tokens. JSON lines have all columns in any case.
    pub fn open_with(path: &Path, wanted: impl Fn(FileColumn<'_>) -> bool) -> Result<Self, RecordError> {
        Ok(Self(match FileFormat::of(path)? {
            FileFormat::Jsonl => Source::Jsonl(JsonLines::open(path)?),
            FileFormat::Parquet => Source::Parquet(ParquetRows::open(path, &wanted)?),
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
/// with dots in its own name comes first; at each level the longest existing name is taken.
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

#[cfg(test)]
pub(crate) mod tests;
