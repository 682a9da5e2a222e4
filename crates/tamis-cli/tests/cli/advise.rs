//! `tamis advise` as a person types it.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::data_messages::of_file;
use crate::tamis::{Folder, Replaced as _, TINY, words};

/// 90 prompts of 8 completions, with 0 to 8 right ones in turn. Half of the all-wrong groups hold the answer.
fn rollouts() -> String {
    let mut rows = String::new();
    for prompt in 0..90 {
        for member in 0..8 {
            let acc = u8::from(member < prompt % 9);
            let shown = if acc == 1 || (prompt % 18 == 0 && member == 3) { "42" } else { "41" };
            let row = json!({
                "prompt_id": prompt, "acc": acc, "reward": f64::from(acc) - 0.01 * f64::from(member % 2),
                "completion": format!("{member}: it is {shown}"), "ground_truth": "42", "num_tokens": 20 + member,
                "finish_reason": if member == 7 { "length" } else { "stop" },
            });
            let _ = writeln!(rows, "{row}");
        }
    }
    rows
}

#[test]
fn rollouts_of_any_program() {
    let folder = Folder::new().with("rollouts.jsonl", &rollouts());
    let said =
        folder.tamis(&words("advise rollouts.jsonl data.train_batch_size=32 schedule.max_num_gen_batches=2"));
    insta::assert_snapshot!("rollouts_of_any_program", said.shown());
}

#[test]
fn one_object_for_programs() {
    let folder = Folder::new().with("rollouts.jsonl", &rollouts());
    let said = folder
        .tamis(&words(
            "advise rollouts.jsonl --json algorithm.filter_groups.enable=True \
         data.train_batch_size=32",
        ))
        .succeeds();
    let json = said.json();
    let keys: Vec<&str> = json.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = words(
        "source sample plan pass_rate histogram spread keep_rates keep_rate costs group_size \
         screening metrics filter findings unknown lines",
    );
    assert_eq!(keys, expected);
    assert_eq!((json["sample"]["groups"].as_u64(), json["plan"]["n"].as_u64()), (Some(90), Some(8)));
    assert_eq!(json["pass_rate"]["value"], 0.5);
    // Seven of nine counts are mixed.
    assert!((json["keep_rate"]["value"].as_f64().expect("a rate") - 7.0 / 9.0).abs() < 1e-12);
    let reward = &json["metrics"][1];
    assert_eq!((reward["name"].as_str(), reward["keep_rate"].as_f64()), (Some("reward"), Some(1.0)));
    assert!(json["findings"].as_array().is_some_and(|all| all.iter().any(|of| of["topic"] == "truncation")));
    // Another number has no pass rate.
    let by = folder.tamis(&["advise", "rollouts.jsonl", "--json", "--metric", "reward"]).succeeds();
    let json = by.json();
    assert_eq!((json["pass_rate"].clone(), json["keep_rate"]["value"].as_f64()), (Value::Null, Some(1.0)));
}

#[test]
fn a_run_and_its_resume() {
    let folder = Folder::new();
    folder.write("tiny.yaml", &TINY.replaced("total_steps: 6", "total_steps: 4"));
    folder.tamis(&["train", "tiny.yaml"]).succeeds();
    let said = folder.tamis(&["advise", "runs/tiny", "--json"]).succeeds();
    let json = said.json();
    assert_eq!(json["sample"]["kind"], "rollouts");
    assert_eq!((&json["plan"]["train_batch_size"], &json["plan"]["gen_batch_size"]), (&json!(4), &json!(8)));
    assert_eq!(json["costs"]["planned_limit"]["max_num_gen_batches"], 50);
    let rows = folder.read("runs/tiny/metrics.jsonl");
    let generated =
        |row: &str| serde_json::from_str::<Value>(row).expect("a row")["groups/generated"].as_f64();
    let groups = rows.lines().filter_map(generated).sum::<f64>() as u64;
    assert_eq!(json["sample"]["groups"].as_u64(), Some(groups));
    // The argument overrides the run's own setting.
    let said = folder
        .tamis(&["advise", "runs/tiny", "--json", "--steps", "2..3", "data.train_batch_size=16"])
        .succeeds();
    let json = said.json();
    assert_eq!((&json["plan"]["train_batch_size"], &json["sample"]["steps"]), (&json!(16), &json!([2, 3])));
    // The run prints the advice itself.
    let resumed = folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=5"]).succeeds();
    let lines: Vec<&str> = resumed.stderr.lines().filter(|line| line.contains("advice: ")).collect();
    assert!((1..=2).contains(&lines.len()), "{}", resumed.stderr);
    let printed = format!("of {groups} groups of steps 1 to 4 had members that differ");
    assert!(lines[0].contains(&printed), "{lines:?}");
    // Without rollouts, the counts in its metrics remain.
    std::fs::remove_dir_all(folder.join("runs/tiny/rollouts")).expect("removed");
    folder
        .tamis(&["advise", "runs/tiny"])
        .succeeds()
        .prints("a log, ")
        .prints("counts have no single groups");
}

