//! Values that are passed on unchanged to the user's function, template or engine. They get the types that
//! the other system's program would give them. Our own keys have known types, and accept `None` and `010`
//! with their evident meaning.
//!
//! | typed | hydra: verl, RAGEN | a YAML file, and EasyR1's command line (`OmegaConf`) |
//! |---|---|---|
//! | `None` | the text | the text |
//! | `null` | null | null |
//! | nothing | an empty text | null |
//! | `010` | the text | 8 |
//! | `1_0` | 10 | 10 |
//! | `yes`, `0x10`, `1:30` | the text | true, 16, 90 |

use super::key::{Becomes, ForeignKey};
use super::owner::Owner;
use tamis_config::table::{self, Place};
use tamis_config::tree::{Node, Value};

/// Whether the values of a row are passed on unchanged.
pub(super) fn is_free(entry: &ForeignKey) -> bool {
    let is_mapping = |ours: &str| matches!(table::place(&format!("{ours}.x")), Ok(Place::Free));
    entry.key.trim_end_matches(".*").ends_with("_kwargs")
        || matches!(entry.becomes, Becomes::Key(ours) if is_mapping(ours))
}

/// Gives the values in a node the types that the other system's program would give them.
pub(super) fn resolve(node: &mut Node, owner: Owner, is_typed: bool) {
    match &mut node.value {
        Value::Scalar { text, plain } if *plain => {
            let is_hydra = is_typed && matches!(owner, Owner::Verl | Owner::Ragen);
            match if is_hydra { of_hydra(text) } else { of_yaml(text) } {
                Some(typed) => *text = typed,
                None => *plain = false,
            }
        }
        Value::Scalar { .. } => {}
        Value::List(items) => items.iter_mut().for_each(|item| resolve(item, owner, is_typed)),
        Value::Map(entries) => entries.iter_mut().for_each(|entry| resolve(&mut entry.node, owner, is_typed)),
    }
}

