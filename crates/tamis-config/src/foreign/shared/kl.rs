//! Estimators and controllers of the KL.

use crate::foreign::translator::Translator;

fn estimator(kind: &str) -> Option<&'static str> {
    match kind.trim_end_matches('+') {
        "kl" | "k1" => Some("k1"),
        "abs" => Some("abs"),
        "mse" | "k2" => Some("k2"),
        "low_var_kl" | "k3" => Some("k3"),
        _ => None,
    }
}

pub(in crate::foreign) fn set_estimator(t: &mut Translator, key: &str, switch: &str, default: &str) {
    let kind = t.text(key).unwrap_or_else(|| default.to_owned());
    match estimator(&kind) {
        Some(ours) => {
            t.set(&[key, switch], "objective.kl.estimator", ours);
            if kind.ends_with('+') {
                t.set(&[key], "objective.kl.straight_through", "true");
            }
        }
        None => t.refuse(key, "the estimators are kl, abs, mse and low_var_kl"),
    }
}

pub(in crate::foreign) fn set_controller(
    t: &mut Translator,
    switch: &str,
    coefficient: &str,
    default_coefficient: f64,
    [kind, horizon_key, target_key]: [&str; 3],
) {
    let value = t.number(coefficient).unwrap_or(default_coefficient);
    t.set(&[coefficient, switch], "objective.kl.coefficient", &value.to_string());
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
            t.set(&[kind, switch], "objective.kl.adaptive", "null");
            for key in [horizon_key, target_key] {
                t.no_effect(key, "the coefficient is fixed");
            }
        }
        Some(_) => t.bad_value(kind, "fixed or adaptive"),
    }
}
