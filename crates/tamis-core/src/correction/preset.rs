//! Corrections under the names that verl and TRL use.

use super::importance::{ImportanceWeights, OutsideBounds};
use super::rejection::{Rejection, RejectionScope, Statistic};
use super::{Correction, Mode};
use crate::choice;
use crate::entry::{Entry, Family};

pub(super) const ENTRY: Entry = Entry {
    name: "correction_presets",
    family: Family::Correction,
    meaning: "Corrections by name: disabled, decoupled_* (weights and rejection in addition to the loss's own ratio), bypass_*, trl.",
    formula: "token_is and seq_is set weights up to 2, geo_rs a bound of seq_mean_k1 within \
        0.1 %, k3_rs one of seq_mean_k3 up to 0.01",
    source: "verl RolloutCorrectionConfig; TRL GRPOConfig",
    defaults: &[],
    degenerate: &[],
    known_as: &[
        ("verl", "RolloutCorrectionConfig.decoupled_token_is() and its siblings"),
        ("TRL", "vllm_importance_sampling_correction"),
    ],
    differences: &[
        "geo_rs bounds the geometric mean of the ratio to [0.999, 1.001], which rejects most trajectories of a \
            sampler in another precision; watch `rollout_corr/rollout_rs_seq_masked_fraction`",
    ],
};

pub(super) const BYPASS: Entry = Entry {
    name: "bypass",
    family: Family::Correction,
    meaning: "Uses the sampler's log-probabilities as the old ones, which saves a forward pass.",
    formula: "old = behaviour; `bypass_clip`: the clipped loss without weights; `bypass_reinforce`: \
        -w·A·logprob, w of the policy being trained",
    source: "verl algorithm.rollout_correction.bypass_mode, loss_type=ppo_clip|reinforce",
    defaults: &[],
    degenerate: &["if everything is rejected the loss is 0 (NaN in verl)"],
    known_as: &[("verl", "rollout_correction.bypass_mode=True")],
    differences: &["an unknown behaviour log-probability has ratio 1"],
};

choice! {
    /// Corrections by name, as in verl and TRL. `token_is` and `seq_is` weight by the ratio up to 2, `geo_rs`
    /// rejects trajectories whose mean ratio is off by more than 0.1 %, and `k3_rs` those whose mean k3 is
    /// above 0.01.
    pub enum CorrectionPreset {
        /// Only metrics.
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
        /// The loss uses the ratio to the policy that sampled.
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

impl CorrectionPreset {
    /// The correction of this name.
    pub fn correction(self) -> Correction {
        let tokens = Some(ImportanceWeights::truncated_tokens(2.0));
        let sequences = Some(ImportanceWeights::truncated_sequences(2.0));
        let masked = |weights| Some(ImportanceWeights { outside: OutsideBounds::Mask, ..weights });
        let icepop = ImportanceWeights { min: Some(0.5), ..ImportanceWeights::truncated_tokens(5.0) };
        let bounded = Some(k1(RejectionScope::SeqSum, 0.5, 2.0));
        let geo = Some(k1(RejectionScope::SeqMean, 0.999, 1.001));
        let k3 = Some(k3());
        let (mode, importance, rejection) = match self {
            Self::Disabled => (Mode::Decoupled, None, None),
            Self::DecoupledTokenIs => (Mode::Decoupled, tokens, None),
            Self::DecoupledSeqIs => (Mode::Decoupled, sequences, None),
            Self::DecoupledTokenIcepop => (Mode::Decoupled, masked(icepop), None),
            Self::DecoupledSeqIsRs => (Mode::Decoupled, sequences, bounded),
            Self::DecoupledGeoRs => (Mode::Decoupled, None, geo),
            Self::DecoupledGeoRsSeqTis => (Mode::Decoupled, sequences, geo),
            Self::DecoupledGeoRsTokenTis => (Mode::Decoupled, tokens, geo),
            Self::DecoupledK3Rs => (Mode::Decoupled, None, k3),
            Self::DecoupledK3RsSeqTis => (Mode::Decoupled, sequences, k3),
            Self::DecoupledK3RsTokenTis => (Mode::Decoupled, tokens, k3),
            Self::BypassPpoClip => (Mode::BypassClip, None, None),
            Self::BypassPpoClipGeoRs => (Mode::BypassClip, None, geo),
            Self::BypassPpoClipK3Rs => (Mode::BypassClip, None, k3),
            Self::BypassPgIs => (Mode::BypassReinforce, sequences, None),
            Self::BypassPgTokenIcepop => (Mode::BypassReinforce, masked(icepop), None),
            Self::BypassPgGeoRs => (Mode::BypassReinforce, None, geo),
            Self::BypassPgGeoRsSeqTis => (Mode::BypassReinforce, sequences, geo),
            Self::BypassPgGeoRsTokenTis => (Mode::BypassReinforce, tokens, geo),
            Self::Trl => (Mode::Decoupled, masked(ImportanceWeights::truncated_sequences(3.0)), None),
        };
        let mut correction = Correction { mode, importance, ..Correction::default() };
        correction.rejections.extend(rejection);
        if self == Self::Trl {
            correction.log_ratio_limit = None;
        }
        correction
    }
}

fn k1(scope: RejectionScope, low: f64, high: f64) -> Rejection {
    Rejection { statistic: Statistic::K1, scope, min: Some(low.ln()), max: Some(high.ln()) }
}

fn k3() -> Rejection {
    Rejection { statistic: Statistic::K3, scope: RejectionScope::SeqMean, min: None, max: Some(0.01) }
}
