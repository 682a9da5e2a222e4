//! The ways in which a run ends: as planned, stopped early, or interrupted.

use std::path::{Path, PathBuf};

use tamis_config::{Config, length_may_change};
use tamis_core::early_stop::StopReason;
use tamis_core::fault::Fault;
use tamis_core::figure::counted;
use tamis_core::schedule::RunEnd;

use crate::learner::sft::SftReport;
use crate::measure::validation::ValidationReport;

/// Ctrl-C while a run was prepared.
pub fn not_begun() -> Fault {
    Fault::new("interrupted before the run began; nothing was changed")
}

/// Ctrl-C while a resume was prepared.
pub fn not_resumed() -> Fault {
    Fault::new(
        "interrupted before the run continued; its checkpoints are unchanged, and at most what came after the last one was removed",
    )
}

/// Ctrl-C before there was anything to save. The hint is the next command to type.
pub(super) fn unsaved(config: &Config, run: &Path) -> Fault {
    let (train, run) = (config.train_command(), run.display());
    let again = format!("start it again from the beginning with `{train} --resume {run}`");
    Fault::new("interrupted before the first checkpoint").with_hint(again)
}

/// Ctrl-C during supervised fine-tuning before reinforcement learning. The hint is the next command to type.
pub(super) fn saved_in_sft(config: &Config, run: &Path, num_updates: u64) -> Fault {
    let (train, run, made) = (config.train_command(), run.display(), counted(num_updates, "update"));
    Fault::new(format!("interrupted in supervised fine-tuning, after {made}, and saved"))
        .with_hint(format!("continue with `{train} --resume {run}`"))
}

/// The ways in which a run ends without an error. `RunEnding` of `tamis-run`, which knows neither steps nor
/// reasons, has the names for loggers, also that of an error.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// As planned.
    Finished(RunEnd),
    /// An early stop fired. The state is saved, and this is no failure.
    StoppedEarly(StopReason),
    /// Ctrl-C. The state is saved and can be resumed.
    Interrupted,
}

/// A run that ended well.
#[derive(Debug, Clone)]
pub struct RunSummary {
    /// The end of the run.
    pub ending: Ending,
    /// Steps trained.
    pub steps: u64,
    /// The run directory.
    pub run: PathBuf,
    /// The last checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// Validation before reinforcement learning.
    pub before: Option<ValidationReport>,
    /// Validation after the last step.
    pub after: Option<ValidationReport>,
    /// Losses of a run that was supervised fine-tuning alone.
    pub sft: Option<SftReport>,
}

pub(super) fn how_to_train_further(config: &Config, run: &Path, steps: u64) -> String {
    if !length_may_change(config) {
        return "the learning rate follows train.total_steps, so a longer run has to be a new one".to_owned();
    }
    let (key, more) = match (config.train.total_steps, config.train.total_epochs) {
        (Some(total), _) if total as u64 <= steps => ("train.total_steps", 2 * steps.max(1)),
        (_, Some(epochs)) => ("train.total_epochs", 2 * epochs as u64),
        // It ended for another reason than its length.
        _ => return "begin a new run".to_owned(),
    };
    format!("to train further: `{} --resume {} {key}={more}`", config.train_command(), run.display())
}
