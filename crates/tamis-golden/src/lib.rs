//! Beside the kernel, only for tests: reads the reference vectors under `tests/golden` (development only: no
//! shipped crate depends on it).
//!
//! `TAMIS_GOLDEN` names another folder of the same layout, with plain `.json` or compressed `.json.gz` files.
//! Tests take every case that the file holds; a case outside a test's scope is printed with the reason, never
//! dropped in silence.
#![allow(clippy::print_stderr, reason = "the readers report to whoever runs the tests")]

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The folder of reference vectors: `TAMIS_GOLDEN`, or `tests/golden` of this repository.
pub fn folder() -> PathBuf {
    std::env::var_os("TAMIS_GOLDEN")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden"), PathBuf::from)
}

/// A file of the reference folder as JSON: `name` without ending (`verl_adv_grpo`, `hf/qwen2/expected`),
/// compressed or plain.
///
/// # Panics
/// Neither `name.json` nor `name.json.gz` exists and parses: a test without its vectors has failed.
pub fn load(name: &str) -> Value {
    let folder = folder();
    let plain = folder.join(format!("{name}.json"));
    let packed = folder.join(format!("{name}.json.gz"));
    let mut text = String::new();
    if plain.exists() {
        text = std::fs::read_to_string(&plain).unwrap_or_else(|error| panic!("{}: {error}", plain.display()));
    } else {
        let file =
            std::fs::File::open(&packed).unwrap_or_else(|error| panic!("{}: {error}", packed.display()));
        flate2::read::GzDecoder::new(file)
            .read_to_string(&mut text)
            .unwrap_or_else(|error| panic!("{}: {error}", packed.display()));
    }
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The `cases` of a file.
pub fn cases(name: &str) -> Vec<Value> {
    match load(name)["cases"].take() {
        Value::Array(cases) => cases,
        _ => panic!("{name}: no array `cases`"),
    }
}

/// Numbers, with `null` as NaN.
pub fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .map(|items| items.iter().map(|item| item.as_f64().unwrap_or(f64::NAN)).collect())
        .unwrap_or_default()
}

/// Asserts `|actual - expected| <= atol + rtol * |expected|` for each pair, NaN equal to NaN, naming case,
/// field and place.
#[track_caller]
pub fn assert_close(what: &str, actual: &[f64], expected: &[f64], rtol: f64, atol: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}: {} values, expected {}", actual.len(), expected.len());
    for (i, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        // Infinities are close only to themselves.
        let same = a.total_cmp(&e).is_eq() || (a.is_nan() && e.is_nan());
        let close = same || (a - e).abs() <= atol + rtol * e.abs();
        assert!(close, "{what}[{i}]: got {a:e}, expected {e:e}, difference {:e}", (a - e).abs());
    }
}

/// A folder of real data beside the repository (`../shared/data/<name>`), or `None` with a printed notice
/// that the calling test was skipped. `TAMIS_DATA` names another parent folder.
pub fn data(name: &str) -> Option<PathBuf> {
    let parent = std::env::var_os("TAMIS_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    let folder = parent.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no {} (set TAMIS_DATA to the folder that holds `{name}`)", folder.display());
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read() {
        assert!(!cases("verl_adv_grpo").is_empty());
    }

    #[test]
    #[should_panic(expected = "difference")]
    fn a_difference_is_found() {
        assert_close("x", &[1.0, 2.0], &[1.0, 2.1], 1e-6, 0.0);
    }
}
