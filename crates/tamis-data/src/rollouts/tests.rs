use std::collections::BTreeMap;

use serde_json::{Value, json};
use tamis_core::group::{Episode, GroupId, PolicyVersion, PromptId, Score, Turn};

use super::*;
use crate::records::Records;
use crate::table::ROWS_PER_ROW_GROUP;

pub(crate) fn trajectory(
    sample_index: u32,
    tokens: usize,
    scores: &[(&str, f64)],
    reward: f64,
) -> Trajectory {
    Trajectory {
        episode: None,
        sample_index,
        text: format!("réponse {sample_index}"),
        token_ids: (0..tokens as u32).map(|token| token * 1000).collect(),
        logprobs: (0..tokens).map(|token| -0.5 * token as f32).collect(),
        entropy: None,
        loss_mask: (0..tokens).map(|token| token % 2 == 0).collect(),
        finish_reason: if tokens > 2 { FinishReason::Length } else { FinishReason::Stop },
        versions: (PolicyVersion(3), PolicyVersion(4)),
        scores: scores.iter().map(|&(name, value)| (name.to_owned(), Score::of(value))).collect(),
        reward,
    }
}

pub(crate) fn group() -> Group {
    Group {
        id: GroupId(17),
        prompt: PromptId(5),
        epoch: 1,
        dispatched: PolicyVersion(3),
        prompt_token_ids: vec![7, 8, 9],
        images: Vec::new(),
        trajectories: vec![
            trajectory(0, 3, &[("acc", 1.0), ("reward", 0.25)], 1.25),
            trajectory(1, 0, &[("acc", f64::NAN)], f64::NAN),
            trajectory(2, 1, &[("acc", 0.0), ("format.x y", 1.0)], 0.5),
        ],
    }
}

pub(crate) fn table(group: &Group) -> Vec<RolloutRow<'_>> {
    group
        .trajectories
        .iter()
        .map(|trajectory| RolloutRow {
            step: 2,
            round: 1,
            group,
            trajectory,
            inclusion: 1.0,
            data_source: "arithmetic",
            prompt: "1+1=",
            ground_truth: (trajectory.sample_index > 0).then_some("2"),
            advantage: (trajectory.sample_index == 0).then_some(-0.75),
            metric: "acc",
            metric_value: trajectory.scores.get("acc").map(|score| score.value),
            verdict: "trained",
            logged: None,
        })
        .collect()
}

