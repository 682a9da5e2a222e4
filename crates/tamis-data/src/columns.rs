//! Single columns of a Parquet file, of all rows or of some.
//!
//! A rollout file is mostly token ids and log-probabilities. What counts trajectories reads a few narrow
//! columns of every row, what shows completions all of a few rows; neither need decode the rest, which takes
//! a hundred times as long.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::basic::Type as Physical;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::parquet_file::{catch_panics, open, parquet_error};
use crate::record_error::RecordError;

/// The columns of one file.
pub struct Columns {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    num_rows: usize,
}

impl std::fmt::Debug for Columns {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Columns")
            .field("path", &self.path)
            .field("num_rows", &self.num_rows)
            .finish_non_exhaustive()
    }
}

/// Values of several rows, end to end: those of row `i` are `values[offsets[i]..offsets[i + 1]]`. A row of a
/// plain column has one, or none where it is null.
#[derive(Debug, Clone, PartialEq)]
pub struct Ragged<T> {
    values: Vec<T>,
    offsets: Vec<usize>,
}

impl<T> Ragged<T> {
    fn new() -> Self {
        Self { values: Vec::new(), offsets: vec![0] }
    }

    /// The values of each row.
    pub fn rows(&self) -> impl Iterator<Item = &[T]> {
        self.offsets.windows(2).map(|bounds| self.values.get(bounds[0]..bounds[1]).unwrap_or_default())
    }

    fn map<U>(self, of: impl FnMut(T) -> U) -> Ragged<U> {
        Ragged { values: self.values.into_iter().map(of).collect(), offsets: self.offsets }
    }
}

impl Columns {
    /// Opens a Parquet file.
    ///
    /// # Errors
    /// Where there is none, or it is none.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let reader = open(path)?;
        let num_rows =
            reader.metadata().row_groups().iter().map(|group| group.num_rows().max(0)).sum::<i64>();
        Ok(Self { path: path.to_owned(), reader, num_rows: usize::try_from(num_rows).unwrap_or(0) })
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Names of the columns, in order.
    pub fn names(&self) -> Vec<String> {
        let schema = self.reader.metadata().file_metadata().schema();
        schema.get_fields().iter().map(|field| field.name().to_owned()).collect()
    }

    /// Whether a column holds one number a row.
    pub fn is_number(&self, name: &str) -> bool {
        self.leaf(name).is_some_and(|(leaf, kind)| kind != Physical::BYTE_ARRAY && self.depth(leaf) == 0)
    }

    /// A column of numbers or of lists of numbers, in the rows given (in order; `None`: all of them). `None`:
    /// there is no such column. Truth counts 1.
    ///
    /// # Errors
    /// A damaged file.
    pub fn numbers(&self, name: &str, rows: Option<&[usize]>) -> Result<Option<Ragged<f64>>, RecordError> {
        let Some((leaf, _)) = self.leaf(name) else { return Ok(None) };
        self.read(leaf, rows, |reader, wanted| match reader {
            ColumnReader::BoolColumnReader(reader) => {
                Ok(Some(read(reader, wanted)?.map(|value| f64::from(u8::from(value)))))
            }
            ColumnReader::Int32ColumnReader(reader) => Ok(Some(read(reader, wanted)?.map(f64::from))),
            ColumnReader::Int64ColumnReader(reader) => {
                Ok(Some(read(reader, wanted)?.map(|value| value as f64)))
            }
            ColumnReader::FloatColumnReader(reader) => Ok(Some(read(reader, wanted)?.map(f64::from))),
            ColumnReader::DoubleColumnReader(reader) => Ok(Some(read(reader, wanted)?)),
            _ => Ok(None),
        })
    }

    /// As [`Self::numbers`], a column of texts or of lists of them. Bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    /// A damaged file.
    pub fn texts(&self, name: &str, rows: Option<&[usize]>) -> Result<Option<Ragged<String>>, RecordError> {
        let Some((leaf, _)) = self.leaf(name) else { return Ok(None) };
        let text = |value: ByteArray| String::from_utf8_lossy(value.data()).into_owned();
        self.read(leaf, rows, |reader, wanted| match reader {
            ColumnReader::ByteArrayColumnReader(reader) => Ok(Some(read(reader, wanted)?.map(text))),
            _ => Ok(None),
        })
    }

    /// The only leaf of a column; `None` of no column, or of one of several parts.
    fn leaf(&self, name: &str) -> Option<(usize, Physical)> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        let mut leaves = (0..schema.num_columns())
            .filter(|&leaf| schema.column(leaf).path().parts().first().is_some_and(|first| first == name));
        let leaf = leaves.next()?;
        leaves.next().is_none().then(|| (leaf, schema.column(leaf).physical_type()))
    }

    /// How deep lists are nested in a leaf.
    fn depth(&self, leaf: usize) -> i16 {
        self.reader.metadata().file_metadata().schema_descr().column(leaf).max_rep_level()
    }

    fn read<T>(
        &self,
        leaf: usize,
        rows: Option<&[usize]>,
        mut of: impl FnMut(ColumnReader, Wanted<'_>) -> Result<Option<Ragged<T>>, ParquetError>,
    ) -> Result<Option<Ragged<T>>, RecordError> {
        let column = self.reader.metadata().file_metadata().schema_descr().column(leaf);
        let levels = (column.max_def_level(), column.max_rep_level());
        let mut all = Ragged::new();
        let mut first = 0;
        for (number, group) in self.reader.metadata().row_groups().iter().enumerate() {
            let num_rows = usize::try_from(group.num_rows()).unwrap_or(0);
            let inside = rows.map(|rows| {
                let begin = rows.partition_point(|&row| row < first);
                rows.get(begin..begin + rows[begin..].partition_point(|&row| row < first + num_rows))
                    .unwrap_or_default()
            });
            let wanted = Wanted { rows: inside, first, num_rows, levels };
            if inside.is_none_or(|inside| !inside.is_empty()) {
                let read =
                    catch_panics(|| of(self.reader.get_row_group(number)?.get_column_reader(leaf)?, wanted));
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

/// Rows of a row group that are asked for.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    /// In the whole file; `None`: all.
    rows: Option<&'a [usize]>,
    /// The group's first row.
    first: usize,
    num_rows: usize,
    /// Largest definition and repetition level of the leaf.
    levels: (i16, i16),
}

impl Wanted<'_> {
    /// Rows to skip, and rows to read after them, in turn.
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

fn read<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    wanted: Wanted<'_>,
) -> Result<Ragged<T::T>, ParquetError> {
    let (most_defined, most_repeated) = wanted.levels;
    let mut found = Ragged::new();
    for (skipped, length) in wanted.runs() {
        let ended = || ParquetError::General("a column ends before its rows do".to_owned());
        if skipped > 0 && reader.skip_records(skipped)? < skipped {
            return Err(ended());
        }
        let (mut defined, mut repeated) = (Vec::new(), Vec::new());
        let mut left = length;
        let before = found.values.len();
        while left > 0 {
            let (num_records, ..) =
                reader.read_records(left, Some(&mut defined), Some(&mut repeated), &mut found.values)?;
            if num_records == 0 {
                return Err(ended());
            }
            left -= num_records;
        }
        if most_defined == 0 {
            found.offsets.extend((1..=length).map(|row| before + row));
            continue;
        }
        let mut end = before;
        for (place, &level) in defined.iter().enumerate() {
            let begins = most_repeated == 0 || repeated.get(place).is_none_or(|&level| level == 0);
            if begins && place > 0 {
                found.offsets.push(end);
            }
            end += usize::from(level == most_defined);
        }
        found.offsets.push(end);
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
