//! A heat map: columns of cells, each coloured by its value.

use serde::Serialize;
use serde_json::Value;

use super::number::figure as number;
use super::{Data, Figure, Heading, LegendKey, NUM_LEVELS, Table, datum, level};

/// One cell of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeatCell {
    /// Its value; NaN: none.
    pub value: f64,
    /// Whether it is hatched.
    pub is_hatched: bool,
}

#[derive(Debug, Serialize)]
struct Drawn {
    /// A word for each column: its cells from the bottom, `a` for the lowest level and so on. The letter
    /// after those of the levels is a cell without a value. Hatched cells are capitals.
    values: Vec<Value>,
}

fn letter(cell: &HeatCell, range: (f64, f64)) -> char {
    let level = if cell.value.is_nan() { NUM_LEVELS } else { level(cell.value, range) };
    char::from((if cell.is_hatched { b'A' } else { b'a' }) + level as u8)
}

/// Draws columns whose cells fill the whole height, from the bottom up. `range` is that of the colours;
/// `hatched` explains the hatching.
pub fn chart(
    heading: Heading,
    hatched: &str,
    columns: &[(f64, Vec<HeatCell>)],
    range: (f64, f64),
    table: Table,
) -> Figure {
    // A column reaches half the way to its neighbours. A single one is as wide as a step.
    let half = |pair: Option<&[(f64, Vec<HeatCell>)]>| pair.map_or(0.5, |pair| (pair[1].0 - pair[0].0) / 2.0);
    let (first, last) = (half(columns.windows(2).next()), half(columns.windows(2).last()));
    let end = |column: Option<&(f64, Vec<HeatCell>)>| column.map_or(0.0, |(at, _)| *at);
    let word = |(_, cells): &(f64, Vec<HeatCell>)| {
        cells.iter().map(|cell| letter(cell, range)).collect::<String>().into()
    };
    let data = Data {
        kind: "cells",
        unit: &heading.unit,
        x: (end(columns.first()) - first, end(columns.last()) + last),
        y: Some((0.0, 100.0)),
        at: columns.iter().map(|(at, _)| datum(*at)).collect(),
        series: vec![Drawn { values: columns.iter().map(word).collect() }],
    };
    let key = LegendKey { name: hatched.to_owned(), fill: "hatch framed".to_owned(), look: None, run: None };
    let scale = Some([range.0, range.1].map(number));
    Figure { data: data.json(), legend: vec![key], scale, table, heading }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_a_word() {
        let cell = |value, is_hatched| HeatCell { value, is_hatched };
        let column = vec![cell(f64::NAN, true), cell(0.0, true), cell(0.5, false), cell(1.0, true)];
        let columns = [(1.0, column), (5.0, vec![])];
        let found = chart(Heading::default(), "", &columns, (0.0, 1.0), Table::default());
        let end = r#""x":[-1.0,7.0],"y":[0.0,100.0],"at":[1,5],"series":[{"values":["LAfK",""]}]}"#;
        assert!(found.data.ends_with(end), "{}", found.data);
    }
}
