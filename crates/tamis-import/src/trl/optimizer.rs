//! TRL's optimizer and the schedules of transformers.

use super::batch::steps_of_ours;
use crate::key::Rule;
use crate::translator::Translator;

/// Learning-rate schedule and warm-up.
pub(super) const LEARNING_RATE: Rule = Rule::new(2, "learning rate", schedule);

/// The schedules of transformers, by `lr_scheduler_type` with `lr_scheduler_kwargs`.
fn schedule(t: &mut Translator) {
    const KIND: &str = "lr_scheduler_type";
    const OPTIONS: &str = "lr_scheduler_kwargs";
    const THERE_ARE: &str =
        "the schedules are constant, constant_with_warmup, linear, cosine, cosine_with_min_lr and polynomial";
    let kind = t.text(KIND).unwrap_or_else(|| "linear".to_owned());
    let options = match t.find(OPTIONS).map(|given| given.node.to_json()) {
        Some(serde_json::Value::Object(options)) => options,
        Some(serde_json::Value::Null) | None => serde_json::Map::new(),
        Some(_) => {
            t.bad_value(OPTIONS, "a mapping");
            return;
        }
    };
    let option = |name: &str| options.get(name).and_then(serde_json::Value::as_f64);
    let is_or_absent =
        |name: &str, value: f64| option(name).is_none_or(|given| (given - value).abs() < f64::EPSILON);
    // Of another system's whole command it is known; over a file of ours it may be there.
    let rate = t.number("learning_rate").or_else(|| t.whole.then_some(1e-6));
    let needs_rate = options.contains_key("min_lr") || kind == "polynomial";
    if rate.is_none() && needs_rate {
        t.refuse(
            if t.find(OPTIONS).is_some() { OPTIONS } else { KIND },
            "it ends at a learning rate, and what share that is of the first depends on learning_rate: give it too",
        );
        return;
    }
    let rate = rate.unwrap_or(1e-6);
    // What is left at the end, as a share of the learning rate, and the options that say so.
    let (ours, min_ratio, known): (&str, f64, &[&str]) = match kind.as_str() {
        "constant" | "constant_with_warmup" => ("constant", 0.0, &[]),
        "linear" => ("linear", 0.0, &[]),
        "cosine" if is_or_absent("num_cycles", 0.5) => ("cosine", 0.0, &["num_cycles"]),
        "cosine_with_restarts" if is_or_absent("num_cycles", 1.0) => ("cosine", 0.0, &["num_cycles"]),
        "cosine_with_min_lr" if is_or_absent("num_cycles", 0.5) => {
            let min_ratio = match (option("min_lr"), option("min_lr_rate")) {
                (Some(least), None) => least / rate,
                (None, Some(share)) => share,
                _ => {
                    t.refuse(
                        KIND,
                        "lr_scheduler_kwargs says where it ends: give one of min_lr and min_lr_rate",
                    );
                    return;
                }
            };
            ("cosine", min_ratio, &["min_lr", "min_lr_rate", "num_cycles"])
        }
        "polynomial" if is_or_absent("power", 1.0) => {
            ("linear", option("lr_end").unwrap_or(1e-7) / rate, &["lr_end", "power"])
        }
        "cosine" | "cosine_with_restarts" | "cosine_with_min_lr" => {
            t.refuse(OPTIONS, "the learning rate falls along half a cosine, once: leave num_cycles out");
            return;
        }
        "polynomial" => {
            t.refuse(OPTIONS, "the learning rate falls in a line: a power of 1 alone can be followed");
            return;
        }
        _ => {
            t.refuse(KIND, THERE_ARE);
            return;
        }
    };
    if let Some(name) = options.keys().find(|name| !known.contains(&name.as_str())) {
        t.refuse(OPTIONS, format!("the schedule `{kind}` has no option `{name}`"));
        return;
    }
    if t.first_given(&[KIND, OPTIONS]).is_some() {
        t.set(&[KIND, OPTIONS], "train.lr_schedule.kind", ours);
    }
    if min_ratio != 0.0 {
        // A quotient of two decimals, to as many digits as they have.
        let min_ratio = (min_ratio * 1e12).round() / 1e12;
        t.set(&[OPTIONS, KIND], "train.lr_schedule.min_ratio", &min_ratio.to_string());
    }
    t.no_effect(OPTIONS, "it is empty");
    warm_up(t, &kind);
}

fn warm_up(t: &mut Translator, kind: &str) {
    const STEPS: &str = "warmup_steps";
    const RATIO: &str = "warmup_ratio";
    if kind == "constant" {
        for key in [STEPS, RATIO] {
            t.no_effect(
                key,
                "the schedule `constant` has no warm-up in transformers: constant_with_warmup has",
            );
        }
        return;
    }
    // Steps below 1 are a share of the run, as the older key is.
    let (key, warmup) = match t.number(STEPS) {
        Some(steps) if steps > 0.0 => (STEPS, steps),
        _ => (RATIO, t.number(RATIO).unwrap_or(0.0)),
    };
    if warmup >= 1.0 {
        steps_of_ours(t, &[key], "train.lr_schedule.warmup_steps", warmup);
    } else if warmup > 0.0 {
        match t.number("max_steps").filter(|&total| total > 0.0) {
            Some(total) => {
                steps_of_ours(t, &[key], "train.lr_schedule.warmup_steps", (warmup * total).ceil());
            }
            None => {
                t.refuse(key, "the number of steps is not known: give max_steps, or the warm-up in steps");
            }
        }
    } else if let Some(key) = t.first_given(&[STEPS, RATIO]) {
        t.set(&[&key], "train.lr_schedule.warmup_steps", "0");
    }
    t.no_effect(
        RATIO,
        if warmup > 0.0 { "the number of warm-up steps is given" } else { "there is no warm-up" },
    );
    t.no_effect(STEPS, "warmup_ratio is given");
}
