//! What a checkpoint of supervised fine-tuning holds beside weights and moments.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tamis_run::checksum::crc32;
use tamis_run::directory::LogPositions;

use super::look::KEEP_KEYS;
use crate::error::RunError;
use crate::learner::sft::{Example, SftExamples, SftReport, SftSettings, SftUpdate};

/// The state after an update.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SftState {
    /// Layout version of the file.
    format: u32,
    /// Updates made.
    pub(super) step: u64,
    /// CRC-32 of the examples: a resume on others would not be exact.
    data_crc32: u32,
    /// The losses so far.
    losses: Losses,
    /// The last update, if an interruption came before it was measured and logged.
    pub(super) unmeasured: Option<SftUpdate>,
    /// Whether the updates are all made, or the accuracy that ends them is reached.
    pub(super) is_done: bool,
    /// Length of every log when the checkpoint was written.
    pub(super) logs: LogPositions,
}

/// Losses in nats per token, and the accuracy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Losses {
    /// That of the last update.
    last: Option<f64>,
    /// Validation loss before the first update.
    first_validation: Option<f64>,
    /// The last validation loss.
    validation: Option<f64>,
    /// The last accuracy.
    accuracy: Option<f64>,
}

impl SftState {
    /// Above those of [`super::RunState`], so that neither is taken for the other.
    pub(super) const FORMAT: u32 = 1002;

    /// The state before the first update on some examples.
    pub(super) fn new(examples: &SftExamples) -> Self {
        Self { format: Self::FORMAT, data_crc32: sum_of(examples), ..Self::default() }
    }

    /// Refuses other examples than those that the state was made with.
    pub(super) fn check_examples(&self, examples: &SftExamples, run: &Path) -> Result<(), RunError> {
        if self.data_crc32 == sum_of(examples) {
            return Ok(());
        }
        Err(RunError::Mismatch {
            run: run.to_owned(),
            differences:
                "the rows are not those that the run was begun with: a file of sft.data or sft.val has \
                          changed, or of data.train if sft.data names none"
                    .to_owned(),
            hint: KEEP_KEYS.to_owned(),
        })
    }

    /// Settings that continue after this state.
    pub(super) fn continued(&self, settings: SftSettings) -> SftSettings {
        SftSettings { num_done: self.step as usize, unmeasured: self.unmeasured, ..settings }
    }

    /// Notes the validation loss before the first update.
    pub(super) fn begin(&mut self, loss: Option<f64>) {
        (self.losses.first_validation, self.losses.validation) = (loss, loss);
    }

    /// Notes an update that has been made and not been measured.
    pub(super) fn make(&mut self, update: &SftUpdate) {
        self.step = update.number as u64;
        self.losses.last = Some(update.loss);
        self.unmeasured = Some(*update);
    }

    /// Notes that the last update has been measured.
    pub(super) fn measure(&mut self, update: &SftUpdate) {
        self.unmeasured = None;
        self.losses.validation = update.validation_loss.or(self.losses.validation);
        self.losses.accuracy = update.accuracy.or(self.losses.accuracy);
    }

    pub(super) fn report(&self) -> SftReport {
        SftReport {
            num_updates: self.step as usize,
            loss: self.losses.last.unwrap_or(f64::NAN),
            accuracy: self.losses.accuracy,
            first_validation_loss: self.losses.first_validation,
            validation_loss: self.losses.validation,
        }
    }
}

fn sum_of(examples: &SftExamples) -> u32 {
    let all = examples.train.iter().chain(&examples.validation);
    crc32(&all.flat_map(Example::bytes).collect::<Vec<u8>>())
}
