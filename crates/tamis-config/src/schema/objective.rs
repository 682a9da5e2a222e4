//! `objective`: loss, aggregation, KL, entropy and masks; advantages and losses are described by tamis-core,
//! the [correction](super::correction) stands beside.

use tamis_core::advantage::Advantage;
use tamis_core::advantage::shaping::Shaping;

use super::correction::CorrectionConfig;
use crate::define::{choice, section};
use crate::value::LogRatioLimit;

choice! {
    /// Policy losses.
    pub enum LossKind {
        /// The clipped ratio of PPO, GRPO and DAPO: the larger of `-A r` and
        /// `-A clip(r, 1 - clip_low, 1 + clip_high)`.
        Clip = "clip",
        /// The clipped ratio of the whole trajectory (arXiv 2507.18071).
        Gspo = "gspo",
        /// The clipped ratio of the whole trajectory times its length, with `aggregation: seq-mean-token-sum`
        /// (arXiv 2602.05261).
        Luspo = "luspo",
        /// The clipped ratio to the policy at the start of the step, weighted by its ratio to the one that
        /// sampled.
        Decoupled = "decoupled",
        /// The plain policy gradient.
        Reinforce = "reinforce",
        /// The plain policy gradient under the name of GPG (arXiv 2504.02546).
        Gpg = "gpg",
        /// The clipped ratio without some tokens of high covariance (arXiv 2505.22617).
        ClipCov = "clip_cov",
        /// The plain ratio with a penalty on tokens of high covariance (arXiv 2505.22617).
        KlCov = "kl_cov",
        /// The geometric mean of clipped ratios (GMPO, arXiv 2507.20673).
        GeoMean = "geo_mean",
        /// The policy gradient weighted by the clipped ratio (MiniMax-M1, arXiv 2506.13585).
        Cispo = "cispo",
        /// A soft gate in place of the clip (arXiv 2511.20347).
        Sapo = "sapo",
        /// The policy gradient within a bound on the total variation of the token (DPPO, arXiv 2602.04879).
        DppoTv = "dppo_tv",
        /// The policy gradient within a bound on the divergence of the token (DPPO, arXiv 2602.04879).
        DppoKl = "dppo_kl",
        /// The policy gradient with a quadratic pull towards the old policy.
        Dro = "dro",
        /// The policy gradient with a smooth weight of the trajectory's ratio (arXiv 2602.10693).
        Vespo = "vespo",
    }
}

choice! {
    /// Which gradient GSPO has.
    pub enum GspoForm {
        /// The trajectory's ratio moves with every one of its tokens.
        Sequence = "sequence",
        /// Every token answers for its own loss alone (GSPO-token; verl).
        Token = "token",
    }
}

choice! {
    /// How CISPO bounds the ratio.
    pub enum CispoBound {
        /// Between `1 - clip_low` and `1 + clip_high` (the paper, verl).
        Relative = "relative",
        /// At most `max_ratio` (TRL).
        Absolute = "absolute",
    }
}

