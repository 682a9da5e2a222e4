//! Overrides that are written in a file, such as a sweep's, and passed to a command as arguments.

use std::path::Path;

use crate::load::complete_working_folders_of;
use crate::override_argument::{Operation, Override, value_form};
use crate::path::take_paths_from;
use crate::render::flow;
use crate::table;
use tamis_core::setting::Shape;

/// Rewrites an override from a file in a folder for a command that is started elsewhere.
///
/// Relative paths in it are relative to that folder, as in a configuration. Programs of rewards and
/// environments that it defines as a whole start there. Keys of other systems, whose paths are relative to
/// the working directory, stay unchanged, as does text that is no override.
///
/// ```
/// use tamis_config::take_argument_from;
/// let folder = std::path::Path::new("sweeps");
/// assert_eq!(take_argument_from(folder, "data.train=train.jsonl"), "data.train=sweeps/train.jsonl");
/// assert_eq!(take_argument_from(folder, "rollout.n=4"), "rollout.n=4");
/// ```
pub fn take_argument_from(folder: &Path, argument: &str) -> String {
    let unchanged = || argument.to_owned();
    if folder.as_os_str().is_empty() {
        return unchanged();
    }
    let Ok(Override { path, operation, .. }) = Override::parse(argument, value_form) else {
        return unchanged();
    };
    let (Operation::Set(mut value) | Operation::Add(mut value)) = operation else { return unchanged() };
    if table::place(&path).is_err() {
        return unchanged();
    }
    let shape = path.split('.').fold(table::root().clone(), |shape, part| shape.of_key(part));
    let before = value.clone();
    // An item that is added to a list is one of its items.
    let item = match shape.without_null() {
        Shape::List(item)
            if argument.starts_with('+') && !matches!(value.value, crate::tree::Value::List(_)) =>
        {
            (**item).clone()
        }
        _ => shape,
    };
    take_paths_from(&mut value, &item, Some(folder));
    complete_working_folders_of(&path, &mut value, Some(folder));
    if value == before {
        return unchanged();
    }
    let key = argument.split_once('=').map_or(argument, |(key, _)| key);
    format!("{key}={}", flow(&value.to_json()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(argument: &str) -> String {
        take_argument_from(Path::new("in/sweeps"), argument)
    }

    #[test]
    fn paths_are_taken_from_the_folder() {
        assert_eq!(taken("model.path=../runs/a/step_0"), "model.path=in/sweeps/../runs/a/step_0");
        assert_eq!(taken("data.train=[a.jsonl, /b.jsonl]"), "data.train=[in/sweeps/a.jsonl, /b.jsonl]");
        assert_eq!(taken("data.val='a b.jsonl'"), "data.val=in/sweeps/a b.jsonl");
        assert_eq!(taken("data={train: a.jsonl}"), "data={train: in/sweeps/a.jsonl}");
        assert_eq!(taken("model.path=~/models/a"), "model.path=~/models/a");
    }

    #[test]
    fn programs_are_started_in_the_folder() {
        assert_eq!(
            taken("reward=[{kind: command, argv: [python3, score.py]}, {kind: number}]"),
            "reward=[{kind: command, argv: [python3, score.py], working_dir: in/sweeps}, {kind: number}]"
        );
        assert_eq!(
            taken("+reward={kind: command, argv: [./score], working_dir: there}"),
            "+reward={kind: command, argv: [./score], working_dir: in/sweeps/there}"
        );
        assert_eq!(
            taken("environment={kind: program, argv: [python3, game.py]}"),
            "environment={kind: program, argv: [python3, game.py], working_dir: in/sweeps}"
        );
    }

    #[test]
    fn what_is_no_path_stays_as_it_is() {
        for argument in [
            "rollout.n=4",
            "model.path=Qwen/Qwen2.5-0.5B",
            "model.path=hf://Qwen/Qwen2.5-0.5B",
            "model.init=null",
            "~data.train",
            "data.train=[a.jsonl",
            "actor_rollout_ref.model.path=models/a",
            "no_such.key=a/b",
            "filter.p=0.50",
            "plain.yaml",
        ] {
            assert_eq!(taken(argument), argument);
        }
        assert_eq!(take_argument_from(Path::new(""), "data.train=a.jsonl"), "data.train=a.jsonl");
    }
}
