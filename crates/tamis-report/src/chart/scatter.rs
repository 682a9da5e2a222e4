//! Named dots: two numbers of each thing.

use std::fmt::Write as _;

use super::NUM_COLOURS;
use super::axis::{Frame, Heading, figure, nothing};
use crate::html::escape;

/// Distance between the lines of two names.
const LINE: f64 = 11.0;
/// Width of a letter of a name, about.
const LETTER: f64 = 5.6;

/// A thing with two numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Dot {
    /// Its name, which stands beside it.
    pub name: String,
    /// To the right.
    pub x: f64,
    /// Up.
    pub y: f64,
}

/// Ranges that a chart shows at least.
#[derive(Debug, Clone, Copy, Default)]
pub struct Axis {
    /// To the right.
    pub x: Option<(f64, f64)>,
    /// Up.
    pub y: Option<(f64, f64)>,
}

/// Draws dots with their names, which stand above each other where they would overlap.
pub fn svg(heading: Heading<'_>, dots: &[Dot], least: Axis) -> String {
    let finite: Vec<&Dot> = dots.iter().filter(|dot| dot.x.is_finite() && dot.y.is_finite()).collect();
    if finite.is_empty() {
        return nothing(heading);
    }
    let range = |of: fn(&Dot) -> f64, least: Option<(f64, f64)>| {
        let start = least.unwrap_or((f64::INFINITY, f64::NEG_INFINITY));
        let (low, high) = finite.iter().fold(start, |(low, high), dot| (low.min(of(dot)), high.max(of(dot))));
        let margin = 0.08 * (high - low);
        (low - margin, high + margin)
    };
    let frame = Frame::tall(range(|dot| dot.x, least.x), range(|dot| dot.y, least.y));
    let mut svg = frame.open(heading);
    let (left, right) = frame.sides();
    let mut names: Vec<(f64, f64, f64)> = Vec::new();
    // From the bottom up; names give way to the middle.
    let (top, bottom) = frame.edges();
    let mut order: Vec<(usize, &&Dot)> = finite.iter().enumerate().collect();
    order.sort_by(|one, other| other.1.y.total_cmp(&one.1.y).reverse());
    for (number, dot) in order {
        let (x, y) = (frame.x(dot.x), frame.y(dot.y));
        let is_high = y < f64::midpoint(top, bottom);
        let width = LETTER * dot.name.chars().count() as f64;
        let is_left = x + 6.0 + width > right;
        let (from, to) = if is_left { (x - 6.0 - width, x - 6.0) } else { (x + 6.0, x + 6.0 + width) };
        let (from, to) = if from < left { (left, left + width) } else { (from, to) };
        let mut at = y + 3.5;
        let overlaps = |at: f64, names: &[(f64, f64, f64)]| {
            let lines = names
                .iter()
                .filter(|(start, end, line)| *start < to && from < *end && (at - line).abs() < LINE);
            lines.map(|(.., line)| *line).reduce(if is_high { f64::max } else { f64::min })
        };
        while let Some(line) = overlaps(at, &names) {
            at = line + if is_high { LINE } else { -LINE };
        }
        names.push((from, to, at));
        let colour = number % NUM_COLOURS;
        let _ = write!(svg, "<g class=\"c{colour}\"><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\"/>");
        if (at - y - 3.5).abs() > 1.0 {
            let end = if is_left { to } else { from };
            let _ = write!(
                svg,
                "<path class=\"line\" style=\"stroke-width:.6\" d=\"M{x:.1} {y:.1}L{end:.1} {:.1}\"/>",
                at - 3.5
            );
        }
        let _ = write!(
            svg,
            "<text x=\"{from:.1}\" y=\"{at:.1}\" style=\"font-size:9.5px\">{}</text></g>",
            escape(&dot.name)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// A description of dots, for who cannot see them.
pub fn describe(dots: &[Dot], x: &str, y: &str) -> String {
    let listed: Vec<String> = dots
        .iter()
        .map(|dot| format!("{}: {} {x}, {} {y}.", dot.name, figure(dot.x), figure(dot.y)))
        .collect();
    listed.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADING: Heading<'_> = Heading { id: "a", title: "t", description: "d", unit: "u" };

    fn dot(name: &str, x: f64, y: f64) -> Dot {
        Dot { name: name.to_owned(), x, y }
    }

    #[test]
    fn names_do_not_lie_on_each_other() {
        let dots =
            [dot("one", 1.0, 1.0), dot("<two>", 1.0, 1.0), dot("three", 1.001, 1.0), dot("far", 9.0, 5.0)];
        let drawn = svg(HEADING, &dots, Axis::default());
        assert_eq!(drawn.matches("<circle").count(), 4);
        assert!(drawn.contains("&lt;two&gt;") && !drawn.contains("NaN"), "{drawn}");
        let mut lines: Vec<&str> = drawn
            .split("<text x=\"")
            .skip(1)
            .filter(|part| ["one<", "two&gt;<", "three<"].iter().any(|name| part.contains(name)))
            .filter_map(|part| part.split("y=\"").nth(1)?.split('"').next())
            .collect();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 3, "{drawn}");
        assert!(svg(HEADING, &[dot("nothing", f64::NAN, 1.0)], Axis::default()).contains("no values"));
        assert_eq!(describe(&dots[..1], "s", "versions"), "one: 1 s, 1 versions.");
    }
}
