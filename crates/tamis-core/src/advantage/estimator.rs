//! The one mechanism of all estimators: a trait, the serialisable choice of one, and what comes out.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::singleton::zero_where_not_finite;
use super::{
    AdvantageBatch, AdvantageError, BiLevelGae, Bnpo, BnpoRunning, Column, Cpo, DrGrpo, Gae, Gdpo, Gpg, Grpo,
    GrpoPassk, NormalizeThenSum, Opo, OptimalTokenBaseline, ReinforcePlusPlus, ReinforcePlusPlusBaseline,
    Remax, Rloo, TirOptimalTokenBaseline,
};
use crate::ragged::Ragged;

/// Advantages of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Advantages {
    /// One number per trajectory `[P][G]`, the same for each of its tokens.
    PerTrajectory(Ragged<f64>),
    /// One number per token, one row per trajectory `[B][T]`; 0 at masked tokens and in unscored trajectories.
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

/// What estimators carry from step to step: saved in checkpoints, an input and an output of every call.
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

/// What an estimator returns.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The advantages.
    pub advantages: Advantages,
    /// What a critic's value should have been, per token `[B][T]`, where the estimator forms returns.
    pub returns: Option<Ragged<f64>>,
    /// State for the next step.
    pub state: AdvantageState,
}

impl Estimate {
    /// One number per trajectory, 0 where it is not finite (as NaN of unscored members is not), and nothing else new.
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
/// For every estimator: a trajectory whose reward is NaN is unscored, outside all statistics, and gets 0; an infinite reward is an error;
/// every advantage is finite; the same batch and state give the same bits; time is linear in what is read.
pub trait AdvantageEstimator {
    /// The field's name of it, as in the configuration.
    fn name(&self) -> &'static str;

    /// Columns beyond the rewards without which there is no advantage: the trainer provides them or refuses at start.
    fn needs(&self) -> &'static [Column] {
        &[]
    }

    /// Columns that are read where they are given.
    fn uses(&self) -> &'static [Column] {
        &[]
    }

    /// Whether every setting is in range.
    ///
    /// # Errors
    /// [`AdvantageError::Setting`] with the first that is not.
    fn check(&self) -> Result<(), AdvantageError>;

    /// The computation itself, on a batch that [`Self::estimate`] has checked.
    ///
    /// # Errors
    /// What only the computation can find.
    fn compute(&self, batch: &AdvantageBatch<'_>, state: &AdvantageState)
    -> Result<Estimate, AdvantageError>;

    /// Advantages in the batch's order, with returns and the next state.
    ///
    /// # Errors
    /// A setting out of range, a missing column, columns that do not fit together, a number that is not finite.
    fn estimate(
        &self,
        batch: &AdvantageBatch<'_>,
        state: &AdvantageState,
    ) -> Result<Estimate, AdvantageError> {
        self.check()?;
        batch.check(self.name(), self.needs(), self.uses())?;
        self.compute(batch, state)
    }

    /// Advantages alone, from the state at the start of a run.
    ///
    /// # Errors
    /// As [`Self::estimate`].
    fn advantages(&self, batch: &AdvantageBatch<'_>) -> Result<Advantages, AdvantageError> {
        Ok(self.estimate(batch, &AdvantageState::default())?.advantages)
    }
}

