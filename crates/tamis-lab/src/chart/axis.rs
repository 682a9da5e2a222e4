//! Axes of a chart: scales, round numbers, and how numbers are written at them.

use std::fmt::Write as _;

use tamis_core::figure::fixed;

use crate::html::escape;

const WIDTH: f64 = 400.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 24.0;

/// What a chart is called and measured in.
#[derive(Debug, Clone, Copy)]
pub struct Heading<'a> {
    /// Name for its parts, unique in the page.
    pub id: &'a str,
    /// Title.
    pub title: &'a str,
    /// What it shows, for who cannot see it.
    pub description: &'a str,
    /// Unit of its places.
    pub unit: &'a str,
}

/// The area of a chart and the ranges that it shows.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    x: (f64, f64),
    y: (f64, f64),
    height: f64,
}

impl Frame {
    /// Around values. A range of one number is widened, so that it lies in the middle.
    pub fn new(x: (f64, f64), y: (f64, f64)) -> Self {
        let x = if x.1 > x.0 { x } else { (x.0 - 0.5, x.0 + 0.5) };
        let y = if y.1 > y.0 { y } else { (y.0 - 0.5, y.0 + 0.5) };
        Self { x, y, height: 210.0 }
    }

    /// As [`Self::new`], higher: for so many dots with names.
    pub fn for_names(x: (f64, f64), y: (f64, f64), dots: usize) -> Self {
        Self { height: (120.0 + 15.0 * dots as f64).clamp(320.0, 900.0), ..Self::new(x, y) }
    }

    /// The left and the right edge.
    pub fn sides(&self) -> (f64, f64) {
        (LEFT, WIDTH - RIGHT)
    }

    /// Where a place lies.
    pub fn x(&self, value: f64) -> f64 {
        LEFT + (value - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    /// Where a value lies.
    pub fn y(&self, value: f64) -> f64 {
        let share = (value - self.y.0) / (self.y.1 - self.y.0);
        self.height - BOTTOM - share * (self.height - TOP - BOTTOM)
    }

    /// The upper and the lower edge.
    pub fn edges(&self) -> (f64, f64) {
        (TOP, self.height - BOTTOM)
    }

    /// Begins the drawing: title, description, and axes with their numbers.
    pub fn open(&self, heading: Heading<'_>) -> String {
        let mut svg = begin(heading, self.height);
        let (bottom, right) = (self.height - BOTTOM, WIDTH - RIGHT);
        let _ = write!(
            svg,
            "<g class=\"grid\" data-frame=\"{LEFT} {right} {TOP} {bottom} {} {}\">",
            self.x.0, self.x.1
        );
        for tick in ticks(self.y, 4) {
            let at = self.y(tick);
            let _ = write!(
                svg,
                "<path d=\"M{LEFT} {at:.1}H{right}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                label(tick)
            );
        }
        // The unit stands where the last number would.
        let free = right - 7.0 * (heading.unit.len() as f64 + 1.0);
        for tick in ticks(self.x, 5) {
            let at = self.x(tick);
            if at < free {
                let _ = write!(
                    svg,
                    "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    bottom + 16.0,
                    label(tick)
                );
            }
        }
        let _ = write!(
            svg,
            "<text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><path class=\"axis\" d=\"M{LEFT} {bottom}H{right}\"/></g>",
            bottom + 16.0,
            escape(heading.unit)
        );
        svg
    }
}

/// Begins a drawing that has a title and a description.
pub(super) fn begin(heading: Heading<'_>, height: f64) -> String {
    let Heading { id, title, description, .. } = heading;
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
        escape(title),
        escape(description)
    )
}

/// A drawing that says that there is nothing to draw.
pub fn nothing(heading: Heading<'_>) -> String {
    format!(
        "{}<text x=\"{}\" y=\"40\" text-anchor=\"middle\">no values</text></svg>",
        begin(heading, 70.0),
        WIDTH / 2.0
    )
}

/// Round numbers between two others, about as many as asked for.
fn ticks((low, high): (f64, f64), about: u32) -> Vec<f64> {
    let raw = (high - low) / f64::from(about);
    if !(raw > 0.0 && raw.is_finite()) {
        return vec![low];
    }
    let magnitude = 10.0_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude).into_iter().find(|step| *step >= raw);
    let step = step.unwrap_or(raw);
    let first = (low / step - 1e-9).ceil();
    (0..20)
        .map(|number| (first + f64::from(number)) * step)
        .take_while(|tick| *tick <= high + 1e-9 * step)
        .collect()
}

/// A number as an axis shows it.
pub fn label(value: f64) -> String {
    for (unit, name) in [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value.abs() >= unit && value.abs() < 1000.0 * unit {
            return format!("{}{name}", trim(&format!("{:.2}", value / unit)));
        }
    }
    if value != 0.0 && (value.abs() < 1e-3 || value.abs() >= 1e15) {
        return trim_exponent(&format!("{value:.1e}"));
    }
    let text = trim(&format!("{value:.3}"));
    if text == "-0" { "0".to_owned() } else { text }
}

/// A number with four digits that tell something: as tables and lines of a page show it.
pub fn figure(value: f64) -> String {
    let size = value.abs();
    if value.is_nan() {
        return "–".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "−∞" }.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    if size < 1e-4 {
        return trim_exponent(&format!("{value:.2e}"));
    }
    if value.fract() == 0.0 && size < 1e9 || size >= 1000.0 {
        return group_digits(&fixed(value, 0));
    }
    let digits = (3 - size.log10().floor() as i32).clamp(0, 7) as usize;
    trim(&format!("{value:.digits$}"))
}

/// A whole number of more than four digits in groups of three.
fn group_digits(number: &str) -> String {
    if number.trim_start_matches('-').len() < 5 { number.to_owned() } else { in_thousands(number) }
}

/// A whole number in groups of three digits; anything else as it is.
pub fn in_thousands(number: &str) -> String {
    let digits = number.trim_start_matches('-');
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return number.to_owned();
    }
    let mut grouped = number[..number.len() - digits.len()].to_owned();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn trim(text: &str) -> String {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text.to_owned()
    }
}

fn trim_exponent(text: &str) -> String {
    match text.split_once('e') {
        Some((number, exponent)) => format!("{}e{exponent}", trim(number)),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_numbers() {
        assert_eq!(ticks((0.0, 10.0), 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks((3.0, 3.0), 5), [3.0]);
        assert_eq!([1500.0, 2e6, 0.25, -0.0, 2e-5].map(label), ["1.5k", "2M", "0.25", "0", "2e-5"]);
    }

    #[test]
    fn numbers_of_tables() {
        let shown =
            [0.0, 0.123_456, 12.0, 1234.56, 1e-6, f64::NAN, f64::INFINITY, -1_234_567.0, -0.5].map(figure);
        assert_eq!(shown, ["0", "0.1235", "12", "1235", "1e-6", "–", "∞", "-1,234,567", "-0.5"]);
    }

    #[test]
    fn a_range_of_one_number_is_widened() {
        let frame = Frame::new((5.0, 5.0), (0.25, 0.25));
        let (top, bottom) = frame.edges();
        assert!((frame.y(0.25) - f64::midpoint(top, bottom)).abs() < 1e-9);
        assert!(frame.x(5.0) > LEFT && frame.x(5.0) < WIDTH);
    }
}
