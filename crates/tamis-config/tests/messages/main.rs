//! Every message that a configuration can cause, as it is printed; one file for each part of the
//! configuration.

#[path = "../support/brief.rs"]
mod brief;
mod critics;
mod environment_rules;
mod environments;
mod filters;
mod loggers;
mod model_and_data;
mod objectives;
mod overrides;
mod rewards;
mod schedules;
mod servers;
mod syntax;
mod training;
mod values;

use brief::brief;
use insta::assert_snapshot;
use tamis_config::source::{Source, SourceKind};
use tamis_config::{ConfigErrors, Loaded, load_sources};
use tamis_env::reward::RewardKind;

fn try_load(yaml: &str, arguments: &[&str]) -> Result<Loaded, ConfigErrors> {
    let source = Source::new(SourceKind::File("run.yaml".into()), yaml);
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    load_sources(&[source], &arguments)
}

fn load(yaml: &str, arguments: &[&str]) -> Loaded {
    try_load(yaml, arguments).unwrap_or_else(|errors| panic!("{errors}"))
}

const BASE: [&str; 3] = ["model.path=m", "data.task=arithmetic", "train.total_steps=10"];

/// The warnings and errors about a text and overrides over a sound configuration.
fn show_errors(yaml: &str, arguments: &[&str]) -> String {
    raw(yaml, &[&BASE, arguments].concat())
}

/// The warnings and errors about a text and overrides.
fn raw(yaml: &str, arguments: &[&str]) -> String {
    let text = match try_load(yaml, arguments) {
        Ok(loaded) => brief(&loaded.warnings),
        Err(errors) => brief(&errors.diagnostics),
    };
    text.replace(&RewardKind::NAMES.join(", "), "<every kind of reward>")
}

/// Everything that is printed about a wrong configuration.
fn printed(yaml: &str, arguments: &[&str]) -> String {
    let errors = try_load(yaml, arguments).expect_err("it is wrong").to_string();
    errors.replace(&RewardKind::NAMES.join(", "), "<every kind of reward>")
}

#[test]
fn a_sound_configuration_says_nothing() {
    assert_eq!(show_errors("", &[]), "");
}

#[test]
fn all_violations_are_reported_at_once() {
    let yaml = "
rollot: {n: 4}
rollout:
  n: many
  temprature: 0.7
  top_p: 1.5
train:
  ppo_mini_batch_size: 128
  optimizer: {learning_rate: -1}
objective:
\taggregation: token_mean
";
    assert_snapshot!(printed(yaml, &["data.train_batch_size=64"]), @r#"
error: invalid YAML: tabs disallowed within this context (block indentation)
  --> run.yaml:11:2
   |
11 |  aggregation: token_mean
   |  ^
  hint: YAML is indented with spaces: replace the tab before the text with spaces

1 error in the configuration
"#);
    let overrides = [&BASE[..], &["data.train_batch_size=64", "rollout.m=3"]].concat();
    assert_snapshot!(printed(&yaml.replace('\t', "  "), &overrides), @r#"
error: unknown key `rollout.m`
 --> command line
  |
1 | rollout.m=3
  | ^^^^^^^^^
  hint: did you mean `rollout.n`?

error: unknown key `rollot`
 --> run.yaml:2:1
  |
2 | rollot: {n: 4}
  | ^^^^^^
  hint: did you mean `rollout`?

error: unknown key `rollout.temprature`
 --> run.yaml:5:3
  |
5 |   temprature: 0.7
  |   ^^^^^^^^^^
  hint: did you mean `rollout.temperature`?

error: `rollout.n` must be a whole number, not the text "many"
 --> run.yaml:4:6
  |
4 |   n: many
  |      ^^^^
  hint: see `tamis config explain rollout.n`

error: `rollout.top_p` must be greater than 0 and at most 1, got 1.5
 --> run.yaml:6:10
  |
6 |   top_p: 1.5
  |          ^^^
  hint: see `tamis config explain rollout.top_p`

error: `objective.aggregation` cannot be `token_mean`: it is one of token-mean, seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm, group-token-mean, group-seq-mean, token-sum
  --> run.yaml:11:16
   |
11 |   aggregation: token_mean
   |                ^^^^^^^^^^
  hint: did you mean `token-mean`?

error: `train.optimizer.learning_rate` must be greater than 0, got -1
 --> run.yaml:9:30
  |
9 |   optimizer: {learning_rate: -1}
  |                              ^^
  hint: see `tamis config explain train.optimizer.learning_rate`

error: `train.ppo_mini_batch_size` (128) is above `data.train_batch_size` (64); both count prompts
 --> run.yaml:8:24
  |
8 |   ppo_mini_batch_size: 128
  |                        ^^^
  hint: use 64 or less, or null for one update a step

8 errors in the configuration
"#);
}
