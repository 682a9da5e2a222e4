//! A line chart: lines over common places, with bands, breaks at missing values, a legend and a table of the
//! numbers.

use serde::Serialize;
use serde_json::Value;

use super::number::figure as number;
use super::{Data, Figure, Heading, LegendKey, NUM_COLOURS, Table, datum};

/// A value, with the least and the largest of the values behind it. An infinite one is marked at the edge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Place.
    pub at: f64,
    /// Value.
    pub value: f64,
    /// The least.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Point {
    /// A single value.
    pub fn one(at: f64, value: f64) -> Self {
        Self { at, value, least: value, most: value }
    }
}

/// Index of the text's colour, which a line may also have.
const INK: usize = NUM_COLOURS;
/// Colours of baselines.
const BASELINE_COLOURS: [usize; 5] = [INK, 3, 7, 6, 2];

/// Colour and stroke of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CurveLook {
    /// Number of its colour.
    pub colour: usize,
    /// Number of its dashes: 0 solid, 1 dashed, 2 dotted, 3 dash-dotted.
    pub dash: usize,
}

impl CurveLook {
    /// The looks of lines; `true` marks a baseline, which is dashed. All are different for up to twice as
    /// many lines as there are colours.
    pub fn of(are_baselines: &[bool]) -> Vec<Self> {
        let mut counts = [0, 0];
        let of = |is_baseline: &bool| {
            let count = &mut counts[usize::from(*is_baseline)];
            let place = *count;
            *count += 1;
            if *is_baseline {
                let num_colours = BASELINE_COLOURS.len();
                let dash = if (place / num_colours).is_multiple_of(2) { 1 } else { 3 };
                Self { colour: BASELINE_COLOURS[place % num_colours], dash }
            } else {
                Self {
                    colour: place % NUM_COLOURS,
                    dash: if (place / NUM_COLOURS).is_multiple_of(2) { 0 } else { 2 },
                }
            }
        };
        are_baselines.iter().map(of).collect()
    }

    fn drawn(self) -> Self {
        let colour = if self.colour == INK { INK } else { self.colour % NUM_COLOURS };
        Self { colour, dash: self.dash % 4 }
    }

    /// The entry of a line in a legend.
    pub fn key(self, name: &str, run: Option<usize>) -> LegendKey {
        LegendKey { name: name.to_owned(), fill: String::new(), look: Some(self.drawn()), run }
    }
}

/// One line, with a band around it.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Number of its run.
    pub run: usize,
    /// How it is drawn.
    pub look: CurveLook,
    /// Its points, in order of their places.
    pub points: Vec<Point>,
}

impl Curve {
    /// Its only value, if it has no other.
    pub fn constant(&self) -> Option<f64> {
        let first = self.points.first()?;
        let is_same = |point: &Point| {
            [point.value, point.least, point.most].iter().all(|value| value.total_cmp(&first.value).is_eq())
        };
        self.points.iter().all(is_same).then_some(first.value)
    }
}

/// Ranges that a chart shows at least.
#[derive(Debug, Clone, Copy, Default)]
pub struct Range {
    /// Places.
    pub x: Option<(f64, f64)>,
    /// Values. They end exactly there if no value is beyond.
    pub y: Option<(f64, f64)>,
}

#[derive(Debug, Serialize)]
struct Drawn {
    run: usize,
    colour: usize,
    dash: usize,
    /// A value for each place; null: none.
    values: Vec<Value>,
    /// Places between which the line breaks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gaps: Vec<(f64, f64)>,
    /// The bounds of its band, if it has one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    least: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    most: Vec<Value>,
}

/// Draws lines. `name` formats a place. A line breaks at missing values: between points that are further
/// apart than twice its usual distance.
pub fn chart(heading: Heading, lines: &[Curve], range: Range, name: &dyn Fn(f64) -> String) -> Figure {
    let mut places: Vec<f64> = lines.iter().flat_map(|line| &line.points).map(|point| point.at).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let bounds = places.iter().fold(range.x, |bounds, &at| {
        let (low, high) = bounds.unwrap_or((at, at));
        Some((low.min(at), high.max(at)))
    });
    let row = |&at: &f64| {
        let cell = |line: &Curve| {
            let found = line.points.binary_search_by(|point| point.at.total_cmp(&at)).ok();
            found.and_then(|place| line.points.get(place)).map_or(f64::NAN, |point| point.value)
        };
        (name(at), lines.iter().map(|line| number(cell(line))).collect())
    };
    let table = Table {
        first: heading.unit.clone(),
        columns: lines.iter().map(|line| (line.name.clone(), line.run)).collect(),
        rows: places.iter().map(row).collect(),
    };
    let data = Data {
        kind: "lines",
        unit: &heading.unit,
        x: bounds.unwrap_or((0.0, 1.0)),
        y: range.y,
        series: lines.iter().map(|line| drawn(line, &places)).collect(),
        at: places.into_iter().map(datum).collect(),
    };
    let legend = lines.iter().map(|line| line.look.key(&line.name, Some(line.run))).collect();
    Figure { data: data.json(), legend, scale: None, table, heading }
}

