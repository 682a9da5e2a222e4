//! The advantage estimator of verl and EasyR1, which may be a whole algorithm.

use tamis_core::advantage::Advantage;
use tamis_core::setting::Described as _;

use crate::translator::Translator;

/// Sets the estimator that `algorithm.adv_estimator` names.
pub(crate) fn estimator(t: &mut Translator) {
    const ESTIMATOR: &str = "algorithm.adv_estimator";
    match t.text(ESTIMATOR).as_deref() {
        Some("dapo") => {
            t.set(&[ESTIMATOR], "preset", "dapo");
            t.remark(
                ESTIMATOR,
                "no estimator of verl has this name: taken as the whole recipe, group-relative advantages, clip 0.2/0.28, token \
                 mean, soft overlong penalty, dynamic sampling, no KL",
            );
        }
        Some(name) => match estimator_of_ours(name) {
            Some(ours) => {
                t.set(&[ESTIMATOR], "objective.advantage.kind", ours.as_str());
                as_there(t, ESTIMATOR, &ours);
                if name == "grpo_vectorized" {
                    t.remark(
                        ESTIMATOR,
                        "verl's vectorised form takes no deviation below 0.001; here it is as in `grpo`",
                    );
                }
                // verl keeps the raw reward in a group of one.
                if has_key(ours.as_str(), "singleton") {
                    t.set(&[ESTIMATOR], "objective.advantage.singleton", "raw");
                }
            }
            None if name == "flow_grpo" => {
                t.refuse(
                    ESTIMATOR,
                    "it trains models that make images, and language models are trained here",
                );
            }
            None => t.refuse(ESTIMATOR, "no estimator of this name is known: use grpo"),
        },
        None => {}
    }
}

/// Sets the divisor of advantages: `group`, `batch` or `none`. GRPO over passes has a separate key for it.
pub(crate) fn scale(t: &mut Translator, key: &str, scale: &str) {
    let kind = t.kind_of("objective.advantage").unwrap_or_default();
    match scale {
        "group" | "none" if has_key(&kind, "divide") => {
            t.set(&[key], "objective.advantage.divide", &(scale == "group").to_string());
        }
        _ => t.set(&[key], "objective.advantage.scale", scale),
    }
}

/// Whether one of our estimators has a key.
fn has_key(kind: &str, key: &str) -> bool {
    Advantage::shape().keys_of_kind(kind).iter().any(|spec| spec.name == key)
}

/// Our estimator for this name in verl, EasyR1 or the fork of `cpo`.
pub(crate) fn estimator_of_ours(name: &str) -> Option<Advantage> {
    let name = match name {
        "grpo_vectorized" => "grpo",
        "rloo_vectorized" => "rloo",
        _ => name,
    };
    Advantage::of_name(name).filter(|ours| {
        use Advantage::{Bnpo, BnpoRunning, DrGrpo, NormalizeThenSum, OnPolicyDistillation};
        !matches!(ours, DrGrpo(_) | NormalizeThenSum(_) | Bnpo(_) | BnpoRunning(_) | OnPolicyDistillation(_))
    })
}

/// Notes how the other systems' advantage differs from ours.
fn as_there(t: &mut Translator, key: &str, ours: &Advantage) {
    match ours {
        Advantage::Cpo(_) => t.remark(
            key,
            "groups of rights and of wrongs are found here by their rewards; the fork compares a list with a number, finds none, and so \
             only lowers wrong completions in groups of wrongs. The gold answer stands in `objective.advantage.gold_hint`, in other words \
             than there",
        ),
        Advantage::OptimalTokenBaseline(_) | Advantage::TirOptimalTokenBaseline(_) => {
            t.set(&[key], "objective.advantage.epsilon", "1e-8");
            t.set(&[key], "objective.advantage.masked_rewards", "lost");
            t.set(&[key], "objective.advantage.tail", "zeroed_by_count");
        }
        _ => {}
    }
}
