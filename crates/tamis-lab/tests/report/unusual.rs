//! Runs that lack something: each has a page, or an error that names what is missing.

use std::path::{Path, PathBuf};

use tamis_lab::FaultKind;
use tamis_lab::report::{PageOptions, page};

use crate::fixture::{edit, has, made, run, try_made};

fn notes(runs: &[PathBuf]) -> String {
    made(runs).notes.into_iter().map(|(_, note)| note + "\n").collect()
}

fn shown(run: &Path) -> String {
    made(&[run.to_owned()]).html
}

fn refusal(path: PathBuf) -> String {
    let shown = path.display().to_string();
    let error = try_made(&[path]).unwrap_err();
    assert_eq!(error.kind(), FaultKind::Usage);
    format!("{error}\nhint: {}", error.hint().unwrap_or_default()).replace(&shown, "RUN")
}

#[test]
fn what_is_no_run_is_refused_with_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    insta::assert_snapshot!(refusal(empty), @r"
    RUN is not a run directory: there is neither `config.yaml` nor `metrics.jsonl` nor a `rollouts` folder in it
    hint: name the folder that a run printed at its start
    ");
    run(folder.path(), "sums", 1);
    let around = refusal(folder.path().to_owned());
    assert!(around.ends_with("hint: there are runs in it: did you mean `RUN/sums`?"), "{around}");
    let misspelt = refusal(folder.path().join("sumz"));
    has(&misspelt, &["there is no file or folder RUN", "did you mean"]);
    let same = folder.path().join("sums");
    let twice = try_made(&[same.clone(), same]).unwrap_err().to_string();
    assert!(twice.ends_with("sums is given twice"), "{twice}");
    assert!(try_made(&[]).unwrap_err().hint().is_some());
}

#[test]
fn a_run_without_rollouts_metrics_or_settings() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 3);
    std::fs::remove_dir_all(path.join("rollouts")).unwrap();
    assert!(notes(std::slice::from_ref(&path)).starts_with("there are no rollout files in"));
    let html = shown(&path);
    assert!(!html.contains("id=\"samples\"") && html.contains("id=\"account\""));
    std::fs::remove_file(path.join("metrics.jsonl")).unwrap();
    let found = notes(std::slice::from_ref(&path));
    assert!(found.contains("there is no `metrics.jsonl` yet"), "{found}");
    assert!(shown(&path).contains("unfinished, 0 of 3 steps"));
    let other = run(folder.path(), "other", 2);
    std::fs::remove_file(other.join("config.yaml")).unwrap();
    std::fs::remove_file(other.join("metrics.jsonl")).unwrap();
    // Rollouts alone have a page.
    has(&shown(&other), &["id=\"samples\"", "Pass rates of groups"]);
}

#[test]
fn a_file_of_metrics_is_a_run_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 3).join("metrics.jsonl");
    let page = made(&[path]);
    assert_eq!(page.num_steps, 3);
    assert!(page.notes[0].1.starts_with("this is a file of metrics"));
}

#[test]
fn unfinished_torn_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 4);
    edit(&path, "metrics.jsonl", |text| text[..text.trim_end().rfind('\n').unwrap() + 30].to_owned());
    std::fs::write(path.join("run.superseded.log"), "x").unwrap();
    let found = notes(std::slice::from_ref(&path));
    has(&found, &["the last line of `metrics.jsonl` is not whole", "the run was resumed"]);
    has(&shown(&path), &["unfinished, 3 of 4 steps"]);
}

#[test]
fn what_is_damaged_is_left_out_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 4);
    edit(&path, "metrics.jsonl", |text| format!("broken\n{text}"));
    let file = path.join("rollouts/step_2.parquet");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let page = made(&[path]);
    assert_eq!((page.num_trajectories, page.num_steps), (12, 4));
    let notes: String = page.notes.iter().flat_map(|(_, note)| ["\n", note]).collect();
    let line = "\nline 1 of `metrics.jsonl` is damaged and left out: not a JSON object";
    has(&notes, &["step_2.parquet` cannot be read and is left out", line]);
    has(&page.html, &["is damaged and left out: not a JSON object"]);
}

#[test]
fn one_step_and_a_step_without_groups() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 1);
    let page = made(std::slice::from_ref(&path));
    assert!(!page.html.contains("NaN") && !page.html.contains("inf\""), "a number that is none");
    crate::fixture::write_rollouts(&path, 1, &[]);
    let page = made(&[path]);
    assert_eq!(page.num_trajectories, 0);
}

#[test]
fn some_steps_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 9);
    let options = |steps: &str, num_samples| PageOptions {
        runs: vec![path.clone()],
        steps: steps.parse().unwrap(),
        num_samples: Some(num_samples),
        title: Some("Mine & yours".to_owned()),
    };
    let found = page(&options("3..5", 2)).unwrap();
    assert_eq!((found.num_steps, found.num_trajectories), (3, 12));
    assert!(found.html.contains("<h1>Mine &amp; yours</h1>") && found.html.contains("steps 3 to 5"));
    assert_eq!(found.html.matches("<article class=\"group\"").count(), 2);
    assert!(!page(&options("3..5", 0)).unwrap().html.contains("id=\"samples\""));
    let error = page(&options("20..", 2)).unwrap_err().to_string();
    has(&error, &["no run has one of the steps from 20 on that `--steps` asks for"]);
    assert!(error.ends_with("has steps up to 9"), "{error}");
}

