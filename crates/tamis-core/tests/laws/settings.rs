//! Settings at the edges of their ranges: errors name what is refused, and values just inside are accepted.

use serde_json::Map;
use tamis_core::advantage::shaping::Shaping;
use tamis_core::advantage::{Advantage, AdvantageError};
use tamis_core::filter::GroupFilter;
use tamis_core::objective::{
    AdaptiveEntropy, Aggregation, ClipCov, EntropyBonus, KlController, KlEstimator, KlKind, KlTerm,
    LengthDivisors, LossMasks, Objective, ObjectiveError, PolicyLoss, Reinforce, ValueTerm,
};
use tamis_core::setting::{Described, KeySpec, OutOfRange, Shape};

use crate::registry::{edges, objective_of};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;
const TINY: f64 = f64::MIN_POSITIVE;

/// A setting's name, an objective with it, values inside its range and values outside.
type Case = (&'static str, fn(f64) -> Objective, &'static [f64], &'static [f64]);

const SHARE: (&[f64], &[f64]) = (&[0.0, 1.0], &[-0.01, 1.01, NAN]);
const NOT_NEGATIVE: (&[f64], &[f64]) = (&[0.0, 3.0], &[-0.01, INF, NAN]);
const POSITIVE: (&[f64], &[f64]) = (&[TINY, 3.0], &[0.0, -1.0, INF, NAN]);
const FINITE: (&[f64], &[f64]) = (&[-3.0, 0.0, 3.0], &[INF, -INF, NAN]);

const CLIP_COV: ClipCov = ClipCov { clip_low: 0.2, clip_high: 0.2, share: 0.5, cov_low: 0.0, cov_high: 1.0 };
const ADAPTIVE: AdaptiveEntropy = AdaptiveEntropy { min: 0.0, max: 1.0, delta: 0.01, target: 0.2 };

fn of(policy: PolicyLoss) -> Objective {
    Objective::of(policy, Aggregation::TokenMean)
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
    ("loss.cov_low", |x| of(PolicyLoss::ClipCov(ClipCov { cov_low: x, ..CLIP_COV })), &[-9.0, 0.99], &[1.0, 2.0, -INF, NAN]),
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

/// Every key of every kind of a family, at the edges of its range and beyond. Numbers go through JSON here;
/// `check_range` itself refuses infinities and NaN.
fn check_keys<T: Described>(kinds: &[&str], out_of_range: impl Fn(&T) -> Option<OutOfRange>) {
    for &kind in kinds {
        for spec in T::shape().keys_of_kind(kind) {
            let is_whole = match (spec.shape)() {
                Shape::Nullable(inner) => matches!(*inner, Shape::Integer),
                shape => matches!(shape, Shape::Integer),
            };
            let numbers = |values: Vec<f64>, is_inside: bool| {
                let whole = values.iter().flat_map(|value| [value.floor(), value.ceil()]);
                let whole = whole.filter(|&value| value >= 0.0 && spec.check.holds(value) == is_inside);
                if is_whole { whole.collect() } else { values.clone() }
            };
            let found = |value: f64| {
                let required = T::shape().keys_of_kind(kind).into_iter().filter(KeySpec::is_required);
                let mut keys: Map<_, _> = required.map(|spec| (spec.name.to_owned(), 1.into())).collect();
                let number = if is_whole { (value as u64).into() } else { value.into() };
                keys.extend([("kind".to_owned(), kind.into()), (spec.name.to_owned(), number)]);
                out_of_range(&serde_json::from_value(keys.into()).unwrap())
            };
            let (inside, outside) = edges(spec.check);
            for value in numbers(inside, true) {
                assert_eq!(found(value), None, "{kind} {} {value}", spec.name);
            }
            for value in numbers(outside, false) {
                let found = found(value).map(|found| (found.key, found.value));
                assert_eq!(found, Some((spec.name, value)), "{kind}");
            }
        }
    }
}

#[test]
fn every_key_of_every_kind_is_held_to_its_range() {
    check_keys(PolicyLoss::NAMES, |policy: &PolicyLoss| match objective_of(policy.clone()).check() {
        Ok(()) => None,
        Err(ObjectiveError::Range(found)) => Some(found),
        Err(other) => panic!("{policy:?}: {other}"),
    });
    // Here keys may also not fit together.
    check_keys(Advantage::NAMES, |estimator: &Advantage| match estimator.check() {
        Err(AdvantageError::Range(found)) => Some(found),
        _ => None,
    });
    check_keys(Shaping::NAMES, |shaping: &Shaping| match shaping.check() {
        Err(AdvantageError::Range(found)) => Some(found),
        _ => None,
    });
    check_keys(GroupFilter::NAMES, |filter: &GroupFilter| {
        filter.check().err().and_then(|_| filter.check_ranges().err())
    });
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
