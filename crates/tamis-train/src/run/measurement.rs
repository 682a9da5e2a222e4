//! The parts of a run that measure it.

use tamis_core::early_stop::EarlyStop;
use tamis_rollout::PreparedPrompt;

use super::state::RunState;
use crate::assemble::places::Places;
use crate::measure::validation::ValidationSettings;
use crate::measure::validation_metrics::FigureName;

/// Measurement of a run: the held-out prompts and their sampling, and the early stops that look at the
/// results.
pub(super) struct Measurement {
    pub(super) prompts: Vec<PreparedPrompt>,
    /// Those of them that are in the training data too.
    pub(super) num_in_training: usize,
    pub(super) settings: ValidationSettings,
    /// Figure that `checkpoint.keep_best` uses, if it is not the mean outcome.
    pub(super) best_figure: Option<FigureName>,
    /// Whether pass@k is wanted and it is not yet known if the scores have an `acc`.
    pub(super) is_pass_unproven: bool,
    /// Places of the keys that are checked only during the run.
    pub(super) places: Places,
    /// The early stops, with what they have seen of attempts at the present step.
    pub(super) early_stop: EarlyStop,
}

impl Measurement {
    /// Passes the latest validation to the early stops. What they have seen goes into the state.
    pub(super) fn observe(&mut self, after: &mut RunState) {
        if let Some((_, report)) = &after.validation.latest {
            let successes: Vec<f64> = report.success_by_source.values().copied().collect();
            self.early_stop.validation(&successes);
        }
        after.early_stop = self.early_stop.state().clone();
    }
}
