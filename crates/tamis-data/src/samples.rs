//! Files of validation samples: completions of held-out prompts with their scores, one row each, as JSON
//! lines or Parquet.
//!
//! [`markdown`] lists the columns.

use std::io::Write;
use std::path::Path;

use tamis_core::fault;
use tamis_core::fault::Fault;

use crate::records::FileFormat;
use crate::rollouts::{self, RolloutRow, with_scores};
use crate::table::{TableColumn, TableColumns, Values, io_error, not_nan, write_jsonl, write_parquet};
use crate::turns::{success_column, turn_columns};
use crate::whole_file::WholeFile;

/// The columns shared with rollout files, with their meaning here.
const OF_ROLLOUTS: [(&str, &str); 7] = [
    ("step", "training steps before the validation; 0: before the first"),
    ("prompt_id", "row of the prompt in the validation data, from 0"),
    ("sample_index", "place among the `validate.n` samples of the prompt, from 0"),
    ("data_source", "`data_source` of the prompt's row, or empty"),
    ("prompt", "the whole prompt, as the chat template renders it (verl's `input`)"),
    ("completion", "the completion (verl's `output`)"),
    ("ground_truth", "the answer that rewards compare with (verl's `gts`), or null"),
];

fn columns<'run>(with_turns: bool) -> TableColumns<RolloutRow<'run>> {
    let column = |name, values, meaning| TableColumn { name, values, meaning };
    let TableColumns { before, score, logged, .. } = rollouts::columns(false);
    let with_meaning = |column: TableColumn<RolloutRow<'run>>| {
        let (_, meaning) = OF_ROLLOUTS.iter().find(|(name, _)| *name == column.name)?;
        Some(TableColumn { meaning, ..column })
    };
    TableColumns {
        before: before.into_iter().filter_map(with_meaning).collect(),
        score,
        logged,
        after: [
            vec![
                column(
                    "reward",
                    Values::Number(|row: &RolloutRow<'run>| not_nan(row.trajectory.reward)),
                    "weighted sum of the scores (verl's `score`); null: unscored",
                ),
                column(
                    "num_tokens",
                    Values::Integer(|row| row.trajectory.num_written() as i64),
                    "tokens of the completion, the end token included",
                ),
                rollouts::finish_reason_column(),
            ],
            if with_turns { columns_of_turns() } else { Vec::new() },
        ]
        .into_iter()
        .flatten()
        .collect(),
    }
}

/// The columns of samples from environments.
fn columns_of_turns<'run>() -> Vec<TableColumn<RolloutRow<'run>>> {
    let mut success = success_column();
    success.meaning = "1 if the environment's task was solved, else 0; this and the next four only in files with episodes of several turns";
    [vec![success], turn_columns()].into_iter().flatten().collect()
}

/// The columns of a file of samples as a table of Markdown.
pub fn markdown() -> String {
    columns(true).markdown()
}

/// Names of the columns that every file of samples has. Any other column is a score.
pub fn fixed_columns() -> Vec<&'static str> {
    columns(true).names()
}

/// The format of a file name: `.jsonl` (or `.json`, `.ndjson`) or `.parquet`.
pub fn format_of(path: &Path) -> Result<FileFormat, Fault> {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    match ending.as_deref() {
        Some("jsonl" | "json" | "ndjson") => Ok(FileFormat::Jsonl),
        Some("parquet") => Ok(FileFormat::Parquet),
        _ => Err(fault!(
            "the format of {} is unknown: its name ends neither in .jsonl nor in .parquet",
            path.display()
        )),
    }
}

