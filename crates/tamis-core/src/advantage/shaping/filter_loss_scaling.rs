//! Scales the policy term down if the filter dropped much.

use super::{RoundCounts, ShapeAdvantages, Shaped, ShapingBatch};
use crate::entry::{Entry, Family};
use crate::whole_step::WholeStep;
use crate::{choice, settings};

pub(in crate::advantage) const ENTRY: Entry = Entry {
    name: "filter_loss_scaling",
    family: Family::Shaping,
    formula: "factor = kept/generated (linear) or its square root (sqrt), groups of the step's rounds before the batch is cut to size",
    source: "Wang et al., RAGEN-2, arXiv 2604.06268; RAGEN actor.filter_loss_scaling",
    degenerate: &[
        "if nothing was generated, or nothing filtered, the factor is 1; if nothing was kept it is 0",
    ],
    known_as: &[("RAGEN", "actor_rollout_ref.actor.filter_loss_scaling")],
    differences: &[
        "RAGEN multiplies the advantages, which is the same for losses that have them as a factor; \
            here, losses that choose tokens by advantage use unscaled ones",
    ],
    ..Entry::REGISTERED
};

choice! {
    /// How the kept share of groups scales the policy term.
    pub enum LossScaling {
        /// The factor is 1.
        None = "none",
        /// The factor is the share.
        Linear = "linear",
        /// The factor is the root of the share.
        Sqrt = "sqrt",
    }
}

settings! {
    /// A factor for the policy term from the share of groups that the filter kept; advantages stay unchanged.
    ///
    /// Source: RAGEN `filter_loss_scaling`. Entropy, KL and value terms are not multiplied.
    #[derive(Copy)]
    pub struct FilterLossScaling {
        /// How the factor of the policy term depends on the share of groups that were kept.
        by: LossScaling = LossScaling::None;
    }
}

impl FilterLossScaling {
    /// The factor.
    ///
    /// ```
    /// use tamis_core::advantage::shaping::{FilterLossScaling, RoundCounts, LossScaling};
    /// let groups = RoundCounts { kept: 2, generated: 8 };
    /// assert_eq!(FilterLossScaling { by: LossScaling::Linear }.factor(groups), 0.25);
    /// assert_eq!(FilterLossScaling { by: LossScaling::Sqrt }.factor(groups), 0.5);
    /// ```
    pub fn factor(&self, groups: RoundCounts) -> f64 {
        if groups.generated == 0 {
            return 1.0;
        }
        let share = groups.kept as f64 / groups.generated as f64;
        match self.by {
            LossScaling::None => 1.0,
            LossScaling::Linear => share,
            LossScaling::Sqrt => share.sqrt(),
        }
    }
}

impl ShapeAdvantages for FilterLossScaling {
    fn whole_step(&self) -> Option<WholeStep> {
        Some(WholeStep::ShareKept)
    }

    fn change(&self, shaped: &mut Shaped, batch: &ShapingBatch<'_>) {
        shaped.policy_factor *= self.factor(batch.groups);
    }
}
