//! `reward_collapse`: the reward no longer varies within groups.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{EarlyStopError, StopReason};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "reward_collapse",
    family: Family::EarlyStop,
    meaning: "stops when the reward's deviation within groups has stayed far below what it was in the first steps",
    formula: "V < share * mean(V of the first baseline_steps successful steps), for all of the last window rounds; V = mean over all groups of a round of std(reward)",
    source: "RAGEN, filtering_and_loss_scaling.md section 3 (2026-01-23); its later form of 2026-02-27",
    defaults: &[
        "train.early_stop.reward_collapse.form",
        "train.early_stop.reward_collapse.baseline_steps",
        "train.early_stop.reward_collapse.window",
        "train.early_stop.reward_collapse.share",
    ],
    degenerate: &[
        "no stop before the baseline stands and the window is full",
        "a baseline of 0 never fires, nothing being below it; `empty_steps` is for runs that never had signal",
        "a round without a scored group is not an attempt: it enters neither window nor baseline",
        "the comparison is strict; the reward's scale and the deviation's ddof do not matter for groups of one size",
    ],
    known_as: &[
        ("RAGEN", "train/early_stopped (form: attempts)"),
        ("RAGEN", "early_stopped/reward_variance_collapse (form: steps)"),
    ],
    differences: &["RAGEN does not save the baseline in checkpoints and measures it anew after a resume"],
};

/// Which rounds enter the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollapseForm {
    /// Every round, those that kept nothing and those of the baseline's steps included.
    #[default]
    Attempts,
    /// The last round of each successful step, once the baseline stands.
    Steps,
}

/// A generation round, as far as early stopping looks at it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attempt {
    /// Mean over all its groups, dropped ones too, of the reward's standard deviation in the group
    /// (`rollout/in_group_reward_std`); NaN where no group is scored.
    pub in_group_reward_std: f64,
    /// Whether its step has groups to train on after it.
    pub is_successful: bool,
}

/// Stops when each of the last `window` rounds had a mean reward deviation below `share` of what the first
/// `baseline_steps` successful steps had on average.
///
/// In the document's form ([`CollapseForm::Attempts`]) every round enters the window from the first, and the
/// round that ends a successful step enters the baseline after it was compared. In the later form
/// ([`CollapseForm::Steps`]) only the rounds that end successful steps count, and the window begins empty
/// once the baseline stands.
///
/// # Degenerate cases
/// A baseline of 0 never fires. Rounds without a scored group are passed over.
///
/// # Source
/// RAGEN, `docs/filtering_and_loss_scaling.md`, section 3; RAGEN-2, arXiv 2604.06268, writes of 5 rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RewardCollapse {
    /// Which rounds enter the window.
    pub form: CollapseForm,
    /// Successful steps whose mean is the baseline.
    pub baseline_steps: u32,
    /// Rounds that must all be below the threshold.
    pub window: usize,
    /// The threshold as a share of the baseline, in (0, 1).
    pub share: f64,
}

impl Default for RewardCollapse {
    fn default() -> Self {
        Self { form: CollapseForm::Attempts, baseline_steps: 10, window: 10, share: 0.1 }
    }
}

/// What it has seen.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RewardCollapseState {
    /// Sum of the baseline's deviations.
    pub baseline_sum: f64,
    /// Steps in it.
    pub baseline_steps: u32,
    /// The latest deviations, oldest first.
    pub window: VecDeque<f64>,
}

impl RewardCollapse {
    pub(super) fn check(&self) -> Result<(), EarlyStopError> {
        let stop = "reward_collapse";
        if self.baseline_steps == 0 {
            return Err(EarlyStopError::Zero { stop, setting: "baseline_steps" });
        }
        if self.window == 0 {
            return Err(EarlyStopError::Zero { stop, setting: "window" });
        }
        if self.share > 0.0 && self.share < 1.0 { Ok(()) } else { Err(EarlyStopError::Share(self.share)) }
    }

    /// Takes a round in.
    pub fn observe(&self, state: &mut RewardCollapseState, attempt: Attempt) -> Option<StopReason> {
        let std = attempt.in_group_reward_std;
        if !std.is_finite() {
            return None;
        }
        let has_baseline = state.baseline_steps >= self.baseline_steps;
        if self.form == CollapseForm::Attempts || (has_baseline && attempt.is_successful) {
            state.window.push_back(std);
            while state.window.len() > self.window {
                state.window.pop_front();
            }
        }
        if !has_baseline {
            if attempt.is_successful {
                state.baseline_sum += std;
                state.baseline_steps += 1;
            }
            return None;
        }
        let baseline = state.baseline_sum / f64::from(state.baseline_steps);
        let largest = state.window.iter().copied().fold(0.0, f64::max);
        let is_collapsed = state.window.len() >= self.window && largest < self.share * baseline;
        is_collapsed.then_some(StopReason::RewardCollapse {
            window: self.window,
            largest,
            baseline,
            share: self.share,
        })
    }
}
