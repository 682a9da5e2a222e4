//! Rules that no row can express, and conditions with a name, by the names that rows call them.

use tamis_core::advantage::{Advantage, Column};

use crate::owner::Owner;
use crate::shared::{defaults, kl, learning_rate};
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
