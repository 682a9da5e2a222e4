//! Estimators and controllers of the KL.

use crate::translator::Translator;

fn estimator(kind: &str) -> Option<&'static str> {
    match kind.trim_end_matches('+') {
        "kl" | "k1" => Some("k1"),
        "abs" => Some("abs"),
        "mse" | "k2" => Some("k2"),
        "low_var_kl" | "k3" => Some("k3"),
        _ => None,
    }
}

/// The estimator that the first of some keys names; the others are the switches of the KL.
pub(crate) fn set_estimator(t: &mut Translator, keys: &[&str], default: &str) {
    let key = keys.first().copied().unwrap_or_default();
    let kind = t.text(key).unwrap_or_else(|| default.to_owned());
    match estimator(&kind) {
        Some(ours) => {
            t.set(keys, "objective.kl.estimator", ours);
            if kind.ends_with('+') {
                t.set(&[key], "objective.kl.straight_through", "true");
            }
        }
        None => t.refuse(key, "the estimators are kl, abs, mse and low_var_kl"),
    }
}

/// The controller of a KL in the reward, by its keys and the switches of the KL.
pub(crate) fn set_controller(
    t: &mut Translator,
    [coefficient, kind, horizon_key, target_key]: [&str; 4],
    switches: &[&str],
    default_coefficient: &str,
) {
    let with_switches = |key| [&[key], switches].concat();
    let value =
        t.number(coefficient).map_or_else(|| default_coefficient.to_owned(), |value| value.to_string());
    t.set(&with_switches(coefficient), "objective.kl.coefficient", &value);
    match t.text(kind).as_deref() {
        Some("adaptive") => {
            let target = t.number(target_key).unwrap_or(0.1);
            let horizon = t.number(horizon_key).unwrap_or(10_000.0);
            let text = format!("{{target: {target}, horizon: {horizon}}}");
            t.set(&[kind], "objective.kl.adaptive", &text);
            for key in [horizon_key, target_key] {
                t.part_of(key, kind);
            }
        }
        None | Some("fixed") => {
            t.set(&with_switches(kind), "objective.kl.adaptive", "null");
            for key in [horizon_key, target_key] {
                t.no_effect(key, "the coefficient is fixed");
            }
        }
        Some(_) => t.bad_value(kind, "fixed or adaptive"),
    }
}
