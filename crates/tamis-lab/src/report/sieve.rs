//! The places of all groups: kept and dropped by cause, pass rates over time, and the scores of groups as a
//! heat map.

use std::fmt::Write as _;

use super::charts::Charts;
use super::groups::{GroupFacts, StepGroups, evenly};
use super::places::Places;
use super::run::Run;
use crate::chart::cells::{self, HeatCell};
use crate::chart::number::figure as number;
use crate::chart::stack::{Stack, StackLayer};
use crate::chart::{Figure, Heading, NUM_LEVELS, Table};

/// Largest number of cells in a column of the heat map.
const MOST_CELLS: usize = 64;
/// Largest number of columns of the heat map.
const MOST_COLUMNS: usize = 120;

/// Places in which a group can end, each with the class of its colour. All other places get the last class.
const CAUSES: [(&str, &str); 16] = [
    ("trained", "s0"),
    ("kept_when_insufficient", "s8"),
    ("surplus", "s1"),
    ("all_correct", "s2"),
    ("all_wrong", "s3"),
    ("uniform", "s4"),
    ("zero_score", "s5"),
    ("below_range", "s6"),
    ("above_range", "s7"),
    ("outside_pool", "s5"),
    ("screened", "s5"),
    ("singleton", "s6"),
    ("unscored", "s8"),
    ("stale", "s7"),
    ("failed", "s9"),
    ("aborted", "s9"),
];

pub(crate) fn fill(cause: &str) -> &'static str {
    CAUSES.iter().find(|(name, _)| *name == cause).map_or("s5", |(_, class)| class)
}

pub(crate) fn words(cause: &str) -> String {
    cause.replace('_', " ")
}

fn titled(title: &str, run: &Run, is_one: bool) -> String {
    if is_one { title.to_owned() } else { format!("{title}: {}", run.name) }
}

/// Adds a stack, drawn or as a constant.
fn add(charts: &mut Charts, heading: Heading, stack: Stack<'_>) {
    if let Some(sizes) = stack.constant() {
        return charts.add_constant(&heading.title, sizes.into_iter(), Vec::new());
    }
    let mean = |layer: &StackLayer| {
        let sizes: Vec<f64> = layer.sizes.iter().copied().filter(|size| !size.is_nan()).collect();
        let mean = sizes.iter().sum::<f64>() / sizes.len().max(1) as f64;
        format!("{}: {} at a step on average", layer.name, number(mean))
    };
    let description = stack.layers.iter().map(mean).collect::<Vec<_>>().join("; ");
    charts.drawn.push(stack.chart(Heading { description, ..heading }));
}

/// The mean of a metric at each place; NaN if it has no value, 0 if the step has other metrics.
fn sizes(run: &Run, name: &str, places: Places, is_there: &[bool]) -> Vec<f64> {
    let found = places.gather(run.values(name));
    let missing = |place: usize| if is_there.get(place) == Some(&true) { 0.0 } else { f64::NAN };
    found
        .iter()
        .enumerate()
        .map(|(place, point)| point.map_or_else(|| missing(place), |point| point.value))
        .collect()
}

fn has_value(run: &Run, name: &str, places: Places) -> Vec<bool> {
    places.gather(run.values(name)).iter().map(Option::is_some).collect()
}

/// Groups kept and dropped by cause, step by step, of each run.
pub(crate) fn kept_and_dropped(runs: &[Run], charts: &mut Charts) {
    for (place, run) in runs.iter().enumerate() {
        let places = Places::of_run(run);
        let is_there = has_value(run, "groups/trained", places);
        if !is_there.contains(&true) {
            continue;
        }
        let names = run.series.names();
        let mut sources: Vec<(String, String)> = vec![("trained".to_owned(), "groups/trained".to_owned())];
        let places_of = ["surplus", "stale", "failed", "aborted"];
        sources.extend(places_of.map(|name| (name.to_owned(), format!("groups/{name}"))));
        let reasons = names.iter().filter_map(|name| name.strip_prefix("train/num_dropped/"));
        let mut reasons: Vec<(String, String)> =
            reasons.map(|reason| (reason.to_owned(), format!("train/num_dropped/{reason}"))).collect();
        reasons.sort_by_key(|(name, _)| {
            CAUSES.iter().position(|(known, _)| known == name).unwrap_or(CAUSES.len())
        });
        sources.extend(reasons);
        let layers: Vec<StackLayer> = sources
            .into_iter()
            .filter(|(name, metric)| name == "trained" || run.sum(metric).is_some_and(|sum| sum > 0.0))
            .map(|(name, metric)| StackLayer {
                fill: fill(&name).to_owned(),
                sizes: sizes(run, &metric, places, &is_there),
                name: words(&name),
            })
            .collect();
        let per_place = if places.width == 1 {
            String::new()
        } else {
            format!(" Each column is the mean of {} steps.", places.width)
        };
        let heading = Heading {
            id: format!("kept{place}"),
            class: format!("r{place}"),
            title: titled("Groups kept and dropped", run, runs.len() == 1),
            unit: "step".to_owned(),
            about: format!(
                "Every group that ended in the step, by where it ended. Trained is at the bottom.{per_place}"
            ),
            metrics: ["groups/…", "train/num_dropped/…"].map(str::to_owned).to_vec(),
            ..Heading::default()
        };
        let (width, places) = (places.width as f64, places.named());
        add(charts, heading, Stack { layers: &layers, places: &places, width, whole: 0.0, run: place });
    }
}

