//! Charts of metrics over the steps, each with its legend and its numbers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::figures::{FIGURES, Figure, Part};
use super::places::Places;
use super::run::Run;
use crate::chart::axis::{Heading, figure as number};
use crate::chart::line::{Line, Look, Point, Range, describe, key, svg};
use crate::html::escape;

/// Lines of one chart, at most: more cannot be told apart.
const MOST_LINES: usize = 24;

/// A drawing with all that stands around it.
#[derive(Debug, Default)]
pub(crate) struct Frame<'a> {
    /// Name of its parts, unique in the page.
    pub(crate) id: &'a str,
    pub(crate) class: &'a str,
    pub(crate) title: &'a str,
    /// Legend, as HTML.
    pub(crate) legend: &'a str,
    pub(crate) svg: &'a str,
    /// What to know when one reads it, as HTML.
    pub(crate) about: &'a str,
    /// Columns of its numbers: name, number of the run.
    pub(crate) columns: &'a [(String, usize)],
    /// Its numbers: where they lie on the axis, the name of the place, a cell for each column.
    pub(crate) numbers: &'a [(f64, String, Vec<String>)],
}

impl Frame<'_> {
    /// As HTML.
    pub(crate) fn html(&self) -> String {
        let Frame { id, class, title, legend, svg, about, columns, numbers } = self;
        let mut html = format!(
            "<figure id=\"{id}\" class=\"chart {class}\"><figcaption><h3>{}</h3><p class=\"legend\">{legend}</p></figcaption>\
             <div class=\"plot\">{svg}</div><output class=\"readout\"></output><p class=\"about\">{about}</p>",
            escape(title)
        );
        if !numbers.is_empty() {
            let _ = write!(
                html,
                "<details><summary>Numbers<span class=\"of\"> of {}</span></summary><div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Numbers of {}\"><table class=\"numbers\"><thead><tr><th scope=\"col\">step",
                escape(title),
                escape(title)
            );
            for (name, run) in *columns {
                let _ = write!(html, "<th scope=\"col\" data-run=\"{run}\">{}", escape(name));
            }
            html.push_str("<tbody>");
            for (at, name, cells) in *numbers {
                let _ = write!(html, "<tr data-at=\"{at}\"><th scope=\"row\">{name}");
                for cell in cells {
                    let _ = write!(html, "<td>{cell}");
                }
            }
            html.push_str("</table></div></details>");
        }
        html + "</figure>\n"
    }
}

/// A line with its value at every place.
struct Drawn {
    line: Line,
    run: usize,
    metric: String,
    places: Vec<Option<Point>>,
}

/// The charts of a part of the page, as HTML.
pub(crate) fn of_part(part: Part, runs: &[Run], places: Places) -> String {
    let figures = FIGURES.iter().enumerate().filter(|(_, figure)| figure.part == part);
    figures.filter_map(|(number, figure)| draw(figure, number, runs, places)).collect()
}

fn draw(figure: &Figure, number_of_figure: usize, runs: &[Run], places: Places) -> Option<String> {
    let names: BTreeSet<&str> = runs.iter().flat_map(|run| run.series.names()).collect();
    let lines = figure.lines.of(&names);
    let mut drawn = Vec::new();
    for (dash, (name, metrics)) in lines.iter().enumerate() {
        for (place, run) in runs.iter().enumerate() {
            let Some(metric) = metrics.iter().find(|metric| run.has(metric)) else { continue };
            let found = banded(figure, dash, run, metric, places);
            let is_one = runs.len() == 1;
            let full = if is_one { name.clone() } else { format!("{}: {name}", run.name) };
            drawn.push(Drawn {
                line: Line {
                    name: full,
                    class: format!("r{place}"),
                    look: Look { colour: if is_one { dash } else { place }, dash },
                    points: found.iter().copied().flatten().collect(),
                },
                run: place,
                metric: metric.clone(),
                places: found,
            });
        }
    }
    if drawn.is_empty() {
        return None;
    }
    let num_lines = drawn.len();
    drawn.truncate(MOST_LINES);
    let lines: Vec<Line> = drawn.iter().map(|drawn| drawn.line.clone()).collect();
    let range = Range { x: Some(places.bounds()), y: figure.is_share.then_some((0.0, 1.0)) };
    let id = format!("c{number_of_figure}");
    let heading =
        Heading { id: &id, title: figure.title, description: &describe(&lines, "step"), unit: "step" };
    let legend: String = drawn
        .iter()
        .map(|drawn| {
            let entry = key(&drawn.line.name, drawn.line.look);
            entry.replacen("<span>", &format!("<span class=\"r{}\">", drawn.run), 1)
        })
        .collect();
    let mut metrics: Vec<&str> = drawn.iter().map(|drawn| drawn.metric.as_str()).collect();
    metrics.sort_unstable();
    metrics.dedup();
    let metrics: Vec<String> = metrics.iter().map(|name| format!("<code>{}</code>", escape(name))).collect();
    let mut about = format!("{} {}", escape(figure.about), metrics.join(", "));
    if num_lines > MOST_LINES {
        let _ = write!(
            about,
            ". {} further lines are left out; their metrics are listed below",
            num_lines - MOST_LINES
        );
    }
    let columns: Vec<(String, usize)> =
        drawn.iter().map(|drawn| (drawn.line.name.clone(), drawn.run)).collect();
    let rows = rows(places, &drawn.iter().map(|drawn| drawn.places.as_slice()).collect::<Vec<_>>());
    Some(
        Frame {
            id: &id,
            class: "",
            title: figure.title,
            legend: &legend,
            svg: &svg(heading, &lines, range),
            about: &about,
            columns: &columns,
            numbers: &rows,
        }
        .html(),
    )
}

/// The values of a line, the first with the bounds that the run measured.
fn banded(figure: &Figure, dash: usize, run: &Run, metric: &str, places: Places) -> Vec<Option<Point>> {
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
    found
}

/// The numbers of lines at every place where one has a value.
fn rows(places: Places, lines: &[&[Option<Point>]]) -> Vec<(f64, String, Vec<String>)> {
    let row = |place: usize| {
        let points: Vec<Option<Point>> =
            lines.iter().map(|line| line.get(place).copied().flatten()).collect();
        points.iter().any(Option::is_some).then(|| {
            let cells =
                points.iter().map(|point| point.map_or_else(|| "–".to_owned(), |point| number(point.value)));
            (places.at(place), places.name(place), cells.collect())
        })
    };
    (0..places.count).filter_map(row).collect()
}
