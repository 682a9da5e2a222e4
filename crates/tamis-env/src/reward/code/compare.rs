//! Comparison of what a program gave with what a test expects.

use std::collections::HashSet;

use serde_json::Value as Json;

/// Whether two numbers are the same but for rounding.
fn is_near(actual: f64, expected: f64, tolerance: f64) -> bool {
    (actual - expected).abs() <= tolerance * expected.abs().max(1.0)
}

/// Whether a text is a decimal number, with a fraction or an exponent.
fn fraction(word: &str) -> Option<f64> {
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    is_number.then(|| word.parse().ok()).flatten()
}

/// Whether an output is the one expected: the same words on the same lines. Spaces between words and empty
/// lines at the end do not count; numbers are compared within the tolerance if one of them has a fraction.
pub(super) fn is_same_output(actual: &str, expected: &str, tolerance: f64) -> bool {
    let (mut actual, mut expected) = (actual.trim_end().lines(), expected.trim_end().lines());
    loop {
        match (actual.next(), expected.next()) {
            (None, None) => return true,
            (Some(actual), Some(expected)) if is_same_line(actual, expected, tolerance) => {}
            _ => return false,
        }
    }
}

fn is_same_line(actual: &str, expected: &str, tolerance: f64) -> bool {
    let (mut actual, mut expected) = (actual.split_whitespace(), expected.split_whitespace());
    loop {
        match (actual.next(), expected.next()) {
            (None, None) => return true,
            (Some(actual), Some(expected)) if actual == expected => {}
            (Some(actual), Some(expected)) => {
                let has_fraction = [actual, expected].iter().any(|word| word.contains(['.', 'e', 'E']));
                match (fraction(actual), fraction(expected)) {
                    (Some(actual), Some(expected))
                        if has_fraction && is_near(actual, expected, tolerance) => {}
                    _ => return false,
                }
            }
            _ => return false,
        }
    }
}

/// Whether a value that the harness has encoded is the one expected, or the only one in an expected list (as
/// APPS writes values). Tuples are lists.
pub(super) fn is_same_value(encoded: &Json, expected: &Json, tolerance: f64) -> bool {
    if is_same(encoded, expected, tolerance) {
        return true;
    }
    matches!(expected, Json::Array(items) if items.len() == 1 && is_same(encoded, &items[0], tolerance))
}

fn is_same(encoded: &Json, expected: &Json, tolerance: f64) -> bool {
    match (encoded, expected) {
        (Json::Null, Json::Null) => true,
        (Json::String(text), Json::String(expected)) => text.strip_prefix('s') == Some(expected),
        (Json::String(text), Json::Bool(expected)) => text == if *expected { "n1" } else { "n0" },
        (Json::String(text), Json::Number(expected)) => {
            let Some(text) = text.strip_prefix('n') else { return false };
            let has_fraction = expected.is_f64() || text.contains(['.', 'e']);
            match (text.parse::<f64>(), expected.as_f64()) {
                _ if text == expected.to_string() => true,
                (Ok(actual), Some(expected)) if has_fraction => is_near(actual, expected, tolerance),
                _ => false,
            }
        }
        (Json::Array(parts), Json::Array(expected)) => {
            let [Json::String(kind), items @ ..] = parts.as_slice() else { return false };
            matches!(kind.as_str(), "l" | "t")
                && items.len() == expected.len()
                && items.iter().zip(expected).all(|(item, expected)| is_same(item, expected, tolerance))
        }
        (Json::Array(parts), Json::Object(expected)) => {
            let [Json::String(kind), pairs @ ..] = parts.as_slice() else { return false };
            // JSON has no other keys than texts, so 1 and "1" are one.
            let mut keys = HashSet::new();
            kind == "d"
                && pairs.len() == expected.len()
                && pairs.iter().all(|pair| {
                    let key = pair[0].as_str().and_then(|key| key.strip_prefix(['s', 'n']));
                    let found = key.filter(|key| keys.insert(*key)).and_then(|key| expected.get(key));
                    found.is_some_and(|expected| is_same(&pair[1], expected, tolerance))
                })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn outputs() {
        let is = |actual: &str, expected: &str| is_same_output(actual, expected, 1e-6);
        assert!(is("1 2\n3\n", "1 2\n3"));
        assert!(is("1  2 \n3\n\n\n", "1 2\n3"));
        assert!(is("", "\n"));
        assert!(is("0.3333333", "0.33333333") && is("2.0", "2") && is("1e3", "1000.0"));
        assert!(is("1000000.5", "1000000.9") && !is("0.5", "0.9"));
        assert!(!is("1 2 3", "1 2\n3") && !is("1\n\n2", "1\n2"));
        assert!(!is("10000000001", "10000000002") && !is("01", "1"));
        assert!(!is("YES", "Yes") && !is("", "1") && !is("1\n2", "1"));
        assert!(!is("nan", "0.5") && !is("inf", "1.0e3"));
        assert!(!is_same_output("0.1", "0.10001", 0.0) && is_same_output("0.1", "0.10", 0.0));
    }

    #[test]
    fn values() {
        let is = |encoded: Json, expected: Json| is_same_value(&encoded, &expected, 1e-6);
        assert!(
            is(json!(null), json!(null)) && is(json!("sab"), json!("ab")) && is(json!("n1"), json!(true))
        );
        assert!(
            is(json!("n3"), json!(3))
                && is(json!("n3"), json!(3.0))
                && is(json!("n0.30000000000000004"), json!(0.3))
        );
        assert!(is(json!(["t", "n1", ["l", "sx"]]), json!([1, ["x"]])));
        assert!(is(json!(["d", ["sa", "n1"], ["n2", null]]), json!({"a": 1, "2": null})));
        assert!(is(json!("n7"), json!([7])) && is(json!(["l", "n7"]), json!([[7]])));
        assert!(!is(json!("s3"), json!(3)) && !is(json!("n3"), json!("3")) && !is(json!("n4"), json!(3)));
        assert!(
            !is(json!("?object"), json!("?object"))
                && !is(json!(["l"]), json!({}))
                && !is(json!([]), json!([]))
        );
        assert!(!is(json!(["l", "n1"]), json!([1, 2])) && !is(json!(["S", "n1"]), json!([1])));
        assert!(!is(json!(["d", ["n1", "sx"], ["s1", "sx"]]), json!({"1": "x", "2": "y"})));
        assert!(!is(json!("n10000000000000000001"), json!(10_000_000_000_000_000_000_u64)));
    }
}
