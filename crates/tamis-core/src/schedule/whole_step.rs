//! What needs a whole step, and so keeps a mini-batch from being trained on while the rest of its step is
//! still generated.
//!
//! A streaming schedule hands mini-batches out as they are ready. Trained on at once they give what they give
//! in a whole batch only where nothing that is computed of one of its groups looks at others of the step.
//! [`WholeStep`] is the table of all that does, a row with its reason each. Estimators, shapings and
//! aggregations are matched without a default arm, so that a new one cannot be forgotten; a filter is judged
//! by its scope. No loss needs a whole step: each looks at its mini-batch alone.
//!
//! What looks at a mini-batch alone is no obstacle: normalisers of the loss, selections of tokens by
//! covariance or entropy, an adaptive coefficient that moves after every update. Neither are passes by the
//! policy as the step begins (log-probabilities of carried groups, say): the learner keeps its weights until
//! the step is complete.

use std::fmt;

use crate::advantage::shaping::Shaping;
use crate::advantage::{Advantage, Scale};
use crate::filter::{GroupFilter, Scope};
use crate::objective::{Aggregation, Objective, ZeroGroups};

/// A property of a run that needs all groups of a step, or its end. `Display` is the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WholeStep {
    /// Advantages are whitened over the tokens or trajectories of the step.
    Whitening,
    /// Advantages are divided by one deviation of all rewards of the step.
    BatchScale,
    /// GPG's alpha.
    ShareWithoutSignal,
    /// BNPO's moments.
    SuccessRates,
    /// The running form of BNPO.
    RunningSuccesses,
    /// A critic's values.
    CriticValues,
    /// Shaping by the share of groups that were kept.
    ShareKept,
    /// Shaping by the largest deviation of the batch.
    LargestDeviation,
    /// Shaping by the mean length of the batch.
    MeanLength,
    /// A filter that compares groups.
    ComparesGroups,
    /// Dropped groups in the denominators of means.
    DroppedInMeans,
    /// Mini-batches in random order.
    RandomOrder,
    /// More than one pass over the batch.
    SeveralPasses,
    /// Greedy completions of all prompts of the batch.
    GreedyCompletions,
    /// Norms of gradients by reward deviation.
    GradientNorms,
}

impl WholeStep {
    /// The table, in order.
    pub const ALL: [Self; 15] = [
        Self::Whitening,
        Self::BatchScale,
        Self::ShareWithoutSignal,
        Self::SuccessRates,
        Self::RunningSuccesses,
        Self::CriticValues,
        Self::ShareKept,
        Self::LargestDeviation,
        Self::MeanLength,
        Self::ComparesGroups,
        Self::DroppedInMeans,
        Self::RandomOrder,
        Self::SeveralPasses,
        Self::GreedyCompletions,
        Self::GradientNorms,
    ];

    /// The configuration key that decides it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Whitening
            | Self::ShareWithoutSignal
            | Self::SuccessRates
            | Self::RunningSuccesses
            | Self::CriticValues
            | Self::GreedyCompletions => "objective.advantage.kind",
            Self::BatchScale => "objective.advantage.scale",
            Self::ShareKept | Self::LargestDeviation | Self::MeanLength => "objective.shaping",
            Self::ComparesGroups => "filter.kind",
            Self::DroppedInMeans => "objective.zero_groups",
            Self::RandomOrder => "train.shuffle_mini_batches",
            Self::SeveralPasses => "train.ppo_epochs",
            Self::GradientNorms => "train.gradient_analysis",
        }
    }

    /// Of an estimator.
    pub fn of_advantage(advantage: &Advantage) -> Option<Self> {
        match advantage {
            Advantage::Grpo(grpo) => of_scale(grpo.scale),
            Advantage::Cpo(cpo) => of_scale(cpo.grpo.scale),
            Advantage::DrGrpo(_)
            | Advantage::GrpoPassk(_)
            | Advantage::Rloo(_)
            | Advantage::Opo(_)
            | Advantage::OptimalTokenBaseline(_)
            | Advantage::TirOptimalTokenBaseline(_) => None,
            Advantage::Remax(_) => Some(Self::GreedyCompletions),
            Advantage::ReinforcePlusPlus(estimator) => estimator.whiten.then_some(Self::Whitening),
            Advantage::ReinforcePlusPlusBaseline(estimator) => estimator.whiten.then_some(Self::Whitening),
            Advantage::Gdpo(estimator) => estimator.whiten.then_some(Self::Whitening),
            Advantage::NormalizeThenSum(_) => Some(Self::Whitening),
            Advantage::Gpg(_) => Some(Self::ShareWithoutSignal),
            Advantage::Bnpo(_) => Some(Self::SuccessRates),
            Advantage::BnpoRunning(_) => Some(Self::RunningSuccesses),
            Advantage::Gae(_) | Advantage::BiLevelGae(_) => Some(Self::CriticValues),
        }
    }

    /// Of a change to finished advantages.
    pub fn of_shaping(shaping: &Shaping) -> Option<Self> {
        match shaping {
            Shaping::ClipAdvantage(_) | Shaping::KeepNegRatio(_) | Shaping::KeepPosRatio(_) => None,
            Shaping::FilterLossScaling(_) => Some(Self::ShareKept),
            Shaping::SoftReweight(_) => Some(Self::LargestDeviation),
            Shaping::LengthWeight(_) => Some(Self::MeanLength),
        }
    }

    /// Of an aggregation: none, its normalisers count the mini-batch.
    pub fn of_aggregation(aggregation: &Aggregation) -> Option<Self> {
        match aggregation {
            Aggregation::TokenMean
            | Aggregation::SeqMeanTokenSum
            | Aggregation::SeqMeanTokenMean { .. }
            | Aggregation::SeqMeanTokenSumNorm { .. }
            | Aggregation::GroupMeanTokenMean
            | Aggregation::GroupMeanSeqMean
            | Aggregation::TokenSum => None,
        }
    }

    /// Of a filter.
    pub fn of_filter(filter: &GroupFilter) -> Option<Self> {
        match filter.scope() {
            Scope::Pool => Some(Self::ComparesGroups),
            Scope::Point => None,
        }
    }
}

