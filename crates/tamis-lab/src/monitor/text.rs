//! A summary as lines of text. The terminal view shows the same.

use std::time::Duration;

use tamis_core::figure::{counted, fixed, percent, short};
use tamis_run::log::progress::duration;

use super::summary::{BatchFigures, Course, LastMaxMean, WatchedRun, WatchedState};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Largest number of values in the small line of a text.
const SPARK: usize = 32;

/// A name and its text.
pub type Row = (&'static str, String);

/// Four lines about the generated batches.
pub fn batch_lines(figures: &BatchFigures) -> [String; 4] {
    let unknown = || "not known".to_owned();
    let kept = figures.total_kept.map_or_else(unknown, |kept| {
        if figures.is_kept_least { format!("at least {kept}") } else { kept.to_string() }
    });
    [
        format!("Total batches generated: {}", figures.total_batches),
        format!(
            "Average filter rate: {}",
            // With the digits of verl's summary of filter-group lines.
            figures.average_filter_rate.map_or_else(unknown, |rate| format!("{:.2}%", 100.0 * rate))
        ),
        format!("Total kept prompts: {kept}"),
        format!(
            "Average kept per batch: {}",
            figures.average_kept.map_or_else(unknown, |kept| fixed(kept, 1))
        ),
    ]
}

/// The progress of the run in one line.
pub fn headline(summary: &WatchedRun) -> String {
    let mut parts = vec![summary.state.name().to_owned()];
    match (summary.step, summary.total_steps) {
        // Supervised fine-tuning alone has `train.total_steps: 0`, and its steps are updates.
        (Some(step), Some(total)) if total > 0 => parts.push(format!("step {step} of {total}")),
        (Some(step), _) => parts.push(format!("step {step}")),
        (None, _) if summary.num_steps > 0 => parts.push(counted(summary.num_steps, "step")),
        (None, Some(total)) => parts.push(format!("step 0 of {total}")),
        (None, None) => {}
    }
    let is_over =
        matches!(summary.state, WatchedState::Finished | WatchedState::StoppedEarly | WatchedState::Failed);
    if let Some(left) = summary.seconds.left.filter(|_| !is_over) {
        parts.push(format!("{} left", time(left)));
    }
    if let Some(age) = summary.written_ago.filter(|_| !is_over) {
        parts.push(format!("last line {} ago", time(age)));
    }
    parts.join(", ")
}

/// All other facts, by name.
pub fn rows(summary: &WatchedRun) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut add = |name: &'static str, text: Option<String>| rows.extend(text.map(|text| (name, text)));
    // No filter applies to held-out prompts, so this is how good the policy is.
    add(
        "validation",
        summary.validation.as_ref().map(|found| {
            format!(
                "{} → {} (best {}; {})",
                short(found.first),
                short(found.last),
                short(found.most),
                found.metric
            )
        }),
    );
    add("reward", summary.reward.as_ref().map(|reward| course(reward, short)));
    add("pass rate", summary.pass_rate.as_ref().map(|rate| course(rate, percent)));
    add("groups", groups(summary));
    let reasons: Vec<String> = {
        let mut by: Vec<(&String, &u64)> = summary.dropped_by.iter().collect();
        by.sort_by(|one, other| other.1.cmp(one.1).then(one.0.cmp(other.0)));
        by.into_iter().map(|(reason, count)| format!("{count} {}", reason.replace('_', " "))).collect()
    };
    add("dropped", (!reasons.is_empty()).then(|| reasons.join(", ")));
    add(
        "refill",
        summary.batches.map(|batches| format!("{} batches a step{}", fixed(batches.mean, 1), of(batches))),
    );
    add("lag", summary.lag.map(|lag| format!("mean {}{}", fixed(lag.mean, 1), of(lag))));
    add(
        "time",
        summary.seconds.per_step.map(|per_step| {
            let last = summary.seconds.last.map_or_else(String::new, |last| format!(", last {}", time(last)));
            format!("{} a step{last}", time(per_step))
        }),
    );
    add("update", update(summary));
    add(
        "now",
        summary.now.map(|now| {
            let step = now.step.map_or_else(|| "a step".to_owned(), |step| format!("step {step}"));
            let batches = counted(now.batches, "batch");
            let ready = now.ready.map_or_else(String::new, |ready| match now.target {
                Some(target) => format!(", {ready} of {} ready", counted(target, "group")),
                None => format!(", {} ready", counted(ready, "group")),
            });
            let training = if now.is_training { ", training" } else { "" };
            format!("{step}: {batches} generated{ready}{training}")
        }),
    );
    rows
}

