//! Rollout files: every generated trajectory of a step, one row each, as Parquet.
//!
//! [`markdown`] lists the columns.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use parquet::errors::ParquetError;
use serde_json::{Map, Value};
use tamis_core::group::{FinishReason, Group, Trajectory};

use crate::table::{TableColumn, TableColumns, Values, io_error, not_nan, write_parquet};
use crate::turns::{of_turns, success_column, turn_columns};

/// One finished trajectory.
#[derive(Debug, Clone, Copy)]
pub struct RolloutRow<'run> {
    /// Training step.
    pub step: u64,
    /// Generation round of the step, from 0.
    pub round: u64,
    /// The group.
    pub group: &'run Group,
    /// The trajectory.
    pub trajectory: &'run Trajectory,
    /// Probability with which the selector took the group's prompt.
    pub inclusion: f64,
    /// verl's `data_source`.
    pub data_source: &'run str,
    /// The prompt's text, whole.
    pub prompt: &'run str,
    /// Ground truth that rewards compared with.
    pub ground_truth: Option<&'run str>,
    /// The trajectory's advantage, if it was trained on.
    pub advantage: Option<f64>,
    /// The filter's metric; empty without a filter.
    pub metric: &'run str,
    /// The filter's metric.
    pub metric_value: Option<f64>,
    /// The verdict that the trajectory is counted under.
    pub verdict: &'run str,
    /// Extra values that reward functions logged for the trajectory, by column.
    pub logged: Option<&'run BTreeMap<String, String>>,
}

const IMAGES: &str = "images";

/// Column with the probability with which a prompt was taken.
const INCLUSION: &str = "inclusion";

/// Columns of trajectories from environments.
const TURN_ENDS: &str = "turn_ends";
const TEXT_STARTS: &str = "text_starts";

