//! `objective`: advantage, loss, aggregation, KL and entropy.

use crate::define::{choice, section};

choice! {
    /// How advantages are estimated.
    pub enum Estimator {
        /// The reward against the mean of its group (DeepSeekMath, arXiv 2402.03300).
        Grpo = "grpo",
    }
}

choice! {
    /// Over what the deviation that divides advantages is taken.
    pub enum AdvantageScale {
        /// Over the group.
        Group = "group",
        /// Over the whole batch.
        Batch = "batch",
        /// No division.
        None = "none",
    }
}

choice! {
    /// The advantage in a group of one trajectory.
    pub enum SingletonAdvantage {
        /// Zero: such a group has nothing to be compared with.
        Zero = "zero",
        /// The reward itself (mean 0, deviation 1), as verl's.
        Raw = "raw",
    }
}

choice! {
    /// How the loss of tokens becomes one number.
    pub enum Aggregation {
        /// Mean over all tokens of the mini-batch (DAPO as released).
        TokenMean = "token-mean",
        /// Sum over the tokens of a sequence, mean over sequences.
        SeqMeanTokenSum = "seq-mean-token-sum",
        /// Mean over the tokens of a sequence, mean over sequences (GRPO as published).
        SeqMeanTokenMean = "seq-mean-token-mean",
        /// Sum over the tokens of a sequence, divided by `loss_scale_factor`, mean over sequences (Dr. GRPO).
        SeqMeanTokenSumNorm = "seq-mean-token-sum-norm",
        /// Mean over the tokens of a group, mean over groups (DAPO as written in its paper).
        GroupTokenMean = "group-token-mean",
    }
}

choice! {
    /// Where the KL divergence to the reference policy enters.
    pub enum KlPlace {
        /// Nowhere; the reference is not loaded.
        None = "none",
        /// As a term of the loss.
        Loss = "loss",
        /// As a per-token penalty on the reward.
        Reward = "reward",
    }
}

choice! {
    /// The estimator of the KL divergence, of `d = logp - ref` at the sampled token.
    pub enum KlEstimator {
        /// `d`
        K1 = "k1",
        /// `d^2 / 2`
        K2 = "k2",
        /// `exp(-d) + d - 1`
        K3 = "k3",
        /// `|d|`
        Abs = "abs",
    }
}

section! {
    /// How advantages are made of rewards.
    pub struct AdvantageConfig {
        /// Estimator.
        estimator: Estimator = "grpo", Any, Fixed;
        /// Divide by the deviation. False (Dr. GRPO) is the same as `scale: none`.
        norm_by_std: bool = "true", Any, Fixed;
        /// Delta degrees of freedom of the deviation: 1 divides by n - 1 (verl, TRL), 0 by n.
        ddof: usize = "1", Between(0.0, 1.0), Fixed;
        /// Added to the deviation: 1e-6 in verl, 1e-4 in TRL.
        epsilon: f64 = "1e-6", NonNegative, Fixed;
        /// Over what the deviation is taken.
        scale: AdvantageScale = "group", Any, Fixed;
        /// The advantage in a group of one trajectory.
        singleton: SingletonAdvantage = "zero", Any, Fixed;
    }
}

section! {
    /// The clipped surrogate: with ratio `r`, the larger of `-A r` and `-A clip(r, 1 - clip_low, 1 + clip_high)`.
    pub struct LossConfig {
        /// Lower clipping bound.
        clip_low: f64 = "0.2", Between(0.0, 1.0), Fixed;
        /// Upper clipping bound.
        clip_high: f64 = "0.2", NonNegative, Fixed;
        /// Bound `c` of the dual clip: where `A < 0` the loss is at most `-A c`. Null: no such bound.
        dual_clip: Option<f64> = "3.0", GreaterThan(1.0), Fixed;
        /// TRL's two-sided clip: the ratio itself is bounded from above by it. Null: no bound.
        delta: Option<f64> = "null", GreaterThan(1.0), Fixed;
    }
}

section! {
    /// An adaptive KL coefficient (Ziegler et al., 1909.08593): `beta *= 1 + clip(kl / target - 1, -0.2, 0.2) * n / horizon`.
    pub struct AdaptiveKlConfig {
        /// The divergence aimed at.
        target: f64 = "0.1", Positive, Fixed;
        /// Trajectories over which the coefficient adapts.
        horizon: f64 = "10000", Positive, Fixed;
    }
}

section! {
    /// The KL divergence to the reference policy.
    pub struct KlConfig {
        /// Where it enters.
        place("in"): KlPlace = "none", Any, Fixed;
        /// Estimator.
        estimator: KlEstimator = "k3", Any, Fixed;
        /// Coefficient.
        coefficient: f64 = "0.001", NonNegative, Fixed;
        /// Adaptation of the coefficient, with the KL in the reward. Null: it stays as it is.
        adaptive: Option<AdaptiveKlConfig> = "null", Any, Fixed;
    }
}

section! {
    /// What is optimised: advantage, loss, aggregation, KL and entropy.
    pub struct ObjectiveConfig {
        /// How advantages are made of rewards.
        advantage: AdvantageConfig = "{}", Any, Fixed;
        /// The clipped surrogate.
        loss: LossConfig = "{}", Any, Fixed;
        /// How the loss of tokens becomes one number, over an optimizer mini-batch.
        aggregation: Aggregation = "token-mean", Any, Fixed;
        /// Divisor of `seq-mean-token-sum-norm`. Null: `rollout.max_response_length`.
        loss_scale_factor: Option<f64> = "null", Positive, Fixed;
        /// The KL divergence to the reference policy.
        kl: KlConfig = "{}", Any, Fixed;
        /// Weight of the entropy bonus.
        entropy_coefficient: f64 = "0.0", Any, Fixed;
        /// Leave trajectories that were cut at `rollout.max_response_length` out of the loss. Their scores still count in the
        /// advantages of their group.
        mask_truncated: bool = "false", Any, Fixed;
    }
}
