//! `objective`: loss, aggregation, KL, entropy and masks; advantages and losses are described by tamis-core,
//! the [correction](super::correction) stands beside.

use tamis_core::advantage::Advantage;
use tamis_core::advantage::shaping::Shaping;
use tamis_core::choice;
use tamis_core::objective::{AdaptiveEntropy, Aggregation, Importance, KlKind, PolicyLoss, ZeroGroups};

use super::correction::CorrectionConfig;
use crate::define::section;

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
        estimator: KlKind = "k3", Any, Fixed;
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
    /// The entropy bonus.
    pub struct EntropyConfig {
        /// Coefficient of the entropy bonus; with `adaptive` the first one.
        coefficient: f64 = "0.0", Any, Fixed;
        /// How entropies of tokens become one number. Null: as for the policy loss.
        aggregation: Option<Aggregation> = "null", Any, Fixed;
        /// Adaptation of the coefficient of the entropy bonus. Null: it stays as it is.
        adaptive: Option<AdaptiveEntropy> = "null", Any, Fixed;
    }
}

section! {
    /// Tokens left out of the loss, beyond unscored trajectories and tokens that the policy did not produce.
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
    /// The objective: advantage, loss, aggregation, KL and entropy.
    pub struct ObjectiveConfig {
        /// How advantages are computed from rewards, with the keys of the `kind`.
        advantage: Advantage = "{}", Any, Fixed;
        /// Changes to finished advantages, one after the other: a list of `{kind: ...}`.
        shaping: Vec<Shaping> = "[]", Any, Fixed;
        /// The policy loss, with the keys of its `kind`.
        loss: PolicyLoss = "{}", Any, Fixed;
        /// Level of the importance ratio, token or trajectory, in the losses that leave it open: `clip`,
        /// `luspo`, `decoupled`, `cispo`, `sapo` and `vespo`.
        importance: Importance = "token", Any, Fixed;
        /// How the losses of tokens become one number, over an optimizer mini-batch.
        aggregation: Aggregation = "token-mean", Any, Fixed;
        /// Divisor of `seq-mean-token-sum-norm`. Null: `rollout.max_response_length`.
        loss_scale_factor: Option<f64> = "null", Positive, Fixed;
        /// The KL divergence to the reference policy.
        kl: KlConfig = "{}", Any, Fixed;
        /// The entropy bonus.
        entropy: EntropyConfig = "{}", Any, Fixed;
        /// Tokens left out of the loss, beyond unscored trajectories and tokens of others than the policy.
        masks: MasksConfig = "{}", Any, Fixed;
        /// Correction for a sampler that is not the policy.
        correction: CorrectionConfig = "{}", Any, Fixed;
        /// Place of groups that the filter dropped in the denominators of the loss.
        zero_groups: ZeroGroups = "drop", Any, Fixed;
    }
}
