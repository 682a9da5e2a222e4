//! A line chart.

use std::fmt::Write as _;

use super::NUM_COLOURS;
use super::axis::{Frame, Heading, figure, nothing};
use crate::html::escape;

/// Lines with so few points have dots at them.
const FEW: usize = 40;

/// A value with the least and the largest of those that it stands for. An infinite one is marked at the edge.
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
    /// A value that stands for itself.
    pub fn one(at: f64, value: f64) -> Self {
        Self { at, value, least: value, most: value }
    }
}

/// Number of the colour of text, which a line of [`NUM_COLOURS`] others may have too.
const INK: usize = NUM_COLOURS;
/// Colours of what others are compared with.
const BASELINE_COLOURS: [usize; 5] = [INK, 3, 7, 6, 2];

/// Colour and stroke of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Number of its colour.
    pub colour: usize,
    /// Number of its dashes: 0 drawn through, 1 dashed, 2 dotted, 3 dashed and dotted.
    pub dash: usize,
}

impl Look {
    /// The looks of lines, of each of which it is said whether others are compared with it, and is dashed
    /// then: no two alike, up to twice as many as there are colours.
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

    fn classes(self) -> String {
        let Self { colour, dash } = self;
        format!("c{} d{}", if colour == INK { INK } else { colour % NUM_COLOURS }, dash % 4)
    }
}

/// One line, with a band around it.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Further classes of its parts; empty: none.
    pub class: String,
    /// How it is drawn.
    pub look: Look,
    /// Its points, in order of their places.
    pub points: Vec<Point>,
}

/// Ranges that a chart shows at least.
#[derive(Debug, Clone, Copy, Default)]
pub struct Range {
    /// Places.
    pub x: Option<(f64, f64)>,
    /// Values. They end exactly there, where they do not reach further.
    pub y: Option<(f64, f64)>,
}

/// Draws lines. A line breaks where values are missing: where two points are further apart than twice the
/// usual distance of its points.
pub fn svg(heading: Heading<'_>, lines: &[Line], range: Range) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let finite = || points().filter(|point| point.value.is_finite());
    let least = |of: fn(&Point) -> f64, start: f64| {
        finite().map(of).filter(|of| of.is_finite()).fold(start, f64::min)
    };
    let most = |of: fn(&Point) -> f64, start: f64| {
        finite().map(of).filter(|of| of.is_finite()).fold(start, f64::max)
    };
    if points().next().is_none() {
        return nothing(heading);
    }
    let places = points().map(|point| point.at).fold(range.x, |bounds, at| {
        let (low, high) = bounds.unwrap_or((at, at));
        Some((low.min(at), high.max(at)))
    });
    let (low, high) =
        (least(|point| point.least, f64::INFINITY), most(|point| point.most, f64::NEG_INFINITY));
    // Infinities alone have no scale of their own.
    let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
    let margin = if high > low { 0.06 * (high - low) } else { 0.5 * high.abs().max(1e-3) };
    let inside = |bound: f64| range.y.is_some_and(|(from, to)| (from..=to).contains(&bound));
    let y0 = if inside(low) { range.y.map_or(low, |(from, _)| from) } else { low - margin };
    let y1 = if inside(high) { range.y.map_or(high, |(_, to)| to) } else { high + margin };
    let frame = Frame::new(places.unwrap_or((0.0, 1.0)), (y0, y1));
    let mut svg = frame.open(heading);
    for line in lines {
        let class = format!("{} {}", escape(&line.class), line.look.classes());
        let _ = write!(svg, "<g class=\"{}\">{}</g>", class.trim(), draw(line, &frame));
    }
    svg.push_str("</svg>");
    svg
}

/// The parts of a line between its gaps.
fn parts(points: &[Point]) -> Vec<&[Point]> {
    let mut distances: Vec<f64> = points.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    distances.sort_by(f64::total_cmp);
    let usual = distances.get(distances.len() / 2).copied().unwrap_or(0.0);
    points.chunk_by(|one, next| next.at - one.at <= 2.0 * usual + 1e-9).collect()
}

