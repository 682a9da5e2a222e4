//! Reads files that TRL 1.16, verl 0.9.1 and verifiers 0.4.0 and 0.3.1 wrote (tests/other_runs/make.py).

use std::fs;

use serde_json::json;
use tamis_data::columns::ColumnFile;

use super::*;
use crate::advise::{AdvicePlan, read, read_with_notes};
use crate::filter::{FilterOptions, FilterSummary, GroupLayout, filter_file};
use crate::monitor::summary::WatchedState;
use crate::monitor::{LogFormat, Watch};
use crate::rollouts::{self, RolloutQuery};

fn made(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/other_runs").join(name)
}

fn found(path: &Path) -> OtherRun {
    OtherRun::find(path).unwrap().expect("a run of another trainer")
}

/// A copy that a test may change.
fn copy(name: &str) -> tempfile::TempDir {
    fn copy_into(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for path in entries(from) {
            let target = to.join(path.file_name().unwrap());
            if path.is_dir() {
                copy_into(&path, &target);
            } else {
                fs::copy(&path, &target).unwrap();
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    copy_into(&made(name), folder.path());
    folder
}

fn numbers(run: &OtherRun, step: u64, column: &str) -> Vec<f64> {
    let columns = ColumnFile::open(&run.rollouts(step).unwrap().unwrap()).unwrap();
    columns
        .numbers(column, None)
        .unwrap()
        .unwrap()
        .rows()
        .map(|row| row.first().copied().unwrap_or(f64::NAN))
        .collect()
}

fn options(input: PathBuf, metric: &str, kept: Option<PathBuf>) -> FilterOptions {
    let layout = GroupLayout::Long { group_by: Vec::new(), metric: metric.to_owned() };
    let filter = serde_json::from_value(json!({"kind": "variance"})).unwrap();
    FilterOptions { inputs: vec![input], layout, filter, scale: None, kept, dropped: None, overwrite: true }
}

fn filtered(input: PathBuf, metric: &str, kept: Option<PathBuf>) -> FilterSummary {
    filter_file(&options(input, metric, kept)).unwrap()
}

/// Groups, and how many of them a filter on a metric keeps.
fn num_kept(input: PathBuf, metric: &str, kept: Option<PathBuf>) -> (usize, usize) {
    let summary = filtered(input, metric, kept);
    (summary.num_prompts, summary.num_kept)
}

fn query(source: PathBuf) -> RolloutQuery {
    RolloutQuery { source, step: None, verdict: None, group: None, prompt: None, limit: 9 }
}

/// Changes the state of a copied folder of TRL.
fn edit_state(folder: &tempfile::TempDir, change: impl FnOnce(&mut Value)) {
    let state = folder.path().join("checkpoint-6/trainer_state.json");
    let mut known: Value = serde_json::from_str(&fs::read_to_string(&state).unwrap()).unwrap();
    change(&mut known);
    fs::write(&state, known.to_string()).unwrap();
}

/// Leaves of a state what was known after a step.
fn cut_after(known: &mut Value, step: u64) {
    known["log_history"].as_array_mut().unwrap().retain(|entry| entry["step"].as_u64() <= Some(step));
    known["global_step"] = step.into();
}

fn advice(path: &Path, metric: Option<&str>) -> (String, Vec<String>) {
    let (evidence, notes) = read_with_notes(path, None, metric, &AdvicePlan::default()).unwrap();
    (crate::advise::advise("x", &evidence, &AdvicePlan::default()).to_string(), notes)
}

#[test]
fn rows_under_several_steps_count_once_and_evaluations_not_at_all() {
    let run = found(&made("trl"));
    // Steps 1 to 3 train on one batch, 4 to 6 on another, and evaluations overwrote the files of 3 and 6.
    assert_eq!(run.steps().collect::<Vec<_>>(), [1, 4]);
    assert_eq!(run.total_steps(), Some(6));
    assert_eq!(
        run.notes(),
        [
            "of 6 files of completions 2 count: 2 repeat the rows of the step before; 2 hold an evaluation, which overwrote the rows of its step"
        ]
    );
    // 24 rows in groups of 4, with all scores and the reward, which is their plain sum.
    let groups = numbers(&run, 1, "group_id");
    assert_eq!(groups, (0..24).map(|row| f64::from(row / 4)).collect::<Vec<_>>());
    let (exact, length) = (numbers(&run, 1, "exact"), numbers(&run, 1, "length"));
    let sums: Vec<f64> = exact.iter().zip(&length).map(|(one, other)| one + other).collect();
    assert_eq!(numbers(&run, 1, "reward"), sums);
    assert_eq!(numbers(&run, 4, "sample_index")[..5], [0.0, 1.0, 2.0, 3.0, 0.0]);
    // Also found from the completions, from a checkpoint, or from only the state.
    assert_eq!(found(&made("trl/completions")).steps().collect::<Vec<_>>(), [1, 4]);
    for alone in ["trl/checkpoint-6", "trl/checkpoint-6/trainer_state.json"] {
        let run = found(&made(alone));
        assert_eq!(run.steps().count(), 0);
        let note = run.notes().pop().unwrap();
        assert!(note.starts_with("its completions are in the folder around it"), "{note}");
    }
}

#[test]
fn an_evaluation_that_is_due_after_the_last_state_is_none_of_training() {
    let folder = copy("trl-chat");
    edit_state(&folder, |known| cut_after(known, 4));
    let mut run = found(folder.path());
    assert_eq!(run.steps().collect::<Vec<_>>(), [1, 2, 4, 5], "6 is a multiple of `eval_steps`");
    assert!(run.notes()[0].starts_with("the newest `trainer_state.json` is of step 4"), "{:?}", run.notes());
    // Steps that are missing in the log get their figures from their rows.
    run.make_metrics().unwrap();
    let metrics = fs::read_to_string(run.folder().join(METRICS)).unwrap();
    let last: Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    let rewards = numbers(&run, 5, "reward");
    assert_eq!(last["step"], 5);
    assert!((last["critic/score/mean"].as_f64().unwrap() - rewards.iter().sum::<f64>() / 8.0).abs() < 1e-12);
    assert_eq!(last["all/critic/score/mean"], last["critic/score/mean"]);
}

#[test]
fn a_state_that_is_half_written_is_left_out() {
    let folder = copy("trl");
    let newer = folder.path().join("checkpoint-9");
    fs::create_dir(&newer).unwrap();
    fs::write(newer.join("trainer_state.json"), "{\"global_step\": 9, \"log_hist").unwrap();
    let run = found(folder.path());
    assert_eq!(run.steps().collect::<Vec<_>>(), [1, 4]);
    let note = &run.notes()[0];
    assert!(note.contains("checkpoint-9/trainer_state.json: not a JSON object"), "{note}");
    fs::remove_dir_all(folder.path().join("checkpoint-6")).unwrap();
    let refused = OtherRun::find(folder.path()).unwrap_err();
    assert!(refused.to_string().contains("checkpoint-9/trainer_state.json"), "{refused}");
    assert!(refused.hint().unwrap().contains("name the folder of another one"));
}

#[test]
fn weights_that_nobody_wrote_down_leave_the_reward_out() {
    let folder = copy("trl");
    edit_state(&folder, |known| {
        for entry in known["log_history"].as_array_mut().unwrap() {
            if let Some(reward) = entry.get("reward").and_then(Value::as_f64) {
                entry["reward"] = (reward / 2.0).into();
            }
        }
    });
    let run = found(folder.path());
    assert!(numbers(&run, 1, "reward").iter().all(|reward| reward.is_nan()));
    assert!(run.notes().last().unwrap().contains("`reward` is left out"), "{:?}", run.notes());
    // So may a single function.
    edit_state(&folder, |known| {
        for entry in known["log_history"].as_array_mut().unwrap() {
            entry.as_object_mut().unwrap().remove("rewards/length/mean");
            if let Some(mean) = entry.get("rewards/exact/mean").and_then(Value::as_f64) {
                entry["reward"] = (2.0 * mean + 1.0).into();
            }
        }
    });
    assert!(numbers(&found(folder.path()), 4, "reward").iter().all(|reward| reward.is_nan()));
    // Without any state, two numeric columns may be anything.
    fs::remove_dir_all(folder.path().join("checkpoint-6")).unwrap();
    let run = found(folder.path());
    assert!(run.notes().iter().any(|note| note.contains("how they add up")), "{:?}", run.notes());
    assert!(run.notes()[0].contains("of evaluations cannot be recognised"), "{:?}", run.notes());
}

#[test]
fn messages_are_text_and_logged_columns_are_no_scores() {
    let some = |source| RolloutQuery { step: Some(4), group: Some(1), limit: 2, ..query(source) };
    let view = rollouts::read(&some(made("trl-chat"))).unwrap();
    assert!(view.file.ends_with("trl-chat/completions/completions_00004.parquet"), "{:?}", view.file);
    assert_eq!((view.num_trajectories, view.num_matching, view.rows.len()), (8, 4, 2));
    let shown = view.to_string();
    assert!(shown.contains("  prompt      user: q0") && shown.contains("  completion  "), "{shown}");
    assert!(shown.contains("reward ") && shown.contains("exact ") && shown.contains("first "), "{shown}");
    let refused = rollouts::read(&RolloutQuery { step: Some(3), ..some(made("trl-chat")) }).unwrap_err();
    assert!(refused.to_string().ends_with("saved are those of steps 1 to 2, 4 to 5"), "{refused}");
    // A single file too.
    let file = made("trl-chat/completions/completions_00001.parquet");
    let shown = rollouts::read(&query(file)).unwrap().to_string();
    assert!(shown.contains("  prompt      user: q0"), "{shown}");
}

#[test]
fn texts_of_messages() {
    assert_eq!(text_of(&json!("a")), Some("a".to_owned()));
    assert_eq!(text_of(&json!([{"role": "assistant", "content": "4"}])), Some("4".to_owned()));
    let turns = json!([
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "add"}}]},
        {"role": "tool", "content": [{"type": "text", "text": "4"}]},
    ]);
    assert_eq!(text_of(&turns), Some("assistant: [{\"function\":{\"name\":\"add\"}}]\ntool: 4".to_owned()));
    for none in [json!([]), json!([1]), json!(null), json!([{"role": "user"}])] {
        assert_eq!(text_of(&none), None);
    }
}

