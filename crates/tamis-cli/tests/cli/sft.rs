//! Supervised fine-tuning on rows of one's own: alone, and before reinforcement learning.

use crate::tamis::{Folder, Replaced as _, TINY, unfiltered};

const ALONE: &str = "\
run: {name: sft, seed: 3, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 32}
sft: {data: rows.jsonl, val_fraction: 0.2, epochs: 6, batch_size: 8, learning_rate: 1e-2, test_freq: 10}
train: {total_steps: 0}
checkpoint: {save_freq: 10, keep_last: null}
";

fn folder() -> Folder {
    let rows = (0..40)
        .map(|i| {
            let (a, b) = (i % 8, i / 8);
            format!("{{\"prompt\": \"{a}+{b}=\", \"completion\": \"{}\"}}\n", a + b)
        })
        .collect::<Vec<_>>()
        .concat();
    Folder::new().with("rows.jsonl", &rows).with("sft.yaml", ALONE)
}

#[test]
fn alone_it_learns_and_its_checkpoint_is_what_reinforcement_learning_begins_with() {
    let folder = folder();
    folder.tamis(&["config", "check", "sft.yaml"]).succeeds();
    let ended = folder.tamis(&["train", "sft.yaml"]).succeeds();
    ended.says("sft.data: 40 rows from 1 file").says("; validation: 8 rows of ");
    ended.prints("done: 24 updates of supervised fine-tuning, validation loss ");
    ended.prints("model.path=runs/sft/checkpoints/step_24");
    ended.says("memory: at most ");
    // What other commands print about such a run.
    folder.tamis_reading(&["chat", "runs/sft"], "1+1=\n").succeeds();
    folder.tamis(&["monitor", "runs/sft", "--once"]).succeeds().prints("finished, step 24\n");
    folder.tamis(&["advise", "runs/sft"]).exits(2).says("it has no groups to advise on");
    folder.tamis(&["simulate", "sft.yaml"]).exits(2).says("there is no schedule to simulate");
    folder.tamis(&["rollouts", "runs/sft"]).exits(2).says("supervised fine-tuning alone samples nothing");
    let rows = folder.rows("sft");
    assert_eq!(rows.len(), 24);
    let number = |row: usize, name: &str| rows[row][name].as_f64();
    assert!(number(23, "sft/loss") < number(0, "sft/loss"), "{rows:?}");
    assert!(number(23, "sft/val_loss") < number(9, "sft/val_loss"), "{rows:?}");
    assert_eq!((number(8, "sft/val_loss"), number(9, "step")), (None, Some(10.0)));
    // Answers of one or two digits, with their end.
    assert!(number(0, "sft/num_tokens").is_some_and(|tokens| (16.0..=24.0).contains(&tokens)), "{rows:?}");
    let from = "model.path=runs/sft/checkpoints/step_24";
    folder.write("tiny.yaml", &unfiltered(TINY));
    let rl = ["train", "tiny.yaml", "model.init=null", from, "~sft", "train.total_steps=1"];
    folder.tamis(&rl).succeeds().never_says("sft:");
}

#[test]
fn a_resume_makes_the_same_updates() {
    let folder = folder();
    folder.tamis(&["train", "sft.yaml"]).succeeds();
    folder.tamis(&["train", "sft.yaml", "run.name=cut"]).succeeds();
    for step in [20, 24] {
        std::fs::remove_dir_all(folder.join(&format!("runs/cut/checkpoints/step_{step}"))).expect("removed");
    }
    let ended = folder.tamis(&["train", "--resume", "runs/cut"]).succeeds();
    ended.says("resuming runs/cut after step 10, the last checkpoint; steps 11 to 24 came after it");
    assert_eq!(folder.weights("cut", 24), folder.weights("sft", 24));
    assert_eq!(folder.rows("cut"), folder.rows("sft"));
    // Other rows are another run.
    folder.write("rows.jsonl", &folder.read("rows.jsonl").replaced("\"7+4=\"", "\"4+7=\""));
    let ended = folder.tamis(&["train", "--resume", "runs/cut"]).exits(4);
    ended.fails_with("a file of sft.data or sft.val has changed");
}

#[test]
fn before_reinforcement_learning_it_has_a_file_of_its_own() {
    let config = unfiltered(TINY)
        .replaced("sft: {steps: 40,", "sft: {data: rows.jsonl, val_fraction: 0.2, steps: 12,");
    let folder = folder().with("config.yaml", &config);
    let ended = folder.tamis(&["train", "config.yaml", "train.total_steps=2"]).succeeds();
    ended.says("sft: validation loss ").says("sft: 12 updates of 32 examples, cross-entropy ");
    assert_eq!(folder.read("runs/tiny/sft.jsonl").lines().count(), 12);
    assert!(folder.rows("tiny").iter().all(|row| row.get("sft/loss").is_none()));
}

