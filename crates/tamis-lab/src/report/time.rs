//! How the time was spent: stages of every step, and their sums.

use std::collections::BTreeMap;

use serde::Serialize;

use super::charts::Charts;
use super::places::Places;
use super::run::Run;
use crate::chart::Heading;
use crate::chart::number::figure as number;
use crate::chart::stack::{Stack, StackLayer};

/// Stages with a layer of their own; the others are one.
const MOST_STAGES: usize = 7;
/// Parts of stages, which a sum must not count twice.
const PARTS: [&str; 2] = ["wire", "rank_idle"];
const PREFIX: &str = "timing_s/";

pub(crate) fn duration(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "–".to_owned();
    }
    if seconds > 0.0 && seconds < 0.1 {
        return format!("{} ms", number(1e3 * seconds));
    }
    if seconds < 60.0 {
        return format!("{} s", number(seconds));
    }
    let whole = seconds.round() as u64;
    let (hours, minutes) = (whole / 3600, whole / 60 % 60);
    if hours == 0 {
        format!("{minutes} min {:02} s", whole % 60)
    } else {
        format!("{hours} h {minutes:02} min")
    }
}

fn words(stage: &str) -> String {
    match stage {
        "gen" => "generation",
        "gen_max" => "greedy completions",
        "ref" => "reference",
        "old_log_prob" => "old log-probabilities",
        "adv" => "advantages",
        "update_actor" => "update",
        "update_critic" => "critic's update",
        "testing" => "validation",
        "save_checkpoint" => "checkpoint",
        other => return other.replace('_', " "),
    }
    .to_owned()
}

/// Stages of a run and their sums, the longest first.
fn stages(run: &Run) -> Vec<(String, f64)> {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for row in &run.series.rows {
        for (name, value) in &row.values {
            let Some(stage) = name.strip_prefix(PREFIX) else { continue };
            if stage != "step" && !stage.contains('/') && !PARTS.contains(&stage) {
                *sums.entry(stage).or_default() += value;
            }
        }
    }
    let mut sums: Vec<(String, f64)> = sums.into_iter().map(|(stage, sum)| (stage.to_owned(), sum)).collect();
    sums.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
    sums.retain(|(_, sum)| *sum > 0.0);
    sums
}

/// Stages as stacked columns, and a table of their sums, of each run.
pub(crate) fn of_runs(runs: &[Run], charts: &mut Charts) {
    for (place, run) in runs.iter().enumerate() {
        let stages = stages(run);
        if !stages.is_empty() {
            of_run(run, place, &stages, runs.len() == 1, charts);
        }
    }
}

fn of_run(run: &Run, place: usize, stages: &[(String, f64)], is_one: bool, charts: &mut Charts) {
    let places = Places::of_run(run);
    let steps = places.gather(run.values("timing_s/step"));
    let values = |stage: &str| -> Vec<f64> {
        let name = format!("{PREFIX}{stage}");
        places
            .gather(run.values(&name))
            .iter()
            .map(|point| point.map_or(f64::NAN, |point| point.value))
            .collect()
    };
    let sum = |columns: &[Vec<f64>], place: usize| -> f64 {
        columns.iter().filter_map(|column| column.get(place)).filter(|value| !value.is_nan()).sum()
    };
    let columns: Vec<Vec<f64>> = stages.iter().map(|(stage, _)| values(stage)).collect();
    let (shown, others) = columns.split_at(columns.len().min(MOST_STAGES));
    let mut layers: Vec<StackLayer> = shown
        .iter()
        .zip(stages)
        .enumerate()
        .map(|(number, (sizes, (stage, _)))| StackLayer {
            name: words(stage),
            fill: format!("s{number}"),
            sizes: sizes.clone(),
        })
        .collect();
    if !others.is_empty() {
        let sizes = (0..places.count).map(|place| sum(others, place)).collect();
        layers.push(StackLayer { name: "other stages".to_owned(), fill: "s8".to_owned(), sizes });
    }
    let rest = |place: usize| {
        let step = steps.get(place).copied().flatten().map_or(f64::NAN, |point| point.value);
        (step - sum(&columns, place)).max(0.0)
    };
    let rests: Vec<f64> = (0..places.count).map(rest).collect();
    let total = run.sum("timing_s/step");
    let measured: f64 = stages.iter().map(|(_, sum)| sum).sum();
    if total.is_some_and(|total| total > measured) {
        layers.push(StackLayer { name: "between stages".to_owned(), fill: "s9".to_owned(), sizes: rests });
    }
    let title = if is_one {
        "Time of a step by stage".to_owned()
    } else {
        format!("Time of a step by stage: {}", run.name)
    };
    let id = format!("time{place}");
    let named: Vec<String> =
        stages.iter().map(|(stage, sum)| format!("{}: {} in all", words(stage), duration(*sum))).collect();
    let description = format!("{}.", named.join("; "));
    let class = format!("r{place}");
    let overlap = total
        .filter(|total| measured > 1.02 * total)
        .map_or("", |_| " Stages ran side by side: together they are longer than the steps.");
    let (about, unit) = (format!("Seconds.{overlap}"), "step".to_owned());
    let metrics = vec!["timing_s/…".to_owned()];
    let heading = Heading { id, class, title, description, unit, about, metrics, warning: "" };
    let (width, places) = (places.width as f64, places.named());
    let stack = Stack { layers: &layers, places: &places, width, whole: 0.0, run: place };
    // The table of sums has what a chart of equal columns would show.
    if stack.constant().is_none() {
        charts.drawn.push(stack.chart(heading));
    }
    charts.times.push(times(run, place, stages, total.unwrap_or(measured), is_one));
}

/// The sums of the stages of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Times {
    run: usize,
    title: String,
    /// Stage, its time, and its share.
    rows: Vec<(String, String, f64)>,
    total: String,
    /// Parts of stages.
    within: String,
}

fn times(run: &Run, place: usize, stages: &[(String, f64)], total: f64, is_one: bool) -> Times {
    let measured: f64 = stages.iter().map(|(_, sum)| sum).sum();
    let mut sums: Vec<(String, f64)> = stages.iter().map(|(stage, sum)| (words(stage), *sum)).collect();
    if total > measured * 1.001 {
        sums.push(("between stages".to_owned(), total - measured));
    }
    let row = |(name, sum): (String, f64)| (name, duration(sum), sum / total.max(f64::MIN_POSITIVE));
    let part = |name: &str| {
        let stage = name.strip_prefix(PREFIX)?;
        let sum = run.sum(name).filter(|sum| *sum > 0.0)?;
        (stage.contains('/') || PARTS.contains(&stage)).then(|| format!("{stage}: {}", duration(sum)))
    };
    Times {
        run: place,
        title: if is_one { "Time in all".to_owned() } else { format!("Time in all: {}", run.name) },
        rows: sums.into_iter().map(row).collect(),
        total: duration(total),
        within: run.series.names().into_iter().filter_map(part).collect::<Vec<_>>().join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_they_are_said() {
        assert_eq!(
            [0.0025, 0.25, 59.0, 61.0, 3725.0, f64::NAN].map(duration),
            ["2.5 ms", "0.25 s", "59 s", "1 min 01 s", "1 h 02 min", "–"]
        );
    }
}
