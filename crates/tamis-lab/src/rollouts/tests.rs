use std::fs::File;
use std::path::Path;

use serde_json::json;
use tamis_core::group::{FinishReason, Group, GroupId, PolicyVersion, PromptId, Score, Trajectory};
use tamis_data::rollouts::{RolloutRow, write_rollouts_to};

use super::*;

fn member(sample_index: u32, text: &str, acc: f64) -> Trajectory {
    Trajectory {
        episode: None,
        sample_index,
        text: text.to_owned(),
        token_ids: vec![1, 2],
        logprobs: vec![-0.5, -0.25],
        entropy: None,
        loss_mask: vec![true, true],
        finish_reason: FinishReason::Stop,
        versions: (PolicyVersion(3), PolicyVersion(3)),
        scores: [("acc".to_owned(), Score::of(acc))].into(),
        reward: acc,
    }
}

/// A run with rollouts of steps 1, 2 and 4.
fn run() -> tempfile::TempDir {
    let run = tempfile::tempdir().unwrap();
    let folder = run.path().join("rollouts");
    std::fs::create_dir(&folder).unwrap();
    for step in [1, 2, 4] {
        let group = |id: u64, members: Vec<Trajectory>| Group {
            id: GroupId(id),
            prompt: PromptId(id + 10),
            epoch: 0,
            dispatched: PolicyVersion(3),
            prompt_token_ids: vec![7],
            images: Vec::new(),
            trajectories: members,
        };
        let groups = [
            group(1, vec![member(0, "2", 1.0), member(1, "3\nor so", f64::NAN)]),
            group(2, vec![member(0, "4", 1.0), member(1, "4", 1.0), member(2, "4", 1.0)]),
        ];
        let rows: Vec<RolloutRow<'_>> = groups
            .iter()
            .flat_map(|group| group.trajectories.iter().map(move |trajectory| (group, trajectory)))
            .map(|(group, trajectory)| RolloutRow {
                step,
                round: 0,
                group,
                trajectory,
                inclusion: 1.0,
                data_source: "sums",
                prompt: "1+1=",
                ground_truth: Some("2"),
                advantage: (group.id.0 == 1 && trajectory.sample_index == 0).then_some(0.5),
                metric: "acc",
                metric_value: Some(1.0),
                verdict: match (group.id.0, trajectory.sample_index) {
                    (1, 0) => "trained",
                    (1, _) => "unscored",
                    _ => "all_correct",
                },
                logged: None,
            })
            .collect();
        write_rollouts_to(File::create(folder.join(format!("step_{step}.parquet"))).unwrap(), &rows).unwrap();
    }
    run
}

fn query(source: &Path) -> RolloutQuery {
    RolloutQuery { source: source.to_owned(), step: None, verdict: None, group: None, prompt: None, limit: 5 }
}

fn shown(run: &Path, query: &RolloutQuery) -> String {
    let text = match read(query) {
        Ok(view) => view.to_string(),
        Err(error) => format!("error: {error}\nhint: {}", error.hint().unwrap_or_default()),
    };
    text.replace(&run.display().to_string(), "RUN")
}

