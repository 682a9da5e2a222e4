//! Loads a configuration that may contain keys and files of other systems beside ours.
//!
//! Those are translated first. The result takes precedence over our files, and our overrides take precedence
//! over it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tamis_config::load::{Layers, LoadPurpose, read_sources};
use tamis_config::override_argument::{Operation, Override};
use tamis_config::preset;
use tamis_config::source::{Source, SourceKind};
use tamis_config::{ConfigErrors, Loaded, Preset, table, yaml};

use crate::documents::{flatten, flatten_tree, is_foreign_tree};
use crate::owner::Owner;
use crate::shipped::{shipped, suggest_names};
use crate::supervised::{self, is_other, tables};
use crate::translate::{Lower, translate, translate_whole};
use crate::words::OTHER_NAMES;
use crate::{is_foreign, names_model, parse_argument};

/// Loads a configuration from files and command-line overrides.
///
/// Overrides may be keys of verl, EasyR1, RAGEN and TRL, and files may be theirs (also as `config=FILE`);
/// they are translated, see [`Loaded::notes`]. Over a configuration of ours, they only change what they name.
/// A file of theirs counts as a whole configuration of that system: whatever it leaves out has that system's
/// default. The same holds for keys of theirs if there is no file of ours and one of the keys names the
/// model.
///
/// # Errors
/// Every violation in all layers at once, together with the warnings.
pub fn load(files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(None, files, arguments, LoadPurpose::Training)
}

/// Loads the configuration of a run as [`load`] does, with further files and overrides over it. `own` is the
/// `config.yaml` that the run wrote.
///
/// # Errors
/// As [`load`].
pub fn load_of_run(own: &Path, files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(Some(own), files, arguments, LoadPurpose::Training)
}

/// Loads a configuration as [`load`] does, for measuring a policy. If `run` is a run's `config.yaml`, it is
/// the configuration of that run. Training prompts, the length of a run and the like may be missing, and keys
/// that only training reads are not checked.
///
/// # Errors
/// As [`load`].
pub fn load_for_evaluation(
    run: Option<&Path>,
    files: &[PathBuf],
    arguments: &[String],
) -> Result<Loaded, ConfigErrors> {
    load_files(run, files, arguments, LoadPurpose::Evaluation)
}

/// Loads a run's own configuration for its model and tokenizer alone: a run without validation data is fine.
///
/// # Errors
/// As [`load_to_show`].
pub fn load_run_to_show(own: &Path, arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(Some(own), &[], arguments, LoadPurpose::Showing)
}

/// Loads a configuration as [`load`] does, to look at it, as [`tamis_config::load_sources_to_show`].
///
/// # Errors
/// As [`load`], but only for values that were given.
pub fn load_to_show(files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(None, files, arguments, LoadPurpose::Showing)
}

/// Loads a configuration as [`load`] does, to check it. Its errors are in [`Loaded::warnings`], and what they
/// are about has its default ([`Loaded::is_unsound`]), so that everything else can be checked too.
///
/// # Errors
/// A file or an override that cannot be read at all.
pub fn load_to_check(files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(None, files, arguments, LoadPurpose::Checking)
}

/// Loads a configuration from texts and overrides, as [`load`] does from files.
///
/// # Errors
/// As [`load`].
pub fn load_sources(sources: &[Arc<Source>], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    Mixed::new().load(sources, arguments, LoadPurpose::Training)
}

/// Loads a configuration from texts and overrides, as [`load_to_show`] does from files.
///
/// # Errors
/// As [`load`], but only for values that were given.
pub fn load_sources_to_show(sources: &[Arc<Source>], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    Mixed::new().load(sources, arguments, LoadPurpose::Showing)
}

fn load_files(
    run: Option<&Path>,
    files: &[PathBuf],
    arguments: &[String],
    purpose: LoadPurpose,
) -> Result<Loaded, ConfigErrors> {
    let mut mixed = Mixed::new();
    let mut sources = read_sources(run, &[], &mut mixed.layers);
    for file in files {
        if let Some(text) = shipped(file) {
            sources.push(Source::new(SourceKind::File(file.clone()), text));
            continue;
        }
        let before = mixed.layers.diagnostics.len();
        sources.extend(read_sources(None, std::slice::from_ref(file), &mut mixed.layers));
        suggest_names(file, mixed.layers.diagnostics.get_mut(before..).unwrap_or_default());
    }
    mixed.load(&sources, arguments, purpose)
}

/// Layers of ours, and values from files of other systems.
struct Mixed {
    layers: Layers,
    others: Vec<Override>,
    /// The supervised trainer whose command this is, if it is.
    trainer: Option<Owner>,
}

