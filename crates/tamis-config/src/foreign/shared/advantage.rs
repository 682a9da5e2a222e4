//! The advantage estimator of verl and EasyR1, which may be a whole algorithm.

use crate::foreign::translator::Translator;

/// Sets the estimator that `algorithm.adv_estimator` names.
pub(in crate::foreign) fn estimator(t: &mut Translator) {
    const ESTIMATOR: &str = "algorithm.adv_estimator";
    match t.text(ESTIMATOR).as_deref() {
        Some("dapo") => {
            t.set(&[ESTIMATOR], "preset", "dapo");
            t.remark(
                ESTIMATOR,
                "no estimator of verl has this name: taken as the whole recipe, group-relative advantages, clip 0.2/0.28, token \
                 mean, soft overlong punishment, dynamic sampling, no KL",
            );
        }
        Some(name) => match estimator_of_ours(name) {
            Some(ours) => {
                t.set(&[ESTIMATOR], "objective.advantage.kind", ours);
                as_there(t, ESTIMATOR, ours);
                if name == "grpo_vectorized" {
                    t.remark(
                        ESTIMATOR,
                        "verl's vectorised form takes no deviation below 0.001; here it is as in `grpo`",
                    );
                }
                if has_singletons(ours) {
                    t.set(&[ESTIMATOR], "objective.advantage.singleton", "raw");
                }
            }
            None if name == "flow_grpo" => t.refuse(ESTIMATOR, IMAGES),
            None => t.refuse(ESTIMATOR, "no estimator of this name is known: use grpo"),
        },
        None => {}
    }
}

/// Sets what advantages are divided by: `group`, `batch` or `none`. GRPO over passes has a key of its own for
/// it.
pub(in crate::foreign) fn scale(t: &mut Translator, key: &str, scale: &str) {
    match (t.kind_of("objective.advantage").as_deref(), scale) {
        (Some("grpo_passk"), "group") => t.set(&[key], "objective.advantage.divide", "true"),
        (Some("grpo_passk"), "none") => t.set(&[key], "objective.advantage.divide", "false"),
        _ => t.set(&[key], "objective.advantage.scale", scale),
    }
}

/// verl's and EasyR1's estimators by our names.
fn estimator_of_ours(name: &str) -> Option<&'static str> {
    Some(match name {
        "grpo" | "grpo_vectorized" => "grpo",
        "grpo_passk" => "grpo_passk",
        "rloo" | "rloo_vectorized" => "rloo",
        "reinforce_plus_plus" => "reinforce_plus_plus",
        "reinforce_plus_plus_baseline" => "reinforce_plus_plus_baseline",
        "remax" => "remax",
        "opo" => "opo",
        "gpg" => "gpg",
        "gdpo" => "gdpo",
        "optimal_token_baseline" => "optimal_token_baseline",
        "tir_optimal_token_baseline" => "tir_optimal_token_baseline",
        "gae" => "gae",
        "bi_level_gae" => "bi_level_gae",
        "cpo" => "cpo",
        _ => return None,
    })
}

/// What their systems do otherwise than we, by its name here.
fn as_there(t: &mut Translator, key: &str, ours: &str) {
    match ours {
        "cpo" => t.remark(
            key,
            "groups of rights and of wrongs are found here by their rewards; the fork compares a list with a number, finds none, and so \
             only lowers wrong completions in groups of wrongs. The gold answer stands in `objective.advantage.gold_hint`, in other words \
             than there",
        ),
        "optimal_token_baseline" | "tir_optimal_token_baseline" => {
            t.set(&[key], "objective.advantage.epsilon", "1e-8");
            t.set(&[key], "objective.advantage.masked_rewards", "lost");
            t.set(&[key], "objective.advantage.tail", "zeroed_by_count");
        }
        _ => {}
    }
}

/// Of those, the ones that keep the raw reward of a group of one, as verl does.
fn has_singletons(ours: &str) -> bool {
    !matches!(ours, "reinforce_plus_plus" | "remax" | "gae" | "bi_level_gae")
}

/// Why the estimator and the loss `flow_grpo` are refused.
pub(in crate::foreign) const IMAGES: &str =
    "it trains models that make images, and language models are trained here";
