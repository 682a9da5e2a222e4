//! The named recipes, setting by setting as their authors released them.

use tamis_core::advantage::{Grpo, Scale, SingletonAdvantage};
use tamis_core::correction::{
    CORRECTION_PRESETS, Correction, Importance as Weights, Level, Mode, Outside, Rejection, Scope, Statistic,
};
use tamis_core::objective::{
    Aggregation, Clip, Importance, KlController, KlEstimator, KlKind, KlTerm, LossMasks, Objective,
    PolicyLoss, Preset,
};

/// The clipped ratio between 0.8 and `1 + high`.
fn clip(high: f64, dual: Option<f64>) -> PolicyLoss {
    PolicyLoss::Clip(Clip { low: 0.2, high, dual, cap: None, log_ratio_limit: Some(20.0) })
}

fn objective(policy: PolicyLoss, aggregation: Aggregation, kl: Option<KlTerm>) -> Objective {
    let masks = LossMasks { top_entropy: None, off_policy: None };
    Objective { policy, importance: Importance::Token, aggregation, kl, entropy: None, value: None, masks }
}

#[test]
fn presets_are_the_released_recipes() {
    let standardised =
        Grpo { scale: Scale::Group, ddof: 1, epsilon: 1e-6, singleton: SingletonAdvantage::Zero };
    let kl = KlTerm {
        estimator: KlEstimator { kind: KlKind::K3, straight_through: false, clamped: true },
        controller: KlController::Fixed { coef: 0.04 },
        bias_corrected: false,
    };
    let preset = |advantage, objective, is_dapo| Preset {
        advantage,
        objective,
        soft_overlong: is_dapo,
        dynamic_sampling: is_dapo,
    };
    let by_trajectory = Aggregation::SeqMeanTokenMean { length_epsilon: 0.0 };
    let by_limit = Aggregation::SeqMeanTokenSumNorm { scale: 1024.0 };
    for (name, expected) in [
        ("grpo", preset(standardised, objective(clip(0.2, None), by_trajectory, Some(kl)), false)),
        ("dapo", preset(standardised, objective(clip(0.28, Some(10.0)), Aggregation::TokenMean, None), true)),
        (
            "dapo_paper",
            preset(standardised, objective(clip(0.28, None), Aggregation::GroupMeanTokenMean, None), true),
        ),
        (
            "dr_grpo",
            preset(
                Grpo { scale: Scale::None, ..standardised },
                objective(clip(0.2, None), by_limit, None),
                false,
            ),
        ),
    ] {
        assert_eq!(Preset::named(name, 1024), Some(expected), "{name}");
    }
}

#[test]
fn corrections_are_what_their_names_say() {
    let weights = |level, outside, min, max| {
        Some(Weights { level, outside, min, max: Some(max), batch_normalize: false })
    };
    let tokens = weights(Level::Token, Outside::Truncate, None, 2.0);
    let sequences = weights(Level::Sequence, Outside::Truncate, None, 2.0);
    let icepop = weights(Level::Token, Outside::Mask, Some(0.5), 5.0);
    let within = |scope, low: f64, high: f64| {
        vec![Rejection { statistic: Statistic::K1, scope, min: Some(low.ln()), max: Some(high.ln()) }]
    };
    let geo = within(Scope::SeqMean, 0.999, 1.001);
    let k3 = vec![Rejection { statistic: Statistic::K3, scope: Scope::SeqMean, min: None, max: Some(0.01) }];
    let (plain, clip, reinforce) = (Mode::Decoupled, Mode::BypassClip, Mode::BypassReinforce);
    let expected = [
        ("disabled", plain, None, vec![]),
        ("decoupled_token_is", plain, tokens, vec![]),
        ("decoupled_seq_is", plain, sequences, vec![]),
        ("decoupled_token_icepop", plain, icepop, vec![]),
        ("decoupled_seq_is_rs", plain, sequences, within(Scope::SeqSum, 0.5, 2.0)),
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
        ("trl", plain, weights(Level::Sequence, Outside::Mask, None, 3.0), vec![]),
    ];
    assert_eq!(CORRECTION_PRESETS.len(), expected.len());
    for (preset, (name, mode, importance, rejections)) in CORRECTION_PRESETS.iter().zip(expected) {
        let log_ratio_limit = if name == "trl" { None } else { Some(20.0) };
        let correction =
            Correction { mode, importance, rejections, log_ratio_limit, count_masked_trajectories: false };
        assert_eq!((preset.name, (preset.build)()), (name, correction));
        assert_eq!(Correction::named(name), Some((preset.build)()));
    }
    assert_eq!(Correction::named("decoupled"), None);
}
