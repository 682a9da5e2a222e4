//! Trajectories of another trainer that kept only texts and scores. They become Parquet with the columns of a
//! rollout file that are known.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use crate::table::{TableColumn, TableColumns, Values, io_error, not_nan, write_parquet};

/// One trajectory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DumpedRow {
    /// Training step.
    pub step: u64,
    /// Its group, counted from 0 in the file.
    pub group: u64,
    /// A number for the prompt, the same for every occurrence of the prompt; below 2^53.
    pub prompt_id: u64,
    /// Place in the group, from 0.
    pub sample_index: u64,
    /// The prompt as text.
    pub prompt: String,
    /// The completion as text.
    pub completion: String,
    /// The answer that rewards compared with.
    pub ground_truth: Option<String>,
    /// Scores by name; NaN: unscored.
    pub scores: BTreeMap<String, f64>,
    /// Other values by column.
    pub logged: BTreeMap<String, String>,
    /// Total reward; NaN: unknown.
    pub reward: f64,
    /// Advantage.
    pub advantage: Option<f64>,
    /// Tokens of the completion, if known.
    pub num_tokens: Option<u64>,
    /// Why the completion ended, if known.
    pub finish_reason: Option<String>,
    /// What happened to it: `trained`, `finished` or `failed`.
    pub verdict: &'static str,
}

/// Writes trajectories as Parquet. The columns for the number of tokens and the finish reason are left out if
/// no row has a value.
///
/// # Errors
/// The output cannot be written.
pub fn write_dumped_to(out: impl Write + Send, rows: &[DumpedRow]) -> std::io::Result<()> {
    let column = |name, values| TableColumn { name, values, meaning: "" };
    let mut known = Vec::new();
    if rows.iter().any(|row| row.num_tokens.is_some()) {
        known.push(column(
            "num_tokens",
            Values::Number(|row: &DumpedRow| row.num_tokens.map(|number| number as f64)),
        ));
    }
    if rows.iter().any(|row| row.finish_reason.is_some()) {
        known.push(column(
            "finish_reason",
            Values::OptionalText(|row: &DumpedRow| row.finish_reason.as_deref()),
        ));
    }
    let mut columns = TableColumns::<DumpedRow> {
        before: vec![
            column("step", Values::Integer(|row: &DumpedRow| row.step as i64)),
            column("group_id", Values::Integer(|row| row.group as i64)),
            column("prompt_id", Values::Integer(|row| row.prompt_id as i64)),
            column("sample_index", Values::Integer(|row| row.sample_index as i64)),
            column("prompt", Values::Text(|row| &row.prompt)),
            column("completion", Values::Text(|row| &row.completion)),
            column("ground_truth", Values::OptionalText(|row| row.ground_truth.as_deref())),
        ],
        score: |row, name| row.scores.get(name).copied().and_then(not_nan),
        logged: |row, name| row.logged.get(name).map(String::as_str),
        after: vec![
            column("reward", Values::Number(|row: &DumpedRow| not_nan(row.reward))),
            column("advantage", Values::Number(|row| row.advantage.and_then(not_nan))),
            column("verdict", Values::Text(|row| row.verdict)),
        ],
    };
    columns.after.append(&mut known);
    let scores: BTreeSet<&str> = rows.iter().flat_map(|row| row.scores.keys().map(String::as_str)).collect();
    let logged: BTreeSet<&str> = rows.iter().flat_map(|row| row.logged.keys().map(String::as_str)).collect();
    let columns = columns.with_others(&scores, &logged);
    // A token has about four bytes.
    let num_tokens = |row: &DumpedRow| (row.prompt.len() + row.completion.len()) / 4;
    write_parquet(out, "rollouts", &columns, rows, num_tokens).map_err(io_error)
}
