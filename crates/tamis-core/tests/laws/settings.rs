//! Every setting of the objective at the edges of its range: what is refused is named, what is just inside is
//! not.

use tamis_core::objective::{
    AdaptiveEntropy, Aggregation, Cispo, CispoBound, Clip, ClipCov, Decoupled, DppoKl, DppoTv, Dro,
    EntropyBonus, GeoMean, Gspo, GspoForm, KlController, KlCov, KlEstimator, KlKind, KlTerm, LengthDivisors,
    LossMasks, Luspo, Objective, ObjectiveError, PolicyLoss, Reinforce, Sapo, ValueTerm, Vespo,
};
use tamis_core::setting::OutOfRange;

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;
const TINY: f64 = f64::MIN_POSITIVE;

/// A setting's name, an objective with it, values inside its range and values outside.
type Case = (&'static str, fn(f64) -> Objective, &'static [f64], &'static [f64]);

const SHARE: (&[f64], &[f64]) = (&[0.0, 1.0], &[-0.01, 1.01, NAN]);
const NOT_NEGATIVE: (&[f64], &[f64]) = (&[0.0, 3.0], &[-0.01, INF, NAN]);
const POSITIVE: (&[f64], &[f64]) = (&[TINY, 3.0], &[0.0, -1.0, INF, NAN]);
const FINITE: (&[f64], &[f64]) = (&[-3.0, 0.0, 3.0], &[INF, -INF, NAN]);

const CLIP: Clip =
    Clip { clip_low: 0.2, clip_high: 0.2, dual_clip: None, delta: None, log_ratio_limit: None };
const GSPO: Gspo = Gspo { clip_low: 0.2, clip_high: 0.2, form: GspoForm::Sequence, log_ratio_limit: None };
const CLIP_COV: ClipCov = ClipCov { clip_low: 0.2, clip_high: 0.2, share: 0.5, cov_low: 0.0, cov_high: 1.0 };
const GEO_MEAN: GeoMean = GeoMean { clip_low: 0.4, clip_high: 0.4, length_epsilon: 0.0, weight_epsilon: 0.0 };
const CISPO: Cispo = Cispo {
    bound: CispoBound::Absolute,
    clip_low: 0.2,
    clip_high: 0.2,
    max_ratio: 2.0,
    log_ratio_limit: None,
};
const SAPO: Sapo = Sapo { tau_positive: 1.0, tau_negative: 2.0, log_ratio_limit: None };
const DPPO: DppoTv = DppoTv { clip_low: 0.2, clip_high: 0.2, max_ratio: 1.5, log_ratio_limit: None };
const DPPO_KL: DppoKl = DppoKl { clip_low: 0.2, clip_high: 0.2, max_ratio: 1.5, log_ratio_limit: None };
const VESPO: Vespo = Vespo { k_positive: 2.0, lambda_positive: 3.0, k_negative: 3.0, lambda_negative: 2.0 };
const ADAPTIVE: AdaptiveEntropy = AdaptiveEntropy { min: 0.0, max: 1.0, delta: 0.01, target: 0.2 };

fn of(policy: PolicyLoss) -> Objective {
    Objective::of(policy, Aggregation::TokenMean)
}

fn luspo(clip_low: f64) -> Objective {
    let loss = Luspo { clip_low, clip_high: 0.2, log_ratio_limit: None };
    Objective::of(PolicyLoss::Luspo(loss), Aggregation::SeqMeanTokenSum)
}

fn decoupled(clip_low: f64, weight_cap: Option<f64>) -> Objective {
    let loss = Decoupled { clip_low, clip_high: 0.2, dual_clip: None, weight_cap, log_ratio_limit: None };
    of(PolicyLoss::Decoupled(loss))
}

fn cispo(clip_low: f64, clip_high: f64) -> Objective {
    of(PolicyLoss::Cispo(Cispo { clip_low, clip_high, ..CISPO }))
}

fn divided(loss_scale_factor: f64, length_epsilon: f64) -> Objective {
    let divisors = LengthDivisors { loss_scale_factor, length_epsilon };
    Objective { divisors, ..of(PolicyLoss::Gpg(Reinforce {})) }
}

fn kl(controller: KlController) -> Objective {
    let term = KlTerm { estimator: KlEstimator::plain(KlKind::K3), controller, bias_corrected: false };
    Objective { kl: Some(term), ..of(PolicyLoss::Gpg(Reinforce {})) }
}

fn adaptive(adaptive: AdaptiveEntropy) -> Objective {
    let bonus = EntropyBonus { adaptive: Some(adaptive), ..EntropyBonus::constant(0.1) };
    Objective { entropy: Some(bonus), ..of(PolicyLoss::Gpg(Reinforce {})) }
}

fn masks(top_entropy: Option<f64>, off_policy: Option<f64>) -> Objective {
    Objective { masks: LossMasks { top_entropy, off_policy }, ..of(PolicyLoss::Gpg(Reinforce {})) }
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("loss.clip_low", |x| of(PolicyLoss::Clip(Clip { clip_low: x, ..CLIP })), SHARE.0, SHARE.1),
    ("loss.clip_high", |x| of(PolicyLoss::Clip(Clip { clip_high: x, ..CLIP })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.dual_clip", |x| of(PolicyLoss::Clip(Clip { dual_clip: Some(x), ..CLIP })), &[1.01, 10.0], &[1.0, 0.5, INF, NAN]),
    ("loss.delta", |x| of(PolicyLoss::Clip(Clip { delta: Some(x), ..CLIP })), &[1.01, 10.0], &[1.0, 0.5, INF, NAN]),
    ("loss.log_ratio_limit", |x| of(PolicyLoss::Clip(Clip { log_ratio_limit: Some(x), ..CLIP })), POSITIVE.0, POSITIVE.1),
    ("loss.clip_low", |x| luspo(x), SHARE.0, SHARE.1),
    ("loss.clip_low", |x| decoupled(x, None), SHARE.0, SHARE.1),
    ("loss.weight_cap", |x| decoupled(0.2, Some(x)), POSITIVE.0, POSITIVE.1),
    ("loss.clip_low", |x| of(PolicyLoss::Gspo(Gspo { clip_low: x, ..GSPO })), SHARE.0, SHARE.1),
    ("loss.clip_high", |x| of(PolicyLoss::Gspo(Gspo { clip_high: x, ..GSPO })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.log_ratio_limit", |x| of(PolicyLoss::Gspo(Gspo { log_ratio_limit: Some(x), ..GSPO })), POSITIVE.0, POSITIVE.1),
    ("loss.clip_low", |x| of(PolicyLoss::ClipCov(ClipCov { clip_low: x, ..CLIP_COV })), SHARE.0, SHARE.1),
    ("loss.clip_high", |x| of(PolicyLoss::ClipCov(ClipCov { clip_high: x, ..CLIP_COV })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.share", |x| of(PolicyLoss::ClipCov(ClipCov { share: x, ..CLIP_COV })), &[TINY, 1.0], &[0.0, -1.0, 1.01, NAN]),
    ("loss.cov_low", |x| of(PolicyLoss::ClipCov(ClipCov { cov_low: x, ..CLIP_COV })), &[-9.0, 0.99], &[1.0, 2.0, -INF, NAN]),
    ("loss.share", |x| of(PolicyLoss::KlCov(KlCov { share: x, cov_coefficient: 1.0 })), &[TINY, 1.0], &[0.0, -1.0, 1.01, NAN]),
    ("loss.cov_coefficient", |x| of(PolicyLoss::KlCov(KlCov { share: 0.5, cov_coefficient: x })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.clip_low", |x| of(PolicyLoss::GeoMean(GeoMean { clip_low: x, ..GEO_MEAN })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.clip_high", |x| of(PolicyLoss::GeoMean(GeoMean { clip_high: x, ..GEO_MEAN })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.length_epsilon", |x| of(PolicyLoss::GeoMean(GeoMean { length_epsilon: x, ..GEO_MEAN })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.weight_epsilon", |x| of(PolicyLoss::GeoMean(GeoMean { weight_epsilon: x, ..GEO_MEAN })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.clip_low", |x| cispo(x, 0.2), SHARE.0, SHARE.1),
    ("loss.clip_high", |x| cispo(0.2, x), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.max_ratio", |x| of(PolicyLoss::Cispo(Cispo { max_ratio: x, ..CISPO })), POSITIVE.0, POSITIVE.1),
    ("loss.log_ratio_limit", |x| of(PolicyLoss::Cispo(Cispo { log_ratio_limit: Some(x), ..CISPO })), POSITIVE.0, POSITIVE.1),
    ("loss.tau_positive", |x| of(PolicyLoss::Sapo(Sapo { tau_positive: x, ..SAPO })), POSITIVE.0, POSITIVE.1),
    ("loss.tau_negative", |x| of(PolicyLoss::Sapo(Sapo { tau_negative: x, ..SAPO })), POSITIVE.0, POSITIVE.1),
    ("loss.log_ratio_limit", |x| of(PolicyLoss::Sapo(Sapo { log_ratio_limit: Some(x), ..SAPO })), POSITIVE.0, POSITIVE.1),
    ("loss.clip_low", |x| of(PolicyLoss::DppoTv(DppoTv { clip_low: x, ..DPPO })), SHARE.0, SHARE.1),
    ("loss.clip_high", |x| of(PolicyLoss::DppoKl(DppoKl { clip_high: x, ..DPPO_KL })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.max_ratio", |x| of(PolicyLoss::DppoTv(DppoTv { max_ratio: x, ..DPPO })), POSITIVE.0, POSITIVE.1),
    ("loss.log_ratio_limit", |x| of(PolicyLoss::DppoTv(DppoTv { log_ratio_limit: Some(x), ..DPPO })), POSITIVE.0, POSITIVE.1),
    ("loss.beta", |x| of(PolicyLoss::Dro(Dro { beta: x })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.k_positive", |x| of(PolicyLoss::Vespo(Vespo { k_positive: x, ..VESPO })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.lambda_positive", |x| of(PolicyLoss::Vespo(Vespo { lambda_positive: x, ..VESPO })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.k_negative", |x| of(PolicyLoss::Vespo(Vespo { k_negative: x, ..VESPO })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss.lambda_negative", |x| of(PolicyLoss::Vespo(Vespo { lambda_negative: x, ..VESPO })), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("length_epsilon", |x| divided(1.0, x), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("loss_scale_factor", |x| divided(x, 0.0), POSITIVE.0, POSITIVE.1),
    ("kl.coef", |x| kl(KlController::Fixed { coef: x }), FINITE.0, FINITE.1),
    ("kl.initial", |x| kl(KlController::Adaptive { initial: x, target: 1.0, horizon: 1.0 }), FINITE.0, FINITE.1),
    ("kl.target", |x| kl(KlController::Adaptive { initial: 0.1, target: x, horizon: 1.0 }), POSITIVE.0, POSITIVE.1),
    ("kl.horizon", |x| kl(KlController::Adaptive { initial: 0.1, target: 1.0, horizon: x }), POSITIVE.0, POSITIVE.1),
    ("entropy.coef", |x| Objective { entropy: Some(EntropyBonus::constant(x)), ..of(PolicyLoss::Gpg(Reinforce {})) }, FINITE.0, FINITE.1),
    ("entropy.adaptive.min", |x| adaptive(AdaptiveEntropy { min: x, ..ADAPTIVE }), &[-1.0, 1.0], &[1.01, -INF, NAN]),
    ("entropy.adaptive.max", |x| adaptive(AdaptiveEntropy { max: x, ..ADAPTIVE }), &[0.0, 1.0], &[INF]),
    ("entropy.adaptive.delta", |x| adaptive(AdaptiveEntropy { delta: x, ..ADAPTIVE }), NOT_NEGATIVE.0, NOT_NEGATIVE.1),
    ("entropy.adaptive.target", |x| adaptive(AdaptiveEntropy { target: x, ..ADAPTIVE }), FINITE.0, FINITE.1),
    ("masks.top_entropy", |x| masks(Some(x), None), SHARE.0, SHARE.1),
    ("masks.off_policy", |x| masks(None, Some(x)), &[-INF, 0.0, INF], &[NAN]),
];

#[test]
fn every_setting_is_held_to_its_range() {
    for &(name, objective, inside, outside) in CASES {
        for &value in inside {
            assert_eq!(objective(value).check(), Ok(()), "{name} {value}");
        }
        for &value in outside {
            let (setting, found) = match objective(value).check() {
                Err(ObjectiveError::Setting { setting, value, .. }) => (setting, value),
                Err(ObjectiveError::Range(OutOfRange { key, value, .. })) => (key, value),
                other => panic!("{name} {value}: {other:?}"),
            };
            let is_named = name.ends_with(setting) || setting.ends_with(name);
            assert!(is_named && found.to_bits() == value.to_bits(), "{name} {value}: {setting}");
        }
    }
}

#[test]
fn settings_of_a_critic_are_held_to_their_range() {
    let term = ValueTerm::of(None, Aggregation::TokenMean);
    let divisors = LengthDivisors { loss_scale_factor: 0.0, length_epsilon: 0.0 };
    for (term, expected) in [
        (ValueTerm { coef: INF, ..term }, "`value.coef` is inf; expected a finite number"),
        (ValueTerm { clip: Some(0.0), ..term }, "`value.clip` is 0; expected a number above 0"),
        (ValueTerm { clip: Some(NAN), ..term }, "`value.clip` is NaN; expected a number above 0"),
        (
            ValueTerm { divisors, ..term },
            "`loss_scale_factor` is 0; expected the response limit in tokens, above 0",
        ),
    ] {
        assert_eq!(term.check().unwrap_err().to_string(), format!("objective setting {expected}"));
    }
    assert_eq!(ValueTerm { coef: -1.0, clip: Some(TINY), ..term }.check(), Ok(()));
}
