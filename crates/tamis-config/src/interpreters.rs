//! `run.python`: the interpreter for everything that names no other.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tamis_core::setting::PYTHON_OF_RUN;

use crate::load::Loaded;
use crate::render::json_of;
use crate::schema::{Config, LoggerKind};
use crate::tree::{Node, join};

const SECTIONS: [&str; 7] = [
    "learner",
    "environment",
    "more_environments",
    "reward",
    "objective.loss",
    "objective.advantage",
    "run.loggers",
];

/// Keys whose values are the user's own, whatever they are named.
const OWN: [&str; 6] = ["kwargs", "args", "make_args", "level_args", "settings", "parameters"];

/// Calls a function with each interpreter in a section and the sections within it: its key, its value, and
/// whether it takes that of `run.python`, because nobody named another in the tree.
fn visit(section: &mut Json, node: Option<&Node>, path: &str, act: &mut dyn FnMut(&str, &mut String, bool)) {
    match section {
        Json::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                let index = index.to_string();
                visit(item, node.and_then(|node| node.at(&index)), &join(path, &index), act);
            }
        }
        Json::Object(keys) => {
            for (key, value) in keys.iter_mut().filter(|(key, _)| !OWN.contains(&key.as_str())) {
                let (node, path) = (node.and_then(|node| node.get(key)), join(path, key));
                match value {
                    Json::String(python) if key == "python" => {
                        let named = node.and_then(Node::as_text);
                        act(&path, python, named.is_none_or(|named| named == PYTHON_OF_RUN));
                    }
                    value => visit(value, node, &path, act),
                }
            }
        }
        _ => {}
    }
}

/// The same for all sections of a configuration.
fn visit_all(values: &mut Json, tree: &Node, act: &mut dyn FnMut(&str, &mut String, bool)) {
    for path in SECTIONS {
        if let Some(section) = values.pointer_mut(&format!("/{}", path.replace('.', "/"))) {
            visit(section, tree.at(path), path, act);
        }
    }
}

fn name_in<T: Serialize + DeserializeOwned>(section: &mut T, python: &str) {
    let mut json = json_of(section);
    let mut is_changed = false;
    visit(&mut json, None, "", &mut |_, own, _| {
        if own == PYTHON_OF_RUN {
            python.clone_into(own);
            is_changed = true;
        }
    });
    if is_changed && let Ok(named) = serde_json::from_value(json) {
        *section = named;
    }
}

impl Config {
    /// Gives the interpreter of `run.python` to everything that names no other.
    pub(crate) fn name_interpreters(&mut self) {
        let python = self.run.python.to_string_lossy().into_owned();
        if self.learner.python == PYTHON_OF_RUN {
            self.learner.python.clone_from(&python);
        }
        name_in(&mut self.objective.loss, &python);
        name_in(&mut self.objective.advantage, &python);
        self.reward.iter_mut().for_each(|reward| name_in(&mut reward.kind, &python));
        // A logger with its default settings is written as its name, so this is not done in JSON.
        let loggers = self.run.loggers.iter_mut().filter_map(LoggerKind::python_mut);
        let unnamed = loggers.filter(|own| own.to_str() == Some(PYTHON_OF_RUN));
        unnamed.for_each(|own| own.clone_from(&self.run.python));
        let environments = self.environment.iter_mut().chain(&mut self.more_environments);
        environments.for_each(|environment| name_in(&mut environment.kind, &python));
    }
}

/// The values of a configuration as they were before [`Config::name_interpreters`]: a copy with another
/// `run.python` has another interpreter everywhere, unless a section names one.
pub(crate) fn unname(values: &mut Json, tree: &Node) {
    visit_all(values, tree, &mut |_, python, follows| {
        if follows {
            PYTHON_OF_RUN.clone_into(python);
        }
    });
}

impl Loaded {
    /// The keys whose interpreter is that of `run.python` (`reward.0.python`).
    pub fn interpreters_of_run(&self) -> Vec<String> {
        let mut keys = Vec::new();
        visit_all(&mut json_of(&self.config), &self.tree, &mut |path, _, follows| {
            if follows {
                keys.push(path.to_owned());
            }
        });
        keys
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

    #[test]
    fn an_interpreter_that_was_named_stays_whatever_it_is() {
        let text = "
model: {init: {architecture: llama, hidden_size: 16, num_heads: 1}}
data: {task: arithmetic}
train: {total_steps: 1}
reward:
- {kind: number}
- {kind: python, name: default, path: a.py, python: python3}
- {kind: python, name: same, path: a.py, python: /env/python}
- {kind: python, name: of_run, path: a.py, python: run.python}
";
        let of = |loaded: &Loaded| {
            let values = serde_json::to_value(&loaded.config).expect("values");
            [1, 2, 3].map(|index| values["reward"][index]["python"].as_str().unwrap_or_default().to_owned())
        };
        let first = loaded(text, &["run.python=/env/python"]);
        assert_eq!(of(&first), ["python3", "/env/python", "/env/python"]);
        assert_eq!(first.interpreters_of_run(), ["learner.python", "reward.3.python"]);
        let copy = loaded(&first.show(), &["run.python=/other"]);
        assert_eq!(of(&copy), ["python3", "/env/python", "/other"]);
    }
}
