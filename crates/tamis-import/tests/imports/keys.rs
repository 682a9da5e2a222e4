//! Every key of TRL and EasyR1 from their sources (`scripts/foreign-keys`), with its translation. Their
//! defaults change nothing.

use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tamis_config::source::{Source, SourceKind};
use tamis_import::{Becomes, ForeignKey};
use tamis_import::{Import, Owner, import, load_sources};

/// The tables that the sources were made into.
const SOURCES: [(Owner, &str); 2] =
    [(Owner::Trl, include_str!("keys/trl.tsv")), (Owner::EasyR1, include_str!("keys/easyr1.tsv"))];

/// The keys of a table with their defaults.
fn keys_of(table: &str) -> Vec<(&str, &str)> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once('\t').unwrap_or_else(|| panic!("no default: {line}"))).collect()
}

/// The entry of a key: by name, otherwise by a pattern with `*`.
fn entry(owner: Owner, key: &str) -> Option<&'static ForeignKey> {
    let keys = owner.keys();
    let below =
        |entry: &&ForeignKey| entry.key.strip_suffix('*').is_some_and(|prefix| key.starts_with(prefix));
    keys.iter().find(|entry| entry.key == key).or_else(|| keys.iter().find(below))
}

/// A complete command of a system.
fn base(owner: Owner) -> Vec<String> {
    let words: &[&str] = match owner {
        Owner::Trl => &["model_name_or_path=m", "dataset_name=d.jsonl", "reward_funcs=accuracy_reward"],
        _ => &[
            "worker.actor.model.model_path=m",
            "data.train_files=t.jsonl",
            "data.val_files=v.jsonl",
            "worker.rollout.n=4",
            "worker.reward.reward_function=r.py:f",
        ],
    };
    words.iter().map(|&word| word.to_owned()).collect()
}

fn with(owner: Owner, more: &[String]) -> Vec<String> {
    [base(owner), more.to_vec()].concat()
}

/// The converted configuration with every final value, without the model's path and similar keys.
fn resolved(import: &Import) -> serde_json::Value {
    let source = Source::new(SourceKind::File("imported.yaml".into()), import.yaml.clone());
    let loaded = load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{errors}\n{}", import.yaml));
    serde_json::to_value(&loaded.config).expect("a configuration is JSON")
}

/// Paths at which two values differ.
fn differences(path: &str, left: &serde_json::Value, right: &serde_json::Value) -> Vec<String> {
    match (left.as_object(), right.as_object()) {
        (Some(left), Some(right)) if left.keys().eq(right.keys()) => left
            .iter()
            .flat_map(|(key, value)| differences(&format!("{path}.{key}"), value, &right[key]))
            .collect(),
        _ if left == right => Vec::new(),
        _ => vec![format!("{path}: {left}, {right}")],
    }
}

#[test]
fn what_every_key_of_trl_and_easyr1_becomes() {
    for (owner, table) in SOURCES {
        let mut text = String::new();
        for (key, default) in keys_of(table) {
            let entry = entry(owner, key).unwrap_or_else(|| panic!("{owner}: {key} is not known"));
            let becomes = match &entry.becomes {
                Becomes::Key(ours) => (*ours).to_owned(),
                Becomes::By(_, ours) => format!("{ours}, with related keys"),
                Becomes::NoEffect(reason) => format!("no effect: {reason}"),
                Becomes::Unless(allowed, reason) => {
                    assert!(
                        allowed.contains(&default) || (default == "false" && allowed.contains(&"False")),
                        "{owner}: {key} is refused at its default, {default}"
                    );
                    format!("refused unless {default}: {reason}")
                }
            };
            let _ = writeln!(text, "{key} = {default}\n    {becomes}");
        }
        insta::assert_snapshot!(format!("keys_of_{}", owner.as_str().to_lowercase()), text);
    }
}

/// The defaults that the tables print are those of the sources.
#[test]
fn defaults_of_trl_and_easyr1_are_theirs() {
    let same = |left: &str, right: &str| {
        if let (Ok(left), Ok(right)) = (left.parse::<f64>(), right.parse::<f64>()) {
            return left.to_bits() == right.to_bits();
        }
        let plain = |text: &str| text.to_lowercase().replace(['"', ' '], "");
        plain(left) == plain(right)
    };
    for (owner, table) in SOURCES {
        for (key, default) in keys_of(table) {
            let printed = entry(owner, key).map_or("", |entry| entry.default);
            // One entry cannot describe a whole section.
            let is_section = entry(owner, key).is_some_and(|entry| entry.key.ends_with('*'));
            assert!(
                is_section || same(printed, default),
                "{owner}: {key} is {default} there, {printed} here"
            );
        }
    }
}

