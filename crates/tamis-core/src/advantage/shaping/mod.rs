//! Shaping: changes to finished advantages, in the order of the configuration.
//!
//! An estimator's [`Advantages`] enter as [`Shaped::of`]; each [`Shaping`] of the list passes them on. What comes out besides
//! advantages: trajectories that are to be left out of the loss altogether, and a factor for the policy term.

pub mod clip_advantage;
pub mod filter_loss_scaling;
pub mod keep_ratio;
pub mod length_weight;
pub mod soft_reweight;

use serde::{Deserialize, Serialize};

use super::{AdvantageBatch, AdvantageError, Advantages, Column};
use crate::group::GroupId;
use crate::ragged::Ragged;
use crate::random::Key;

pub use clip_advantage::ClipAdvantage;
pub use filter_loss_scaling::{FilterLossScaling, LossScaling};
pub use keep_ratio::{KeepNegRatio, KeepPosRatio};
pub use length_weight::LengthWeight;
pub use soft_reweight::SoftReweight;

/// Advantages on their way through the shapings.
#[derive(Debug, Clone, PartialEq)]
pub struct Shaped {
    /// The advantages.
    pub advantages: Advantages,
    /// Which trajectories stay in the loss, entropy and KL included `[P][G]`. `None`: all.
    pub kept: Option<Ragged<bool>>,
    /// Factor of the policy term; entropy, KL and value terms are not multiplied by it.
    pub policy_factor: f64,
    /// Metrics by their logged names.
    pub metrics: Vec<(&'static str, f64)>,
}

impl Shaped {
    /// Advantages as an estimator gave them.
    pub fn of(advantages: Advantages) -> Self {
        Self { advantages, kept: None, policy_factor: 1.0, metrics: Vec::new() }
    }

    /// Multiplies all advantages of a trajectory, or its only one, by a factor of its place i in \[B\].
    fn scale(&mut self, factor: impl Fn(usize) -> f64) {
        match &mut self.advantages {
            Advantages::PerTrajectory(advantages) => {
                let mut i = 0;
                for group in 0..advantages.num_rows() {
                    for advantage in advantages.row_mut(group) {
                        *advantage *= factor(i);
                        i += 1;
                    }
                }
            }
            Advantages::PerToken(advantages) => {
                for i in 0..advantages.num_rows() {
                    let factor = factor(i);
                    for advantage in advantages.row_mut(i) {
                        *advantage *= factor;
                    }
                }
            }
        }
    }

    /// The advantage of trajectory i of \[B\]: its only one, or the sum over its tokens.
    fn of_trajectory(&self, i: usize) -> f64 {
        match &self.advantages {
            Advantages::PerTrajectory(advantages) => advantages.values()[i],
            Advantages::PerToken(advantages) => advantages.row(i).iter().sum(),
        }
    }
}

/// Groups of the rounds of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupCounts {
    /// Kept by the filter, before the batch was cut to its size.
    pub kept: u64,
    /// Generated.
    pub generated: u64,
}

/// What shapings look at.
#[derive(Debug, Clone, Copy)]
pub struct ShapingBatch<'a> {
    /// The batch that the advantages are of.
    pub batch: AdvantageBatch<'a>,
    /// Groups of the step's rounds.
    pub groups: GroupCounts,
    /// Key of all draws of this step.
    pub key: Key,
    /// Which group each row is \[P\], so that draws depend on nothing else. `None`: the row's number.
    pub group_ids: Option<&'a [GroupId]>,
}

/// A change to finished advantages, as the configuration holds it: `{kind: clip_advantage, low: -5}`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Shaping {
    /// See [`ClipAdvantage`].
    ClipAdvantage(ClipAdvantage),
    /// See [`KeepNegRatio`].
    KeepNegRatio(KeepNegRatio),
    /// See [`KeepPosRatio`].
    KeepPosRatio(KeepPosRatio),
    /// See [`FilterLossScaling`].
    FilterLossScaling(FilterLossScaling),
    /// See [`SoftReweight`].
    SoftReweight(SoftReweight),
    /// See [`LengthWeight`].
    LengthWeight(LengthWeight),
}

impl Shaping {
    /// Every shaping with its defaults, in the order of the catalogue.
    pub fn all() -> [Self; 6] {
        [
            Self::ClipAdvantage(ClipAdvantage::default()),
            Self::KeepNegRatio(KeepNegRatio::default()),
            Self::KeepPosRatio(KeepPosRatio::default()),
            Self::FilterLossScaling(FilterLossScaling::default()),
            Self::SoftReweight(SoftReweight::default()),
            Self::LengthWeight(LengthWeight::default()),
        ]
    }

    /// The name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ClipAdvantage(_) => clip_advantage::ENTRY.name,
            Self::KeepNegRatio(_) => keep_ratio::NEG_ENTRY.name,
            Self::KeepPosRatio(_) => keep_ratio::POS_ENTRY.name,
            Self::FilterLossScaling(_) => filter_loss_scaling::ENTRY.name,
            Self::SoftReweight(_) => soft_reweight::ENTRY.name,
            Self::LengthWeight(_) => length_weight::ENTRY.name,
        }
    }

    /// Columns beyond the rewards that it cannot do without.
    pub fn needs(&self) -> &'static [Column] {
        match self {
            Self::LengthWeight(_) => &[Column::Lengths],
            _ => &[],
        }
    }

    /// Whether every setting is in range.
    ///
    /// # Errors
    /// [`AdvantageError::Setting`] with the first that is not.
    pub fn check(&self) -> Result<(), AdvantageError> {
        match self {
            Self::ClipAdvantage(shaping) => shaping.check(),
            Self::KeepNegRatio(shaping) => shaping.check(),
            Self::KeepPosRatio(shaping) => shaping.check(),
            Self::FilterLossScaling(_) | Self::LengthWeight(_) => Ok(()),
            Self::SoftReweight(shaping) => shaping.check(),
        }
    }

    /// Passes advantages on, changed.
    ///
    /// # Errors
    /// A setting out of range, a missing column, advantages of another batch.
    pub fn apply(&self, mut shaped: Shaped, batch: &ShapingBatch<'_>) -> Result<Shaped, AdvantageError> {
        self.check()?;
        batch.batch.check(self.name(), self.needs(), &[])?;
        let num_trajectories = match &shaped.advantages {
            Advantages::PerTrajectory(advantages) => advantages.num_values(),
            Advantages::PerToken(advantages) => advantages.num_rows(),
        };
        let expected = batch.batch.num_trajectories();
        if num_trajectories != expected {
            return Err(AdvantageError::Advantages { expected, actual: num_trajectories });
        }
        match self {
            Self::ClipAdvantage(shaping) => shaping.apply(&mut shaped),
            Self::KeepNegRatio(shaping) => shaping.apply(&mut shaped, batch),
            Self::KeepPosRatio(shaping) => shaping.apply(&mut shaped, batch),
            Self::FilterLossScaling(shaping) => shaped.policy_factor *= shaping.factor(batch.groups),
            Self::SoftReweight(shaping) => shaping.apply(&mut shaped, batch.batch.rewards),
            Self::LengthWeight(LengthWeight {}) => length_weight::apply(&mut shaped, &batch.batch),
        }
        Ok(shaped)
    }
}

/// Applies shapings one after the other.
///
/// # Errors
/// As [`Shaping::apply`].
pub fn shape(
    shapings: &[Shaping],
    advantages: Advantages,
    batch: &ShapingBatch<'_>,
) -> Result<Shaped, AdvantageError> {
    shapings.iter().try_fold(Shaped::of(advantages), |shaped, shaping| shaping.apply(shaped, batch))
}