#[test]
fn what_verl_dumped() {
    let run = found(&made("verl"));
    assert_eq!((run.system(), run.steps().collect::<Vec<_>>()), ("verl", vec![1, 2]));
    // Keys of rows are not groups, and a rollout's last output has its score.
    assert_eq!(numbers(&run, 1, "group_id"), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
    assert_eq!(numbers(&run, 1, "reward"), [1.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    let kept = tempfile::tempdir().unwrap();
    let file = kept.path().join("kept.jsonl");
    assert_eq!(num_kept(made("verl"), "score", Some(file.clone())), (6, 2));
    // Both outputs of the last rollout, unchanged.
    let rows = fs::read_to_string(&file).unwrap();
    assert_eq!(rows.lines().filter(|row| row.contains("s1-2_")).count(), 3);
    assert_eq!(rows.lines().count(), 5);
    // In a single file too, they are one member.
    let (told, _) = advice(&made("verl/1.jsonl"), Some("score"));
    assert!(told.contains("3 groups of 2"), "{told}");
}

#[test]
fn verls_older_dumps_name_no_group() {
    let folder = tempfile::tempdir().unwrap();
    let rows = |step: u64| -> String {
        let row = |input: &str, score: f64| json!({"input": input, "output": "x", "gts": null, "score": score, "step": step, "acc": score > 0.0});
        // One prompt was drawn twice: a group of right answers and one of wrong ones.
        let rows = [("a", 1.0), ("b", 0.0), ("a", 1.0), ("b", 1.0), ("a", 0.0), ("a", 0.0)];
        rows.iter().map(|(input, score)| row(input, *score).to_string() + "\n").collect()
    };
    for step in [9, 10] {
        fs::write(folder.path().join(format!("{step}.jsonl")), rows(step)).unwrap();
    }
    let run = found(folder.path());
    assert_eq!(run.steps().collect::<Vec<_>>(), [9, 10]);
    assert_eq!(numbers(&run, 9, "group_id"), [0.0, 1.0, 0.0, 1.0, 2.0, 2.0]);
    assert_eq!(numbers(&run, 9, "acc"), [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(num_kept(folder.path().join("9.jsonl"), "score", None), (3, 1));
    // A folder with other programs' files of rows is no run.
    fs::write(folder.path().join("1.jsonl"), "{\"input\": \"a\"}\n").unwrap();
    assert!(OtherRun::find(folder.path()).unwrap().is_none());
}

#[test]
fn a_folder_of_trl_is_filtered_without_naming_groups() {
    let summary = filtered(made("trl"), "exact", None);
    assert_eq!(summary.num_prompts, 12);
    assert!(summary.warnings[0].contains("of 6 files of completions 2 count"), "{:?}", summary.warnings);
}

#[test]
fn advice_of_completions_and_of_the_log_alone() {
    let (told, _) = advice(&made("trl"), Some("exact"));
    assert!(told.contains("12 groups"), "{told}");
    let state = made("trl/checkpoint-6/trainer_state.json");
    let (told, _) = advice(&state, None);
    let log: Value = serde_json::from_str(&fs::read_to_string(&state).unwrap()).unwrap();
    let share = |entry: &Value| entry["frac_reward_zero_std"].as_f64();
    let shares: Vec<f64> = log["log_history"].as_array().unwrap().iter().filter_map(share).collect();
    let keep = 100.0 * (1.0 - shares.iter().sum::<f64>() / shares.len() as f64);
    assert!(told.contains(&format!("{keep:.1}%")), "{keep} in {told}");
}

#[test]
fn a_run_is_followed_while_trl_goes_on() {
    let folder = copy("trl");
    let state = folder.path().join("checkpoint-6/trainer_state.json");
    let whole = fs::read_to_string(&state).unwrap();
    edit_state(&folder, |known| cut_after(known, 3));
    let mut watch = Watch::open(folder.path()).unwrap();
    watch.check_understood().unwrap();
    let before = watch.summary();
    // The file of step 4 exists, and its figures come from its rows.
    assert_eq!((before.step, before.total_steps, before.state), (Some(4), Some(6), WatchedState::Unknown));
    assert_eq!(before.validation.as_ref().map(|course| course.metric.as_str()), Some("eval_reward"));
    fs::write(&state, "{\"global_step\": 6, \"log_h").unwrap();
    watch.follow().unwrap();
    assert_eq!(watch.summary().step, Some(4), "half a file says nothing new");
    fs::write(&state, whole).unwrap();
    watch.follow().unwrap();
    let after = watch.summary();
    assert_eq!((after.step, after.state, after.num_steps), (Some(6), WatchedState::Finished, 6));
    assert_eq!(after.formats, [LogFormat::Trl]);
    assert_eq!(after.reward.unwrap().metric, "all/critic/score/mean");
}

#[test]
fn what_another_run_or_a_kill_left_is_no_part_of_it() {
    let folder = copy("trl-chat");
    let at = |step: u64| folder.path().join(format!("completions/completions_{step:05}.parquet"));
    // A run an hour ago reached step 9.
    let earlier = SystemTime::now() - std::time::Duration::from_secs(3600);
    let age = |path: &Path| File::options().write(true).open(path).unwrap().set_modified(earlier).unwrap();
    fs::copy(at(5), at(9)).unwrap();
    age(&at(9));
    let old = folder.path().join("checkpoint-9");
    fs::create_dir(&old).unwrap();
    let state = fs::read_to_string(folder.path().join("checkpoint-6/trainer_state.json")).unwrap();
    let state = state.replacen("\"global_step\": 6", "\"global_step\": 9", 1);
    fs::write(old.join("trainer_state.json"), state).unwrap();
    age(&old.join("trainer_state.json"));
    // This one was killed while it wrote step 7.
    fs::write(at(7), &fs::read(at(5)).unwrap()[..4000]).unwrap();
    let run = found(folder.path());
    assert_eq!(run.steps().collect::<Vec<_>>(), [1, 2, 4, 5]);
    let notes = run.notes().join("\n");
    assert!(notes.starts_with("1 checkpoint of later steps is older"), "{notes}");
    assert!(notes.contains("1 are older than that of an earlier step"), "{notes}");
    assert!(notes.contains("1 cannot be read (half written?)"), "{notes}");
    // Only files that cannot be read are errors.
    for step in 1..=9 {
        let _ = fs::write(at(step), "PAR1");
    }
    assert!(OtherRun::find(folder.path()).is_err());
}

#[test]
fn a_sieve_left_completions_of_kept_groups_alone() {
    let folder = copy("trl");
    let state = folder.path().join("checkpoint-6/trainer_state.json");
    let text = fs::read_to_string(&state).unwrap();
    let counts = "\"groups/generated\": 10, \"groups/dropped\": 8, \"train/num_kept_prompts\": 2, \"reward\"";
    fs::write(&state, text.replace("\"reward\"", counts)).unwrap();
    let run = found(folder.path());
    assert!(run.is_sieved());
    assert!(run.notes().iter().any(|note| note.contains("only those of kept groups")), "{:?}", run.notes());
    let (told, _) = advice(folder.path(), None);
    assert!(told.contains("20.0% of groups"), "{told}");
}

#[test]
fn rows_of_verl_that_are_not_json_or_not_there() {
    let folder = copy("verl");
    let first = folder.path().join("1.jsonl");
    let text = fs::read_to_string(&first).unwrap();
    let not_finite = "\"score\": NaN, \"extra\": Infinity";
    fs::write(&first, text.replacen("\"score\": 1.0", not_finite, 1)).unwrap();
    fs::write(folder.path().join("0.jsonl"), "").unwrap();
    fs::write(folder.path().join("3.jsonl"), &text[..text.len() - 5]).unwrap();
    let mut run = found(folder.path());
    assert_eq!(run.steps().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(run.notes()[0], "2 of 4 files are empty or end in half a row: left out");
    assert!(numbers(&run, 1, "reward")[0].is_nan() && numbers(&run, 1, "extra")[0].is_infinite());
    run.make_metrics().unwrap();
    // The error about a bad row names its line. A folder whose first row is bad is not verl's.
    fs::write(&first, text.clone() + "x\n").unwrap();
    let refused = found(folder.path()).rollouts(1).unwrap_err().to_string();
    assert!(refused.contains("1.jsonl, line 8: not a JSON object"), "{refused}");
    fs::write(&first, text.replacen('{', "[", 1)).unwrap();
    assert!(OtherRun::find(folder.path()).unwrap().is_none());
    // Validations have a step 0.
    fs::write(folder.path().join("0.jsonl"), text).unwrap();
    let run = found(folder.path());
    assert!(run.notes().last().unwrap().contains("trainer.validation_data_dir"), "{:?}", run.notes());
}

#[test]
fn what_is_no_run_of_another_trainer() {
    let folder = tempfile::tempdir().unwrap();
    assert!(OtherRun::find(folder.path()).unwrap().is_none());
    assert!(OtherRun::find(&folder.path().join("absent")).unwrap().is_none());
    // A run of ours inside TRL's folder, beside TRL's own files (`record=OUT`), stays ours.
    let ours = copy("trl");
    // A configuration beside these makes it none of ours.
    fs::write(ours.path().join("config.yaml"), "a: 1\n").unwrap();
    assert_eq!(found(ours.path()).steps().collect::<Vec<_>>(), [1, 4]);
    fs::write(ours.path().join(METRICS), "{\"step\": 1}\n").unwrap();
    assert!(OtherRun::find(ours.path()).unwrap().is_none());
}

#[test]
fn a_reward_function_may_be_called_as_a_column_that_is_no_score() {
    let (told, _) = advice(&made("trl"), Some("length"));
    assert!(told.contains("12 groups"), "{told}");
    // Its own file as well, and a JSON file of any program.
    let file = made("trl/completions/completions_00001.parquet");
    assert!(advice(&file, Some("scores.length")).0.contains("6 groups"));
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.jsonl");
    let row = |group: u64, rank: u64| json!({"group": group, "rank": rank, "score": 1}).to_string() + "\n";
    fs::write(&rows, (0..8).map(|place| row(place / 2, place % 2)).collect::<String>()).unwrap();
    assert!(advice(&rows, Some("rank")).0.contains("100.0%"), "{}", advice(&rows, Some("rank")).0);
}

#[test]
fn filter_knows_the_reward_that_the_others_know() {
    let rewards: Vec<f64> =
        [1, 4].iter().flat_map(|step| numbers(&found(&made("trl")), *step, "reward")).collect();
    let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
    let summary = filtered(made("trl"), "reward", None);
    assert!((summary.mean_metric.unwrap() - mean).abs() < 1e-12, "{summary}");
    // verl's total has two names.
    for name in ["reward", "score"] {
        assert_eq!(num_kept(made("verl/1.jsonl"), name, None), (3, 1), "{name}");
        assert!(advice(&made("verl"), Some(name)).0.contains("6 groups"), "{name}");
    }
    // It is unknown how the scores of a single file add up.
    let file = made("trl/completions/completions_00001.parquet");
    let refused = filter_file(&options(file, "reward", None)).unwrap_err().to_string();
    assert!(refused.ends_with("has no metric column `reward`; it has `exact`, `length`"), "{refused}");
}

#[test]
fn a_score_of_verl_that_is_no_number_is_unscored_for_filter_too() {
    let folder = copy("verl");
    let first = folder.path().join("1.jsonl");
    let text = fs::read_to_string(&first).unwrap().replacen("\"score\": 1.0", "\"score\": NaN", 1);
    fs::write(&first, &text).unwrap();
    for input in [first, folder.path().to_owned()] {
        let kept = tempfile::tempdir().unwrap();
        let kept = kept.path().join("kept.jsonl");
        assert_eq!(filtered(input, "score", Some(kept.clone())).num_unscored_trajectories, 1);
        let kept = fs::read_to_string(kept).unwrap();
        assert!(kept.lines().count() >= 3 && kept.lines().take(3).all(|row| text.contains(row)), "{kept}");
    }
}

#[test]
fn a_uid_that_looks_like_the_key_of_a_row_names_a_group() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("1.jsonl");
    let write = |rows: &[(&str, &str)]| {
        let row = |(uid, input): &(&str, &str)| {
            json!({"uid": uid, "input": input, "output": "x", "score": 1, "step": 1}).to_string() + "\n"
        };
        fs::write(&file, rows.iter().map(row).collect::<String>()).unwrap();
        let run = found(folder.path());
        numbers(&run, 1, "group_id")
    };
    // Two rows of each of two groups, and one row of each of three prompts.
    assert_eq!(
        write(&[("math_0_3", "a"), ("math_0_4", "b"), ("math_0_3", "a"), ("math_0_4", "b")]),
        [0.0, 1.0, 0.0, 1.0]
    );
    assert_eq!(write(&[("math_0_3", "a"), ("math_0_4", "b"), ("code_0_4", "c")]), [0.0, 1.0, 2.0]);
    // Keys: of one prompt; of two prompts that an environment drew, under a UUID; of outputs in any order.
    assert_eq!(write(&[("m_0_0", "a"), ("m_1_0", "a"), ("n_0_0", "b")]), [0.0, 0.0, 1.0]);
    let uuid = "7d444840-9dc0-11d1-b245-5ffdce74fad2";
    let keys = [0, 1].map(|rollout| format!("{uuid}_{rollout}_0"));
    assert_eq!(write(&[(&keys[0], "a"), (&keys[1], "b")]), [0.0, 0.0]);
    assert_eq!(write(&[("m_0_0", "a"), ("m_1_0", "b")]), [0.0, 1.0], "without one they are two groups");
    assert_eq!(write(&[("m_0_1", "a then c"), ("m_0_0", "a"), ("m_1_0", "a")]), [0.0, 0.0]);
    let shown = rollouts::read(&query(folder.path().to_owned())).unwrap();
    assert_eq!(shown.rows.iter().map(|row| row["prompt"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "a"]);
}

#[test]
fn rows_of_one_prompt_that_cannot_be_cut_are_told() {
    let folder = tempfile::tempdir().unwrap();
    for (step, inputs) in [(1, "aabbb"), (2, "aabbbb"), (3, "aabb")] {
        let row =
            |input: char| json!({"input": input, "output": "x", "score": 1, "step": step}).to_string() + "\n";
        fs::write(folder.path().join(format!("{step}.jsonl")), inputs.chars().map(row).collect::<String>())
            .unwrap();
    }
    let told = "1 of its files: prompts have 2 to 3 rows there, so a repeated prompt counts as one group";
    let has_it = |notes: &[String]| notes.iter().filter(|note| note.contains(told)).count();
    assert_eq!(has_it(&advice(folder.path(), None).1), 1);
    assert_eq!(has_it(&filtered(folder.path().to_owned(), "score", None).warnings), 1);
    assert_eq!(has_it(&Watch::open(folder.path()).unwrap().summary().notes), 1);
    let options = crate::report::PageOptions {
        runs: vec![folder.path().to_owned()],
        steps: crate::report::StepRange::ALL,
        num_samples: None,
        title: None,
    };
    let page = crate::report::page(&options).unwrap();
    assert_eq!(has_it(&page.notes.into_iter().map(|(_, note)| note).collect::<Vec<_>>()), 1);
    // `rollouts` reads one step.
    for (step, number) in [(1, 1), (2, 0)] {
        let of_step = RolloutQuery { step: Some(step), ..query(folder.path().to_owned()) };
        assert_eq!(has_it(&rollouts::read(&of_step).unwrap().notes), number);
    }
}

#[test]
fn a_single_file_of_several_steps_keeps_them_apart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.jsonl");
    let row = |step: u64, score: u64| {
        json!({"input": "a", "output": "x", "score": score, "step": step}).to_string() + "\n"
    };
    fs::write(&file, [row(3, 0), row(3, 1), row(7, 0), row(7, 0)].concat()).unwrap();
    assert_eq!(num_kept(file.clone(), "score", None), (2, 1));
    let range = "7".parse().unwrap();
    let groups = read(&file, Some(range), None, &AdvicePlan::default()).unwrap();
    let told = crate::advise::advise("x", &groups, &AdvicePlan::default()).to_string();
    assert!(told.contains("1 group of 2"), "{told}");
}

#[test]
fn an_evaluation_of_verifiers() {
    for (name, file, members) in [
        ("verifiers", "traces.jsonl", [0, 1, 0, 0, 1, 1]),
        ("verifiers-results", "results.jsonl", [0, 0, 0, 1, 1, 1]),
    ] {
        for path in [made(name), made(name).join(file)] {
            let run = found(&path);
            assert_eq!((run.system(), run.steps().collect::<Vec<_>>()), ("verifiers", vec![1]));
            assert_eq!(run.notes(), ["an evaluation has no steps: all of it is shown as step 1"]);
            assert_eq!(numbers(&run, 1, "group_id"), members.map(f64::from), "a task's rollouts are a group");
            // 1 * exact + 0.1 * brief; the last rollout failed.
            let rewards = numbers(&run, 1, "reward");
            assert!((rewards[0] - 1.05).abs() < 1e-12 && rewards[5].is_nan(), "{rewards:?}");
            assert_eq!(numbers(&run, 1, "exact").iter().filter(|score| **score > 0.5).count(), 2);
            assert_eq!(numbers(&run, 1, "brief")[..2], [0.5, 0.5]);
            assert!(numbers(&run, 1, "num_tokens")[0] >= 2.0);
            let failed = RolloutQuery { verdict: Some("failed".to_owned()), group: Some(1), ..query(path) };
            let view = rollouts::read(&failed).unwrap();
            assert_eq!((view.num_trajectories, view.num_matching), (6, 1));
            assert_eq!(view.verdicts, [("finished".to_owned(), 5), ("failed".to_owned(), 1)]);
        }
    }
    // Tool turns are printed, the judge's trace does not belong to the policy, and a truncated end is
    // reported.
    let view = rollouts::read(&RolloutQuery { group: Some(0), ..query(made("verifiers")) }).unwrap();
    let of = |row: usize, column: &str| view.rows[row][column].as_str().unwrap().to_owned();
    assert_eq!(of(0, "prompt"), "system: Add.\nuser: 0 + 1?");
    assert_eq!(["completion", "ground_truth", "finish_reason"].map(|name| of(0, name)), ["1", "1", "stop"]);
    assert_eq!(of(1, "completion"), "assistant: I count.\ntool: on fingers\nassistant: 0");
    assert_eq!(of(2, "finish_reason"), "length");
    // Two groups, one of them kept: three of the lines, unchanged.
    let kept = tempfile::tempdir().unwrap();
    let file = kept.path().join("kept.jsonl");
    let summary = filtered(made("verifiers"), "exact", Some(file.clone()));
    assert_eq!((summary.num_prompts, summary.num_kept, summary.num_unscored_trajectories), (2, 1, 1));
    let whole = fs::read_to_string(made("verifiers/traces.jsonl")).unwrap();
    let rows = fs::read_to_string(&file).unwrap();
    assert_eq!(rows.lines().collect::<Vec<_>>(), [0, 2, 3].map(|line| whole.lines().nth(line).unwrap()));
    let told = advice(&made("verifiers"), None).0;
    assert!(told.contains("2 groups"), "{told}");
    let watched = Watch::open(&made("verifiers")).unwrap().summary();
    assert_eq!((watched.step, watched.formats), (Some(1), vec![LogFormat::Verifiers]));
}

#[test]
fn groups_of_prime_rl_end_in_a_step_and_may_begin_in_an_earlier_one() {
    for path in [made("prime-rl"), made("prime-rl/rollouts")] {
        let run = found(&path);
        assert_eq!((run.system(), run.steps().collect::<Vec<_>>()), ("prime-rl", vec![1, 2, 3]));
        assert_eq!(run.notes()[1], "step 3 is not done: its groups may lack rollouts");
        assert_eq!(numbers(&run, 1, "group_id"), [0.0, 0.0]);
        assert_eq!(numbers(&run, 2, "group_id"), [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(numbers(&run, 2, "exact"), [1.0, 0.0, 0.0, 0.0]);
        // Prompts keep their number over steps: groups a and c have the same task.
        assert_eq!(numbers(&run, 1, "prompt_id"), numbers(&run, 2, "prompt_id")[2..]);
    }
    let kept = tempfile::tempdir().unwrap();
    let file = kept.path().join("kept.jsonl");
    assert_eq!(num_kept(made("prime-rl"), "reward", Some(file.clone())), (4, 2));
    let rows = fs::read_to_string(&file).unwrap();
    // The unfinished group has one rollout, so nothing in it can differ.
    let of = |group: &str| rows.lines().filter(|row| row.contains(group)).count();
    assert_eq!((of("group-b"), of("group-d"), rows.lines().count()), (2, 1, 3));
    // prime-rl's own figures for steps that it logged, and figures from rows for the others.
    let watched = Watch::open(&made("prime-rl")).unwrap().summary();
    assert_eq!((watched.step, watched.formats), (Some(3), vec![LogFormat::PrimeRl]));
    let mut run = found(&made("prime-rl"));
    run.make_metrics().unwrap();
    let metrics = fs::read_to_string(run.folder().join(METRICS)).unwrap();
    let rows: Vec<Value> = metrics.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    assert_eq!(rows[0]["all/critic/score/mean"], 1.05);
    assert_eq!(rows[0]["entropy/all/mean"], 0.5);
    assert_eq!(rows[1]["all/frac_reward_zero_std"], 0.5);
    assert_eq!(rows[1].get("critic/score/mean"), None, "which of them were trained on is not known");
    let (told, _) = advice(&made("prime-rl"), Some("exact"));
    assert!(told.contains("4 groups"), "{told}");
}

#[test]
fn traces_of_other_versions_and_half_written_ones() {
    let folder = tempfile::tempdir().unwrap();
    let step = folder.path().join("rollouts/step_5/train/all");
    fs::create_dir_all(&step).unwrap();
    // Single traces with a group of their own, as older versions of prime-rl saved them. Scores may be bare
    // numbers.
    let episode = fs::read_to_string(made("verifiers/traces.jsonl")).unwrap();
    let episode: Value = serde_json::from_str(episode.lines().nth(2).unwrap()).unwrap();
    let mut trace = episode["traces"][0].clone();
    trace["group_id"] = "g".into();
    trace["rewards"] = json!({"exact": 0.25, "none": null});
    let whole = trace.to_string() + "\n";
    fs::write(step.join("traces.jsonl"), format!("{whole}\n{whole}{}", &whole[..40])).unwrap();
    let run = found(folder.path());
    assert_eq!(numbers(&run, 5, "reward"), [0.25, 0.25]);
    assert_eq!(numbers(&run, 5, "group_id"), [0.0, 0.0]);
    // A half written line is not copied.
    let kept = Some(folder.path().join("kept.jsonl"));
    let options = options(folder.path().to_owned(), "exact", kept);
    assert_eq!(filter_file(&options).unwrap().num_prompts, 1);
    // In the middle of a file it is an error.
    fs::write(step.join("traces.jsonl"), format!("{}\n{whole}", &whole[..40])).unwrap();
    let refused = found(folder.path()).rollouts(5).unwrap_err().to_string();
    assert!(refused.contains("traces.jsonl, line 1: not a JSON object"), "{refused}");
    // Two trained agents are two groups, and a line cannot be copied into two.
    let mut both = episode;
    let mut other = both["traces"][0].clone();
    other["agent"]["name"] = "solver".into();
    both["traces"].as_array_mut().unwrap().push(other);
    fs::write(step.join("traces.jsonl"), both.to_string() + "\n").unwrap();
    assert_eq!(numbers(&found(folder.path()), 5, "group_id"), [0.0, 1.0]);
    let refused = filter_file(&options).unwrap_err().to_string();
    assert!(refused.ends_with("traces.jsonl has trajectories of several groups"), "{refused}");
    // A result of another command is no run.
    fs::remove_dir_all(folder.path().join("rollouts")).unwrap();
    fs::write(folder.path().join("results.jsonl"), "{\"task\": 1, \"valid\": true}\n").unwrap();
    assert!(OtherRun::find(folder.path()).unwrap().is_none());
}
