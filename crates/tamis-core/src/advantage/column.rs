//! The columns that an estimator may use besides the rewards.

/// A column of an [`AdvantageBatch`](super::AdvantageBatch) besides the rewards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Column {
    /// Tokens trained on, per trajectory; counted from the mask if that is given.
    Lengths,
    /// Mask of the tokens that the policy produced.
    Mask,
    /// Rewards per token.
    TokenRewards,
    /// Rewards per turn.
    TurnRewards,
    /// Turn of each token.
    Turns,
    /// Values of a critic.
    Values,
    /// Entropy of the policy.
    Entropy,
    /// Log-probabilities at the start of the step.
    OldLogprobs,
    /// Log-probabilities given the gold answer.
    GoldLogprobs,
    /// Log-probabilities under the teacher.
    TeacherLogprobs,
    /// Sum of squared probabilities over the vocabulary.
    SumPiSquared,
    /// Importance weights of the rollout correction.
    RolloutWeights,
    /// Named rewards.
    Components,
    /// Rewards of greedy completions.
    GreedyRewards,
    /// Statistics of all generated groups.
    Generated,
    /// Advantages that were computed elsewhere.
    Given,
}

impl Column {
    /// The field of [`AdvantageBatch`](super::AdvantageBatch) that holds it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lengths => "lengths",
            Self::Mask => "mask",
            Self::TokenRewards => "token_rewards",
            Self::TurnRewards => "turn_rewards",
            Self::Turns => "turns",
            Self::Values => "values",
            Self::Entropy => "entropy",
            Self::OldLogprobs => "old_logprobs",
            Self::GoldLogprobs => "gold_logprobs",
            Self::TeacherLogprobs => "teacher_logprobs",
            Self::SumPiSquared => "sum_pi_squared",
            Self::RolloutWeights => "rollout_weights",
            Self::Components => "components",
            Self::GreedyRewards => "greedy_rewards",
            Self::Generated => "generated",
            Self::Given => "given",
        }
    }

    /// The column's content and its provider, for an error message.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Lengths => "number of tokens trained on of each trajectory",
            Self::Mask => "which tokens the policy produced",
            Self::TokenRewards => "a reward per token",
            Self::TurnRewards => "a reward per turn",
            Self::Turns => "the turn of each token",
            Self::Values => "values of a critic at each token",
            Self::Entropy => "entropy of the policy at each token",
            Self::OldLogprobs => "log-probabilities under the policy at the start of the step",
            Self::GoldLogprobs => {
                "log-probabilities of the same tokens under the policy given the gold answer, from a second forward pass"
            }
            Self::TeacherLogprobs => "log-probabilities of the same tokens under the teacher",
            Self::SumPiSquared => "sum of squared probabilities over the vocabulary at each token",
            Self::RolloutWeights => "importance weights of the rollout correction",
            Self::Components => "the named rewards before they are summed",
            Self::GreedyRewards => "the reward of one greedy completion of each prompt",
            Self::Generated => "statistics of all groups of the step before filtering",
            Self::Given => "advantages that a function of your own has computed; `tamis train` calls it",
        }
    }
}
