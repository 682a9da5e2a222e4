//! Numbers for people, in lines, tables and messages.
//!
//! Files get every digit; a person gets a number that fits into a line. A reward of 1e300 written out has
//! three hundred digits, so numbers far from 1 are shown in scientific form.

/// From here on, a number is shown in scientific form.
const LARGE: f64 = 1e9;
/// Below here, the shortest form is scientific.
const SMALL: f64 = 1e-7;

/// With `digits` digits after the point; from 1e9 on in scientific form, with the same number of digits.
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

/// With three digits after the point, or without a point if it is whole and below 1e9.
///
/// ```
/// use tamis_core::figure::short;
/// assert_eq!([0.25, 3.0, 1e9].map(short), ["0.250", "3", "1.000e9"]);
/// ```
pub fn short(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < LARGE { format!("{value}") } else { fixed(value, 3) }
}

/// A number with what it counts, in the plural unless it is 1: a word with a regular plural.
///
/// ```
/// use tamis_core::figure::counted;
/// assert_eq!([0, 1, 2].map(|number| counted(number, "prompt")), ["0 prompts", "1 prompt", "2 prompts"]);
/// assert_eq!([1, 2].map(|number| counted(number, "trajectory")), ["1 trajectory", "2 trajectories"]);
/// assert_eq!([1, 2].map(|number| counted(number, "batch")), ["1 batch", "2 batches"]);
/// assert_eq!(counted(3, "day"), "3 days");
/// ```
pub fn counted(number: impl std::fmt::Display, one: &str) -> String {
    let number = number.to_string();
    if number == "1" {
        return format!("{number} {one}");
    }
    let has_vowel_before = |stem: &str| stem.ends_with(['a', 'e', 'i', 'o', 'u']);
    if let Some(stem) = one.strip_suffix('y').filter(|stem| !has_vowel_before(stem)) {
        return format!("{number} {stem}ies");
    }
    let ending = if ["s", "x", "ch", "sh"].iter().any(|end| one.ends_with(end)) { "es" } else { "s" };
    format!("{number} {one}{ending}")
}

/// The form of a word that goes with a number: `was` with 1, `were` with any other.
///
/// ```
/// use tamis_core::figure::agreed;
/// assert_eq!([0, 1, 2].map(|number| agreed(number, "was", "were")), ["were", "was", "were"]);
/// ```
pub fn agreed<'a>(number: impl TryInto<u64>, one: &'a str, many: &'a str) -> &'a str {
    if number.try_into().is_ok_and(|number: u64| number == 1) { one } else { many }
}

/// A share in percent with one digit, two below 1%, or three below 0.1%; `-` for a share of nothing (NaN).
///
/// ```
/// use tamis_core::figure::percent;
/// assert_eq!([0.646, 1.0, 0.0, f64::NAN].map(percent), ["64.6%", "100.0%", "0.0%", "-"]);
/// assert_eq!([0.002_6, 0.000_51].map(percent), ["0.26%", "0.051%"]);
/// ```
pub fn percent(share: f64) -> String {
    let digits = match share {
        0.0 => 1,
        0.0..0.001 => 3,
        0.001..0.01 => 2,
        _ => 1,
    };
    if share.is_nan() { "-".to_owned() } else { format!("{}%", fixed(100.0 * share, digits)) }
}

/// A share that a configuration sets, in percent with every digit, without the rounding of the product:
/// 0.07 is 7%.
///
/// ```
/// use tamis_core::figure::exact_percent;
/// assert_eq!([0.07, 0.5, 0.001_25].map(exact_percent), ["7%", "50%", "0.125%"]);
/// ```
pub fn exact_percent(share: f64) -> String {
    format!("{}%", shortest((1e12 * share).round() / 1e10))
}

/// Bytes with one decimal, in the largest unit of which there is at least one.
///
/// ```
/// use tamis_core::figure::bytes;
/// assert_eq!([512, 1536, 3 << 30].map(bytes), ["512 B", "1.5 KiB", "3.0 GiB"]);
/// ```
pub fn bytes(bytes: u64) -> String {
    let (unit, name) = byte_unit(bytes);
    if unit == 1 { format!("{bytes} B") } else { format!("{:.1} {name}", bytes as f64 / unit as f64) }
}

/// The largest unit that `bytes` fill at least once, in bytes, and its name.
pub fn byte_unit(bytes: u64) -> (u64, &'static str) {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    units.into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1, "B"))
}

/// With as many digits as distinguish it from every other number, and no more; from 1e9 on and below 1e-7 in
/// scientific form, if that is shorter.
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
    // The plain form is made only if it is known to be short.
    if value.abs() < 1e18 && value.abs() >= LARGE && plain().len() <= scientific.len() {
        return plain();
    }
    scientific
}