fn drawn(line: &Curve, places: &[f64]) -> Drawn {
    let finite = || line.points.iter().filter(|point| point.value.is_finite()).map(|point| point.at);
    let pairs: Vec<(f64, f64)> = finite().zip(finite().skip(1)).collect();
    let mut distances: Vec<f64> = pairs.iter().map(|(from, to)| to - from).collect();
    distances.sort_by(f64::total_cmp);
    let usual = distances.get(distances.len() / 2).copied().unwrap_or(0.0);
    let gaps = pairs.into_iter().filter(|(from, to)| to - from > 2.0 * usual + 1e-9).collect();
    let all = |of: fn(&Point) -> f64| -> Vec<Value> {
        let point = |at: &f64| line.points.binary_search_by(|point| point.at.total_cmp(at)).ok();
        let value = |place: Option<usize>| line.points.get(place?).map(of);
        places.iter().map(|at| datum(value(point(at)).unwrap_or(f64::NAN))).collect()
    };
    let has_band = line.points.iter().any(|point| point.most > point.least);
    let bound = |of: fn(&Point) -> f64| if has_band { all(of) } else { Vec::new() };
    let CurveLook { colour, dash } = line.look.drawn();
    Drawn {
        run: line.run,
        colour,
        dash,
        values: all(|point| point.value),
        gaps,
        least: bound(|point| point.least),
        most: bound(|point| point.most),
    }
}

/// A description of lines: first and last value of each, and the least and the largest.
pub fn describe(lines: &[Curve], unit: &str) -> String {
    let of = |line: &Curve| {
        let (first, last) = (line.points.first()?, line.points.last()?);
        let least = line.points.iter().map(|point| point.least).fold(f64::INFINITY, f64::min);
        let most = line.points.iter().map(|point| point.most).fold(f64::NEG_INFINITY, f64::max);
        Some(format!(
            "{}: {} at {unit} {}, {} at {unit} {}, between {} and {}.",
            line.name,
            number(first.value),
            number(first.at),
            number(last.value),
            number(last.at),
            number(least),
            number(most)
        ))
    };
    let described: Vec<String> = lines.iter().filter_map(of).collect();
    if described.is_empty() { "No values.".to_owned() } else { described.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(points: &[(f64, f64)]) -> Curve {
        let points = points.iter().map(|&(at, value)| Point::one(at, value)).collect();
        Curve { name: "a<b".to_owned(), run: 0, look: CurveLook { colour: 1, dash: 0 }, points }
    }

    fn values(line: &Curve, places: &[f64]) -> String {
        serde_json::to_string(&drawn(line, places).values).unwrap()
    }

    #[test]
    fn lines_share_their_places_and_their_table() {
        let mut banded = line(&[(1.0, 0.5), (2.0, 1.0)]);
        banded.points[0].least = 0.4;
        let heading = Heading { unit: "step".into(), ..Heading::default() };
        let found = chart(heading, &[banded, line(&[(3.0, 2.0)])], Range::default(), &|at| format!("s{at}"));
        assert!(found.data.contains("\"at\":[1,2,3]") && found.data.contains("\"least\":[0.4,1,null]"));
        let row = |name: &str, cells: [&str; 2]| (name.to_owned(), cells.map(str::to_owned).to_vec());
        assert_eq!(found.table.rows[1..], [row("s2", ["1", "–"]), row("s3", ["–", "2"])]);
    }

    #[test]
    fn a_line_breaks_where_values_are_missing_and_not_where_they_are_rare() {
        let broken = line(&[(1.0, 0.0), (2.0, 0.0), (3.0, 1.0), (7.0, 1.0), (8.0, 1.0)]);
        assert_eq!(values(&broken, &[1.0, 2.0, 3.0, 5.0, 7.0, 8.0]), "[0,0,1,null,1,1]");
        assert_eq!(drawn(&broken, &[]).gaps, [(3.0, 7.0)]);
        let rare = line(&[(10.0, 0.0), (20.0, 0.0), (30.0, 1.0), (35.0, 1.0)]);
        assert_eq!(drawn(&rare, &[]).gaps, []);
    }

    #[test]
    fn what_is_infinite_is_kept_apart() {
        let line = line(&[(1.0, 1.0), (3.0, f64::INFINITY)]);
        assert_eq!(values(&line, &[1.0, 3.0]), "[1,\"Infinity\"]");
        assert_eq!(describe(&[line], "step"), "a<b: 1 at step 1, ∞ at step 3, between 1 and ∞.");
    }

    #[test]
    fn a_constant_is_known() {
        assert_eq!(line(&[(1.0, 2.0), (3.0, 2.0)]).constant(), Some(2.0));
        assert_eq!(line(&[(1.0, 2.0), (3.0, 2.5)]).constant(), None);
        let mut banded = line(&[(1.0, 2.0)]);
        banded.points[0].most = 3.0;
        assert_eq!((banded.constant(), line(&[]).constant()), (None, None));
    }

    #[test]
    fn lines_are_told_apart() {
        // Twice the colours of each kind, in an order as in a sweep: a baseline before some others.
        let are_baselines: Vec<bool> = (0..26).map(|place| place % 13 < 5).collect();
        let looks = CurveLook::of(&are_baselines);
        for (place, look) in looks.iter().enumerate() {
            assert!(!looks[..place].contains(look), "line {place} looks as one before it: {look:?}");
        }
        assert_eq!(
            [looks[0], looks[5]],
            [CurveLook { colour: 8, dash: 1 }, CurveLook { colour: 0, dash: 0 }]
        );
        let is_dashed = |look: &CurveLook| look.dash % 2 == 1;
        assert_eq!(looks.iter().map(is_dashed).collect::<Vec<_>>(), are_baselines);
    }
}