#[test]
fn the_last_step_of_a_run() {
    let run = run();
    insta::assert_snapshot!(shown(run.path(), &RolloutQuery { limit: 2, ..query(run.path()) }), @r"
    RUN/rollouts/step_4.parquet: 5 trajectories (3 all_correct, 1 trained, 1 unscored); the first 2:

    step 4, round 0, group 1, prompt 11, sample 0: trained, ended by stop, 2 tokens, of sums
      reward 1   advantage 0.5   acc 1
      prompt      1+1=
      completion  2
      gold        2

    step 4, round 0, group 1, prompt 11, sample 1: unscored, ended by stop, 2 tokens, of sums
      reward none   acc none
      prompt      1+1=
      completion  3
                  or so
      gold        2
    ");
}

#[test]
fn trajectories_that_are_asked_for() {
    let run = run();
    let count = |query: &RolloutQuery| {
        let view = read(query).unwrap();
        (view.num_matching, view.rows.len(), view.rows.first().map(|row| row["group_id"].clone()))
    };
    let all = query(run.path());
    let ended = |verdict: &str| RolloutQuery { verdict: Some(verdict.to_owned()), ..all.clone() };
    assert_eq!(count(&ended("trained")), (1, 1, Some(json!(1))));
    assert_eq!(count(&ended("all_correct")), (3, 3, Some(json!(2))));
    // Everything that the filter dropped. An unscored member of a trained group has the same verdict as an
    // unscored group.
    assert_eq!(count(&ended("dropped")), (4, 4, Some(json!(1))));
    assert_eq!(count(&ended("surplus")), (0, 0, None));
    insta::assert_snapshot!(shown(run.path(), &ended("foo")), @r"
    error: `foo` is not a verdict; the verdicts are trained, kept_when_insufficient, surplus, stale, aborted, unscored, unchosen, truncated, shaped, masked, rejected, dropped, all_correct, all_wrong, uniform, below_range, above_range, singleton, zero_score, outside_pool, screened
    hint: `dropped` stands for everything that the filter dropped; docs/rollouts.md explains each
    ");
    let counted = shown(run.path(), &RolloutQuery { limit: 0, ..ended("trained") });
    assert_eq!(
        counted,
        "RUN/rollouts/step_4.parquet: 5 trajectories (3 all_correct, 1 trained, 1 unscored); 1 match\n"
    );
    assert_eq!(count(&RolloutQuery { group: Some(2), limit: 1, ..all.clone() }), (3, 1, Some(json!(2))));
    assert_eq!(count(&RolloutQuery { prompt: Some(11), ..all.clone() }), (2, 2, Some(json!(1))));
    let view = read(&RolloutQuery { step: Some(2), ..all }).unwrap();
    assert_eq!(view.rows[0]["step"], 2);
    let json = serde_json::to_value(&view).unwrap();
    assert_eq!(json["verdicts"], json!({"all_correct": 3, "trained": 1, "unscored": 1}));
    assert_eq!(json["rows"][0]["logprobs"], json!([-0.5, -0.25]));
}

#[test]
fn the_dumps_of_verl_and_validation_samples() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("5.jsonl");
    let row = json!({"input": "1+1=", "output": "2", "gts": "2", "score": 1.0, "step": 5});
    std::fs::write(&file, format!("{row}\n")).unwrap();
    insta::assert_snapshot!(shown(folder.path(), &query(&file)), @r"
    RUN/5.jsonl: 1 trajectory

    step 5
      score 1
      prompt      1+1=
      completion  2
      gold        2
    ");
}

#[test]
fn what_is_not_there() {
    let run = run();
    insta::assert_snapshot!(shown(run.path(), &RolloutQuery { step: Some(3), ..query(run.path()) }), @r"
    error: no rollouts of step 3 are saved in RUN/rollouts; saved are those of steps 1 to 2, 4
    hint:
    ");
    let file = run.path().join("rollouts/step_1.parquet");
    insta::assert_snapshot!(shown(run.path(), &RolloutQuery { step: Some(1), ..query(&file) }), @r"
    error: --step chooses among the files of a run, but RUN/rollouts/step_1.parquet is a file
    hint: leave it out, or name the run
    ");
    insta::assert_snapshot!(shown(run.path(), &query(&run.path().join("step_9.parquet"))), @"
    error: there is no file or folder RUN/step_9.parquet
    hint: name the folder that a run printed at its start, or a JSONL or Parquet file
    ");
    let empty = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(shown(empty.path(), &query(empty.path())), @r"
    error: RUN is not a run directory: there is no `rollouts` folder in it
    hint: name the folder that a run printed at its start, or a file
    ");
    std::fs::create_dir(empty.path().join("rollouts")).unwrap();
    insta::assert_snapshot!(shown(empty.path(), &query(empty.path())), @r"
    error: no rollouts are saved in RUN/rollouts
    hint: a run writes them after each step, unless `rollout.save` is `off` (`kept`: only trajectories of trained groups); supervised fine-tuning alone samples nothing
    ");
}

#[test]
fn every_column_is_on_the_page() {
    let page = reference_markdown();
    for name in rollouts::fixed_columns().into_iter().chain(samples::fixed_columns()) {
        assert!(page.contains(&format!("| `{name}` |")), "{name}");
    }
}
