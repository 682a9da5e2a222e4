//! Messages of `tamis train` when something is wrong with the data, and its exit code.

use crate::tamis::{Folder, Replaced as _, TINY};
use crate::train_messages::{leaves_no_run, train};

pub(crate) const ROWS: &str = "\
{\"question\": \"1+1=\", \"answer\": \"2\"}
{\"question\": \"1+2=\", \"answer\": \"3\"}
{\"question\": \"2+2=\", \"answer\": \"4\"}
{\"question\": \"2+3=\", \"answer\": \"5\"}
";

pub(crate) fn of_file() -> String {
    let start = TINY.find("  task: arithmetic").expect("task");
    let end = TINY.find("  max_prompt_length").expect("limit");
    let mut text = TINY.to_owned();
    text.replace_range(start..end, "  train: train.jsonl\n  val: [train.jsonl]\n");
    text.replaced("gen_batch_size: 8", "gen_batch_size: 4")
}

#[test]
fn data() {
    let folder = Folder::new();
    folder
        .write("train.jsonl", &format!("{ROWS}{{\"question\": \"1+1+1+1+1+1+1+1=\", \"answer\": \"8\"}}\n"));
    insta::assert_snapshot!(train(&folder, &of_file()).failure(), @r#"
    exit code 2
    error: prompt 4 of the training data (train.jsonl, line 5) cannot be prepared
      caused by: the prompt has 16 tokens, over the limit of 12; raise data.max_prompt_length to 16, or set data.overlong_prompts to drop, left, right or middle
    "#);
    let cut = of_file().replaced("max_prompt_length: 12", "max_prompt_length: 12\n  overlong_prompts: drop");
    train(&folder, &cut).succeeds().says("training: 1 prompt over 12 tokens left out, 0 cut");
    folder.write("train.jsonl", &ROWS.replaced("\"answer\"", "\"gold\""));
    insta::assert_snapshot!(train(&folder, &of_file()).failure(), @"
    exit code 2
    error: reward `number` compares with a ground truth, and no training prompt has one
      hint: name the column of the answers in data.columns.ground_truth (the columns are gold, question), or set data.check_gold=off to train without this check
    ");
    let unchecked = of_file().replaced("  max_prompt_length", "  check_gold: off\n  max_prompt_length");
    insta::assert_snapshot!(train(&folder, &unchecked).failure(), @"
exit code 2
error: `sft.steps` is above 0 and there are no examples: none of the training prompts has a ground truth, or is a level of a game that a script can play
  hint: set `sft.steps: 0`, name rows in `sft.data`, or name the columns of prompt and answer (`data.columns.prompt`, `data.columns.ground_truth`); an environment of your own gives each level a `ground_truth`
");
}

#[test]
fn gold() {
    let folder = Folder::new();
    folder.write("train.jsonl", &ROWS.replaced("\"3\"", "\"three\""));
    let config = of_file().replaced("  max_prompt_length", "  check_gold: error\n  max_prompt_length");
    insta::assert_snapshot!(train(&folder, &config).failure(), @r#"
    exit code 2
    error: gold answers are rejected by their own verifier:
    reward `number` accepts 3 of 4 gold answers (0 rejected, 1 without an answer, 0 failed)
      prompt 1 (train.jsonl, line 2), ground truth `three`: `three` gave no answer

      hint: choose the verifier that fits the ground truth's form, or set data.check_gold=warn to continue
    "#);
    leaves_no_run(&folder);
    let warned = train(&folder, &of_file()).stderr;
    assert!(warned.contains("accepts 3 of 4 gold answers") && warned.contains("`three`"), "{warned}");
}

#[test]
fn a_part_of_the_training_data_is_held_out() {
    let folder = Folder::tiny();
    let row = |at: usize| {
        let (left, right) = (at / 10, at % 10);
        format!("{{\"prompt\": \"{left}+{right}=\", \"answer\": \"{}\"}}", left + right)
    };
    let rows = (0..40).map(row).collect::<Vec<_>>().join("\n");
    folder.write("rows.jsonl", &rows);
    let of_rows = ["~data.arithmetic", "data.train=rows.jsonl", "data.check_gold=off", "train.total_steps=1"];
    let of_rows = [&["train", "tiny.yaml", "data.task=null"], &of_rows[..]].concat();
    let with = |more: &[&str]| folder.tamis(&[&of_rows[..], more].concat());
    let run = with(&["data.val_fraction=0.25"]).succeeds();
    run.says("validation data: 10 of them are held out (data.val_fraction: 0.25), 30 are trained on");
    run.says("30 training prompts, 10 validation prompts").never_says("no validation");
    // It can be evaluated like a run with a file of validation prompts.
    folder.tamis(&["eval", "runs/tiny"]).succeeds().prints("10 prompts, 1 sample each");
    // Named prompts take precedence; others in the training data would have been trained on.
    let named = folder.tamis(&["eval", "runs/tiny", "data.val=rows.jsonl"]).succeeds();
    named.prints("40 prompts, 1 sample each");
    let other = folder.tamis(&["eval", "runs/tiny", "data.val_fraction=0.5"]).exits(2);
    other.fails_with("the evaluation would include prompts that the run has trained on");
    let both = with(&["data.val_fraction=0.25", "data.val=rows.jsonl"]).exits(2);
    both.fails_with("`data.val_fraction` would take it");
    with(&["data.val_fraction=1"]).exits(2).fails_with("nothing would be left to train on");
    let none = with(&["~validate"]).succeeds();
    none.says("no validation: data.val, or data.val_fraction=0.1, would show what the run learns");
}
