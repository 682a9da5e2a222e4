//! A table that a run writes: named, documented columns over typed rows, as Parquet or as JSON lines.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type};
use serde_json::{Map, Value};

/// Reads a column's value from a row.
pub(crate) enum Values<R> {
    Integer(fn(&R) -> i64),
    Text(fn(&R) -> &str),
    OptionalText(fn(&R) -> Option<&str>),
    Number(fn(&R) -> Option<f64>),
    /// The score of this name.
    Score(String, fn(&R, &str) -> Option<f64>),
    /// A column that reward functions logged under this name.
    Logged(String, for<'row> fn(&'row R, &str) -> Option<&'row str>),
    Ids(fn(&R) -> Cow<'_, [u32]>),
    Texts(fn(&R) -> Cow<'_, [String]>),
    Floats(fn(&R) -> Cow<'_, [f32]>),
    Flags(fn(&R) -> &[bool]),
}

impl<R> Values<R> {
    /// Type of the column, as on the reference page of the columns.
    fn kind(&self) -> &'static str {
        match self {
            Self::Integer(_) => "int64",
            Self::Text(_) => "text",
            Self::OptionalText(_) | Self::Logged(..) => "text, nullable",
            Self::Number(_) | Self::Score(..) => "double, nullable",
            Self::Ids(_) => "list of int32",
            Self::Texts(_) => "list of text",
            Self::Floats(_) => "list of float",
            Self::Flags(_) => "list of bool",
        }
    }
}

pub(crate) struct TableColumn<R> {
    pub(crate) name: &'static str,
    pub(crate) values: Values<R>,
    /// Content of the column, in one line of Markdown.
    pub(crate) meaning: &'static str,
}

/// The columns of one kind of table: fixed ones, with one for each score between them.
pub(crate) struct TableColumns<R> {
    pub(crate) before: Vec<TableColumn<R>>,
    pub(crate) score: fn(&R, &str) -> Option<f64>,
    pub(crate) logged: for<'row> fn(&'row R, &str) -> Option<&'row str>,
    pub(crate) after: Vec<TableColumn<R>>,
}

impl<R> TableColumns<R> {
    fn fixed_columns(&self) -> impl Iterator<Item = &TableColumn<R>> {
        self.before.iter().chain(&self.after)
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.fixed_columns().map(|column| column.name).collect()
    }

    pub(crate) fn markdown(&self) -> String {
        let line = |column: &TableColumn<R>| {
            format!("| `{}` | {} | {} |\n", column.name, column.values.kind(), column.meaning)
        };
        let lines = |columns: &[TableColumn<R>]| columns.iter().map(line).collect::<String>();
        format!(
            "| column | type | |\n|---|---|---|\n{}| one for each score, by its name | double, nullable | \
             null: no answer. With `score_` in front if another column has the name |\n{}",
            lines(&self.before),
            lines(&self.after)
        )
    }