/// Keys whose default differs from not being given.
const TOLD_APART: &[(&str, &str)] = &[
    ("trainer.n_gpus_per_node", "a command that names its GPUs learns on them"),
    ("gradient_checkpointing", "memory alone: it is not switched on where nobody asks"),
    (
        "worker.actor.model.enable_gradient_checkpointing",
        "memory alone: it is not switched on where nobody asks",
    ),
    ("report_to", "TensorBoard's files are written unless loggers are named"),
    ("trainer.logger", "TensorBoard's files are written unless loggers are named"),
    ("per_device_train_batch_size", "the size of a device's pass is taken where it is named"),
    (
        "worker.actor.micro_batch_size_per_device_for_update",
        "the size of a device's pass is taken where it is named",
    ),
    (
        "worker.rollout.name",
        "who names no engine samples in the run's own process, with the same distribution",
    ),
    ("trainer.project_name", "runs are in `runs` unless a project is named"),
    ("trainer.experiment_name", "a run is called `run` unless it is named"),
    ("trainer.val_generations_to_log", "some samples are shown unless another number is asked for"),
    ("worker.rollout.n", "the base command has another"),
    ("worker.actor.model.model_path", "the base command has another"),
    ("worker.reward.reward_function", "the base command has another"),
    ("data.train_files", "the base command has another"),
    ("data.val_files", "the base command has another"),
    ("model_name_or_path", "the base command has another"),
    ("dataset_name", "the base command has another"),
    ("reward_funcs", "the base command has another"),
];

#[test]
fn a_default_that_is_given_changes_nothing() {
    let mut unused: Vec<&str> = TOLD_APART.iter().map(|(key, _)| *key).collect();
    for (owner, table) in SOURCES {
        let plain = import(&base(owner), Path::new("")).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(plain.remaining, [], "the base command of {owner} lacks nothing");
        let expected = resolved(&plain);
        let mut told_apart = Vec::new();
        for (key, default) in keys_of(table) {
            if TOLD_APART.iter().any(|(shown_text, _)| *shown_text == key) {
                unused.retain(|shown_text| *shown_text != key);
                continue;
            }
            let given = with(owner, &[format!("{key}={default}")]);
            let given =
                import(&given, Path::new("")).unwrap_or_else(|errors| panic!("{key}={default}: {errors}"));
            assert_eq!(given.remaining, [], "{owner}: {key}={default} alarms");
            let apart = differences("", &expected, &resolved(&given));
            if !apart.is_empty() {
                told_apart.push(format!("{key}={default}: {}", apart.join(", ")));
            }
        }
        assert!(told_apart.is_empty(), "{owner}: told apart:\n{}", told_apart.join("\n"));
    }
    assert_eq!(unused, [""; 0], "exceptions that no key needs");
}

/// All of them at once, as in a configuration that a system writes.
#[test]
fn a_command_with_every_default_is_taken() {
    for (owner, table) in SOURCES {
        let named = base(owner);
        let names: Vec<&str> = named.iter().filter_map(|word| Some(word.split_once('=')?.0)).collect();
        let all: Vec<String> = keys_of(table)
            .iter()
            .filter(|(key, _)| !names.contains(key))
            .map(|(key, default)| format!("{key}={default}"))
            .collect();
        let import =
            import(&with(owner, &all), Path::new("")).unwrap_or_else(|errors| panic!("{owner}: {errors}"));
        assert_eq!(import.remaining, [], "{owner}");
        resolved(&import);
    }
}

/// Values for keys in commands, valid and invalid.
const VALUES: [&str; 18] = [
    "0", "1", "2", "8", "16", "0.5", "0.1", "1e-6", "-1", "True", "False", "null", "none", "steps", "cosine",
    "linear", "batch", "dr_grpo",
];

fn commands() -> impl Strategy<Value = (Owner, Vec<String>)> {
    let of = |(owner, table): (Owner, &'static str)| {
        let key = prop::sample::select(keys_of(table));
        let value = prop_oneof![2 => Just(None), 3 => prop::sample::select(VALUES.to_vec()).prop_map(Some)];
        let word =
            (key, value).prop_map(|((key, default), value)| format!("{key}={}", value.unwrap_or(default)));
        prop::collection::vec(word, 1..7).prop_map(move |words| (owner, words))
    };
    prop_oneof![of(SOURCES[0]), of(SOURCES[1])]
}

/// `import` prints a configuration that a run accepts, or refuses it with the argument.
fn imported_soundly(cases: u32) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let is_sound = |(owner, words): (Owner, Vec<String>)| {
        match import(&with(owner, &words), Path::new("")) {
            Ok(import) => {
                let source = Source::new(SourceKind::File("imported.yaml".into()), import.yaml.clone());
                let loaded = load_sources(&[source], &[]);
                let lacks =
                    import.remaining.iter().any(|found| found.severity == tamis_config::Severity::Error);
                if let Err(errors) = loaded {
                    prop_assert!(lacks, "{:?}\n{}\n{}", words, errors, import.yaml);
                }
            }
            Err(errors) => {
                for found in &errors.diagnostics {
                    prop_assert!(found.hint().is_some(), "{:?}: no fix in {}", words, found);
                }
            }
        }
        Ok(())
    };
    TestRunner::new(config).run(&commands(), is_sound).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn what_is_imported_is_sound() {
    imported_soundly(400);
}

#[test]
#[ignore = "long: .ci/all"]
fn much_that_is_imported_is_sound() {
    imported_soundly(3000);
}
