//! The hub behind the kernel's contract.

use std::path::PathBuf;

use tamis_config::locate::{Extent, FoundModel, FoundSplit, Locate, LocateError, WantedSplit};
use tamis_run::log::transfer::Transfer;

use crate::hub::Hub;
use crate::progress::DownloadProgress;
use crate::settings::HubSettings;

/// Looks up names on the hub of the environment, with progress on stderr.
#[derive(Debug)]
pub struct NamesOnHub {
    hub: Hub,
    progress: Shown,
}

impl NamesOnHub {
    /// With the settings of the environment. Nothing is requested or read before a name is looked up.
    pub fn of_environment() -> Self {
        Self { hub: Hub::new(HubSettings::from_environment()), progress: Shown(Transfer::on_stderr()) }
    }
}

impl Locate for NamesOnHub {
    fn model(&self, id: &str, revision: Option<&str>, extent: Extent) -> Result<FoundModel, LocateError> {
        Ok(self.hub.model(id, revision, extent, &self.progress)?)
    }

    fn model_configuration(&self, id: &str, revision: Option<&str>) -> Result<PathBuf, LocateError> {
        Ok(self.hub.model_configuration(id, revision, &self.progress)?)
    }

    fn split(
        &self,
        id: &str,
        revision: Option<&str>,
        wanted: WantedSplit<'_>,
        extent: Extent,
    ) -> Result<FoundSplit, LocateError> {
        Ok(self.hub.split(id, revision, wanted, extent, &self.progress)?)
    }
}

/// Shows progress to the user.
#[derive(Debug)]
struct Shown(Transfer);

impl DownloadProgress for Shown {
    fn begin(&self, name: &str, bytes: Option<u64>) {
        self.0.begin(name, bytes);
    }

    fn at(&self, bytes: u64) {
        self.0.at(bytes);
    }

    fn end(&self) {
        self.0.end();
    }

    fn say(&self, text: &str) {
        self.0.say(text);
    }

    fn warn(&self, text: &str) {
        self.0.warn(text);
    }
}
