//! Named dots: two numbers of each thing.

use std::fmt::Write as _;

use super::NUM_COLOURS;
use super::axis::{Frame, Heading, figure, nothing};
use crate::html::escape;

/// Distance between the lines of two names.
const LINE: f64 = 11.0;
/// Width of a letter of a name, at most about.
const LETTER: f64 = 5.9;
/// Dots that lie nearer to each other are told apart by no eye.
const SAME: f64 = 3.0;
/// Up to here a name stands beside its dot, without a line between them.
const NEAR: f64 = 6.5;

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

/// Draws dots with their names: each beside its dot, or where there is room near it with a line between them.
/// Dots that lie on each other have their names in one block.
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
    let frame = Frame::for_names(range(|dot| dot.x, least.x), range(|dot| dot.y, least.y), finite.len());
    let mut svg = frame.open(heading);
    let places: Vec<(f64, f64)> = finite.iter().map(|dot| (frame.x(dot.x), frame.y(dot.y))).collect();
    let mut names: Vec<Name> = Vec::new();
    for (number, at) in places.iter().enumerate() {
        match names.iter_mut().find(|name| distance(name.dot, *at) < SAME) {
            Some(name) => name.lines.push(number),
            None => names.push(Name { dot: *at, lines: vec![number], area: Area::default() }),
        }
    }
    let length = |number: &usize| finite[*number].name.chars().count();
    let sizes: Vec<(f64, f64)> = names
        .iter()
        .map(|name| {
            let longest = name.lines.iter().map(length).max().unwrap_or(0);
            (LETTER * longest as f64, LINE * name.lines.len() as f64)
        })
        .collect();
    place_names(&mut names, &sizes, &places, &frame);
    for name in &names {
        let (near, (x, y)) = (name.area.nearest(name.dot), name.dot);
        if distance(near, name.dot) > NEAR {
            let _ = write!(
                svg,
                "<path class=\"c{} line\" style=\"stroke-width:.6\" d=\"M{x:.1} {y:.1}L{:.1} {:.1}\"/>",
                name.lines[0] % NUM_COLOURS,
                near.0,
                near.1
            );
        }
    }
    for name in &names {
        for (line, number) in name.lines.iter().enumerate() {
            let (x, y) = places[*number];
            let _ = write!(
                svg,
                "<g class=\"c{}\"><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 style=\"font-size:9.5px;fill:var(--c)\">{}</text></g>",
                number % NUM_COLOURS,
                name.area.left,
                name.area.top + LINE * line as f64 + 8.5,
                escape(&finite[*number].name)
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

/// The names of dots that lie on each other.
struct Name {
    dot: (f64, f64),
    /// Their dots, by number.
    lines: Vec<usize>,
    area: Area,
}

/// A part of the drawing.
#[derive(Debug, Clone, Copy, Default)]
struct Area {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Area {
    /// The place in it that is nearest to another.
    fn nearest(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (x.clamp(self.left, self.left + self.width), y.clamp(self.top, self.top + self.height))
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.left < other.left + other.width
            && other.left < self.left + self.width
            && self.top < other.top + other.height
            && other.top < self.top + self.height
    }

    /// Whether a line crosses it, looked at in steps.
    fn is_crossed(&self, from: (f64, f64), to: (f64, f64)) -> bool {
        (1..24).any(|step| {
            let share = f64::from(step) / 24.0;
            let (x, y) = (from.0 + share * (to.0 - from.0), from.1 + share * (to.1 - from.1));
            self.left < x && x < self.left + self.width && self.top < y && y < self.top + self.height
        })
    }
}

fn distance(one: (f64, f64), other: (f64, f64)) -> f64 {
    // Not by `hypot`: its newest form asks for glibc 2.35, and all else of the program for 2.34.
    ((one.0 - other.0).powi(2) + (one.1 - other.1).powi(2)).sqrt()
}

/// Gives every name the nearest room that is free of names and dots, preferring such where no line crosses a
/// name.
fn place_names(names: &mut [Name], sizes: &[(f64, f64)], dots: &[(f64, f64)], frame: &Frame) {
    let ((left, right), (top, bottom)) = (frame.sides(), frame.edges());
    for number in 0..names.len() {
        let ((x, y), (width, height)) = (names[number].dot, sizes[number]);
        let placed = &names[..number];
        // Beside the dot, and then everywhere.
        let beside = [(x + 6.0, y - 5.5), (x - 6.0 - width, y - 5.5)];
        let columns = ((right - width - left) / 7.0).max(0.0) as usize;
        let rows = ((bottom - height - top) / 5.5).max(0.0) as usize;
        let everywhere = (0..=columns).flat_map(|column| {
            (0..=rows).map(move |row| (left + 7.0 * column as f64, top + 5.5 * row as f64))
        });
        let mut best = (f64::INFINITY, Area { left, top, width, height });
        for (left_edge, top_edge) in beside.into_iter().chain(everywhere) {
            let area = Area { left: left_edge, top: top_edge, width, height };
            if left_edge < left
                || left_edge + width > right + 1.0
                || top_edge < top
                || top_edge + height > bottom
            {
                continue;
            }
            let near = area.nearest((x, y));
            let far = distance(near, (x, y));
            if far >= best.0 {
                continue;
            }
            let around =
                Area { left: left_edge - 4.0, top: top_edge - 2.0, width: width + 8.0, height: height + 4.0 };
            let covers = dots.iter().filter(|dot| around.nearest(**dot) == **dot).count();
            let hides = placed.iter().filter(|name| name.area.overlaps(&around)).count();
            let crosses = placed
                .iter()
                .filter(|name| {
                    far > NEAR && name.area.is_crossed((x, y), near)
                        || area.is_crossed(name.dot, name.area.nearest(name.dot))
                })
                .count();
            let cost = far + 1e6 * hides as f64 + 1e3 * covers as f64 + 60.0 * crosses as f64;
            if cost < best.0 {
                best = (cost, area);
            }
        }
        names[number].area = best.1;
    }
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
        assert_eq!(overlaps(&drawn), Vec::<String>::new(), "{drawn}");
        assert!(svg(HEADING, &[dot("nothing", f64::NAN, 1.0)], Axis::default()).contains("no values"));
        assert_eq!(describe(&dots[..1], "s", "versions"), "one: 1 s, 1 versions.");
    }

    /// Names with where they stand, taken from a drawing.
    fn areas(drawn: &str) -> Vec<(String, Area)> {
        drawn
            .split("</circle>")
            .flat_map(|part| part.split("r=\"3.2\"/><text x=\"").skip(1))
            .filter_map(|part| {
                let (left, rest) = part.split_once("\" y=\"")?;
                let (line, rest) = rest.split_once('"')?;
                let name =
                    rest.split_once('>')?.1.split_once('<')?.0.replace("&lt;", "<").replace("&gt;", ">");
                let width = LETTER * name.chars().count() as f64;
                let top = line.parse::<f64>().ok()? - 8.5;
                // A hair less than what it was given: it is written with one digit.
                let area =
                    Area { left: left.parse().ok()?, top: top + 0.1, width: width - 0.1, height: LINE - 0.2 };
                Some((name, area))
            })
            .collect()
    }

    /// Pairs of names that lie on each other, or outside.
    fn overlaps(drawn: &str) -> Vec<String> {
        let areas = areas(drawn);
        assert_eq!(areas.len(), drawn.matches("<circle").count(), "{drawn}");
        let mut found = Vec::new();
        for (number, (name, area)) in areas.iter().enumerate() {
            if area.left < 0.0 || area.left + area.width > 400.0 {
                found.push(format!("{name} outside"));
            }
            for (other, its) in &areas[..number] {
                if area.overlaps(its) {
                    found.push(format!("{name} and {other}"));
                }
            }
        }
        found
    }

    /// Twenty-two policies of which most are as quick as each other.
    #[test]
    fn many_names_in_a_corner_do_not_lie_on_each_other() {
        let dots: Vec<Dot> = (0..22_u32)
            .map(|number| {
                let name = format!("streaming_carry_policy_{number}");
                let (x, y) = if number % 6 == 5 {
                    (278.0 + f64::from(number) / 9.0, 0.0023)
                } else {
                    (80.0 + f64::from(number * number % 17), 0.0004 * f64::from(number % 7))
                };
                dot(&name, x, y)
            })
            .chain([dot("slime", 119.0, 0.012)])
            .collect();
        let drawn = svg(HEADING, &dots, Axis::default());
        assert_eq!(overlaps(&drawn), Vec::<String>::new(), "{drawn}");
        // The names stand apart from the dots of others, too.
        let covered = areas(&drawn)
            .iter()
            .filter(|(_, area)| {
                drawn.split("<circle cx=\"").skip(1).any(|part| {
                    let numbers: Vec<f64> =
                        part.split('"').filter_map(|number| number.parse().ok()).take(2).collect();
                    area.nearest((numbers[0], numbers[1])) == (numbers[0], numbers[1])
                })
            })
            .count();
        assert_eq!(covered, 0, "{drawn}");
    }
}
