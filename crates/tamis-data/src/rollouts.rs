//! Rollout files: every generated trajectory of a step, one row each, as Parquet (or JSON lines).
//!
//! | column | type | |
//! |---|---|---|
//! | `step`, `round` | int64 | the training step that the group counts for, and the generation round in it |
//! | `group_id`, `prompt_id`, `epoch`, `sample_index` | int64 | who it is |
//! | `data_source`, `prompt`, `completion` | text | what was asked (whole, as rendered) and answered |
//! | `ground_truth` | text, nullable | what rewards compared with |
//! | `prompt_ids` | list of int32 | prompt tokens as the model saw them |
//! | `token_ids` | list of int32 | completion tokens \[T\], the end token included |
//! | `logprobs` | list of float | behaviour log-probabilities \[T\], nats |
//! | `loss_mask` | list of bool | which tokens the policy produced \[T\] |
//! | one per score name | double, nullable | null: the reward gave no answer. A name that another column has gets `score_` in front |
//! | one per column that a reward function logged (TRL's `log_extra`) | text, nullable | null: it logged nothing of this completion. A name that another column has gets `extra_` in front |
//! | `reward`, `advantage` | double, nullable | null: unscored; not trained on |
//! | `metric` | text | the name of what the filter looked at; empty without a filter |
//! | `metric_value` | double, nullable | and its value |
//! | `verdict` | text | where it ended: `trained`, a drop reason, `surplus`, ...; of a trained group's members that bear no loss why: `unscored`, `unchosen`, `truncated`, `shaped`, `masked`, `rejected` |
//! | `finish_reason` | text | `stop` or `length` |
//! | `version_min`, `version_max` | int64 | policy versions that sampled it |

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
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
use tamis_core::group::{FinishReason, Group, Trajectory};
use thiserror::Error;

use crate::whole_file::WholeFile;

/// One trajectory as it ended.
#[derive(Debug, Clone, Copy)]
pub struct RolloutRow<'run> {
    /// Training step.
    pub step: u64,
    /// Generation round of the step, from 0.
    pub round: u64,
    /// Its group.
    pub group: &'run Group,
    /// The trajectory.
    pub trajectory: &'run Trajectory,
    /// verl's `data_source`.
    pub data_source: &'run str,
    /// The prompt's text, whole.
    pub prompt: &'run str,
    /// What rewards compared with.
    pub ground_truth: Option<&'run str>,
    /// The trajectory's advantage, where it was trained on.
    pub advantage: Option<f64>,
    /// The filter's metric; empty without a filter.
    pub metric: &'run str,
    /// Its value.
    pub metric_value: Option<f64>,
    /// Where the trajectory ended.
    pub verdict: &'run str,
    /// What reward functions logged of it, by column.
    pub logged: Option<&'run BTreeMap<String, String>>,
}

/// A rollout file could not be written.
#[derive(Debug, Error)]
#[error("failed to write rollouts to {}", path.display())]
pub struct RolloutError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: std::io::Error,
}

