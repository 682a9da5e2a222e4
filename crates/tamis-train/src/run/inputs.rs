//! What a resumed run reads again beside its training prompts: validation prompts and the files of the user's
//! functions.
//!
//! They may change between two processes of a run, for example because a reward function had a bug. A
//! checkpoint holds their checksums, so that a resume can print what has changed. Validations before and
//! after such a change measure different things, so nothing compares them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tamis_config::{Config, json_of};
use tamis_rollout::PreparedPrompt;

use super::prepare::Preparation;

/// Largest file whose checksum is taken. A larger one is no source text.
const MOST: u64 = 64 << 20;
/// Sections whose files train and do not measure.
const TRAINS: &str = "objective.";

/// Checksums of a run's inputs, and how a validation samples.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunInputs {
    /// CRC-32 of the validation prompts with their columns.
    pub validation_crc32: u32,
    /// The settings of `validate` on which an outcome depends.
    pub sampling: BTreeMap<String, String>,
    /// CRC-32 of each file by the key that names it. Files that cannot be read are missing.
    pub files: BTreeMap<String, u32>,
}

/// How the inputs of a resumed run differ from those of its last checkpoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InputChanges {
    /// Changes after which a validation measures something else.
    pub(super) measured: Vec<String>,
    /// Changed files that only train.
    pub(super) trained: Vec<String>,
    /// Whether a reward or an environment is among them.
    pub(super) scores: bool,
}

impl RunInputs {
    /// The inputs as they are now.
    pub(super) fn read(config: &Config, validation: &[PreparedPrompt]) -> Self {
        let validate = &config.validate;
        let sampling = [
            ("n", validate.n.to_string()),
            ("temperature", validate.temperature.to_string()),
            ("top_p", validate.top_p.to_string()),
        ];
        let sum = |(key, path): (String, PathBuf)| {
            Some((key, crc32fast::hash(&tamis_file::read(&path, MOST).ok()?)))
        };
        Self {
            validation_crc32: sum_of_validation(validation),
            sampling: sampling.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            files: named_files(config).into_iter().filter_map(sum).collect(),
        }
    }

    /// What has changed since `before`.
    pub(super) fn changes(&self, before: &Self, config: &Config) -> InputChanges {
        let mut changes = InputChanges::default();
        let paths: BTreeMap<String, PathBuf> = named_files(config).into_iter().collect();
        let keys = self.files.keys().chain(before.files.keys().filter(|key| !self.files.contains_key(*key)));
        for key in keys.filter(|key| self.files.get(*key) != before.files.get(*key)) {
            let file = match paths.get(key) {
                Some(path) => format!("{} ({key})", path.display()),
                None => format!("the file of {key}"),
            };
            if key.starts_with(TRAINS) {
                changes.trained.push(file);
            } else {
                changes.measured.push(file);
                changes.scores = true;
            }
        }
        if self.validation_crc32 != before.validation_crc32 {
            changes.measured.push("the validation prompts".to_owned());
        }
        for (name, value) in &self.sampling {
            if before.sampling.get(name) != Some(value) {
                changes.measured.push(format!("validate.{name}"));
            }
        }
        changes
    }
}

impl InputChanges {
    pub(super) fn warnings(&self, step: u64) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.measured.is_empty() {
            warnings.push(format!(
                "changed on resume: {}; validations up to step {step} are not compared with later ones",
                self.measured.join(", ")
            ));
        }
        if !self.trained.is_empty() {
            warnings.push(format!(
                "changed on resume: {}; the steps after {step} train with it",
                self.trained.join(", ")
            ));
        }
        warnings
    }
}

impl Preparation<'_> {
    /// The inputs of the run as they are now, and how they differ from those of the last checkpoint. Prints
    /// what has changed.
    pub(super) fn read_inputs(&self, validation: &[PreparedPrompt]) -> (RunInputs, InputChanges) {
        let inputs = RunInputs::read(self.config, validation);
        let changes =
            self.state().map(|state| inputs.changes(&state.inputs, self.config)).unwrap_or_default();
        for warning in changes.warnings(self.step()) {
            self.ui.warn(&warning);
        }
        (inputs, changes)
    }
}

/// CRC-32 of validation prompts as the data has them, with all that a reward may read. It does not depend on
/// the tokenizer, so that runs of different models can be compared.
fn sum_of_validation(prompts: &[PreparedPrompt]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    for PreparedPrompt { prompt, .. } in prompts {
        let columns: BTreeMap<&String, &Value> = prompt.columns.iter().collect();
        let images: Vec<&str> = prompt.images.iter().map(tamis_data::image::PromptImage::name).collect();
        let all = (&prompt.content, &prompt.ground_truth, &prompt.data_source, columns, images);
        sum.update(&serde_json::to_vec(&all).unwrap_or_default());
    }
    sum.finalize()
}

