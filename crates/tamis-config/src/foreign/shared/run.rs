//! Checkpoints, loggers, the run folder and the cut of sampling.

use crate::foreign::translator::{Translator, limit_text, quote};

/// What is promised of two runs without being asked for.
pub(in crate::foreign) const EQUAL_RUNS: &str = "two runs of one `run.seed` are equal bit for bit on the native engine, and where \
    PyTorch learns from it on a CPU; servers and GPUs promise nothing of the kind, with this key or without";

/// Number of checkpoints to keep: null and numbers that are not above 0 keep all.
pub(in crate::foreign) fn keep_last(t: &mut Translator, key: &str) {
    if t.find(key).is_some() {
        let limit = t.number(key).unwrap_or(0.0);
        t.set(&[key], "checkpoint.keep_last", &limit_text(limit));
    }
}

/// Top-k, which other systems switch off with -1.
pub(in crate::foreign) fn top_k(t: &mut Translator, key: &str) {
    if let Some(value) = t.number(key) {
        t.set(&[key], "rollout.top_k", &value.max(0.0).to_string());
    }
    t.no_effect(key, "null leaves the default");
}

/// The loggers; `always` are added to those that are named.
pub(in crate::foreign) fn loggers(t: &mut Translator, key: &str, always: &[&'static str]) {
    let Some(given) = t.find(key) else { return };
    let names: Vec<String> = match given.node.to_json() {
        serde_json::Value::Array(items) => {
            items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned)).collect()
        }
        serde_json::Value::String(text) => text.split(',').map(|name| name.trim().to_owned()).collect(),
        _ => Vec::new(),
    };
    // The loggers of other systems sort runs by the project, which is a folder here.
    let project = t.text("trainer.project_name");
    let in_project = |kind: &str, place: &str| match &project {
        Some(project) => format!("{{kind: {kind}, {place}: {}}}", quote(project)),
        None => kind.to_owned(),
    };
    // The journal of metrics is always written: resume and reports read it.
    let mut ours: Vec<String> = always.iter().map(|&name| name.to_owned()).collect();
    let mut missing = Vec::new();
    for name in names {
        let logger = match name.as_str() {
            "console" | "tensorboard" => name,
            "wandb" => in_project("wandb", "project"),
            "mlflow" => in_project("mlflow", "experiment"),
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
            "{} is not there yet; metrics.jsonl holds the same figures, and there are tensorboard, wandb and mlflow",
            missing.join(", ")
        );
        t.remark(key, &remark);
    }
}

/// verl's and EasyR1's names of the project and the experiment.
pub(in crate::foreign) fn names(t: &mut Translator) {
    if let Some(project) = t.text("trainer.project_name") {
        t.set(&["trainer.project_name"], "run.dir", &quote(&format!("runs/{project}")));
    }
    if let Some(name) = t.text("trainer.experiment_name") {
        t.set(&["trainer.experiment_name"], "run.name", &quote(&name));
    }
}
