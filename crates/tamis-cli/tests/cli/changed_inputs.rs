//! A resume after an edit of a reward function or of the validation prompts.

use crate::tamis::{Folder, Replaced as _, TINY, unfiltered};

const SUMS: &str = "\
{\"prompt\": \"1+1=\", \"answer\": \"2\"}
{\"prompt\": \"2+3=\", \"answer\": \"5\"}
{\"prompt\": \"9+9=\", \"answer\": \"18\"}
{\"prompt\": \"4+3=\", \"answer\": \"7\"}
";

/// Half of the scores of a group are 1 while it trains, and 0 in validations of one sample.
const REWARD: &str = "\
def score(completions, **_):
    return [float(place % 2) for place in range(len(completions))]
";

fn begun() -> Folder {
    let task = "  task: arithmetic\n  arithmetic: {levels: [{digits: 1, operators: ['+'], terms: 2}], train_size: 64, val_size: 8}\n";
    let config = unfiltered(TINY)
        .replaced(task, "  train: train.jsonl\n  val: val.jsonl\n  check_gold: off\n")
        .replaced("  train_batch_size: 4\n", "  train_batch_size: 2\n")
        .replaced("reward: [{kind: number}]", "reward: [{kind: python, path: mine.py, function: score}]")
        .replaced("total_steps: 6", "total_steps: 2");
    let val: String = SUMS.split_inclusive('\n').take(2).collect();
    let folder = Folder::new()
        .with("config.yaml", &config)
        .with("train.jsonl", SUMS)
        .with("val.jsonl", &val)
        .with("mine.py", REWARD);
    let ended = folder.tamis(&["train", "config.yaml"]).succeeds();
    ended.prints("before RL");
    folder
}

const LONGER: [&str; 4] = ["train", "--resume", "runs/tiny", "train.total_steps=4"];

#[test]
fn an_edited_reward_is_named_and_measures_another_thing() {
    let folder = begun();
    folder.write("mine.py", &REWARD.replaced("float(place % 2)", "1.0 - 0.5 * (place % 2)"));
    let ended = folder.tamis(&LONGER).succeeds();
    ended.says("changed on resume: ");
    ended.says("mine.py (reward[0].path); validations up to step 2 are not compared with later ones");
    // There is no table of 0 before and more after.
    ended.never_prints("before RL");
    let page = folder.tamis(&["report", "runs/tiny"]).succeeds();
    page.never_prints("It learns");
    let html = folder.read("runs/tiny/report.html");
    assert!(!html.contains("It learns"), "a false sentence");
    assert!(html.contains("validations before step 3 are left out"), "{html}");
    // The change is in the checkpoint: a further resume has nothing new to print.
    folder
        .tamis(&["train", "--resume", "runs/tiny", "train.total_steps=5"])
        .succeeds()
        .never_says("mine.py (reward[0].path)");
}

#[test]
fn other_validation_prompts_are_not_paired_with_those_before() {
    let folder = begun();
    // Nothing is printed if nothing changed.
    let ended = folder.tamis(&LONGER).succeeds();
    ended.never_says("are not compared with later ones").prints("before RL");
    let other: String = SUMS.split_inclusive('\n').skip(2).collect();
    folder.write("val.jsonl", &other);
    let ended = folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=6"]).succeeds();
    ended.says("changed on resume: the validation prompts; validations up to step 4 are not compared with later ones");
    ended.never_prints("before RL");
}