/// The files of rewards, environments, and of a loss or an advantage of the user's own, by their keys.
fn named_files(config: &Config) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for (key, section) in [
        ("reward", json_of(&config.reward)),
        ("environment", json_of(&config.environment)),
        ("more_environments", json_of(&config.more_environments)),
        ("objective.loss", json_of(&config.objective.loss)),
        ("objective.advantage", json_of(&config.objective.advantage)),
    ] {
        walk(key, &section, &mut found);
    }
    found
}

/// Adds what keys named `path` and `argv` name, at any depth.
fn walk(key: &str, value: &Value, found: &mut Vec<(String, PathBuf)>) {
    match value {
        Value::Object(map) => {
            let folder = map.get("working_dir").and_then(Value::as_str).map(Path::new);
            for (name, value) in map {
                let key = format!("{key}.{name}");
                match (name.as_str(), value) {
                    ("path", Value::String(text)) => {
                        found.extend(source_file(text).map(|path| (key, path)));
                    }
                    ("argv", Value::Array(words)) => {
                        for (place, word) in words.iter().filter_map(Value::as_str).enumerate() {
                            let path = folder.map_or_else(|| PathBuf::from(word), |folder| folder.join(word));
                            if path.is_file() && (place > 0 || is_script(&path)) {
                                found.push((format!("{key}[{place}]"), path));
                            }
                        }
                    }
                    _ => walk(&key, value, found),
                }
            }
        }
        Value::Array(list) => {
            for (place, value) in list.iter().enumerate() {
                walk(&format!("{key}[{place}]"), value, found);
            }
        }
        _ => {}
    }
}

/// The file that a `path` names, which may have the name of a function behind a colon.
fn source_file(text: &str) -> Option<PathBuf> {
    let file = |text: &str| Some(PathBuf::from(text)).filter(|path| path.is_file());
    file(text).or_else(|| file(text.rsplit_once(':')?.0))
}

/// Whether a program is a script and no interpreter.
fn is_script(path: &Path) -> bool {
    tamis_file::read(path, MOST).is_ok_and(|bytes| bytes.starts_with(b"#!"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{loaded, prepared, prompt};
    use tamis_data::prompt::Prompt;

    fn with_truth(truth: &str) -> PreparedPrompt {
        prepared(Prompt { ground_truth: Some(truth.to_owned()), ..prompt(0, "1+1=") })
    }

    #[test]
    fn files_of_functions_are_found_and_a_change_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path.display().to_string()
        };
        let (reward, loss) = (write("r.py", "return 0"), write("loss.py", "loss"));
        let (script, data) = (write("score.sh", "#!/bin/sh"), write("rules.txt", "1"));
        let yaml = format!(
            "model: {{path: m}}\ndata: {{task: arithmetic}}\ntrain: {{total_steps: 1}}\nreward: [{{kind: python, name: a, path: \
             {reward}}}, {{kind: command, name: b, argv: ['{script}', '{data}', --fast]}}]\nobjective: {{loss: {{kind: python, path: \
             '{loss}:f'}}}}\n"
        );
        let config = loaded(&yaml, &[]).config;
        let prompts = [with_truth("2")];
        let before = RunInputs::read(&config, &prompts);
        let keys: Vec<&str> = before.files.keys().map(String::as_str).collect();
        assert_eq!(keys, ["objective.loss.path", "reward[0].path", "reward[1].argv[0]", "reward[1].argv[1]"]);
        assert_eq!(before.changes(&before, &config), InputChanges::default());

        write("r.py", "return 1");
        let now = RunInputs::read(&config, &prompts);
        let changes = now.changes(&before, &config);
        assert!(changes.scores);
        assert_eq!(changes.measured, [format!("{reward} (reward[0].path)")]);
        write("loss.py", "another");
        let now = RunInputs::read(&config, &prompts);
        assert_eq!(now.changes(&before, &config).trained, [format!("{loss} (objective.loss.path)")]);
    }

    #[test]
    fn other_prompts_and_another_sampling_are_changes() {
        let yaml = "model: {path: m}\ndata: {task: arithmetic}\ntrain: {total_steps: 1}\n";
        let config = loaded(yaml, &[]).config;
        let read = |truth: &str| RunInputs::read(&config, &[with_truth(truth)]);
        let changes = read("3").changes(&read("2"), &config);
        assert_eq!(changes.measured, ["the validation prompts"]);
        assert!(!changes.scores);
        assert_eq!(
            changes.warnings(4),
            [
                "changed on resume: the validation prompts; validations up to step 4 are not compared with later ones"
            ]
        );
        let more = loaded(yaml, &["validate.n=4"]).config;
        let sampled = RunInputs::read(&more, &[with_truth("2")]);
        assert_eq!(sampled.changes(&read("2"), &more).measured, ["validate.n"]);
    }
}
