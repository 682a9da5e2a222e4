//! `low_success`: the policy fails validation.

use serde::{Deserialize, Serialize};

use super::StopReason;
use crate::entry::{Entry, Family};
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "low_success",
    family: Family::EarlyStop,
    meaning: "Stops when validation success has stayed below a floor.",
    formula: "min over data sources(success) < floor, for patience validations in a row",
    source: "RAGEN, validation early stop (2026-01-24)",
    defaults: &["train.early_stop.low_success.floor", "train.early_stop.low_success.patience"],
    degenerate: &[
        "a validation without a success rate neither counts nor resets the count",
        "the comparison is strict: success at the floor resets the count",
    ],
    known_as: &[("RAGEN", "early_stopped/low_validation_success")],
    differences: &["RAGEN does not save the count in checkpoints"],
};

settings! {
    /// Stop when the pass rate of some data source has stayed below a floor in validation.
    #[derive(Copy)]
    pub struct LowSuccess {
        /// Success below this is low. The success of a data source is the mean `acc` of its validation
        /// samples (or `score`, if there is no `acc`). The lowest of all sources counts, whatever
        /// `validate.metrics` logs.
        floor: f64 = 0.01, Probability, Free;
        /// Number of low validations in a row that ends the run.
        patience: u64 = 5, AtLeast(1.0), Free;
    }
}

/// State of this early stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LowSuccessState {
    /// Low validations in a row.
    pub in_a_row: u32,
}

impl LowSuccess {
    /// Records a validation. Source: RAGEN, trainer, 2026-01-24: any `val-env/*/success` below 0.01 for 5
    /// validations in a row.
    pub fn observe(&self, state: &mut LowSuccessState, successes: &[f64]) -> Option<StopReason> {
        let lowest = successes.iter().copied().filter(|success| !success.is_nan()).reduce(f64::min)?;
        state.in_a_row = if lowest < self.floor { state.in_a_row.saturating_add(1) } else { 0 };
        (u64::from(state.in_a_row) >= self.patience).then_some(StopReason::LowSuccess {
            validations: state.in_a_row,
            lowest,
            floor: self.floor,
        })
    }
}
