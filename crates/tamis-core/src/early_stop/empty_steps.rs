//! `empty_steps`: nothing is left to train on.

use serde::{Deserialize, Serialize};

use super::StopReason;
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "empty_steps",
    family: Family::EarlyStop,
    meaning: "Stops after a number of steps in a row that had no group to train on.",
    formula: "steps in a row without a kept group >= patience",
    source: "RAGEN, rollout_filter_empty_stop_steps (2026-03-07)",
    defaults: &["train.early_stop.empty_steps.patience"],
    degenerate: &["a trained step resets the count, however few groups it has"],
    known_as: &[("RAGEN", "actor_rollout_ref.rollout.rollout_filter_empty_stop_steps")],
    differences: &["RAGEN counts a skipped step as a step; here it is retried under the same number"],
};

settings! {
    /// Stop after steps in a row that had no group to train on.
    #[derive(Copy, Eq)]
    pub struct EmptySteps {
        /// Number of steps in a row without a group to train on that ends the run.
        patience: u64 = 5, AtLeast(1.0), Free;
    }
}

/// State of this early stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmptyStepsState {
    /// Empty steps in a row.
    pub in_a_row: u32,
}

impl EmptySteps {
    /// Records a step.
    ///
    /// It is the graceful counterpart of `schedule.on_empty_round: skip`: without it a run that skips more
    /// than ten times in a row stops with a diagnosis, as a failure.
    pub fn observe(self, state: &mut EmptyStepsState, is_trained: bool) -> Option<StopReason> {
        state.in_a_row = if is_trained { 0 } else { state.in_a_row.saturating_add(1) };
        (u64::from(state.in_a_row) >= self.patience)
            .then_some(StopReason::EmptySteps { steps: state.in_a_row })
    }
}
