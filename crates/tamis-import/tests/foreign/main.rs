//! Every key of the configuration files and scripts of other systems, with its translation.
//!
//! `*.keys` beside this file list the keys with the values that their systems give them: `verl-0.9.1.keys`
//! those of all trainers' configurations in the package (those only for supervised training, generation and
//! evaluation are other programs), `verl-scripts.keys` those that verl's scripts and recipes add,
//! `ragen.keys` those of RAGEN's configuration files and scripts. `scripts/foreign-keys` makes such a list.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use insta::assert_snapshot;
use serde_json::Value as Json;
use tamis_config::source::{Source, SourceKind};
use tamis_config::{Config, NoteOutcome};
use tamis_import::Owner;
use tamis_import::{Import, import, load_sources};

const VERL: &str = include_str!("verl-0.9.1.keys");
const VERL_SCRIPTS: &str = include_str!("verl-scripts.keys");
const RAGEN: &str = include_str!("ragen.keys");

/// Keys whose value, as set by their system or its scripts, is not supported.
const REFUSED_AT_DEFAULT: &[&str] = &[
    // The value of a script, which also gives a length.
    "custom_reward_function.overlong_buffer.enable",
    // Keys of forks and older versions.
    "actor_rollout_ref.actor.use_gpg_loss",
    "actor_rollout_ref.ref.sync_ref_model",
    "data.adarft.enable",
];

fn keys(text: &'static str) -> Vec<(&'static str, Json)> {
    let pair = |line: &'static str| {
        let (key, value) = line.split_once('\t').expect("a key, a tab, a value");
        (key, serde_json::from_str(value).expect("a value in JSON"))
    };
    text.lines().map(pair).collect()
}

/// A value in its typed form.
fn typed(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Bool(true) => "True".to_owned(),
        Json::Bool(false) => "False".to_owned(),
        other => other.to_string(),
    }
}

/// Another value of the same type; none for lists and mappings.
fn other_value(value: &Json) -> Option<String> {
    match value {
        Json::Bool(value) => Some(if *value { "False" } else { "True" }.to_owned()),
        Json::Number(number) => {
            let number = number.as_f64()?;
            // Shares stay shares.
            let is_share = value.is_f64() && number > 0.0 && number <= 1.0;
            Some(if is_share { number / 2.0 } else { number + 1.0 }.to_string())
        }
        Json::String(text) => Some(if text.starts_with("${") { "7" } else { "other" }.to_owned()),
        Json::Null => Some("4".to_owned()),
        Json::Array(_) | Json::Object(_) => None,
    }
}

/// Translation of a single argument. A reference is put into a file, as in its system: typed, it would be a
/// shell variable.
fn becomes(key: &str, value: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let argument = if value.contains("${") {
        let path = folder.path().join("owner.yaml");
        std::fs::write(&path, format!("{key}: {value}\n")).expect("written");
        path.to_str().expect("a path in UTF-8").to_owned()
    } else {
        format!("{key}={value}")
    };
    match import(&[argument], Path::new("")) {
        Ok(import) => {
            let note = import.notes.iter().find(|note| note.key == key);
            // verl has this key of ours under the same name.
            let Some(note) = note else { return format!("-> {key}") };
            match &note.outcome {
                NoteOutcome::Became(pairs) => {
                    format!(
                        "-> {}",
                        pairs.iter().map(|(ours, _)| ours.as_str()).collect::<Vec<_>>().join(", ")
                    )
                }
                NoteOutcome::PartOf(whole) => format!("part of {whole}"),
                NoteOutcome::NoEffect(reason) => reason.clone(),
                NoteOutcome::Ignored(reason) => format!("warning: {reason}"),
            }
        }
        Err(errors) => {
            let printed: Vec<String> =
                errors.diagnostics.iter().map(|found| found.problem.to_string()).collect();
            let printed = printed.join("; ");
            if printed.contains("is no key of") {
                return "unknown".to_owned();
            }
            match printed.split_once("cannot be followed: ") {
                Some((_, reason)) => format!("refused: {reason}"),
                None => format!("refused: {printed}"),
            }
        }
    }
}

/// The name with a `*` that covers a key in the tables, if the key has no row of its own.
fn family(owners: &[Owner], key: &str) -> Option<&'static str> {
    if key.ends_with("._target_") || key == "_target_" {
        return Some("*._target_");
    }
    let entries = || owners.iter().flat_map(|owner| owner.keys());
    if entries().any(|entry| entry.key == key) {
        return None;
    }
    entries()
        .map(|entry| entry.key)
        .find(|name| name.strip_suffix('*').is_some_and(|start| key.starts_with(start)))
}

