//! Rules that no row can express, and conditions with a name, by the names that rows call them.

use tamis_core::advantage::{Advantage, Column};

use crate::owner::Owner;
use crate::shared::{advantage, defaults, kl, learner, learning_rate};
use crate::translator::Translator;
use crate::{trl, verl};

/// Calls a rule with the keys, the default and the note of its row.
pub(crate) fn call(
    name: &str,
    owner: Owner,
    keys: &[&str],
    [default, note]: [&'static str; 2],
    t: &mut Translator,
) {
    match (name, keys) {
        ("kl estimator", keys) => kl::set_estimator(t, keys, default),
        ("kl controller", [coefficient, kind, horizon, target, switches @ ..]) => {
            kl::set_controller(t, [*coefficient, *kind, *horizon, *target], switches, default);
        }
        ("schedule", [steps, ratio, min_ratio, total, kinds @ ..]) => {
            learning_rate::schedule(default, (*steps, *ratio, *min_ratio, kinds, &[*total]), t);
        }
        ("scale", [key]) => advantage::scale(t, key, default),
        ("batch", _) => trl::batch(t),
        ("default interval of checkpoints", [key]) => {
            let steps = trl::in_steps_of_ours(t, default.parse().unwrap_or_default());
            t.default(owner, key, "checkpoint.save_freq", &steps.to_string());
        }
        ("rounds in flight", [key]) => verl::rounds_in_flight(key, t),
        ("default of mini-batches", [key]) => defaults::mini_batch(owner, key, t),
        ("default of the critic's mini-batches", [key]) => defaults::critic_mini_batch(owner, key, t),
        ("rewards by source", [key]) => defaults::by_source(owner, key, note, t),
        ("validation as training", [prefix]) => defaults::same_as_training(owner, prefix, t),
        _ => unreachable!("no rule `{name}` for {keys:?}"),
    }
}

/// Whether a condition with a name holds.
pub(crate) fn named(name: &str, t: &Translator) -> bool {
    match name {
        "asynchronous" => verl::is_asynchronous(t),
        "torch" => learner::is_torch(t),
        // A layer of ours may have chosen the loss if no key does.
        "cispo" => {
            t.text("loss_type").or_else(|| t.kind_of("objective.loss")).is_some_and(|loss| loss == "cispo")
        }
        // A whole command of RAGEN that names no estimator takes gae; among keys of ours it is ours that counts,
        // of which grpo is the default.
        "grpo" => t.text("algorithm.adv_estimator").map_or(!t.whole, |name| name == "grpo"),
        "validated" => trl::validates(t),
        "rewarded" => t.sets_list("reward"),
        // The estimator reads the values of a critic.
        "valued" => t
            .value_of("objective.advantage.kind")
            .and_then(|kind| Advantage::of_name(&kind))
            .is_some_and(|estimator| estimator.needs().contains(&Column::Values)),
        _ => unreachable!("no condition `{name}`"),
    }
}