/// Shares of pass rates at one step: none, each interval, all.
fn histogram(groups: &[GroupFacts], num_intervals: usize) -> Option<Vec<f64>> {
    let rates: Vec<f64> = groups.iter().map(|group| group.pass_rate).filter(|rate| !rate.is_nan()).collect();
    if rates.is_empty() {
        return None;
    }
    let mut counts = vec![0.0; num_intervals + 2];
    for &rate in &rates {
        let place = match rate {
            rate if rate <= 0.0 => 0,
            rate if rate >= 1.0 => num_intervals + 1,
            rate => 1 + ((rate * num_intervals as f64).floor() as usize).min(num_intervals - 1),
        };
        counts[place] += 1.0;
    }
    for count in &mut counts {
        *count /= rates.len() as f64;
    }
    Some(counts)
}

/// The histogram of pass rates of all generated groups, step by step, for each run: as the run measured it,
/// otherwise from its rollouts.
pub(crate) fn pass_rates(runs: &[Run], charts: &mut Charts) {
    const OF_ROLLOUTS: usize = 4;
    for (place, run) in runs.iter().enumerate() {
        let places = Places::of_run(run);
        let is_there = has_value(run, "diagnostics/pass_rate/none", places);
        let num_intervals = run
            .series
            .names()
            .iter()
            .filter_map(|name| {
                name.strip_prefix("diagnostics/pass_rate/")?.split_once("_of_")?.1.parse::<usize>().ok()
            })
            .max()
            .unwrap_or(OF_ROLLOUTS);
        let interval = |number: usize| format!("{number}_of_{num_intervals}");
        let (columns, metric) = if is_there.contains(&true) {
            // Intervals are counted from 1; a run that counts from 0 has `0_of_`.
            let first = usize::from(!run.has(&format!("diagnostics/pass_rate/{}", interval(0))));
            let of = |name: String| sizes(run, &format!("diagnostics/pass_rate/{name}"), places, &is_there);
            let mut columns = vec![of("none".to_owned())];
            columns.extend((0..num_intervals).map(|number| of(interval(first + number))));
            columns.push(of("all".to_owned()));
            (columns, "diagnostics/pass_rate/…")
        } else {
            let mut columns = Vec::new();
            for number in 0..num_intervals + 2 {
                let share = |step: &StepGroups| {
                    Some((step.step, *histogram(&step.groups, num_intervals)?.get(number)?))
                };
                let found = places.gather(run.groups.steps.iter().filter_map(share));
                columns.push(
                    found
                        .iter()
                        .map(|point| point.map_or(f64::NAN, |point| point.value))
                        .collect::<Vec<f64>>(),
                );
            }
            (columns, "")
        };
        if !columns.iter().flatten().any(|share| *share > 0.0) {
            continue;
        }
        let name = |layer: usize| match layer {
            0 => "none correct".to_owned(),
            last if last == num_intervals + 1 => "all correct".to_owned(),
            inner => {
                let share = |bound: usize| number(bound as f64 / num_intervals as f64);
                format!("{} to {}", share(inner - 1), share(inner))
            }
        };
        let layers: Vec<StackLayer> = columns
            .into_iter()
            .enumerate()
            .map(|(number, sizes)| StackLayer {
                name: name(number),
                fill: format!("h{}", number * (NUM_LEVELS - 1) / (num_intervals + 1)),
                sizes,
            })
            .collect();
        let heading = Heading {
            id: format!("rates{place}"),
            class: format!("r{place}"),
            title: titled("Pass rates of groups", run, runs.len() == 1),
            unit: "step".to_owned(),
            about: format!(
                "Share of all generated groups by the share of their members that are correct; groups at the two ends teach nothing by outcome.{}",
                if metric.is_empty() { " Counted in the rollout files." } else { "" }
            ),
            metrics: (!metric.is_empty()).then(|| metric.to_owned()).into_iter().collect(),
            ..Heading::default()
        };
        let (width, places) = (places.width as f64, places.named());
        add(charts, heading, Stack { layers: &layers, places: &places, width, whole: 1.0, run: place });
    }
}

/// The scores of groups, step by step, of each run.
pub(crate) fn heat_maps(runs: &[Run], charts: &mut Charts) {
    let range = range(runs);
    for (place, run) in runs.iter().enumerate() {
        let steps: Vec<&StepGroups> =
            run.groups.steps.iter().filter(|step| !step.groups.is_empty()).collect();
        if steps.is_empty() {
            continue;
        }
        let chosen: Vec<&StepGroups> = evenly(steps.len(), MOST_COLUMNS)
            .into_iter()
            .filter_map(|place| steps.get(place).copied())
            .collect();
        charts.drawn.push(heat_map(run, place, &chosen, steps.len(), range, runs.len() == 1));
    }
}

