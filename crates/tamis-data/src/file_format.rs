//! The format of a file of rows.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::record_error::RecordError;
use tamis_core::fault;

/// Formats of files of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// One JSON object per line.
    Jsonl,
    /// Apache Parquet.
    Parquet,
}

impl FileFormat {
    /// Finds a file's format from its first bytes.
    pub fn of(path: &Path) -> Result<Self, RecordError> {
        if magic(path)?.starts_with(b"PAR1") {
            return Ok(Self::Parquet);
        }
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet")) {
            return Err(
                fault!("{} is not a Parquet file: it does not begin with PAR1", path.display()).into()
            );
        }
        Ok(Self::Jsonl)
    }
}

fn magic(path: &Path) -> Result<Vec<u8>, RecordError> {
    let mut bytes = Vec::new();
    open(path)?.take(4).read_to_end(&mut bytes).map_err(|source| read_error(path, source))?;
    Ok(bytes)
}

pub(crate) fn open(path: &Path) -> Result<File, RecordError> {
    tamis_file::open(path).map_err(|source| RecordError::Open { path: path.to_owned(), source })
}

pub(crate) fn read_error(path: &Path, source: std::io::Error) -> RecordError {
    RecordError::Read { path: path.to_owned(), source }
}
