//! verl's `rollout_correction`.

use crate::key::Rule;
use crate::translator::Translator;

/// Weights and rejections by the ratio of the policy that trains to the one that sampled.
pub(super) const CORRECTION: Rule = Rule::new(2, "correction", correction);

/// verl's `rollout_correction`.
fn correction(t: &mut Translator) {
    const PREFIX: &str = "algorithm.rollout_correction.";
    const CAP: &str = "actor_rollout_ref.actor.tis_imp_ratio_cap";
    let of = |name: &str| format!("{PREFIX}{name}");
    let (weights, limit, normalise) =
        (of("rollout_is"), of("rollout_is_threshold"), of("rollout_is_batch_normalize"));
    let (rejections, bounds) = (of("rollout_rs"), of("rollout_rs_threshold"));
    let (bypass, loss) = (of("bypass_mode"), of("loss_type"));
    let given =
        |t: &Translator, key: &str| t.text(key).filter(|text| !matches!(text.as_str(), "null" | "None" | ""));
    let bypasses = t.flag(&bypass, false);
    let level = given(t, &weights);
    let is_plain = given(t, &loss).as_deref() == Some("reinforce");
    if bypasses {
        if is_plain {
            if level.is_none() {
                t.refuse(
                    &loss,
                    "the plain gradient is weighted by `rollout_is`: set it to token or sequence",
                );
                return;
            }
            t.set(&[&bypass], "objective.correction.preset", "bypass_pg_is");
            t.set(&[&loss], "objective.loss.kind", "reinforce");
        } else {
            t.set(&[&bypass], "objective.correction.preset", "bypass_ppo_clip");
            t.no_effect(&loss, "ppo_clip is what the bypass does");
            let reason = "in bypass_mode with ppo_clip the ratio itself is to the policy that sampled, and verl applies no weights";
            for key in [&weights, &limit, &normalise] {
                t.no_effect(key, reason);
            }
        }
    } else if t.find(&bypass).is_some() {
        t.no_effect(
            &bypass,
            "the policy at the start of the step is computed anew where it is not the one that sampled",
        );
    }
    if let Some(level) = level.filter(|_| !bypasses || is_plain) {
        if !matches!(level.as_str(), "token" | "sequence") {
            t.bad_value(&weights, "token, sequence or null");
            return;
        }
        let limit_text = given(t, &limit).unwrap_or_else(|| "2.0".to_owned());
        let limits = match limit_text.split_once('_') {
            Some((min, max)) => format!("outside: mask, min: {min}, max: {max}"),
            None => format!("outside: truncate, max: {limit_text}"),
        };
        let normalised = t.flag(&normalise, false);
        let text = format!("{{level: {level}, {limits}, batch_normalize: {normalised}}}");
        t.set(&[&weights], "objective.correction.weights", &text);
        t.part_of(&limit, &weights);
        t.part_of(&normalise, &weights);
    }
    // The older key of the same weights, which caps each token's.
    let cap = t.number(CAP).filter(|cap| *cap > 0.0);
    if let Some(cap) = cap.filter(|_| !t.has_set("objective.correction.weights") && !bypasses) {
        let text = format!("{{level: token, outside: truncate, max: {cap}}}");
        t.set(&[CAP], "objective.correction.weights", &text);
    }
    t.no_effect(
        CAP,
        if cap.is_some() {
            "rollout_correction, which replaced it, is given"
        } else {
            "it caps where it is above 0"
        },
    );
    if let Some(names) = given(t, &rejections) {
        let Some(thresholds) = given(t, &bounds) else {
            t.refuse(&rejections, "it has no threshold: set rollout_rs_threshold");
            return;
        };
        let names: Vec<&str> = names.split(',').map(str::trim).collect();
        let thresholds: Vec<&str> = thresholds.split(',').map(str::trim).collect();
        if thresholds.len() != 1 && thresholds.len() != names.len() {
            t.refuse(&bounds, format!("{} thresholds for {} statistics", thresholds.len(), names.len()));
            return;
        }
        let items: Vec<String> = names
            .iter()
            .enumerate()
            .filter_map(|(i, name)| {
                let threshold = thresholds.get(i).or(thresholds.first())?;
                Some(format!("{{statistic: {name}, threshold: '{threshold}'}}"))
            })
            .collect();
        t.set(&[&rejections], "objective.correction.rejections", &format!("[{}]", items.join(", ")));
        t.part_of(&bounds, &rejections);
    }
    for (key, reason) in [
        (&weights, "null weighs nothing"),
        (&limit, "rollout_is is not set: nothing is weighed"),
        (&normalise, "rollout_is is not set: nothing is weighed"),
        (&rejections, "null rejects nothing"),
        (&bounds, "rollout_rs is not set: nothing is rejected"),
        (&loss, "verl reads it in bypass_mode alone"),
    ] {
        t.no_effect(key, reason);
    }
}
