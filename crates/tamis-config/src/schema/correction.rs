//! `objective.correction`: the gap between the policy that samples and the one that is trained.

use tamis_core::correction::{CorrectionLevel, CorrectionPreset, OutsideBounds};
use tamis_core::settings;

settings! {
    /// Importance weights of the policy's probabilities over the sampler's.
    pub struct CorrectionWeightsConfig {
        /// Unit that has one importance weight.
        level: CorrectionLevel = CorrectionLevel::Token;
        /// Weight of a token or trajectory whose ratio is outside `min` and `max`.
        outside: OutsideBounds = OutsideBounds::Truncate;
        /// Smallest importance ratio that is taken as the weight. Null: any.
        min: Option<f64> = None, Positive;
        /// Largest importance ratio that is taken as the weight.
        max: f64 = 2.0, Positive;
        /// Divide every weight by the mean weight of the optimizer batch.
        batch_normalize: bool = false;
    }
}

settings! {
    /// One rejection of tokens or trajectories.
    pub struct RejectionConfig {
        /// The statistic as verl names it: `token_k1`, `seq_sum_k1`, `seq_mean_k3`, `seq_max_k2`...; also
        /// `tv` and `binary_kl` of the token's probabilities (`token_tv`, `seq_mean_binary_kl`).
        statistic: String = "seq_mean_k3".to_owned(), NotEmpty;
        /// The threshold of the statistic, as verl writes it: for k1 a ratio or two (`0.5_2.0`), for all
        /// others the largest divergence.
        threshold: String = "0.01".to_owned(), NotEmpty;
    }
}

settings! {
    /// Correction for a sampler that is not the policy. The native engine samples from the very policy that
    /// it trains, so that there is nothing to correct, except in groups that were carried over from an
    /// earlier step (`schedule.surplus: carry`): streaming, at servers and where PyTorch learns in another
    /// number format, that is corrected where nothing is set.
    pub struct CorrectionConfig {
        /// A correction by name. Null: `disabled`, but `decoupled_token_is` with `schedule.surplus: carry`
        /// under `schedule.mode: streaming`, at servers, or with `learner.backend: torch` unless
        /// `learner.dtype` is `f32`.
        preset: Option<CorrectionPreset> = None;
        /// Importance weights of the policy's probabilities over the sampler's. Null: the preset's.
        weights: Option<CorrectionWeightsConfig> = None;
        /// Statistics by which tokens or trajectories are left out of the loss. Empty: the preset's.
        rejections: Vec<RejectionConfig> = Vec::new();
    }
}