    /// Every column by its name, with scores and what was logged under these names.
    pub(crate) fn with_others(
        self,
        scores: &BTreeSet<&str>,
        logged: &BTreeSet<&str>,
    ) -> Vec<(String, Values<R>)> {
        let mut taken: BTreeSet<String> = self.fixed_columns().map(|column| column.name.to_owned()).collect();
        let mut free = |own: &str, before: &str| {
            let mut name = own.to_owned();
            while !taken.insert(name.clone()) {
                name.insert_str(0, before);
            }
            name
        };
        let named = |column: TableColumn<R>| (column.name.to_owned(), column.values);
        let mut columns: Vec<_> = self.before.into_iter().map(named).collect();
        for &score in scores {
            columns.push((free(score, "score_"), Values::Score(score.to_owned(), self.score)));
        }
        for &column in logged {
            columns.push((free(column, "extra_"), Values::Logged(column.to_owned(), self.logged)));
        }
        columns.extend(self.after.into_iter().map(named));
        columns
    }
}

/// A number, or `None` for NaN: the table then has null.
pub(crate) fn not_nan(number: f64) -> Option<f64> {
    Some(number).filter(|number| !number.is_nan())
}

/// Writes the rows as JSON lines, one object each.
pub(crate) fn write_jsonl<R>(
    mut out: impl Write,
    columns: &[(String, Values<R>)],
    rows: &[R],
) -> std::io::Result<()> {
    for row in rows {
        let object: Map<String, Value> =
            columns.iter().map(|(name, values)| (name.clone(), to_json(row, values))).collect();
        writeln!(out, "{}", Value::Object(object))?;
    }
    Ok(())
}

fn to_json<R>(row: &R, values: &Values<R>) -> Value {
    match values {
        Values::Integer(of) => Value::from(of(row)),
        Values::Text(of) => Value::from(of(row)),
        Values::OptionalText(of) => Value::from(of(row)),
        Values::Number(of) => Value::from(of(row)),
        Values::Score(name, of) => Value::from(of(row, name)),
        Values::Logged(name, of) => Value::from(of(row, name)),
        Values::Ids(of) => Value::from(of(row).as_ref()),
        Values::Texts(of) => Value::from(of(row).as_ref()),
        Values::Floats(of) => Value::from(of(row).as_ref()),
        Values::Flags(of) => Value::from(of(row)),
    }
}

/// The I/O error inside a Parquet error, or a new one with its text.
pub(crate) fn io_error(error: ParquetError) -> std::io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(error) => *error,
            Err(inner) => std::io::Error::other(inner),
        },
        other => std::io::Error::other(other),
    }
}

/// Tokens after which a row group is closed. This limits what a reader must hold.
const TOKENS_PER_ROW_GROUP: usize = 1 << 21;
pub(crate) const ROWS_PER_ROW_GROUP: usize = 1 << 14;

/// Writes the rows as Parquet, under the table's name. `num_tokens` estimates the size of a row.
pub(crate) fn write_parquet<R, W: Write + Send>(
    target: W,
    name: &str,
    columns: &[(String, Values<R>)],
    rows: &[R],
    num_tokens: impl Fn(&R) -> usize,
) -> Result<(), ParquetError> {
    let mut fields = Vec::with_capacity(columns.len());
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::None);
    for (name, values) in columns {
        fields.push(Arc::new(field(name, values)?));
        if matches!(values, Values::Floats(_)) {
            // Hardly any value repeats.
            let path = ColumnPath::new([name, "list", "element"].map(ToOwned::to_owned).to_vec());
            properties = properties.set_column_dictionary_enabled(path, false);
        }
    }
    let schema = Type::group_type_builder(name).with_fields(fields).build()?;
    let mut writer = SerializedFileWriter::new(target, Arc::new(schema), Arc::new(properties.build()))?;
    let mut rest = rows;
    while !rest.is_empty() {
        let mut tokens = 0;
        let num_rows = rest
            .iter()
            .take(ROWS_PER_ROW_GROUP)
            .take_while(|row| {
                let before = tokens;
                tokens += num_tokens(row);
                before < TOKENS_PER_ROW_GROUP
            })
            .count();
        let (chunk, later) = rest.split_at(num_rows);
        let mut group = writer.next_row_group()?;
        for (_, values) in columns {
            write_column(&mut group, chunk, values)?;
        }
        group.close()?;
        rest = later;
    }
    writer.close()?;
    Ok(())
}