/// The rows of a file that these rows were written to.
fn written(rows: &[RolloutRow<'_>]) -> Vec<Value> {
    let file = tempfile::Builder::new().suffix(".parquet").tempfile().unwrap();
    write_rollouts_to(file.reopen().unwrap(), rows).unwrap();
    Records::open(file.path()).unwrap().map(|record| Value::Object(record.unwrap().values)).collect()
}

/// Some values of a row.
fn values(row: &Value, columns: &[&str]) -> Value {
    columns.iter().map(|column| row[*column].clone()).collect()
}

#[test]
fn rows_come_back_as_they_were() {
    let group = group();
    let mut rows = table(&group);
    let logged =
        BTreeMap::from([("note", "long"), ("verdict", "mine")].map(|(a, b)| (a.to_owned(), b.to_owned())));
    rows[0].logged = Some(&logged);
    let read = written(&rows);
    assert_eq!(read.len(), 3);
    assert_eq!(
        read[0],
        json!({
            "step": 2, "round": 1, "group_id": 17, "prompt_id": 5, "epoch": 1, "sample_index": 0,
            "data_source": "arithmetic", "prompt": "1+1=", "completion": "réponse 0", "ground_truth": null,
            "prompt_ids": [7, 8, 9], "token_ids": [0, 1000, 2000], "logprobs": [-0.0, -0.5, -1.0],
            "loss_mask": [true, false, true],
            "acc": 1.0, "format.x y": null, "score_reward": 0.25,
            "note": "long", "extra_verdict": "mine",
            "reward": 1.25, "advantage": -0.75, "metric": "acc", "metric_value": 1.0, "verdict": "trained",
            "finish_reason": "length", "version_min": 3, "version_max": 4,
        })
    );
    let unscored = ["note", "extra_verdict", "acc", "reward", "metric_value", "token_ids", "logprobs"];
    assert_eq!(values(&read[1], &unscored), json!([null, null, null, null, null, [], []]));
    assert_eq!(values(&read[2], &["token_ids", "ground_truth"]), json!([[0], "2"]));
}

/// Only in files of runs with a selector that passed over prompts.
#[test]
fn the_probability_with_which_a_prompt_was_taken_is_written() {
    let group = group();
    let mut rows = table(&group);
    rows[1].inclusion = 0.25;
    let read: Vec<Value> = written(&rows).iter().map(|row| row["inclusion"].clone()).collect();
    assert_eq!(read, [1.0, 0.25, 1.0]);
    assert!(fixed_columns().contains(&"inclusion"));
}

#[test]
fn a_step_without_rows_is_a_file_without_rows() {
    assert_eq!(written(&[]).len(), 0);
}

#[test]
fn many_rows_go_over_row_groups() {
    let mut group = group();
    group.trajectories =
        (0..ROWS_PER_ROW_GROUP as u32 + 10).map(|i| trajectory(i, 2, &[], f64::from(i))).collect();
    let rewards: Vec<f64> =
        written(&table(&group)).iter().map(|row| row["reward"].as_f64().unwrap()).collect();
    assert_eq!(rewards, (0..group.trajectories.len()).map(|i| i as f64).collect::<Vec<_>>());
}

/// A disk that is full after this many bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0 == 0 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let length = bytes.len().min(self.0);
        self.0 -= length;
        Ok(length)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_at_every_byte() {
    let group = group();
    let rows = table(&group);
    let mut size = Vec::new();
    write(&mut size, &rows).unwrap();
    for bytes in (0..size.len()).step_by(97) {
        let error = io_error(write(Full(bytes), &rows).unwrap_err());
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{bytes}: {error}");
    }
    assert!(write(Full(size.len()), &rows).is_ok());
}

#[test]
fn names_that_clash_stay_apart() {
    let mut group = group();
    group.trajectories = vec![trajectory(0, 1, &[("step", 1.0), ("score_step", 2.0)], 0.0)];
    let rows = table(&group);
    let names: Vec<String> = named_columns(&rows).into_iter().map(|(name, _)| name).collect();
    for name in ["step", "score_step", "score_score_step"] {
        assert_eq!(names.iter().filter(|found| *found == name).count(), 1, "{names:?}");
    }
}

#[test]
fn images_are_named_where_there_are_any() {
    let columns_of = |groups: &[&Group]| -> Vec<Value> {
        written(&groups.iter().flat_map(|group| table(group)).collect::<Vec<_>>())
    };
    let plain = group();
    assert!(columns_of(&[&plain]).iter().all(|row| row.get("images").is_none()));
    let seen = Group { images: vec!["/data/é.png".to_owned(), "/data/b.png".to_owned()], ..group() };
    let rows = columns_of(&[&plain, &seen]);
    assert_eq!(
        [&rows[0]["images"], &rows[3]["images"]],
        [&json!([]), &json!(["/data/é.png", "/data/b.png"])]
    );
    assert!(fixed_columns().contains(&"images"));
}

#[test]
fn turns_are_told_where_there_are_any() {
    let mut played = group();
    let turn = |end, reward| Turn {
        end,
        reward,
        text: format!("answer {end}"),
        observation: if end == 1 { "seen".to_owned() } else { String::new() },
        role: if end == 1 { "tool".to_owned() } else { String::new() },
        ..Turn::default()
    };
    let episode =
        Episode { turns: vec![turn(1, -0.5), turn(3, 1.0)], is_success: Some(true), ..Episode::default() };
    played.trajectories[0].episode = Some(episode);
    let rows = written(&table(&played));
    assert_eq!(
        values(&rows[0], &["turn_ends", "turn_rewards", "success"]),
        json!([[1, 3], [-0.5, 1.0], 1.0])
    );
    assert_eq!(
        values(&rows[0], &["turn_texts", "turn_observations", "turn_roles"]),
        json!([["answer 1", "answer 3"], ["seen", ""], ["tool", ""]])
    );
    assert_eq!(values(&rows[1], &["turn_ends", "success"]), json!([[], null]));
    let of_answers = group();
    let names: Vec<String> = named_columns(&table(&of_answers)).into_iter().map(|(name, _)| name).collect();
    assert!(!names.contains(&"turn_ends".to_owned()) && fixed_columns().contains(&"turn_ends"));
}
