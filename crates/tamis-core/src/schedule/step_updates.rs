//! Division of a step into updates, and the parts of it that need the whole step.

use crate::advantage::Advantage;
use crate::advantage::shaping::Shaping;
use crate::filter::{GroupFilter, Scope};
use crate::objective::ZeroGroups;
use crate::whole_step::WholeStep;

/// The settings that turn a step into updates: everything in a run that may need a whole step.
#[derive(Debug, Clone, Copy)]
pub struct StepUpdates<'a> {
    /// The filter, if any.
    pub filter: Option<&'a GroupFilter>,
    /// The estimator.
    pub advantage: &'a Advantage,
    /// Changes to its advantages.
    pub shapings: &'a [Shaping],
    /// Whether dropped groups are in the denominators.
    pub zero_groups: ZeroGroups,
    /// Whether mini-batches are drawn in random order.
    pub is_shuffled: bool,
    /// Passes over the batch.
    pub num_passes: usize,
    /// Whether norms of gradients are measured before the updates of a step.
    pub measures_gradients: bool,
}

impl StepUpdates<'_> {
    /// Everything that keeps a mini-batch from being trained on before its step is complete, in the order of
    /// the table; empty if nothing does.
    pub fn obstacles(&self) -> Vec<WholeStep> {
        let compares_groups = self.filter.is_some_and(|filter| filter.scope() == Scope::Pool);
        let mut found: Vec<WholeStep> = [
            compares_groups.then_some(WholeStep::ComparesGroups),
            self.advantage.whole_step(),
            (self.zero_groups == ZeroGroups::Mask).then_some(WholeStep::DroppedInMeans),
            self.is_shuffled.then_some(WholeStep::RandomOrder),
            (self.num_passes > 1).then_some(WholeStep::SeveralPasses),
            self.measures_gradients.then_some(WholeStep::GradientNorms),
        ]
        .into_iter()
        .chain(self.shapings.iter().map(|shaping| shaping.whole_step()))
        .flatten()
        .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advantage::{Gae, Grpo, PythonAdvantage, ReinforcePlusPlus, Scale};
    use crate::own_function::OwnFunction;

    /// Every row is reached by some setting and names its reason and its key. Plain GRPO with a variance
    /// filter reaches none.
    #[test]
    fn every_row_is_reached() {
        let advantage = Advantage::of_name("grpo").unwrap();
        let filter = GroupFilter::Variance(crate::filter::Variance::default());
        let plain = StepUpdates {
            filter: Some(&filter),
            advantage: &advantage,
            shapings: &[],
            zero_groups: ZeroGroups::Drop,
            is_shuffled: false,
            num_passes: 1,
            measures_gradients: false,
        };
        assert_eq!(plain.obstacles(), []);
        let mut reached = Vec::new();
        for advantage in Advantage::all() {
            let found = advantage.whole_step();
            reached.extend(found);
            let updates = StepUpdates { advantage: &advantage, ..plain };
            assert_eq!(updates.obstacles(), Vec::from_iter(found));
        }
        let scaled = Advantage::Grpo(Grpo { scale: Scale::Batch, ..Grpo::default() });
        let own = Advantage::Python(PythonAdvantage { function: OwnFunction::of("my.py") });
        let pool = GroupFilter::TopP(crate::filter::TopP::of(0.9));
        for updates in [
            StepUpdates { advantage: &scaled, ..plain },
            StepUpdates { advantage: &own, ..plain },
            StepUpdates { filter: Some(&pool), ..plain },
            StepUpdates { shapings: &Shaping::all(), ..plain },
            StepUpdates { zero_groups: ZeroGroups::Mask, ..plain },
            StepUpdates { is_shuffled: true, ..plain },
            StepUpdates { num_passes: 2, ..plain },
            StepUpdates { measures_gradients: true, ..plain },
        ] {
            assert!(!updates.obstacles().is_empty());
            reached.extend(updates.obstacles());
        }
        reached.sort_unstable();
        reached.dedup();
        assert_eq!(reached, WholeStep::ALL);
        for row in WholeStep::ALL {
            assert!(row.to_string().len() > 20 && row.key().contains('.'));
        }
    }

    #[test]
    fn settings_of_an_estimator_decide() {
        let of = |advantage: Advantage| advantage.whole_step();
        let plain = ReinforcePlusPlus { whiten: false, ..ReinforcePlusPlus::default() };
        assert_eq!(of(Advantage::ReinforcePlusPlus(plain)), None);
        assert_eq!(
            of(Advantage::ReinforcePlusPlus(ReinforcePlusPlus::default())),
            Some(WholeStep::Whitening)
        );
        let unwhitened = Gae { whiten: false, ..Gae::default() };
        assert_eq!(of(Advantage::Gae(unwhitened)), Some(WholeStep::CriticValues));
    }
}
