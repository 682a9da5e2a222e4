//! The settings of a run, each with its origin, and the settings in which runs differ.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use tamis_config::source::{Source, SourceKind};
use tamis_config::tree::{Node, Value};
use tamis_config::yaml::parse;

/// One value of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    pub(crate) value: String,
    /// Its origin, as the run recorded it; empty if it did not.
    pub(crate) origin: String,
}

impl Setting {
    /// Whether the user chose it, in a file, on the command line or by a preset.
    pub(crate) fn is_chosen(&self) -> bool {
        !self.origin.is_empty() && self.origin != "default" && !self.origin.contains(" follows ")
    }
}

/// All values of a configuration by dotted key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Settings(pub(crate) BTreeMap<String, Setting>);

impl Settings {
    /// Reads the `config.yaml` of a run.
    ///
    /// # Errors
    /// A text about what is wrong with it.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text =
            tamis_file::read_text(path, tamis_file::MAX_CONFIGURATION).map_err(|error| error.to_string())?;
        Self::parse(path, text)
    }

    fn parse(path: &Path, text: String) -> Result<Self, String> {
        let source = Source::new(SourceKind::RunFile(path.to_owned()), text);
        let tree = parse(&source).map_err(|found| {
            found
                .first()
                .map_or_else(|| "it is no YAML".to_owned(), |first| first.to_string().trim().to_owned())
        })?;
        let lines: Vec<&str> = source.text.lines().collect();
        let mut settings = BTreeMap::new();
        collect(&tree, "", &lines, &mut settings);
        Ok(Self(settings))
    }

    /// The settings of another trainer's run: only its number of steps is known.
    pub(crate) fn of_another(system: &str, total_steps: Option<u64>) -> Self {
        let steps = total_steps.map(|steps| Setting { value: steps.to_string(), origin: system.to_owned() });
        Self(steps.map(|steps| ("train.total_steps".to_owned(), steps)).into_iter().collect())
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(|setting| setting.value.as_str())
    }

    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.parse().ok()
    }
}

/// Puts the values below a node under their keys. A value in one line stays one value.
fn collect(node: &Node, key: &str, lines: &[&str], into: &mut BTreeMap<String, Setting>) {
    let join = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    match &node.value {
        Value::Map(entries) if !entries.is_empty() => {
            for entry in entries {
                collect(&entry.node, &join(&entry.key), lines, into);
            }
        }
        Value::List(items) if items.iter().any(|item| !matches!(item.value, Value::Scalar { .. })) => {
            for (place, item) in items.iter().enumerate() {
                collect(item, &join(&place.to_string()), lines, into);
            }
        }
        _ => {
            let origin = origin(node, lines).to_owned();
            into.insert(key.to_owned(), Setting { value: text(node), origin });
        }
    }
}

fn text(node: &Node) -> String {
    if node.is_null() {
        return "null".to_owned();
    }
    match &node.value {
        Value::Scalar { text, .. } => text.clone(),
        Value::List(items) => format!("[{}]", items.iter().map(text).collect::<Vec<_>>().join(", ")),
        Value::Map(_) => "{}".to_owned(),
    }
}

/// The comment behind a value, or in the line above it.
fn origin<'a>(node: &Node, lines: &[&'a str]) -> &'a str {
    let number = node.origin.line.saturating_sub(1);
    let line = lines.get(number).copied().unwrap_or_default();
    let behind = node.origin.column.saturating_sub(1) + node.origin.length;
    let rest = line.char_indices().nth(behind).map_or("", |(at, _)| line.get(at..).unwrap_or_default());
    if let Some((_, comment)) = rest.split_once("  # ") {
        return comment.trim();
    }
    let above = number.checked_sub(1).and_then(|above| lines.get(above)).map_or("", |line| line.trim());
    above.strip_prefix("# ").unwrap_or_default()
}

