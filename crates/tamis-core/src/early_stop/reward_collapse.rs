//! `reward_collapse`: the reward no longer varies within groups.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::StopReason;
use crate::entry::{Entry, Family};
use crate::{choice, settings};

pub(super) const ENTRY: Entry = Entry {
    name: "reward_collapse",
    family: Family::EarlyStop,
    meaning: "Stops when the reward's deviation within groups has stayed far below that of the first steps.",
    formula: "V < share * mean(V of the first baseline_steps successful steps), for all of the last window \
        rounds; V = mean over all groups of a round of std(reward)",
    source: "RAGEN, filtering_and_loss_scaling.md section 3 (2026-01-23); its later form of 2026-02-27",
    defaults: &[
        "train.early_stop.reward_collapse.form",
        "train.early_stop.reward_collapse.baseline_steps",
        "train.early_stop.reward_collapse.window",
        "train.early_stop.reward_collapse.share",
    ],
    degenerate: &[
        "no stop before the baseline is complete and the window is full",
        "a baseline of 0 never fires, because nothing is below it; `empty_steps` is for runs that never had a signal",
        "a round without a scored group is not an attempt: it counts in neither window nor baseline",
        "the comparison is strict; the reward's scale and the deviation's ddof do not matter for groups of one size",
    ],
    known_as: &[
        ("RAGEN", "train/early_stopped (form: attempts)"),
        ("RAGEN", "early_stopped/reward_variance_collapse (form: steps)"),
    ],
    differences: &["RAGEN does not save the baseline in checkpoints and measures it again after a resume"],
};

choice! {
    /// Generation rounds that are compared with the baseline.
    pub enum CollapseForm {
        /// Every round from the first, as in RAGEN's filtering document.
        Attempts = "attempts",
        /// The last round of each trained step, once the baseline is complete: RAGEN's later form.
        Steps = "steps",
    }
}

/// A generation round, as early stopping sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attempt {
    /// Mean over all its groups, including dropped ones, of the reward's standard deviation in the group
    /// (`rollout/in_group_reward_std`); NaN if no group is scored.
    pub in_group_reward_std: f64,
    /// Whether its step has groups to train on after this round.
    pub is_successful: bool,
}

settings! {
    /// Stop when the reward's deviation within groups has stayed far below its value in the first steps.
    #[derive(Copy)]
    pub struct RewardCollapse {
        /// Generation rounds that are compared with the baseline.
        form: CollapseForm = CollapseForm::Attempts, Any, Free;
        /// Number of first trained steps whose mean deviation is the baseline.
        baseline_steps: u64 = 10, AtLeast(1.0), Free;
        /// Number of rounds in a row below the threshold that ends the run.
        window: usize = 10, AtLeast(1.0), Free;
        /// Threshold of the deviation, as a share of the baseline.
        share: f64 = 0.1, Probability, Free;
    }
}

/// State of this early stop.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RewardCollapseState {
    /// Sum of the baseline's deviations.
    pub baseline_sum: f64,
    /// Number of steps in the baseline.
    pub baseline_steps: u32,
    /// The latest deviations, oldest first.
    pub window: VecDeque<f64>,
}

impl RewardCollapse {
    /// Records a round.
    ///
    /// In the document's form ([`CollapseForm::Attempts`]) every round enters the window from the first, and
    /// the round that ends a successful step enters the baseline after the comparison. In the later form
    /// ([`CollapseForm::Steps`]) only the rounds that end successful steps count, and the window starts empty
    /// once the baseline is complete.
    ///
    /// Source: RAGEN, `docs/filtering_and_loss_scaling.md`, section 3; RAGEN-2, arXiv 2604.06268, writes of 5
    /// rounds.
    pub fn observe(&self, state: &mut RewardCollapseState, attempt: Attempt) -> Option<StopReason> {
        let std = attempt.in_group_reward_std;
        if !std.is_finite() {
            return None;
        }
        let has_baseline = u64::from(state.baseline_steps) >= self.baseline_steps;
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
