//! Estimators of the KL.

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

/// Sets the estimator from the first of some keys. The others are the switches of the KL.
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