/// The keys in which runs differ, in order, with the setting of each. The run's folder and its name are left
/// out.
pub(crate) fn differences<'a>(runs: &[&'a Settings]) -> Vec<(&'a str, Vec<Option<&'a Setting>>)> {
    let mut keys: Vec<&str> = runs.iter().flat_map(|run| run.0.keys()).map(String::as_str).collect();
    keys.sort_unstable();
    keys.dedup();
    let of = |key: &'a str| (key, runs.iter().map(|run| run.0.get(key)).collect::<Vec<_>>());
    let value = |setting: Option<&'a Setting>| setting.map(|setting| setting.value.as_str());
    keys.into_iter()
        .filter(|key| !["run.name", "run.dir"].contains(key))
        .map(of)
        .filter(|(_, settings)| settings.windows(2).any(|pair| value(pair[0]) != value(pair[1])))
        .collect()
}

/// The keys of rewards in which runs differ: their values cannot be compared. Runs without settings are left
/// out.
pub(crate) fn unlike_rewards<'a>(runs: impl Iterator<Item = &'a Settings>) -> Vec<&'a str> {
    let known: Vec<&Settings> = runs.filter(|settings| !settings.0.is_empty()).collect();
    let keys = differences(&known).into_iter().map(|(key, _)| key);
    keys.filter(|key| *key == "reward" || key.starts_with("reward.")).collect()
}

/// How the validations of runs differ, so that their figures cannot be compared.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct UnlikeValidations<'a> {
    /// Keys by which the runs have other prompts.
    pub(crate) prompts: Vec<&'a str>,
    /// Keys by which they sample them otherwise.
    pub(crate) sampling: Vec<&'a str>,
}

impl UnlikeValidations<'_> {
    pub(crate) fn is_any(&self) -> bool {
        !self.prompts.is_empty() || !self.sampling.is_empty()
    }
}

/// Whether a run takes its validation prompts from files, or from its training data.
fn has_files(settings: &Settings) -> bool {
    settings.get("data.val").is_some_and(|files| files != "[]")
        || settings.0.keys().any(|key| key.starts_with("data.val."))
}

