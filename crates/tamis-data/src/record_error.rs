//! Why rows cannot be read or written.

use std::path::{Path, PathBuf};

use tamis_core::fault;
use tamis_core::fault::Fault;
use thiserror::Error;

use crate::data_record::RowPlace;

/// Why one row cannot be read. Others may still be readable.
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
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A copy of rows could not be written.
pub(crate) fn unwritten(target: &Path, source: std::io::Error) -> RecordError {
    fault!("failed to write {}", target.display()).with_source(source).into()
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
    /// One row is broken; reading can continue.
    #[error("{place}: {fault}")]
    Row {
        /// Location of the row.
        place: RowPlace,
        /// The reason.
        fault: RowFault,
    },
    /// The file is a JSON array instead of lines.
    #[error(
        "{} holds one JSON array; write one object per line: jq -c '.[]' {} > rows.jsonl", path.display(), path.display()
    )]
    JsonArray {
        /// The file.
        path: PathBuf,
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
    /// Anything else.
    #[error(transparent)]
    Fault(#[from] Fault),
}
