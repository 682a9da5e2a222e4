//! Numbers as people read them, in lines, tables and messages.
//!
//! Files get every digit; a person gets a number that fits a line. A reward of 1e300 written out is three
//! hundred digits, so numbers far from 1 are shown in scientific form.

/// From here on, a number is shown in scientific form.
const LARGE: f64 = 1e9;
/// Below here, the shortest form is scientific.
const SMALL: f64 = 1e-7;

/// With so many digits after the point; from 1e9 on as a number and its exponent, with as many.
///
/// ```
/// use tamis_core::figure::fixed;
/// assert_eq!(fixed(0.531_25, 3), "0.531");
/// assert_eq!(fixed(-1e300, 3), "-1.000e300");
/// assert_eq!(fixed(f64::NAN, 1), "NaN");
/// ```
pub fn fixed(value: f64, digits: usize) -> String {
    if value.is_finite() && value.abs() >= LARGE {
        format!("{value:.digits$e}")
    } else {
        format!("{value:.digits$}")
    }
}

/// A share in percent with one digit, or three below 0.1%; `-` for a share of nothing (NaN).
///
/// ```
/// use tamis_core::figure::percent;
/// assert_eq!([0.646, 1.0, 0.0, 0.000_51, f64::NAN].map(percent), ["64.6%", "100.0%", "0.0%", "0.051%", "-"]);
/// ```
pub fn percent(share: f64) -> String {
    let digits = if share > 0.0 && share < 0.001 { 3 } else { 1 };
    if share.is_nan() { "-".to_owned() } else { format!("{}%", fixed(100.0 * share, digits)) }
}

/// With all the digits that tell it from every other number, and no more; from 1e9 on and below 1e-7 in
/// scientific form, where that is shorter.
///
/// ```
/// use tamis_core::figure::shortest;
/// assert_eq!(shortest(0.25), "0.25");
/// assert_eq!(shortest(3.0), "3");
/// assert_eq!(shortest(1e300), "1e300");
/// assert_eq!(shortest(-2.5e-300), "-2.5e-300");
/// assert_eq!(shortest(12_345_678_901.0), "12345678901");
/// ```
pub fn shortest(value: f64) -> String {
    let plain = || format!("{value}");
    if !value.is_finite() || value == 0.0 || (SMALL..LARGE).contains(&value.abs()) {
        return plain();
    }
    let scientific = format!("{value:e}");
    // The plain form is made only where it is known to be short.
    if value.abs() < 1e18 && value.abs() >= LARGE && plain().len() <= scientific.len() {
        return plain();
    }
    scientific
}
