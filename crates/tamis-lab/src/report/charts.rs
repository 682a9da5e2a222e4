//! Charts of metrics over the steps, each with its legend and its numbers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::figures::{FIGURES, Figure, Part};
use super::places::Places;
use super::run::Run;
use super::settings::unlike_rewards;
use crate::chart::Heading;
use crate::chart::lines::{Line, Look, Point, Range, chart, describe};
use crate::chart::number::figure as number;
use crate::html::escape;

/// Lines of one chart, at most: more cannot be told apart.
const MOST_LINES: usize = 24;

/// The charts of a part of the page, and what is not drawn because it does not change, all as HTML.
#[derive(Debug, Default)]
pub(crate) struct Charts {
    pub(crate) drawn: String,
    pub(crate) constants: Vec<String>,
}

impl Charts {
    /// As HTML: the charts in a grid, and below them what does not change.
    pub(crate) fn html(&self) -> String {
        let Self { drawn, constants } = self;
        let mut html =
            if drawn.is_empty() { String::new() } else { format!("<div class=\"charts\">{drawn}</div>") };
        if !constants.is_empty() {
            let _ = write!(
                html,
                "<div class=\"constants\"><h3>Not drawn, because it never changes</h3><ul><li>{}</ul></div>",
                constants.join("<li>")
            );
        }
        html
    }

    /// Adds what does not change: its title, and names with their values.
    pub(crate) fn add_constant<'a>(
        &mut self,
        title: &str,
        values: impl Iterator<Item = (&'a str, f64)>,
        metrics: &str,
    ) {
        let values: Vec<String> = values
            .map(|(name, value)| format!("{} <strong>{}</strong>", escape(name), number(value)))
            .collect();
        self.constants.push(format!("{}: {} <small>{metrics}</small>", escape(title), values.join(", ")));
    }

    /// The charts of metrics of a part of the page.
    pub(crate) fn of_part(mut self, part: Part, runs: &[Run], places: Places) -> Self {
        for (number, figure) in FIGURES.iter().enumerate().filter(|(_, figure)| figure.part == part) {
            self.add(figure, number, runs, places);
        }
        self
    }

    fn add(&mut self, figure: &Figure, number_of_figure: usize, runs: &[Run], places: Places) {
        let names: BTreeSet<&str> = runs.iter().flat_map(|run| run.series.names()).collect();
        let mut lines: Vec<Line> = Vec::new();
        let mut metrics: BTreeSet<String> = BTreeSet::new();
        for (dash, (name, candidates)) in figure.lines.of(&names).iter().enumerate() {
            for (place, run) in runs.iter().enumerate() {
                let Some(metric) = candidates.iter().find(|metric| run.has(metric)) else { continue };
                let is_one = runs.len() == 1;
                metrics.insert(format!("<code>{}</code>", escape(metric)));
                lines.push(Line {
                    name: if is_one { name.clone() } else { format!("{}: {name}", run.name) },
                    run: place,
                    look: Look { colour: if is_one { dash } else { place }, dash },
                    points: banded(figure, dash, run, metric, places),
                });
            }
        }
        if lines.is_empty() {
            return;
        }
        let metrics = metrics.into_iter().collect::<Vec<_>>().join(", ");
        let constants: Option<Vec<f64>> = lines.iter().map(Line::constant).collect();
        if let Some(constants) = constants {
            let names = lines.iter().map(|line| line.name.as_str());
            return self.add_constant(figure.title, names.zip(constants), &metrics);
        }
        let num_left_out = lines.len().saturating_sub(MOST_LINES);
        lines.truncate(MOST_LINES);
        let mut about = format!("{} {metrics}", escape(figure.about));
        if num_left_out > 0 {
            let _ =
                write!(about, ". {num_left_out} further lines are left out; their metrics are listed below");
        }
        let mut unlike = unlike_rewards(runs.iter().map(|run| &run.settings)).into_iter();
        if figure.part == Part::Learning && unlike.next().is_some() {
            about.push_str(
                " <strong>The runs have different rewards: their values are not comparable.</strong>",
            );
        }
        let heading = Heading {
            id: &format!("c{number_of_figure}"),
            class: "",
            title: figure.title,
            description: &describe(&lines, "step"),
            unit: "step",
            about: &about,
        };
        let range = Range { x: Some(places.bounds()), y: figure.is_share.then_some((0.0, 1.0)) };
        self.drawn += &chart(heading, &lines, range, &|at| places.name_at(at));
    }
}

/// The values of a line, the first with the bounds that the run measured.
fn banded(figure: &Figure, dash: usize, run: &Run, metric: &str, places: Places) -> Vec<Point> {
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
