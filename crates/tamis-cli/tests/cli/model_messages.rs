//! Messages of `tamis train` when something is wrong with the model, and its exit code.

use crate::data_messages::ROWS;
use crate::tamis::{Folder, Replaced as _, TINY, without_checksums, words};
use crate::train_messages::{tiny, train};

#[test]
fn model() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1", "run.name=first"]).succeeds();
    let from = folder.join("runs/first/checkpoints/step_1");
    let config = TINY
        .lines()
        .filter(|line| !line.starts_with("sft"))
        .map(|line| if line.starts_with("  init:") { "  path: model" } else { line })
        .collect::<Vec<_>>()
        .join("\n");
    std::fs::create_dir(folder.join("model")).expect("folder");
    for entry in std::fs::read_dir(&from).expect("checkpoint") {
        let entry = entry.expect("entry");
        std::fs::copy(entry.path(), folder.join("model").join(entry.file_name())).expect("copied");
    }
    train(&folder, &format!("{config}\n")).succeeds();
    let changed = |file: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>| {
        let path = folder.join("model").join(file);
        let whole = std::fs::read(&path).expect("read");
        std::fs::write(&path, change(whole.clone())).expect("write");
        let printed = train(&folder, &config).failure();
        std::fs::write(&path, whole).expect("write");
        printed
    };
    let replaced = |from: &'static str, to: &'static str| {
        move |bytes: Vec<u8>| String::from_utf8(bytes).expect("text").replaced(from, to).into_bytes()
    };
    insta::assert_snapshot!(without_checksums(&changed("config.json", &replaced("{", ""))), @r#"
    exit code 1
    error: `config.json` of the checkpoint model is damaged: its CRC-32 is N, and was N when it was saved
      hint: restore a copy of the file. If the change was intended, remove model/checksums.json
    "#);
    // As another program saved it.
    std::fs::remove_file(folder.join("model/checksums.json")).expect("removed");
    insta::assert_snapshot!(changed("config.json", &replaced("{", "")), @"
exit code 2
error: `model.path`: model cannot be used: model/config.json is not valid JSON: trailing characters at line 2 column 18
 --> config.yaml:3:9
  |
3 |   path: model
  |         ^^^^^

1 error in the configuration
");
    insta::assert_snapshot!(changed("config.json", &replaced("\"hidden_size\": 16", "\"hidden_size\": 32")), @r#"
    exit code 2
    error: tensor `model.embed_tokens.weight` in model/model.safetensors has shape [18, 16], and the configuration of the model makes it [18, 32]
      hint: `config.json` and the weights are not of one model: take both from the same folder
    "#);
    // The examples of SFT are looked at before anything is trained.
    folder.write("train.jsonl", &format!("{ROWS}{{\"question\": \"1+1=\", \"answer\": \"two\"}}\n"));
    let own = config.lines().filter(|line| !line.contains("arithmetic")).collect::<Vec<_>>().join("\n");
    let own =
        own.replaced("data:\n", "data:\n  train: train.jsonl\n  val: [train.jsonl]\n  check_gold: off\n");
    insta::assert_snapshot!(train(&folder, &format!("{own}\nsft: {{steps: 2}}\n")).failure(), @r#"
exit code 2
error: prompt 4 (train.jsonl, line 5): `1+1=` with the answer `two` cannot be tokenized
  caused by: character 't' (at character 0 of "two") is not in the tokenizer's alphabet
  hint: name a tokenizer that has its characters (`model.init.tokenizer`), or leave SFT out (`sft.steps: 0`)
"#);
    folder.write("empty.jinja", "{# nothing #}");
    let chat = r#"{"prompt": [{"role": "user", "content": "1+1="}], "ground_truth": "2"}"#;
    folder.write("train.jsonl", &format!("{chat}\n{chat}\n{chat}\n{chat}\n"));
    let silent = own.replaced("  path: model", "  path: model\n  chat_template: empty.jinja");
    insta::assert_snapshot!(train(&folder, &silent).short(), @r#"
exit code 2
error: `model.chat_template`: prompt 0 of the training data (train.jsonl, line 1) cannot be prepared: the prompt has no tokens, and the model needs one to begin with: the chat template renders nothing for it, or its text is empty
  at config.yaml:4:18:   chat_template: «empty.jinja»
"#);
    // More than any machine holds, found by arithmetic.
    let huge = tiny(&[
        ("hidden_size: 16", "hidden_size: 16000000"),
        ("intermediate_size: 32", "intermediate_size: 16000000"),
    ]);
    insta::assert_snapshot!(train(&folder, &huge).short(), @"
exit code 2
error: `model.init`: the number of weights must not exceed the limit: 1536000032000000 and 4398046511104
  at config.yaml:3:3:   «init»: {architecture: qwen3, hidden_size: 16000000, intermediate_size: 16000000, num_layers: 1, num_heads: 2, num_kv_he...
  hint: make the model smaller
");
}

/// A checkpoint whose learner keeps the weights elsewhere cannot be the first model of a run, and cannot be
/// exported.
#[test]
fn weights_that_stay_elsewhere() {
    let folder = Folder::tiny();
    folder.tamis(&["train", "tiny.yaml", "train.total_steps=1", "run.name=first"]).succeeds();
    let checkpoint = folder.join("runs/first/checkpoints/step_1");
    for name in ["model.safetensors", "optimizer.safetensors", "checksums.json"] {
        std::fs::remove_file(checkpoint.join(name)).expect("removed");
    }
    let place = r#"{"where": "tinker://m/weights/a at http://S"}"#;
    std::fs::write(checkpoint.join("elsewhere.json"), place).expect("written");
    let begins = "train tiny.yaml run.name=second model.init=null sft.steps=0 \
         model.path=runs/first/checkpoints/step_1";
    for command in ["export runs/first exported", "eval runs/first", begins] {
        let ended = folder.tamis(&words(command));
        ended.fails_with("holds no weights: they are tinker://m/weights/a at http://S");
        ended.fails_with("docs/learners.md");
    }
    assert!(!folder.join("exported").exists());
}
