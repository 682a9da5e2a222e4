use std::fmt::Write as _;

use tamis_core::filter::{Bounds, MeanRange, Pool, Singleton, TopK, Variance, WithinGroup};
use tempfile::TempDir;

use super::*;
use crate::FaultKind;

fn options(inputs: Vec<PathBuf>, layout: GroupLayout) -> FilterOptions {
    FilterOptions {
        inputs,
        layout,
        filter: GroupFilter::Variance(Variance::default()),
        scale: Some(OutcomeScale::default()),
        kept: None,
        dropped: None,
        overwrite: false,
    }
}

fn long(group_by: &[&str], metric: &str) -> GroupLayout {
    GroupLayout::Long {
        group_by: group_by.iter().map(ToString::to_string).collect(),
        metric: metric.to_owned(),
    }
}

fn wide(metrics: &[&str]) -> GroupLayout {
    GroupLayout::Wide { metrics: metrics.iter().map(ToString::to_string).collect() }
}

/// The summary of a file of these rows.
fn filtered(rows: &str, layout: GroupLayout) -> FilterSummary {
    let folder = tempfile::tempdir().unwrap();
    filter_file(&options(vec![write(&folder, "rollouts.jsonl", rows)], layout)).unwrap()
}

fn write(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

/// Shown text with the folder's name taken out.
fn shown(text: &impl ToString, folder: &TempDir) -> String {
    text.to_string().replace(&folder.path().display().to_string(), "FOLDER")
}

/// Rows of the groups a (mixed), b (all wrong), c (all correct) and d (an unscored member beside equal ones),
/// in mixed order.
const ROWS: &str = r#"{"uid": "a", "acc": 1,  "n": 0}
{"uid": "b", "acc": 0, "n": 1}
{"uid": "c", "acc": true, "n": 2}

{"uid": "d", "acc": null, "n": 3}
{"uid": "b", "acc": 0.0, "n": 4}
{"uid": "a", "acc": 0, "n": 5}
{"uid": "d", "acc": 1, "n": 6}
{"uid": "c", "acc": 1, "n": 7}
{"uid": "d", "n": 8}"#;

#[test]
fn scattered_rows_are_grouped_and_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let input = write(&folder, "rollouts.jsonl", ROWS);
    let (kept, dropped) = (folder.path().join("kept.jsonl"), folder.path().join("dropped.jsonl"));
    let filtered = |layout| {
        filter_file(&FilterOptions {
            kept: Some(kept.clone()),
            dropped: Some(dropped.clone()),
            overwrite: true,
            ..options(vec![input.clone()], layout)
        })
        .unwrap()
    };
    let summary = filtered(long(&["uid"], "acc"));
    assert_eq!(filtered(long(&[], "acc")), summary);
    insta::assert_snapshot!(shown(&summary, &folder), @"
    Filter statistics (variance of acc):
      - Total prompts: 4 (9 trajectories, 2 to 3 a prompt)
      - Dropped: 3 (75.0%)
          all wrong: 1 (25.0%)
          all correct: 1 (25.0%)
          unscored: 1 (25.0%)
      - Kept (groups with max > min): 1 (25.0%)
      - Mean std: 0.125
      - Mean metric: 0.571
      - Pass rate: 57.1%
      - Unscored trajectories: 2
      - Wrote FOLDER/kept.jsonl (2 rows)
      - Wrote FOLDER/dropped.jsonl (7 rows)
    ");
    assert_eq!(
        std::fs::read_to_string(&kept).unwrap(),
        "{\"uid\": \"a\", \"acc\": 1,  \"n\": 0}\n{\"uid\": \"a\", \"acc\": 0, \"n\": 5}\n"
    );
    let mut rows = [lines(&kept), lines(&dropped)].concat();
    let mut expected: Vec<&str> = ROWS.lines().filter(|line| !line.is_empty()).collect();
    rows.sort_unstable();
    expected.sort_unstable();
    assert_eq!(rows, expected);
}

#[test]
fn summaries_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let input = write(&folder, "rollouts.jsonl", ROWS);
    let filter = GroupFilter::MeanRange(MeanRange { low: 0.2, high: 0.8, bounds: Bounds::Closed });
    let summary =
        filter_file(&FilterOptions { filter, ..options(vec![input], long(&["uid"], "acc")) }).unwrap();
    insta::assert_snapshot!(serde_json::to_string_pretty(&summary).unwrap(), @r#"
    {
      "filter": "mean_range",
      "rule": "groups with 0.2 <= mean <= 0.8",
      "metric": "acc",
      "num_rows": 9,
      "num_trajectories": 9,
      "num_unscored_trajectories": 2,
      "min_group_size": 2,
      "max_group_size": 3,
      "num_prompts": 4,
      "num_kept": 1,
      "num_kept_uniform": 0,
      "num_kept_single": 0,
      "num_dropped": 3,
      "dropped": {
        "all_correct": 1,
        "all_wrong": 1,
        "uniform": 0,
        "unscored": 1,
        "below_range": 0,
        "above_range": 0,
        "singleton": 0,
        "zero_score": 0,
        "outside_pool": 0
      },
      "keep_rate": 0.25,
      "mean_std": 0.125,
      "mean_metric": 0.5714285714285714,
      "pass_rate": 0.5714285714285714,
      "outputs": []
    }
    "#);
    let text = summary.to_string();
    assert!(text.contains("\n  - Kept (groups with 0.2 <= mean <= 0.8): 1 (25.0%)\n"), "{text}");
}

#[test]
fn wide_rows_of_gsm8k() {
    let Some(data) = tamis_golden::data("gsm8k") else { return };
    let folder = tempfile::tempdir().unwrap();
    let columns = ["6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"]
        .map(|model| format!("{model}.is_correct"));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let (kept, dropped) = (folder.path().join("kept.jsonl"), folder.path().join("dropped.jsonl"));
    let source = data.join("model_solutions.jsonl");
    let summary = filter_file(&FilterOptions {
        kept: Some(kept.clone()),
        dropped: Some(dropped.clone()),
        ..options(vec![source.clone()], wide(&columns))
    })
    .unwrap();
    insta::assert_snapshot!(shown(&summary, &folder), @"
    Filter statistics (variance of 6b_finetuning.is_correct, 6b_verification.is_correct, 175b_finetuning.is_correct, 175b_verification.is_correct):
      - Total prompts: 660 (2640 trajectories, 4 a prompt)
      - Dropped: 306 (46.4%)
          all wrong: 221 (33.5%)
          all correct: 85 (12.9%)
      - Kept (groups with max > min): 354 (53.6%)
      - Mean std: 0.243
      - Mean metric: 0.373
      - Pass rate: 37.3%
      - Wrote FOLDER/kept.jsonl (354 rows)
      - Wrote FOLDER/dropped.jsonl (306 rows)
    ");
    let (mut copied, mut all) = ([lines(&kept), lines(&dropped)].concat(), lines(&source));
    copied.sort_unstable();
    all.sort_unstable();
    assert_eq!(copied, all);
    // A second pass keeps everything that the first one kept.
    let again = filter_file(&options(vec![kept], wide(&columns))).unwrap();
    assert_eq!((again.num_kept, again.num_dropped), (354, 0));
}

#[test]
fn parquet_rows() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tamis-data/tests/files/verl.parquet");
    let kept = folder.path().join("kept.parquet");
    let layout = long(&["extra_info.tags", "ability"], "extra_info.index");
    // A null tag cannot name a group.
    let error = filter_file(&options(vec![source.clone()], layout)).unwrap_err();
    assert!(error.to_string().ends_with("no value in the group column `extra_info.tags`"), "{error}");
    let summary = filter_file(&FilterOptions {
        filter: GroupFilter::Variance(Variance { tolerance: 100.0, singleton: Singleton::Drop }),
        dropped: Some(kept.clone()),
        scale: None,
        ..options(vec![source], long(&["data_source"], "extra_info.index"))
    })
    .unwrap();
    assert_eq!((summary.num_rows, summary.num_kept, summary.dropped.uniform), (10, 0, 1));
    assert_eq!(summary.pass_rate, None);
    assert_eq!(summary.outputs[0].num_rows, 10);
    let rows = tamis_data::records::Records::open(&kept).unwrap();
    assert_eq!(rows.map(Result::unwrap).count(), 10);
}

#[test]
fn rows_that_hold_a_list_are_groups() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "{\"r\": {\"acc\": [1, 0, 1, 1]}}\n{\"r\": {\"acc\": [0, 0.0, null]}}\n{\"r\": {\"acc\": [true, 1]}}\n";
    let input = write(&folder, "lists.jsonl", rows);
    let kept = folder.path().join("kept.jsonl");
    let summary =
        filter_file(&FilterOptions { kept: Some(kept.clone()), ..options(vec![input], long(&[], "r.acc")) })
            .unwrap();
    assert_eq!((summary.num_prompts, summary.num_trajectories, summary.num_kept), (3, 9, 1));
    assert_eq!((summary.dropped.all_wrong, summary.dropped.all_correct), (1, 1));
    assert_eq!(std::fs::read_to_string(kept).unwrap(), format!("{}\n", rows.lines().next().unwrap()));
    let refused = |second: &str| {
        let input = write(&folder, "bad.jsonl", &format!("{{\"acc\": [1, 0]}}\n{second}\n"));
        shown(&filter_file(&options(vec![input], long(&[], "acc"))).unwrap_err(), &folder)
    };
    insta::assert_snapshot!(refused("{\"acc\": 1}"), @"FOLDER/bad.jsonl, line 2: `acc` must be a list of \
         numbers, as in the first row, got the single value 1");
    insta::assert_snapshot!(refused("{\"acc\": []}"), @"FOLDER/bad.jsonl, line 2: `acc` must be a list of \
         numbers, as in the first row, got an empty one");
    insta::assert_snapshot!(refused("{}"), @"FOLDER/bad.jsonl, line 2: `acc` must be a list of numbers, as in the first row, got nothing");
    insta::assert_snapshot!(refused("{\"acc\": [1, \"0\"]}"), @r#"FOLDER/bad.jsonl, line 2: `acc[1]` must be a number, true, false or null, got the text "0""#);
}

#[test]
fn groups_do_not_reach_over_files() {
    let folder = tempfile::tempdir().unwrap();
    let one = write(&folder, "1.jsonl", "{\"group_id\": 1, \"acc\": 1}\n{\"group_id\": 1, \"acc\": 1}\n");
    let two = write(&folder, "2.jsonl", "{\"group_id\": 1, \"acc\": 0}\n{\"group_id\": 1, \"acc\": 0}\n");
    let summary = filter_file(&options(vec![one, two], long(&[], "acc"))).unwrap();
    assert_eq!((summary.num_prompts, summary.num_kept), (2, 0));
}

#[test]
fn what_cannot_be_filtered() {
    let folder = tempfile::tempdir().unwrap();
    let input = write(&folder, "rollouts.jsonl", ROWS);
    let mut text = String::new();
    // Errors that count as wrong usage.
    let mut is_usage = String::new();
    let mut refuse = |options: &FilterOptions| {
        let error = filter_file(options).unwrap_err();
        writeln!(text, "{}", shown(&error, &folder)).unwrap();
        if let Some(hint) = error.hint() {
            writeln!(text, "  hint: {}", shown(&hint, &folder)).unwrap();
        }
        is_usage.push(if error.kind() == FaultKind::Usage { 'u' } else { '.' });
    };
    let nested = write(
        &folder,
        "nested.jsonl",
        "{\"id\": 1, \"model\": {\"is_correct\": true, \"text\": \"x\"}, \"tags\": [1]}\n{\"id\": null, \"model\": {}}\n",
    );
    let on = |path: &PathBuf, layout: GroupLayout| options(vec![path.clone()], layout);
    refuse(&on(&input, long(&["uid"], "accuracy")));
    refuse(&on(&input, long(&["prompt"], "acc")));
    refuse(&on(&nested, long(&["id"], "is_correct")));
    refuse(&on(&nested, long(&[], "model.is_correct")));
    // Misspelt names are reported together. A metric that only a later row has does not count as missing.
    refuse(&on(&input, long(&["uud"], "accuracy")));
    refuse(&on(&nested, long(&["idd", "tag"], "model.correct")));
    refuse(&on(
        &write(&folder, "verl.jsonl", "{\"input\": \"a\"}\n{\"input\": \"b\", \"score\": 1}\n"),
        long(&[], "score"),
    ));
    refuse(&on(&write(&folder, "verl.jsonl", "{\"input\": \"a\", \"score\": 1}\n"), long(&[], "scores")));
    refuse(&on(&nested, long(&["id"], "model.is_correct")));
    refuse(&on(&nested, long(&["id"], "model")));
    refuse(&on(&nested, long(&["id"], "model.text")));
    refuse(&on(&nested, wide(&["tags"])));
    refuse(&on(&nested, wide(&["model.is_correct", "model.was_correct", "model.will_be"])));
    refuse(&on(&nested, wide(&[])));
    refuse(&on(&write(&folder, "empty.jsonl", "\n"), wide(&["x"])));
    refuse(&on(&write(&folder, "broken.jsonl", "{\"x\": 1}\n{\"x\": NaN}\n"), wide(&["x"])));
    refuse(&on(&folder.path().join("absent.jsonl"), wide(&["x"])));
    refuse(&options(vec![], wide(&["x"])));
    let good = on(&input, long(&["uid"], "acc"));
    let there = write(&folder, "there.jsonl", "precious");
    refuse(&FilterOptions { kept: Some(input.clone()), overwrite: true, ..good.clone() });
    refuse(&FilterOptions {
        dropped: Some(folder.path().join("./rollouts.jsonl")),
        overwrite: true,
        ..good.clone()
    });
    let same = folder.path().join("same.jsonl");
    refuse(&FilterOptions { kept: Some(same.clone()), dropped: Some(same), ..good.clone() });
    refuse(&FilterOptions { kept: Some(there.clone()), ..good.clone() });
    refuse(&FilterOptions { kept: Some(folder.path().join("no/folder.jsonl")), ..good.clone() });
    refuse(&FilterOptions { kept: Some(folder.path().join("kept.parquet")), ..good.clone() });
    let verl = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tamis-data/tests/files/verl.parquet");
    std::fs::copy(verl, folder.path().join("verl.parquet")).unwrap();
    refuse(&FilterOptions {
        dropped: Some(folder.path().join("dropped.json")),
        ..on(&folder.path().join("verl.parquet"), long(&["ability"], "extra_info.index"))
    });
    let filter = GroupFilter::Variance(Variance { tolerance: -1.0, singleton: Singleton::Keep });
    refuse(&FilterOptions { filter, ..good });
    assert_eq!(std::fs::read_to_string(there).unwrap(), "precious");
    insta::assert_snapshot!(is_usage, @"uu.uuuuu....uu..uuuuuu.uuu");
    insta::assert_snapshot!(text, @r#"
    FOLDER/rollouts.jsonl has no metric column `accuracy` (did you mean `acc`?); it has `uid`, `acc`, `n`
    FOLDER/rollouts.jsonl has no group column `prompt`; it has `uid`, `acc`, `n`
    FOLDER/nested.jsonl, line 2: no value in the group column `id`
      hint: a row without a group cannot be judged; remove such rows first
    FOLDER/nested.jsonl has no column that is known as a group (`group_id`, `uid`, `group`, `prompt_id`); it has `id`, `model.is_correct`, `model.text`, `tags`, `model`
      hint: name it with `--group COLUMN`; if each row holds a whole group, give `--metric` once for each of its columns
    FOLDER/rollouts.jsonl has no metric column `accuracy` (did you mean `acc`?) and no group column `uud` (did you mean `uid`?); it has `uid`, `acc`, `n`
    FOLDER/nested.jsonl has no metric column `model.correct` (did you mean `model.is_correct`?) and no group column `idd` (did you mean `id`?) and no group column `tag` (did you mean `tags`?); it has `id`, `model.is_correct`, `model.text`, `tags`, `model`
    FOLDER/verl.jsonl has no column that is known as a group (`group_id`, `uid`, `group`, `prompt_id`); it has `input`, `score`
      hint: name it with `--group COLUMN`; `--group input` puts rows of the same input together
    FOLDER/verl.jsonl has no metric column `scores` (did you mean `score`?) and no column that is known as a group (`group_id`, `uid`, `group`, `prompt_id`); it has `input`, `score`
      hint: name it with `--group COLUMN`; `--group input` puts rows of the same input together
    FOLDER/nested.jsonl, line 2: no value in the group column `id`
      hint: a row without a group cannot be judged; remove such rows first
    FOLDER/nested.jsonl, line 1: `model` must be a number, true, false or null, got an object with `is_correct`, `text`
    FOLDER/nested.jsonl, line 1: `model.text` must be a number, true, false or null, got the text "x"
    FOLDER/nested.jsonl, line 1: `tags` must be a number, true, false or null, got a list
    FOLDER/nested.jsonl has no metric column `model.was_correct` (did you mean `model.is_correct`?) and no metric column `model.will_be` (did you mean `model`?); it has `id`, `model.is_correct`, `model.text`, `tags`, `model`
    the wide layout needs at least one metric column
    FOLDER/empty.jsonl has no rows
    FOLDER/broken.jsonl, line 2: not valid JSON at column 7: `NaN` is not a JSON number; write null if there is no value (Python: json.dumps(row, allow_nan=False) refuses such numbers)
    failed to open FOLDER/absent.jsonl
      hint: name a JSONL or Parquet file
    no rollout file was given
    FOLDER/rollouts.jsonl is also an input; choose another output
    FOLDER/./rollouts.jsonl is also an input; choose another output
    FOLDER/same.jsonl is also the other output; choose another output
    FOLDER/there.jsonl exists already
      hint: `--overwrite` replaces it
    failed to write FOLDER/no/folder.jsonl
    FOLDER/kept.parquet would hold JSON lines, as FOLDER/rollouts.jsonl does
      hint: rows keep the format they come in: name it FOLDER/kept.jsonl
    FOLDER/dropped.json would hold Parquet, as FOLDER/verl.parquet does
      hint: rows keep the format they come in: name it FOLDER/dropped.parquet
    setting `tolerance` is -1; expected a finite number, 0 or more
    "#);
}

#[test]
fn ids_beyond_64_bits_are_no_groups() {
    let folder = tempfile::tempdir().unwrap();
    let rows = |first: &str, second: &str| {
        let text = format!("{{\"uid\": {first}, \"acc\": 1}}\n{{\"uid\": {second}, \"acc\": 0}}\n");
        filter_file(&options(vec![write(&folder, "ids.jsonl", &text)], long(&["uid"], "acc")))
    };
    let refused = |first: &str, second: &str| {
        let error = rows(first, second).unwrap_err();
        assert_eq!(error.kind(), FaultKind::Failed);
        format!("{}\n  hint: {}", shown(&error, &folder), error.hint().unwrap())
    };
    insta::assert_snapshot!(refused("1", "18446744073709551616"), @"
    FOLDER/ids.jsonl, line 2: the group column `uid` holds a number with more digits than are read (1.8446744073709552e19)
      hint: its last digits would be lost and groups merged; write such ids as text
    ");
    insta::assert_snapshot!(refused("[-9223372036854775809]", "1"), @"
    FOLDER/ids.jsonl, line 1: the group column `uid` holds a number with more digits than are read (-9.223372036854776e18)
      hint: its last digits would be lost and groups merged; write such ids as text
    ");
    let num_groups = |first: &str, second: &str| rows(first, second).unwrap().num_prompts;
    assert_eq!(num_groups("18446744073709551614", "18446744073709551615"), 2);
    assert_eq!(num_groups("-9223372036854775808", "-9223372036854775807"), 2);
    assert_eq!(num_groups("\"18446744073709551616\"", "\"18446744073709551617\""), 2);
    assert_eq!(num_groups("0.5", "0.5"), 1);
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_replaced() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let input = write(&folder, "rollouts.jsonl", ROWS);
    let path = |name: &str| folder.path().join(name);
    let _socket = std::os::unix::net::UnixListener::bind(path("socket.jsonl")).unwrap();
    std::fs::create_dir(path("folder.jsonl")).unwrap();
    symlink(path("absent.jsonl"), path("nowhere.jsonl")).unwrap();
    symlink("/dev/null", path("null.jsonl")).unwrap();
    let good = options(vec![input], long(&["uid"], "acc"));
    let mut text = String::new();
    for name in ["socket.jsonl", "folder.jsonl", "nowhere.jsonl", "null.jsonl"] {
        let before = path(name).symlink_metadata().unwrap().file_type();
        let here = Some(path(name));
        for (kept, dropped, overwrite) in [(here.clone(), None, true), (None, here, false)] {
            let error = filter_file(&FilterOptions { kept, dropped, overwrite, ..good.clone() }).unwrap_err();
            assert_eq!(error.kind(), FaultKind::Usage);
            if overwrite {
                writeln!(text, "{}\n  hint: {}", shown(&error, &folder), error.hint().unwrap()).unwrap();
            }
        }
        assert_eq!(path(name).symlink_metadata().unwrap().file_type(), before);
    }
    insta::assert_snapshot!(text, @"
    FOLDER/socket.jsonl is a pipe, a socket or a device, not a regular file
      hint: name a file, new or existing; leave the option out to write nothing
    FOLDER/folder.jsonl is a folder, not a regular file
      hint: name a file, new or existing; leave the option out to write nothing
    FOLDER/nowhere.jsonl is a broken link, not a regular file
      hint: name a file, new or existing; leave the option out to write nothing
    FOLDER/null.jsonl is a pipe, a socket or a device, not a regular file
      hint: name a file, new or existing; leave the option out to write nothing
    ");
    // A link stays a link: the file behind it is replaced, and only with `overwrite`.
    let file = write(&folder, "file.jsonl", "old");
    symlink(&file, path("link.jsonl")).unwrap();
    let through =
        |overwrite| filter_file(&FilterOptions { kept: Some(path("link.jsonl")), overwrite, ..good.clone() });
    assert!(through(false).unwrap_err().to_string().ends_with("link.jsonl exists already"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
    through(true).unwrap();
    assert!(path("link.jsonl").is_symlink());
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 2);
}

#[test]
fn pool_filters_compare_the_groups_of_all_files() {
    let folder = tempfile::tempdir().unwrap();
    let first = write(&folder, "a.jsonl", "{\"uid\": 1, \"r\": 0.0}\n{\"uid\": 1, \"r\": 1.0}\n");
    let second = write(
        &folder,
        "b.jsonl",
        "{\"uid\": 1, \"r\": 0.0}\n{\"uid\": 1, \"r\": 4.0}\n{\"uid\": 2, \"r\": 3.0}\n{\"uid\": 2, \"r\": 3.0}\n",
    );
    let filter = GroupFilter::TopK(TopK {
        k: Some(1),
        fraction: None,
        pool: Pool { include_zero: false, ..Pool::default() },
    });
    let layout = long(&["uid"], "r");
    let summary =
        filter_file(&FilterOptions { filter, scale: None, ..options(vec![first, second], layout) }).unwrap();
    insta::assert_snapshot!(summary, @"
    Filter statistics (top_k of r):
      - Total prompts: 3 (6 trajectories, 2 a prompt)
      - Dropped: 2 (66.7%)
          all wrong: 0 (0.0%)
          all correct: 0 (0.0%)
          other uniform: 1 (33.3%)
          outside pool: 1 (33.3%)
      - Kept (1 of the groups of each round, by the largest deviation, but not 0): 1 (33.3%)
      - Mean std: 0.833
      - Mean metric: 1.833
    ");
}

#[test]
fn members_that_are_not_chosen_are_dropped_rows() {
    let folder = tempfile::tempdir().unwrap();
    let rows = [0.1, 1.0, 0.0, 0.6].map(|r| format!("{{\"uid\": 1, \"r\": {r}}}\n"));
    let input = write(&folder, "a.jsonl", &rows.concat());
    let filter = GroupFilter::WithinGroup(WithinGroup { k: Some(3), fraction: None, include_zero: true });
    let kept = folder.path().join("kept.jsonl");
    let dropped = folder.path().join("dropped.jsonl");
    filter_file(&FilterOptions {
        filter,
        kept: Some(kept.clone()),
        dropped: Some(dropped.clone()),
        ..options(vec![input], long(&["uid"], "r"))
    })
    .unwrap();
    assert_eq!(std::fs::read_to_string(kept).unwrap(), rows[..3].concat());
    assert_eq!(std::fs::read_to_string(dropped).unwrap(), rows[3]);
}

/// If uniform groups compete in a selection, the summary counts the kept ones, and names dropped groups by
/// what they are.
#[test]
fn a_selection_of_uniform_groups() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = [[1, 0], [1, 1], [0, 0], [0, 0], [1, 1]]
        .iter()
        .enumerate()
        .flat_map(|(group, members)| members.map(|acc| format!("{{\"uid\": {group}, \"acc\": {acc}}}\n")))
        .collect();
    let input = write(&folder, "rollouts.jsonl", &rows);
    let filter = GroupFilter::TopK(TopK { k: Some(2), fraction: None, pool: Pool::default() });
    let summary =
        filter_file(&FilterOptions { filter, ..options(vec![input], long(&["uid"], "acc")) }).unwrap();
    let dropped = &summary.dropped;
    assert_eq!((dropped.all_wrong, dropped.all_correct, dropped.outside_pool), (2, 1, 0));
    let text = summary.to_string();
    let kept = "Kept (2 of the groups of each round, by the largest deviation): 2 (40.0%)\n      of these uniform: 1 (20.0%)";
    assert!(text.contains(kept), "{text}");
}

#[test]
fn metrics_whose_sum_no_double_holds_have_a_mean() {
    let rows = [("a", 1.7), ("a", 1.7), ("b", 1.5), ("b", -0.1), ("c", 1.7), ("c", -1.7)];
    let rows = rows.map(|(uid, acc)| format!("{{\"uid\": \"{uid}\", \"acc\": {acc}e308}}\n"));
    let summary = filtered(&rows.concat(), long(&["uid"], "acc"));
    // (1.7 + 1.7 + 1.5 - 0.1 + 1.7 - 1.7) / 6, and (0 + 0.8 + 1.7) / 3.
    let near = |value: Option<f64>, expected: f64| (value.unwrap() / expected - 1.0).abs() < 1e-12;
    assert!(near(summary.mean_metric, 0.8e308), "{:?}", summary.mean_metric);
    assert!(near(summary.mean_std, 0.25e308 / 0.3), "{:?}", summary.mean_std);
}

#[test]
fn ids_of_different_columns_and_sizes_are_not_taken_for_one() {
    let warnings = |rows: &str, columns: &[&str]| filtered(rows, long(columns, "a")).warnings;
    let row = |step: &str, prompt: &str| format!("{{\"step\": {step}, \"prompt\": {prompt}, \"a\": 0}}\n");
    assert!(warnings(&[row("1", "\"1\""), row("1", "\"2\"")].concat(), &["step", "prompt"]).is_empty());
    let texts =
        ["12345678901234567891", "12345678901234567892", "1e99", "1e98", "100000", "1e5", "nan", "inf"];
    let texts: String = texts.iter().map(|text| row("1", &format!("\"{text}\""))).collect();
    assert!(warnings(&texts, &["prompt"]).is_empty());
    let large = [row("1", "\"9223372036854775807\""), row("1", "9223372036854775807")].concat();
    let printed = warnings(&large, &["step", "prompt"]);
    assert_eq!(printed.len(), 1, "{printed:?}");
    assert!(printed[0].contains(": 1 ids in column `prompt`"), "{printed:?}");
    let both = [row("1", "\"7\""), row("\"1\"", "7.0")].concat();
    assert_eq!(warnings(&both, &["step", "prompt"]).len(), 2);
}

#[test]
fn group_ids_that_are_written_in_several_ways_are_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "{\"g\": 1, \"a\": 0}\n{\"g\": \"1\", \"a\": 1}\n{\"g\": 1.0, \"a\": 1}\n{\"g\": 2, \"a\": 1}\n{\"g\": \"2\", \"a\": 1}\n";
    let input = write(&folder, "mixed.jsonl", rows);
    let summary = filter_file(&options(vec![input], long(&["g"], "a"))).unwrap();
    assert_eq!(summary.num_prompts, 5);
    let [warning] = &summary.warnings[..] else { panic!("{:?}", summary.warnings) };
    insta::assert_snapshot!(shown(warning, &folder), @r#"FOLDER/mixed.jsonl: 2 ids in column `g` are written in more than one way, such as `"1"` and `1` and `1.0`: each way counts as a separate group; write them all as numbers or all as text"#);
    let plain = "{\"g\": 1, \"a\": 0}\n{\"g\": 1, \"a\": 1}\n{\"g\": \"x\", \"a\": 1}\n";
    assert!(filtered(plain, long(&["g"], "a")).warnings.is_empty());
}

/// A row as tamis writes it, with only the columns that matter here.
fn row_of_tamis(group: u32, reward: f64, num_tokens: usize, metric: &str, value: f64) -> String {
    let mask: Vec<bool> = (0..4).map(|token| token < num_tokens).collect();
    let row = serde_json::json!({
        "group_id": group, "loss_mask": mask, "format": value, "score_reward": reward, "reward": reward, "metric": metric,
        "metric_value": value, "verdict": "trained",
    });
    format!("{row}\n")
}

#[test]
fn metrics_of_a_configuration_are_found_in_the_rollouts_of_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = [(1, 0.5, 1, 2.0), (1, 1.0, 3, 2.0), (2, 1.0, 2, 3.0), (2, 1.0, 4, 4.0)]
        .map(|(group, reward, tokens, value)| row_of_tamis(group, reward, tokens, "seq_final_reward", value))
        .concat();
    let input = write(&folder, "step_1.jsonl", &rows);
    let mean = |metric: &str| {
        let summary = filter_file(&options(vec![input.clone()], long(&[], metric))).unwrap();
        (summary.num_kept, summary.mean_metric)
    };
    assert_eq!(mean("seq_reward"), mean("reward"));
    assert_eq!(mean("seq_reward"), (1, Some(0.875)));
    assert_eq!(mean("length"), (2, Some(2.5)));
    assert_eq!(mean("seq_final_reward"), (1, Some(2.75)));
    assert_eq!(mean("scores.format"), mean("seq_final_reward"));
    assert_eq!(mean("scores.reward"), mean("reward"));
    // A metric that the run did not measure is missing, and rows of other programs have only their columns as
    // metrics.
    for (file, metric) in [("step_1.jsonl", "entropy"), ("other.jsonl", "seq_reward")] {
        write(&folder, "other.jsonl", &rows.replace("verdict", "outcome"));
        let error = filter_file(&options(vec![folder.path().join(file)], long(&[], metric))).unwrap_err();
        let said = format!("FOLDER/{file} has no metric column `{metric}`");
        assert!(shown(&error, &folder).starts_with(&said), "{error}");
    }
}

/// verl's dumps have the prompt's text and no group id.
#[test]
fn a_prompt_that_comes_twice_makes_two_groups() {
    let folder = tempfile::tempdir().unwrap();
    let row = |input: &str, score: u8| format!("{{\"input\": \"{input}\", \"score\": {score}}}\n");
    let rows: String = [("a", 1), ("a", 1), ("a", 0), ("a", 0), ("b", 0), ("b", 0), ("c", 1), ("c", 1)]
        .map(|(input, score)| row(input, score))
        .concat();
    let input = write(&folder, "dump.jsonl", &rows);
    let summary = filter_file(&options(vec![input], long(&["input"], "score"))).unwrap();
    assert_eq!((summary.num_prompts, summary.num_kept, summary.max_group_size), (4, 0, 2), "none is mixed");
    assert_eq!((summary.dropped.all_correct, summary.dropped.all_wrong), (2, 2));
    insta::assert_snapshot!(shown(&summary.warnings[0], &folder), @"FOLDER/dump.jsonl: 1 value of `input` occurred more than once: every 2 rows of one count as a group, in the order of the file; name a column with a group id if there is one");
    // Missing rows look like repeated prompts.
    let input = write(&folder, "uneven.jsonl", &(row("a", 1) + &row("a", 0) + &row("b", 1)));
    let summary = filter_file(&options(vec![input.clone()], long(&["input"], "score"))).unwrap();
    insta::assert_snapshot!(shown(&summary.warnings[0], &folder), @"FOLDER/uneven.jsonl: values of `input` have 1 to 2 rows: repeated prompts count as one group, or rows are missing; name a column with a group id if there is one");
    // A group of one is kept, but not because of its members' scores.
    let text = summary.to_string();
    assert!(text.contains("Kept (groups with max > min, and groups of one): 2 (100.0%)\n      of these groups of one: 1 (50.0%)"), "{text}");
}

/// A list longer than a row may be costs nothing in a column that no filter reads.
#[test]
fn of_parquet_the_columns_that_are_needed_are_read() {
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tamis-data/tests/files/long_list.parquet");
    let summary = filter_file(&options(vec![input.clone()], long(&["uid"], "acc"))).unwrap();
    assert_eq!((summary.num_rows, summary.num_prompts), (1, 1));
    let error = filter_file(&options(vec![input], long(&["uid"], "other"))).unwrap_err();
    assert!(error.to_string().contains("a row has more than 8388608 values in column `other"), "{error}");
}