/// Notes, warnings, and the error.
pub fn messages(summary: &WatchedRun) -> Vec<Row> {
    let notes = summary.notes.iter().map(|note| ("note", note.clone()));
    let warnings = summary.warnings.iter().rev().take(3).rev().map(|text| ("warning", text.clone()));
    let error = summary.error.iter().flat_map(|error| error.lines()).map(|line| ("error", line.to_owned()));
    notes.chain(warnings).chain(error).collect()
}

/// The whole summary as text.
pub fn text(summary: &WatchedRun) -> String {
    let formats: Vec<&str> = summary.formats.iter().map(|format| format.name()).collect();
    let formats = if formats.is_empty() { String::new() } else { format!(" ({})", formats.join(", ")) };
    let mut lines = vec![format!("{}{formats}: {}", summary.path, headline(summary)), String::new()];
    lines.extend(batch_lines(&summary.batch_figures));
    lines.push(String::new());
    let named = |(name, text): Row| format!("{name:<11}{text}");
    lines.extend(rows(summary).into_iter().chain(messages(summary)).map(named));
    let end = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    lines.truncate(end);
    lines.join("\n") + "\n"
}

fn course(course: &Course, shown: fn(f64) -> String) -> String {
    let small =
        if course.values.len() > 1 { format!("  {}", spark(&course.values, SPARK)) } else { String::new() };
    format!("{} → {} ({}){small}", shown(course.first), shown(course.last), course.over)
}

fn groups(summary: &WatchedRun) -> Option<String> {
    let groups = &summary.groups;
    let mut parts: Vec<String> =
        groups.generated.map(|number| format!("{number} generated")).into_iter().collect();
    if let Some(dropped) = groups.dropped {
        parts.push(format!("{dropped} dropped"));
    }
    if let Some(kept) = groups.kept {
        parts.push(format!("{kept} kept"));
    }
    if let Some(unjudged) = groups.unjudged {
        parts.push(format!("{unjudged} without a verdict yet"));
    }
    for (name, number) in [
        ("trained", groups.trained),
        ("kept when insufficient", groups.kept_when_insufficient),
        ("duplicated", groups.duplicated),
        ("surplus", groups.surplus),
        ("stale", groups.stale),
        ("failed", groups.failed),
        ("aborted", groups.aborted),
    ] {
        parts.extend(number.filter(|number| *number > 0).map(|number| format!("{number} {name}")));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn update(summary: &WatchedRun) -> Option<String> {
    let names = [
        ("entropy", "actor/entropy"),
        ("grad", "actor/grad_norm"),
        ("length", "response_length/mean"),
        ("truncated", "response_length/clip_ratio"),
        ("tokens/s", "perf/throughput"),
        ("sampled/s", "perf/gen_throughput"),
        ("learned/s", "perf/update_throughput"),
        ("MFU", "perf/mfu"),
    ];
    let shown: Vec<String> = names
        .iter()
        .filter_map(|(name, metric)| Some(format!("{name} {}", short(*summary.figures.get(*metric)?))))
        .collect();
    (!shown.is_empty()).then(|| shown.join("  "))
}

fn of(spread: LastMaxMean) -> String {
    format!(", last {}, most {}", fixed(spread.last, 0), fixed(spread.most, 0))
}

/// A duration in the usual units.
pub fn time(seconds: f64) -> String {
    if seconds < 10.0 {
        return format!("{}s", fixed(seconds, 1));
    }
    Duration::try_from_secs_f64(seconds).map_or_else(|_| "long".to_owned(), duration)
}

/// At most so many values: each is the mean of those in its column.
pub fn columns(values: &[f64], columns: usize) -> Vec<f64> {
    let columns = columns.min(values.len()).max(1);
    let mean = |column: usize| {
        let part = values.get(column * values.len() / columns..(column + 1) * values.len() / columns)?;
        (!part.is_empty()).then(|| part.iter().sum::<f64>() / part.len() as f64)
    };
    (0..columns).filter_map(mean).collect()
}

/// The position of each value between the smallest and the largest, from 0 to 1; 0.5 if all are equal.
pub fn shares(values: &[f64]) -> Vec<f64> {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.iter().map(|value| if high > low { (value - low) / (high - low) } else { 0.5 }).collect()
}

/// Values as a row of bars of at most so many columns.
pub fn spark(values: &[f64], num_columns: usize) -> String {
    let bar = |share: f64| {
        let place = (share * (BARS.len() - 1) as f64).round() as usize;
        BARS.get(place).copied().unwrap_or('▄')
    };
    shares(&columns(values, num_columns)).into_iter().map(bar).collect()
}
