//! Steps, rounds, epochs and prompts so far.

use serde::{Deserialize, Serialize};

/// Progress of a run. Steps count training batches, never generation rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Steps trained.
    pub steps: u64,
    /// Attempts at a step that ended without training.
    pub skipped_steps: u64,
    /// Generation rounds completed.
    pub rounds: u64,
    /// The pass over the data that prompts are drawn from, from 0.
    pub epoch: u64,
    /// Prompts dispatched in this epoch.
    pub prompts_in_epoch: u64,
    /// Prompts dispatched in the run.
    pub prompts: u64,
}

impl Progress {
    /// The share of the run that is done, in \[0, 1\]: of its steps if their number is set, of the data if
    /// epochs are set (with a filter the number of steps in these is known only at the end), and the greater
    /// of the two if both are. `None` if neither is set.
    ///
    /// ```
    /// use tamis_core::schedule::Progress;
    /// let progress = Progress { steps: 50, epoch: 1, prompts_in_epoch: 250, ..Progress::default() };
    /// assert_eq!(progress.fraction(Some(200), None, 1000), Some(0.25));
    /// assert_eq!(progress.fraction(None, Some(5), 1000), Some(0.25));
    /// assert_eq!(progress.fraction(Some(100), Some(5), 1000), Some(0.5));
    /// ```
    pub fn fraction(
        &self,
        total_steps: Option<u64>,
        total_epochs: Option<u64>,
        prompts_per_epoch: u64,
    ) -> Option<f64> {
        let by_steps = total_steps.map(|total| self.steps as f64 / total.max(1) as f64);
        let by_data = total_epochs.filter(|_| prompts_per_epoch > 0).map(|total| {
            (self.epoch as f64 + self.prompts_in_epoch as f64 / prompts_per_epoch as f64)
                / total.max(1) as f64
        });
        match (by_steps, by_data) {
            (Some(steps), Some(data)) => Some(steps.max(data)),
            (steps, data) => steps.or(data),
        }
        .map(|fraction| fraction.clamp(0.0, 1.0))
    }
}
