//! The layers of a configuration, from the bottom: defaults, preset, files from left to right, overrides from
//! left to right.
//!
//! ```text
//! defaults.yaml -> preset -> files -> overrides   (one raw tree, every value with its origin)
//!               -> Config                            (typed; every violation reported)
//!               -> rules                             (settings against each other)
//! ```

mod apply;
mod complete;
mod defaults;
mod file;
pub(crate) mod followers;
mod layers;
mod loaded;
mod renamed;
mod unread;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::diagnostic::ConfigErrors;
use crate::reader::OtherNames;
use crate::schema::Config;
use crate::source::{Source, SourceKind};

pub use crate::rules::LoadPurpose;
pub use apply::apply;
pub(crate) use complete::complete_working_folders_of;
pub use file::{read_native, read_source};
pub use layers::Layers;
pub use loaded::Loaded;
pub use unread::drop_unread;

/// A function that loads a configuration like [`load`], possibly with more features.
pub type LoadFunction = fn(&[PathBuf], &[String]) -> Result<Loaded, ConfigErrors>;

/// Loads a configuration from files and command-line overrides.
///
/// # Errors
/// Every violation in all layers at once, and the warnings with them.
pub fn load(files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(None, files, arguments)
}

/// Loads the configuration of a run with further files and overrides above it, like [`load`]; `own` is the
/// `config.yaml` that the run wrote.
pub fn load_of_run(own: &Path, files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_files(Some(own), files, arguments)
}

fn load_files(run: Option<&Path>, files: &[PathBuf], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    let mut layers = Layers::new(OtherNames::NONE);
    let sources = read_sources(run, files, &mut layers);
    load_layers(layers, &sources, arguments, LoadPurpose::Training)
}

/// Reads the `config.yaml` of a run and further files. Unreadable files are reported in the layers.
pub fn read_sources(run: Option<&Path>, files: &[PathBuf], layers: &mut Layers) -> Vec<Arc<Source>> {
    let run = run.map(|own| (own, SourceKind::RunFile(own.to_owned())));
    let files = files.iter().map(|file| (file.as_path(), SourceKind::File(file.clone())));
    run.into_iter().chain(files).filter_map(|(path, kind)| layers.read(path, kind)).collect()
}

/// Loads a configuration from texts and overrides, as [`load`] does from files.
pub fn load_sources(sources: &[Arc<Source>], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_layers(Layers::new(OtherNames::NONE), sources, arguments, LoadPurpose::Training)
}

/// Loads a configuration like [`load_sources`], only to show it. Missing values, such as the model or the
/// data, are errors in [`Loaded::warnings`] and do not refuse it.
pub fn load_sources_to_show(sources: &[Arc<Source>], arguments: &[String]) -> Result<Loaded, ConfigErrors> {
    load_layers(Layers::new(OtherNames::NONE), sources, arguments, LoadPurpose::Showing)
}

/// Reads some sections of a configuration from a text, for use without a run. Every key in them is checked,
/// but no rule between sections.
///
/// # Errors
/// Every key that is unknown or out of range.
pub fn load_sections(source: &Arc<Source>) -> Result<Config, ConfigErrors> {
    Ok(load_layers(Layers::new(OtherNames::NONE), std::slice::from_ref(source), &[], LoadPurpose::Sections)?
        .config)
}

fn load_layers(
    mut layers: Layers,
    sources: &[Arc<Source>],
    arguments: &[String],
    purpose: LoadPurpose,
) -> Result<Loaded, ConfigErrors> {
    for source in sources {
        if let Some(tree) = layers.parse(source) {
            layers.add_file(tree);
        }
    }
    layers.add_arguments(arguments);
    layers.assemble(purpose)
}
