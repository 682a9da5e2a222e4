//! `empty_steps`: nothing is left to train on.

use serde::{Deserialize, Serialize};

use super::{EarlyStopError, StopReason};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "empty_steps",
    family: Family::EarlyStop,
    meaning: "stops after so many steps in a row that had no group to train on",
    formula: "steps in a row without a kept group >= patience",
    source: "RAGEN, rollout_filter_empty_stop_steps (2026-03-07)",
    defaults: &["train.early_stop.empty_steps.patience"],
    degenerate: &["a trained step, of however few groups, begins the count anew"],
    known_as: &[("RAGEN", "actor_rollout_ref.rollout.rollout_filter_empty_stop_steps")],
    differences: &["RAGEN counts a skipped step as a step; here it is tried again under the same number"],
};

/// Stops after `patience` steps in a row that were skipped because nothing was kept.
///
/// It is the gentle end of what `schedule.on_empty_round: skip` begins: without it a run that skips more than
/// ten times in a row stops with a diagnosis, as a failure.
///
/// # Source
/// RAGEN, `rollout_filter_empty_stop_steps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmptySteps {
    /// Empty steps in a row at which the run stops.
    pub patience: u32,
}

impl Default for EmptySteps {
    fn default() -> Self {
        Self { patience: 5 }
    }
}

/// What it has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmptyStepsState {
    /// Empty steps in a row.
    pub in_a_row: u32,
}

impl EmptySteps {
    pub(super) fn check(self) -> Result<(), EarlyStopError> {
        if self.patience == 0 {
            return Err(EarlyStopError::Zero { stop: "empty_steps", setting: "patience" });
        }
        Ok(())
    }

    /// Takes a step in.
    pub fn observe(self, state: &mut EmptyStepsState, is_trained: bool) -> Option<StopReason> {
        state.in_a_row = if is_trained { 0 } else { state.in_a_row.saturating_add(1) };
        (state.in_a_row >= self.patience).then_some(StopReason::EmptySteps { steps: state.in_a_row })
    }
}