/// How a column comes out of a row.
enum Values {
    Integer(fn(&RolloutRow<'_>) -> i64),
    Text(for<'row> fn(&RolloutRow<'row>) -> &'row str),
    OptionalText(for<'row> fn(&RolloutRow<'row>) -> Option<&'row str>),
    Number(fn(&RolloutRow<'_>) -> Option<f64>),
    Score(String),
    Logged(String),
    Ids(for<'row> fn(&RolloutRow<'row>) -> &'row [u32]),
    Logprobs,
    Mask,
}

fn columns(rows: &[RolloutRow<'_>]) -> Vec<(String, Values)> {
    let before: [(&str, Values); 14] = [
        ("step", Values::Integer(|row| row.step as i64)),
        ("round", Values::Integer(|row| row.round as i64)),
        ("group_id", Values::Integer(|row| row.group.id.0 as i64)),
        ("prompt_id", Values::Integer(|row| row.group.prompt.0 as i64)),
        ("epoch", Values::Integer(|row| row.group.epoch as i64)),
        ("sample_index", Values::Integer(|row| i64::from(row.trajectory.sample_index))),
        ("data_source", Values::Text(|row| row.data_source)),
        ("prompt", Values::Text(|row| row.prompt)),
        ("completion", Values::Text(|row| &row.trajectory.text)),
        ("ground_truth", Values::OptionalText(|row| row.ground_truth)),
        ("prompt_ids", Values::Ids(|row| &row.group.prompt_token_ids)),
        ("token_ids", Values::Ids(|row| &row.trajectory.token_ids)),
        ("logprobs", Values::Logprobs),
        ("loss_mask", Values::Mask),
    ];
    let after: [(&str, Values); 8] = [
        ("reward", Values::Number(|row| not_nan(row.trajectory.reward))),
        ("advantage", Values::Number(|row| row.advantage.and_then(not_nan))),
        ("metric", Values::Text(|row| row.metric)),
        ("metric_value", Values::Number(|row| row.metric_value.and_then(not_nan))),
        ("verdict", Values::Text(|row| row.verdict)),
        (
            "finish_reason",
            Values::Text(|row| match row.trajectory.finish_reason {
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
            }),
        ),
        ("version_min", Values::Integer(|row| row.trajectory.versions.0.0 as i64)),
        ("version_max", Values::Integer(|row| row.trajectory.versions.1.0 as i64)),
    ];
    let mut taken: BTreeSet<String> =
        before.iter().chain(&after).map(|(name, _)| (*name).to_owned()).collect();
    let scores: BTreeSet<&String> = rows.iter().flat_map(|row| row.trajectory.scores.keys()).collect();
    let mut columns: Vec<(String, Values)> = Vec::new();
    for score in scores {
        let mut name = score.clone();
        while !taken.insert(name.clone()) {
            name.insert_str(0, "score_");
        }
        columns.push((name, Values::Score(score.clone())));
    }
    let logged: BTreeSet<&String> =
        rows.iter().filter_map(|row| row.logged).flat_map(BTreeMap::keys).collect();
    for column in logged {
        let mut name = column.clone();
        while !taken.insert(name.clone()) {
            name.insert_str(0, "extra_");
        }
        columns.push((name, Values::Logged(column.clone())));
    }
    let owned = |(name, values): (&str, Values)| (name.to_owned(), values);
    before.into_iter().map(owned).chain(columns).chain(after.into_iter().map(owned)).collect()
}

fn not_nan(number: f64) -> Option<f64> {
    Some(number).filter(|number| !number.is_nan())
}

fn score(row: &RolloutRow<'_>, name: &str) -> Option<f64> {
    row.trajectory.scores.get(name).and_then(|score| not_nan(score.value))
}

fn logged<'run>(row: &RolloutRow<'run>, column: &str) -> Option<&'run str> {
    row.logged?.get(column).map(String::as_str)
}

/// Writes a step's trajectories as `path` (by custom `rollouts/step_<N>.parquet`): whole or not at all. No rows give a file with
/// columns and no rows.
pub fn write_rollouts(path: &Path, rows: &[RolloutRow<'_>]) -> Result<(), RolloutError> {
    let failed = |source| RolloutError { path: path.to_owned(), source };
    let mut file = WholeFile::create(path).map_err(failed)?;
    write_rollouts_to(&mut file, rows).map_err(failed)?;
    file.commit().map_err(failed)
}

/// The bytes of [`write_rollouts`], for a file that someone else makes and keeps safe.
pub fn write_rollouts_to(out: impl Write + Send, rows: &[RolloutRow<'_>]) -> std::io::Result<()> {
    write_parquet(out, rows).map_err(io_error)
}

/// The same rows as JSON lines, one object per trajectory with the same names.
pub fn write_rollouts_jsonl(path: &Path, rows: &[RolloutRow<'_>]) -> Result<(), RolloutError> {
    let failed = |source| RolloutError { path: path.to_owned(), source };
    let mut file = WholeFile::create(path).map_err(failed)?;
    let columns = columns(rows);
    for row in rows {
        let object: Map<String, Value> =
            columns.iter().map(|(name, values)| (name.clone(), to_json(row, values))).collect();
        writeln!(file, "{}", Value::Object(object)).map_err(failed)?;
    }
    file.commit().map_err(failed)
}

fn to_json(row: &RolloutRow<'_>, values: &Values) -> Value {
    match values {
        Values::Integer(of) => Value::from(of(row)),
        Values::Text(of) => Value::from(of(row)),
        Values::OptionalText(of) => Value::from(of(row)),
        Values::Number(of) => Value::from(of(row)),
        Values::Score(name) => Value::from(score(row, name)),
        Values::Logged(column) => Value::from(logged(row, column)),
        Values::Ids(of) => Value::from(of(row)),
        Values::Logprobs => Value::from(row.trajectory.logprobs.as_slice()),
        Values::Mask => Value::from(row.trajectory.loss_mask.as_slice()),
    }
}

/// The I/O error inside a Parquet error, or one that carries its text.
pub(crate) fn io_error(error: ParquetError) -> std::io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(error) => *error,
            Err(inner) => std::io::Error::other(inner),
        },
        other => std::io::Error::other(other),
    }
}

/// Tokens after which a row group is closed, which bounds what a reader must hold.
const TOKENS_PER_ROW_GROUP: usize = 1 << 21;
const ROWS_PER_ROW_GROUP: usize = 1 << 14;

fn write_parquet<W: Write + Send>(target: W, rows: &[RolloutRow<'_>]) -> Result<(), ParquetError> {
    let columns = columns(rows);
    let mut fields = Vec::with_capacity(columns.len());
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::None);
    for (name, values) in &columns {
        fields.push(Arc::new(field(name, values)?));
        if matches!(values, Values::Logprobs) {
            // Hardly a value comes twice.
            let path = ColumnPath::new([name, "list", "element"].map(ToOwned::to_owned).to_vec());
            properties = properties.set_column_dictionary_enabled(path, false);
        }
    }
    let schema = Type::group_type_builder("rollouts").with_fields(fields).build()?;
    let mut writer = SerializedFileWriter::new(target, Arc::new(schema), Arc::new(properties.build()))?;
    let mut rest = rows;
    while !rest.is_empty() {
        let mut num_tokens = 0;
        let num_rows = rest
            .iter()
            .take(ROWS_PER_ROW_GROUP)
            .take_while(|row| {
                let before = num_tokens;
                num_tokens += row.trajectory.token_ids.len() + row.group.prompt_token_ids.len();
                before < TOKENS_PER_ROW_GROUP
            })
            .count();
        let (chunk, later) = rest.split_at(num_rows);
        let mut group = writer.next_row_group()?;
        for (_, values) in &columns {
            write_column(&mut group, chunk, values)?;
        }
        group.close()?;
        rest = later;
    }
    writer.close()?;
    Ok(())
}

fn field(name: &str, values: &Values) -> Result<Type, ParquetError> {
    let list = |element: Physical| -> Result<Type, ParquetError> {
        let element = leaf("element", element, Repetition::REQUIRED, None)?;
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
        Values::OptionalText(_) | Values::Logged(_) => {
            leaf(name, Physical::BYTE_ARRAY, Repetition::OPTIONAL, Some(LogicalType::String))
        }
        Values::Number(_) | Values::Score(_) => leaf(name, Physical::DOUBLE, Repetition::OPTIONAL, None),
        Values::Ids(_) => list(Physical::INT32),
        Values::Logprobs => list(Physical::FLOAT),
        Values::Mask => list(Physical::BOOLEAN),
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

fn write_column<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    rows: &[RolloutRow<'_>],
    values: &Values,
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
        Values::Logged(column) => {
            let of = |row| logged(row, column).map(ByteArray::from);
            write_optional::<ByteArrayType, W>(group, rows.iter().map(of).collect())
        }
        Values::Number(of) => write_optional::<DoubleType, W>(group, rows.iter().map(of).collect()),
        Values::Score(name) => {
            write_optional::<DoubleType, W>(group, rows.iter().map(|row| score(row, name)).collect())
        }
        Values::Ids(of) => {
            write_lists::<Int32Type, W>(group, rows, |row| of(row).iter().map(|&id| id as i32).collect())
        }
        Values::Logprobs => write_lists::<FloatType, W>(group, rows, |row| row.trajectory.logprobs.clone()),
        Values::Mask => write_lists::<BoolType, W>(group, rows, |row| row.trajectory.loss_mask.clone()),
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
    rows: &[RolloutRow<'_>],
    of: impl Fn(&RolloutRow<'_>) -> Vec<T::T>,
) -> Result<(), ParquetError> {
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let list = of(row);
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

#[cfg(test)]
mod tests;
