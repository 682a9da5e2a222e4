//! The common interface of all estimators: a trait, and its result.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::singleton::zero_where_not_finite;
use super::{AdvantageBatch, Column, Result, Scale};
use crate::ragged::Ragged;
use crate::setting::{Named, Ranged};
use crate::whole_step::WholeStep;

/// Advantages of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Advantages {
    /// One number per trajectory `[P][G]`, the same for each of its tokens.
    PerTrajectory(Ragged<f64>),
    /// One number per token, one row per trajectory `[B][T]`; 0 at masked tokens and in unscored
    /// trajectories.
    PerToken(Ragged<f64>),
}

impl Advantages {
    /// All numbers in the batch's order: \[B\] or \[N\].
    pub fn values(&self) -> &[f64] {
        match self {
            Self::PerTrajectory(advantages) | Self::PerToken(advantages) => advantages.values(),
        }
    }

    /// The same advantages per token `[B][T]`, 0 at masked tokens.
    pub fn per_token(&self, mask: &Ragged<bool>) -> Ragged<f64> {
        match self {
            Self::PerToken(advantages) => advantages.clone(),
            Self::PerTrajectory(advantages) => {
                let mut per_token = Ragged::default();
                for (&advantage, mask_t) in advantages.values().iter().zip(mask.rows()) {
                    per_token.push_row(mask_t.iter().map(|&on| if on { advantage } else { 0.0 }));
                }
                per_token
            }
        }
    }
}

/// State that estimators carry from step to step: saved in checkpoints, input and output of every call.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdvantageState {
    /// Rewards of recent steps, oldest first (`bnpo_running`).
    pub recent: VecDeque<RecentStep>,
}

/// Rewards of one step, mapped to `[0, 1]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecentStep {
    /// Sum of the rewards of its scored trajectories.
    pub successes: f64,
    /// Sum of the amounts by which they are below 1.
    pub failures: f64,
}

/// Result of an estimator.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The advantages.
    pub advantages: Advantages,
    /// Returns, the targets of a critic's values, per token `[B][T]`, if the estimator computes them.
    pub returns: Option<Ragged<f64>>,
    /// State for the next step.
    pub state: AdvantageState,
}

impl Estimate {
    /// One number per trajectory, 0 if it is not finite (for example NaN for an unscored member); nothing
    /// else changes.
    pub(crate) fn per_trajectory(advantages: Ragged<f64>, state: &AdvantageState) -> Self {
        let advantages = Advantages::PerTrajectory(zero_where_not_finite(advantages));
        Self { advantages, returns: None, state: state.clone() }
    }

    /// One number per token, with returns.
    pub(crate) fn per_token(advantages: Ragged<f64>, returns: Ragged<f64>, state: &AdvantageState) -> Self {
        Self { advantages: Advantages::PerToken(advantages), returns: Some(returns), state: state.clone() }
    }
}

/// A way to turn rewards into advantages.
///
/// ```
/// use tamis_core::advantage::{Advantage, Column};
/// let remax = Advantage::of_name("remax").ok_or("no such estimator")?;
/// assert_eq!(remax.needs(), [Column::GreedyRewards]);
/// # Ok::<(), &str>(())
/// ```
///
/// Every estimator fulfils these rules. A trajectory whose reward is NaN is unscored: it is left out of all
/// statistics and gets 0. An infinite reward is an error. Every advantage is finite. The same batch and state
/// give the same bits. Time is linear in what is read.
pub trait AdvantageEstimator: Named + Ranged {
    /// Columns besides the rewards that it needs: the trainer provides them or refuses to start.
    fn needs(&self) -> &'static [Column] {
        &[]
    }

    /// Columns that are read if they are given.
    fn uses(&self) -> &'static [Column] {
        &[]
    }

    /// Why its advantages need the whole step; `None`: those of a group depend only on the group.
    fn whole_step(&self) -> Option<WholeStep> {
        None
    }

    /// Baseline of the rewards if it is not the group's: `a critic`. A group whose members all have the same
    /// score then has something to teach.
    fn baseline_beyond_group(&self) -> Option<&'static str> {
        None
    }

    /// Least and greatest reward for which it is defined; `None`: any.
    fn reward_range(&self) -> Option<(f64, f64)> {
        None
    }

    /// The rewards whose deviation divides the advantages, if a key decides it.
    fn divisor(&self) -> Option<Scale> {
        None
    }

    /// The text in which `{prompt}` and `{gold}` are replaced by a prompt and its gold answer, for an
    /// estimator that needs [`Column::GoldLogprobs`].
    fn gold_hint(&self) -> Option<&str> {
        None
    }

    /// Whether every setting is in range and they fit together.
    ///
    /// # Errors
    /// The first setting that is not.
    fn check(&self) -> Result<()> {
        Ok(self.check_ranges()?)
    }

    /// The computation, on a batch that [`Self::estimate`] has checked.
    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate>;

    /// Advantages in the batch's order, with returns and the next state.
    ///
    /// # Errors
    /// A setting is out of range, a column is missing, columns do not fit together, or a number is not
    /// finite.
    fn estimate(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        self.check()?;
        batch.check(self.name(), self.needs(), self.uses())?;
        self.compute(batch, state)
    }

    /// Only the advantages, from the state at the start of a run.
    fn advantages(&self, batch: &AdvantageBatch<'_>) -> Result<Advantages> {
        Ok(self.estimate(batch, &AdvantageState::default())?.advantages)
    }
}
