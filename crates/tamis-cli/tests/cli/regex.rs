//! `rollout.regex`: completions that match an expression.

use crate::tamis::Folder;

fn completions(folder: &Folder, arguments: &[&str]) -> Vec<String> {
    let ended =
        folder.tamis(&[&["rollouts"], arguments, &["--limit", "10000", "--json"]].concat()).succeeds();
    let view = ended.json();
    let text = |row: &serde_json::Value| row["completion"].as_str().unwrap().to_owned();
    view["rows"].as_array().unwrap().iter().map(text).collect()
}

fn is_two_digits(text: &str) -> bool {
    text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[test]
fn every_completion_of_a_run_matches() {
    let folder = Folder::tiny();
    let bound = ["rollout.regex=[1-9][0-9]", "rollout.save=all", "validate.save_samples=true"];
    let train =
        |more: &[&str]| folder.tamis(&[&["train", "tiny.yaml"], &bound[..], more].concat()).succeeds();
    train(&["train.total_steps=4"]);
    for step in ["1", "2", "4"] {
        let generated = completions(&folder, &["runs/tiny", "--step", step]);
        assert!(generated.len() >= 32 && generated.iter().all(|text| is_two_digits(text)), "{generated:?}");
    }
    let validated = completions(&folder, &["runs/tiny/validation/step_2.jsonl"]);
    assert!(!validated.is_empty() && validated.iter().all(|text| is_two_digits(text)), "{validated:?}");
    train(&["train.total_steps=2", "run.name=part"]);
    folder.tamis(&["train", "--resume", "runs/part", "train.total_steps=4"]).succeeds();
    let weights = |run: &str| folder.weights(run, 4);
    assert!(weights("tiny") == weights("part"));
    folder.tamis(&["train", "--resume", "runs/part", "~rollout.regex"]).fails_with("rollout.regex");
}

#[test]
fn an_expression_that_cannot_be_followed_is_refused() {
    let folder = Folder::tiny();
    let failure = |argument: &str| folder.tamis(&["train", "tiny.yaml", argument]).failure();
    insta::assert_snapshot!(failure("rollout.regex=[0-9]+x"), @r"
    exit code 2
    error: rollout.regex (command line): no sequence of the tokenizer's tokens matches the expression
      hint: let it match a completion that the model can write, or set it to null
    ");
    for (expression, wrong) in [("(1|2", "unclosed group (at character 1)"), ("1(?=2)", "look-around")] {
        let failure = failure(&format!("rollout.regex={expression}"));
        let begins = "exit code 2\nerror: rollout.regex (command line): unsupported regular expression: ";
        assert!(failure.starts_with(begins) && failure.contains(wrong), "{failure}");
        assert!(failure.contains("hint: write it in the syntax of Rust's `regex`"), "{failure}");
    }
    assert!(!folder.join("runs/tiny").exists());
}
