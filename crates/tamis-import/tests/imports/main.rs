//! Converting commands and configurations of verl, EasyR1, RAGEN and TRL.

#[path = "../../../tamis-config/tests/support/brief.rs"]
mod brief;
mod commands;
mod distillation;
mod documents;
mod export;
mod exported;
mod invocations;
mod keys;
mod launchers;
mod servers;
mod sft;
mod values;

use std::path::Path;

use brief::brief;
use insta::assert_snapshot;
use tamis_config::Config;
use tamis_config::source::{Source, SourceKind};
use tamis_import::{Becomes, Owner};
use tamis_import::{Import, import, load_sources};

/// The words of a command line.
fn split(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn converted(arguments: &[&str]) -> Import {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    import(&arguments, Path::new("")).unwrap_or_else(|errors| panic!("{errors}"))
}

fn loaded(import: &Import) -> Config {
    let source = Source::new(SourceKind::File("imported.yaml".into()), import.yaml.clone());
    load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{errors}\n{}", import.yaml)).config
}

/// One value of a configuration as JSON, by its path (`/data/train`).
fn value_at(config: &Config, pointer: &str) -> String {
    let config = serde_json::to_value(config).expect("a configuration is JSON");
    config.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}")).to_string()
}

fn import_errors(arguments: &[&str]) -> String {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    import(&arguments, Path::new(""))
        .map_or_else(|errors| brief(&errors.diagnostics), |import| panic!("{}", import.yaml))
}

fn notes(import: &Import) -> String {
    import.notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_a_conversion_lacks_is_said() {
    let import = converted(&["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=1"]);
    let printed: Vec<String> = import.remaining.iter().map(|found| found.problem.to_string()).collect();
    assert_snapshot!(printed.join("\n"), @r#"
there is no model: neither `model.path` nor `model.init` is set
there are no training prompts: neither `data.train` nor the task `arithmetic` is set
`rollout.n` is 1: a group of one has nothing to compare with, the advantage is the reward itself
"#);
}

/// Each key by itself, with its system's default, is translated or refused. A test of `explain` checks that
/// the targets exist.
#[test]
fn every_foreign_key_leads_somewhere() {
    for owner in Owner::ALL {
        for entry in owner.keys() {
            let value = if entry.default.is_empty() { "1" } else { entry.default };
            let argument = format!("{}={value}", entry.key.replace('*', "x"));
            match import(std::slice::from_ref(&argument), Path::new("")) {
                Ok(import) => assert!(!import.notes.is_empty(), "{argument} says nothing"),
                Err(errors) => {
                    let is_told = ["cannot be followed", " must be ", " cannot be `1`", " has no `1` for "]
                        .iter()
                        .any(|part| errors.to_string().contains(part));
                    assert!(is_told || matches!(entry.becomes, Becomes::Unless(..)), "{argument}: {errors}");
                }
            }
        }
    }
}
