//! Copies chosen rows column by column. Values and levels are copied unchanged, so nothing is converted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::FileReader;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use tamis_core::caught::catch;

use super::pages::{Decoded, VALUE_BYTES, column_reader};
use super::{ParquetFile, catch_panics, parquet_error};
use crate::data_record::Copied;
use crate::record_error::{RecordError, unwritten};
use crate::whole_file::WholeFile;

/// Rows copied at a time from columns without lists. From the others it is one.
const ROWS_AT_A_TIME: usize = 256;

/// Copies the rows for which `keep(file, row)` is true.
pub(crate) fn copy_rows(
    sources: &[PathBuf],
    keep: &mut dyn FnMut(usize, u64) -> bool,
    file: &mut WholeFile,
    target: &Path,
) -> Result<Copied, RecordError> {
    // The writer may panic on data that the reader accepts.
    catch(|| copy(sources, keep, file, target)).unwrap_or_else(|detail| {
        Err(parquet_error(sources.first().map_or(target, PathBuf::as_path), 0, detail))
    })
}

fn copy(
    sources: &[PathBuf],
    keep: &mut dyn FnMut(usize, u64) -> bool,
    file: &mut WholeFile,
    target: &Path,
) -> Result<Copied, RecordError> {
    let mut copied = Copied::default();
    let mut writer: Option<SerializedFileWriter<&mut WholeFile>> = None;
    let mut file = Some(file);
    let write = |detail: ParquetError| unwritten(target, crate::table::io_error(detail));
    for (index, source) in sources.iter().enumerate() {
        let opened = ParquetFile::open(source)?;
        let metadata = opened.reader.metadata();
        let schema = metadata.file_metadata().schema_descr().root_schema_ptr();
        if let Some(writer) = &writer {
            if writer.schema_descr().root_schema().get_fields() != schema.get_fields() {
                return Err(RecordError::Mixed {
                    first: sources.first().cloned().unwrap_or_default(),
                    second: source.clone(),
                    what: "columns",
                });
            }
        } else if let Some(file) = file.take() {
            let codec = metadata
                .row_groups()
                .first()
                .and_then(|group| group.columns().first())
                .map_or(Compression::SNAPPY, parquet::file::metadata::ColumnChunkMetaData::compression);
            let properties = WriterProperties::builder()
                .set_compression(codec)
                .set_key_value_metadata(metadata.file_metadata().key_value_metadata().cloned())
                .build();
            writer = Some(SerializedFileWriter::new(file, schema, Arc::new(properties)).map_err(write)?);
        }
        let Some(writer) = &mut writer else { continue };
        let decoded = opened.decoded();
        let mut row = 0;
        for (number, group) in metadata.row_groups().iter().enumerate() {
            let num_rows = group.num_rows().max(0);
            let kept: Vec<bool> = (0..num_rows as u64).map(|i| keep(index, row + i)).collect();
            let num_kept = kept.iter().filter(|&&kept| kept).count() as u64;
            copied.num_kept += num_kept;
            copied.num_dropped += kept.len() as u64 - num_kept;
            row += kept.len() as u64;
            if num_kept == 0 {
                continue;
            }
            let read = |detail| parquet_error(source, row - kept.len() as u64, detail);
            let mut target_group = writer.next_row_group().map_err(write)?;
            let mut column = 0;
            while let Some(mut target_column) = target_group.next_column().map_err(write)? {
                let opened = || column_reader(&opened.reader, &opened.file, number, column, &decoded);
                let of_bytes = |value: &ByteArray| value.len() as u64;
                let source_column = catch_panics(opened).map_err(read)?;
                let mut to = Target { column: &mut target_column, decoded: &decoded };
                let done = match source_column {
                    ColumnReader::BoolColumnReader(reader) => to.copy(reader, &kept, |_| 0),
                    ColumnReader::Int32ColumnReader(reader) => to.copy(reader, &kept, |_| 0),
                    ColumnReader::Int64ColumnReader(reader) => to.copy(reader, &kept, |_| 0),
                    ColumnReader::Int96ColumnReader(reader) => to.copy(reader, &kept, |_| 0),
                    ColumnReader::FloatColumnReader(reader) => to.copy(reader, &kept, |_| 0),
                    ColumnReader::DoubleColumnReader(reader) => to.copy(reader, &kept, |_| 0),
                    ColumnReader::ByteArrayColumnReader(reader) => to.copy(reader, &kept, of_bytes),
                    ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                        to.copy(reader, &kept, |value| value.len() as u64)
                    }
                };
                match done {
                    Ok(()) => target_column.close().map_err(write)?,
                    Err(Failure::Read(detail)) => return Err(read(detail)),
                    Err(Failure::Write(error)) => return Err(write(error)),
                }
                column += 1;
            }
            target_group.close().map_err(write)?;
        }
    }
    if let Some(writer) = writer {
        writer.close().map_err(write)?;
    }
    Ok(copied)
}

