//! The head of a page: the run, its progress, and the figures that most readers want.

use serde::Serialize;
use tamis_core::figure::{counted, percent};

use super::groups::StepGroups;
use super::run::{Run, state_name};
use super::time::duration;
use crate::chart::number::figure as number;
use crate::compare::measure::{Choice, standard_error};
use crate::monitor::summary::WatchedState;

/// A fact about a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Fact {
    value: String,
    /// The value at first.
    before: Option<String>,
    /// The best value, if it is neither of them.
    best: Option<String>,
    /// Its standard error.
    error: Option<String>,
    /// The value in a format for machines, if it is a time.
    time: Option<String>,
}

impl From<String> for Fact {
    fn from(value: String) -> Self {
        Self { value, ..Self::default() }
    }
}

/// First and last value of a metric, and the best if it is another.
fn course(run: &Run, name: &str, is_share: bool) -> Option<Fact> {
    let values: Vec<(u64, f64)> = run.values(name).collect();
    let (first, last) = (values.first()?, values.last()?);
    let shown = |value: f64| if is_share { percent(value) } else { number(value) };
    let best = values.iter().map(|(_, value)| *value).fold(f64::NEG_INFINITY, f64::max);
    Some(Fact {
        value: shown(last.1),
        before: (values.len() > 1).then(|| shown(first.1)),
        best: (best > last.1 && best > first.1).then(|| shown(best)),
        ..Fact::default()
    })
}

fn state(run: &Run) -> String {
    let done = run.last_step.unwrap_or(0);
    let steps = match run.settings.number("train.total_steps") {
        Some(total) => format!("{done} of {total} steps"),
        None => counted(done, "step"),
    };
    if run.state == WatchedState::Unknown { steps } else { format!("{}, {steps}", state_name(run.state)) }
}

fn when(time: &str) -> Fact {
    let shown = time.get(..16).unwrap_or(time).replacen('T', " ", 1);
    Fact { time: Some(time.to_owned()), ..format!("{shown} UTC").into() }
}

fn model(run: &Run) -> Option<String> {
    let get = |key: &str| run.settings.get(key).filter(|value| *value != "null");
    if let Some(path) = get("model.path") {
        return Some(path.trim_end_matches('/').rsplit('/').next().unwrap_or(path).to_owned());
    }
    let architecture = get("model.init.architecture")?;
    let size = get("model.init.hidden_size").map_or_else(String::new, |size| format!(", hidden size {size}"));
    let layers = get("model.init.num_layers")
        .map_or_else(String::new, |layers| format!(", {}", counted(layers, "layer")));
    Some(format!("{architecture}{layers}{size}, from random weights"))
}

fn facts(run: &Run) -> Vec<(&'static str, Fact)> {
    let mut facts: Vec<(&str, Fact)> = vec![("State", state(run).into())];
    let mut add = |name: &'static str, fact: Option<Fact>| facts.extend(fact.map(|fact| (name, fact)));
    add("Trainer", run.other.as_ref().map(|other| other.system().to_owned().into()));
    add(
        "Validation",
        Choice::Validation.name(&run.series).and_then(|name| {
            let (step, last) = run.values(&name).last()?;
            let error = standard_error(&run.series, &name, step, last);
            Some(Fact { error: error.map(number), ..course(run, &name, false)? })
        }),
    );
    add("Reward, all generated", course(run, "all/critic/score/mean", false));
    add("Reward, trained", course(run, "critic/score/mean", false));
    add("Pass rate, all generated", course(run, "all/pass_rate", true));
    let sum = |name: &str| run.sum(name);
    let trajectories = sum("trajectories/generated").or_else(|| {
        let in_files = run.groups.steps.iter().map(StepGroups::num_trajectories).sum::<u64>();
        (in_files > 0).then_some(in_files as f64)
    });
    add(
        if run.other.is_some() { "In its files" } else { "Generated" },
        trajectories.map(|count| {
            let groups = sum("groups/generated")
                .map_or_else(String::new, |groups| format!(" in {}", counted(number(groups), "group")));
            (counted(number(count), "trajectory") + &groups).into()
        }),
    );
    add(
        "Trained on",
        sum("trajectories/trained")
            .zip(sum("trajectories/generated"))
            .map(|(trained, generated)| format!("{} of them", percent(trained / generated)).into()),
    );
    add("Tokens generated", sum("tokens/generated").map(|count| number(count).into()));
    let seconds = ["timing_s/step", "perf/time_per_step", "step_time"].into_iter().find_map(sum);
    add("Time in steps", seconds.map(|seconds| duration(seconds).into()));
    add("Began", run.log.as_ref().map(|log| when(&log.times.0)));
    add("Last line of its log", run.log.as_ref().map(|log| when(&log.times.1)));
    add("Model", model(run).map(Fact::from));
    let get = |key: &str| run.settings.get(key).filter(|value| *value != "null").map(str::to_owned);
    let mut add_text = |name: &'static str, text: Option<String>| add(name, text.map(Fact::from));
    add_text("Preset", get("preset"));
    add_text(
        "Filter",
        get("filter.kind").map(|kind| {
            let metric = get("filter.metric").map_or_else(String::new, |metric| format!(" on {metric}"));
            format!("{kind}{metric}")
        }),
    );
    add_text("Schedule", get("schedule.mode"));
    add_text(
        "Batch",
        get("data.train_batch_size").map(|batch| {
            let members =
                get("rollout.n").map_or_else(String::new, |n| format!(" × {}", counted(n, "sample")));
            format!("{}{members}", counted(batch, "group"))
        }),
    );
    add_text("Seed", get("run.seed"));
    facts
}

/// Facts by their names, each for every run.
pub(crate) fn of_runs(runs: &[Run]) -> Vec<(&'static str, Vec<Option<Fact>>)> {
    let mut rows: Vec<(&str, Vec<Option<Fact>>)> = Vec::new();
    for (place, run) in runs.iter().enumerate() {
        for (name, fact) in facts(run) {
            let known = rows.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                rows.push((name, runs.iter().map(|_| None).collect()));
                rows.len() - 1
            });
            rows[known].1[place] = Some(fact);
        }
    }
    rows
}
