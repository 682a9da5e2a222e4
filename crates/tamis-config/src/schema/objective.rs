//! `objective`: loss, aggregation, KL, entropy and masks; advantages and losses are described by tamis-core,
//! the [correction](super::correction) stands beside.

use tamis_core::advantage::Advantage;
use tamis_core::advantage::shaping::Shaping;
use tamis_core::objective::{AdaptiveEntropy, Aggregation, Importance, KlKind, PolicyLoss, ZeroGroups};
use tamis_core::{choice, settings};

use super::correction::CorrectionConfig;

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

settings! {
    /// An adaptive KL coefficient (Ziegler et al., 1909.08593):
    /// `beta *= 1 + clip(kl / target - 1, -0.2, 0.2) * n / horizon`.
    pub struct AdaptiveKlConfig {
        /// Divergence that the coefficient aims at.
        target: f64 = 0.1, Positive;
        /// Number of trajectories over which the coefficient adapts.
        horizon: f64 = 10_000_f64, Positive;
    }
}

settings! {
    /// The KL divergence to the reference policy.
    pub struct KlConfig {
        /// Where the KL divergence to the reference policy enters.
        place("in"): KlPlace = KlPlace::None;
        /// Estimator of the KL divergence, from the sampled tokens.
        estimator: KlKind = KlKind::K3;
        /// Coefficient of the KL term; with `adaptive` the first one.
        coefficient: f64 = 0.001, NonNegative;
        /// Take the value of the estimator and the gradient of `k2`, which is that of the divergence itself
        /// (verl's `k1+`, `k3+`).
        straight_through: bool = false;
        /// Multiply the estimate by the importance ratio, through which it is differentiated too, with the KL
        /// in the loss (DeepSeek-V3.2, arXiv 2512.02556; TRL `use_bias_correction_kl`).
        bias_corrected: bool = false;
        /// Adaptation of the KL coefficient, with the KL in the reward. Null: it stays as it is.
        adaptive: Option<AdaptiveKlConfig> = None;
    }
}

settings! {
    /// The entropy bonus.
    pub struct EntropyConfig {
        /// Coefficient of the entropy bonus; with `adaptive` the first one.
        coefficient: f64 = 0.0;
        /// How entropies of tokens become one number. Null: as for the policy loss.
        aggregation: Option<Aggregation> = None;
        /// Adaptation of the coefficient of the entropy bonus. Null: it stays as it is.
        adaptive: Option<AdaptiveEntropy> = None;
    }
}

settings! {
    /// Tokens left out of the loss, beyond unscored trajectories and tokens that the policy did not produce.
    pub struct MasksConfig {
        /// Leave trajectories that were cut at `rollout.max_response_length` out of the loss. Their scores
        /// still count in the advantages of their group.
        truncated: bool = false;
        /// Share of the tokens of an optimizer batch, those of highest entropy, that carry the policy loss
        /// (arXiv 2506.01939 has 0.2). Null: all.
        top_entropy: Option<f64> = None, Probability;
        /// Divergence from the policy that sampled, in nats per token, above which a trajectory with negative
        /// advantage carries no policy loss (DeepSeek-V3.2, arXiv 2512.02556). Null: no bound.
        off_policy: Option<f64> = None, NonNegative;
    }
}

settings! {
    /// The objective: advantage, loss, aggregation, KL and entropy.
    pub struct ObjectiveConfig {
        /// How advantages are computed from rewards, with the keys of the `kind`.
        advantage: Advantage = Advantage::default();
        /// Changes to finished advantages, one after the other: a list of `{kind: ...}`.
        shaping: Vec<Shaping> = Vec::new();
        /// The policy loss, with the keys of its `kind`.
        loss: PolicyLoss = PolicyLoss::default();
        /// Level of the importance ratio, token or trajectory, in the losses that leave it open: those of
        /// which `tamis explain` lists this key.
        importance: Importance = Importance::Token;
        /// How the losses of tokens become one number, over an optimizer mini-batch.
        aggregation: Aggregation = Aggregation::TokenMean;
        /// Divisor of `seq-mean-token-sum-norm`. Null: `rollout.max_response_length`.
        loss_scale_factor: Option<f64> = None, Positive;
        /// The KL divergence to the reference policy.
        kl: KlConfig = KlConfig::default();
        /// The entropy bonus.
        entropy: EntropyConfig = EntropyConfig::default();
        /// Tokens left out of the loss, beyond unscored trajectories and tokens of others than the policy.
        masks: MasksConfig = MasksConfig::default();
        /// Correction for a sampler that is not the policy.
        correction: CorrectionConfig = CorrectionConfig::default();
        /// Place of groups that the filter dropped in the denominators of the loss.
        zero_groups: ZeroGroups = ZeroGroups::Drop;
    }
}
