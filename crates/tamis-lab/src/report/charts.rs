//! Charts of metrics over the steps, each with its legend and its numbers.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use tamis_core::figure::{agreed, counted};

use serde::Serialize;

use super::figures::{FIGURES, Figure as Metrics, Part, VALIDATION};
use super::places::Places;
use super::run::Run;
use super::settings::{unlike_rewards, unlike_validations};
use super::time::Times;
use crate::chart::lines::{Curve, CurveLook, Point, Range, chart, describe};
use crate::chart::{Figure, Heading};

/// Largest number of lines in a chart: more cannot be distinguished.
const MOST_LINES: usize = 24;

/// Metrics that do not change: names with their values.
#[derive(Debug, Serialize)]
pub(crate) struct Constant {
    title: String,
    values: Vec<(String, f64)>,
    metrics: Vec<String>,
}

/// The charts of a part of the page, and the metrics that are not drawn because they do not change.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Charts {
    pub(crate) times: Vec<Times>,
    pub(crate) drawn: Vec<Figure>,
    constants: Vec<Constant>,
}

impl Charts {
    /// Adds a metric that does not change.
    pub(crate) fn add_constant<'a>(
        &mut self,
        title: &str,
        values: impl Iterator<Item = (&'a str, f64)>,
        metrics: Vec<String>,
    ) {
        let values = values.map(|(name, value)| (name.to_owned(), value)).collect();
        self.constants.push(Constant { title: title.to_owned(), values, metrics });
    }

    /// The charts of a part of the page.
    pub(crate) fn of_part(mut self, part: Part, runs: &[Run], places: Places) -> Self {
        for (number, figure) in FIGURES.iter().enumerate().filter(|(_, figure)| figure.part == part) {
            self.add(figure, number, runs, places);
        }
        self
    }

    fn add(&mut self, figure: &Metrics, number_of_figure: usize, runs: &[Run], places: Places) {
        let names: BTreeSet<&str> = runs.iter().flat_map(|run| run.series.names()).collect();
        let mut lines: Vec<Curve> = Vec::new();
        let mut metrics: BTreeSet<String> = BTreeSet::new();
        for (dash, (name, candidates)) in figure.lines.of(&names).iter().enumerate() {
            for (place, run) in runs.iter().enumerate() {
                let Some(metric) = candidates.iter().find(|metric| run.has(metric)) else { continue };
                let is_one = runs.len() == 1;
                metrics.insert(metric.clone());
                lines.push(Curve {
                    name: if is_one { name.clone() } else { format!("{}: {name}", run.name) },
                    run: place,
                    look: CurveLook { colour: if is_one { dash } else { place }, dash },
                    points: banded(figure, dash, run, metric, places),
                });
            }
        }
        if lines.is_empty() {
            return;
        }
        let metrics = metrics.into_iter().collect();
        let constants: Option<Vec<f64>> = lines.iter().map(Curve::constant).collect();
        if let Some(constants) = constants {
            let names = lines.iter().map(|line| line.name.as_str());
            return self.add_constant(figure.title, names.zip(constants), metrics);
        }
        let num_left_out = lines.len().saturating_sub(MOST_LINES);
        lines.truncate(MOST_LINES);
        let mut about = figure.about.to_owned();
        if num_left_out > 0 {
            let _ = write!(
                about,
                " {} {} left out; the metrics are listed below.",
                counted(num_left_out, "further line"),
                agreed(num_left_out, "is", "are")
            );
        }
        let is_unlike = !unlike_rewards(runs.iter().map(|run| &run.settings)).is_empty();
        let of_runs = runs.iter().map(|run| (&run.settings, run.validations.prompts));
        let validates_unlike = figure.title == VALIDATION && unlike_validations(of_runs).is_any();
        let heading = Heading {
            id: format!("c{number_of_figure}"),
            title: figure.title.to_owned(),
            description: describe(&lines, "step"),
            unit: "step".to_owned(),
            about,
            metrics,
            warning: if is_unlike && figure.part == Part::Learning {
                "The runs have different rewards: their values are not comparable."
            } else if validates_unlike {
                "The runs validate on different prompts or sample them differently: their values are not comparable."
            } else {
                ""
            },
            ..Heading::default()
        };
        let range = Range { x: Some(places.bounds()), y: figure.is_share.then_some((0.0, 1.0)) };
        self.drawn.push(chart(heading, &lines, range, &|at| places.name_at(at)));
    }
}

/// The values of a line. The first one comes with the bounds that the run measured.
fn banded(figure: &Metrics, dash: usize, run: &Run, metric: &str, places: Places) -> Vec<Point> {
    let mut found = places.gather(run.values(metric));
    if let (0, Some((least, most))) = (dash, figure.band) {
        let bounds = places.gather(run.values(least)).into_iter().zip(places.gather(run.values(most)));
        for (point, (least, most)) in found.iter_mut().zip(bounds) {
            if let (Some(point), Some(least), Some(most)) = (point, least, most) {
                point.least = point.least.min(least.least);
                point.most = point.most.max(most.most);
            }
        }
    }
    found.into_iter().flatten().collect()
}
