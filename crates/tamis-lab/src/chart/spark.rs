//! A line as small as a word, without axes.

use std::fmt::Write as _;

const WIDTH: f64 = 90.0;
const HEIGHT: f64 = 20.0;

/// The path of values at places, 90 wide and 20 high; empty if there are fewer than two.
pub fn path(points: &[(f64, f64)]) -> String {
    let points: Vec<(f64, f64)> = points.iter().copied().filter(|(_, value)| value.is_finite()).collect();
    let (Some((first, _)), Some((last, _))) = (points.first(), points.last()) else { return String::new() };
    if last <= first {
        return String::new();
    }
    let low = points.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|(_, value)| *value).fold(f64::NEG_INFINITY, f64::max);
    let mut drawn = String::new();
    for (number, (at, value)) in points.iter().enumerate() {
        let x = 1.0 + (at - first) / (last - first) * (WIDTH - 2.0);
        let share = if high > low { (value - low) / (high - low) } else { 0.5 };
        let y = HEIGHT - 2.0 - share * (HEIGHT - 4.0);
        let _ = write!(drawn, "{}{x:.0} {y:.1}", if number == 0 { 'M' } else { 'L' });
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_line() {
        assert_eq!(path(&[(1.0, 0.0), (3.0, 1.0)]), "M1 18.0L89 2.0");
        assert_eq!(path(&[(1.0, 0.0)]), "");
        assert!(!path(&[(1.0, 2.0), (2.0, f64::NAN), (3.0, 2.0)]).contains("NaN"));
    }
}
