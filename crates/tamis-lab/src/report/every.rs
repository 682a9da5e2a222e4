//! Every metric of every run in one table: first, last, smallest and largest value, and a small line.

use std::collections::BTreeSet;

use serde::Serialize;
use tamis_run::metrics::catalogue::find;

use super::places::Places;
use super::run::Run;
use crate::chart::spark;

/// Largest number of places in a small line.
const MOST_PLACES: usize = 60;

#[derive(Debug, Serialize)]
pub(crate) struct Metric<'a> {
    name: &'a str,
    meaning: &'a str,
    rows: Vec<Row>,
}

/// A metric of one run.
#[derive(Debug, Serialize)]
struct Row {
    run: usize,
    /// First, last, smallest and largest value.
    values: [f64; 4],
    path: String,
}

pub(crate) fn of_runs(runs: &[Run], (first, last): (u64, u64)) -> Vec<Metric<'_>> {
    let names: BTreeSet<&str> = runs
        .iter()
        .flat_map(|run| &run.series.rows)
        .flat_map(|row| row.values.keys().chain(row.infinite.keys()).map(String::as_str))
        .collect();
    let places = Places::new(first, last, MOST_PLACES);
    let row = |run: usize, values: &[(u64, f64)]| {
        let all = || values.iter().map(|(_, value)| *value);
        let (first, last) = (all().next()?, all().next_back()?);
        let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
        let points = places.gather(values.iter().copied());
        let points: Vec<(f64, f64)> = points.iter().flatten().map(|point| (point.at, point.value)).collect();
        Some(Row { run, values: [first, last, least, most], path: spark::path(&points) })
    };
    let metric = |name| {
        let definition = find(name);
        // A second name repeats the numbers of the first.
        let first = definition.and_then(|definition| definition.alias_of);
        if first.is_some_and(|first| runs.iter().any(|run| run.has(first))) {
            return None;
        }
        let of_run = |(place, run): (usize, &Run)| row(place, &run.values(name).collect::<Vec<_>>());
        let rows = runs.iter().enumerate().filter_map(of_run).collect();
        Some(Metric { name, meaning: definition.map_or("", |definition| definition.meaning), rows })
    };
    names.into_iter().filter_map(metric).collect()
}