fn draw(line: &Line, frame: &Frame) -> String {
    let mut drawn = String::new();
    let (mut path, mut dots, mut band, mut marks) =
        (String::new(), String::new(), String::new(), String::new());
    let (top, bottom) = frame.edges();
    let has_dots = line.points.len() <= FEW;
    let finite: Vec<Point> = line.points.iter().copied().filter(|point| point.value.is_finite()).collect();
    for part in parts(&finite) {
        for (place, point) in part.iter().enumerate() {
            let (x, y) = (frame.x(point.at), frame.y(point.value));
            if part.len() > 1 {
                let _ = write!(path, "{}{x:.1} {y:.1}", if place == 0 { 'M' } else { 'L' });
            }
            if has_dots || part.len() == 1 {
                let _ = write!(dots, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.2\"/>");
            }
        }
        if part.len() > 1 && part.iter().any(|point| point.most > point.least) {
            for (place, point) in part.iter().enumerate() {
                let bound = if point.most.is_finite() { frame.y(point.most) } else { top };
                let _ =
                    write!(band, "{}{:.1} {bound:.1}", if place == 0 { 'M' } else { 'L' }, frame.x(point.at));
            }
            for point in part.iter().rev() {
                let bound = if point.least.is_finite() { frame.y(point.least) } else { bottom };
                let _ = write!(band, "L{:.1} {bound:.1}", frame.x(point.at));
            }
            band.push('Z');
        }
    }
    for point in line.points.iter().filter(|point| point.value.is_infinite()) {
        let x = frame.x(point.at);
        let (tip, base) = if point.value > 0.0 { (top, top + 8.0) } else { (bottom, bottom - 8.0) };
        let _ = write!(marks, "M{x:.1} {tip:.1}L{:.1} {base:.1}H{:.1}Z", x - 4.0, x + 4.0);
    }
    for (class, path) in [("band", band), ("line", path), ("mark", marks)] {
        if !path.is_empty() {
            let _ = write!(drawn, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }
    drawn + &dots
}

/// The entry of a line in a legend.
pub fn key(name: &str, look: Look) -> String {
    format!(
        "<span><svg class=\"key\" viewBox=\"0 0 26 8\" aria-hidden=\"true\"><g class=\"{}\"><path class=\"line\" d=\"M1 4H25\"/></g></svg>{}</span> ",
        look.classes(),
        escape(name)
    )
}

/// A description of lines: for each its first and last value, and the least and the largest.
pub fn describe(lines: &[Line], unit: &str) -> String {
    let of = |line: &Line| {
        let (first, last) = (line.points.first()?, line.points.last()?);
        let least = line.points.iter().map(|point| point.least).fold(f64::INFINITY, f64::min);
        let most = line.points.iter().map(|point| point.most).fold(f64::NEG_INFINITY, f64::max);
        Some(format!(
            "{}: {} at {unit} {}, {} at {unit} {}, between {} and {}.",
            line.name,
            figure(first.value),
            figure(first.at),
            figure(last.value),
            figure(last.at),
            figure(least),
            figure(most)
        ))
    };
    let described: Vec<String> = lines.iter().filter_map(of).collect();
    if described.is_empty() { "No values.".to_owned() } else { described.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADING: Heading<'_> = Heading { id: "a", title: "x & y", description: "d", unit: "step" };

    fn line(points: &[(f64, f64)]) -> Line {
        let points = points.iter().map(|&(at, value)| Point::one(at, value)).collect();
        Line { name: "a<b".to_owned(), class: String::new(), look: Look { colour: 1, dash: 0 }, points }
    }

    #[test]
    fn a_chart_is_drawn_and_names_are_escaped() {
        let mut banded = line(&[(1.0, 0.5), (2.0, 1.0)]);
        banded.points[0].least = 0.4;
        let drawn = svg(HEADING, &[banded], Range::default());
        assert!(drawn.contains("x &amp; y") && drawn.contains("class=\"band\""), "{drawn}");
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        assert!(svg(HEADING, &[], Range::default()).contains("no values"));
    }

    #[test]
    fn a_line_breaks_where_values_are_missing_and_not_where_they_are_rare() {
        let begins = |points: &[(f64, f64)]| {
            svg(HEADING, &[line(points)], Range::default()).matches("class=\"line\" d=\"").count()
        };
        let moves = |points: &[(f64, f64)]| {
            let drawn = svg(HEADING, &[line(points)], Range::default());
            let path =
                drawn.split("class=\"line\" d=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
            path.matches('M').count()
        };
        assert_eq!(moves(&[(1.0, 0.0), (2.0, 0.0), (3.0, 1.0), (7.0, 1.0), (8.0, 1.0)]), 2);
        assert_eq!(moves(&[(10.0, 0.0), (20.0, 0.0), (30.0, 1.0), (35.0, 1.0)]), 1);
        assert_eq!(begins(&[(1.0, 1.0)]), 0, "one value is a dot");
    }

    #[test]
    fn what_is_infinite_is_marked_and_does_not_set_the_scale() {
        let drawn = svg(HEADING, &[line(&[(1.0, 1.0), (2.0, f64::INFINITY), (3.0, 2.0)])], Range::default());
        assert!(drawn.contains("class=\"mark\"") && !drawn.contains("inf"), "{drawn}");
        let drawn = svg(HEADING, &[line(&[(1.0, f64::NEG_INFINITY)])], Range::default());
        assert!(drawn.contains("class=\"mark\""), "{drawn}");
        assert_eq!(
            describe(&[line(&[(1.0, 1.0), (3.0, f64::INFINITY)])], "step"),
            "a<b: 1 at step 1, ∞ at step 3, between 1 and ∞."
        );
    }

    #[test]
    fn lines_are_told_apart() {
        // Twice the colours of each sort, as they may come in a sweep: a baseline before some others.
        let are_baselines: Vec<bool> = (0..26).map(|place| place % 13 < 5).collect();
        let looks = Look::of(&are_baselines);
        for (place, look) in looks.iter().enumerate() {
            assert!(!looks[..place].contains(look), "line {place} looks as one before it: {look:?}");
        }
        assert_eq!((looks[0].classes(), looks[5].classes()), ("c8 d1".to_owned(), "c0 d0".to_owned()));
        let is_dashed = |look: &Look| look.dash % 2 == 1;
        assert_eq!(looks.iter().map(is_dashed).collect::<Vec<_>>(), are_baselines);
    }

    #[test]
    fn a_given_range_holds_until_values_leave_it() {
        let share = Range { x: None, y: Some((0.0, 1.0)) };
        let drawn = svg(HEADING, &[line(&[(1.0, 0.4), (2.0, 0.5)])], share);
        assert!(drawn.contains(">1</text>") && drawn.contains(">0</text>"), "{drawn}");
        let drawn = svg(HEADING, &[line(&[(1.0, 0.4), (2.0, 3.0)])], share);
        assert!(drawn.contains(">3</text>"), "{drawn}");
    }
}
