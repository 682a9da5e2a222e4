//! Every metric of every run in one table: first, last, smallest and largest value, and a line of it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use tamis_run::metrics::catalogue::find;

use super::places::Places;
use super::run::Run;
use crate::chart::number::figure as number;
use crate::chart::spark;
use crate::html::{escape, head, row};

/// Places of a small line, at most.
const MOST_PLACES: usize = 60;

pub(crate) fn table(runs: &[Run], (first, last): (u64, u64)) -> String {
    let names: BTreeSet<&str> = runs
        .iter()
        .flat_map(|run| &run.series.rows)
        .flat_map(|row| row.values.keys().chain(row.infinite.keys()).map(String::as_str))
        .collect();
    if names.is_empty() {
        return "<p>There are no metrics.</p>".to_owned();
    }
    let places = Places::new(first, last, MOST_PLACES);
    let is_one = runs.len() == 1;
    let mut cells = vec!["metric".to_owned()];
    if !is_one {
        cells.push("run".to_owned());
    }
    cells.extend(["first", "last", "least", "most", "over the steps"].map(str::to_owned));
    let mut html = format!(
        "<details><summary>{} metrics</summary><div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Every metric\"><table class=\"every\">{}",
        names.len(),
        head(&cells)
    );
    for name in names {
        // A second name repeats the numbers of the first.
        let Some(definition) = find(name).map(Some).or(Some(None)) else { continue };
        if definition.is_some_and(|definition| {
            definition.alias_of.is_some_and(|first| runs.iter().any(|run| run.has(first)))
        }) {
            continue;
        }
        let about = definition.map_or("", |definition| definition.meaning);
        for (place, run) in runs.iter().enumerate() {
            let values: Vec<(u64, f64)> = run.values(name).collect();
            let (Some(first), Some(last)) = (values.first(), values.last()) else { continue };
            let least = values.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
            let most = values.iter().map(|(_, value)| *value).fold(f64::NEG_INFINITY, f64::max);
            let points: Vec<(f64, f64)> = places
                .gather(values.iter().copied())
                .iter()
                .flatten()
                .map(|point| (point.at, point.value))
                .collect();
            let mut label = format!("<code>{}</code>", escape(name));
            if !about.is_empty() {
                let _ = write!(label, "<span class=\"meaning\">{}</span>", escape(about));
            }
            let mut cells = vec![label];
            if !is_one {
                cells.push(escape(&run.name));
            }
            cells.extend([first.1, last.1, least, most].map(number));
            cells.push(spark::svg(&points));
            html.push_str(&row(&cells).replacen("<tr>", &format!("<tr class=\"r{place}\">"), 1));
        }
    }
    html.push_str("</table></div></details>");
    html
}