/// Half of the prompts were solved half of the time, the others always: 7/16 of groups of 4 differ.
#[test]
fn pass_rates_in_the_training_data_are_told_at_the_start() {
    let row = |a: usize| {
        let rate = if a.is_multiple_of(2) { 0.5 } else { 1.0 };
        let row = json!({"question": format!("{a}+1="), "answer": (a + 1).to_string(), "solve_rate": rate});
        row.to_string()
    };
    let rows: Vec<String> = (0..64).map(row).collect();
    let folder = Folder::new().with("train.jsonl", &rows.join("\n"));
    folder.write("tiny.yaml", &of_file().replaced("total_steps: 6", "total_steps: 1"));
    let said = folder.tamis(&["train", "tiny.yaml"]).succeeds().stderr;
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("advice: ")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    let printed = "with the pass rates of the data's column `solve_rate` (mean 0.75 of 64 prompts), \
         43.8% of groups of 4 have members that differ: about ";
    assert!(lines[0].contains(printed), "{lines:?}");
}

const LOG: &str = "\
INFO: Generated batch 1, 1024 prompts, 8192 trajectories
INFO: Filtered: 600 prompts with std=0 (58.6%)
INFO: Kept: 424 prompts with std>0
INFO: num_prompt_in_batch=424 < prompt_bsz=1024
INFO: Generated batch 2, 1024 prompts, 8192 trajectories
INFO: Filtered: 604 prompts with std=0 (59.0%)
INFO: Kept: 420 prompts with std>0
INFO: Accumulated: 844 prompts
INFO: Generated batch 3, 1024 prompts, 8192 trajectories
INFO: Filtered: 609 prompts with std=0 (59.5%)
INFO: Kept: 415 prompts with std>0
INFO: num_prompt_in_batch=1259 >= prompt_bsz=1024
INFO: Generated batch 1, 1024 prompts, 8192 trajectories
";

#[test]
fn a_log_with_filter_group_lines() {
    let folder = Folder::new().with("train.log", LOG);
    let said = folder.tamis(&["advise", "train.log", "rollout.n=8", "data.train_batch_size=1024"]);
    insta::assert_snapshot!("a_log_with_filter_group_lines", said.shown());
}

#[test]
fn what_nothing_can_be_said_of() {
    let folder = Folder::new();
    let told = |name: &str, content: &str| {
        folder.write(name, content);
        folder.tamis(&["advise", name]).shown()
    };
    let mut all = folder.tamis(&["advise", "nothing.jsonl"]).shown();
    all += &told("empty.jsonl", "");
    all += &told("no_group.jsonl", "{\"acc\": 1}\n{\"acc\": 0}\n");
    all +=
        &told("no_outcome.jsonl", "{\"uid\": \"a\", \"quality\": 0.5}\n{\"uid\": \"a\", \"quality\": 0.7}\n");
    all += &told("prose.txt", "One line.\nAnother.\n");
    all += &folder.tamis(&["advise", "no_outcome.jsonl", "--metric", "qualty"]).shown();
    insta::assert_snapshot!("what_nothing_can_be_said_of", all);
    // A torn last line costs a row, and the rest of its group is ignored.
    let torn = "{\"uid\": \"a\", \"acc\": 1}\n{\"uid\": \"a\", \"acc\": 0}\n{\"uid\": \"b\", \"ac";
    assert!(told("torn.jsonl", torn).contains("1 row left out"));
    assert!(
        told("whole.jsonl", "{\"scores\": [1, 0, 1]}\n{\"scores\": [0, 0, 0]}\n")
            .contains("2 groups of 3, 2 prompts")
    );
    let many = "{\"uid\": 1, \"score\": 0.1}\n{\"uid\": 1, \"score\": 0.2}\n{\"uid\": 2, \"score\": 0.7}\n{\"uid\": 2, \"score\": 0.7}\n";
    assert!(told("many.jsonl", many).contains("more than two values"));
}
