//! Early stopping: detects that a run has stopped learning.
//!
//! ```text
//! rounds ─ attempt ─▶ RewardCollapse ─┐
//! validations ──────▶ LowSuccess ─────┼─▶ Option<StopReason>   (the first that fires)
//! steps ────────────▶ EmptySteps ─────┘
//! ```
//!
//! Each is a state machine without clock or I/O: equal observations give equal answers. Its state is
//! serialisable, so a resumed run stops at the same step as an uninterrupted one. [`EarlyStop`] holds those
//! that a run uses. A stop is not an error: the run validates, saves and ends.

mod empty_steps;
mod low_success;
mod reward_collapse;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use empty_steps::{EmptySteps, EmptyStepsState};
pub use low_success::{LowSuccess, LowSuccessState};
pub use reward_collapse::{Attempt, CollapseForm, RewardCollapse, RewardCollapseState};

use crate::entry::Entry;
use crate::figure::{counted, exact_percent, fixed, shortest};
use crate::settings;

/// The catalogue's entries of this module.
pub const ENTRIES: &[Entry] = &[reward_collapse::ENTRY, low_success::ENTRY, empty_steps::ENTRY];

settings! {
    /// Reasons to end a run early; null turns a reason off. A run that is stopped saves a checkpoint and
    /// exits successfully.
    #[derive(Copy)]
    pub struct EarlyStopSettings {
        /// Stop when the reward no longer varies within groups.
        reward_collapse: Option<RewardCollapse> = None, Any, Free;
        /// Stop when validation fails. Needs validation prompts.
        low_success: Option<LowSuccess> = None, Any, Free;
        /// Stop when no group is kept any more. Needs steps that may be skipped:
        /// `schedule.on_empty_round: skip`, or a limit on rounds with another `on_limit` than `error`.
        empty_steps: Option<EmptySteps> = None, Any, Free;
    }
}

/// State of the early stops; saved in checkpoints.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EarlyStopState {
    /// State of [`RewardCollapse`].
    pub reward_collapse: RewardCollapseState,
    /// State of [`LowSuccess`].
    pub low_success: LowSuccessState,
    /// State of [`EmptySteps`].
    pub empty_steps: EmptyStepsState,
    /// Why the run was stopped, if it was.
    pub stopped: Option<StopReason>,
}

/// Why a run was stopped early. `Display` is the text for the user.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The reward hardly varies within groups any more.
    RewardCollapse {
        /// Attempts in the window.
        window: usize,
        /// The largest deviation in it.
        largest: f64,
        /// The mean deviation of the first steps.
        baseline: f64,
        /// The share of the baseline below which the deviations are.
        share: f64,
    },
    /// Validation success stays below the floor.
    LowSuccess {
        /// Validations in a row.
        validations: u32,
        /// The lowest success of the last one.
        lowest: f64,
        /// The floor.
        floor: f64,
    },
    /// Steps in a row trained nothing.
    EmptySteps {
        /// Number of steps.
        steps: u32,
    },
}

impl StopReason {
    /// The catalogue's name of the stop.
    pub fn name(&self) -> &'static str {
        match self {
            Self::RewardCollapse { .. } => "reward_collapse",
            Self::LowSuccess { .. } => "low_success",
            Self::EmptySteps { .. } => "empty_steps",
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RewardCollapse { window, largest, baseline, share } => write!(
                formatter,
                "the reward's deviation within groups has collapsed: at most {} in each of the last {}, \
                 below {} of the {} it began with",
                fixed(*largest, 4),
                counted(window, "round"),
                exact_percent(*share),
                fixed(*baseline, 4)
            ),
            Self::LowSuccess { validations, lowest, floor } => write!(
                formatter,
                "validation success stayed below {} for {} in a row, {} in the last",
                shortest(*floor),
                counted(validations, "validation"),
                fixed(*lowest, 4)
            ),
            Self::EmptySteps { steps } => {
                write!(formatter, "{} in a row had no group to train on", counted(steps, "step"))
            }
        }
    }
}

/// The early stops of a run.
///
/// ```
/// use tamis_core::early_stop::{EarlyStop, EarlyStopSettings, EmptySteps};
/// let settings = EarlyStopSettings { empty_steps: Some(EmptySteps { patience: 2 }), ..Default::default() };
/// let mut early_stop = EarlyStop::new(settings);
/// assert_eq!(early_stop.step(false), None);
/// assert_eq!(early_stop.step(true), None);
/// assert_eq!(early_stop.step(false), None);
/// let reason = early_stop.step(false).expect("two in a row");
/// assert_eq!(reason.to_string(), "2 steps in a row had no group to train on");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct EarlyStop {
    settings: EarlyStopSettings,
    state: EarlyStopState,
}

impl EarlyStop {
    /// The early stops at the start of a run.
    pub fn new(settings: EarlyStopSettings) -> Self {
        Self { settings, state: EarlyStopState::default() }
    }

    /// Restores the state of a checkpoint. Earlier observations still count if a setting changed; a shorter
    /// window keeps its latest values. A stopped run stays stopped unless that stop is now switched off.
    #[must_use]
    pub fn resume(self, mut state: EarlyStopState) -> Self {
        state.stopped = state.stopped.filter(|reason| match reason {
            StopReason::RewardCollapse { .. } => self.settings.reward_collapse.is_some(),
            StopReason::LowSuccess { .. } => self.settings.low_success.is_some(),
            StopReason::EmptySteps { .. } => self.settings.empty_steps.is_some(),
        });
        Self { state, ..self }
    }

    /// Why the run is to end, once a stop has fired: the first one that did.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.state.stopped
    }

    fn note(&mut self, reason: Option<StopReason>) -> Option<StopReason> {
        self.state.stopped = self.state.stopped.or(reason);
        reason
    }

    /// The settings of the early stops.
    pub fn settings(&self) -> &EarlyStopSettings {
        &self.settings
    }

    /// The state that a checkpoint saves.
    pub fn state(&self) -> &EarlyStopState {
        &self.state
    }

    /// Records a judged generation round.
    ///
    /// This function and the two below return whether a stop fires now; [`Self::stop_reason`] keeps the
    /// result.
    pub fn attempt(&mut self, attempt: Attempt) -> Option<StopReason> {
        let reason =
            self.settings.reward_collapse.as_ref()?.observe(&mut self.state.reward_collapse, attempt);
        self.note(reason)
    }

    /// Records the success rates of a validation, one for each data source or task. Values that are not
    /// numbers are ignored.
    pub fn validation(&mut self, successes: &[f64]) -> Option<StopReason> {
        let reason = self.settings.low_success.as_ref()?.observe(&mut self.state.low_success, successes);
        self.note(reason)
    }

    /// Records a step that was trained, or skipped because it had no groups.
    pub fn step(&mut self, is_trained: bool) -> Option<StopReason> {
        let reason = self.settings.empty_steps?.observe(&mut self.state.empty_steps, is_trained);
        self.note(reason)
    }
}

#[cfg(test)]
mod tests;
