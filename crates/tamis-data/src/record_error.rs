//! Why rows cannot be read or written.

use std::path::PathBuf;

use thiserror::Error;

use crate::data_record::RowPlace;

/// Why one row cannot be read, while the others may.
#[derive(Debug, Error)]
pub enum RowFault {
    /// The line is not JSON.
    #[error("not valid JSON at column {column}: {detail}")]
    Json {
        /// Byte of the line, from 1.
        column: usize,
        /// The parser's message.
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
    /// A text in a Parquet column of JSON is none.
    #[error(
        "column `{column}` holds no valid JSON, though the file calls it JSON ({detail}); write the column as \
             text if it is"
    )]
    JsonColumn {
        /// The column, with its path if it is nested.
        column: String,
        /// The parser's message.
        detail: String,
    },
    /// A text in a Parquet column of texts is none.
    #[error("column `{column}` holds bytes that are no text (not UTF-8), though the file calls it text")]
    NotUtf8 {
        /// The column, with its path if it is nested.
        column: String,
    },
    /// The line is JSON, but not an object.
    #[error("expected a JSON object, got {actual}")]
    NotAnObject {
        /// The value found.
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
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
    /// Reading stopped.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
    /// One row is broken; reading may go on.
    #[error("{place}: {fault}")]
    Row {
        /// Location of the row.
        place: RowPlace,
        /// The reason.
        fault: RowFault,
    },
    /// A line without end: another file than was meant, or one without line breaks.
    #[error(
        "{place}: the line has more than {}; write one object per line",
        tamis_file::human(tamis_file::MAX_LINE)
    )]
    LineTooLong {
        /// Location of the row.
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
        /// The Parquet library's message.
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
        /// Name of the codec.
        codec: String,
        /// Codecs that can be read.
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
        /// The underlying error.
        #[source]
        source: std::io::Error,
    },
}

fn after(row: u64) -> String {
    if row == 0 { String::new() } else { format!(" after row {row}") }
}
