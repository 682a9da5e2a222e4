//! EasyR1's rules that no row can express.

use crate::key::Rule;
use crate::owner::Owner;
use crate::shared::{advantage, critic, run, servers};
use crate::translator::Translator;

/// The advantage estimator, which may be a whole algorithm: before every other rule.
pub(super) const ADVANTAGE: Rule = Rule::new(1, "advantage", advantage::estimator);

/// Reward functions.
pub(super) const REWARDS: Rule = Rule::new(2, "rewards", rewards);

fn rewards(t: &mut Translator) {
    const FUNCTION: &str = "worker.reward.reward_function";
    const NAME: &str = "worker.reward.reward_function_name";
    const KWARGS: &str = "worker.reward.reward_function_kwargs";
    const TYPE: &str = "worker.reward.reward_type";
    let mut kwargs = serde_json::Map::new();
    let mut others = vec![NAME.to_owned(), TYPE.to_owned()];
    for given in &t.given {
        if given.key == KWARGS {
            kwargs.extend(given.node.to_json().as_object().cloned().unwrap_or_default());
        } else if let Some(name) = given.key.strip_prefix(KWARGS).and_then(|rest| rest.strip_prefix('.')) {
            kwargs.insert(name.to_owned(), given.node.to_json());
        } else {
            continue;
        }
        others.push(given.key.clone());
    }
    let Some(text) = t.text(FUNCTION) else {
        t.no_effect(FUNCTION, "null leaves the default");
        for key in others {
            t.no_effect(&key, "there is no reward function");
        }
        return;
    };
    // `file.py:function`, as EasyR1 takes it apart.
    let (path, name) =
        text.rsplit_once(':').map_or((text.as_str(), None), |(path, name)| (path, Some(name.to_owned())));
    let name = name.or_else(|| t.text(NAME)).unwrap_or_else(|| "main".to_owned());
    let style = match t.text(TYPE).as_deref() {
        None | Some("batch" | "function") => "easyr1",
        Some("sequential") => "easyr1_sequential",
        Some(_) => {
            t.bad_value(TYPE, "batch or sequential");
            return;
        }
    };
    let mut item = serde_json::json!({"kind": "python", "path": path, "function": name, "style": style});
    if !kwargs.is_empty() {
        item["kwargs"] = serde_json::Value::Object(kwargs);
    }
    t.set(&[FUNCTION], "reward", &serde_json::Value::Array(vec![item]).to_string());
    for key in others {
        t.part_of(&key, FUNCTION);
    }
}

/// Loggers of metrics.
pub(super) const LOGGERS: Rule = Rule::new(2, "loggers", |t| run::loggers(t, "trainer.logger", &[]));

/// Project and experiment.
pub(super) const NAMES: Rule = Rule::new(2, "names", run::names);

/// The engine that generates, as servers.
pub(super) const SERVERS: Rule = Rule::new(2, servers::RULE, |t| servers::servers(Owner::EasyR1, t));

/// The critic, which some estimators have: after them.
pub(super) const CRITIC: Rule = Rule::new(3, "critic", |t| critic::critic(Owner::EasyR1, t));
