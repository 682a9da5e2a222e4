//! The one mechanism of all estimators: a trait, and what comes out.

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

/// State that estimators carry from step to step: saved in checkpoints, an input and an output of every call.
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
    /// Sum of what they fell short of 1.
    pub failures: f64,
}

/// Result of an estimator.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The advantages.
    pub advantages: Advantages,
    /// Returns, the targets of a critic's values, per token `[B][T]`, where the estimator forms them.
    pub returns: Option<Ragged<f64>>,
    /// State for the next step.
    pub state: AdvantageState,
}

impl Estimate {
    /// One number per trajectory, 0 where it is not finite (as NaN of unscored members is not), and nothing
    /// else new.
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
/// For every estimator: a trajectory whose reward is NaN is unscored, outside all statistics, and gets 0; an
/// infinite reward is an error; every advantage is finite; the same batch and state give the same bits; time
/// is linear in what is read.
pub trait AdvantageEstimator: Named + Ranged {
    /// Columns beyond the rewards without which there is no advantage: the trainer provides them or refuses
    /// at start.
    fn needs(&self) -> &'static [Column] {
        &[]
    }

    /// Columns that are read where they are given.
    fn uses(&self) -> &'static [Column] {
        &[]
    }

    /// Why its advantages wait for the whole step; `None`: those of a group depend on that group alone.
    fn whole_step(&self) -> Option<WholeStep> {
        None
    }

    /// Baseline of the rewards where it is not the group's: `a critic`. A group whose members all score the
    /// same then teaches something.
    fn baseline_beyond_group(&self) -> Option<&'static str> {
        None
    }

    /// Least and largest reward that it is defined for; `None`: any.
    fn reward_range(&self) -> Option<(f64, f64)> {
        None
    }

    /// Over what the deviation that divides advantages is taken, where a key decides it.
    fn divisor(&self) -> Option<Scale> {
        None
    }

    /// The text in which `{prompt}` and `{gold}` stand for a prompt and its gold answer, of an estimator that
    /// needs [`Column::GoldLogprobs`].
    fn gold_hint(&self) -> Option<&str> {
        None
    }

    /// Whether every setting is in range, and they go together.
    ///
    /// # Errors
    /// The first that is not.
    fn check(&self) -> Result<()> {
        Ok(self.check_ranges()?)
    }

    /// The computation itself, on a batch that [`Self::estimate`] has checked.
    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate>;

    /// Advantages in the batch's order, with returns and the next state.
    ///
    /// # Errors
    /// A setting out of range, a missing column, columns that do not fit together, a number that is not
    /// finite.
    fn estimate(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState) -> Result<Estimate> {
        self.check()?;
        batch.check(self.name(), self.needs(), self.uses())?;
        self.compute(batch, state)
    }

    /// Advantages alone, from the state at the start of a run.
    fn advantages(&self, batch: &AdvantageBatch<'_>) -> Result<Advantages> {
        Ok(self.estimate(batch, &AdvantageState::default())?.advantages)
    }
}
