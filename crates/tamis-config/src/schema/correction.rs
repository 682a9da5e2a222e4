//! `objective.correction`: the gap between the policy that samples and the one that is trained.

use tamis_core::correction::{CorrectionLevel, CorrectionPreset, OutsideBounds};
use tamis_core::settings;

settings! {
    /// Importance weights: ratios of the policy's probabilities to the sampler's.
    pub struct CorrectionWeightsConfig {
        /// Unit with one importance weight: a token or a trajectory.
        level: CorrectionLevel = CorrectionLevel::Token;
        /// Weight of a token or trajectory whose ratio is outside `min` and `max`.
        outside: OutsideBounds = OutsideBounds::Truncate;
        /// Smallest importance ratio that is used as a weight. Null: no lower bound.
        min: Option<f64> = None, Positive;
        /// Largest importance ratio that is used as a weight.
        max: f64 = 2.0, Positive;
        /// Divide every weight by the mean weight of the optimizer batch.
        batch_normalize: bool = false;
    }
}

settings! {
    /// One rejection of tokens or trajectories.
    pub struct RejectionConfig {
        /// The statistic, by verl's names: `token_k1`, `seq_sum_k1`, `seq_mean_k3`, `seq_max_k2`...; also
        /// `tv` and `binary_kl` of the token's probabilities (`token_tv`, `seq_mean_binary_kl`).
        statistic: String = "seq_mean_k3".to_owned(), NotEmpty;
        /// The threshold of the statistic, in verl's form: for k1 one or two ratios (`0.5_2.0`), for all
        /// others the largest divergence.
        threshold: String = "0.01".to_owned(), NotEmpty;
    }
}

settings! {
    /// Correction for a sampler whose probabilities differ from the policy's. The native engine samples from
    /// the policy that it trains, so only groups that were carried over from an earlier step
    /// (`schedule.surplus: carry`) need it there. `preset` lists when these are corrected by default.
    pub struct CorrectionConfig {
        /// A correction by name. Null: `decoupled_token_is` with `schedule.surplus: carry`, if
        /// `schedule.mode` is `streaming`, servers sample, or `learner.backend` is `torch` with another
        /// `learner.dtype` than `f32`; otherwise `disabled`.
        preset: Option<CorrectionPreset> = None;
        /// Importance weights: ratios of the policy's probabilities to the sampler's. Null: the preset's.
        weights: Option<CorrectionWeightsConfig> = None;
        /// Statistics that leave tokens or trajectories out of the loss. Empty: the preset's.
        rejections: Vec<RejectionConfig> = Vec::new();
        /// Rejected tokens still count in the loss's means, with weight 0, as in FlashREINFORCE. False: means
        /// are over the others, as in verl.
        count_rejected: bool = false;
    }
}
