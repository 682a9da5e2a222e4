//! Rules that a table row cannot express, and named conditions, by the names that rows use for them.

use tamis_core::advantage::{Advantage, Column};

use crate::owner::Owner;
use crate::ragen::{Played, sections};
use crate::shared::{advantage, critic, kl, learner, learning_rate, reward, run, servers};
use crate::translator::Translator;
use crate::{easyr1, ragen, trl, verl};

/// Calls a rule with the keys, the default and the note of its row.
pub(crate) fn call(
    name: &str,
    owner: Owner,
    keys: &[&str],
    [default, note]: [&'static str; 2],
    t: &mut Translator,
) {
    match (name, keys) {
        ("estimator", _) => advantage::estimator(t),
        ("scale", [key]) => advantage::scale(t, key, default),
        ("kl estimator", keys) => kl::set_estimator(t, keys, default),
        ("schedule", [steps, ratio, min_ratio, total, kinds @ ..]) => {
            learning_rate::schedule(default, [*steps, *ratio, *min_ratio, *total], kinds, t);
        }
        ("known options", [key]) => trl::known_options(key, default, t),
        ("rejections", [names, thresholds]) => verl::rejections(names, thresholds, t),
        ("rounds in flight", [key]) => verl::rounds_in_flight(key, t),
        ("distillation of verl", _) => verl::distillation(t),
        ("distillation of TRL", _) => trl::distillation(t),
        ("rewards of verl", _) => verl::rewards(t),
        ("rewards of EasyR1", _) => easyr1::rewards(t),
        ("rewards of TRL", _) => trl::rewards(t),
        ("rewards by source", [key]) => reward::by_source(owner, key, note, t),
        ("loggers", [key]) => {
            run::loggers(t, key, if owner == Owner::Trl { &["console"] } else { &[] });
        }
        ("engine", [name]) => servers::engine(name, default, t),
        ("vLLM beside the learner", _) => trl::beside_the_learner(t),
        ("data of TRL", _) => trl::data(owner, t),
        ("model of TRL", _) => trl::model(t),
        ("nested columns", _) => verl::nested_columns(t),
        ("options of the generator", _) => trl::generation(t),
        ("environment", _) => ragen::environment(t),
        _ => unreachable!("no rule `{name}` for {keys:?}"),
    }
}

/// Whether a named condition holds.
pub(crate) fn named(name: &str, owner: Owner, t: &Translator) -> bool {
    match name {
        "asynchronous" => verl::is_asynchronous(t),
        "separate" => verl::is_separate(t),
        "torch" => learner::is_torch(t),
        // If no key chooses the loss, one of our layers may.
        "cispo" => {
            t.text("loss_type").or_else(|| t.kind_of("objective.loss")).is_some_and(|loss| loss == "cispo")
        }
        // A whole command of RAGEN without an estimator means gae. Without a whole command, our own setting
        // counts; its default is grpo.
        "grpo" => t.text("algorithm.adv_estimator").map_or(!t.whole, |name| name == "grpo"),
        "critic" => critic::has_critic(owner, t),
        // A configuration of its `DistillationTrainer`.
        "taught" => trl::TEACHERS.iter().any(|key| t.text(key).is_some()),
        "validated" => trl::validates(t),
        "rewarded" => t.sets_list("reward"),
        // The estimator reads the values of a critic.
        "valued" => t
            .value_of("objective.advantage.kind")
            .and_then(|kind| Advantage::of_name(&kind))
            .is_some_and(|estimator| estimator.needs().contains(&Column::Values)),
        "played" => Played::by(t) != Played::Nothing,
        "played by tag" => Played::by(t) == Played::Tag,
        "environment of ours" => Played::by(t) == Played::Own,
        "several environments" => sections(t).len() > 1,
        "no tag" => !t.given.iter().any(|given| given.rule == Some("environment")),
        _ => unreachable!("no condition `{name}`"),
    }
}
