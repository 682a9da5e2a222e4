//! `objective.correction`: the gap between the policy that samples and the one that is trained.

use crate::define::{choice, section};

choice! {
    /// Corrections by name, as verl and TRL have them. `token_is` and `seq_is` weigh by the ratio up to 2,
    /// `geo_rs` rejects trajectories whose mean ratio is off by more than 0.1 %, `k3_rs` those whose mean k3
    /// is above 0.01.
    pub enum CorrectionPreset {
        /// Nothing but metrics.
        Disabled = "disabled",
        /// Token weights up to 2.
        DecoupledTokenIs = "decoupled_token_is",
        /// Trajectory weights up to 2.
        DecoupledSeqIs = "decoupled_seq_is",
        /// Token weights within 0.5 and 5, 0 outside.
        DecoupledTokenIcepop = "decoupled_token_icepop",
        /// Trajectory weights up to 2; trajectories whose ratio is outside 0.5 and 2 rejected.
        DecoupledSeqIsRs = "decoupled_seq_is_rs",
        /// Trajectories whose geometric mean ratio is outside 0.999 and 1.001 rejected.
        DecoupledGeoRs = "decoupled_geo_rs",
        /// `decoupled_geo_rs` with trajectory weights up to 2.
        DecoupledGeoRsSeqTis = "decoupled_geo_rs_seq_tis",
        /// `decoupled_geo_rs` with token weights up to 2.
        DecoupledGeoRsTokenTis = "decoupled_geo_rs_token_tis",
        /// Trajectories whose mean k3 is above 0.01 rejected.
        DecoupledK3Rs = "decoupled_k3_rs",
        /// `decoupled_k3_rs` with trajectory weights up to 2.
        DecoupledK3RsSeqTis = "decoupled_k3_rs_seq_tis",
        /// `decoupled_k3_rs` with token weights up to 2.
        DecoupledK3RsTokenTis = "decoupled_k3_rs_token_tis",
        /// The ratio of the loss is to the policy that sampled.
        BypassPpoClip = "bypass_ppo_clip",
        /// `bypass_ppo_clip` with the rejection of `decoupled_geo_rs`.
        BypassPpoClipGeoRs = "bypass_ppo_clip_geo_rs",
        /// `bypass_ppo_clip` with the rejection of `decoupled_k3_rs`.
        BypassPpoClipK3Rs = "bypass_ppo_clip_k3_rs",
        /// REINFORCE with trajectory weights up to 2.
        BypassPgIs = "bypass_pg_is",
        /// REINFORCE with token weights within 0.5 and 5, 0 outside.
        BypassPgTokenIcepop = "bypass_pg_token_icepop",
        /// REINFORCE with the rejection of `decoupled_geo_rs`.
        BypassPgGeoRs = "bypass_pg_geo_rs",
        /// `bypass_pg_geo_rs` with trajectory weights up to 2.
        BypassPgGeoRsSeqTis = "bypass_pg_geo_rs_seq_tis",
        /// `bypass_pg_geo_rs` with token weights up to 2.
        BypassPgGeoRsTokenTis = "bypass_pg_geo_rs_token_tis",
        /// TRL's default: trajectory weights up to 3, 0 above.
        Trl = "trl",
    }
}

choice! {
    /// Whether one importance weight belongs to a token or to a trajectory.
    pub enum CorrectionLevel {
        /// A token.
        Token = "token",
        /// A trajectory: the product of its tokens' ratios.
        Sequence = "sequence",
    }
}

choice! {
    /// Weight of a token or trajectory whose ratio is outside `min` and `max`.
    pub enum OutsideBounds {
        /// The nearer bound.
        Truncate = "truncate",
        /// 0: it carries no loss.
        Mask = "mask",
    }
}

section! {
    /// Importance weights of the policy's probabilities over the sampler's.
    pub struct CorrectionWeightsConfig {
        /// Whether one importance weight belongs to a token or to a trajectory.
        level: CorrectionLevel = "token", Any, Fixed;
        /// Weight of a token or trajectory whose ratio is outside `min` and `max`.
        outside: OutsideBounds = "truncate", Any, Fixed;
        /// Smallest importance ratio that is taken as the weight. Null: any.
        min: Option<f64> = "null", Positive, Fixed;
        /// Largest importance ratio that is taken as the weight.
        max: f64 = "2.0", Positive, Fixed;
        /// Divide every weight by the mean weight of the optimizer batch.
        batch_normalize: bool = "false", Any, Fixed;
    }
}

section! {
    /// One rejection of tokens or trajectories.
    pub struct RejectionConfig {
        /// The statistic as verl calls it: `token_k1`, `seq_sum_k1`, `seq_mean_k3`, `seq_max_k2`...
        statistic: String = "seq_mean_k3", NotEmpty, Fixed;
        /// The threshold of the statistic, as verl writes it: for k1 a ratio or two (`0.5_2.0`), for k2 and
        /// k3 the largest divergence.
        threshold: String = "'0.01'", NotEmpty, Fixed;
    }
}

section! {
    /// Correction for a sampler that is not the policy. The native engine samples from the very policy that
    /// it trains, so that there is nothing to correct, except in groups that were carried over from an
    /// earlier step (`schedule.surplus: carry`): streaming and at servers, that is corrected where nothing is
    /// set.
    pub struct CorrectionConfig {
        /// A correction by name. Null: `disabled`, but with `schedule.surplus: carry` under
        /// `schedule.mode: streaming` or at servers `decoupled_token_is`.
        preset: Option<CorrectionPreset> = "null", Any, Fixed;
        /// Importance weights of the policy's probabilities over the sampler's. Null: the preset's.
        weights: Option<CorrectionWeightsConfig> = "null", Any, Fixed;
        /// Statistics by which tokens or trajectories are left out of the loss. Empty: the preset's.
        rejections: Vec<RejectionConfig> = "[]", Any, Fixed;
    }
}
