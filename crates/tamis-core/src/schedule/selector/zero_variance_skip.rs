//! GRESO: skips prompts whose groups were uniform; the longer the series, the more surely.

use serde::{Deserialize, Serialize};

use super::{InclusionWeights, PromptHistory, PromptSelection, Side};
use crate::random::Key;
use crate::settings;

settings! {
    /// Skips a prompt whose last z groups were uniform on one side with probability `1 - max(p^z, floor)`. p
    /// begins at a half on each side and follows the share of generated groups that are uniform on that side:
    /// it goes one step down if the share is at least its target, else one step up, within bounds. Easy and
    /// hard prompts have separate targets: by default twice as much may be spent on hard ones.
    /// Source: Zheng et al., "Act Only When It Pays" (GRESO), arXiv 2506.02177, with the constants of the
    /// authors' code.
    ///
    /// # Differs from
    /// The authors' code treats a group as uniform if the mean of its scores is at least 0.98 or at most
    /// 0.11; tamis does if all or none of its scored members are correct.
    #[derive(Copy)]
    pub struct ZeroVarianceSkip {
        /// Target share of generated groups that are all correct.
        easy_target: f64 = 0.25 / 3.0, Between(0.0, 1.0);
        /// Target share of generated groups that have no correct member.
        hard_target: f64 = 0.5 / 3.0, Between(0.0, 1.0);
        /// Change of p after a step.
        step: f64 = 0.01, Between(0.0, 1.0);
        /// Least probability with which a prompt is taken.
        floor: f64 = 0.01, Between(0.001, 1.0);
        /// Lower bound of the rate p: limits how surely prompts of a side are skipped.
        least_rate: f64 = 0.05, Between(0.0, 1.0);
        /// Upper bound of the rate p: limits how often prompts of a side are explored.
        greatest_rate: f64 = 0.95, Between(0.0, 1.0);
        /// How the loss uses the probability with which a prompt was taken.
        correction: InclusionWeights = InclusionWeights::Biased;
    }
}

/// The rates p of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkipRates {
    /// For all-correct prompts.
    pub easy: f64,
    /// For prompts without a correct member.
    pub hard: f64,
}

impl Default for SkipRates {
    fn default() -> Self {
        Self { easy: 0.5, hard: 0.5 }
    }
}

impl SkipRates {
    /// The rates after a step that generated `num_groups` groups, with so many uniform ones on each side.
    #[must_use]
    pub fn after(self, settings: &ZeroVarianceSkip, num_groups: u64, num_easy: u64, num_hard: u64) -> Self {
        if num_groups == 0 {
            return self;
        }
        let moved = |rate: f64, number: u64, target: f64| {
            let is_over = number as f64 / num_groups as f64 >= target;
            let moved = if is_over { rate - settings.step } else { rate + settings.step };
            moved.min(settings.greatest_rate).max(settings.least_rate)
        };
        Self {
            easy: moved(self.easy, num_easy, settings.easy_target),
            hard: moved(self.hard, num_hard, settings.hard_target),
        }
    }
}

impl ZeroVarianceSkip {
    /// Whether a prompt is taken; `key` is the key of the draw. A prompt is always taken if it has no history
    /// or its last group was mixed.
    pub fn select(&self, rates: &SkipRates, history: Option<&PromptHistory>, key: Key) -> PromptSelection {
        let Some((side, times)) = history.and_then(|history| history.uniform) else {
            return PromptSelection::CERTAIN;
        };
        let rate = match side {
            Side::Easy => rates.easy,
            Side::Hard => rates.hard,
        };
        let inclusion = rate.powf(f64::from(times)).max(self.floor);
        PromptSelection::with_probability(inclusion, key.uniform(0))
    }
}
