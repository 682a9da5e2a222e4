//! Parquet files: rows as JSON values, and copies of chosen rows.
//!
//! ```text
//! file ─ check ─▶ pages within bounds ─▶ leaves ─ assembly ─▶ rows
//!                                          └───── copy ─────▶ another file
//! ```
//!
//! The Parquet library panics if a file breaks the format's rules; here such a panic becomes an error of the
//! file. The library also trusts the sizes in headers and runs. So everything is checked against limits
//! before it is decoded: a row may be as long as a line of JSON lines, and a file as large as its length can
//! plausibly hold.

mod assembly;
mod compact;
mod copy;
mod delta;
mod leaf;
mod pages;
mod scalar;

use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::Type;
use tamis_core::caught::catch;
use tamis_core::fault;

use self::assembly::{Assembly, RowError, Schema};
use self::compact::Compact;
use crate::data_record::{DataRecord, FileColumn, RowPlace};
use crate::file_format;
use crate::record_error::RecordError;

pub(crate) use self::copy::copy_rows;
pub(crate) use self::pages::{Decoded, VALUE_BYTES, column_reader};

const SUPPORTED: &str = if cfg!(feature = "zstd") {
    "it reads uncompressed, snappy, gzip, lz4 and zstd"
} else {
    "it reads uncompressed, snappy, gzip and lz4"
};

/// Length of the end of a file, after the metadata: the metadata's length and `PAR1`.
const TAIL: u64 = 8;

pub(crate) struct ParquetFile {
    pub(crate) reader: SerializedFileReader<File>,
    /// A second handle of the file, to check pages before the library reads them.
    pub(crate) file: File,
    length: u64,
}

impl ParquetFile {
    pub(crate) fn open(path: &Path) -> Result<Self, RecordError> {
        let file = file_format::open(path)?;
        let opened = catch_panics(|| {
            let length = file.metadata()?.len();
            check_footer(&file, length)?;
            Ok(Self { reader: SerializedFileReader::new(file.try_clone()?)?, file, length })
        })
        .map_err(|detail| parquet_error(path, 0, detail))?;
        opened.check(path)?;
        Ok(opened)
    }

    /// How much of the file may be decoded.
    pub(crate) fn decoded(&self) -> Arc<Decoded> {
        Arc::new(Decoded::new(self.length))
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.reader.metadata()
    }

    /// Refuses files that would fail later with a worse message, or never end.
    fn check(&self, path: &Path) -> Result<(), RecordError> {
        if self.metadata().file_metadata().schema_descr().num_columns() == 0 {
            return Err(parquet_error(path, 0, "it has no columns".to_owned()));
        }
        let mut num_rows = 0_u64;
        for group in self.metadata().row_groups() {
            num_rows = num_rows.saturating_add(u64::try_from(group.num_rows()).unwrap_or(0));
            for column in group.columns() {
                let supported = match column.compression() {
                    Compression::UNCOMPRESSED
                    | Compression::SNAPPY
                    | Compression::GZIP(_)
                    | Compression::LZ4
                    | Compression::LZ4_RAW => true,
                    Compression::ZSTD(_) => cfg!(feature = "zstd"),
                    Compression::BROTLI(_) | Compression::LZO => false,
                };
                if !supported {
                    let codec = column.compression().to_string();
                    return Err(fault!("column `{column}` of {} is compressed with {codec}, which this build cannot read ({supported}); \
             write the file again with snappy: python -c \"import pandas as pd; \
             pd.read_parquet('{}').to_parquet('{}', compression='snappy')\"", path.display(), path.display(), path.display(), column = column.column_path().string(), codec = codec.split('(').next().unwrap_or_default().to_lowercase(), supported = SUPPORTED).into());
                }
                if column.num_values() < group.num_rows() {
                    return Err(parquet_error(
                        path,
                        0,
                        format!(
                            "column `{}` has {} values in a row group of {} rows",
                            column.column_path().string(),
                            column.num_values(),
                            group.num_rows()
                        ),
                    ));
                }
            }
        }
        catch_panics(|| self.decoded().check_rows(num_rows)).map_err(|detail| parquet_error(path, 0, detail))
    }
}

