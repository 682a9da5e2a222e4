//! verl's asynchronous modes. Here they are a stream of groups.

use crate::translator::Translator;

const MODE: &str = "trainer.v1.trainer_mode";

/// Whether one of verl's asynchronous modes is on.
pub(crate) fn is_asynchronous(t: &Translator) -> bool {
    let uses_v1 = t.text("trainer.use_v1").is_none_or(|text| !matches!(text.as_str(), "False" | "false"));
    let mode = t.text(MODE);
    uses_v1 && mode.is_some_and(|mode| matches!(mode.as_str(), "colocate_async" | "separate_async"))
}

/// Whether servers have separate GPUs in the chosen mode.
pub(crate) fn is_separate(t: &Translator) -> bool {
    is_asynchronous(t) && t.text(MODE).as_deref() == Some("separate_async")
}

/// verl counts prompts in flight in training batches, we count them in rounds.
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
