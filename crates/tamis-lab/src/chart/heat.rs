//! A heat map: columns of cells, each coloured by its value.

use std::fmt::Write as _;

use super::axis::{Frame, Heading, nothing};
use super::{NUM_LEVELS, level};

/// One cell of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// Its value; NaN: none.
    pub value: f64,
    /// Whether it is hatched.
    pub is_hatched: bool,
}

/// Draws columns at places, the cells of each from the bottom to the top over the whole height; a column
/// reaches half the way to its neighbours. `range` is that of the colours.
pub fn svg(heading: Heading<'_>, columns: &[(f64, Vec<Cell>)], range: (f64, f64)) -> String {
    let (Some(&(first, _)), Some(&(last, _))) = (columns.first(), columns.last()) else {
        return nothing(heading);
    };
    // A single column is as wide as a step.
    let distance = |one: usize, other: usize| match (columns.get(one), columns.get(other)) {
        (Some((one, _)), Some((other, _))) if columns.len() > 1 => (other - one) / 2.0,
        _ => 0.5,
    };
    let (before, after) = (distance(0, 1), distance(columns.len().wrapping_sub(2), columns.len() - 1));
    let frame = Frame::new((first - before, last + after), (0.0, 100.0));
    let mut levels = vec![String::new(); NUM_LEVELS];
    let (mut unknown, mut hatched) = (String::new(), String::new());
    for (place, (at, cells)) in columns.iter().enumerate() {
        let to_left = if place == 0 { before } else { distance(place - 1, place) };
        let to_right = if place + 1 == columns.len() { after } else { distance(place, place + 1) };
        let (left, right) = (frame.x(at - to_left), frame.x(at + to_right));
        let rectangle = |into: &mut String, from: usize, to: usize| {
            let y = |cell: usize| frame.y(100.0 * cell as f64 / cells.len() as f64);
            let _ = write!(into, "M{left:.1} {:.1}V{:.1}H{right:.1}V{:.1}Z", y(from), y(to), y(from));
        };
        let class = |cell: &Cell| if cell.value.is_nan() { NUM_LEVELS } else { level(cell.value, range) };
        let mut from = 0;
        for run in cells.chunk_by(|one, next| class(one) == class(next)) {
            let to = from + run.len();
            let into = run.first().and_then(|cell| levels.get_mut(class(cell)));
            rectangle(into.unwrap_or(&mut unknown), from, to);
            from = to;
        }
        from = 0;
        for run in cells.chunk_by(|one, next| one.is_hatched == next.is_hatched) {
            let to = from + run.len();
            if run.first().is_some_and(|cell| cell.is_hatched) {
                rectangle(&mut hatched, from, to);
            }
            from = to;
        }
    }
    let mut svg = frame.open(heading);
    let named = levels.into_iter().enumerate().map(|(number, path)| (format!("h{number}"), path));
    for (class, path) in named.chain([("none".to_owned(), unknown), ("hatch".to_owned(), hatched)]) {
        if !path.is_empty() {
            let _ = write!(svg, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_neighbours_are_one_rectangle() {
        let heading = Heading { id: "a", title: "t", description: "d", unit: "step" };
        let cell = |value, is_hatched| Cell { value, is_hatched };
        let column =
            vec![cell(0.0, true), cell(0.0, true), cell(0.5, false), cell(1.0, true), cell(f64::NAN, false)];
        let drawn = svg(heading, &[(1.0, column)], (0.0, 1.0));
        for (class, rectangles) in [("h0", 1), ("h5", 1), ("h10", 1), ("none", 1), ("hatch", 2)] {
            let path =
                drawn.split(&format!("class=\"{class}\" d=\"")).nth(1).unwrap().split('"').next().unwrap();
            assert_eq!(path.matches('M').count(), rectangles, "{class} in {drawn}");
        }
        assert!(svg(heading, &[], (0.0, 1.0)).contains("no values"));
    }
}
