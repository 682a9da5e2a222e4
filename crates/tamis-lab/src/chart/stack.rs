//! Stacked columns: parts of a whole, place by place.

use serde::Serialize;
use serde_json::Value;

use super::number::figure as number;
use super::{Data, Figure, Heading, LegendKey, Table, datum};

/// One part of every column.
#[derive(Debug, Clone)]
pub struct StackLayer {
    /// Its name.
    pub name: String,
    /// The class that fills it.
    pub fill: String,
    /// Its size at each place; NaN: none.
    pub sizes: Vec<f64>,
}

/// Data of a chart of columns.
#[derive(Debug, Clone, Copy)]
pub struct Stack<'a> {
    /// The layers from the bottom up.
    pub layers: &'a [StackLayer],
    /// Position and name of each column.
    pub places: &'a [(f64, String)],
    /// Width of a column.
    pub width: f64,
    /// Least height of the vertical axis.
    pub whole: f64,
    /// Number of the run.
    pub run: usize,
}

#[derive(Debug, Serialize)]
struct Drawn<'a> {
    fill: &'a str,
    values: Vec<Value>,
}

impl Stack<'_> {
    fn size(layer: &StackLayer, place: usize) -> f64 {
        layer.sizes.get(place).copied().unwrap_or(f64::NAN)
    }

    /// Indices of the places at which a layer has a size.
    fn known(&self) -> Vec<usize> {
        let has = |place: &usize| self.layers.iter().any(|layer| !Self::size(layer, *place).is_nan());
        (0..self.places.len()).filter(has).collect()
    }

    /// If all columns are alike, the sizes of one.
    pub fn constant(&self) -> Option<Vec<(&str, f64)>> {
        let known = self.known();
        let first = *known.first()?;
        let is_same = |layer: &StackLayer| {
            let size = |place| Self::size(layer, place);
            known.iter().all(|place| size(*place).total_cmp(&size(first)).is_eq())
        };
        let of = |layer| (layer, Self::size(layer, first));
        self.layers
            .iter()
            .all(is_same)
            .then(|| self.layers.iter().map(of).map(|(layer, size)| (layer.name.as_str(), size)).collect())
    }

    /// Draws the columns.
    pub fn chart(&self, heading: Heading) -> Figure {
        let known = self.known();
        let at = |place: &usize| self.places.get(*place).map_or(0.0, |(at, _)| *at);
        let height = |place: &usize| -> f64 {
            self.layers.iter().map(|layer| Self::size(layer, *place)).filter(|size| size.is_finite()).sum()
        };
        let ends = |place: Option<&usize>, side: f64| place.map_or(0.0, at) + side * self.width / 2.0;
        let data = Data {
            kind: "stack",
            unit: &heading.unit,
            x: (ends(known.first(), -1.0), ends(known.last(), 1.0)),
            y: Some((0.0, known.iter().map(height).fold(self.whole, f64::max))),
            at: known.iter().map(at).map(datum).collect(),
            series: self
                .layers
                .iter()
                .map(|layer| Drawn {
                    fill: &layer.fill,
                    values: known.iter().map(|place| datum(Self::size(layer, *place))).collect(),
                })
                .collect(),
        };
        let row = |place: &usize| {
            let name = self.places.get(*place).map_or("", |(_, name)| name).to_owned();
            (name, self.layers.iter().map(|layer| number(Self::size(layer, *place))).collect())
        };
        let table = Table {
            first: heading.unit.clone(),
            columns: self.layers.iter().map(|layer| (layer.name.clone(), self.run)).collect(),
            rows: known.iter().map(row).collect(),
        };
        let key = |layer: &StackLayer| LegendKey {
            name: layer.name.clone(),
            fill: layer.fill.clone(),
            look: None,
            run: None,
        };
        let legend = self.layers.iter().map(key).collect();
        Figure { data: data.json(), legend, scale: None, table, heading }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_without_sizes_are_left_out() {
        let layer = |sizes: &[f64]| StackLayer { name: "l".into(), fill: "s0".into(), sizes: sizes.to_vec() };
        let layers = [layer(&[1.0, f64::NAN, 2.0]), layer(&[3.0, f64::NAN, f64::NAN])];
        let places = [(1.0, "1".into()), (2.0, "2".into()), (3.0, "3".into())];
        let stack = Stack { layers: &layers, places: &places, width: 1.0, whole: 0.0, run: 0 };
        let found = stack.chart(Heading { unit: "step".into(), ..Heading::default() });
        assert!(found.data.contains(r#""x":[0.5,3.5],"y":[0.0,4.0],"at":[1,3]"#), "{}", found.data);
        assert!(found.data.contains(r#""values":[3,null]"#), "{}", found.data);
        assert_eq!(found.table.rows[1], ("3".to_owned(), vec!["2".to_owned(), "–".to_owned()]));
        assert_eq!(stack.constant(), None);
        let one = Stack { places: &places[..1], ..stack };
        assert_eq!(one.constant(), Some(vec![("l", 1.0), ("l", 3.0)]));
    }
}
