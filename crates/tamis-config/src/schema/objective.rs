//! `objective`: loss, aggregation, KL, entropy and masks; advantages and losses are described by tamis-core,
//! the [correction](super::correction) stands beside.

use tamis_core::advantage::Advantage;
use tamis_core::advantage::shaping::Shaping;
use tamis_core::objective::{Importance, PolicyLoss};

use super::correction::CorrectionConfig;
use crate::define::{choice, section};

choice! {
    /// Whether groups that the filter dropped stay in the denominators of the loss.
    pub enum ZeroGroups {
        /// Means are over what is trained on (verl).
        Drop = "drop",
        /// Means are over what is trained on and what was dropped, as if the dropped had been trained on with
        /// advantage 0 (TRL).
        Mask = "mask",
    }
}

choice! {
    /// How the losses of tokens become one number.
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
        /// Mean over the tokens of a sequence, mean over the sequences of a group, mean over groups.
        GroupSeqMean = "group-seq-mean",
        /// Sum over all tokens of the mini-batch, undivided.
        TokenSum = "token-sum",
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
        /// `exp(-d) + d - 1`, held at 10 with derivative 0 (verl)
        K3 = "k3",
        /// `|d|`
        Abs = "abs",
    }
}

section! {
    /// An adaptive KL coefficient (Ziegler et al., 1909.08593): `beta *= 1 + clip(kl / target - 1, -0.2, 0.2) * n / horizon`.
    pub struct AdaptiveKlConfig {
        /// Divergence that the coefficient aims at.
        target: f64 = "0.1", Positive, Fixed;
        /// Number of trajectories over which the coefficient adapts.
        horizon: f64 = "10000", Positive, Fixed;
    }
}

section! {
    /// The KL divergence to the reference policy.
    pub struct KlConfig {
        /// Where the KL divergence to the reference policy enters.
        place("in"): KlPlace = "none", Any, Fixed;
        /// Estimator of the KL divergence, from the sampled tokens.
        estimator: KlEstimator = "k3", Any, Fixed;
        /// Coefficient of the KL term; with `adaptive` the first one.
        coefficient: f64 = "0.001", NonNegative, Fixed;
        /// Take the value of the estimator and the gradient of `k2`, which is that of the divergence itself
        /// (verl's `k1+`, `k3+`).
        straight_through: bool = "false", Any, Fixed;
        /// Multiply the estimate by the importance ratio, through which it is differentiated too, with the KL
        /// in the loss (DeepSeek-V3.2, arXiv 2512.02556; TRL `use_bias_correction_kl`).
        bias_corrected: bool = "false", Any, Fixed;
        /// Adaptation of the KL coefficient, with the KL in the reward. Null: it stays as it is.
        adaptive: Option<AdaptiveKlConfig> = "null", Any, Fixed;
    }
}

section! {
    /// A coefficient that holds the entropy at a target (Skywork-OR1, arXiv 2505.22312): after each update it
    /// moves by `delta` towards it, and the bonus is paid only while the entropy is at or below the target.
    pub struct AdaptiveEntropyConfig {
        /// Smallest coefficient of the entropy bonus.
        min: f64 = "0.0", Any, Fixed;
        /// Largest coefficient of the entropy bonus.
        max: f64 = "1.0", Any, Fixed;
        /// How far one update moves the coefficient.
        delta: f64 = "0.005", NonNegative, Fixed;
        /// Entropy that the coefficient aims at, in nats per token.
        target: f64 = "0.2", Any, Fixed;
    }
}

section! {
    /// The entropy bonus.
    pub struct EntropyConfig {
        /// Coefficient of the entropy bonus; with `adaptive` the first one.
        coefficient: f64 = "0.0", Any, Fixed;
        /// How entropies of tokens become one number. Null: as for the policy loss.
        aggregation: Option<Aggregation> = "null", Any, Fixed;
        /// Adaptation of the coefficient of the entropy bonus. Null: it stays as it is.
        adaptive: Option<AdaptiveEntropyConfig> = "null", Any, Fixed;
    }
}

section! {
    /// What is left out of the loss, beyond unscored trajectories and tokens that the policy did not produce.
    pub struct MasksConfig {
        /// Leave trajectories that were cut at `rollout.max_response_length` out of the loss. Their scores
        /// still count in the advantages of their group.
        truncated: bool = "false", Any, Fixed;
        /// Share of the tokens of an optimizer batch, those of highest entropy, that carry the policy loss
        /// (arXiv 2506.01939 has 0.2). Null: all.
        top_entropy: Option<f64> = "null", Probability, Fixed;
        /// Divergence from the policy that sampled, in nats per token, above which a trajectory with negative
        /// advantage carries no policy loss (DeepSeek-V3.2, arXiv 2512.02556). Null: no bound.
        off_policy: Option<f64> = "null", NonNegative, Fixed;
    }
}

section! {
    /// What is optimised: advantage, loss, aggregation, KL and entropy.
    pub struct ObjectiveConfig {
        /// How advantages are computed from rewards, with the keys of the `kind`.
        advantage: Advantage = "{}", Any, Fixed;
        /// Changes to finished advantages, one after the other: a list of `{kind: ...}`.
        shaping: Vec<Shaping> = "[]", Any, Fixed;
        /// The policy loss, with the keys of its `kind`.
        loss: PolicyLoss = "{}", Any, Fixed;
        /// Whether the importance ratio is one of tokens or of trajectories, in the losses that leave it
        /// open: `clip`, `luspo`, `decoupled`, `cispo`, `sapo` and `vespo`.
        importance: Importance = "token", Any, Fixed;
        /// How the losses of tokens become one number, over an optimizer mini-batch.
        aggregation: Aggregation = "token-mean", Any, Fixed;
        /// Divisor of `seq-mean-token-sum-norm`. Null: `rollout.max_response_length`.
        loss_scale_factor: Option<f64> = "null", Positive, Fixed;
        /// The KL divergence to the reference policy.
        kl: KlConfig = "{}", Any, Fixed;
        /// The entropy bonus.
        entropy: EntropyConfig = "{}", Any, Fixed;
        /// What is left out of the loss, beyond unscored trajectories and tokens of others than the policy.
        masks: MasksConfig = "{}", Any, Fixed;
        /// Correction for a sampler that is not the policy.
        correction: CorrectionConfig = "{}", Any, Fixed;
        /// Whether groups that the filter dropped stay in the denominators of the loss.
        zero_groups: ZeroGroups = "drop", Any, Fixed;
    }
}
