//! Keys that may change when a run is resumed.

use std::fmt;

use serde_json::Value as Json;

use crate::path::PathText as _;
use crate::render::{flow, json_of};
use crate::schema::{Config, LrScheduleConfig, LrScheduleKind};
use crate::table;
use crate::tree::join;
use tamis_core::setting::{KeySpec, Resume, Shape};

/// A key that differs between the run and its resumption.
#[derive(Debug, Clone, PartialEq)]
pub struct ResumeDifference {
    /// The key.
    pub key: String,
    /// Value in the run.
    pub run: Json,
    /// Value now.
    pub now: Json,
    /// Whether it must not differ.
    pub refused: bool,
}

impl fmt::Display for ResumeDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} in the run, {} now", self.key, flow(&self.run), flow(&self.now))
    }
}

/// Whether `train.total_steps` and `train.total_epochs` may differ when the run is resumed. A decaying
/// learning rate depends on the last step, so changing that would change completed steps.
pub fn length_may_change(run: &Config) -> bool {
    let decays = |schedule: &LrScheduleConfig| schedule.kind != LrScheduleKind::Constant;
    !(decays(&run.train.lr_schedule) || run.has_critic() && decays(&run.critic.lr_schedule))
}

/// Every key that differs, in the order of the table; `refused` are those that completed steps depend on.
pub fn resume_differences(run: &Config, now: &Config) -> Vec<ResumeDifference> {
    let mut differences = Vec::new();
    compare("", table::root(), Resume::Fixed, &json_of(run), &json_of(now), &mut differences);
    if !length_may_change(run) {
        for difference in &mut differences {
            if matches!(difference.key.as_str(), "train.total_steps" | "train.total_epochs") {
                difference.refused = true;
            }
        }
    }
    differences
}

fn compare(
    path: &str,
    shape: &Shape,
    resume: Resume,
    run: &Json,
    now: &Json,
    differences: &mut Vec<ResumeDifference>,
) {
    if run == now {
        return;
    }
    match (shape, run, now) {
        (Shape::Section { keys, .. }, Json::Object(_), Json::Object(_)) => {
            compare_keys(path, keys, run, now, differences);
            return;
        }
        (Shape::Nullable(inner), run, now) if !run.is_null() && !now.is_null() => {
            compare(path, inner, resume, run, now, differences);
            return;
        }
        // A user may have written a relative path there, and a folder may have several paths.
        (Shape::Path(kind), Json::String(run), Json::String(now)) if kind.is_same(run, now) => return,
        (Shape::OneOrMany(inner), Json::Array(old), Json::Array(new)) if old.len() == new.len() => {
            let mut among = Vec::new();
            for (old, new) in old.iter().zip(new) {
                compare(path, inner, resume, old, new, &mut among);
            }
            if among.is_empty() {
                return;
            }
        }
        (Shape::List(inner), Json::Array(old), Json::Array(new))
            if old.len() == new.len() && matches!(**inner, Shape::Tagged { .. } | Shape::Section { .. }) =>
        {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                compare(&format!("{path}[{index}]"), inner, resume, old, new, differences);
            }
            return;
        }
        (Shape::Tagged { common, variants, .. }, _, _) if run.get("kind") == now.get("kind") => {
            compare_keys(path, common, run, now, differences);
            for variant in
                variants.iter().filter(|variant| run.get("kind").is_some_and(|kind| kind == variant.name))
            {
                compare_keys(path, &variant.keys, run, now, differences);
            }
            return;
        }
        _ => {}
    }
    let refused = resume == Resume::Fixed;
    differences.push(ResumeDifference { key: path.to_owned(), run: run.clone(), now: now.clone(), refused });
}

fn compare_keys(
    path: &str,
    keys: &[KeySpec],
    run: &Json,
    now: &Json,
    differences: &mut Vec<ResumeDifference>,
) {
    for spec in keys {
        let value = |config: &Json| config.get(spec.name).cloned().unwrap_or(Json::Null);
        let full = join(path, spec.name);
        compare(&full, &(spec.shape)(), spec.resume, &value(run), &value(now), differences);
    }
}