/// How the validations of runs differ. Each run has its settings, and the checksum of its validation prompts
/// if it is known: files may have been moved, or have changed under their names. Runs without settings are
/// left out.
pub(crate) fn unlike_validations<'a>(
    runs: impl Iterator<Item = (&'a Settings, Option<u64>)>,
) -> UnlikeValidations<'a> {
    let (known, sums): (Vec<&Settings>, Vec<Option<u64>>) =
        runs.filter(|(settings, _)| !settings.0.is_empty()).unzip();
    let holds_out = known.iter().any(|run| {
        !has_files(run) && run.get("data.val_fraction").is_some_and(|fraction| fraction != "null")
    });
    let chooses = |key: &str| match key {
        "data.val"
        | "data.val_fraction"
        | "data.task"
        | "data.arithmetic.val_size"
        | "validate.max_prompts" => true,
        "data.train" => holds_out,
        key => {
            key.starts_with("data.val.")
                || key.starts_with("data.arithmetic.levels")
                || holds_out && key.starts_with("data.train.")
        }
    };
    let keys: Vec<&str> = differences(&known).into_iter().map(|(key, _)| key).collect();
    let samples = |key: &str| ["validate.n", "validate.temperature", "validate.top_p"].contains(&key);
    let sampling = keys.iter().copied().filter(|key| samples(key)).collect();
    let mut prompts: Vec<&str> = keys.into_iter().filter(|key| chooses(key)).collect();
    if let Some(sums) = sums.into_iter().collect::<Option<Vec<u64>>>() {
        let is_same = sums.windows(2).all(|pair| pair[0] == pair[1]);
        if is_same {
            prompts.clear();
        } else if prompts.is_empty() && known.iter().all(|run| has_files(run)) {
            prompts.push("data.val");
        }
    }
    UnlikeValidations { prompts, sampling }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Settings {
        Settings::parse(Path::new("config.yaml"), text.to_owned()).unwrap()
    }

    #[test]
    fn values_with_their_origins() {
        let settings = parsed(
            "run:\n  name: \"a # b\"  # my.yaml:3\n  seed: 1  # default\n# command line: reward=[...]\nreward:\n  - {kind: number, weight: 2}  # my.yaml:9\ndata:\n  # a/long/path:7\n  train: [x, y]\nempty:\n",
        );
        let shown =
            |key: &str| settings.0.get(key).map(|setting| (setting.value.as_str(), setting.origin.as_str()));
        assert_eq!(shown("run.name"), Some(("a # b", "my.yaml:3")));
        assert_eq!(shown("run.seed"), Some(("1", "default")));
        assert_eq!(shown("reward.0.kind"), Some(("number", "my.yaml:9")));
        assert_eq!(shown("data.train"), Some(("[x, y]", "a/long/path:7")));
        assert_eq!(shown("empty"), Some(("null", "")));
        assert!(settings.0["run.name"].is_chosen() && !settings.0["run.seed"].is_chosen());
        assert_eq!(settings.number("run.seed"), Some(1));
    }

    #[test]
    fn differences_of_runs() {
        let one = parsed("run: {name: a, seed: 1}\nx: 1\n");
        let other = parsed("run: {name: b, seed: 2}\nx: 1\ny: 2\n");
        let found = differences(&[&one, &other]);
        assert_eq!(found.iter().map(|(key, _)| *key).collect::<Vec<_>>(), ["run.seed", "y"]);
        assert_eq!(found[1].1[0], None);
        assert!(differences(&[&one]).is_empty());
    }

    #[test]
    fn rewards_that_differ() {
        let one = parsed("run: {seed: 1}\nreward:\n  - {kind: number, weight: 1}\n");
        let other = parsed("run: {seed: 2}\nreward:\n  - {kind: number, weight: 2}\n");
        assert_eq!(unlike_rewards([&one, &other].into_iter()), ["reward.0.weight"]);
        assert!(unlike_rewards([&one, &Settings::default(), &one].into_iter()).is_empty());
    }

    #[test]
    fn validations_that_differ() {
        let run = |text: &str| parsed(&format!("run: {{name: a}}\n{text}\n"));
        let of = |one: (&str, Option<u64>), other: (&str, Option<u64>)| {
            let (first, second) = (run(one.0), run(other.0));
            let found = unlike_validations([(&first, one.1), (&second, other.1)].into_iter());
            (found.prompts.join(" "), found.sampling.join(" "))
        };
        let pair = |prompts: &str, sampling: &str| (prompts.to_owned(), sampling.to_owned());
        let (here, there) = ("data: {val: [a.jsonl], train: [x]}", "data: {val: [b.jsonl], train: [y]}");
        assert_eq!(of((here, None), (there, None)), pair("data.val", ""));
        assert_eq!(of((here, Some(1)), (there, Some(1))), pair("", ""), "a file that was moved");
        assert_eq!(of((here, Some(1)), (here, Some(2))), pair("data.val", ""), "a file that has changed");
        assert_eq!(of((here, None), (here, Some(2))), pair("", ""));
        let made = "data: {task: arithmetic, val: []}\nvalidate: {n: 1, temperature: 0, test_freq: 2}";
        let other = "data: {task: arithmetic, val: []}\nvalidate: {n: 4, temperature: 1, test_freq: 3}";
        assert_eq!(of((made, None), (other, None)), pair("", "validate.n validate.temperature"));
        assert_eq!(of((made, Some(1)), (made, Some(2))), pair("", ""), "prompts of another seed");
        let held = "data: {val: [], val_fraction: 0.1, train: [x]}";
        let less = "data: {val: [], val_fraction: 0.1, train: [y]}";
        assert_eq!(of((held, None), (less, None)), pair("data.train", ""));
    }

    #[test]
    fn what_is_no_configuration() {
        assert!(Settings::parse(Path::new("config.yaml"), "a: [".to_owned()).is_err());
    }
}
