//! The named recipes, setting by setting as their authors released them.

use tamis_core::advantage::{Grpo, Scale, Singleton};
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
    let standardised = Grpo { scale: Scale::Group, ddof: 1, epsilon: 1e-6, singleton: Singleton::Zero };
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
