//! The layers above the defaults and the preset, and how they become one tree.

use std::path::Path;
use std::sync::Arc;

use super::apply::apply;
use super::complete::{complete_rewards, complete_working_folders};
use super::defaults::default_tree;
use super::file::read_source;
use super::followers;
use super::loaded::Loaded;
use super::renamed;
use super::unread::drop_unread;
use crate::catalogue;
use crate::diagnostic::{ConfigErrors, Diagnostic, Problem, Severity};
use crate::note::Note;
use crate::override_argument::{Override, value_form};
use crate::preset_difference;
use crate::reader::{KnownNames, OtherNames, Reader};
use crate::rules::{self, LoadPurpose};
use crate::schema::{Config, Preset};
use crate::source::{Source, SourceKind};
use crate::table;
use crate::tree::{Node, Value};
use crate::yaml;
use tamis_core::setting::Shape;

/// The layers above the defaults and the preset: files from left to right, and overrides above all of them.
/// Translations from other systems are added to the overrides.
#[derive(Debug)]
pub struct Layers {
    /// The files, lowest first.
    pub files: Vec<Node>,
    /// The overrides, lowest first.
    pub overrides: Vec<Override>,
    /// A note on each key of another system.
    pub notes: Vec<Note>,
    /// The findings so far.
    pub diagnostics: Vec<Diagnostic>,
    /// Whether no layer is missing. A missing layer would only cause errors about its content.
    pub is_whole: bool,
    others: OtherNames,
}

impl Layers {
    /// Without layers; `others` suggests meanings of unknown keys.
    pub fn new(others: OtherNames) -> Self {
        Self {
            files: Vec::new(),
            overrides: Vec::new(),
            notes: Vec::new(),
            diagnostics: Vec::new(),
            is_whole: true,
            others,
        }
    }

    /// Reads a file into a source.
    pub fn read(&mut self, path: &Path, kind: SourceKind) -> Option<Arc<Source>> {
        read_source(path, kind).map_err(|found| self.refuse([found])).ok()
    }

    /// Reads a source into a tree.
    pub fn parse(&mut self, source: &Arc<Source>) -> Option<Node> {
        let (tree, found) = yaml::parse_on(source);
        self.diagnostics.extend(found);
        self.is_whole &= tree.is_some();
        tree
    }

    /// Reports findings because of which a layer is missing.
    pub fn refuse(&mut self, found: impl IntoIterator<Item = Diagnostic>) {
        let num_found = self.diagnostics.len();
        self.diagnostics.extend(found);
        self.is_whole &= self.diagnostics.len() == num_found;
    }

    /// Adds a file of ours above the present ones.
    pub fn add_file(&mut self, mut tree: Node) {
        if tree.is_null() {
            tree = Node::empty_map(tree.origin);
        }
        prune_empty_sections(&mut tree, table::root());
        followers::release(&mut tree);
        self.files.push(tree);
    }

    /// Adds overrides of ours above the present ones.
    pub(super) fn add_arguments(&mut self, arguments: &[String]) {
        for argument in arguments {
            match Override::parse(argument, value_form) {
                Ok(argument) => self.overrides.push(argument),
                Err(found) => self.refuse([found]),
            }
        }
    }

    /// The preset that the topmost layer names; whether it exists is found when the whole is read.
    pub fn preset(&self) -> Option<Preset> {
        chosen_preset(&self.files, &self.overrides)
    }

    /// The merged tree of the defaults, the preset, the files and the overrides.
    pub fn tree(&self) -> Node {
        let mut tree = default_tree().clone();
        if let Some(preset) = self.preset() {
            tree.merge(preset.settings().clone(), table::root());
        }
        // Faults are reported when all layers are assembled.
        let mut unheard = Vec::new();
        for mut file in self.files.iter().cloned() {
            renamed::in_file(&mut file, &mut unheard);
            tree.merge(file, table::root());
        }
        for mut argument in self.overrides.iter().cloned() {
            renamed::in_override(&mut argument, &mut unheard);
            apply(&mut tree, argument, self.others, &mut unheard);
        }
        tree
    }

    /// Loads the configuration that the layers make.
    ///
    /// # Errors
    /// Every violation in all layers at once, and the warnings with them.
    pub fn assemble(self, purpose: LoadPurpose) -> Result<Loaded, ConfigErrors> {
        let Self { files, overrides, mut notes, mut diagnostics, mut is_whole, others } = self;
        let mut tree = default_tree().clone();
        let preset = chosen_preset(&files, &overrides);
        let mut shaping = None;
        if let Some(preset) = preset {
            let mut layer = preset.settings().clone();
            shaping = layer.take("reward");
            tree.merge(layer, table::root());
        }
        for mut file in files {
            renamed::in_file(&mut file, &mut diagnostics);
            if matches!(file.value, Value::Map(_)) {
                tree.merge(file, table::root());
            } else {
                let problem = Problem::rule(
                    "a configuration is a mapping of sections",
                    "for example: `rollout: {n: 8}`",
                );
                diagnostics.push(Diagnostic::error(problem, Some(file.origin)));
                is_whole = false;
            }
        }
        for mut argument in overrides {
            renamed::in_override(&mut argument, &mut diagnostics);
            apply(&mut tree, argument, others, &mut diagnostics);
        }
        drop_unread(&mut tree, &mut notes, &mut diagnostics);
        complete_rewards(&mut tree, shaping);
        complete_working_folders(&mut tree);

        let mut reader = Reader::new(KnownNames {
            paths: table::suggestion_keys,
            others,
            elsewhere: catalogue::elsewhere,
        });
        let config = Config::read(&tree, &mut reader);
        let mut found = Vec::new();
        if let (Some(config), true) = (&config, is_whole && purpose != LoadPurpose::Sections) {
            found = rules::check(config, &tree, &reader, purpose);
        }
        let unsound = reader.unsound_keys().to_vec();
        diagnostics.extend(reader.into_diagnostics());
        diagnostics.extend(found);
        let refuses = |found: &Diagnostic| match purpose {
            LoadPurpose::Checking => !is_whole && found.severity == Severity::Error,
            LoadPurpose::Showing => found.is_mistake(),
            LoadPurpose::Training | LoadPurpose::Evaluation | LoadPurpose::Sections => {
                found.severity == Severity::Error
            }
        };
        match config {
            Some(mut config) if !diagnostics.iter().any(refuses) => {
                let followed = config.fill_followers();
                config.name_interpreters();
                let preset_differences = preset_difference::differences(&config, &tree);
                Ok(Loaded {
                    config,
                    warnings: diagnostics,
                    notes,
                    preset_differences,
                    tree,
                    followed,
                    unsound,
                })
            }
            _ => {
                // Values that are only missing are no mistakes to show.
                diagnostics.retain(|found| {
                    found.severity != Severity::Error || refuses(found) || purpose == LoadPurpose::Checking
                });
                Err(ConfigErrors { diagnostics })
            }
        }
    }
}

/// An empty `section:` sets nothing; it must not remove values of lower layers.
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
    Reader::default().read(node, "preset")
}