enum Failure {
    Read(String),
    Write(ParquetError),
}

/// The column that values go to.
struct Target<'copy, 'writer> {
    column: &'copy mut SerializedColumnWriter<'writer>,
    decoded: &'copy Decoded,
}

impl Target<'_, '_> {
    /// Copies the kept rows of a row group. `size` is a value's size beyond the fixed count of each value.
    fn copy<T: DataType>(
        &mut self,
        mut reader: ColumnReaderImpl<T>,
        kept: &[bool],
        size: impl Fn(&T::T) -> u64,
    ) -> Result<(), Failure> {
        let writer = self.column.typed::<T>();
        let highest = writer.get_descriptor().max_def_level();
        let deepest = writer.get_descriptor().max_rep_level();
        let (mut definitions, mut repetitions, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let mut rest = kept;
        while !rest.is_empty() {
            definitions.clear();
            repetitions.clear();
            values.clear();
            let wanted = if deepest > 0 { 1 } else { ROWS_AT_A_TIME.min(rest.len()) };
            let read =
                || reader.read_records(wanted, Some(&mut definitions), Some(&mut repetitions), &mut values);
            let (num_records, _, num_levels) = catch_panics(read).map_err(Failure::Read)?;
            if num_records == 0 && num_levels == 0 {
                return Err(Failure::Read("a column ends before its rows do".to_owned()));
            }
            if num_levels == 0 {
                // The end of the previous row.
                continue;
            }
            let num_rows = if deepest > 0 { 1 } else { num_levels };
            let (chosen, behind) = rest.split_at_checked(num_rows).unwrap_or((rest, &[]));
            rest = behind;
            let bytes = values.iter().map(&size).sum::<u64>() + num_levels as u64 * VALUE_BYTES;
            self.decoded.values(bytes).map_err(|error| Failure::Read(error.to_string()))?;
            let within =
                |levels: &[i16], highest: i16| levels.iter().all(|level| (0..=highest).contains(level));
            if !within(&definitions, highest) || !within(&repetitions, deepest) {
                return Err(Failure::Read("a level is higher than its column allows".to_owned()));
            }
            let written = if deepest > 0 {
                if chosen.first() != Some(&true) {
                    continue;
                }
                writer.write_batch(&values, Some(&definitions), Some(&repetitions))
            } else if highest == 0 {
                let mut is_chosen = chosen.iter();
                values.retain(|_| is_chosen.next() == Some(&true));
                writer.write_batch(&values, None, None)
            } else {
                // A value is present if its definition level is the highest.
                let mut has_value = definitions.iter().zip(chosen).filter(|(level, _)| **level == highest);
                values.retain(|_| has_value.next().is_some_and(|(_, chosen)| *chosen));
                let mut is_chosen = chosen.iter();
                definitions.retain(|_| is_chosen.next() == Some(&true));
                writer.write_batch(&values, Some(&definitions), None)
            };
            written.map_err(Failure::Write)?;
        }
        Ok(())
    }
}
