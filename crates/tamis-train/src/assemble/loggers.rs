//! The loggers of a run, from its configuration. Files of the run must be writable. Loggers that pass figures
//! on to other programs come from outside of the kernel.

use tamis_config::{Config, LoggerKind};
use tamis_run::directory::RunDirectory;
use tamis_run::durable::DiskError;
use tamis_run::log::Loggers;
use tamis_run::log::jsonl::JsonlLogger;
use tamis_run::log::progress::Console;
use tamis_run::log::tensorboard::TensorBoardLogger;

use crate::error::AssembleError;
use crate::outside::{LoggedRun, OtherLoggers};

/// Refuses loggers that this build does not have.
pub(crate) fn check(config: &Config) -> Result<(), AssembleError> {
    let is_otlp = |logger: &LoggerKind| matches!(logger, LoggerKind::Otlp(_));
    if !cfg!(feature = "otlp") && config.run.loggers.iter().any(is_otlp) {
        return Err(AssembleError::setting(
            "`run.loggers` names `otlp`, which this build does not have",
            "build tamis with `--features otlp`, or remove it",
        ));
    }
    Ok(())
}

/// Opens the loggers of a run for steps from `first_step` on.
pub(crate) fn open(
    config: &Config,
    directory: &RunDirectory,
    first_step: u64,
    last_row: Option<&str>,
    voice: &Console,
    others: &dyn OtherLoggers,
) -> Result<Loggers, DiskError> {
    let mut loggers = Loggers::new();
    for kind in &config.run.loggers {
        match kind {
            // It describes what the step found, not what is logged.
            LoggerKind::Console(_) => {}
            LoggerKind::Jsonl(_) => {
                let logger = JsonlLogger::open(directory.disk(), &directory.metrics())?;
                loggers.add(logger.continue_after(last_row));
            }
            LoggerKind::Tensorboard(settings) => {
                let logger = TensorBoardLogger::open(directory.disk(), &directory.tensorboard(), first_step)?;
                loggers.add(logger.with_details(settings.histograms, settings.num_samples));
            }
            other => {
                if !others.open(other, LoggedRun { config, directory, voice }, &mut loggers) {
                    voice.warn(&format!("this program has no logger `{}`", other.as_str()));
                }
            }
        }
    }
    Ok(loggers)
}
