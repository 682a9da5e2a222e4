//! verl's rules that no row can express.

use crate::key::Rule;
use crate::owner::Owner;
use crate::shared::{critic, run, servers};
use crate::translator::Translator;

/// Loggers of metrics.
pub(super) const LOGGERS: Rule = Rule::new(2, "loggers", |t| run::loggers(t, "trainer.logger", &[]));

/// Project and experiment.
pub(super) const NAMES: Rule = Rule::new(2, "names", run::names);

/// The engine that generates, as servers.
pub(super) const SERVERS: Rule = Rule::new(2, servers::RULE, |t| servers::servers(Owner::Verl, t));

/// The critic, which some estimators have: after them.
pub(super) const CRITIC: Rule = Rule::new(3, "critic", |t| critic::critic(Owner::Verl, t));

/// verl counts prompts in flight by the batch that is trained, we by the round.
pub(crate) fn rounds_in_flight(key: &str, t: &mut Translator) {
    let Some(batches) = t.number(key) else { return };
    let (train, round) = (t.number("data.train_batch_size"), t.number("data.gen_batch_size"));
    let rounds = match (train, round) {
        (Some(train), Some(round)) if round > 0.0 => (batches * train / round).round().max(1.0),
        _ => batches,
    };
    t.set(&[key], "schedule.rounds_in_flight", &rounds.to_string());
    if (rounds - batches).abs() > 0.0 {
        t.remark(key, "as many prompts: verl counts batches of data.train_batch_size, and rounds are of data.gen_batch_size");
    }
}
