//! The one mechanism of all estimators: a trait, the serialisable choice of one, and what comes out.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::singleton::zero_where_not_finite;
use super::{
    AdvantageBatch, AdvantageError, BiLevelGae, Bnpo, BnpoRunning, Column, Cpo, DrGrpo, Gae, Gdpo, Gpg, Grpo,
    GrpoPassk, NormalizeThenSum, Opo, OptimalTokenBaseline, ReinforcePlusPlus, ReinforcePlusPlusBaseline,
    Remax, Rloo, Scale, TirOptimalTokenBaseline,
};
use crate::ragged::Ragged;
use crate::tagged;
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
/// let remax = Advantage::named("remax").ok_or("no such estimator")?;
/// assert_eq!(remax.needs(), [Column::GreedyRewards]);
/// # Ok::<(), &str>(())
/// ```
///
/// For every estimator: a trajectory whose reward is NaN is unscored, outside all statistics, and gets 0; an
/// infinite reward is an error; every advantage is finite; the same batch and state give the same bits; time
/// is linear in what is read.
pub trait AdvantageEstimator {
    /// The field's name of it, as in the configuration.
    fn name(&self) -> &'static str;

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

    /// What rewards are compared with, where that is not the group: `a critic`. A group whose members all
    /// score the same then teaches something.
    fn baseline_beyond_group(&self) -> Option<&'static str> {
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
    /// A setting out of range, a missing column, columns that do not fit together, a number that is not
    /// finite.
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

tagged! {
    /// How advantages are computed from rewards.
    pub enum Advantage: AdvantageEstimator, default Grpo {
        /// The reward against the mean of its group, over its deviation (DeepSeekMath, arXiv 2402.03300).
        Grpo(Grpo) = "grpo",
        /// The reward against the mean of its group (arXiv 2503.20783).
        DrGrpo(DrGrpo) = "dr_grpo",
        /// The lead of the best of a group over the second (arXiv 2503.19595).
        GrpoPassk(GrpoPassk) = "grpo_passk",
        /// The reward against the mean of the others of its group (arXiv 2402.14740).
        Rloo(Rloo) = "rloo",
        /// Discounted rewards to go, whitened over the batch (arXiv 2501.03262).
        ReinforcePlusPlus(ReinforcePlusPlus) = "reinforce_plus_plus",
        /// The reward against the mean of its group, whitened over the batch (arXiv 2501.03262).
        ReinforcePlusPlusBaseline(ReinforcePlusPlusBaseline) = "reinforce_plus_plus_baseline",
        /// The reward against that of a greedy completion of the same prompt (arXiv 2310.10505).
        Remax(Remax) = "remax",
        /// The reward against the length-weighted mean of its group (arXiv 2505.23585).
        Opo(Opo) = "opo",
        /// The reward against the mean of its group, scaled by the share of groups with signal (arXiv
        /// 2504.02546).
        Gpg(Gpg) = "gpg",
        /// Each reward normalised in its group, summed, whitened over the batch (arXiv 2601.05242).
        Gdpo(Gdpo) = "gdpo",
        /// Each reward normalised in its group, then the sum by the batch: `gdpo` as TRL has it
        /// (`multi_objective_aggregation: normalize_then_sum`).
        NormalizeThenSum(NormalizeThenSum) = "normalize_then_sum",
        /// Rewards to go against the baseline of least variance at each token (arXiv 2602.07078).
        OptimalTokenBaseline(OptimalTokenBaseline) = "optimal_token_baseline",
        /// `optimal_token_baseline` for several turns: tool output does not count as a position.
        TirOptimalTokenBaseline(TirOptimalTokenBaseline) = "tir_optimal_token_baseline",
        /// Generalised advantage estimation with a critic (arXiv 1506.02438).
        Gae(Gae) = "gae",
        /// `gae` over turns, then over the tokens of each turn.
        BiLevelGae(BiLevelGae) = "bi_level_gae",
        /// Beta normalisation with parameters fitted to all prompts of the step (arXiv 2506.02864).
        Bnpo(Bnpo) = "bnpo",
        /// The reward against the success rate of recent steps, over its deviation.
        BnpoRunning(BnpoRunning) = "bnpo_running",
        /// `grpo` moved by the contrast with the policy that has seen the gold answer.
        Cpo(Cpo) = "cpo",
    }
}

impl Advantage {
    /// Every estimator with its defaults, in the order of the catalogue.
    pub fn all() -> Vec<Self> {
        Self::NAMES.iter().filter_map(|name| Self::named(name)).collect()
    }

    /// The estimator of a name, with its defaults.
    ///
    /// ```
    /// use tamis_core::advantage::{Advantage, Column};
    /// let remax = Advantage::named("remax").ok_or("no such estimator")?;
    /// assert_eq!(remax.needs(), [Column::GreedyRewards]);
    /// # Ok::<(), &str>(())
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        serde_json::from_value(serde_json::json!({ "kind": name })).ok()
    }
}
