//! `tamis filter` as a person types it.

use crate::tamis::{Folder, Replaced as _, failures};

const ROLLOUTS: &str = "\
{\"uid\": \"a\", \"acc\": 1, \"text\": \"x\"}
{\"uid\": \"b\", \"acc\": 0, \"text\": \"y\"}
{\"uid\": \"a\", \"acc\": 0, \"text\": \"z\"}
{\"uid\": \"b\", \"acc\": 0, \"text\": \"u\"}
{\"uid\": \"c\", \"acc\": 1, \"text\": \"v\"}
{\"uid\": \"c\", \"acc\": 1, \"text\": \"w\"}
";

#[test]
fn filter_writes_kept_and_dropped_rows() {
    let folder = Folder::new().with("rollouts.jsonl", ROLLOUTS);
    let arguments =
        ["filter", "rollouts.jsonl", "--metric", "acc", "--kept", "kept.jsonl", "--dropped", "dropped.jsonl"];
    insta::assert_snapshot!(folder.tamis(&arguments).shown(), @r#"
    exit code 0
    ----- stdout
    Filter statistics (variance of acc):
      - Total prompts: 3 (6 trajectories, 2 a prompt)
      - Dropped: 2 (66.7%)
          all wrong: 1 (33.3%)
          all correct: 1 (33.3%)
      - Kept (groups with max > min): 1 (33.3%)
      - Mean std: 0.167
      - Mean metric: 0.500
      - Pass rate: 50.0%
      - Wrote kept.jsonl (2 rows)
      - Wrote dropped.jsonl (4 rows)
    "#);
    let rows = |places: [usize; 2]| {
        let lines: Vec<&str> = ROLLOUTS.lines().collect();
        places.map(|place| format!("{}\n", lines[place])).concat()
    };
    assert_eq!(folder.read("kept.jsonl"), rows([0, 2]));
    assert_eq!(folder.read("dropped.jsonl").lines().count(), 4);
    // A second time, it would overwrite the files.
    insta::assert_snapshot!(folder.tamis(&arguments).shown(), @r#"
    exit code 2
    ----- stderr
    error: kept.jsonl exists already
      hint: `--overwrite` replaces it
    "#);
    assert_eq!(folder.read("kept.jsonl"), rows([0, 2]));
    folder.tamis(&[&arguments[..], &["--overwrite"]].concat()).succeeds();

    let json = folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--json"]).succeeds();
    let json = json.json();
    assert!(json.is_object());
    let bounds = ["--strategy", "mean_range", "--low", "0.25", "--high", "1", "--bounds", "closed"];
    let ended = folder.tamis(&[&["filter", "rollouts.jsonl", "--metric", "acc"][..], &bounds].concat());
    ended
        .succeeds()
        .prints("Kept (groups with 0.25 <= mean <= 1): 2 (66.7%)\n      of these uniform: 1 (33.3%)\n");
}

#[test]
fn filter_bounds_may_be_negative() {
    let rows = ROLLOUTS.replaced("\"acc\": 0", "\"acc\": -1");
    let folder = Folder::new().with("rollouts.jsonl", &rows);
    let bounds = ["--strategy", "mean_range", "--low", "-0.5", "--high", "0.5", "--json"];
    let ended =
        folder.tamis(&[&["filter", "rollouts.jsonl", "--metric", "acc"][..], &bounds].concat()).succeeds();
    let summary = ended.json();
    assert_eq!(summary["num_kept"], 1, "{summary}");
}

#[test]
fn filter_messages() {
    let folder = Folder::new().with("rollouts.jsonl", ROLLOUTS);
    insta::assert_snapshot!(failures([
        folder.tamis(&["filter", "missing.jsonl", "--metric", "acc"]),
        folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--strategy", "top_p"]),
        // Options without an effect are refused.
        folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--low", "0.2", "--bounds", "closed"]),
        folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--strategy", "mean_range", "--low", "0", "--high", "1", "--singleton", "drop"]),
        folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--metric", "acc2", "--group", "uid"]),
        folder.tamis(&["filter", "rollouts.jsonl", "--metric", "acc", "--overwrite"]),
    ]), @r"
    exit code 2
    error: failed to open missing.jsonl
      caused by: No such file or directory (os error 2)
      hint: name a JSONL or Parquet file
    error: --strategy top_p needs --p
      hint: `--p 0.9`: Share of the round's mass that is kept
    error: --strategy variance does not look at --low and --bounds
      hint: leave it out, or choose `--strategy mean_range`
    error: --strategy mean_range does not look at --singleton
      hint: leave it out, or choose `--strategy variance`
    error: with several --metric each row is a group, so --group has nothing to do
      hint: leave out --group, or give one --metric
    error: --overwrite without an output to replace
      hint: name one with --kept or --dropped
    ");
    // A filter that chooses members has no choice if a row holds them all.
    folder.write("wide.jsonl", "{\"a\": 1, \"b\": 0, \"c\": 0, \"all\": [1, 0, 0]}\n");
    let within = ["filter", "wide.jsonl", "--strategy", "within_group", "--k", "2", "--kept", "kept.jsonl"];
    insta::assert_snapshot!(folder.tamis(&[&within[..], &["--metric", "a", "--metric", "b", "--metric", "c"]].concat()).shown(), @r#"
    exit code 2
    ----- stderr
    error: the within_group filter chooses among the members of a group, but a row of wide.jsonl holds a whole group
      hint: write one row a trajectory, with a column that names its group, or choose a strategy that keeps or drops whole groups
    "#);
    assert!(!folder.join("kept.jsonl").exists());
    folder.write("rows.csv", "uid,acc\n");
    folder
        .tamis(&["filter", "rows.csv", "--metric", "acc"])
        .fails_with("error: rows.csv is a table; write one JSON object per line: python3 -c");
}

#[test]
fn filter_of_a_runs_own_rollouts() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds();
    let ended = folder
        .tamis(&["filter", "runs/tiny/rollouts/step_1.parquet", "--metric", "acc", "--json"])
        .succeeds();
    let summary = ended.json();
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    let step: serde_json::Value =
        serde_json::from_str(metrics.lines().last().expect("a step")).expect("JSON");
    // Offline the same groups are kept as in the run.
    assert_eq!(summary["num_prompts"].as_f64(), step["groups/generated"].as_f64(), "{summary}");
    assert_eq!(summary["num_kept"].as_f64(), step["train/num_kept_prompts"].as_f64(), "{summary}");
    // A length does not mean right or wrong, here as in a run.
    let arguments =
        ["filter", "runs/tiny/rollouts/step_1.parquet", "--metric", "length", "--tolerance", "100"];
    let shown = folder.tamis(&arguments).succeeds().stdout;
    assert!(shown.contains("all correct: 0 ") && shown.contains("(100.0%)\n  - Kept"), "{shown}");
}
