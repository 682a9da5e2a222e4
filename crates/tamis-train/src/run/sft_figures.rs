//! What is written and printed of supervised fine-tuning.

use std::fmt::Write as _;

use tamis_core::figure::counted;
use tamis_run::directory::RunDirectory;
use tamis_run::durable::DiskError;
use tamis_run::log::Logger as _;
use tamis_run::log::jsonl::JsonlLogger;
use tamis_run::metrics::Metrics;

use crate::learner::sft::{SftReport, SftSettings, SftUpdate};

/// File of a run directory with a row for each update before reinforcement learning, like those of
/// `metrics.jsonl`, whose steps are those of reinforcement learning.
const FIGURES: &str = "sft.jsonl";

/// Writes the rows.
pub(super) struct SftFigures(JsonlLogger);

impl SftFigures {
    /// Continues after the rows of so many updates. What a start left that was not saved is removed.
    pub(super) fn open(directory: &RunDirectory, num_done: usize) -> Result<Self, DiskError> {
        let path = directory.path().join(FIGURES);
        let before = if path.exists() { directory.disk().read_file(&path)? } else { Vec::new() };
        let is_kept = |line: &&[u8]| {
            let row = serde_json::from_slice::<serde_json::Value>(line).ok();
            line.ends_with(b"\n")
                && row.is_some_and(|row| row["step"].as_u64().is_some_and(|step| step <= num_done as u64))
        };
        let kept =
            before.split_inclusive(|&byte| byte == b'\n').take_while(is_kept).collect::<Vec<_>>().concat();
        directory.disk().write_file(&path, &kept)?;
        Ok(Self(JsonlLogger::open(directory.disk(), &path)?))
    }

    pub(super) fn write(&mut self, update: &SftUpdate) -> Result<(), DiskError> {
        self.0.log(update.number as u64, &metrics(update))
    }
}

pub(super) fn metrics(update: &SftUpdate) -> Metrics {
    let mut metrics = Metrics::new();
    metrics.set("sft/loss", update.loss);
    metrics.set("sft/num_tokens", update.num_tokens as f64);
    metrics.set("sft/lr", update.learning_rate);
    metrics.set_some("sft/grad_norm", update.grad_norm);
    metrics.set_some("sft/val_loss", update.validation_loss);
    metrics.set_some("sft/val_accuracy", update.accuracy);
    metrics
}

/// The line of an update: `sft: update 50 of 300, cross-entropy 0.584, validation loss 0.601`.
pub(super) fn line(update: &SftUpdate, num_updates: usize, more: &str) -> String {
    let mut line =
        format!("sft: update {} of {num_updates}, cross-entropy {:.3}", update.number, update.loss);
    if let Some(loss) = update.validation_loss {
        let _ = write!(line, ", validation loss {loss:.3}");
    }
    line + more
}

/// The line about all of it; `more` is about the accuracy.
pub(super) fn last_line(report: &SftReport, settings: &SftSettings, more: &str) -> String {
    let mut line = format!(
        "sft: {} of {}, cross-entropy {:.3}",
        counted(report.num_updates, "update"),
        counted(settings.batch_size, "example"),
        report.loss
    );
    if let (Some(first), Some(last)) = (report.first_validation_loss, report.validation_loss) {
        let _ = write!(line, ", validation loss {first:.3} -> {last:.3}");
    }
    line + more
}
