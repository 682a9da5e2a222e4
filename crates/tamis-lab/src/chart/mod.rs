//! Charts of a page. Each is a figure with its data as JSON, which the script of the page draws, and with the
//! same numbers as a table, which is there without the script too.
//!
//! ```text
//! lines  -> lines.rs    layers -> stack.rs    scores of groups -> cells.rs    named dots -> dots.rs
//!   all of them -> Figure -> `data-chart`, and a table  -> html/charts.js, with the library uPlot
//! a sparkline of a table -> spark.rs
//! ```
//! Colours are classes and variables (`c0` to `c7`, `h0` to `h10`, fills `s0` to `s9`), which the style sheet
//! gives a value for light and dark screens and for paper. Nothing is told by colour alone: lines have
//! dashes, layers patterns.

pub mod cells;
pub mod dots;
pub mod lines;
pub mod number;
pub mod spark;
pub mod stack;

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use crate::html::escape;

/// Number of colours of lines and layers.
pub const NUM_COLOURS: usize = 8;
/// Number of steps between the lowest and the highest value of a scale of colours.
pub const NUM_LEVELS: usize = 11;

/// The step of the scale of colours for a value in a range.
pub fn level(value: f64, (low, high): (f64, f64)) -> usize {
    if high <= low || value.is_nan() {
        return NUM_LEVELS / 2;
    }
    let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
    (share * (NUM_LEVELS - 1) as f64).round() as usize
}

/// What a chart is called and measured in.
#[derive(Debug, Clone, Copy, Default)]
pub struct Heading<'a> {
    /// Name of the figure, unique in the page.
    pub id: &'a str,
    /// Further classes of the figure.
    pub class: &'a str,
    /// Title.
    pub title: &'a str,
    /// What it shows, for readers who cannot see it.
    pub description: &'a str,
    /// Unit of its places.
    pub unit: &'a str,
    /// What to know when one reads it, as HTML.
    pub about: &'a str,
}

/// The numbers of a chart: a row for each of its places, in the same order.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Name of the first column.
    pub first: String,
    /// Names of the other columns, and number of the run of each.
    pub columns: Vec<(String, usize)>,
    /// Name of the place, and a cell for each column.
    pub rows: Vec<(String, Vec<String>)>,
}

/// The data of a chart as its page holds them.
#[derive(Debug, Serialize)]
struct Data<'a, T> {
    kind: &'a str,
    unit: &'a str,
    /// Least and largest place.
    x: (f64, f64),
    /// Values that are shown at least; the axis ends exactly there if no value is beyond.
    #[serde(skip_serializing_if = "Option::is_none")]
    y: Option<(f64, f64)>,
    /// Places, in order.
    at: Vec<Value>,
    series: Vec<T>,
}

/// Writes a figure. `legend` is HTML.
fn figure<T: Serialize>(heading: Heading<'_>, legend: &str, data: &Data<'_, T>, table: &Table) -> String {
    let Heading { id, class, title, description, about, .. } = heading;
    let title = escape(title);
    // Data of numbers alone: nothing in them can fail to be written.
    let data = escape(&serde_json::to_string(data).unwrap_or_default());
    let mut html = format!(
        "<figure id=\"{id}\" class=\"chart {class}\"><figcaption><h3>{title}</h3></figcaption>\
         <div class=\"plot\" data-chart=\"{data}\" aria-describedby=\"{id}-d\"></div><p class=\"legend\">{legend}</p>\
         <output class=\"readout\"></output><p id=\"{id}-d\" hidden>{}</p><p class=\"about\">{about}</p>\
         <details><summary>Numbers<span class=\"of\"> of {title}</span></summary><div class=\"scroll\" tabindex=\"0\" \
         role=\"group\" aria-label=\"Numbers of {title}\"><table class=\"numbers\"><thead><tr><th scope=\"col\">{}",
        escape(description),
        escape(&table.first)
    );
    for (name, run) in &table.columns {
        let _ = write!(html, "<th scope=\"col\" data-run=\"{run}\">{}", escape(name));
    }
    html.push_str("<tbody>");
    for (name, cells) in &table.rows {
        let _ = write!(html, "<tr><th scope=\"row\">{}", escape(name));
        for cell in cells {
            let _ = write!(html, "<td>{}", escape(cell));
        }
    }
    html + "</table></div></details></figure>\n"
}

/// A number of a chart with six digits; infinities as words, NaN as null.
fn datum(value: f64) -> Value {
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let rounded = format!("{value:.5e}").parse().unwrap_or(value);
    if rounded.fract() == 0.0 && rounded.abs() < 1e15 { (rounded as i64).into() } else { rounded.into() }
}

/// The entry of a layer in a legend: its name, and the class that fills it. The script writes its value into
/// `<strong>`.
pub fn key(name: &str, class: &str) -> String {
    format!(
        "<span><svg class=\"key\" viewBox=\"0 0 16 10\" aria-hidden=\"true\"><rect width=\"16\" height=\"10\" class=\"{class}\"/></svg>{} <strong></strong></span> ",
        escape(name)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_charts_are_short_and_whole() {
        let shown = [1.0 / 3.0, 12.0, -0.0, 1_234_567.8, f64::NEG_INFINITY, f64::NAN].map(datum);
        let shown = serde_json::to_string(&shown).unwrap();
        assert_eq!(shown, "[0.333333,12,0,1234570,\"-Infinity\",null]");
    }

    #[test]
    fn what_is_in_a_figure_stays_text() {
        let heading = Heading { id: "a", title: "<i>", description: "</p>", ..Heading::default() };
        let data = Data {
            kind: "lines",
            unit: "\"><b>",
            x: (0.0, 1.0),
            y: None,
            at: vec![datum(1.0)],
            series: vec!["</script>"],
        };
        let table = Table {
            first: "<u>".into(),
            columns: vec![("<s>".into(), 0)],
            rows: vec![("<q>".into(), vec![])],
        };
        let html = figure(heading, "", &data, &table);
        for tag in ["<i>", "</p></p>", "<b>", "</script>", "<u>", "<s>", "<q>"] {
            assert!(!html.contains(tag), "{tag}: {html}");
        }
        assert!(html.contains("&quot;at&quot;:[1]"), "{html}");
    }
}