/// Writes samples in a format.
pub fn write_samples_to(
    out: impl Write + Send,
    rows: &[RolloutRow<'_>],
    format: FileFormat,
) -> std::io::Result<()> {
    let columns = with_scores(columns(rows.iter().any(|row| row.trajectory.episode.is_some())), rows);
    match format {
        FileFormat::Jsonl => write_jsonl(out, &columns, rows),
        FileFormat::Parquet => {
            write_parquet(out, "samples", &columns, rows, |row| row.trajectory.num_written())
                .map_err(io_error)
        }
    }
}

/// Writes a file of samples, whole or not at all, in the format of its file extension.
pub fn write_samples(path: &Path, rows: &[RolloutRow<'_>]) -> Result<(), Fault> {
    let format = format_of(path)?;
    let write = || {
        let mut file = WholeFile::create(path)?;
        write_samples_to(&mut file, rows, format)?;
        file.commit()
    };
    write().map_err(|source| fault!("failed to write the samples to {}", path.display()).with_source(source))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};
    use tamis_core::group::{Episode, Group, Trajectory, Turn};

    use super::*;
    use crate::records::Records;
    use crate::rollouts::tests::{group, table, trajectory};

    fn of(trajectories: [Trajectory; 2]) -> Group {
        Group { trajectories: trajectories.into(), ..group() }
    }

    #[test]
    fn samples_come_back_from_either_format() {
        let folder = tempfile::tempdir().unwrap();
        let logged: BTreeMap<String, String> = [("note".to_owned(), "short".to_owned())].into();
        let scores = |acc| [("acc", acc), ("prompt", 0.5)];
        let sampled =
            of([trajectory(0, 3, &scores(1.0), 1.0), trajectory(1, 2, &scores(f64::NAN), f64::NAN)]);
        let mut rows = table(&sampled);
        rows[0].logged = Some(&logged);
        for name in ["s.jsonl", "s.parquet"] {
            let path = folder.path().join(name);
            write_samples(&path, &rows).unwrap();
            let read: Vec<Value> =
                Records::open(&path).unwrap().map(|record| Value::Object(record.unwrap().values)).collect();
            assert_eq!(
                read,
                [
                    json!({
                        "step": 2, "prompt_id": 5, "sample_index": 0, "data_source": "arithmetic", "prompt": "1+1=",
                        "completion": "réponse 0", "ground_truth": null, "acc": 1.0, "score_prompt": 0.5, "note": "short", "reward": 1.0,
                        "num_tokens": 3, "finish_reason": "length",
                    }),
                    json!({
                        "step": 2, "prompt_id": 5, "sample_index": 1, "data_source": "arithmetic", "prompt": "1+1=",
                        "completion": "réponse 1", "ground_truth": "2", "acc": null, "score_prompt": 0.5, "note": null, "reward": null,
                        "num_tokens": 2, "finish_reason": "stop",
                    }),
                ],
                "{name}"
            );
        }
        let turn = |text: &str, observation: &str, reward: f64| Turn {
            text: text.to_owned(),
            observation: observation.to_owned(),
            reward,
            ..Turn::default()
        };
        let episode = Episode {
            turns: vec![turn("Left", "P_G", 0.0), turn("Right", "", 0.5)],
            is_success: Some(true),
            ..Episode::default()
        };
        let path = folder.path().join("s.jsonl");
        let played = Trajectory { episode: Some(episode), ..trajectory(0, 1, &[], 1.0) };
        write_samples(&path, &table(&of([played, trajectory(1, 1, &[], 0.0)]))).unwrap();
        let mut read = Records::open(&path).unwrap().map(|record| record.unwrap().values);
        let mut next = || {
            let row = read.next().unwrap();
            ["success", "turn_rewards", "turn_texts", "turn_observations"].map(|name| row[name].clone())
        };
        assert_eq!(next(), [json!(1.0), json!([0.0, 0.5]), json!(["Left", "Right"]), json!(["P_G", ""])]);
        assert_eq!(next(), [json!(null), json!([]), json!([]), json!([])]);
        let error = write_samples(&folder.path().join("s.csv"), &rows).unwrap_err();
        assert!(error.to_string().contains("its name ends neither in .jsonl nor in .parquet"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left");
    }
}