/// A value of Hydra's command line, as a plain scalar of ours; `None` for a text.
fn of_hydra(text: &str) -> Option<String> {
    match text.to_lowercase().as_str() {
        "null" => return Some("null".to_owned()),
        truth @ ("true" | "false") => return Some(truth.to_owned()),
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = split_exponent(unsigned);
    let (whole, fraction) =
        mantissa.split_once('.').map_or((mantissa, None), |(whole, part)| (whole, Some(part)));
    // Single underscores between digits.
    let is_digits = |text: &str| {
        text.split('_').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let is_whole = |text: &str| text == "0" || is_digits(text) && !text.starts_with('0');
    let is_mantissa = match fraction {
        None | Some("") => is_whole(whole),
        Some(fraction) => (whole.is_empty() || is_whole(whole)) && is_digits(fraction),
    };
    let is_exponent = exponent.is_none_or(|exponent| is_digits(exponent.trim_start_matches(['+', '-'])));
    (is_mantissa && is_exponent).then(|| number(text))
}

/// A value of YAML 1.1 as PyYAML and `OmegaConf` read it.
fn of_yaml(text: &str) -> Option<String> {
    if matches!(text, "" | "~" | "null" | "Null" | "NULL") {
        return Some("null".to_owned());
    }
    let is_cased = |word: &str| {
        let capital = word[..1].to_uppercase() + &word[1..];
        text == word || text == capital || text == word.to_uppercase()
    };
    if ["true", "yes", "on"].into_iter().any(is_cased) {
        return Some("true".to_owned());
    }
    if ["false", "no", "off"].into_iter().any(is_cased) {
        return Some("false".to_owned());
    }
    whole_of_yaml(text).or_else(|| is_float_of_yaml(text).then(|| number(text)))
}

/// A whole number of YAML 1.1: decimal, binary, octal, hexadecimal, or base 60.
fn whole_of_yaml(text: &str) -> Option<String> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = if text.starts_with('-') { -1 } else { 1 };
    if unsigned.starts_with('_') {
        return None;
    }
    let digits = unsigned.replace('_', "");
    let of = |digits: &str, radix: u32| {
        let is_sound = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
        is_sound.then(|| i128::from_str_radix(digits, radix).ok()).flatten()
    };
    let value = if let Some(bits) = digits.strip_prefix("0b") {
        of(bits, 2)
    } else if let Some(digits) = digits.strip_prefix("0x") {
        of(digits, 16)
    } else if let Some(octal) = digits.strip_prefix('0').filter(|rest| !rest.is_empty()) {
        of(octal, 8)
    } else if digits.contains(':') {
        let mut parts = digits.split(':');
        let first = parts.next().and_then(|first| of(first, 10));
        parts.fold(first, |sum, part| {
            let part = of(part, 10).filter(|value| part.len() <= 2 && *value < 60)?;
            sum?.checked_mul(60)?.checked_add(part)
        })
    } else {
        of(&digits, 10)
    };
    value.map(|value| (sign * value).to_string())
}

fn is_float_of_yaml(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = split_exponent(unsigned);
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let starts_well = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
    let is_mantissa = match mantissa.split_once('.') {
        Some(("", fraction)) => is_digits(fraction) && starts_well(fraction),
        Some((whole, fraction)) => starts_well(whole) && is_digits(whole) && is_digits(fraction),
        None => exponent.is_some() && starts_well(mantissa) && is_digits(mantissa),
    };
    let is_exponent = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    is_mantissa && is_exponent
}

fn split_exponent(text: &str) -> (&str, Option<&str>) {
    text.split_once(['e', 'E']).map_or((text, None), |(mantissa, exponent)| (mantissa, Some(exponent)))
}

/// A number as YAML 1.2 and JSON read it.
fn number(text: &str) -> String {
    let text = text.replace('_', "");
    let text = text.strip_prefix('+').unwrap_or(&text);
    // -0 is an integer 0.
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use tamis_config::source::{Origin, Source, SourceKind};

    fn value(text: &str, owner: Owner, is_typed: bool) -> Json {
        let origin = Origin::start_of(&Source::new(SourceKind::Argument, text));
        let mut node = Node::plain(text, origin);
        resolve(&mut node, owner, is_typed);
        node.to_json()
    }

    /// Results of hydra-core 1.3.2 and OmegaConf 2.3.0.
    #[test]
    fn values_are_those_of_hydra_and_of_yaml() {
        for (text, hydra, yaml) in [
            ("None", json!("None"), json!("None")),
            ("null", json!(null), json!(null)),
            ("NULL", json!(null), json!(null)),
            ("010", json!("010"), json!(8)),
            ("1_0", json!(10), json!(10)),
            ("", json!(""), json!(null)),
            ("0", json!(0), json!(0)),
            ("+5", json!(5), json!(5)),
            ("-0", json!(0), json!(0)),
            ("1.", json!(1.0), json!(1.0)),
            ("-1.5e3", json!(-1500.0), json!(-1500.0)),
            (".5", json!(0.5), json!(0.5)),
            ("1e5", json!(1e5), json!(1e5)),
            ("1__0", json!("1__0"), json!(10)),
            ("1_", json!("1_"), json!(1)),
            ("_1", json!("_1"), json!("_1")),
            ("0x10", json!("0x10"), json!(16)),
            ("1e1_0", json!(1e10), json!("1e1_0")),
            ("true", json!(true), json!(true)),
            ("TRUE", json!(true), json!(true)),
            ("tRue", json!(true), json!("tRue")),
            ("yes", json!("yes"), json!(true)),
            ("on", json!("on"), json!(true)),
            ("12abc", json!("12abc"), json!("12abc")),
            ("1_0.5", json!(10.5), json!(10.5)),
            ("00", json!("00"), json!(0)),
            ("09", json!("09"), json!("09")),
            ("01.5", json!("01.5"), json!(1.5)),
            ("1:30", json!("1:30"), json!(90)),
            ("1.2.3", json!("1.2.3"), json!("1.2.3")),
            ("-", json!("-"), json!("-")),
            (".", json!("."), json!(".")),
            ("e5", json!("e5"), json!("e5")),
            ("a b", json!("a b"), json!("a b")),
        ] {
            for owner in [Owner::Verl, Owner::Ragen] {
                assert_eq!(value(text, owner, true), hydra, "{owner}: {text:?}");
            }
            assert_eq!(value(text, Owner::EasyR1, true), yaml, "EasyR1: {text:?}");
            for owner in Owner::ALL {
                assert_eq!(value(text, owner, false), yaml, "a file: {text:?}");
            }
        }
    }
}
