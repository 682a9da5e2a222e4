//! `run.python`: the interpreter for everything that names no other.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::render::json_of;
use crate::schema::{Config, LoggerKind};

/// Value of a key that names no interpreter.
const UNNAMED: &str = "python3";

/// Replaces an interpreter in a reward, and in the rewards within it.
fn replace(section: &mut Json, from: &str, to: &str) -> bool {
    let mut is_changed = false;
    if let Some(python) = section.get_mut("python").filter(|python| python.as_str() == Some(from)) {
        *python = to.into();
        is_changed = true;
    }
    let within = section.get_mut("sources").and_then(Json::as_object_mut);
    for section in within.into_iter().flat_map(|sources| sources.values_mut()) {
        is_changed |= replace(section, from, to);
    }
    is_changed
}

fn name_in<T: Serialize + DeserializeOwned>(section: &mut T, python: &str) {
    let mut json = json_of(section);
    if replace(&mut json, UNNAMED, python)
        && let Ok(named) = serde_json::from_value(json)
    {
        *section = named;
    }
}

impl Config {
    /// Gives `run.python` to everything that names no interpreter.
    pub(crate) fn name_interpreters(&mut self) {
        let python = self.run.python.to_string_lossy().into_owned();
        if python == UNNAMED {
            return;
        }
        if self.learner.python == UNNAMED {
            self.learner.python.clone_from(&python);
        }
        name_in(&mut self.objective.loss, &python);
        name_in(&mut self.objective.advantage, &python);
        self.reward.iter_mut().for_each(|reward| name_in(&mut reward.kind, &python));
        // A logger with its default settings is written as its name, so this is not done in JSON.
        let loggers = self.run.loggers.iter_mut().filter_map(LoggerKind::python_mut);
        loggers.filter(|own| own.0 == Path::new(UNNAMED)).for_each(|own| own.clone_from(&self.run.python));
        let environments = self.environment.iter_mut().chain(&mut self.more_environments);
        environments.for_each(|environment| name_in(&mut environment.kind, &python));
    }
}

/// The values of a configuration as they were before [`Config::name_interpreters`]: a copy with another
/// `run.python` has another interpreter everywhere.
pub(crate) fn unname(values: &mut Json) {
    let Some(python) = values.pointer("/run/python").and_then(Json::as_str).map(str::to_owned) else {
        return;
    };
    if python == UNNAMED {
        return;
    }
    const SECTIONS: [&str; 7] = [
        "/learner",
        "/environment",
        "/more_environments",
        "/reward",
        "/objective/loss",
        "/objective/advantage",
        "/run/loggers",
    ];
    for pointer in SECTIONS {
        let sections = values.pointer_mut(pointer).map_or_else(Vec::new, |found| match found {
            Json::Array(sections) => sections.iter_mut().collect(),
            section => vec![section],
        });
        for section in sections {
            replace(section, &python, UNNAMED);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::source::{Source, SourceKind};
    use crate::{Loaded, load_sources};

    fn loaded(text: &str, overrides: &[&str]) -> Loaded {
        let source = Source::new(SourceKind::File("a.yaml".into()), text.to_owned());
        let overrides: Vec<String> = overrides.iter().map(|&argument| argument.to_owned()).collect();
        load_sources(&[source], &overrides).unwrap_or_else(|errors| panic!("{errors}"))
    }

    const TEXT: &str = "
model: {init: {architecture: llama, hidden_size: 16, num_heads: 1}}
data: {task: arithmetic}
train: {total_steps: 1}
run: {loggers: [console, {kind: wandb}]}
objective:
  loss: {kind: python, path: a.py}
  advantage: {kind: python, path: a.py, python: /opt/python}
reward:
- {kind: number}
- {kind: python, path: a.py, kwargs: {python: python3}}
- {kind: python, name: own, path: a.py, python: /opt/python}
- {kind: by_source, sources: {a: {kind: math_verify}}}
";

    fn interpreters(loaded: &Loaded) -> Vec<String> {
        let values = serde_json::to_value(&loaded.config).expect("values");
        let at = |pointer: &str| values.pointer(pointer).map_or_else(String::new, ToString::to_string);
        let mut found = [
            "/learner/python",
            "/objective/loss/python",
            "/objective/advantage/python",
            "/reward/1/python",
            "/reward/1/kwargs/python",
            "/reward/2/python",
            "/reward/3/sources/a/python",
        ]
        .map(at)
        .to_vec();
        let mut loggers = loaded.config.run.loggers.clone();
        let interpreters = loggers.iter_mut().filter_map(crate::LoggerKind::python_mut);
        found.extend(interpreters.map(|python| format!("{:?}", python.0)));
        found
    }

    #[test]
    fn one_key_names_every_interpreter_that_nobody_named() {
        let none =
            r#""python3" "python3" "/opt/python" "python3" "python3" "/opt/python" "python3" "python3""#;
        let named = r#""/env/python" "/env/python" "/opt/python" "/env/python" "python3" "/opt/python" "/env/python" "/env/python""#;
        assert_eq!(interpreters(&loaded(TEXT, &[])).join(" "), none);
        let with = loaded(TEXT, &["run.python=/env/python"]);
        assert_eq!(interpreters(&with).join(" "), named);
        // A run's own copy leaves them unnamed, and another `run.python` goes to all of them.
        let copy = with.show();
        assert_eq!(interpreters(&loaded(&copy, &[])).join(" "), named);
        let other = interpreters(&loaded(&copy, &["run.python=/other"])).join(" ");
        assert_eq!(other, named.replace("/env/python", "/other"));
    }
}
