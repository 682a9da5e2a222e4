//! Leaves of a row: columns of single values, each at its current level.

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType, FixedLenByteArray};
use parquet::errors::Result;
use parquet::record::Field;
use parquet::schema::types::ColumnDescPtr;

use super::pages::general;

/// Rows read ahead from columns without lists.
const ROWS_AHEAD: usize = 256;
/// The position of a leaf: its level and its value.
pub(super) type Place = (usize, usize);

/// A value before its conversion to JSON.
pub(super) enum Scalar {
    Bytes(ByteArray),
    Field(Field),
}

/// A column at a level of a row.
pub(super) trait Leaf {
    fn column(&self) -> ColumnDescPtr;
    fn start_row(&mut self) -> Result<()>;
    /// Definition level of the value; 0 after the last value of the row.
    fn definition(&self) -> i16;
    fn repetition(&self) -> i16;
    fn pass(&mut self);
    /// Takes the value, and moves on by one level.
    fn take(&mut self) -> Result<Scalar>;
    fn place(&self) -> Place;
    fn set_place(&mut self, place: Place);
}

struct LeafOf<T: DataType> {
    column: ColumnDescPtr,
    reader: ColumnReaderImpl<T>,
    scalar: fn(&ColumnDescPtr, T::T) -> Scalar,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    values: Vec<T::T>,
    level: usize,
    value: usize,
    /// First level of the next row.
    end: usize,
}

pub(super) fn leaf(reader: ColumnReader, column: ColumnDescPtr) -> Box<dyn Leaf> {
    fn boxed<T: DataType>(
        reader: ColumnReaderImpl<T>,
        column: ColumnDescPtr,
        scalar: fn(&ColumnDescPtr, T::T) -> Scalar,
    ) -> Box<dyn Leaf> {
        let (definitions, repetitions, values) = (Vec::new(), Vec::new(), Vec::new());
        Box::new(LeafOf {
            column,
            reader,
            scalar,
            definitions,
            repetitions,
            values,
            level: 0,
            value: 0,
            end: 0,
        })
    }
    match reader {
        ColumnReader::BoolColumnReader(reader) => {
            boxed(reader, column, |column, value| Scalar::Field(Field::convert_bool(column, value)))
        }
        ColumnReader::Int32ColumnReader(reader) => {
            boxed(reader, column, |column, value| Scalar::Field(Field::convert_int32(column, value)))
        }
        ColumnReader::Int64ColumnReader(reader) => {
            boxed(reader, column, |column, value| Scalar::Field(Field::convert_int64(column, value)))
        }
        ColumnReader::Int96ColumnReader(reader) => {
            boxed(reader, column, |column, value| Scalar::Field(Field::convert_int96(column, value)))
        }
        ColumnReader::FloatColumnReader(reader) => {
            boxed(reader, column, |column, value| Scalar::Field(Field::convert_float(column, value)))
        }
        ColumnReader::DoubleColumnReader(reader) => {
            boxed(reader, column, |column, value| Scalar::Field(Field::convert_double(column, value)))
        }
        ColumnReader::ByteArrayColumnReader(reader) => boxed(reader, column, |_, value| Scalar::Bytes(value)),
        ColumnReader::FixedLenByteArrayColumnReader(reader) => {
            boxed(reader, column, |_, value: FixedLenByteArray| Scalar::Bytes(value.into()))
        }
    }
}

impl<T: DataType> LeafOf<T> {
    fn has_lists(&self) -> bool {
        self.column.max_rep_level() > 0
    }

    fn is_there(&self) -> bool {
        self.column.max_def_level() == 0
            || self.definitions.get(self.level) == Some(&self.column.max_def_level())
    }

    fn num_levels(&self) -> usize {
        if self.column.max_def_level() > 0 { self.definitions.len() } else { self.values.len() }
    }
}

impl<T: DataType> Leaf for LeafOf<T> {
    fn column(&self) -> ColumnDescPtr {
        self.column.clone()
    }

    fn start_row(&mut self) -> Result<()> {
        // Skip what the previous row did not take.
        while self.level < self.end {
            self.pass();
        }
        if self.end == self.num_levels() {
            self.definitions.clear();
            self.repetitions.clear();
            self.values.clear();
            (self.level, self.value, self.end) = (0, 0, 0);
            // From a column with lists only one row at a time: it may be long.
            let wanted = if self.has_lists() { 1 } else { ROWS_AHEAD };
            while self.num_levels() == 0 {
                let (num_read, ..) = self.reader.read_records(
                    wanted,
                    Some(&mut self.definitions),
                    Some(&mut self.repetitions),
                    &mut self.values,
                )?;
                if num_read == 0 && self.num_levels() == 0 {
                    return Err(general("a column ends before its rows do".to_owned()));
                }
            }
        }
        self.end = if self.has_lists() { self.num_levels() } else { self.end + 1 };
        Ok(())
    }

    fn definition(&self) -> i16 {
        if self.level >= self.end {
            return 0;
        }
        self.definitions.get(self.level).copied().unwrap_or(self.column.max_def_level())
    }

    fn repetition(&self) -> i16 {
        if self.level >= self.end { 0 } else { self.repetitions.get(self.level).copied().unwrap_or(0) }
    }

    fn pass(&mut self) {
        if self.level < self.end {
            self.value += usize::from(self.is_there());
            self.level += 1;
        }
    }

    fn take(&mut self) -> Result<Scalar> {
        let value = self.values.get(self.value).filter(|_| self.level < self.end && self.is_there());
        let value =
            value.cloned().ok_or_else(|| general("a value is not where its level says".to_owned()))?;
        self.pass();
        Ok((self.scalar)(&self.column, value))
    }

    fn place(&self) -> Place {
        (self.level, self.value)
    }

    fn set_place(&mut self, (level, value): Place) {
        (self.level, self.value) = (level, value);
    }
}
