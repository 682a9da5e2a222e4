//! `tamis export`.

use tamis_train::assemble::policy::head_warning;
use tamis_train::export::{ExportError, export};

use super::eval::find;
use super::{print, warn};
use crate::arguments::ExportArguments;
use crate::failure::{FAILED, Failure, USAGE};

pub(crate) fn run(arguments: &ExportArguments) -> Result<u8, Failure> {
    let (checkpoint, _) = find(&arguments.source)?;
    let ExportArguments { target, untie, dtype, .. } = arguments;
    let exported = export(&checkpoint, target, *untie, *dtype).map_err(|error| {
        let code = match &error {
            ExportError::Exists { .. } | ExportError::Overflow { .. } => USAGE,
            ExportError::Weights(error) if error.is_other_architecture() => USAGE,
            _ => FAILED,
        };
        Failure::of(code, &error, error.hint())
    })?;
    if let Some(warning) = head_warning(&checkpoint) {
        warn(&warning);
    }
    print(&format!(
        "wrote {}: {} weights of {} in {}, output head {}\n",
        target.display(),
        exported.num_parameters,
        checkpoint.display(),
        exported.dtype.name(),
        if exported.is_tied { "tied to the embedding" } else { "of its own" }
    ))?;
    Ok(0)
}
