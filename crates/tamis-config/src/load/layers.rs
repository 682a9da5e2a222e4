//! The layers above the defaults and the preset, and how they become one tree.

use std::path::Path;
use std::sync::Arc;

use super::apply::apply;
use super::complete::{complete_rewards, complete_working_folders};
use super::defaults::default_tree;
use super::file::read_source;
use super::followers;
use super::loaded::Loaded;
use super::unread::{KNOWN_NAMES, drop_unread};
use crate::diagnostic::{ConfigErrors, Diagnostic, Problem, Severity};
use crate::foreign::{self, Lower, Note};
use crate::override_argument::{Operation, Override};
use crate::preset;
use crate::preset_difference;
use crate::reader::{Reader, Setting};
use crate::rules::{self, LoadPurpose};
use crate::schema::{Config, Preset};
use crate::source::{Source, SourceKind};
use crate::table;
use crate::tree::{Node, Value};
use crate::yaml;
use tamis_core::setting::Shape;

/// The layers above the defaults and the preset, as they are read.
pub(super) struct Layers {
    pub(super) files: Vec<Node>,
    overrides: Vec<Override>,
    /// Values from files of other systems.
    others: Vec<Override>,
    notes: Vec<Note>,
    diagnostics: Vec<Diagnostic>,
    /// A layer that is missing as a whole would only bring errors about what it holds.
    is_whole: bool,
}

impl Layers {
    pub(super) fn new(diagnostics: Vec<Diagnostic>) -> Self {
        let is_whole = diagnostics.is_empty();
        Self {
            files: Vec::new(),
            overrides: Vec::new(),
            others: Vec::new(),
            notes: Vec::new(),
            diagnostics,
            is_whole,
        }
    }

    pub(super) fn add_file(&mut self, source: &Arc<Source>) {
        let (tree, found) = yaml::parse_on(source);
        self.diagnostics.extend(found);
        let Some(mut tree) = tree else {
            self.is_whole = false;
            return;
        };
        if foreign::is_foreign_tree(&tree) {
            // Its paths are taken from elsewhere than ours.
            let tree = match &source.kind {
                SourceKind::File(path) => {
                    let kind = SourceKind::ForeignFile(path.clone());
                    yaml::parse_on(&Source::new(kind, source.text.clone())).0.unwrap_or(tree)
                }
                _ => tree,
            };
            self.notes.extend(foreign::flatten_tree(tree, &mut self.others));
            return;
        }
        if tree.is_null() {
            tree = Node::empty_map(tree.origin);
        }
        prune_empty_sections(&mut tree, table::root());
        followers::release(&mut tree);
        self.files.push(tree);
    }

    /// Parses the overrides and translates those of other systems, which come before the native ones.
    pub(super) fn add_arguments(&mut self, arguments: &[String]) {
        let num_found = self.diagnostics.len();
        let mut parsed = Vec::new();
        for argument in arguments {
            if let Some(path) = argument.strip_prefix("config=") {
                match read_source(Path::new(path), SourceKind::File(path.into())) {
                    Ok(source) => self.add_file(&source),
                    Err(found) => self.diagnostics.push(found),
                }
                continue;
            }
            match Override::parse(argument, foreign::value_form) {
                Ok(argument) => parsed.push(argument),
                Err(diagnostic) => self.diagnostics.push(diagnostic),
            }
        }
        let is_theirs = |argument: &Override| {
            table::place(&argument.path).is_err() && foreign::is_foreign(&argument.path)
        };
        let names_model = |argument: &Override| foreign::names_model(&argument.path);
        let whole = !self.others.is_empty() || (self.files.is_empty() && parsed.iter().any(names_model));
        let mut others = std::mem::take(&mut self.others);
        for argument in parsed {
            // In a whole command of theirs what nobody knows is theirs too.
            let is_other =
                || foreign::is_foreign_name(&argument.path) || table::place(&argument.path).is_err();
            if is_theirs(&argument) || (whole && is_other()) {
                foreign::flatten(argument, &mut others);
            } else {
                self.overrides.push(argument);
            }
        }
        if !others.is_empty() {
            // A file of another system may hold keys that both have, and that only ours understands.
            let (others, ours): (Vec<Override>, Vec<Override>) = others.into_iter().partition(|argument| {
                foreign::is_foreign_name(&argument.path) || table::place(&argument.path).is_err()
            });
            let translation = if whole {
                foreign::translate_whole(&others, self.native_tree())
            } else {
                foreign::translate(&others, self.lower())
            };
            self.diagnostics.extend(translation.diagnostics);
            self.notes.extend(translation.notes);
            let mut native = std::mem::take(&mut self.overrides);
            // What is added to a list of rewards comes after the list.
            let num_first = native.iter().rposition(sets_rewards).map_or(0, |index| index + 1);
            let changes_rewards = |argument: &Override| {
                num_first > 0 && !sets_rewards(argument) && argument.path.starts_with("reward")
            };
            let (late, early): (Vec<Override>, Vec<Override>) =
                translation.overrides.into_iter().partition(changes_rewards);
            let last = native.split_off(num_first);
            self.overrides = early.into_iter().chain(ours).chain(native).chain(late).chain(last).collect();
        }
        self.is_whole &= self.diagnostics.len() == num_found;
    }