#[test]
fn an_error_that_ended_a_run_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 2);
    edit(&path, "config.yaml", |text| text.replace("total_steps: 2", "total_steps: 9"));
    let log = "2026-11-26T12:00:00.000Z info begins\n2026-11-26T12:01:00.000Z error the disk is <full>\n";
    std::fs::write(path.join("run.log"), log).unwrap();
    let error = "<pre>the disk is &lt;full&gt;</pre>";
    has(&shown(&path), &["ended with an error, 2 of 9 steps", error, "2026-11-26 12:01 UTC"]);
}

#[test]
fn what_does_not_add_up_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 2);
    edit(&path, "metrics.jsonl", |text| text.replacen("\"groups/trained\":1", "\"groups/trained\":5", 1));
    has(&shown(&path), &["✗ groups do not add up: 4 came in, and 8 are accounted for."]);
}

/// A group that is carried through several steps came in once.
#[test]
fn what_is_carried_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let row = |step: u64, carried_in: u64, generated: u64, trained: u64, carried_out: u64| {
        format!(
            "{{\"step\":{step},\"groups/carried_in\":{carried_in},\"groups/generated\":{generated},\"groups/trained\":{trained},\"groups/carried_out\":{carried_out}}}\n"
        )
    };
    let rows = [row(1, 0, 9, 4, 5), row(2, 5, 3, 4, 4), row(3, 4, 1, 4, 1)].concat();
    let path = folder.path().join("metrics.jsonl");
    std::fs::write(&path, rows).unwrap();
    let html = shown(&path);
    assert!(html.contains("✓ groups add up: 13 came in"), "13 = 12 trained + 1 carried out");
    assert!(!html.contains("carried in"), "nothing was carried into the run");
}

/// Copies of trained groups were not generated: they are no share of what was.
#[test]
fn copies_are_no_share_of_the_generated() {
    let folder = tempfile::tempdir().unwrap();
    let places = [("generated", 16), ("trained", 4), ("dropped", 12), ("duplicated", 8)];
    let places = places
        .map(|(place, count)| format!("\"groups/{place}\":{count},\"trajectories/{place}\":{}", 2 * count));
    let path = folder.path().join("metrics.jsonl");
    std::fs::write(&path, format!("{{\"step\":1,{}}}\n", places.join(","))).unwrap();
    let html = shown(&path);
    let account =
        html.split_once("id=\"account\"").and_then(|(_, rest)| rest.split_once("</table>")).unwrap().0;
    assert!(html.contains("✓ trajectories add up: 32 came in"), "{html}");
    let shares: Vec<&str> = account.split("<td>").filter(|cell| cell.contains('%')).collect();
    assert_eq!(shares.len(), 3, "generated, trained and dropped: {account}");
    assert!(account.contains("duplicated") && !account.contains("50.0%"), "{account}");
}

#[test]
fn rollouts_beyond_the_metrics_are_no_contradiction() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 3);
    edit(&path, "metrics.jsonl", |text| text[..text.find("{\"step\":3").unwrap()].to_owned());
    let html = shown(&path);
    assert!(html.contains("The rollout files hold 12 trajectories") && !html.contains("that have both"));
    // A run that died in its first step has only files.
    std::fs::remove_file(path.join("metrics.jsonl")).unwrap();
    let counted = "do not count where groups and trajectories ended";
    has(&shown(&path), &[counted, "The rollout files hold 12 trajectories"]);
}

#[test]
fn how_a_run_ended_is_read_from_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 2);
    edit(&path, "config.yaml", |text| text.replace("total_steps: 2", "total_steps: 9"));
    assert!(shown(&path).contains("unfinished, 2 of 9 steps"));
    let line = format!("2026-11-26T12:00:00.000Z info {}\n", tamis_run::log::RunEnding::Finished.last_line());
    std::fs::write(path.join("run.log"), line).unwrap();
    let html = shown(&path);
    assert!(html.contains("finished, 2 of 9 steps") && !html.contains("unfinished"));
    // An early stop is one, whichever steps are shown.
    edit(&path, "metrics.jsonl", |text| {
        text.trim_end().trim_end_matches('}').to_owned() + ",\"train/early_stopped\":1}\n"
    });
    let first = PageOptions { runs: vec![path], steps: "1".parse().unwrap(), num_samples: None, title: None };
    assert!(page(&first).unwrap().html.contains("stopped early"));
}

#[test]
fn what_is_not_finite_is_marked_and_gaps_stay_gaps() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "sums", 9);
    let norm = |place| match place {
        2 => "\"Infinity\"",
        5 | 6 => "null",
        _ => "1.5",
    };
    let changed =
        |(place, line): (usize, &str)| line.replace("norm\":1.5", &format!("norm\":{}", norm(place))) + "\n";
    edit(&path, "metrics.jsonl", |text| text.lines().enumerate().map(changed).collect());
    let html = shown(&path);
    let chart = html.split("<h3>Gradient norm</h3>").nth(1).unwrap().split("</figure>").next().unwrap();
    let values = "&quot;values&quot;:[1.5,1.5,&quot;Infinity&quot;,1.5,1.5,1.5,1.5]";
    has(chart, &["<td>∞", values, "&quot;at&quot;:[1,2,3,4,5,8,9]"]);
    // The line breaks where values are missing.
    has(chart, &["&quot;gaps&quot;:[[5.0,8.0]]"]);
}
