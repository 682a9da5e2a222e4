//! Reasons why a mini-batch cannot be trained on while the rest of its step is still being generated.
//!
//! A streaming schedule hands mini-batches out as soon as they are ready. Training on them at once gives the
//! same result as training on the whole batch only if nothing that is computed for a group depends on other
//! groups of the step. [`WholeStep`] lists the exceptions. An estimator, a shaping or a filter names its own;
//! [`StepUpdates`](crate::schedule::StepUpdates) checks the rest of a run's settings.
//!
//! Parts that depend only on the mini-batch are no obstacle: losses, aggregations and their normalisers,
//! selections of tokens by covariance or entropy, an adaptive coefficient that moves after every update.
//! Passes by the policy as of the start of the step (log-probabilities of carried groups, for example) are no
//! obstacle either: the learner keeps those weights until the step is complete.

use std::fmt;

/// A property of a run that needs all groups of a step, or the end of the step. `Display` prints the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WholeStep {
    /// Advantages are whitened over the tokens or trajectories of the step.
    Whitening,
    /// Advantages are divided by one deviation of all rewards of the step.
    BatchScale,
    /// Advantages are centred on the mean reward of the step.
    BatchMean,
    /// GPG's alpha.
    ShareWithoutSignal,
    /// BNPO's moments.
    SuccessRates,
    /// The running form of BNPO.
    RunningSuccesses,
    /// A critic's values.
    CriticValues,
    /// A function of the user's.
    OwnFunction,
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
    pub const ALL: [Self; 17] = [
        Self::Whitening,
        Self::BatchScale,
        Self::BatchMean,
        Self::ShareWithoutSignal,
        Self::SuccessRates,
        Self::RunningSuccesses,
        Self::CriticValues,
        Self::OwnFunction,
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
            | Self::BatchMean
            | Self::ShareWithoutSignal
            | Self::SuccessRates
            | Self::RunningSuccesses
            | Self::CriticValues
            | Self::OwnFunction
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
}

impl fmt::Display for WholeStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Whitening => "advantages are whitened over all that the step trains on",
            Self::BatchScale => "advantages are divided by the deviation of all rewards of the step",
            Self::BatchMean => "the baseline is the mean reward of all that the step trains on",
            Self::ShareWithoutSignal => {
                "advantages are multiplied by the share of trajectories of the step that have a gradient"
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
            Self::OwnFunction => "advantages come from a function of your own, which gets all groups of the step",
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
