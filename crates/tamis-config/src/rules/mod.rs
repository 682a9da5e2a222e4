//! The rules between settings: a combination that cannot work is an error, one that will surprise is a
//! warning.
//!
//! Each rule is in one place: its condition, followed by its keys, the message and the hint. Each file has
//! the rules about one topic.

mod cluster;
mod critic;
mod environments;
mod filter;
mod learner;
mod loggers;
mod model;
mod objective;
mod rewards;
mod schedule;
mod servers;
mod sft;
mod simulate;
mod teacher;
mod train;
mod validation;

use crate::diagnostic::{Diagnostic, Problem, Severity};
use crate::reader::Reader;
use crate::schema::Config;
use crate::source::{Source, SourceKind};
use crate::table;
use crate::tree::Node;
use crate::yaml;

/// The purpose that a configuration is loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadPurpose {
    /// A whole run.
    Training,
    /// Measuring a policy on held-out prompts, without rules that are only about training.
    Evaluation,
    /// A check of a whole run: what is wrong does not hide what else can be checked.
    Checking,
    /// Showing it: a missing value, such as the model, is a warning.
    Showing,
    /// Use of some sections without a run, without rules between sections.
    Sections,
}

/// Checks a configuration against every rule. Rules about a key with a wrong value are skipped, because the
/// value in `config` is then not the user's.
pub(crate) fn check(config: &Config, tree: &Node, reader: &Reader, purpose: LoadPurpose) -> Vec<Diagnostic> {
    let mut checker = Checker { config, tree, reader, found: Vec::new() };
    if config.is_sft_alone() && purpose != LoadPurpose::Evaluation {
        checker.policy();
        checker.sft(true);
        checker.learner();
        checker.cluster();
        checker.loggers();
        checker.unread_alone();
        return checker.found;
    }
    checker.model();
    if purpose != LoadPurpose::Evaluation {
        checker.training_prompts();
        checker.sft(false);
    }
    checker.prompts();
    checker.rewards();
    if purpose == LoadPurpose::Evaluation {
        checker.evaluation();
        checker.has_servers();
        return checker.found;
    }
    checker.servers();
    checker.learner();
    checker.cluster();
    checker.filter(purpose);
    checker.schedule();
    checker.objective();
    checker.teachers();
    checker.penalties();
    checker.train();
    checker.critic();
    checker.lost_signal();
    checker.early_stop();
    checker.validation();
    checker.loggers();
    checker.simulate();
    checker.found
}

struct Checker<'c> {
    config: &'c Config,
    tree: &'c Node,
    reader: &'c Reader,
    found: Vec<Diagnostic>,
}

impl Checker<'_> {
    /// Reports an error between keys, shown at the first of them that the user wrote.
    fn error(&mut self, keys: &[&str], message: impl Into<String>, hint: impl Into<String>) {
        self.report(Severity::Error, keys, message.into(), hint.into(), false);
    }

    /// Reports an error about a missing value, such as the model. `tamis config import` still prints the
    /// configuration.
    fn missing(&mut self, keys: &[&str], message: impl Into<String>, hint: impl Into<String>) {
        self.report(Severity::Error, keys, message.into(), hint.into(), true);
    }

    /// Reports a warning about keys, shown at the first of them that the user wrote.
    fn warn(&mut self, keys: &[&str], message: impl Into<String>, hint: impl Into<String>) {
        self.report(Severity::Warning, keys, message.into(), hint.into(), false);
    }

    fn report(&mut self, severity: Severity, keys: &[&str], message: String, hint: String, is_missing: bool) {
        if keys.iter().any(|key| self.reader.is_unsound(key)) {
            return;
        }
        let origin = keys
            .iter()
            .filter_map(|key| self.tree.place_of(&key.replace('[', ".").replace(']', "")))
            .find(|origin| origin.is_from_user())
            .cloned();
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        let problem = Problem::Rule { keys, message, hint, is_missing };
        self.found.push(Diagnostic { severity, problem: Box::new(problem), origin });
    }

    /// Warns of each key that a user set although nothing reads it. A default that is written out (as in a
    /// run's own `config.yaml`) does not count.
    fn warn_ignored(&mut self, keys: &[&str], reason: &str) {
        for key in keys {
            if self.is_asked_for(key) {
                self.warn(&[key], format!("`{key}` has no effect: {reason}"), format!("remove `{key}`"));
            }
        }
    }

    /// Whether a user set a key to another value than its default.
    fn is_asked_for(&self, key: &str) -> bool {
        // In a list as in a tree, and as in the table of keys.
        let place = key.replace('[', ".").replace(']', "");
        let without_number =
            |part: &'_ str| part.trim_start_matches(|letter: char| letter.is_ascii_digit()).to_owned();
        let key: String = key.split_inclusive('[').map(without_number).collect();
        // A key of a kind has the kind's default.
        let kind = place.rsplit_once('.').zip(key.rsplit_once('.')).and_then(|((at, _), (section, name))| {
            let kind = self.tree.at(&format!("{at}.kind"))?.as_text()?;
            Some(format!("{section}<{kind}>.{name}"))
        });
        let is_it = |path: &str| path == key || Some(path) == kind.as_deref();
        let spec = table::keys().iter().find(|entry| is_it(&entry.path)).map(|entry| &entry.spec);
        let is_default = |node: &Node| {
            spec.and_then(|spec| yaml::parse(&Source::new(SourceKind::Default, &*spec.default)).ok())
                .is_some_and(|default| default.to_json() == node.to_json())
        };
        self.tree
            .at(&place)
            .is_some_and(|node| node.origin.is_from_user() && !node.is_null() && !is_default(node))
    }
}