fn of_scale(scale: Scale) -> Option<WholeStep> {
    match scale {
        Scale::Batch => Some(WholeStep::BatchScale),
        Scale::Group | Scale::None => None,
    }
}

/// How a step is turned into updates: all of a run that may need a whole step.
#[derive(Debug, Clone, Copy)]
pub struct StepUpdates<'a> {
    /// The filter, where there is one.
    pub filter: Option<&'a GroupFilter>,
    /// The estimator.
    pub advantage: &'a Advantage,
    /// Changes to its advantages.
    pub shapings: &'a [Shaping],
    /// Loss, divergence, entropy and masks.
    pub objective: &'a Objective,
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
    /// All that keeps a mini-batch from being trained on before its step is complete, in the order of the
    /// table; empty where nothing does.
    pub fn obstacles(&self) -> Vec<WholeStep> {
        let mut found: Vec<WholeStep> = [
            self.filter.and_then(WholeStep::of_filter),
            WholeStep::of_advantage(self.advantage),
            WholeStep::of_aggregation(&self.objective.aggregation),
            (self.zero_groups == ZeroGroups::Mask).then_some(WholeStep::DroppedInMeans),
            self.is_shuffled.then_some(WholeStep::RandomOrder),
            (self.num_passes > 1).then_some(WholeStep::SeveralPasses),
            self.measures_gradients.then_some(WholeStep::GradientNorms),
        ]
        .into_iter()
        .chain(self.shapings.iter().map(WholeStep::of_shaping))
        .flatten()
        .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl fmt::Display for WholeStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Whitening => "advantages are whitened over all that the step trains on",
            Self::BatchScale => "advantages are divided by the deviation of all rewards of the step",
            Self::ShareWithoutSignal => {
                "advantages are multiplied by the share of trajectories of the step that carry a gradient"
            }
            Self::SuccessRates => {
                "advantages are weighted by how the success rates of all prompts of the step are spread, dropped ones too"
            }
            Self::RunningSuccesses => {
                "the baseline counts the successes of all trajectories of the step, dropped ones too"
            }
            Self::CriticValues => {
                "values are those of the critic at the start of the step, and it is trained on all of the step"
            }
            Self::ShareKept => "the loss is multiplied by the share of the step's groups that the filter kept",
            Self::LargestDeviation => "advantages are divided by the largest deviation of a group of the step",
            Self::MeanLength => "advantages are multiplied by the mean length of all that the step trains on",
            Self::ComparesGroups => "the filter compares the groups of a round",
            Self::DroppedInMeans => "means divide by all groups of the step, dropped ones too",
            Self::RandomOrder => "mini-batches are drawn from the whole batch",
            Self::SeveralPasses => "the batch is passed over more than once, each time whole",
            Self::GreedyCompletions => {
                "rewards are compared with those of greedy completions, which are sampled for all prompts of the batch together"
            }
            Self::GradientNorms => "norms of gradients are measured over the whole batch, before its updates",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advantage::{Gae, Grpo, ReinforcePlusPlus};
    use crate::objective::{Clip, PolicyLoss};

    /// Every row is reached by some setting, and names its reason and its key; plain GRPO with a variance
    /// filter reaches none.
    #[test]
    fn every_row_is_reached() {
        let advantage = Advantage::named("grpo").unwrap();
        let objective = Objective::of(PolicyLoss::Clip(Clip::symmetric(0.2)), Aggregation::TokenMean);
        let filter = GroupFilter::Variance(crate::filter::Variance::default());
        let plain = StepUpdates {
            filter: Some(&filter),
            advantage: &advantage,
            shapings: &[],
            objective: &objective,
            zero_groups: ZeroGroups::Drop,
            is_shuffled: false,
            num_passes: 1,
            measures_gradients: false,
        };
        assert_eq!(plain.obstacles(), []);
        let mut reached = Vec::new();
        for advantage in Advantage::all() {
            let found = WholeStep::of_advantage(&advantage);
            reached.extend(found);
            let updates = StepUpdates { advantage: &advantage, ..plain };
            assert_eq!(updates.obstacles(), Vec::from_iter(found));
        }
        let scaled = Advantage::Grpo(Grpo { scale: Scale::Batch, ..Grpo::default() });
        let pool = GroupFilter::TopP(crate::filter::TopP::of(0.9));
        for updates in [
            StepUpdates { advantage: &scaled, ..plain },
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
        let of = |advantage| WholeStep::of_advantage(&advantage);
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