impl Mixed {
    fn new() -> Self {
        Self { layers: Layers::new(OTHER_NAMES), others: Vec::new(), trainer: None }
    }

    fn load(
        mut self,
        sources: &[Arc<Source>],
        arguments: &[String],
        purpose: LoadPurpose,
    ) -> Result<Loaded, ConfigErrors> {
        self.trainer = arguments.iter().find_map(|word| supervised::of_mark(word));
        for source in sources {
            self.add_file(source);
        }
        self.add_arguments(arguments);
        self.layers.assemble(purpose)
    }

    fn add_file(&mut self, source: &Arc<Source>) {
        let Some(tree) = self.layers.parse(source) else { return };
        if !is_foreign_tree(&tree, self.trainer) {
            self.layers.add_file(tree);
            return;
        }
        // Its relative paths start from another folder than ours.
        let tree = match &source.kind {
            SourceKind::File(path) => {
                let kind = SourceKind::TranslatedFile(path.clone());
                yaml::parse_on(&Source::new(kind, source.text.clone())).0.unwrap_or(tree)
            }
            _ => tree,
        };
        self.layers.notes.extend(flatten_tree(tree, &tables(self.trainer), &mut self.others));
    }

    /// Parses the overrides and translates those of other systems, which come before ours.
    fn add_arguments(&mut self, arguments: &[String]) {
        let num_found = self.layers.diagnostics.len();
        let mut parsed = Vec::new();
        for argument in arguments.iter().filter(|word| supervised::of_mark(word).is_none()) {
            if let Some(path) = argument.strip_prefix("config=") {
                if let Some(source) = self.layers.read(Path::new(path), SourceKind::File(path.into())) {
                    self.add_file(&source);
                }
                continue;
            }
            match parse_argument(self.trainer, argument) {
                Ok(argument) => parsed.push(argument),
                Err(diagnostic) => self.layers.diagnostics.push(diagnostic),
            }
        }
        let is_theirs =
            |argument: &Override| table::place(&argument.path).is_err() && is_foreign(&argument.path);
        let names_model = |argument: &Override| names_model(&argument.path);
        let whole = self.trainer.is_some()
            || !self.others.is_empty()
            || (self.layers.files.is_empty() && parsed.iter().any(names_model));
        let mut others = std::mem::take(&mut self.others);
        for argument in parsed {
            // In a whole command of another system, unknown keys count as that system's.
            if is_theirs(&argument) || (whole && is_other(self.trainer, &argument)) {
                flatten(argument, &tables(self.trainer), &mut others);
            } else {
                self.layers.overrides.push(argument);
            }
        }
        if !others.is_empty() || self.trainer.is_some() {
            self.translate(others, whole);
        }
        self.layers.is_whole &= self.layers.diagnostics.len() == num_found;
    }

    fn translate(&mut self, others: Vec<Override>, whole: bool) {
        // A file of another system may hold keys that both systems have and only ours accepts.
        let (others, ours): (Vec<Override>, Vec<Override>) =
            others.into_iter().partition(|argument| is_other(self.trainer, argument));
        let translation = if whole {
            translate_whole(&others, self.layers.tree(), self.trainer)
        } else {
            translate(&others, self.lower())
        };
        self.layers.diagnostics.extend(translation.diagnostics);
        self.layers.notes.extend(translation.notes);
        let mut native = std::mem::take(&mut self.layers.overrides);
        // What is appended to a list of rewards has to come after the list.
        let num_first = native.iter().rposition(sets_rewards).map_or(0, |index| index + 1);
        let changes_rewards = |argument: &Override| {
            num_first > 0 && !sets_rewards(argument) && argument.path.starts_with("reward")
        };
        let (late, early): (Vec<Override>, Vec<Override>) =
            translation.overrides.into_iter().partition(changes_rewards);
        let last = native.split_off(num_first);
        self.layers.overrides = early.into_iter().chain(ours).chain(native).chain(late).chain(last).collect();
    }

    /// Facts about the layers below that keys of other systems may change.
    fn lower(&self) -> Lower {
        let typed = self.layers.overrides.iter().rev().find(|argument| sets_rewards(argument));
        let rewards = typed
            .and_then(Override::value)
            .or_else(|| self.layers.files.iter().rev().find_map(|file| file.get("reward")));
        Lower {
            overlong_rewards: rewards.map(preset::overlong_rewards).unwrap_or_default(),
            is_overlong_in_preset: self.layers.preset().is_some_and(Preset::adds_overlong),
            tree: Some(self.layers.tree()),
        }
    }
}

/// Whether an override replaces the list of rewards.
fn sets_rewards(argument: &Override) -> bool {
    argument.path == "reward" && matches!(argument.operation, Operation::Set(_))
}