fn text_starts(row: &RolloutRow<'_>) -> Vec<u32> {
    of_turns(row, |turn| turn.context_start).into_iter().flatten().collect()
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

/// Why a trajectory ended.
pub(crate) fn finish_reason_column<'run>() -> TableColumn<RolloutRow<'run>> {
    TableColumn {
        name: "finish_reason",
        values: Values::Text(|row: &RolloutRow<'run>| finish_reason(row.trajectory.finish_reason)),
        meaning: "`stop`: ended by itself; `length`: cut at `rollout.max_response_length`",
    }
}

/// The columns of trajectories from environments.
fn columns_of_turns<'run>() -> Vec<TableColumn<RolloutRow<'run>>> {
    let ends = TableColumn {
        name: TURN_ENDS,
        values: Values::Ids(|row: &RolloutRow<'run>| Cow::Owned(of_turns(row, |turn| turn.end))),
        meaning: "one past the last token of each answer in `token_ids`; this and the next six only in files with episodes of several turns",
    };
    let starts = TableColumn {
        name: TEXT_STARTS,
        values: Values::Ids(|row: &RolloutRow<'run>| Cow::Owned(text_starts(row))),
        meaning: "places in `token_ids` at which a new text begins (`environment.context`); empty if the whole is one text",
    };
    [vec![ends], turn_columns(), vec![starts, success_column()]].into_iter().flatten().collect()
}

pub(crate) fn columns<'run>(with_turns: bool) -> TableColumns<RolloutRow<'run>> {
    let column = |name, values, meaning| TableColumn { name, values, meaning };
    TableColumns {
        before: vec![
            column(
                "step",
                Values::Integer(|row: &RolloutRow<'run>| row.step as i64),
                "training step that the group counts for",
            ),
            column("round", Values::Integer(|row| row.round as i64), "generation round of that step, from 0"),
            column(
                "group_id",
                Values::Integer(|row| row.group.id.0 as i64),
                "the completions of one prompt that were generated together",
            ),
            column(
                "prompt_id",
                Values::Integer(|row| row.group.prompt.0 as i64),
                "row of the prompt in the training data, from 0",
            ),
            column(
                "epoch",
                Values::Integer(|row| row.group.epoch as i64),
                "pass over the training data, from 0",
            ),
            column(
                "sample_index",
                Values::Integer(|row| i64::from(row.trajectory.sample_index)),
                "place in the group, from 0",
            ),
            column(
                INCLUSION,
                Values::Number(|row| Some(row.inclusion)),
                "probability with which `schedule.selector` took the prompt; only in files that have one below 1",
            ),
            column(
                "data_source",
                Values::Text(|row| row.data_source),
                "`data_source` of the prompt's row, or empty",
            ),
            column(
                "prompt",
                Values::Text(|row| row.prompt),
                "the whole prompt, as the chat template renders it",
            ),
            column("completion", Values::Text(|row| &row.trajectory.text), "the completion"),
            column(
                "ground_truth",
                Values::OptionalText(|row| row.ground_truth),
                "the answer that rewards compare with, or null",
            ),
            column(
                "prompt_ids",
                Values::Ids(|row| Cow::Borrowed(&row.group.prompt_token_ids)),
                "token ids of the prompt as the model saw it (cut if it was too long)",
            ),
            column(
                IMAGES,
                Values::Texts(|row| Cow::Borrowed(&row.group.images)),
                "paths of the prompt's images; only in files with images",
            ),
            column(
                "token_ids",
                Values::Ids(|row| Cow::Borrowed(&row.trajectory.token_ids)),
                "token ids of the completion \\[T\\], the end token included",
            ),
            column(
                "logprobs",
                Values::Floats(|row| Cow::Borrowed(&row.trajectory.logprobs)),
                "log-probabilities under the policy that sampled them \\[T\\], nats; NaN if a server gave none that match ours",
            ),
            column(
                "loss_mask",
                Values::Flags(|row| &row.trajectory.loss_mask),
                "true for tokens that the policy produced \\[T\\]",
            ),
        ],
        score: |row, name| row.trajectory.scores.get(name).and_then(|score| not_nan(score.value)),
        logged: |row, column| row.logged?.get(column).map(String::as_str),
        after: [
            vec![
                column(
                    "reward",
                    Values::Number(|row| not_nan(row.trajectory.reward)),
                    "weighted sum of the scores, before any KL penalty; null: unscored",
                ),
                column(
                    "advantage",
                    Values::Number(|row| row.advantage.and_then(not_nan)),
                    "advantage (the mean over its tokens); null if it was not trained on",
                ),
                column(
                    "metric",
                    Values::Text(|row| row.metric),
                    "name of the number that the filter looked at; empty without a filter",
                ),
                column(
                    "metric_value",
                    Values::Number(|row| row.metric_value.and_then(not_nan)),
                    "the trajectory's value of `metric`",
                ),
                column("verdict", Values::Text(|row| row.verdict), "what became of it, see below"),
            ],
            if with_turns { columns_of_turns() } else { Vec::new() },
            vec![
                finish_reason_column(),
                column(
                    "version_min",
                    Values::Integer(|row: &RolloutRow<'run>| row.trajectory.versions.0.0 as i64),
                    "oldest policy version that sampled a part",
                ),
                column(
                    "version_max",
                    Values::Integer(|row| row.trajectory.versions.1.0 as i64),
                    "newest policy version that sampled a part",
                ),
            ],
        ]
        .into_iter()
        .flatten()
        .collect(),
    }
}

/// The columns of a rollout file as a table of Markdown.
pub fn markdown() -> String {
    columns(true).markdown()
}

/// Names of the columns that every rollout file has; any other column is a score.
pub fn fixed_columns() -> Vec<&'static str> {
    columns(true).names()
}

/// The value of a metric of `filter.metric` in a row that tamis wrote: the `reward` for `seq_reward`, the
/// policy's tokens for `length`, the score for `scores.NAME`. For any other metric it is the value that the
/// run's filter used, if it used that metric.
pub fn find_metric<'row>(row: &'row Map<String, Value>, metric: &str) -> Option<Cow<'row, Value>> {
    let is_ours = ["metric", "metric_value", "verdict"].iter().all(|column| row.contains_key(*column));
    let found = match metric {
        _ if !is_ours => None,
        "seq_reward" => row.get("reward"),
        "length" => {
            let mask = row.get("loss_mask")?.as_array()?;
            let length = mask.iter().filter(|is_policys| **is_policys == Value::Bool(true)).count();
            return Some(Cow::Owned(length.into()));
        }
        _ => metric
            .strip_prefix("scores.")
            .and_then(|score| row.get(&format!("score_{score}")).or_else(|| row.get(score)))
            .or_else(|| row.get("metric_value").filter(|_| row["metric"] == metric)),
    };
    found.map(Cow::Borrowed)
}

/// Writes a step's trajectories as Parquet. Without rows the file still has its columns.
pub fn write_rollouts_to(out: impl Write + Send, rows: &[RolloutRow<'_>]) -> std::io::Result<()> {
    write(out, rows).map_err(io_error)
}

/// Every column with its name, including scores and logged columns.
pub(crate) fn with_scores<'run>(
    columns: TableColumns<RolloutRow<'run>>,
    rows: &[RolloutRow<'run>],
) -> Vec<(String, Values<RolloutRow<'run>>)> {
    let scores: BTreeSet<&str> =
        rows.iter().flat_map(|row| row.trajectory.scores.keys().map(String::as_str)).collect();
    let logged: BTreeSet<&str> = rows
        .iter()
        .filter_map(|row| row.logged)
        .flat_map(|logged| logged.keys().map(String::as_str))
        .collect();
    columns.with_others(&scores, &logged)
}

fn named_columns<'run>(rows: &[RolloutRow<'run>]) -> Vec<(String, Values<RolloutRow<'run>>)> {
    let has_turns = rows.iter().any(|row| row.trajectory.episode.is_some());
    let mut columns = columns(has_turns);
    if rows.iter().all(|row| row.group.images.is_empty()) {
        columns.before.retain(|column| column.name != IMAGES);
    }
    if rows.iter().all(|row| row.inclusion >= 1.0) {
        columns.before.retain(|column| column.name != INCLUSION);
    }
    with_scores(columns, rows)
}

fn write(out: impl Write + Send, rows: &[RolloutRow<'_>]) -> Result<(), ParquetError> {
    let num_tokens = |row: &RolloutRow<'_>| row.trajectory.token_ids.len() + row.group.prompt_token_ids.len();
    write_parquet(out, "rollouts", &named_columns(rows), rows, num_tokens)
}

#[cfg(test)]
pub(crate) mod tests;
