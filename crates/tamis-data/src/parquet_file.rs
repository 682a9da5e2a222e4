//! Parquet files: rows as JSON values, and copies of chosen rows.
//!
//! The Parquet library asserts where a file breaks its own rules; here such a panic becomes an error of the
//! file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{DataType, Decimal};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Map, Number, Value};
use tamis_core::caught::catch;

use crate::data_record::{Copied, DataRecord, RowPlace};
use crate::file_format;
use crate::record_error::RecordError;
use crate::whole_file::WholeFile;

const SUPPORTED: &str = if cfg!(feature = "zstd") {
    "it reads uncompressed, snappy, gzip, lz4 and zstd"
} else {
    "it reads uncompressed, snappy, gzip and lz4"
};

/// Rows of a file in order.
pub(crate) struct ParquetRows {
    path: Arc<Path>,
    rows: Option<RowIter<'static>>,
    read: u64,
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
    /// Opens a file without the columns that are left out; where these are all of them, with all.
    pub(crate) fn open(path: &Path, left_out: &[&str]) -> Result<Self, RecordError> {
        let reader = open(path)?;
        let schema = reader.metadata().file_metadata().schema();
        let fields = schema.get_fields();
        let kept: Vec<TypePtr> =
            fields.iter().filter(|field| !left_out.contains(&field.name())).cloned().collect();
        let is_whole = kept.is_empty() || kept.len() == fields.len();
        let projection = (!is_whole).then(|| (schema.name().to_owned(), kept));
        let rows = catch_panics(|| {
            let rows = reader.into_iter();
            let Some((name, kept)) = projection else { return Ok(rows) };
            rows.project(Some(Type::group_type_builder(&name).with_fields(kept).build()?))
        })
        .map_err(|detail| parquet_error(path, 0, detail))?;
        Ok(Self { path: path.into(), rows: Some(rows), read: 0 })
    }
}

impl Iterator for ParquetRows {
    type Item = Result<DataRecord, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rows = self.rows.as_mut()?;
        let next = catch_panics(|| rows.next().map(|row| row.map(row_to_json)).transpose());
        match next {
            Ok(Some(Columns { values, binary, encoded })) => {
                self.read += 1;
                let place = RowPlace { file: self.path.clone(), row: self.read, is_line: false };
                Some(Ok(DataRecord { place, values, binary, encoded }))
            }
            Ok(None) => {
                self.rows = None;
                None
            }
            Err(detail) => {
                self.rows = None;
                Some(Err(parquet_error(&self.path, self.read, detail)))
            }
        }
    }
}

pub(crate) fn parquet_error(path: &Path, row: u64, detail: String) -> RecordError {
    RecordError::Parquet { path: path.to_owned(), row, detail }
}

pub(crate) fn open(path: &Path) -> Result<SerializedFileReader<File>, RecordError> {
    let file = file_format::open(path)?;
    let reader =
        catch_panics(|| SerializedFileReader::new(file)).map_err(|detail| parquet_error(path, 0, detail))?;
    check(path, reader.metadata())?;
    Ok(reader)
}

