//! `tamis doctor`.

use tamis_cluster::doctor::Report;
use tamis_config::locate::Extent;
use tamis_train::assemble::check::Placeholders;
use tamis_train::interrupt::Interrupt;

use super::{print, show, warn};
use crate::arguments::DoctorArguments;
use crate::failure::{FAILED, Failure, INTERRUPTED};

pub(crate) fn run(arguments: &DoctorArguments) -> Result<u8, Failure> {
    let interrupt = Interrupt::new();
    super::train::listen(&interrupt, "nothing was changed")?;
    let loaded = if arguments.layers.is_empty() {
        None
    } else {
        let (loaded, _) = arguments.layers.load_checked(Placeholders::Warned, Extent::Look)?;
        loaded.warnings.iter().for_each(|warning| warn(&warning.to_string()));
        Some(loaded)
    };
    let report = Report::make(loaded.as_ref().map(|loaded| &loaded.config), super::hub(), &interrupt)
        .map_err(|_| Failure::new(INTERRUPTED, "interrupted".to_owned()))?;
    if arguments.json {
        let text = serde_json::to_string_pretty(&report)
            .map_err(|error| Failure::new(FAILED, format!("error: failed to write the report: {error}")))?;
        print(&format!("{text}\n"))?;
    } else {
        show(&report.to_string())?;
    }
    Ok(if report.lacks() { FAILED } else { 0 })
}
