//! Shaping: changes to finished advantages, in the order of the configuration.
//!
//! An estimator's [`Advantages`] enter as [`Shaped::of`]; each [`Shaping`] of the list passes them on.
//! Besides advantages the result has the trajectories to leave out of the loss, and a factor for the policy
//! term.

pub mod add_distillation;
pub mod clip_advantage;
pub mod filter_loss_scaling;
pub mod keep_ratio;
pub mod length_weight;
pub mod soft_reweight;

use super::{AdvantageBatch, Advantages, Column, Result};
use crate::fault;
use crate::group::GroupId;
use crate::ragged::Ragged;
use crate::random::Key;
use crate::setting::{Named, Ranged};
use crate::tagged;
use crate::whole_step::WholeStep;

pub use add_distillation::AddDistillation;
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
    /// Mask of the trajectories that stay in the loss, including entropy and KL `[P][G]`. `None`: all.
    pub kept: Option<Ragged<bool>>,
    /// Factor of the policy term; entropy, KL and value terms are not multiplied by it.
    pub policy_factor: f64,
    /// Metrics by their logged names.
    pub metrics: Vec<(&'static str, f64)>,
}

impl Shaped {
    /// Advantages as an estimator returned them.
    pub fn of(advantages: Advantages) -> Self {
        Self { advantages, kept: None, policy_factor: 1.0, metrics: Vec::new() }
    }

    /// Multiplies all advantages of a trajectory, or its only one, by a factor of its index i in \[B\].
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

/// Numbers of groups of a step's rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundCounts {
    /// Groups kept by the filter, before the batch was cut to its size.
    pub kept: u64,
    /// Groups generated.
    pub generated: u64,
}

/// The columns that shapings use.
#[derive(Debug, Clone, Copy)]
pub struct ShapingBatch<'a> {
    /// The batch to which the advantages belong.
    pub batch: AdvantageBatch<'a>,
    /// Groups of the step's rounds.
    pub groups: RoundCounts,
    /// Key of all draws of this step.
    pub key: Key,
    /// Id of each row's group \[P\], so that draws depend only on it. `None`: the row's number.
    pub group_ids: Option<&'a [GroupId]>,
}

/// A change to finished advantages.
pub trait ShapeAdvantages: Named + Ranged {
    /// Columns besides the rewards that it needs.
    fn needs(&self) -> &'static [Column] {
        &[]
    }

    /// Source of signal in a group whose members all have the same score, if it gives some: `a teacher`.
    fn baseline_beyond_group(&self) -> Option<&'static str> {
        None
    }

    /// Why it needs the whole step; `None`: its effect on a group depends only on the group.
    fn whole_step(&self) -> Option<WholeStep> {
        None
    }

    /// Whether every setting is in range.
    ///
    /// # Errors
    /// The first setting that is not.
    fn check(&self) -> Result<()> {
        Ok(self.check_ranges()?)
    }

    /// Changes advantages whose batch was checked.
    fn change(&self, shaped: &mut Shaped, batch: &ShapingBatch<'_>);

    /// Passes advantages on, changed.
    ///
    /// # Errors
    /// A setting is out of range, a column is missing, or the advantages belong to another batch.
    fn apply(&self, mut shaped: Shaped, batch: &ShapingBatch<'_>) -> Result<Shaped> {
        self.check()?;
        batch.batch.check(self.name(), self.needs(), &[])?;
        let num_trajectories = match &shaped.advantages {
            Advantages::PerTrajectory(advantages) => advantages.num_values(),
            Advantages::PerToken(advantages) => advantages.num_rows(),
        };
        let expected = batch.batch.num_trajectories();
        if num_trajectories != expected {
            return Err(fault!("advantages of {num_trajectories} trajectories; expected {expected}").into());
        }
        self.change(&mut shaped, batch);
        Ok(shaped)
    }
}

tagged! {
    /// One change to finished advantages.
    #[derive(Copy)]
    pub enum Shaping: ShapeAdvantages {
        /// Clamps advantages to two bounds.
        ClipAdvantage(ClipAdvantage) = "clip_advantage",
        /// Trains on a share of each group's trajectories of negative advantage, the worst first; the others
        /// are left out of the loss.
        KeepNegRatio(KeepNegRatio) = "keep_neg_ratio",
        /// Trains on a share of each group's trajectories of positive advantage, the best first; the others
        /// are left out of the loss.
        KeepPosRatio(KeepPosRatio) = "keep_pos_ratio",
        /// Multiplies the policy term by the share of generated groups that the filter kept, or its root.
        FilterLossScaling(FilterLossScaling) = "filter_loss_scaling",
        /// Multiplies a group's advantages by the deviation of its rewards over the largest in the batch.
        SoftReweight(SoftReweight) = "soft_reweight",
        /// Divides advantages by the trajectory's length relative to the mean length of the batch.
        LengthWeight(LengthWeight) = "length_weight",
        /// Adds to the advantage of each token its log-probability under a teacher, less that under the
        /// policy.
        AddDistillation(AddDistillation) = "add_distillation",
    }
}

impl Shaping {
    /// Every shaping with its defaults, in the order of the catalogue.
    pub fn all() -> Vec<Self> {
        let named = |name: &&str| serde_json::from_value(serde_json::json!({ "kind": name })).ok();
        Self::NAMES.iter().filter_map(named).collect()
    }
}

/// Applies shapings one after the other.
pub fn shape(shapings: &[Shaping], advantages: Advantages, batch: &ShapingBatch<'_>) -> Result<Shaped> {
    shapings.iter().try_fold(Shaped::of(advantages), |shaped, shaping| shaping.apply(shaped, batch))
}
