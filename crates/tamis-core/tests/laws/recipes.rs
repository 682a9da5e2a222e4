//! The named corrections, setting by setting as their authors released them.

use tamis_core::correction::{
    Correction, CorrectionLevel, CorrectionPreset, ImportanceWeights, Mode, OutsideBounds, Rejection,
    RejectionScope, Statistic,
};

#[test]
fn corrections_are_what_their_names_say() {
    let weights = |level, outside, min, max| {
        Some(ImportanceWeights { level, outside, min, max: Some(max), batch_normalize: false })
    };
    let tokens = weights(CorrectionLevel::Token, OutsideBounds::Truncate, None, 2.0);
    let sequences = weights(CorrectionLevel::Sequence, OutsideBounds::Truncate, None, 2.0);
    let icepop = weights(CorrectionLevel::Token, OutsideBounds::Mask, Some(0.5), 5.0);
    let within = |scope, low: f64, high: f64| {
        vec![Rejection { statistic: Statistic::K1, scope, min: Some(low.ln()), max: Some(high.ln()) }]
    };
    let geo = within(RejectionScope::SeqMean, 0.999, 1.001);
    let k3 = vec![Rejection {
        statistic: Statistic::K3,
        scope: RejectionScope::SeqMean,
        min: None,
        max: Some(0.01),
    }];
    let (plain, clip, reinforce) = (Mode::Decoupled, Mode::BypassClip, Mode::BypassReinforce);
    let expected = [
        ("disabled", plain, None, vec![]),
        ("decoupled_token_is", plain, tokens, vec![]),
        ("decoupled_seq_is", plain, sequences, vec![]),
        ("decoupled_token_icepop", plain, icepop, vec![]),
        ("decoupled_seq_is_rs", plain, sequences, within(RejectionScope::SeqSum, 0.5, 2.0)),
        ("decoupled_geo_rs", plain, None, geo.clone()),
        ("decoupled_geo_rs_seq_tis", plain, sequences, geo.clone()),
        ("decoupled_geo_rs_token_tis", plain, tokens, geo.clone()),
        ("decoupled_k3_rs", plain, None, k3.clone()),
        ("decoupled_k3_rs_seq_tis", plain, sequences, k3.clone()),
        ("decoupled_k3_rs_token_tis", plain, tokens, k3.clone()),
        ("bypass_ppo_clip", clip, None, vec![]),
        ("bypass_ppo_clip_geo_rs", clip, None, geo.clone()),
        ("bypass_ppo_clip_k3_rs", clip, None, k3),
        ("bypass_pg_is", reinforce, sequences, vec![]),
        ("bypass_pg_token_icepop", reinforce, icepop, vec![]),
        ("bypass_pg_geo_rs", reinforce, None, geo.clone()),
        ("bypass_pg_geo_rs_seq_tis", reinforce, sequences, geo.clone()),
        ("bypass_pg_geo_rs_token_tis", reinforce, tokens, geo),
        ("trl", plain, weights(CorrectionLevel::Sequence, OutsideBounds::Mask, None, 3.0), vec![]),
    ];
    assert_eq!(CorrectionPreset::ALL.len(), expected.len());
    for (preset, (name, mode, importance, rejections)) in CorrectionPreset::ALL.iter().zip(expected) {
        let log_ratio_limit = if name == "trl" { None } else { Some(20.0) };
        let correction =
            Correction { mode, importance, rejections, log_ratio_limit, ..Correction::default() };
        assert_eq!((preset.as_str(), preset.correction()), (name, correction.clone()));
        assert_eq!((correction.check(), mode.is_bypass()), (Ok(()), name.starts_with("bypass")), "{name}");
        let text = serde_json::to_string(&correction).unwrap();
        assert_eq!(serde_json::from_str::<Correction>(&text).unwrap(), correction, "{text}");
    }
}
