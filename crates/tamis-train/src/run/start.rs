//! The ways in which a run begins.

use tamis_config::{Config, Loaded};

use crate::assemble::places::Places;
use tamis_run::directory::RunDirectory;

/// A configuration with its text as `tamis config show` prints it.
#[derive(Debug, Clone)]
pub struct ConfigText {
    /// The values.
    pub config: Config,
    /// The text that goes into the run directory.
    pub text: String,
    /// Lines that the run prints at the start: warnings, translations of foreign keys, differences from the
    /// preset.
    pub notes: Vec<String>,
    /// The line that comes before all others.
    pub headline: Option<String>,
    /// Further lines for `run.log`. The console shows them only if it shows everything.
    pub details: Vec<String>,
    /// Places of the keys that can be checked only with data and model.
    pub places: Places,
}

impl ConfigText {
    /// Reads a loaded configuration.
    pub fn of(loaded: Loaded, notes: Vec<String>) -> Self {
        let places = Places::of(&loaded);
        Self {
            text: loaded.show(),
            notes,
            headline: None,
            details: Vec::new(),
            places,
            config: loaded.config,
        }
    }
}

impl RunStart {
    pub(super) fn config(&self) -> &ConfigText {
        match self {
            Self::New(given) | Self::Resume { now: given, .. } => given,
        }
    }
}

/// The ways in which a run begins.
pub enum RunStart {
    /// In a new directory.
    New(ConfigText),
    /// From the last checkpoint of a directory that this process holds.
    Resume {
        /// The directory.
        directory: RunDirectory,
        /// The configuration that it was begun with.
        was: Box<Config>,
        /// The configuration now.
        now: ConfigText,
    },
}