/// The range of colours: 0 to 1 if all scores lie there, otherwise that of the scores.
pub(crate) fn range(runs: &[Run]) -> (f64, f64) {
    let scores = runs.iter().flat_map(|run| {
        let groups = run.groups.steps.iter().flat_map(|step| &step.groups);
        groups.map(|group| run.groups.score(group)).filter(|score| score.is_finite())
    });
    let (low, high) = scores
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), score| (low.min(score), high.max(score)));
    if low >= 0.0 && high <= 1.0 || low > high { (0.0, 1.0) } else { (low, high) }
}

fn heat_map(
    run: &Run,
    place: usize,
    steps: &[&StepGroups],
    num_steps: usize,
    range: (f64, f64),
    is_one: bool,
) -> Figure {
    let mut columns = Vec::new();
    let mut rows = Vec::new();
    let (mut most_groups, mut num_shown) = (0, 0);
    for step in steps {
        let mut cells: Vec<(f64, bool)> = step
            .groups
            .iter()
            .map(|group| (run.groups.score(group), step.verdict_of(group) != "trained"))
            .collect();
        // Groups without a score lie at the bottom.
        let rank = |score: f64| if score.is_nan() { f64::NEG_INFINITY } else { score };
        cells.sort_by(|one, other| rank(one.0).total_cmp(&rank(other.0)).then(one.1.cmp(&other.1)));
        most_groups = most_groups.max(cells.len());
        let known: Vec<f64> = cells.iter().map(|(score, _)| *score).filter(|score| !score.is_nan()).collect();
        let quantile = |share: f64| {
            let place = (share * known.len().saturating_sub(1) as f64).round() as usize;
            number(known.get(place).copied().unwrap_or(f64::NAN))
        };
        let num_hatched = cells.iter().filter(|(_, is_hatched)| *is_hatched).count();
        rows.push((
            step.step.to_string(),
            vec![
                cells.len().to_string(),
                num_hatched.to_string(),
                quantile(0.0),
                quantile(0.25),
                quantile(0.5),
                quantile(0.75),
                quantile(1.0),
            ],
        ));
        let shown = evenly(cells.len(), MOST_CELLS);
        num_shown = num_shown.max(shown.len());
        let cell = |place: usize| cells.get(place).map(|&(value, is_hatched)| HeatCell { value, is_hatched });
        columns.push((step.step as f64, shown.into_iter().filter_map(cell).collect::<Vec<HeatCell>>()));
    }
    let name = run.groups.score_name();
    let title = titled(&format!("Groups by their mean {name}"), run, is_one);
    let id = format!("heat{place}");
    let description = format!(
        "A column for each of {} steps, a cell for each group, those with the highest mean {name} at the top; colours go from {} to {}.",
        columns.len(),
        number(range.0),
        number(range.1)
    );
    let mut about = "Each cell is a group: a column is a step, its groups from the lowest mean at the bottom to the highest at the top, in per cent of the groups. Hatched groups were not trained on.".to_owned();
    if columns.len() < num_steps {
        let _ = write!(about, " Thinned: {} of {num_steps} steps, evenly.", columns.len());
    }
    if num_shown < most_groups {
        let _ =
            write!(about, " Thinned: {num_shown} of up to {most_groups} groups of a step, evenly by rank.");
    }
    let names = ["groups", "not trained on", "lowest", "lower quarter", "median", "upper quarter", "highest"];
    let table = Table {
        first: "step".to_owned(),
        columns: names.map(|name| (name.to_owned(), place)).to_vec(),
        rows,
    };
    let (class, unit) = (format!("r{place}"), "step".to_owned());
    let heading = Heading { id, class, title, description, unit, about, ..Heading::default() };
    cells::chart(heading, "not trained on", &columns, range, table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_by_hand() {
        let group = |pass_rate: f64| GroupFacts {
            id: 0,
            prompt: 0,
            num_members: 4,
            metric: f64::NAN,
            reward: 0.0,
            pass_rate,
            verdict: 0,
        };
        let groups = [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, f64::NAN, 0.3].map(group);
        let sevenths =
            histogram(&groups, 4).unwrap().iter().map(|share| (share * 7.0).round()).collect::<Vec<_>>();
        // 0.25 belongs to the second quarter: an interval includes its lower end.
        assert_eq!(sevenths, [2.0, 0.0, 2.0, 1.0, 1.0, 1.0]);
        assert_eq!(histogram(&[group(f64::NAN)], 4), None);
    }

    #[test]
    fn every_reason_of_a_filter_has_a_fill() {
        for reason in tamis_core::filter::DropReason::ALL {
            assert!(CAUSES.iter().any(|(name, _)| *name == reason.name()), "{}", reason.name());
        }
    }
}
