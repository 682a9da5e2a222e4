//! Advantages and objective compared with numbers computed by verl and TRL (`tests/golden`, tolerances from
//! its README).
//!
//! Every case of every file is used; those outside the scope are printed with the reason.

#![expect(clippy::float_cmp, reason = "flags and exact zeros are compared exactly")]
#![expect(clippy::print_stdout, reason = "tests report the cases that they leave out")]
#![expect(clippy::unwrap_used, reason = "a reference file that does not parse has failed")]

mod advantage;
mod balance;
mod correction;
mod distillation;
mod distillation_in_loss;
mod kl;
mod trl_loss;
mod verl_loss;
mod verl_policy;

use serde_json::Value;
use tamis_golden::numbers;

/// Relative and absolute tolerance of float64 cases.
const F64: (f64, f64) = (1e-9, 1e-11);
/// The same for float32 cases.
const F32: (f64, f64) = (1e-5, 1e-6);

/// The cases of a file; for some of them the reference has numbers.
fn cases(file: &str) -> Vec<Value> {
    let cases = tamis_golden::cases(file);
    assert!(cases.iter().any(|case| case["outputs"]["error"].is_null()), "{file}: nothing to compare");
    cases
}

fn skip(case: &Value, reason: &str) {
    println!("`{}` not compared: {reason}", name(case));
}

fn name(case: &Value) -> &str {
    case["name"].as_str().unwrap_or("?")
}

fn tolerance(case: &Value) -> (f64, f64) {
    match case["dtype"].as_str() {
        Some("float32") => F32,
        Some("float32-stats") => (1e-4, 1e-6),
        _ => F64,
    }
}

/// Fails on a field of the case that the test does not know, so that none is ignored silently.
#[track_caller]
fn only_known(case: &Value, part: &str, known: &[&str]) {
    for field in case[part].as_object().into_iter().flat_map(|fields| fields.keys()) {
        assert!(known.contains(&field.as_str()), "{}: unknown {part} field `{field}`", name(case));
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn lengths(case: &Value) -> Vec<usize> {
    numbers(&case["inputs"]["lengths"]).iter().map(|&length| length as usize).collect()
}

fn offsets(lengths: &[usize]) -> Vec<usize> {
    let mut offsets = vec![0];
    let mut end = 0;
    for length in lengths {
        end += length;
        offsets.push(end);
    }
    offsets
}

fn mask(case: &Value) -> Vec<bool> {
    numbers(&case["inputs"]["mask"]).iter().map(|&on| on == 1.0).collect()
}

/// A per-token column, or `None` if the case has none.
fn column(case: &Value, field: &str) -> Option<Vec<f64>> {
    let value = &case["inputs"][field];
    value.is_array().then(|| numbers(value))
}

#[track_caller]
fn close(case: &Value, field: &str, actual: &[f64], expected: &[f64], (rtol, atol): (f64, f64)) {
    tamis_golden::assert_close(&format!("{} {field}", name(case)), actual, expected, rtol, atol);
}
