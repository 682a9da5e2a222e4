//! Charts of a page. Each is a figure with its data as JSON, which the script of the page draws, and with a
//! table of the same numbers, which needs no script.
//!
//! ```text
//! lines  -> lines.rs    layers -> stack.rs    scores of groups -> cells.rs    named dots -> dots.rs
//!   all of them -> Figure -> html/page.html: `data-chart`, and a table  -> html/charts.js, with the library uPlot
//! a sparkline of a table -> spark.rs
//! ```
//! Colours are classes and variables (`c0` to `c7`, `h0` to `h10`, fills `s0` to `s9`). The style sheet
//! defines them for light and dark screens and for paper. No information is in colour only: lines have
//! dashes, and layers have patterns.

pub mod cells;
pub mod dots;
pub mod lines;
pub mod number;
pub mod spark;
pub mod stack;

use serde::Serialize;
use serde_json::Value;

use lines::CurveLook;

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

/// The class that colours a value in a range; NaN: none.
pub fn shade(value: f64, range: (f64, f64)) -> String {
    if value.is_nan() { "none".to_owned() } else { format!("h{}", level(value, range)) }
}

/// Title, unit and explanations of a chart.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Heading {
    /// Name of the figure, unique in the page.
    pub id: String,
    /// Further classes of the figure.
    pub class: String,
    /// Title.
    pub title: String,
    /// What it shows, for readers who cannot see it.
    pub description: String,
    /// Unit of the horizontal axis.
    pub unit: String,
    /// Hints for reading it.
    pub about: String,
    /// Metrics that it shows.
    pub metrics: Vec<String>,
    /// Why its values may mislead; empty: no reason.
    pub warning: &'static str,
}

/// The numbers of a chart: one row per place, in the same order.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Table {
    /// Name of the first column.
    pub first: String,
    /// Names of the other columns, and number of the run of each.
    pub columns: Vec<(String, usize)>,
    /// Name of the place, and a cell for each column.
    pub rows: Vec<(String, Vec<String>)>,
}

/// The entry of a line or a layer in a legend.
#[derive(Debug, Clone, Serialize)]
pub struct LegendKey {
    /// Its name.
    pub name: String,
    /// The class that fills it, if it is a layer.
    pub fill: String,
    /// How it is drawn, if it is a line.
    pub look: Option<CurveLook>,
    /// Number of its run, if it vanishes with it.
    pub run: Option<usize>,
}

/// A chart as the template of a page needs it.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    heading: Heading,
    legend: Vec<LegendKey>,
    /// The two ends of the scale of colours, if it has one.
    scale: Option<[String; 2]>,
    /// JSON, which the script of the page draws.
    data: String,
    table: Table,
}

/// The data of a chart in its page.
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

impl<T: Serialize> Data<'_, T> {
    /// The data as JSON. Numbers and colour names always serialise.
    fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A number of a chart with six digits; infinities as words, NaN as null.
fn datum(value: f64) -> Value {
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let rounded = format!("{value:.5e}").parse().unwrap_or(value);
    if rounded.fract() == 0.0 && rounded.abs() < 1e15 { (rounded as i64).into() } else { rounded.into() }
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
}
