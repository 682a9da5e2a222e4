//! A line chart as SVG, which needs nothing else.

use std::fmt::Write as _;

/// One line, with a band around it.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// How it is drawn.
    pub look: Look,
    /// Place, value, and the least and largest value there.
    pub points: Vec<[f64; 4]>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 40.0;
/// Colours that people with the common forms of colour blindness tell apart.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#8c6d31"];
/// Colours of what others are compared with, which is dashed.
const BASELINE_COLOURS: [&str; 5] = ["#000000", "#b00020", "#777777", "#1a237e", "#00695c"];

/// Colour and stroke of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Colour, as HTML and SVG write it.
    pub colour: &'static str,
    /// Stroke.
    pub stroke: Stroke,
}

/// Stroke of a line: colours that begin anew have another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// Of what is compared.
    Solid,
    /// The same, where there are more lines than colours.
    Dotted,
    /// Of what others are compared with.
    Dashed,
    /// The same, where there are more baselines than colours.
    DashedAndDotted,
}

impl Look {
    /// The looks of lines, of each of which it is said whether others are compared with it: no two alike, up
    /// to twice as many as there are colours.
    pub fn of(are_baselines: &[bool]) -> Vec<Self> {
        let mut counts = [0, 0];
        let of = |is_baseline: &bool| {
            let colours: &[&'static str] = if *is_baseline { &BASELINE_COLOURS } else { &COLOURS };
            let strokes = if *is_baseline {
                [Stroke::Dashed, Stroke::DashedAndDotted]
            } else {
                [Stroke::Solid, Stroke::Dotted]
            };
            let count = &mut counts[usize::from(*is_baseline)];
            let place = *count;
            *count += 1;
            Self {
                colour: colours[place % colours.len()],
                stroke: strokes[place / colours.len() % strokes.len()],
            }
        };
        are_baselines.iter().map(of).collect()
    }
}

impl Stroke {
    /// The attribute that SVG has for it.
    fn attribute(self) -> &'static str {
        match self {
            Self::Solid => "",
            Self::Dotted => " stroke-dasharray=\"1.6 2.4\"",
            Self::Dashed => " stroke-dasharray=\"5 3\"",
            Self::DashedAndDotted => " stroke-dasharray=\"8 3 1.6 3\"",
        }
    }
}

/// A piece of a line, for a key beside its name.
pub fn sample(look: Look) -> String {
    format!(
        "<svg viewBox=\"0 0 26 6\" width=\"26\" height=\"6\"><line x1=\"0\" x2=\"26\" y1=\"3\" y2=\"3\" stroke=\"{}\" stroke-width=\"2.4\"{}/></svg>",
        look.colour,
        look.stroke.attribute()
    )
}

/// A text as XML holds it.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Round numbers between two others, about five.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let raw = (high - low) / 5.0;
    if !(raw > 0.0 && raw.is_finite()) {
        return vec![low];
    }
    let magnitude = 10.0_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude).into_iter().find(|step| *step >= raw);
    let step = step.unwrap_or(raw);
    let first = (low / step).ceil();
    (0..20)
        .map(|number| (first + f64::from(number)) * step)
        .take_while(|tick| *tick <= high + 1e-9 * step)
        .collect()
}

/// A number as an axis shows it.
fn label(value: f64) -> String {
    for (unit, name) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value.abs() >= unit {
            let text = format!("{:.2}", value / unit);
            return format!("{}{name}", text.trim_end_matches('0').trim_end_matches('.'));
        }
    }
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Draws lines. The band of a line is what lies between the least and the largest of its runs.
pub fn svg(title: &str, unit: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let least = |of: fn(&[f64; 4]) -> f64| points().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: fn(&[f64; 4]) -> f64| points().map(of).fold(f64::NEG_INFINITY, f64::max);
    let (x0, mut x1) = (least(|point| point[0]), most(|point| point[0]));
    let (mut y0, mut y1) = (least(|point| point[2]), most(|point| point[3]));
    let mut text = String::new();
    let _ = write!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n<text x=\"{LEFT}\" y=\"16\" font-size=\"13\">{}</text>\n",
        escape(title)
    );
    if ![x0, x1, y0, y1].iter().all(|bound| bound.is_finite()) {
        text.push_str("<text x=\"60\" y=\"60\">no values</text>\n</svg>\n");
        return text;
    }
    if x1 <= x0 {
        x1 = x0 + 1.0;
    }
    let margin = if y1 > y0 { 0.05 * (y1 - y0) } else { 0.5 };
    (y0, y1) = (y0 - margin, y1 + margin);
    let x = |value: f64| LEFT + (value - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - (value - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for tick in ticks(y0, y1) {
        let at = y(tick);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            label(tick)
        );
    }
    for tick in ticks(x0, x1) {
        let at = x(tick);
        let _ = writeln!(
            text,
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 15.0,
            label(tick)
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{}</text>\n<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\" stroke=\"#888\"/>",
        bottom + 32.0,
        escape(unit)
    );
    for line in lines {
        let colour = line.look.colour;
        let upper = line.points.iter().map(|point| (point[0], point[3]));
        let lower = line.points.iter().rev().map(|point| (point[0], point[2]));
        let path = |points: &mut dyn Iterator<Item = (f64, f64)>| {
            let points: Vec<String> =
                points.map(|(at, value)| format!("{:.1},{:.1}", x(at), y(value))).collect();
            points.join(" ")
        };
        if line.points.iter().any(|point| point[3] > point[2]) {
            let band = path(&mut upper.chain(lower));
            let _ = writeln!(text, "<polygon points=\"{band}\" fill=\"{colour}\" opacity=\"0.12\"/>");
        }
        let dash = line.look.stroke.attribute();
        let mean = path(&mut line.points.iter().map(|point| (point[0], point[1])));
        let _ = writeln!(
            text,
            "<polyline points=\"{mean}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"{dash}><title>{}</title></polyline>",
            escape(&line.name)
        );
    }
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_numbers() {
        assert_eq!(ticks(0.0, 10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(3.0, 3.0), [3.0]);
        assert_eq!([1500.0, 2e6, 0.25, -0.0].map(label), ["1.5k", "2M", "0.25", "0"]);
    }

    #[test]
    fn a_chart_is_drawn_and_names_are_escaped() {
        let line = Line {
            name: "a<b".to_owned(),
            look: Look::of(&[true])[0],
            points: vec![[1.0, 0.5, 0.4, 0.6], [2.0, 1.0, 1.0, 1.0]],
        };
        let drawn = svg("x & y", "steps", &[line]);
        assert!(
            drawn.contains("x &amp; y") && drawn.contains("a&lt;b") && drawn.contains("<polygon"),
            "{drawn}"
        );
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        assert!(svg("nothing", "steps", &[]).contains("no values"));
    }

    #[test]
    fn lines_are_told_apart() {
        // Twice the colours of each sort, as they may come in a sweep: a baseline before some others.
        let are_baselines: Vec<bool> = (0..26).map(|place| place % 13 < 5).collect();
        let looks = Look::of(&are_baselines);
        for (place, look) in looks.iter().enumerate() {
            assert!(!looks[..place].contains(look), "line {place} looks as one before it: {look:?}");
        }
        assert_eq!(looks[0], Look { colour: "#000000", stroke: Stroke::Dashed });
        assert_eq!(looks[5], Look { colour: "#0072b2", stroke: Stroke::Solid });
        let is_dashed = |look: &Look| matches!(look.stroke, Stroke::Dashed | Stroke::DashedAndDotted);
        assert_eq!(looks.iter().map(is_dashed).collect::<Vec<_>>(), are_baselines);
    }
}
