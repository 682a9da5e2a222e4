//! A loss or an advantage of the user's own, in a Python file.
//!
//! ```text
//! objective.loss: {kind: python, path: my.py:loss}            columns of a micro-batch -> value and derivative of each token
//! objective.advantage: {kind: python, path: my.py:advantage}  rewards of a step's groups -> advantages
//! ```
//!
//! Each function has one process (`process.rs`) that lives as long as the run. `loss.rs` and `advantage.rs`
//! make a request of a batch's columns and read the answer. Before anything is generated, `check.rs` calls
//! both on a made batch and compares the derivative of a loss with central differences. tamis-core takes the
//! results as a column: aggregation, KL, entropy, masks and correction are the same as for every other loss.

pub(crate) mod advantage;
pub(crate) mod check;
pub(crate) mod error;
pub(crate) mod loss;
mod process;
mod request;

use std::path::Path;
use std::sync::Arc;

use tamis_config::Config;
use tamis_core::advantage::Advantage;
use tamis_core::correction::CorrectionLevel;
use tamis_core::fault::Fault;
use tamis_core::objective::PolicyLoss;
use tamis_env::reward::Listener;
use tamis_env::reward::command::python;
use tamis_run::durable::Disk;

use self::advantage::OwnAdvantage;
use self::check::RunColumns;
pub use self::error::FunctionError;
use self::loss::OwnLoss;
use self::process::FunctionProcess;
use crate::interrupt::Halt;

/// The program, and the one beside it that it imports.
const PROGRAMS: [(&str, &str); 2] =
    [("tamis_function.py", include_str!("../../python/tamis_function.py")), (python::FILE, python::PROGRAM)];

/// The functions of a run; `None` for a loss or an advantage of tamis.
#[derive(Default)]
pub(crate) struct OwnFunctions {
    pub(crate) loss: Option<OwnLoss>,
    pub(crate) advantage: Option<OwnAdvantage>,
}

/// A run's own folder, for programs and for what the functions print.
#[derive(Clone, Copy)]
pub(crate) struct FunctionFolder<'a> {
    pub(crate) path: &'a Path,
    pub(crate) disk: &'a Disk,
}

impl OwnFunctions {
    /// Starts the functions that a configuration names, and checks each on a made batch.
    ///
    /// # Errors
    /// A function cannot be imported or called, fails, returns something else than it should, or its
    /// derivative is not that of its value.
    pub(crate) fn start(
        config: &Config,
        folder: FunctionFolder<'_>,
        listener: &Arc<dyn Listener>,
    ) -> Result<Self, Halt<Fault>> {
        let mut functions = Self::default();
        let objective = &config.objective;
        let is_any = matches!(objective.loss, PolicyLoss::Python(_))
            || matches!(objective.advantage, Advantage::Python(_));
        if is_any {
            for (name, program) in PROGRAMS {
                let written = folder.disk.write_file(&folder.path.join(name), program.as_bytes());
                written.map_err(|error| Halt::Failed(Fault::from(error)))?;
            }
        }
        let run = RunColumns::of(config);
        if let PolicyLoss::Python(python) = &objective.loss {
            let loss = OwnLoss::new(FunctionProcess::new("loss", &python.function, folder.path, listener));
            let checked = check::loss(&loss, python.check_derivative, &run)?;
            if let Some(note) = &checked.note {
                listener.announce(note);
            }
            let weighed =
                config.policy_correction().ok().flatten().and_then(|correction| correction.importance);
            let is_weighed = weighed.is_some_and(|weights| weights.level == CorrectionLevel::Token);
            if checked.couples_tokens && (is_weighed || objective.masks.top_entropy.is_some()) {
                return Err(loss.process.coupled(is_weighed).into());
            }
            functions.loss = Some(loss);
        }
        if let Advantage::Python(python) = &objective.advantage {
            let process = FunctionProcess::new("advantage", &python.function, folder.path, listener);
            let advantage = OwnAdvantage::new(process);
            check::advantage(&advantage, &run)?;
            functions.advantage = Some(advantage);
        }
        Ok(functions)
    }
}

#[cfg(test)]
mod tests;