/// The choice of an estimator with its settings, as configuration and presets hold it: `{kind: rloo}`.
///
/// Settings that are left out have the defaults of the catalogue's entry.
///
/// ```
/// use tamis_core::advantage::{Advantage, AdvantageEstimator, Column};
/// let remax = Advantage::named("remax").ok_or("no such estimator")?;
/// assert_eq!(remax.needs(), [Column::GreedyRewards]);
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Advantage {
    /// See [`Grpo`].
    Grpo(Grpo),
    /// See [`DrGrpo`].
    DrGrpo(DrGrpo),
    /// See [`GrpoPassk`].
    GrpoPassk(GrpoPassk),
    /// See [`Rloo`].
    Rloo(Rloo),
    /// See [`ReinforcePlusPlus`].
    ReinforcePlusPlus(ReinforcePlusPlus),
    /// See [`ReinforcePlusPlusBaseline`].
    ReinforcePlusPlusBaseline(ReinforcePlusPlusBaseline),
    /// See [`Remax`].
    Remax(Remax),
    /// See [`Opo`].
    Opo(Opo),
    /// See [`Gpg`].
    Gpg(Gpg),
    /// See [`Gdpo`].
    Gdpo(Gdpo),
    /// See [`NormalizeThenSum`].
    NormalizeThenSum(NormalizeThenSum),
    /// See [`OptimalTokenBaseline`].
    OptimalTokenBaseline(OptimalTokenBaseline),
    /// See [`TirOptimalTokenBaseline`].
    TirOptimalTokenBaseline(TirOptimalTokenBaseline),
    /// See [`Gae`].
    Gae(Gae),
    /// See [`BiLevelGae`].
    BiLevelGae(BiLevelGae),
    /// See [`Bnpo`].
    Bnpo(Bnpo),
    /// See [`BnpoRunning`].
    BnpoRunning(BnpoRunning),
    /// See [`Cpo`].
    Cpo(Cpo),
}

impl Advantage {
    /// Every estimator with its defaults, in the order of the catalogue.
    pub fn all() -> [Self; 18] {
        [
            Self::Grpo(Grpo::default()),
            Self::DrGrpo(DrGrpo::default()),
            Self::GrpoPassk(GrpoPassk::default()),
            Self::Rloo(Rloo::default()),
            Self::ReinforcePlusPlus(ReinforcePlusPlus::default()),
            Self::ReinforcePlusPlusBaseline(ReinforcePlusPlusBaseline::default()),
            Self::Remax(Remax::default()),
            Self::Opo(Opo::default()),
            Self::Gpg(Gpg::default()),
            Self::Gdpo(Gdpo::default()),
            Self::NormalizeThenSum(NormalizeThenSum::default()),
            Self::OptimalTokenBaseline(OptimalTokenBaseline::default()),
            Self::TirOptimalTokenBaseline(TirOptimalTokenBaseline::default()),
            Self::Gae(Gae::default()),
            Self::BiLevelGae(BiLevelGae::default()),
            Self::Bnpo(Bnpo::default()),
            Self::BnpoRunning(BnpoRunning::default()),
            Self::Cpo(Cpo::default()),
        ]
    }

    /// The estimator of a name, with its defaults.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|advantage| advantage.name() == name)
    }

    fn estimator(&self) -> &dyn AdvantageEstimator {
        match self {
            Self::Grpo(estimator) => estimator,
            Self::DrGrpo(estimator) => estimator,
            Self::GrpoPassk(estimator) => estimator,
            Self::Rloo(estimator) => estimator,
            Self::ReinforcePlusPlus(estimator) => estimator,
            Self::ReinforcePlusPlusBaseline(estimator) => estimator,
            Self::Remax(estimator) => estimator,
            Self::Opo(estimator) => estimator,
            Self::Gpg(estimator) => estimator,
            Self::Gdpo(estimator) => estimator,
            Self::NormalizeThenSum(estimator) => estimator,
            Self::OptimalTokenBaseline(estimator) => estimator,
            Self::TirOptimalTokenBaseline(estimator) => estimator,
            Self::Gae(estimator) => estimator,
            Self::BiLevelGae(estimator) => estimator,
            Self::Bnpo(estimator) => estimator,
            Self::BnpoRunning(estimator) => estimator,
            Self::Cpo(estimator) => estimator,
        }
    }
}

impl AdvantageEstimator for Advantage {
    fn name(&self) -> &'static str {
        self.estimator().name()
    }

    fn needs(&self) -> &'static [Column] {
        self.estimator().needs()
    }

    fn uses(&self) -> &'static [Column] {
        self.estimator().uses()
    }

    fn check(&self) -> Result<(), AdvantageError> {
        self.estimator().check()
    }

    fn compute(
        &self,
        batch: &AdvantageBatch<'_>,
        state: &AdvantageState,
    ) -> Result<Estimate, AdvantageError> {
        self.estimator().compute(batch, state)
    }
}
