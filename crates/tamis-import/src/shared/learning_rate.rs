//! Learning-rate schedules of verl and EasyR1.

use crate::translator::Translator;

/// Translates a learning-rate schedule. The arguments are the keys for the warm-up steps, their share, the
/// final rate and the number of steps, and the names of the kinds.
pub(crate) fn schedule(
    ours: &str,
    [steps, ratio, min_ratio, total]: [&str; 4],
    kinds: &[&str],
    t: &mut Translator,
) {
    let (warmup_key, kind_key) = (format!("{ours}.warmup_steps"), format!("{ours}.kind"));
    let warmup = t.number(steps).filter(|&steps| steps >= 0.0);
    if let Some(warmup) = warmup {
        t.set(&[steps], &warmup_key, &warmup.to_string());
        t.no_effect(ratio, "the number of warm-up steps is given");
    } else {
        t.no_effect(steps, "-1 leaves it to the ratio");
        let share = t.number(ratio).unwrap_or(0.0);
        let total = t.number(total).filter(|&total| total > 0.0);
        if share > 0.0 {
            match total {
                Some(total) => {
                    let steps = (share * total).ceil();
                    t.set(&[ratio], &warmup_key, &steps.to_string());
                }
                None => t.refuse(
                    ratio,
                    "the number of steps is not known, and with a filter it cannot be: give the warm-up in steps",
                ),
            }
        }
        t.no_effect(ratio, "there is no warm-up");
    }
    for key in kinds {
        match t.text(key).as_deref() {
            Some("constant" | "constant_with_warmup") => t.set(&[key], &kind_key, "constant"),
            Some("cosine") => t.set(&[key], &kind_key, "cosine"),
            Some("linear") => t.set(&[key], &kind_key, "linear"),
            Some(_) => t.refuse(key, "the schedules are constant, linear and cosine"),
            None => t.no_effect(key, "null leaves the default"),
        }
    }
    match t.text(min_ratio) {
        Some(value) => t.set(&[min_ratio], &format!("{ours}.min_ratio"), &value),
        None => t.no_effect(min_ratio, "null leaves the default"),
    }
}
