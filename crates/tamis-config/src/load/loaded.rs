//! Result of loading a configuration.

use crate::diagnostic::{Diagnostic, Problem};
use crate::note::Note;
use crate::preset_difference::PresetDifference;
use crate::reader::is_among;
use crate::schema::Config;
use crate::source::{Origin, SourceKind};
use crate::tree::Node;

/// A configuration that is ready to run, with its warnings and notes.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Warnings about surprises, each with a hint.
    pub warnings: Vec<Diagnostic>,
    /// A note on each key of another system.
    pub notes: Vec<Note>,
    /// Values of the preset that are overridden.
    pub preset_differences: Vec<PresetDifference>,
    pub(crate) tree: Node,
    /// Unset keys that follow others.
    pub(crate) followed: Vec<String>,
    /// Keys whose values had faults and are replaced by their defaults; only if it was loaded to be checked.
    pub(crate) unsound: Vec<String>,
}

impl Loaded {
    /// Place where a value was set, for messages about findings that need data and model: the file and line,
    /// the command line, or the preset and the place that chose it. `None` for a default.
    pub fn place(&self, key: &str) -> Option<String> {
        let origin = self.origin(key)?;
        match (&origin.source.kind, self.origin("preset")) {
            (SourceKind::Default, _) => None,
            (SourceKind::Preset(_), Some(chosen)) => Some(format!("{chosen}, {origin}")),
            _ => Some(origin.to_string()),
        }
    }

    /// Whether the value of a key is not the user's, because that had a fault. Only a configuration that was
    /// loaded to be checked has such keys.
    pub fn is_unsound(&self, key: &str) -> bool {
        is_among(&self.unsound, key)
    }

    /// Origin of a key's value.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.tree.at(key).map(|node| &node.origin)
    }

    /// A setting that a run refuses, shown at the first of some keys that the user wrote (`reward[0].path`),
    /// otherwise at the first that exists.
    pub fn refuse(&self, keys: &[String], message: &str, hint: Option<&str>) -> Diagnostic {
        let (key, origin) = self.locate(keys);
        let hint = hint.map(str::to_owned);
        Diagnostic::error(Problem::Refused { key, message: message.to_owned(), hint }, origin)
    }

    /// A setting without effect, which only shows once the named files or programs are available.
    pub fn ignore(&self, key: &str, reason: &str) -> Diagnostic {
        let (key, origin) = self.locate(&[key.to_owned()]);
        let message = format!("`{key}` has no effect: {reason}");
        Diagnostic::warning(Problem::rule_about(&[&key], message, format!("remove `{key}`")), origin)
    }

    /// A placeholder path.
    pub fn placeholder(&self, key: &str, path: &str, is_refused: bool) -> Diagnostic {
        let (key, origin) = self.locate(&[key.to_owned()]);
        let problem = Problem::rule_about(
            &[&key],
            format!("`{key}` is `{path}`, a placeholder"),
            "replace it with your own path",
        );
        if is_refused { Diagnostic::error(problem, origin) } else { Diagnostic::warning(problem, origin) }
    }

    /// The first of some keys that a user wrote, or a section around one; if there is none, the first that
    /// exists.
    fn locate(&self, keys: &[String]) -> (String, Option<Origin>) {
        let paths: Vec<String> = keys.iter().map(|key| key.replace('[', ".").replace(']', "")).collect();
        let written = |path: &str| {
            let own = self.tree.place_of(path).filter(|origin| origin.is_from_user());
            own.or_else(|| self.tree.at(path)?.first_written()).cloned()
        };
        let found = keys.iter().zip(&paths).find_map(|(key, path)| Some((key.clone(), written(path)?)));
        if let Some((key, origin)) = found {
            return (key, Some(origin));
        }
        let there = keys.iter().zip(&paths).find(|(_, path)| self.tree.at(path).is_some());
        let key = there.map(|(key, _)| key).or(keys.first()).cloned().unwrap_or_default();
        let around = |path: &String| path.match_indices('.').rev().find_map(|(dot, _)| written(&path[..dot]));
        (key, paths.first().and_then(around))
    }
}
