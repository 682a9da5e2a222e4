//! The head of a page: what was run, how far it is, and the figures that most look for.

use std::fmt::Write as _;

use tamis_core::figure::percent;

use super::groups::StepGroups;
use super::run::{Run, state_name};
use super::settings::unlike_rewards;
use super::time::duration;
use super::verdict;
use crate::chart::number::figure as number;
use crate::compare::measure::{Choice, standard_error};
use crate::html::{escape, head, row, text};
use crate::monitor::summary::RunState;

/// A fact about a run: its name, and as HTML its value.
type Fact = (&'static str, String);

/// First and last value of a metric, where it has several the best too.
fn course(run: &Run, name: &str, is_share: bool) -> Option<String> {
    let values: Vec<(u64, f64)> = run.values(name).collect();
    let (first, last) = (values.first()?, values.last()?);
    let shown = |value: f64| if is_share { percent(value) } else { number(value) };
    if values.len() == 1 {
        return Some(shown(last.1));
    }
    let best = values.iter().map(|(_, value)| *value).fold(f64::NEG_INFINITY, f64::max);
    let mut text = format!("{} → <strong>{}</strong>", shown(first.1), shown(last.1));
    if best > last.1 && best > first.1 {
        let _ = write!(text, " <small>(best {})</small>", shown(best));
    }
    Some(text)
}

fn state(run: &Run) -> String {
    let done = run.last_step.unwrap_or(0);
    let steps = match run.settings.number("train.total_steps") {
        Some(total) => format!("{done} of {total} steps"),
        None if done == 1 => "1 step".to_owned(),
        None => format!("{done} steps"),
    };
    if run.state == RunState::Unknown { steps } else { format!("{}, {steps}", state_name(run.state)) }
}

fn when(time: &str) -> String {
    let shown = time.get(..16).unwrap_or(time).replacen('T', " ", 1);
    format!("<time datetime=\"{}\">{} UTC</time>", escape(time), escape(&shown))
}

fn model(run: &Run) -> Option<String> {
    let get = |key: &str| run.settings.get(key).filter(|value| *value != "null");
    if let Some(path) = get("model.path") {
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
        return Some(text(name));
    }
    let architecture = get("model.init.architecture")?;
    let size = get("model.init.hidden_size")
        .map_or_else(String::new, |size| format!(", hidden size {}", text(size)));
    let layers =
        get("model.init.num_layers").map_or_else(String::new, |layers| format!(", {} layers", text(layers)));
    Some(format!("{}{layers}{size}, from random weights", text(architecture)))
}

fn facts(run: &Run) -> Vec<Fact> {
    let mut facts: Vec<Fact> = vec![("State", escape(&state(run)))];
    let mut add = |name: &'static str, value: Option<String>| facts.extend(value.map(|value| (name, value)));
    add("Trainer", run.other.as_ref().map(|other| text(other.system())));
    add(
        "Validation",
        Choice::Validation.name(&run.series).and_then(|name| {
            let (step, last) = run.values(&name).last()?;
            let error = standard_error(&run.series, &name, step, last);
            let error = error.map_or_else(String::new, |error| format!(" ± {}", number(error)));
            Some(course(run, &name, false)? + &error)
        }),
    );
    add("Reward, all generated", course(run, "all/critic/score/mean", false));
    add("Reward, trained", course(run, "critic/score/mean", false));
    add("Pass rate, all generated", course(run, "all/pass_rate", true));
    let sum = |name: &str| run.sum(name);
    let counted = sum("trajectories/generated").or_else(|| {
        let in_files = run.groups.steps.iter().map(StepGroups::num_trajectories).sum::<u64>();
        (in_files > 0).then_some(in_files as f64)
    });
    add(
        if run.other.is_some() { "In its files" } else { "Generated" },
        counted.map(|count| {
            let groups = sum("groups/generated")
                .map_or_else(String::new, |groups| format!(" in {} groups", number(groups)));
            format!("{} trajectories{groups}", number(count))
        }),
    );
    add(
        "Trained on",
        sum("trajectories/trained")
            .zip(sum("trajectories/generated"))
            .map(|(trained, generated)| format!("{} of them", percent(trained / generated))),
    );
    add("Tokens generated", sum("tokens/generated").map(number));
    let seconds = ["timing_s/step", "perf/time_per_step", "step_time"].into_iter().find_map(sum);
    add("Time in steps", seconds.map(duration));
    add("Began", run.log.as_ref().map(|log| when(&log.times.0)));
    add("Last line of its log", run.log.as_ref().map(|log| when(&log.times.1)));
    add("Model", model(run));
    let get = |key: &str| run.settings.get(key).filter(|value| *value != "null").map(text);
    add("Preset", get("preset"));
    add(
        "Filter",
        get("filter.kind").map(|kind| {
            let metric = get("filter.metric").map_or_else(String::new, |metric| format!(" on {metric}"));
            format!("{kind}{metric}")
        }),
    );
    add("Schedule", get("schedule.mode"));
    add(
        "Batch",
        get("data.train_batch_size").map(|batch| {
            let members = get("rollout.n").map_or_else(String::new, |n| format!(" × {n} samples"));
            format!("{batch} groups{members}")
        }),
    );
    add("Seed", get("run.seed"));
    facts
}

/// The facts about every run: a list for one, a table for several, which is read across.
pub(crate) fn of_runs(runs: &[Run]) -> String {
    let mut html = String::new();
    for run in runs {
        if let Some(verdict) = verdict::of_run(run) {
            let of = if runs.len() == 1 { String::new() } else { format!("{}: ", escape(&run.name)) };
            let _ = write!(html, "<p class=\"verdict\"><strong>{of}</strong>{}</p>", text(&verdict));
        }
    }
    if let [run] = runs {
        html.push_str("<dl class=\"facts\">");
        for (name, value) in facts(run) {
            let _ = write!(html, "<div><dt>{name}</dt><dd>{value}</dd></div>");
        }
        html.push_str("</dl>");
    } else {
        let all: Vec<Vec<Fact>> = runs.iter().map(facts).collect();
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in all.iter().flatten() {
            if !names.contains(name) {
                names.push(name);
            }
        }
        let mut cells = vec![String::new()];
        cells.extend(runs.iter().map(|run| escape(&run.name)));
        let _ = write!(
            html,
            "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Runs\"><table class=\"runs\">{}",
            head(&cells)
        );
        for name in names {
            let mut cells = vec![name.to_owned()];
            for facts in &all {
                let found = facts.iter().find(|(known, _)| *known == name);
                cells.push(found.map_or_else(|| "–".to_owned(), |(_, value)| value.clone()));
            }
            html.push_str(&row(&cells));
        }
        html.push_str("</table></div>");
    }
    for (place, run) in runs.iter().enumerate() {
        if let (RunState::Failed, Some(error)) =
            (run.state, run.log.as_ref().and_then(|log| log.error.as_ref()))
        {
            let of = if runs.len() == 1 { String::new() } else { format!("{}: ", escape(&run.name)) };
            let _ = write!(
                html,
                "<details class=\"ended r{place}\" open><summary>{of}what it ended with</summary><pre>{}</pre></details>",
                text(error)
            );
        }
    }
    let mut notes: Vec<String> = runs
        .iter()
        .flat_map(|run| {
            run.notes.iter().map(move |note| {
                if runs.len() == 1 {
                    text(note)
                } else {
                    format!("<strong>{}</strong>: {}", escape(&run.name), text(note))
                }
            })
        })
        .collect();
    let unlike = unlike_rewards(runs.iter().map(|run| &run.settings));
    if !unlike.is_empty() {
        let keys: Vec<String> = unlike.iter().map(|key| format!("<code>{}</code>", escape(key))).collect();
        notes.push(format!(
            "The runs have different rewards ({}): their scores are not comparable.",
            keys.join(", ")
        ));
    }
    if !notes.is_empty() {
        let _ = write!(
            html,
            "<div class=\"notes\" role=\"note\"><h3>To know first</h3><ul><li>{}</ul></div>",
            notes.join("<li>")
        );
    }
    html
}