/// Refuses what would fail later with a worse message, or never end.
fn check(path: &Path, metadata: &ParquetMetaData) -> Result<(), RecordError> {
    if metadata.file_metadata().schema_descr().num_columns() == 0 {
        return Err(parquet_error(path, 0, "it has no columns".to_owned()));
    }
    for group in metadata.row_groups() {
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
                return Err(RecordError::Codec {
                    path: path.to_owned(),
                    column: column.column_path().string(),
                    codec: codec.split('(').next().unwrap_or_default().to_lowercase(),
                    supported: SUPPORTED,
                });
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
    Ok(())
}

/// Runs a call into the Parquet library; its errors and panics become text.
pub(crate) fn catch_panics<T>(call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    catch(call)?.map_err(|error| error.to_string())
}

/// Columns of bytes in a row.
#[derive(Debug, Default)]
struct Bytes {
    /// Encode all of them, those too that are text.
    encodes_text: bool,
    /// Columns, nested ones by their path, that hold bytes which are no text.
    binary: Vec<String>,
    /// Whether some were text, and were left so.
    has_text: bool,
}

/// A row without its place.
struct Columns {
    values: Map<String, Value>,
    binary: Vec<String>,
    encoded: Map<String, Value>,
}

fn row_to_json(row: Row) -> Columns {
    let mut bytes = Bytes::default();
    let mut encoded = Map::new();
    let values = row
        .into_columns()
        .into_iter()
        .map(|(name, field)| {
            bytes.has_text = false;
            let value = field_to_json(&field, &name, &mut bytes);
            if bytes.has_text {
                let mut all = Bytes { encodes_text: true, ..Bytes::default() };
                encoded.insert(name.clone(), field_to_json(&field, &name, &mut all));
            }
            (name, value)
        })
        .collect();
    Columns { values, binary: bytes.binary, encoded }
}

/// A field's value; `path` is where it stands.
fn field_to_json(field: &Field, path: &str, bytes: &mut Bytes) -> Value {
    let float = |number: f64| Number::from_f64(number).map_or(Value::Null, Value::Number);
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => Value::from(*value),
        Field::Byte(value) => Value::from(*value),
        Field::Short(value) => Value::from(*value),
        Field::Int(value) => Value::from(*value),
        Field::Long(value) => Value::from(*value),
        Field::UByte(value) => Value::from(*value),
        Field::UShort(value) => Value::from(*value),
        Field::UInt(value) => Value::from(*value),
        Field::ULong(value) => Value::from(*value),
        Field::Float16(value) => float(f64::from(value.to_f32())),
        Field::Float(value) => float(f64::from(*value)),
        Field::Double(value) => float(*value),
        Field::Decimal(value) => Value::from(decimal(value).unwrap_or_else(|| field.to_string())),
        Field::Str(value) => Value::from(value.as_str()),
        Field::Bytes(value) => {
            match std::str::from_utf8(value.data()) {
                Ok(text) if !bytes.encodes_text => {
                    bytes.has_text = true;
                    return Value::from(text);
                }
                Err(_) if !bytes.binary.iter().any(|known| known == path) => {
                    bytes.binary.push(path.to_owned());
                }
                _ => {}
            }
            Value::from(base64(value.data()))
        }
        Field::Date(_)
        | Field::TimeMillis(_)
        | Field::TimeMicros(_)
        | Field::TimestampMillis(_)
        | Field::TimestampMicros(_) => Value::from(field.to_string()),
        Field::Group(row) => Value::Object(
            row.get_column_iter()
                .map(|(name, field)| (name.clone(), field_to_json(field, &format!("{path}.{name}"), bytes)))
                .collect(),
        ),
        Field::ListInternal(list) => {
            list.elements().iter().map(|item| field_to_json(item, path, bytes)).collect()
        }
        Field::MapInternal(map) => Value::Object(
            map.entries()
                .iter()
                .map(|(key, value)| {
                    let key = match field_to_json(key, path, bytes) {
                        Value::String(text) => text,
                        other => other.to_string(),
                    };
                    let value = field_to_json(value, &format!("{path}.{key}"), bytes);
                    (key, value)
                })
                .collect(),
        ),
    }
}

/// The digits of a decimal of at most 128 bits; the library's own text asserts `precision > scale`.
fn decimal(value: &Decimal) -> Option<String> {
    let bytes = value.data();
    let scale = usize::try_from(value.scale()).ok()?;
    if bytes.is_empty() || bytes.len() > 16 || scale > 38 {
        return None;
    }
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let start = if negative { -1i128 } else { 0 };
    let number = bytes.iter().fold(start, |number, &byte| (number << 8) | i128::from(byte));
    let mut digits = format!("{:0width$}", number.unsigned_abs(), width = scale + 1);
    if scale > 0 {
        digits.insert(digits.len() - scale, '.');
    }
    Some(if negative { format!("-{digits}") } else { digits })
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |word, &byte| (word << 8) | u32::from(byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            if place > chunk.len() {
                out.push('=');
            } else {
                let index = (word >> (18 - 6 * place)) & 63;
                out.push(ALPHABET.get(index as usize).map_or('=', |&byte| char::from(byte)));
            }
        }
    }
    out
}