choice! {
    /// What the importance ratio is a ratio of.
    pub enum ImportanceLevel {
        /// Each token's probability.
        Token = "token",
        /// The trajectory's probability per token, moved by every one of them (TRL
        /// `importance_sampling_level: sequence`).
        Sequence = "sequence",
        /// The same value, each token answering for its own loss alone.
        SequenceToken = "sequence_token",
    }
}

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
    /// The policy loss of a token. Bounds are in the units of the loss: of the ratio `r`, of the trajectory's
    /// ratio (`gspo`, `luspo`), of a probability or a divergence (`dppo_tv`, `dppo_kl`), of the log-ratio
    /// (`geo_mean`).
    pub struct LossConfig {
        /// Which loss.
        kind: LossKind = "clip", Any, Fixed;
        /// Lower bound, of `clip`, `gspo`, `luspo`, `decoupled`, `clip_cov`, `geo_mean`, `cispo` (relative),
        /// `dppo_tv` and `dppo_kl`. Null: the loss's own (0.2; `gspo` 3e-4, `luspo` 2e-3, `geo_mean` 0.4).
        clip_low: Option<f64> = "null", NonNegative, Fixed;
        /// Upper bound, of the same losses. Null: the loss's own (0.2; `gspo` 4e-4, `luspo` 2.5e-3,
        /// `geo_mean` 0.4).
        clip_high: Option<f64> = "null", NonNegative, Fixed;
        /// Bound `c` of the dual clip of `clip` and `decoupled`: where `A < 0` the loss is at most `-A c`.
        /// Null: no such bound.
        dual_clip: Option<f64> = "3.0", GreaterThan(1.0), Fixed;
        /// TRL's two-sided clip, of `clip`: the ratio itself is bounded from above by it. Null: no bound.
        delta: Option<f64> = "null", GreaterThan(1.0), Fixed;
        /// Which gradient `gspo` has.
        form: GspoForm = "sequence", Any, Fixed;
        /// How `cispo` bounds the ratio.
        bound: CispoBound = "relative", Any, Fixed;
        /// Largest ratio of `cispo` (`bound: absolute`, 5) and of `dppo_tv` and `dppo_kl` (20). Null: the
        /// number in brackets.
        max_ratio: Option<f64> = "null", Positive, Fixed;
        /// Largest weight of the proximal over the behaviour policy in `decoupled`. Null: no bound.
        weight_cap: Option<f64> = "null", Positive, Fixed;
        /// Bound on `logp - old` (`gspo`, `luspo` and `importance: sequence`: on its mean over the
        /// trajectory) inside the exponential, of `clip`, `gspo`, `luspo`, `decoupled`, `cispo`, `sapo`,
        /// `dppo_tv` and `dppo_kl`; the derivative is 0 beyond it. `off`: none, as TRL. Null: verl's (20;
        /// `gspo` 10).
        log_ratio_limit: Option<LogRatioLimit> = "null", Positive, Fixed;
        /// Share of the tokens of an optimizer batch that `clip_cov` takes out and `kl_cov` punishes.
        share: f64 = "2e-4", Between(0.0, 1.0), Fixed;
        /// `clip_cov` takes out tokens whose covariance is above this.
        cov_low: f64 = "1.0", Any, Fixed;
        /// And below this.
        cov_high: f64 = "5.0", Any, Fixed;
        /// What one nat costs the tokens of `kl_cov`.
        cov_coefficient: f64 = "1.0", NonNegative, Fixed;
        /// Temperature of `sapo` where the advantage is positive.
        tau_positive: f64 = "1.0", Positive, Fixed;
        /// Temperature of `sapo` elsewhere.
        tau_negative: f64 = "1.05", Positive, Fixed;
        /// Strength of the quadratic pull of `dro`; it must be chosen there.
        beta: Option<f64> = "null", NonNegative, Fixed;
        /// Power of the trajectory's weight in `vespo` where the advantage is 0 or more.
        k_positive: f64 = "2.0", NonNegative, Fixed;
        /// Decay of it there.
        lambda_positive: f64 = "3.0", NonNegative, Fixed;
        /// Power of the trajectory's weight in `vespo` elsewhere.
        k_negative: f64 = "3.0", NonNegative, Fixed;
        /// Decay of it there.
        lambda_negative: f64 = "2.0", NonNegative, Fixed;
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
        /// Take the value of the estimator and the gradient of `k2`, which is that of the divergence itself
        /// (verl's `k1+`, `k3+`).
        straight_through: bool = "false", Any, Fixed;
        /// Multiply the estimate by the importance ratio, through which it is differentiated too, with the KL
        /// in the loss (DeepSeek-V3.2, arXiv 2512.02556; TRL `use_bias_correction_kl`).
        bias_corrected: bool = "false", Any, Fixed;
        /// Adaptation of the coefficient, with the KL in the reward. Null: it stays as it is.
        adaptive: Option<AdaptiveKlConfig> = "null", Any, Fixed;
    }
}

section! {
    /// A coefficient that holds the entropy at a target (Skywork-OR1, arXiv 2505.22312): after each update it
    /// moves by `delta` towards it, and the bonus is paid only while the entropy is at or below the target.
    pub struct AdaptiveEntropyConfig {
        /// Smallest coefficient.
        min: f64 = "0.0", Any, Fixed;
        /// Largest coefficient.
        max: f64 = "1.0", Any, Fixed;
        /// What one update moves it by.
        delta: f64 = "0.005", NonNegative, Fixed;
        /// Entropy to hold, in nats per token.
        target: f64 = "0.2", Any, Fixed;
    }
}

section! {
    /// The entropy bonus.
    pub struct EntropyConfig {
        /// Its weight; with `adaptive` the first one.
        coefficient: f64 = "0.0", Any, Fixed;
        /// How entropies of tokens become one number. Null: as the policy loss.
        aggregation: Option<Aggregation> = "null", Any, Fixed;
        /// Adaptation of the weight. Null: it stays as it is.
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
        /// How advantages are made of rewards.
        advantage: Advantage = "{}", Any, Fixed;
        /// Changes to finished advantages, one after the other: a list of `{kind, ...}`.
        shaping: Vec<Shaping> = "[]", Any, Fixed;
        /// The policy loss.
        loss: LossConfig = "{}", Any, Fixed;
        /// What the importance ratio is a ratio of, in `clip`, `luspo`, `decoupled`, `cispo`, `sapo` and
        /// `vespo`; the other losses decide it themselves.
        importance: ImportanceLevel = "token", Any, Fixed;
        /// How the loss of tokens becomes one number, over an optimizer mini-batch.
        aggregation: Aggregation = "token-mean", Any, Fixed;
        /// Divisor of `seq-mean-token-sum-norm`. Null: `rollout.max_response_length`.
        loss_scale_factor: Option<f64> = "null", Positive, Fixed;
        /// The KL divergence to the reference policy.
        kl: KlConfig = "{}", Any, Fixed;
        /// The entropy bonus.
        entropy: EntropyConfig = "{}", Any, Fixed;
        /// What is left out of the loss.
        masks: MasksConfig = "{}", Any, Fixed;
        /// Correction for a sampler that is not the policy.
        correction: CorrectionConfig = "{}", Any, Fixed;
        /// Whether groups that the filter dropped stay in the denominators of the loss.
        zero_groups: ZeroGroups = "drop", Any, Fixed;
    }
}
