//! Formats numbers for tables and charts of a page.

use tamis_core::figure::fixed;

/// Formats a number with four significant digits.
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

/// Groups a whole number by three digits; other text is unchanged.
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
    fn numbers_of_tables() {
        let shown =
            [0.0, 0.123_456, 12.0, 1234.56, 1e-6, f64::NAN, f64::INFINITY, -1_234_567.0, -0.5].map(figure);
        assert_eq!(shown, ["0", "0.1235", "12", "1235", "1e-6", "–", "∞", "-1,234,567", "-0.5"]);
    }
}