/// Copies rows column by column: values and levels go over as they are, so nothing is converted.
pub(crate) fn copy_rows(
    sources: &[PathBuf],
    keep: &mut dyn FnMut(usize, u64) -> bool,
    file: &mut WholeFile,
    target: &Path,
) -> Result<Copied, RecordError> {
    // The writer asserts what the reader let pass.
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
    let write = |detail: ParquetError| RecordError::Write {
        path: target.to_owned(),
        source: crate::table::io_error(detail),
    };
    for (index, source) in sources.iter().enumerate() {
        let reader = open(source)?;
        let metadata = reader.metadata();
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
        let mut row = 0;
        for group in 0..reader.num_row_groups() {
            let num_rows = metadata.row_groups().get(group).map_or(0, |group| group.num_rows().max(0));
            let kept: Vec<bool> = (0..num_rows as u64).map(|i| keep(index, row + i)).collect();
            let num_kept = kept.iter().filter(|&&kept| kept).count() as u64;
            copied.num_kept += num_kept;
            copied.num_dropped += kept.len() as u64 - num_kept;
            row += kept.len() as u64;
            if num_kept == 0 {
                continue;
            }
            let read = |detail| parquet_error(source, row - kept.len() as u64, detail);
            let group = catch_panics(|| reader.get_row_group(group)).map_err(read)?;
            let mut target_group = writer.next_row_group().map_err(write)?;
            let mut column = 0;
            while let Some(mut target_column) = target_group.next_column().map_err(write)? {
                let source_column = catch_panics(|| group.get_column_reader(column)).map_err(read)?;
                let done = match source_column {
                    ColumnReader::BoolColumnReader(reader) => copy_column(reader, &mut target_column, &kept),
                    ColumnReader::Int32ColumnReader(reader) => copy_column(reader, &mut target_column, &kept),
                    ColumnReader::Int64ColumnReader(reader) => copy_column(reader, &mut target_column, &kept),
                    ColumnReader::Int96ColumnReader(reader) => copy_column(reader, &mut target_column, &kept),
                    ColumnReader::FloatColumnReader(reader) => copy_column(reader, &mut target_column, &kept),
                    ColumnReader::DoubleColumnReader(reader) => {
                        copy_column(reader, &mut target_column, &kept)
                    }
                    ColumnReader::ByteArrayColumnReader(reader) => {
                        copy_column(reader, &mut target_column, &kept)
                    }
                    ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                        copy_column(reader, &mut target_column, &kept)
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

fn copy_column<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    target: &mut SerializedColumnWriter<'_>,
    kept: &[bool],
) -> Result<(), Failure> {
    let (mut definitions, mut repetitions, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let (num_records, ..) = catch_panics(|| {
        reader.read_records(kept.len(), Some(&mut definitions), Some(&mut repetitions), &mut values)
    })
    .map_err(Failure::Read)?;
    if num_records != kept.len() {
        return Err(Failure::Read(format!("expected {} rows in a row group, got {num_records}", kept.len())));
    }
    let writer = target.typed::<T>();
    let highest = writer.get_descriptor().max_def_level();
    let deepest = writer.get_descriptor().max_rep_level();
    let within = |levels: &[i16], highest: i16| levels.iter().all(|level| (0..=highest).contains(level));
    if !within(&definitions, highest) || !within(&repetitions, deepest) {
        return Err(Failure::Read("a level is higher than its column allows".to_owned()));
    }
    if highest == 0 {
        let mut chosen = kept.iter();
        values.retain(|_| chosen.next().copied().unwrap_or(false));
        writer.write_batch(&values, None, None).map_err(Failure::Write)?;
        return Ok(());
    }
    // A record begins at each repetition level 0 (at every level where nothing repeats); a value stands where
    // the definition level is the highest.
    let mut record = None;
    let mut chosen_levels = Vec::with_capacity(definitions.len());
    let mut chosen_values = Vec::with_capacity(values.len());
    for (place, &definition) in definitions.iter().enumerate() {
        if repetitions.get(place).is_none_or(|&level| level == 0) {
            record = Some(record.map_or(0, |record: usize| record + 1));
        }
        let chosen = record.and_then(|record| kept.get(record)).copied().unwrap_or(false);
        chosen_levels.push(chosen);
        if definition == highest {
            chosen_values.push(chosen);
        }
    }
    let by = |chosen: &[bool], levels: &mut Vec<i16>| {
        let mut chosen = chosen.iter();
        levels.retain(|_| chosen.next().copied().unwrap_or(false));
    };
    by(&chosen_levels, &mut definitions);
    by(&chosen_levels, &mut repetitions);
    let mut chosen = chosen_values.iter();
    values.retain(|_| chosen.next().copied().unwrap_or(false));
    let repetitions = if deepest > 0 { Some(&repetitions[..]) } else { None };
    writer.write_batch(&values, Some(&definitions), repetitions).map_err(Failure::Write)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_as_base64() {
        for (bytes, text) in
            [(&b"\xff"[..], "/w=="), (b"\xff\xfe", "//4="), (b"\xff\xfe\xfd", "//79"), (b"", "")]
        {
            assert_eq!(base64(bytes), text);
        }
    }

    #[test]
    fn decimals() {
        let text = |value: i64, precision: i32, scale: i32| {
            decimal(&Decimal::from_i64(value, precision, scale)).unwrap()
        };
        assert_eq!(text(1250, 10, 2), "12.50");
        assert_eq!(text(-5, 3, 2), "-0.05");
        assert_eq!(text(7, 2, 2), "0.07");
        assert_eq!(text(-42, 5, 0), "-42");
    }
}
