//! Runs in several environments that live elsewhere: each by its own name, in metrics and in what is said.

use serde_json::Value;

use crate::tamis::{Folder, Replaced as _};

const SEVERAL: &str = "\
run: {name: tiny, seed: 5, threads: 1}
model:
  init: {architecture: qwen3, hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, max_position_embeddings: 512}
data: {task: environment, train_batch_size: 4, max_prompt_length: 64}
environment: {kind: python, path: 'games.py:Counter', style: plain, train_size: 16, val_size: 4}
more_environments: [{MORE, style: plain, val_size: 4}]
rollout: {n: 2, max_response_length: 4}
train: {total_steps: 1, optimizer: {learning_rate: 1e-3}}
validate: {test_freq: 1, before_train: true}
";

const GAMES: &str = r#"
class Counter:
    is_deterministic = True
    def reset(self, level, luck):
        self.turns = 0
        return "go"
    def step(self, text):
        self.turns += 1
        return "on", len(text) / 10, self.turns == 2

class Broken(Counter):
    def step(self, text):
        raise ValueError("out of order")
"#;

fn folder(more: &str) -> Folder {
    Folder::new().with("config.yaml", &SEVERAL.replaced("MORE", more)).with("games.py", GAMES)
}

#[test]
fn environments_of_one_name_are_refused_whatever_gave_it() {
    for more in [
        "kind: python, path: 'games.py:Counter', train_size: 16",
        "kind: python, path: 'games.py:Broken', train_size: 0, name: Counter",
        "kind: frozen_lake, train_size: 0, name: Counter",
    ] {
        let ended = folder(more).tamis(&["train", "config.yaml"]).exits(2);
        let said = "two environments are called `Counter` in metrics";
        ended.says(said);
        ended.says("hint: give each a `name`");
    }
}

#[test]
fn what_fails_in_one_of_them_is_counted_and_told_by_its_name() {
    let folder = folder("kind: python, path: 'games.py:Broken', name: broken, train_size: 0");
    let ended = folder.tamis(&["train", "config.yaml"]).succeeds();
    for said in [
        "Counter (python): 16 training and 4 held-out levels",
        "broken (python): 0 training and 4 held-out levels",
        "broken has no limit of its own",
        "4 validation prompts could not be generated from, the first of them: its environment reports: ",
        "(of `broken`)",
        "(4 of 8 prompts)",
    ] {
        assert!(ended.stderr.contains(said), "{said}: {}", ended.shown());
    }
    let measured = ended.stdout.lines().find(|line| line.starts_with("prompts scored, of 8"));
    let counts = measured.map(|line| line.split_whitespace().skip(4).collect::<Vec<_>>().join(" "));
    assert_eq!(counts.as_deref(), Some("4 4 4 in both"), "{}", ended.shown());
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    for row in metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let of = |source: &str, name: &str| row[&format!("val-aux/{source}/{name}")].as_f64();
        let counts = |source: &str| (of(source, "num_prompts"), of(source, "num_failed"));
        assert_eq!(counts("Counter"), (Some(4.0), Some(0.0)), "{row}");
        assert_eq!(counts("broken"), (Some(0.0), Some(4.0)), "{row}");
    }
}
