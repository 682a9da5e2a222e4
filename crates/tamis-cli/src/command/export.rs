//! `tamis export`.

use tamis_train::export::{ExportError, SaveDtype, export};

use super::eval::find;
use super::print;
use crate::arguments::{Dtype, ExportArguments};
use crate::failure::{FAILED, Failure, USAGE};

pub(crate) fn run(arguments: &ExportArguments) -> Result<u8, Failure> {
    let (checkpoint, _) = find(&arguments.source)?;
    let dtype = match arguments.dtype {
        Dtype::F32 => SaveDtype::F32,
        Dtype::Bf16 => SaveDtype::Bf16,
        Dtype::F16 => SaveDtype::F16,
    };
    let exported = export(&checkpoint, &arguments.target, arguments.untie, dtype).map_err(|error| {
        let code = match &error {
            ExportError::Exists { .. } | ExportError::Overflow { .. } => USAGE,
            _ => FAILED,
        };
        Failure::of(code, &error, error.hint())
    })?;
    print(&format!(
        "wrote {}: {} weights of {} in {}, output head {}\n",
        arguments.target.display(),
        exported.num_parameters,
        checkpoint.display(),
        dtype.name(),
        if exported.is_tied { "tied to the embedding" } else { "of its own" }
    ))?;
    Ok(0)
}
