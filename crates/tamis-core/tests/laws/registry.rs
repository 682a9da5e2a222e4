//! Every policy loss in the registry, with values that its keys accept: the laws draw a new loss without a
//! line here.

use proptest::prelude::*;
use proptest::strategy::Union;
use serde_json::{Map, Value as Json};
use tamis_core::objective::{Aggregation, Objective, PolicyLoss};
use tamis_core::setting::{Check, Described as _, KeySpec, Shape};

/// The keys of a loss.
pub(crate) fn keys(name: &str) -> Vec<KeySpec> {
    PolicyLoss::shape().keys_of_kind(name)
}

/// A loss of this name with these keys; the others are at their defaults.
pub(crate) fn loss(name: &str, keys: Map<String, Json>) -> PolicyLoss {
    let mut object = keys;
    object.insert("kind".to_owned(), Json::from(name));
    serde_json::from_value(Json::Object(object)).unwrap()
}

/// A loss under the only aggregation that it accepts, or else under the token mean.
pub(crate) fn objective_of(policy: PolicyLoss) -> Objective {
    let aggregation = policy.needed_aggregation().unwrap_or(Aggregation::TokenMean);
    Objective::of(policy, aggregation)
}

/// The least and the greatest number that is drawn for a key.
fn bounds(check: Check) -> (f64, f64) {
    match check {
        Check::Any | Check::NotEmpty => (-1.0, 2.0),
        Check::AtLeast(bound) => (bound, bound + 2.0),
        Check::GreaterThan(bound) => (bound + 0.05, bound + 3.0),
        Check::Between(low, high) | Check::ZeroOrBetween(low, high) => (low, high),
        Check::FromBelow(low, high) => (low, low + 0.9 * (high - low)),
        Check::Positive => (0.05, 3.0),
        Check::NonNegative => (0.0, 2.0),
        Check::Probability => (0.01, 1.0),
    }
}

/// Numbers at the edges of a range, inside and outside.
pub(crate) fn edges(check: Check) -> (Vec<f64>, Vec<f64>) {
    const LEAST: f64 = f64::MIN_POSITIVE;
    match check {
        Check::Any | Check::NotEmpty => (vec![], vec![]),
        Check::AtLeast(bound) => (vec![bound, bound + 3.0], vec![bound - 0.01]),
        Check::GreaterThan(bound) => (vec![bound + 0.01, bound + 9.0], vec![bound, bound - 0.5]),
        Check::Between(low, high) => (vec![low, high], vec![low - 0.01, high + 0.01]),
        Check::ZeroOrBetween(low, high) => (vec![0.0, low, high], vec![low / 2.0, high + 0.01]),
        Check::FromBelow(low, high) => (vec![low], vec![low - 0.01, high]),
        Check::Positive => (vec![LEAST, 3.0], vec![0.0, -1.0]),
        Check::NonNegative => (vec![0.0, 3.0], vec![-0.01]),
        Check::Probability => (vec![LEAST, 1.0], vec![0.0, -1.0, 1.01]),
    }
}

/// Values that a key accepts.
fn values(shape: &Shape, check: Check) -> BoxedStrategy<Json> {
    let (low, high) = bounds(check);
    match shape {
        Shape::Bool => any::<bool>().prop_map(Json::from).boxed(),
        Shape::Choice(values) => {
            let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
            prop::sample::select(names).prop_map(Json::from).boxed()
        }
        Shape::Integer => (low.ceil() as u64..=high as u64).prop_map(Json::from).boxed(),
        Shape::Number => (low..=high).prop_map(Json::from).boxed(),
        Shape::Nullable(inner) => prop_oneof![Just(Json::Null), values(inner, check)].boxed(),
        other => panic!("no law draws {} for a key of a loss", other.describe()),
    }
}

/// The settings of a loss: each key at its default or anywhere in its range.
fn of_name(name: &'static str) -> BoxedStrategy<PolicyLoss> {
    let keys: Vec<_> = keys(name)
        .into_iter()
        .map(|spec| {
            let drawn = values(&(spec.shape)(), spec.check).prop_map(Some);
            let value = if spec.is_required() {
                drawn.boxed()
            } else {
                prop_oneof![1 => Just(None), 3 => drawn].boxed()
            };
            value.prop_map(move |value| value.map(|value| (spec.name.to_owned(), value)))
        })
        .collect();
    keys.prop_map(move |keys| loss(name, keys.into_iter().flatten().collect()))
        .prop_filter("settings that go together", |policy| objective_of(policy.clone()).check().is_ok())
        .boxed()
}

/// The losses with a formula; a loss in Python has none of its own (`given.rs`).
fn formulas() -> impl Iterator<Item = &'static str> {
    PolicyLoss::NAMES.iter().copied().filter(|name| *name != "python")
}

/// Any policy loss.
pub(crate) fn policy() -> impl Strategy<Value = PolicyLoss> {
    Union::new(formulas().map(of_name))
}

/// One of each, at its defaults but without optional bounds.
pub(crate) fn all() -> impl Iterator<Item = PolicyLoss> {
    formulas().map(|name| {
        let unbounded = keys(name).into_iter().filter_map(|spec| match (spec.shape)() {
            Shape::Nullable(_) => Some((spec.name.to_owned(), Json::Null)),
            _ if spec.is_required() => Some((spec.name.to_owned(), Json::from(bounds(spec.check).1 / 4.0))),
            _ => None,
        });
        loss(name, unbounded.collect())
    })
}
