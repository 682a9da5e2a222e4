//! Single columns of a Parquet file, of all rows or of some.
//!
//! A rollout file is mostly token ids and log-probabilities. A program that counts trajectories reads a few
//! narrow columns of every row, and one that shows completions reads a few whole rows. Neither needs to
//! decode the rest, which takes a hundred times as long.

use std::path::{Path, PathBuf};

use parquet::basic::ConvertedType;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::FileReader;

use crate::parquet_file::{
    Decoded, ParquetFile, VALUE_BYTES, catch_panics, column_reader, is_number, parquet_error,
};
use crate::record_error::RecordError;

/// The columns of one file.
pub struct ColumnFile {
    path: PathBuf,
    file: ParquetFile,
    num_rows: usize,
}

impl std::fmt::Debug for ColumnFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Columns")
            .field("path", &self.path)
            .field("num_rows", &self.num_rows)
            .finish_non_exhaustive()
    }
}

/// Values of several rows, end to end: those of row `i` are `values[offsets[i]..offsets[i + 1]]`. A row of a
/// plain column has one value, or none if it is null.
#[derive(Debug, Clone, PartialEq)]
pub struct RaggedColumn<T> {
    values: Vec<T>,
    offsets: Vec<usize>,
}

impl<T> RaggedColumn<T> {
    fn new() -> Self {
        Self { values: Vec::new(), offsets: vec![0] }
    }

    /// The values of each row.
    pub fn rows(&self) -> impl Iterator<Item = &[T]> {
        self.offsets.windows(2).map(|bounds| self.values.get(bounds[0]..bounds[1]).unwrap_or_default())
    }
}

impl ColumnFile {
    /// Opens a Parquet file.
    ///
    /// # Errors
    /// The file does not exist, or is not a Parquet file.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let file = ParquetFile::open(path)?;
        let num_rows =
            file.reader.metadata().row_groups().iter().map(|group| group.num_rows().max(0)).sum::<i64>();
        Ok(Self { path: path.to_owned(), file, num_rows: usize::try_from(num_rows).unwrap_or(0) })
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Names of the columns, in order.
    pub fn names(&self) -> Vec<String> {
        let schema = self.file.reader.metadata().file_metadata().schema();
        schema.get_fields().iter().map(|field| field.name().to_owned()).collect()
    }

    /// Whether a column holds one number for each row.
    pub fn is_number(&self, name: &str) -> bool {
        let schema = self.file.reader.metadata().file_metadata().schema();
        schema.get_fields().iter().any(|field| field.name() == name && is_number(field))
    }

    /// Reads a column of numbers or of lists of numbers, in the given rows (in order; `None`: all of them).
    /// Returns `None` if there is no such column. `true` counts as 1.
    ///
    /// # Errors
    /// A damaged file.
    pub fn numbers(
        &self,
        name: &str,
        rows: Option<&[usize]>,
    ) -> Result<Option<RaggedColumn<f64>>, RecordError> {
        let Some(leaf) = self.leaf(name) else { return Ok(None) };
        self.read(leaf, rows, |reader, wanted| match reader {
            ColumnReader::BoolColumnReader(reader) => {
                read(reader, wanted, |_| 0, |value| f64::from(u8::from(value))).map(Some)
            }
            ColumnReader::Int32ColumnReader(reader) => read(reader, wanted, |_| 0, f64::from).map(Some),
            ColumnReader::Int64ColumnReader(reader) => {
                read(reader, wanted, |_| 0, |value| value as f64).map(Some)
            }
            ColumnReader::FloatColumnReader(reader) => read(reader, wanted, |_| 0, f64::from).map(Some),
            ColumnReader::DoubleColumnReader(reader) => read(reader, wanted, |_| 0, |value| value).map(Some),
            _ => Ok(None),
        })
    }

    /// As [`Self::numbers`], for a column of texts or of lists of texts. Bytes that are not UTF-8 are
    /// replaced. Of JSON, a text comes without its quotation marks, and anything else unchanged.
    ///
    /// # Errors
    /// A damaged file.
    pub fn texts(
        &self,
        name: &str,
        rows: Option<&[usize]>,
    ) -> Result<Option<RaggedColumn<String>>, RecordError> {
        let Some(leaf) = self.leaf(name) else { return Ok(None) };
        let column = self.file.reader.metadata().file_metadata().schema_descr().column(leaf);
        let is_json = column.converted_type() == ConvertedType::JSON;
        let text = |value: ByteArray| {
            let text = String::from_utf8_lossy(value.data());
            let inside = if is_json { serde_json::from_str::<String>(&text).ok() } else { None };
            inside.unwrap_or_else(|| text.into_owned())
        };
        self.read(leaf, rows, |reader, wanted| match reader {
            ColumnReader::ByteArrayColumnReader(reader) => {
                read(reader, wanted, |value| value.len() as u64, text).map(Some)
            }
            _ => Ok(None),
        })
    }

