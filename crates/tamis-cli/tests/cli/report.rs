//! `tamis report` as a person types it.

use crate::tamis::{Folder, failures};

const METRICS: &str = "\
{\"step\":1,\"all/critic/score/mean\":0.25,\"critic/score/mean\":0.5}
{\"step\":2,\"all/critic/score/mean\":0.5,\"critic/score/mean\":0.5}
";

fn run() -> Folder {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.join("runs/a")).unwrap();
    folder.write("runs/a/metrics.jsonl", METRICS);
    folder.write("runs/a/config.yaml", "train:\n  total_steps: 4  # my.yaml:2\n");
    folder
}

#[test]
fn a_page_is_written_into_the_run_and_made_anew() {
    let folder = run();
    let shown = folder.tamis(&["report", "runs/a"]).shown();
    let size = tamis_core::figure::bytes(folder.read("runs/a/report.html").len() as u64);
    insta::assert_snapshot!(shown.replace(&size, "SIZE"), @r"
    exit code 0
    ----- stdout
    runs/a/report.html: 2 steps, 0 trajectories, SIZE
    ----- stderr
    warning: runs/a: there are no rollout files in `runs/a/rollouts`: groups and completions are not shown
    ");
    let page = folder.read("runs/a/report.html");
    assert!(page.starts_with("<!doctype html>") && page.contains("unfinished, 2 of 4 steps"));
    folder.tamis(&["report", "runs/a", "--title", "Mine"]).succeeds();
    assert!(folder.read("runs/a/report.html").contains("<h1>Mine</h1>"));
    let out = folder.tamis(&["report", "runs/a", "--out", "-", "--steps", "2.."]).succeeds();
    assert!(out.stdout.starts_with("<!doctype html>") && out.stdout.contains("steps from 2 on"));
}

#[test]
fn several_runs_are_one_page_here_or_where_one_says() {
    let folder = run();
    std::fs::create_dir_all(folder.join("b")).unwrap();
    folder.write("b/metrics.jsonl", METRICS);
    folder.tamis(&["report", "runs/a", "b/metrics.jsonl"]).succeeds();
    assert!(folder.read("report.html").contains("<h1>a, metrics</h1>"));
    let said = folder.tamis(&["report", "runs/a", "--out", "b"]).succeeds();
    assert!(said.stdout.starts_with("b/report.html: 2 steps"), "{}", said.stdout);
}

#[test]
fn what_cannot_be_told_about() {
    let folder = run();
    insta::assert_snapshot!(failures([
        folder.tamis(&["report", "runs/b"]),
        folder.tamis(&["report", "runs/a", "--out", "runs/a/metrics.jsonl"]),
    ]), @r"
    exit code 2
    error: there is no file or folder runs/b
      hint: name the folder that a run printed at its start, or a `metrics.jsonl`
    error: runs/a/metrics.jsonl exists, but is not a page
      hint: `--out FILE` names the page to write
    ");
    assert_eq!(folder.read("runs/a/metrics.jsonl"), METRICS);
    folder.write("runs/a/metrics.jsonl", "broken\n");
    insta::assert_snapshot!(folder.tamis(&["report", "runs/a"]).shown(), @r"
    exit code 1
    ----- stderr
    error: runs/a/metrics.jsonl: no line is a row of metrics; line 1: not a JSON object: expected value at line 1 column 1
      hint: name a run directory, or a `metrics.jsonl` of tamis or with verl's names
    ");
}