/// A line for each key with the translation of its default, and a second one for another value if that is
/// translated differently. A family of keys with the same translation is one line.
fn table(owners: &[Owner], keys: &[(&str, Json)]) -> String {
    let mut families: BTreeMap<(String, Vec<String>), usize> = BTreeMap::new();
    let mut order = Vec::new();
    for (key, value) in keys {
        let mut lines = vec![becomes(key, &typed(value))];
        if let Some(other) = other_value(value) {
            let of_other = becomes(key, &other);
            if of_other != lines[0] {
                lines.push(format!("{other}: {of_other}"));
            }
        }
        let name = family(owners, key);
        let shown = if name.is_some() { String::new() } else { format!(" = {}", typed(value)) };
        let row = (format!("{}{shown}", name.unwrap_or(key)), lines);
        let count = families.entry(row.clone()).or_insert(0);
        if *count == 0 {
            order.push(row);
        }
        *count += 1;
    }
    let mut text = String::new();
    for row in order {
        let count = families[&row];
        let (name, lines) = &row;
        let number = if count > 1 { format!(" ({count} keys)") } else { String::new() };
        let _ = writeln!(text, "{name}{number}: {}", lines[0]);
        for other in &lines[1..] {
            let _ = writeln!(text, "    {other}");
        }
    }
    text
}

#[test]
fn every_key_of_verl() {
    assert_snapshot!("verl", table(&[Owner::Verl], &keys(VERL)));
    assert_snapshot!("verl_scripts", table(&[Owner::Verl], &keys(VERL_SCRIPTS)));
}

#[test]
fn every_key_of_ragen() {
    assert_snapshot!("ragen", table(&[Owner::Ragen, Owner::Verl], &keys(RAGEN)));
}

