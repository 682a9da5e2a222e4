//! Loggers.

use crate::translator::Translator;
use tamis_config::render::scalar;

/// The loggers; `always` are added to the named ones.
pub(crate) fn loggers(t: &mut Translator, key: &str, always: &[&'static str]) {
    let Some(given) = t.find(key) else { return };
    let names: Vec<String> = match given.node.to_json() {
        serde_json::Value::Array(items) => {
            items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned)).collect()
        }
        serde_json::Value::String(text) => text.split(',').map(|name| name.trim().to_owned()).collect(),
        _ => Vec::new(),
    };
    // The loggers of other systems group runs by project, which is a folder here. TRL's is only read by
    // Trackio.
    let project = t.text("trainer.project_name");
    let project_of_trl = t.text("project");
    let in_project = |kind: &str, place: &str, project: Option<&str>| match project {
        Some(project) => format!("{{kind: {kind}, {place}: {}}}", scalar(project)),
        None => kind.to_owned(),
    };
    // The journal of metrics is always written, because resume and reports read it.
    let mut ours: Vec<String> = always.iter().map(|&name| name.to_owned()).collect();
    let mut missing = Vec::new();
    for name in names {
        let logger = match name.as_str() {
            "console" | "tensorboard" => name,
            "wandb" => in_project("wandb", "project", project.as_deref()),
            "mlflow" => in_project("mlflow", "experiment", project.as_deref()),
            "trackio" => {
                t.part_of("project", key);
                in_project("trackio", "project", project_of_trl.as_deref().or(project.as_deref()))
            }
            "file" | "none" => continue,
            _ => {
                missing.push(name);
                continue;
            }
        };
        if !ours.contains(&logger) {
            ours.push(logger);
        }
    }
    ours.push("jsonl".to_owned());
    t.set(&[key], "run.loggers", &format!("[{}]", ours.join(", ")));
    if !missing.is_empty() {
        let remark = format!(
            "{} is not there yet; metrics.jsonl holds the same figures, and there are tensorboard, wandb, mlflow and \
             trackio",
            missing.join(", ")
        );
        t.remark(key, &remark);
    }
}
