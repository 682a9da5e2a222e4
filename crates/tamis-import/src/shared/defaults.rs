//! Defaults of a whole configuration that several systems share.

use crate::owner::Owner;
use crate::translator::Translator;

/// The verifier of each row by its source, where no reward is named.
pub(crate) fn by_source(owner: Owner, key: &str, remark: &str, t: &mut Translator) {
    const LIST: &str = "[{kind: by_source}]";
    if !t.sets_list("reward") {
        t.put_first(owner, &format!("{key} (default)"), "reward", LIST);
        t.absent(owner, key, &[("reward", LIST)], remark);
    }
}

/// verl and RAGEN have the same default, with a critic.
pub(crate) fn estimator(owner: Owner, t: &mut Translator) {
    t.default(owner, "algorithm.adv_estimator", "objective.advantage.kind", "gae");
}

/// Validates with the temperature and the cut of training.
pub(crate) fn same_as_training(owner: Owner, prefix: &str, t: &mut Translator) {
    let of = |name: &str| if prefix.is_empty() { format!("eval {name}") } else { format!("{prefix}.{name}") };
    for name in ["temperature", "top_p"] {
        let value = t.value_of(&format!("rollout.{name}")).unwrap_or_else(|| "1.0".to_owned());
        t.default(owner, &of(name), &format!("validate.{name}"), &value);
    }
}

/// The default of 256 prompts an update; a smaller batch, which the owner would refuse, is one update.
pub(crate) fn mini_batch(owner: Owner, key: &str, t: &mut Translator) {
    let batch = t.value_of("data.train_batch_size").and_then(|value| value.parse::<f64>().ok());
    match batch {
        Some(batch) if batch < 256.0 => t.absent(
            owner,
            key,
            &[("train.ppo_mini_batch_size", "null")],
            "its default of 256 is above the batch: one update a step",
        ),
        _ => t.default(owner, key, "train.ppo_mini_batch_size", "256"),
    }
}

/// The same of EasyR1's critic, which has a setting of its own; ours takes the policy's.
pub(crate) fn critic_mini_batch(owner: Owner, key: &str, t: &mut Translator) {
    const OURS: &str = "critic.ppo_mini_batch_size";
    match t.value_of("data.train_batch_size") {
        Some(batch) if batch.parse::<f64>().is_ok_and(|batch| batch < 256.0) => {
            if t.find(key).is_none() {
                t.default(owner, key, OURS, &batch);
                t.remark(key, "its default of 256 is above the batch: one update a step");
            }
        }
        _ => t.default(owner, key, OURS, "256"),
    }
}