#[test]
fn a_default_alarms_nobody() {
    let mut wrong = Vec::new();
    for (key, value) in keys(VERL).into_iter().chain(keys(VERL_SCRIPTS)).chain(keys(RAGEN)) {
        let printed = becomes(key, &typed(&value));
        let excused = REFUSED_AT_DEFAULT.iter().any(|start| key.starts_with(start));
        if printed == "unknown" || printed.starts_with("refused") != excused {
            wrong.push(format!("{key}={}: {printed}", typed(&value)));
        }
        if let Ok(import) = import(&[format!("{key}={}", typed(&value))], Path::new("")) {
            wrong.extend(
                import
                    .notes
                    .iter()
                    .filter(|note| note.key == key && note.value.is_some())
                    .map(ToString::to_string)
                    .filter(|note| note.contains("warning")),
            );
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Text in a form in which equal meanings are equal.
fn normalised(text: &str) -> String {
    let text = text.replace([' ', '\'', '"'], "");
    match text.to_lowercase().as_str() {
        "none" | "null" | "" => "null".to_owned(),
        lower @ ("true" | "false") => lower.to_owned(),
        lower => lower.parse::<f64>().map_or(text, |number| number.to_string()),
    }
}

#[test]
fn the_table_has_the_owner_s_defaults() {
    let given: BTreeMap<&str, Json> = keys(VERL).into_iter().collect();
    let mut wrong = Vec::new();
    for entry in Owner::Verl.keys() {
        let Some(value) = given.get(entry.key).filter(|_| !entry.default.is_empty()) else { continue };
        // verl has moved its rewards: the old names are null if the new ones have the default.
        let moved = value.is_null()
            && (entry.key.starts_with("reward_model.") || entry.key.starts_with("custom_reward"));
        let is_file = typed(value).contains(['~', '$', '?']);
        if !moved && !is_file && normalised(entry.default) != normalised(&typed(value)) {
            wrong.push(format!("{}: {} in the table, {value} in the package", entry.key, entry.default));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

fn converted(arguments: &[String]) -> Import {
    import(arguments, Path::new("")).unwrap_or_else(|errors| panic!("{errors}"))
}

fn config(import: &Import) -> Config {
    let source = Source::new(SourceKind::File("imported.yaml".into()), import.yaml.clone());
    load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{errors}\n{}", import.yaml)).config
}

/// The lines in which two configurations differ.
fn differences(left: &Import, right: &Import) -> String {
    let lines = |import: &Import| serde_json::to_string_pretty(&config(import)).expect("a value");
    let (left, right) = (lines(left), lines(right));
    assert_eq!(left.lines().count(), right.lines().count());
    let differ = left.lines().zip(right.lines()).filter(|(left, right)| left != right);
    differ.map(|(left, right)| format!("{} / {}", left.trim(), right.trim())).collect::<Vec<_>>().join("\n")
}

/// A command that writes out verl's defaults is translated like one that leaves them out.
#[test]
fn defaults_said_and_not_said_are_the_same() {
    let files =
        ["data.train_files=gsm8k/train.parquet", "data.val_files=v", "actor_rollout_ref.model.path=m"];
    let files = files.map(str::to_owned);
    // The critic's start and the places of logs are not part of the algorithm; micro-batches and their limits
    // change no result.
    // A command that names GPUs learns on them.
    let left_out = [
        "critic.model.path",
        "trainer.n_gpus_per_node",
        "trainer.project_name",
        "trainer.experiment_name",
        "trainer.logger",
    ];
    let defaults = keys(VERL)
        .into_iter()
        .filter(|(key, _)| !left_out.contains(key))
        .map(|(key, value)| format!("{key}={}", typed(&value)));
    // The files of asynchronous trainers change a few of them.
    let asynchronous = ["algorithm.rollout_correction.bypass_mode", "data.gen_batch_size", "rollout.n="];
    let defaults = defaults.filter(|argument| !asynchronous.iter().any(|start| argument.starts_with(start)));
    let all: Vec<String> = defaults.chain(files.clone()).collect();
    // The remaining differences: the same in other words (columns and bounds that null selects, the critic's
    // as the policy's), memory, and output.
    assert_snapshot!(differences(&converted(&all), &converted(&files)), @r#"
"recompute_activations": true, / "recompute_activations": false,
"prompt": "prompt", / "prompt": null,
"data_source": "data_source", / "data_source": null,
"num_samples_shown": 0, / "num_samples_shown": 3,
"#);
}

/// RAGEN's configuration refers to itself, as its files do.
#[test]
fn defaults_of_ragen_said_and_not_said_are_the_same() {
    // The old filter's share, names, GPUs, and the engine: without one the run's own process samples.
    let left_out = [
        "trainer.n_gpus_per_node",
        "actor_rollout_ref.rollout.name",
        "actor_rollout_ref.rollout.rollout_filter_ratio",
        "trainer.logger",
        "trainer.project_name",
        "trainer.experiment_name",
    ];
    let is_in = |key: &str| {
        !left_out.contains(&key) && !REFUSED_AT_DEFAULT.iter().any(|start| key.starts_with(start))
    };
    let defaults = keys(RAGEN).into_iter().filter(|(key, _)| is_in(key));
    let all: Vec<String> = defaults.map(|(key, value)| format!("{key}={}", typed(&value))).collect();
    let bare = ["model_path=Qwen/Qwen2.5-3B-Instruct".to_owned()];
    assert_snapshot!(differences(&converted(&all), &converted(&bare)), @r#"
"micro_batch_size": 4, / "micro_batch_size": null,
"path": "hf://Qwen/Qwen2.5-3B-Instruct" / "path": null
"keep_last": 1, / "keep_last": 2,
"#);
}

/// Keys as one nested file.
fn as_file(name: &str, keys: &[(&str, Json)]) -> String {
    let mut root = Json::Object(serde_json::Map::new());
    for (key, value) in keys {
        let mut node = &mut root;
        for part in key.split('.') {
            // A key that is a section in another file keeps its first form.
            let Json::Object(section) = node else { break };
            node = section.entry(part).or_insert_with(|| Json::Object(serde_json::Map::new()));
        }
        if matches!(&*node, Json::Object(section) if section.is_empty()) {
            *node = value.clone();
        }
    }
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.yaml"));
    std::fs::write(&path, serde_json::to_string_pretty(&root).expect("a value")).expect("a value");
    path.to_str().expect("a value").to_owned()
}

#[test]
fn whole_files_are_taken_as_they_are() {
    let own = |key: &str| !key.starts_with("rollout.") && !key.starts_with("reward_model.reward_kwargs");
    let verl: Vec<_> = keys(VERL).into_iter().filter(|(key, _)| own(key)).collect();
    let files =
        ["data.train_files=t", "data.val_files=v", "actor_rollout_ref.model.path=m"].map(str::to_owned);
    let of_file: Vec<String> = std::iter::once(as_file("verl", &verl)).chain(files.clone()).collect();
    let typed: Vec<String> =
        verl.iter().map(|(key, value)| format!("{key}={}", typed(value))).chain(files).collect();
    assert_eq!(differences(&converted(&of_file), &converted(&typed)), "");
    let is_followed = |key: &str| !REFUSED_AT_DEFAULT.iter().any(|start| key.starts_with(start));
    let ragen: Vec<_> = keys(RAGEN).into_iter().filter(|(key, _)| is_followed(key)).collect();
    let files = ["data.train_files=t", "data.val_files=v"].map(str::to_owned);
    let import = converted(&[vec![as_file("ragen", &ragen)], files.to_vec()].concat());
    let config = config(&import);
    assert_eq!((config.rollout.n, config.data.train_batch_size, config.mini_batch_size()), (16, 8, 2));
    assert_eq!(config.environment.as_ref().map(|played| played.kind.as_str()), Some("sokoban"));
    assert_eq!(
        config.model.path.map(|path| path.to_string()).as_deref(),
        Some("hf://Qwen/Qwen2.5-3B-Instruct")
    );
}