    /// The only leaf of a column; `None` if there is no such column, or it has several parts.
    fn leaf(&self, name: &str) -> Option<usize> {
        let schema = self.file.reader.metadata().file_metadata().schema_descr();
        let mut leaves = (0..schema.num_columns())
            .filter(|&leaf| schema.column(leaf).path().parts().first().is_some_and(|first| first == name));
        let leaf = leaves.next()?;
        leaves.next().is_none().then_some(leaf)
    }

    fn read<T>(
        &self,
        leaf: usize,
        rows: Option<&[usize]>,
        mut of: impl FnMut(ColumnReader, Wanted<'_>) -> Result<Option<RaggedColumn<T>>, ParquetError>,
    ) -> Result<Option<RaggedColumn<T>>, RecordError> {
        let column = self.file.reader.metadata().file_metadata().schema_descr().column(leaf);
        let levels = (column.max_def_level(), column.max_rep_level());
        let decoded = self.file.decoded();
        let mut all = RaggedColumn::new();
        let mut first = 0;
        for (number, group) in self.file.reader.metadata().row_groups().iter().enumerate() {
            let num_rows = usize::try_from(group.num_rows()).unwrap_or(0);
            let inside = rows.map(|rows| {
                let begin = rows.partition_point(|&row| row < first);
                rows.get(begin..begin + rows[begin..].partition_point(|&row| row < first + num_rows))
                    .unwrap_or_default()
            });
            let wanted = Wanted { rows: inside, first, num_rows, levels, decoded: &decoded };
            if inside.is_none_or(|inside| !inside.is_empty()) {
                let ParquetFile { reader, file, .. } = &self.file;
                let read = catch_panics(|| of(column_reader(reader, file, number, leaf, &decoded)?, wanted));
                let Some(found) = read.map_err(|detail| parquet_error(&self.path, first as u64, detail))?
                else {
                    return Ok(None);
                };
                let base = all.values.len();
                all.values.extend(found.values);
                all.offsets.extend(found.offsets.into_iter().skip(1).map(|offset| base + offset));
            }
            first += num_rows;
        }
        Ok(Some(all))
    }
}

/// Wanted rows of a row group.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    /// In the whole file; `None`: all.
    rows: Option<&'a [usize]>,
    /// The group's first row.
    first: usize,
    num_rows: usize,
    /// Largest definition and repetition level of the leaf.
    levels: (i16, i16),
    decoded: &'a Decoded,
}

impl Wanted<'_> {
    /// Alternating runs: rows to skip, and rows to read after them.
    fn runs(&self) -> Vec<(usize, usize)> {
        let Some(rows) = self.rows else { return vec![(0, self.num_rows)] };
        let mut runs: Vec<(usize, usize)> = Vec::new();
        let mut at = 0;
        for row in rows.iter().map(|row| row - self.first) {
            match runs.last_mut() {
                Some((_, length)) if row == at => *length += 1,
                _ => runs.push((row - at, 1)),
            }
            at = row + 1;
        }
        runs
    }
}

/// Rows read at a time from columns without lists. From the others it is one.
const ROWS_AT_A_TIME: usize = 1024;

/// Reads the wanted rows. `size` is a value's size beyond the fixed count of each value.
fn read<T: DataType, U>(
    mut reader: ColumnReaderImpl<T>,
    wanted: Wanted<'_>,
    size: impl Fn(&T::T) -> u64,
    mut of: impl FnMut(T::T) -> U,
) -> Result<RaggedColumn<U>, ParquetError> {
    let (most_defined, most_repeated) = wanted.levels;
    let mut found = RaggedColumn::new();
    let ended = || ParquetError::General("a column ends before its rows do".to_owned());
    let (mut defined, mut repeated, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for (skipped, length) in wanted.runs() {
        if skipped > 0 && reader.skip_records(skipped)? < skipped {
            return Err(ended());
        }
        let mut left = length;
        while left > 0 {
            defined.clear();
            repeated.clear();
            values.clear();
            let at_a_time = if most_repeated > 0 { 1 } else { left.min(ROWS_AT_A_TIME) };
            let (num_records, _, num_levels) =
                reader.read_records(at_a_time, Some(&mut defined), Some(&mut repeated), &mut values)?;
            if num_levels == 0 {
                if num_records == 0 {
                    return Err(ended());
                }
                // The end of the previous row.
                continue;
            }
            wanted.decoded.values(values.iter().map(&size).sum::<u64>() + num_levels as u64 * VALUE_BYTES)?;
            if most_repeated > 0 {
                left -= 1;
                found.values.extend(values.drain(..).map(&mut of));
                found.offsets.push(found.values.len());
                continue;
            }
            left = left.saturating_sub(num_levels);
            let mut end = found.values.len();
            for place in 0..num_levels {
                end += usize::from(most_defined == 0 || defined.get(place) == Some(&most_defined));
                found.offsets.push(end);
            }
            found.values.extend(values.drain(..).map(&mut of));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