fn field<R>(name: &str, values: &Values<R>) -> Result<Type, ParquetError> {
    let list = |element: Physical| -> Result<Type, ParquetError> {
        let logical = (element == Physical::BYTE_ARRAY).then_some(LogicalType::String);
        let element = leaf("element", element, Repetition::REQUIRED, logical)?;
        let repeated = Type::group_type_builder("list")
            .with_repetition(Repetition::REPEATED)
            .with_fields(vec![Arc::new(element)])
            .build()?;
        Type::group_type_builder(name)
            .with_repetition(Repetition::REQUIRED)
            .with_logical_type(Some(LogicalType::List))
            .with_fields(vec![Arc::new(repeated)])
            .build()
    };
    match values {
        Values::Integer(_) => leaf(name, Physical::INT64, Repetition::REQUIRED, None),
        Values::Text(_) => leaf(name, Physical::BYTE_ARRAY, Repetition::REQUIRED, Some(LogicalType::String)),
        Values::OptionalText(_) | Values::Logged(..) => {
            leaf(name, Physical::BYTE_ARRAY, Repetition::OPTIONAL, Some(LogicalType::String))
        }
        Values::Number(_) | Values::Score(..) => leaf(name, Physical::DOUBLE, Repetition::OPTIONAL, None),
        Values::Ids(_) => list(Physical::INT32),
        Values::Texts(_) => list(Physical::BYTE_ARRAY),
        Values::Floats(_) => list(Physical::FLOAT),
        Values::Flags(_) => list(Physical::BOOLEAN),
    }
}

fn leaf(
    name: &str,
    physical: Physical,
    repetition: Repetition,
    logical: Option<LogicalType>,
) -> Result<Type, ParquetError> {
    Type::primitive_type_builder(name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical)
        .build()
}

fn write_column<R, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    rows: &[R],
    values: &Values<R>,
) -> Result<(), ParquetError> {
    match values {
        Values::Integer(of) => {
            let values: Vec<i64> = rows.iter().map(of).collect();
            write_values::<Int64Type, W>(group, &values, None, None)
        }
        Values::Text(of) => {
            let values: Vec<ByteArray> = rows.iter().map(|row| ByteArray::from(of(row))).collect();
            write_values::<ByteArrayType, W>(group, &values, None, None)
        }
        Values::OptionalText(of) => {
            let texts: Vec<Option<ByteArray>> = rows.iter().map(|row| of(row).map(ByteArray::from)).collect();
            write_optional::<ByteArrayType, W>(group, texts)
        }
        Values::Logged(name, of) => {
            let texts = rows.iter().map(|row| of(row, name).map(ByteArray::from)).collect();
            write_optional::<ByteArrayType, W>(group, texts)
        }
        Values::Number(of) => write_optional::<DoubleType, W>(group, rows.iter().map(of).collect()),
        Values::Score(name, of) => {
            write_optional::<DoubleType, W>(group, rows.iter().map(|row| of(row, name)).collect())
        }
        Values::Ids(of) => write_lists::<Int32Type, W>(
            group,
            rows.iter().map(|row| of(row).iter().map(|&id| id as i32).collect()),
        ),
        Values::Texts(of) => {
            let bytes = |text: &String| ByteArray::from(text.as_str());
            let lists = rows.iter().map(|row| of(row).iter().map(bytes).collect());
            write_lists::<ByteArrayType, W>(group, lists)
        }
        Values::Floats(of) => write_lists::<FloatType, W>(group, rows.iter().map(|row| of(row).to_vec())),
        Values::Flags(of) => write_lists::<BoolType, W>(group, rows.iter().map(|row| of(row).to_vec())),
    }
}

fn write_values<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    definitions: Option<&[i16]>,
    repetitions: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("the schema has fewer columns than the table".to_owned()));
    };
    column.typed::<T>().write_batch(values, definitions, repetitions)?;
    column.close()
}

fn write_optional<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: Vec<Option<T::T>>,
) -> Result<(), ParquetError> {
    let definitions: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let values: Vec<T::T> = values.into_iter().flatten().collect();
    write_values::<T, W>(group, &values, Some(&definitions), None)
}

fn write_lists<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    lists: impl Iterator<Item = Vec<T::T>>,
) -> Result<(), ParquetError> {
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    for list in lists {
        repetitions.push(0);
        // An empty list is one level that defines the list and no element.
        definitions.push(i16::from(!list.is_empty()));
        for _ in 1..list.len() {
            repetitions.push(1);
            definitions.push(1);
        }
        values.extend(list);
    }
    write_values::<T, W>(group, &values, Some(&definitions), Some(&repetitions))
}
