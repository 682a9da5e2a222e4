//! verl's asynchronous modes, which are a stream of groups here.

use crate::key::Rule;
use crate::translator::Translator;

const MODE: &str = "trainer.v1.trainer_mode";
const USE_V1: &str = "trainer.use_v1";
const THRESHOLD: &str = "trainer.v1.sampler.max_off_policy_threshold";
const STRATEGY: &str = "trainer.v1.sampler.max_off_policy_strategy";

/// Trainer mode and sampler: before the group filter and the servers, which go by them.
pub(super) const ASYNCHRONOUS: Rule = Rule::new(1, "asynchronous", asynchronous);

/// Whether one of verl's asynchronous modes is asked for.
pub(crate) fn is_asynchronous(t: &Translator) -> bool {
    let mode = t.text(MODE);
    uses_v1(t) && mode.is_some_and(|mode| matches!(mode.as_str(), "colocate_async" | "separate_async"))
}

/// Whether servers have GPUs of their own in the mode that is asked for.
pub(crate) fn is_separate(t: &Translator) -> bool {
    is_asynchronous(t) && t.text(MODE).as_deref() == Some("separate_async")
}

fn uses_v1(t: &Translator) -> bool {
    t.text(USE_V1).is_none_or(|text| !matches!(text.as_str(), "False" | "false"))
}

fn asynchronous(t: &mut Translator) {
    if !uses_v1(t) {
        none_has_effect("trainer.use_v1 is False: verl's older trainer does not read it", t);
        return;
    }
    match t.text(MODE).as_deref() {
        None | Some("sync") => {
            t.no_effect(
                MODE,
                "a step trains on what its own policy sampled, as here unless `schedule` says otherwise",
            );
            none_has_effect("trainer.v1.trainer_mode is sync: nothing is asynchronous", t);
            return;
        }
        Some("colocate_async" | "separate_async") => {}
        Some(_) => {
            t.refuse(MODE, "the modes are sync, colocate_async and separate_async");
            return;
        }
    }
    t.set(&[MODE], "schedule.mode", "streaming");
    let given = t.find(THRESHOLD).map(|given| given.node.is_null());
    let threshold = match given {
        Some(true) => {
            t.refuse(
                THRESHOLD,
                "null trains on groups of any age, and `schedule.max_lag` bounds it here: give a number, 8 is verl's default",
            );
            return;
        }
        Some(false) => t.number(THRESHOLD),
        None => Some(8.0),
    };
    let Some(threshold) = threshold else { return };
    if threshold < 1.0 || threshold.fract() != 0.0 {
        t.bad_value(THRESHOLD, "a whole number of versions, 1 or more, or null");
        return;
    }
    if threshold > 1.0 {
        t.set(&[MODE], "schedule.surplus", "carry");
        t.set(&[THRESHOLD, MODE], "schedule.max_lag", &(threshold - 1.0).to_string());
        t.remark(
            THRESHOLD,
            "verl counts the versions that a group spans, its own included; `schedule.max_lag` counts those after it",
        );
    } else {
        t.set(&[THRESHOLD], "schedule.surplus", "discard");
        t.remark(
            THRESHOLD,
            "a group that spans one version is trained on in the step in which it was started",
        );
    }
    let mut remark = String::from(
        "verl trains on the groups that have ended, those of the oldest step first; here they are trained on in the order of \
         dispatch, so that short completions have no advantage (`schedule.order: completion` is nearer to verl)",
    );
    if t.text(MODE).as_deref() == Some("colocate_async") {
        remark.push_str(
            "; verl's servers sleep while the policy learns, here they go on sampling, and need memory beside the learner",
        );
    }
    t.remark(MODE, &remark);
    match t.text(STRATEGY).as_deref() {
        Some("wait") => {
            t.part_of(STRATEGY, MODE);
            t.remark(
                STRATEGY,
                "verl waits for groups that would grow too old, and drops none; here older groups are always waited for, and one \
                 that is older than `schedule.max_lag` all the same is thrown away and counted as stale",
            );
        }
        None | Some("drop") => {
            t.no_effect(STRATEGY, "groups beyond `schedule.max_lag` are thrown away, always");
        }
        Some(_) => t.bad_value(STRATEGY, "drop or wait"),
    }
}

/// Says of each key of the modes that became nothing else why that is.
fn none_has_effect(reason: &str, t: &mut Translator) {
    for key in [MODE, THRESHOLD, STRATEGY] {
        t.no_effect(key, reason);
    }
}