    /// The defaults, the preset, the files and the overrides of ours, without the keys of other systems.
    fn native_tree(&self) -> Node {
        let mut tree = default_tree().clone();
        if let Some(preset) = chosen_preset(&self.files, &self.overrides) {
            tree.merge(preset.settings().clone(), table::root());
        }
        for file in &self.files {
            tree.merge(file.clone(), table::root());
        }
        for argument in &self.overrides {
            // What is wrong with it is reported when all layers are put together.
            apply(&mut tree, argument.clone(), &mut Vec::new());
        }
        tree
    }

    /// Changes that keys of other systems may need in the layers below them.
    fn lower(&self) -> Lower {
        let typed = self.overrides.iter().rev().find(|argument| sets_rewards(argument));
        let rewards = typed
            .and_then(Override::value)
            .or_else(|| self.files.iter().rev().find_map(|file| file.get("reward")));
        Lower {
            overlong_rewards: rewards.map(preset::overlong_rewards).unwrap_or_default(),
            is_overlong_in_preset: chosen_preset(&self.files, &self.overrides)
                .is_some_and(Preset::adds_overlong),
            tree: Some(self.native_tree()),
        }
    }

    pub(super) fn assemble(self, purpose: LoadPurpose) -> Result<Loaded, ConfigErrors> {
        let Self { files, overrides, mut notes, mut diagnostics, mut is_whole, .. } = self;
        let mut tree = default_tree().clone();
        let preset = chosen_preset(&files, &overrides);
        let mut shaping = None;
        if let Some(preset) = preset {
            let mut layer = preset.settings().clone();
            shaping = layer.take("reward");
            tree.merge(layer, table::root());
        }
        for file in files {
            if matches!(file.value, Value::Map(_)) {
                tree.merge(file, table::root());
            } else {
                diagnostics.push(Diagnostic::error(Problem::NotAMapping, Some(file.origin)));
                is_whole = false;
            }
        }
        for argument in overrides {
            apply(&mut tree, argument, &mut diagnostics);
        }
        drop_unread(&mut tree, &mut notes, &mut diagnostics);
        complete_rewards(&mut tree, shaping);
        complete_working_folders(&mut tree);

        let mut reader = Reader::new(KNOWN_NAMES);
        let config = Config::read(&tree, "", &mut reader);
        let mut found = Vec::new();
        if let (Some(config), true) = (&config, is_whole && purpose != LoadPurpose::Sections) {
            found = rules::check(config, &tree, &reader, purpose);
        }
        diagnostics.extend(reader.into_diagnostics());
        diagnostics.extend(found);
        let refuses = |found: &Diagnostic| match purpose {
            LoadPurpose::Showing => found.is_mistake(),
            LoadPurpose::Training | LoadPurpose::Evaluation | LoadPurpose::Sections => {
                found.severity == Severity::Error
            }
        };
        match config {
            Some(mut config) if !diagnostics.iter().any(refuses) => {
                let followed = config.fill_followers();
                let preset_differences = preset_difference::differences(&config, &tree);
                Ok(Loaded { config, warnings: diagnostics, notes, preset_differences, tree, followed })
            }
            _ => {
                // What nobody has said yet is no part of a mistake.
                diagnostics.retain(|found| found.severity != Severity::Error || refuses(found));
                Err(ConfigErrors { diagnostics })
            }
        }
    }
}

/// `section:` with nothing below it says nothing; it must not wipe out what lower layers hold.
fn prune_empty_sections(node: &mut Node, shape: &Shape) {
    let Value::Map(entries) = &mut node.value else { return };
    if !matches!(shape, Shape::Section { .. }) {
        return;
    }
    entries.retain_mut(|entry| {
        let shape = shape.of_key(&entry.key);
        let is_section = matches!(shape, Shape::Section { .. } | Shape::Tagged { .. });
        prune_empty_sections(&mut entry.node, &shape);
        !(is_section && entry.node.is_null())
    });
}

/// The preset that the topmost layer names; whether it exists is found when the whole is read.
fn chosen_preset(files: &[Node], overrides: &[Override]) -> Option<Preset> {
    let by_override = overrides.iter().rev().find(|argument| argument.path == "preset").map(Override::value);
    let node = match by_override {
        Some(value) => value?,
        None => files.iter().rev().find_map(|file| file.get("preset"))?,
    };
    Preset::read(node, "preset", &mut Reader::default())
}

/// Whether an override replaces the list of rewards.
fn sets_rewards(argument: &Override) -> bool {
    argument.path == "reward" && matches!(argument.operation, Operation::Set(_))
}
