//! A comparison as one HTML page with its charts in it.

use std::fmt::Write as _;

use super::chart::{Line, Look, escape, sample, svg};
use super::measure::{Choice, Over, curve, value_at};
use super::{Comparison, Measured};

/// Places at which a line is drawn, at most.
const MOST_PLACES: usize = 400;

/// The mean of a variant's runs over something, with the least and the largest. Between its measurements a
/// run has its last value; a place counts once every run has one.
fn line(variant: &Measured, look: Look, choice: &Choice, over: Over) -> Line {
    let curves: Vec<Vec<(f64, f64)>> = variant
        .series
        .iter()
        .filter_map(|series| Some(curve(series, &choice.name(series)?, over)))
        .filter(|curve| !curve.is_empty())
        .collect();
    let mut places: Vec<f64> = curves.iter().flatten().map(|(at, _)| *at).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    // Beyond the shortest run a mean would be one of others.
    let last =
        curves.iter().filter_map(|curve| curve.last()).map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
    places.retain(|at| *at <= last);
    let stride = places.len().div_ceil(MOST_PLACES).max(1);
    let num_places = places.len();
    let chosen =
        places.into_iter().enumerate().filter(|(place, _)| place % stride == 0 || place + 1 == num_places);
    let point = |at: f64| {
        let values: Vec<f64> = curves.iter().map(|curve| value_at(curve, at)).collect::<Option<_>>()?;
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some([at, mean, least, most])
    };
    Line { name: variant.name.clone(), look, points: chosen.filter_map(|(_, at)| point(at)).collect() }
}

impl Comparison {
    /// The page: tables, then each metric over steps, tokens and time.
    pub fn html(&self) -> String {
        let mut page = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Comparison</title>\n<style>body{font-family:sans-serif;margin:2em;max-width:1400px}table{border-collapse:collapse;font-size:13px}td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}.key span{white-space:nowrap;margin-right:1em}.key svg{margin:0;vertical-align:middle}svg{margin:1em 1em 0 0}</style></head><body>\n<h1>Comparison</h1>\n<p>Mean, ± sample standard deviation over seeds, (difference to the baseline). In charts the line is the mean over seeds, the band their least and largest.</p>\n".to_owned();
        page.push_str("<p class=\"key\">");
        let are_baselines: Vec<bool> = self.variants.iter().map(Measured::is_baseline).collect();
        let looks = Look::of(&are_baselines);
        for (variant, look) in self.variants.iter().zip(&looks) {
            let _ = write!(page, "<span>{} {}</span> ", sample(*look), escape(&variant.name));
        }
        page.push_str("</p>\n");
        for table in &self.tables {
            page.push_str("<table>\n");
            for (place, line) in self.grid(table).iter().enumerate() {
                let tag = if place == 0 { "th" } else { "td" };
                page.push_str("<tr>");
                for cell in line {
                    let _ = write!(page, "<{tag}>{}</{tag}>", escape(cell));
                }
                page.push_str("</tr>\n");
            }
            page.push_str("</table>\n");
            for over in Over::ALL {
                let lines: Vec<Line> = self
                    .variants
                    .iter()
                    .zip(&looks)
                    .map(|(variant, look)| line(variant, *look, &table.choice, over))
                    .collect();
                if lines.iter().any(|line| !line.points.is_empty()) {
                    page.push_str(&svg(&table.choice.title(), over.unit(), &lines));
                }
            }
        }
        for note in &self.notes {
            let _ = writeln!(page, "<p>note: {}</p>", escape(note));
        }
        page.push_str("</body></html>\n");
        page
    }
}
