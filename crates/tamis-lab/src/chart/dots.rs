//! A chart of named dots, with two numbers each.

use serde::Serialize;
use serde_json::Value;

use super::number::figure as number;
use super::{Data, Figure, Heading, Table, datum};

/// A named pair of numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Dot {
    /// Its name, which is drawn beside it.
    pub name: String,
    /// Horizontal coordinate.
    pub x: f64,
    /// Vertical coordinate.
    pub y: f64,
}

#[derive(Debug, Serialize)]
struct Drawn {
    values: Vec<Value>,
}

/// Draws dots with their names. `up` is the unit of the vertical axis.
pub fn chart(heading: Heading, dots: &[Dot], up: &str) -> Figure {
    let mut dots: Vec<&Dot> = dots.iter().filter(|dot| dot.x.is_finite() && dot.y.is_finite()).collect();
    dots.sort_by(|one, other| one.x.total_cmp(&other.x));
    let bounds = |of: fn(&Dot) -> f64| {
        let all = || dots.iter().map(|dot| of(dot));
        let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
        let margin = if high > low { 0.08 * (high - low) } else { 0.5 * high.abs().max(1e-3) };
        (low - margin, high + margin)
    };
    let data = Data {
        kind: "dots",
        unit: &heading.unit,
        x: bounds(|dot| dot.x),
        y: Some(bounds(|dot| dot.y)),
        at: dots.iter().map(|dot| datum(dot.x)).collect(),
        series: vec![Drawn { values: dots.iter().map(|dot| datum(dot.y)).collect() }],
    };
    let table = Table {
        first: String::new(),
        columns: [&heading.unit, up].map(|name| (name.to_owned(), 0)).to_vec(),
        rows: dots.iter().map(|dot| (dot.name.clone(), vec![number(dot.x), number(dot.y)])).collect(),
    };
    Figure { data: data.json(), legend: Vec::new(), scale: None, table, heading }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_sorted_and_named() {
        let dot = |name: &str, x, y| Dot { name: name.into(), x, y };
        let dots = [dot("far", 3.0, 1.0), dot("<near>", 1.0, 1.0), dot("nothing", f64::NAN, 1.0)];
        let found = chart(Heading { unit: "s".into(), ..Heading::default() }, &dots, "lag");
        assert!(found.data.contains(r#""x":[0.84,3.16],"y":[0.5,1.5],"at":[1,3]"#), "{}", found.data);
        let row = |name: &str, cells: [&str; 2]| (name.to_owned(), cells.map(str::to_owned).to_vec());
        assert_eq!(found.table.rows, [row("<near>", ["1", "1"]), row("far", ["3", "1"])]);
    }
}