#[test]
fn what_cannot_be_learned_is_refused_with_its_place() {
    let folder = folder();
    let check = |arguments: &[&str]| {
        let all: Vec<&str> = ["config", "check", "sft.yaml"].iter().chain(arguments).copied().collect();
        folder.tamis(&all).exits(2)
    };
    check(&["~sft.epochs"]).says("`sft.data` names rows, but `sft.steps` is 0: nothing is learned from them");
    check(&["sft.data=[]"]).says("`train.total_steps` is 0: nothing would be trained");
    check(&["sft.val=rows.jsonl"]).says("`sft.val` and `sft.val_fraction` are both set");
    check(&["sft.target_accuracy=0.5"]).says("`sft.target_accuracy` is measured by the rewards of a run");
    check(&["sft.data=nowhere.jsonl"]).says("there is no file nowhere.jsonl");
    check(&["sft.columns.messages=m", "sft.columns.completion=c"])
        .says("`sft.columns.completion` and `sft.columns.messages` are both set");
    folder.write("empty.jsonl", "\n");
    check(&["sft.data=empty.jsonl"]).says("no rows in empty.jsonl");
    folder.write("long.jsonl", "{\"prompt\": \"1+1+1+1+1+1=\", \"completion\": \"6\"}\n");
    check(&["sft.val_fraction=null", "sft.val=long.jsonl", "sft.max_length=8"])
        .says("sft.val: no row has a token with a loss within its first 8 tokens");
    check(&["sft.max_length=33"]).says("sft.max_length is 33, and the model reads 32 tokens");
    folder.write("odd.jsonl", "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n{\"prompt\": \"1+1=\"}\n");
    check(&["sft.data=odd.jsonl"])
        .says("odd.jsonl, line 2: expected `prompt` and `completion`, or `messages`, or `text`");
    folder.tamis(&["train", "sft.yaml", "sft.data=odd.jsonl"]).exits(2).fails_with("odd.jsonl, line 2");
    folder.write("chat.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"2\"}]}\n");
    check(&["sft.data=chat.jsonl", "sft.val_fraction=null"]).says("chat.jsonl, line 1 cannot be prepared");
    assert!(!folder.join("runs").exists(), "nothing was begun");
}

#[test]
fn settings_that_the_rows_do_not_fill_and_keys_that_nothing_reads_are_named() {
    let folder = folder();
    let check = |arguments: &[&str]| {
        let all: Vec<&str> = ["config", "check", "sft.yaml"].iter().chain(arguments).copied().collect();
        folder.tamis(&all).succeeds()
    };
    let plain = check(&["sft.warmup_steps=4"]);
    plain.never_prints("warning: sft").never_prints("no effect");
    check(&["sft.batch_size=64"])
        .prints("sft.batch_size is 64, and there are 32 rows: every update has all of them")
        .prints("sft.warmup_steps is 10, and there are only 6 updates: the learning rate rises to the end, and reaches 60.0% of 0.01");
    let unread =
        check(&["rollout.n=4", "objective.loss.kind=gspo", "reward=[{kind: number}]", "run.threads=2"]);
    unread.prints("have no effect in a run of supervised fine-tuning alone").never_prints("`run.threads`");
    unread.prints("`rollout.n`").prints("`reward`").prints("`objective.loss.kind`");
    check(&["train.optimizer.learning_rate=1e-5", "train.optimizer.weight_decay=0"])
        .prints("`train.optimizer.learning_rate` has no effect in a run of supervised fine-tuning alone")
        .prints("the learning rate is `sft.learning_rate`");
    folder
        .tamis(&["train", "sft.yaml", "rollout.n=4", "sft.epochs=1"])
        .succeeds()
        .says("`rollout.n` has no effect");
}

#[test]
fn the_former_name_is_read_with_a_warning() {
    let folder = Folder::new().with("config.yaml", &TINY.replaced("sft: {", "warm_start: {"));
    folder.tamis(&["config", "check", "config.yaml"]).succeeds().prints("`warm_start` is called `sft` now");
    folder.tamis(&["config", "show", "config.yaml", "warm_start.steps=7"]).succeeds().prints("steps: 7");
    folder.write("both.yaml", &format!("{TINY}warm_start: {{steps: 3}}\n"));
    folder.tamis(&["config", "show", "both.yaml"]).exits(2).says("unknown key `warm_start`");
}
