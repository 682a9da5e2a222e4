//! The layers of a configuration, from the bottom: defaults, preset, files from left to right, overrides from
//! left to right.
//!
//! ```text
//! defaults.yaml -> preset -> files -> keys of other systems -> overrides   (one raw tree, every value with its origin)
//!               -> Config                                                    (typed; every violation reported)
//!               -> rules                                                     (settings against each other)
//! ```

mod apply;
mod complete;
mod defaults;
mod file;
pub(crate) mod followers;
mod layers;
mod loaded;
mod unread;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::diagnostic::{ConfigErrors, Diagnostic};
use crate::rules::LoadPurpose;
use crate::schema::Config;
use crate::source::{Source, SourceKind};
use crate::tree::Node;
use layers::Layers;

pub(crate) use apply::apply;
pub(crate) use complete::complete_working_folders_of;
pub(crate) use file::read_source;
pub use loaded::Loaded;
pub(crate) use unread::drop_unread;

/// Loads a configuration from files and command-line overrides.
///
/// Keys of verl, EasyR1, RAGEN and TRL are taken among the overrides and translated, and so are whole files
/// of theirs (`config=FILE` too); see [`Loaded::notes`]. Over a configuration of ours they change what they
/// name. A file of theirs is a whole configuration of that system, and so are their keys where there is no
/// file of ours and one of them names the model: what is left out has that system's default.
///
/// # Errors
/// Every violation in all layers at once, and the warnings with them.
pub fn load(files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(None, files, arguments, LoadPurpose::Training)
}

/// Loads the configuration of a run with further files and overrides over it, as [`load`] does; `own` is the
/// `config.yaml` that the run wrote.
///
/// # Errors
/// As [`load`].
pub fn load_of_run(own: &Path, files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(Some(own), files, arguments, LoadPurpose::Training)
}

/// Loads a configuration as [`load`] does (that of a run where `run` is its `config.yaml`), for measuring a
/// policy: training prompts, the length of a run and the like may be missing, and nothing is said about what
/// only training reads.
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

fn load_files(
    run: Option<&Path>,
    files: &[PathBuf],
    arguments: &[String],
    purpose: LoadPurpose,
) -> Result<Loaded, ConfigErrors> {
    let run = run.map(|own| (own, SourceKind::RunFile(own.to_owned())));
    let files = files.iter().map(|file| (file.as_path(), SourceKind::File(file.clone())));
    let mut sources = Vec::new();
    let mut diagnostics = Vec::new();
    for (path, kind) in run.into_iter().chain(files) {
        match read_source(path, kind) {
            Ok(source) => sources.push(source),
            Err(found) => diagnostics.push(found),
        }
    }
    load_layers(&sources, arguments, diagnostics, purpose)
}

/// Loads a configuration as [`load`] does, to look at it: what nobody has said yet, such as the model or the
/// data, stays an error in [`Loaded::warnings`] and refuses nothing.
///
/// # Errors
/// As [`load`], for what was said.
pub fn load_to_show(files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(None, files, arguments, LoadPurpose::Showing)
}

/// Loads a configuration from texts and overrides, as [`load`] does from files.
///
/// # Errors
/// As [`load`].
pub fn load_sources(sources: &[Arc<Source>], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_layers(sources, arguments, Vec::new(), LoadPurpose::Training)
}

/// Loads a configuration from texts and overrides, as [`load_to_show`] does from files.
///
/// # Errors
/// As [`load`], for what was said.
pub fn load_sources_to_show(sources: &[Arc<Source>], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_layers(sources, arguments, Vec::new(), LoadPurpose::Showing)
}

/// Reads some sections of a configuration from a text, for what uses them without a run: every key of theirs is
/// checked, but no rule between sections.
///
/// # Errors
/// Every key that is unknown or out of range.
pub fn load_sections(source: &Arc<Source>) -> Result<Config, ConfigErrors> {
    Ok(load_layers(std::slice::from_ref(source), &[], Vec::new(), LoadPurpose::Sections)?.config)
}

/// Checks a configuration that is a tree already.
pub(crate) fn load_tree(tree: Node) -> Result<Loaded, ConfigErrors> {
    let mut layers = Layers::new(Vec::new());
    layers.files.push(tree);
    layers.assemble(LoadPurpose::Training)
}

fn load_layers(
    sources: &[Arc<Source>],
    arguments: &[String],
    diagnostics: Vec<Diagnostic>,
    purpose: LoadPurpose,
) -> Result<Loaded, ConfigErrors> {
    let mut layers = Layers::new(diagnostics);
    for source in sources {
        layers.add_file(source);
    }
    layers.add_arguments(arguments);
    layers.assemble(purpose)
}
