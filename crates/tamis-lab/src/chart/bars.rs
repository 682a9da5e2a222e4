//! Lying bars of parts, one for each thing, with its name before it.

use std::fmt::Write as _;

use super::NUM_COLOURS;
use super::axis::{Heading, begin, label, nothing};
use crate::html::escape;

const WIDTH: f64 = 400.0;
const LEFT: f64 = 138.0;
const RIGHT: f64 = 40.0;
const ROW: f64 = 15.0;

/// A bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Sizes of its parts, 0 and more.
    pub parts: Vec<f64>,
}

/// Draws bars; at the end of each stands its sum.
pub fn svg(heading: Heading<'_>, bars: &[Bar]) -> String {
    let sum = |bar: &Bar| bar.parts.iter().filter(|part| part.is_finite()).sum::<f64>();
    let most = bars.iter().map(sum).fold(0.0, f64::max);
    if most <= 0.0 {
        return nothing(heading);
    }
    let mut svg = begin(heading, ROW * bars.len() as f64 + 4.0);
    for (number, bar) in bars.iter().enumerate() {
        let top = ROW * number as f64 + 2.0;
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" style=\"font-size:9.5px\">{}</text>",
            LEFT - 5.0,
            top + 10.0,
            escape(&bar.name)
        );
        let mut from = LEFT;
        for (place, part) in bar.parts.iter().enumerate().filter(|(_, part)| **part > 0.0 && part.is_finite())
        {
            let width = part / most * (WIDTH - LEFT - RIGHT);
            let fill = fill(place);
            let _ = write!(
                svg,
                "<rect class=\"{fill}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"12\"/>"
            );
            from += width;
        }
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            from + 4.0,
            top + 10.0,
            label((sum(bar) * 1e3).round() / 1e3)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// The class that fills parts of a place.
fn fill(place: usize) -> String {
    format!("c{} bar-part", place % NUM_COLOURS)
}

/// A legend of the parts.
pub fn legend(names: &[&str]) -> String {
    names.iter().enumerate().fold(String::new(), |mut legend, (place, name)| {
        let _ = write!(
            legend,
            "<span><svg class=\"key\" viewBox=\"0 0 26 10\" aria-hidden=\"true\"><rect class=\"{}\" width=\"26\" height=\"10\"/></svg>{}</span> ",
            fill(place),
            escape(name)
        );
        legend
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stand_behind_each_other() {
        let heading = Heading { id: "a", title: "t", description: "d", unit: "" };
        let bar = |name: &str, parts: &[f64]| Bar { name: name.to_owned(), parts: parts.to_vec() };
        let drawn = svg(heading, &[bar("a<b", &[1.0, 1.0]), bar("c", &[0.0, 0.5])]);
        // The longest bar has the whole width; the second part of the first begins in its middle.
        assert!(
            drawn.contains("x=\"138.0\" y=\"2.0\" width=\"111.0\"") && drawn.contains("x=\"249.0\""),
            "{drawn}"
        );
        assert_eq!(drawn.matches("<rect").count(), 3);
        assert!(drawn.contains("a&lt;b") && drawn.contains(">2</text>"), "{drawn}");
        assert!(svg(heading, &[bar("c", &[0.0])]).contains("no values"));
        assert!(legend(&["x"]).contains("</svg>x</span>"));
    }
}
