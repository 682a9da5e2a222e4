//! `objective`: loss, aggregation, KL, entropy and masks. tamis-core describes advantages and losses; the
//! [correction](super::correction) has its own module.

use tamis_core::advantage::Advantage;
use tamis_core::advantage::shaping::Shaping;
use tamis_core::objective::{
    AdaptiveEntropy, Aggregation, Distillation, Importance, KlKind, PolicyLoss, ZeroGroups,
};
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
        /// Coefficient of the KL term; with `adaptive`, its initial value.
        coefficient: f64 = 0.001, NonNegative;
        /// Use the value of the estimator with the gradient of `k2`, which is the gradient of the divergence
        /// itself (verl's `k1+`, `k3+`).
        straight_through: bool = false;
        /// Multiply the estimate by the importance ratio, which is differentiated too. Only with the KL in
        /// the loss (DeepSeek-V3.2, arXiv 2512.02556; TRL `use_bias_correction_kl`).
        bias_corrected: bool = false;
        /// Adaptation of the KL coefficient, only with the KL in the reward. Null: the coefficient is
        /// constant.
        adaptive: Option<AdaptiveKlConfig> = None;
    }
}

settings! {
    /// The entropy bonus.
    pub struct EntropyConfig {
        /// Coefficient of the entropy bonus; with `adaptive`, its initial value.
        coefficient: f64 = 0.0;
        /// How the entropies of tokens become one number. Null: as for the policy loss.
        aggregation: Option<Aggregation> = None;
        /// Adaptation of the entropy coefficient. Null: the coefficient is constant.
        adaptive: Option<AdaptiveEntropy> = None;
    }
}

settings! {
    /// Tokens that are left out of the loss, besides unscored trajectories and tokens that the policy did not
    /// produce.
    pub struct MasksConfig {
        /// Leave trajectories that were truncated at `rollout.max_response_length` out of the loss. Their
        /// scores still count in the advantages of their group.
        truncated: bool = false;
        /// Share of the tokens of an optimizer batch, those with the highest entropy, that have a policy loss
        /// (0.2 in arXiv 2506.01939). Null: all.
        top_entropy: Option<f64> = None, Probability;
        /// Divergence from the sampling policy, in nats per token, above which a trajectory with negative
        /// advantage has no policy loss (DeepSeek-V3.2, arXiv 2512.02556). Null: no bound.
        off_policy: Option<f64> = None, NonNegative;
    }
}

settings! {
    /// The objective: advantage, loss, aggregation, KL and entropy.
    pub struct ObjectiveConfig {
        /// How advantages are computed from rewards. The `kind` has further keys.
        advantage: Advantage = Advantage::default();
        /// Changes to the computed advantages, in this order: a list of `{kind: ...}`.
        shaping: Vec<Shaping> = Vec::new();
        /// The policy loss. The `kind` has further keys.
        loss: PolicyLoss = PolicyLoss::default();
        /// Level of the importance ratio, token or trajectory, for losses that allow both: those for which
        /// `tamis explain` lists this key.
        importance: Importance = Importance::Token;
        /// How the losses of tokens become one number, over an optimizer mini-batch.
        aggregation: Aggregation = Aggregation::TokenMean;
        /// Divisor of `seq-mean-token-sum-norm`. Null: `rollout.max_response_length`.
        loss_scale_factor: Option<f64> = None, Positive;
        /// The KL divergence to the reference policy.
        kl: KlConfig = KlConfig::default();
        /// The entropy bonus.
        entropy: EntropyConfig = EntropyConfig::default();
        /// A divergence from a teacher in the loss, over the teacher's likeliest tokens (`teacher` names it).
        /// Null: none.
        distillation: Option<Distillation> = None;
        /// Tokens that are left out of the loss, besides unscored trajectories and tokens that the policy did
        /// not produce.
        masks: MasksConfig = MasksConfig::default();
        /// Correction for a sampler whose probabilities differ from the policy's.
        correction: CorrectionConfig = CorrectionConfig::default();
        /// Role of groups that the filter dropped in the denominators of the loss.
        zero_groups: ZeroGroups = ZeroGroups::Drop;
    }
}