/// Checks the lengths of lists in the metadata: the library allocates as many members as they claim.
fn check_footer(file: &File, length: u64) -> Result<(), ParquetError> {
    let mut tail = [0; 4];
    let Some(end) = length.checked_sub(TAIL) else { return Ok(()) };
    let mut file = BufReader::new(file.try_clone()?);
    file.seek(SeekFrom::Start(end))?;
    file.read_exact(&mut tail)?;
    let size = u64::from(u32::from_le_bytes(tail));
    // If the length goes beyond the file, the library reports it.
    let Some(start) = end.checked_sub(size) else { return Ok(()) };
    file.seek(SeekFrom::Start(start))?;
    let mut metadata = Compact::new(file.take(size), size);
    match metadata.integers() {
        Ok(_) => Ok(()),
        Err(error) => Err(ParquetError::General(format!("its metadata is damaged: {error}"))),
    }
}

/// Whether a column has one number or boolean for each row.
pub(crate) fn is_number(column: &Type) -> bool {
    column.is_primitive()
        && !matches!(column.get_physical_type(), Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY)
        && column.get_basic_info().repetition() != Repetition::REPEATED
}

pub(crate) struct ParquetRows {
    path: Arc<Path>,
    file: ParquetFile,
    schema: Arc<Schema>,
    decoded: Arc<Decoded>,
    /// The current row group, and how many of its rows are left; `None` after the last.
    group: Option<(Assembly, u64)>,
    next_group: usize,
    read: u64,
    is_done: bool,
}

impl std::fmt::Debug for ParquetRows {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ParquetRows")
            .field("path", &self.path)
            .field("read", &self.read)
            .finish_non_exhaustive()
    }
}

impl ParquetRows {
    /// Opens a file with the wanted columns. Without any, rows are empty.
    pub(crate) fn open(path: &Path, wanted: &dyn Fn(FileColumn<'_>) -> bool) -> Result<Self, RecordError> {
        let file = ParquetFile::open(path)?;
        let wanted = |column: &Type| {
            wanted(FileColumn {
                name: column.name(),
                is_number: is_number(column)
                    || column.is_primitive()
                        && column.get_basic_info().converted_type() == ConvertedType::JSON,
            })
        };
        let schema = catch_panics(|| Schema::new(file.metadata().file_metadata().schema(), &wanted))
            .map_err(|detail| parquet_error(path, 0, detail))?;
        Ok(Self {
            path: path.into(),
            decoded: file.decoded(),
            file,
            schema: Arc::new(schema),
            group: None,
            next_group: 0,
            read: 0,
            is_done: false,
        })
    }

    /// Moves to the next row group if the current one is finished. Returns whether there is one.
    fn open_group(&mut self) -> Result<bool, ParquetError> {
        while self.group.as_ref().is_none_or(|(_, left)| *left == 0) {
            let Some(group) = self.file.metadata().row_groups().get(self.next_group) else {
                return Ok(false);
            };
            let num_rows = u64::try_from(group.num_rows()).unwrap_or(0);
            let columns = self.schema.leaves.iter().map(|leaf| {
                let column = group.column(leaf.number).column_descr_ptr();
                let Self { file, decoded, next_group, .. } = &*self;
                Ok((column_reader(&file.reader, &file.file, *next_group, leaf.number, decoded)?, column))
            });
            let assembly = Assembly::new(self.schema.clone(), columns, self.decoded.clone())?;
            self.group = Some((assembly, num_rows));
            self.next_group += 1;
        }
        Ok(true)
    }
}

impl Iterator for ParquetRows {
    type Item = Result<DataRecord, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let next = catch_panics(|| {
            if !self.open_group()? {
                return Ok(None);
            }
            let Some((assembly, left)) = &mut self.group else { return Ok(None) };
            *left -= 1;
            match assembly.row() {
                Ok(row) => Ok(Some(Ok(row))),
                Err(RowError::Row(fault)) => Ok(Some(Err(fault))),
                Err(RowError::File(error)) => Err(error),
            }
        });
        let row = match next {
            Ok(Some(row)) => row,
            Ok(None) => {
                self.is_done = true;
                return None;
            }
            Err(detail) => {
                self.is_done = true;
                return Some(Err(parquet_error(&self.path, self.read, detail)));
            }
        };
        self.read += 1;
        let place = RowPlace { file: self.path.clone(), row: self.read, is_line: false };
        Some(match row {
            Ok(row) => Ok(DataRecord { place, values: row.values, binary: row.binary, encoded: row.encoded }),
            Err(fault) => Err(RecordError::Row { place, fault }),
        })
    }
}

pub(crate) fn parquet_error(path: &Path, row: u64, detail: impl Display) -> RecordError {
    let after = if row == 0 { String::new() } else { format!(" after row {row}") };
    fault!("failed to read {} as Parquet{}: {detail}", path.display(), after).into()
}

/// Runs a call into the Parquet library; its errors and panics become text.
pub(crate) fn catch_panics<T>(call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    catch(call)?.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
