//! verl's `rollout_correction`.

use crate::translator::Translator;

/// Statistics for rejection, with one threshold each or one for all.
pub(crate) fn rejections(names_key: &str, thresholds_key: &str, t: &mut Translator) {
    let (Some(names), Some(thresholds)) = (t.text(names_key), t.text(thresholds_key)) else { return };
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    let thresholds: Vec<&str> = thresholds.split(',').map(str::trim).collect();
    if thresholds.len() != 1 && thresholds.len() != names.len() {
        let reason = format!("{} thresholds for {} statistics", thresholds.len(), names.len());
        t.refuse(thresholds_key, reason);
        return;
    }
    let items: Vec<String> = (names.iter().zip(thresholds.iter().cycle()))
        .map(|(name, threshold)| format!("{{statistic: {name}, threshold: '{threshold}'}}"))
        .collect();
    t.set(&[names_key], "objective.correction.rejections", &format!("[{}]", items.join(", ")));
    t.part_of(thresholds_key, names_key);
}
