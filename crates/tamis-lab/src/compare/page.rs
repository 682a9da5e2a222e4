//! A comparison as one HTML page with its charts in it.

use std::fmt::Write as _;

use super::measure::{Choice, Over, curve, value_at};
use super::{Comparison, Measured};
use crate::chart::Heading;
use crate::chart::lines::{Line, Look, Point, Range, chart, describe};
use crate::chart::number::figure as number;
use crate::html::{document, escape, head, row};

/// Places at which a line is drawn, at most.
const MOST_PLACES: usize = 200;

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
        Some(Point { at, value: mean, least, most })
    };
    Line {
        name: variant.name.clone(),
        run: 0,
        look,
        points: chosen.filter_map(|(_, at)| point(at)).collect(),
    }
}

impl Comparison {
    /// The page: tables, then each metric over steps, tokens and time.
    pub fn html(&self) -> String {
        let mut page = "<main>\n<h1>Comparison</h1>\n<p>Mean, ± sample standard deviation over seeds, (difference to the baseline). In charts the line is the mean over seeds, the band their least and largest; baselines are dashed.</p>\n".to_owned();
        page.push_str("<p class=\"legend\">");
        let are_baselines: Vec<bool> = self.variants.iter().map(Measured::is_baseline).collect();
        let looks = Look::of(&are_baselines);
        for (variant, look) in self.variants.iter().zip(&looks) {
            page.push_str(&look.key(&variant.name));
        }
        page.push_str("</p>\n");
        for (number_of_table, table) in self.tables.iter().enumerate() {
            page.push_str("<div class=\"scroll\" tabindex=\"0\"><table>\n");
            for (place, line) in self.grid(table).iter().enumerate() {
                let cells: Vec<String> = line.iter().map(|cell| escape(cell)).collect();
                page.push_str(&if place == 0 { head(&cells) } else { row(&cells) });
                page.push('\n');
            }
            page.push_str("</table></div>\n<div class=\"charts\">\n");
            for over in Over::ALL {
                let variants = self.variants.iter().zip(&looks);
                let lines: Vec<Line> =
                    variants.map(|(variant, look)| line(variant, *look, &table.choice, over)).collect();
                if lines.iter().all(|line| line.points.is_empty()) {
                    continue;
                }
                let heading = Heading {
                    id: &format!("m{number_of_table}-{}", over.unit()),
                    class: "",
                    title: &format!("{} over {}", table.choice.title(), over.unit()),
                    description: &describe(&lines, over.unit()),
                    unit: over.unit(),
                    about: "",
                };
                page.push_str(&chart(heading, &lines, Range::default(), &number));
            }
            page.push_str("</div>\n");
        }
        for note in &self.notes {
            let _ = writeln!(page, "<p>note: {}</p>", escape(note));
        }
        page.push_str("</main>\n");
        document("Comparison", &page)
    }
}
