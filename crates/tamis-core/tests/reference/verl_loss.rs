//! verl's aggregation modes and its value loss.

use serde_json::Value;
use tamis_core::objective::{
    Aggregation, CriticColumns, GroupCounts, LengthDivisors, Normalisers, ValueColumns, ValueMetrics,
    ValueTerm,
};
use tamis_golden::numbers;

use crate::{cases, close, column, lengths, mask, name, number, offsets, only_known, skip, tolerance};

/// verl's mode.
#[track_caller]
pub(crate) fn aggregation(mode: &str) -> Aggregation {
    let found = Aggregation::ALL.iter().find(|aggregation| aggregation.as_str() == mode);
    *found.unwrap_or_else(|| panic!("aggregation {mode}"))
}

/// The 1e-8 that verl adds to lengths, and the padded width by which it divides if no scale is given.
pub(crate) fn divisors(case: &Value, global: &Value) -> LengthDivisors {
    let scale = &global["loss_scale_factor"];
    let scale = scale.as_f64().or(case["inputs"]["padded_len"].as_f64());
    LengthDivisors { loss_scale_factor: scale.unwrap_or(1.0), length_epsilon: 1e-8 }
}

/// verl's global counts if given, otherwise those of the micro-batch (without fully masked trajectories).
pub(crate) fn normalisers(global: &Value, lengths: &[usize], mask: &[bool]) -> Normalisers {
    let mut rows = mask;
    let mut trained = 0;
    for &length in lengths {
        let (row, rest) = rows.split_at(length);
        trained += usize::from(row.contains(&true));
        rows = rest;
    }
    let given = |field: &str, otherwise: usize| global[field].as_f64().unwrap_or(otherwise as f64);
    Normalisers {
        tokens: given("batch_num_tokens", mask.iter().filter(|&&on| on).count()),
        sequences: given("global_batch_size", trained),
        groups: f64::NAN,
        dp_size: given("dp_size", 1),
    }
}

/// With nothing to train on it is 0 here and NaN in the reference.
pub(crate) fn compare_loss(case: &Value, loss: f64, mask: &[bool]) {
    let expected = number(&case["outputs"]["loss"]);
    if expected.is_nan() {
        assert!(!mask.contains(&true) && loss == 0.0, "{}: NaN in the reference, {loss} here", name(case));
    } else {
        close(case, "loss", &[loss], &[expected], tolerance(case));
    }
}

#[test]
fn verl_agg_loss() {
    for case in cases("verl_agg_loss") {
        only_known(
            &case,
            "params",
            &["loss_agg_mode", "dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor"],
        );
        if let Some(error) = case["outputs"]["error"].as_str() {
            skip(&case, &format!("the reference raises ({error}); counts are never optional here"));
            continue;
        }
        let params = &case["params"];
        let mode = params["loss_agg_mode"].as_str().unwrap();
        let (aggregation, divisors) = (aggregation(mode), divisors(&case, params));
        let (lengths, mask, loss) = (lengths(&case), mask(&case), numbers(&case["inputs"]["loss"]));
        let normalisers = normalisers(params, &lengths, &mask);
        let (mut value, mut derivative, mut start) = (0.0, Vec::new(), 0);
        for &length in &lengths {
            let tokens = start..start + length;
            let count = mask[tokens.clone()].iter().filter(|&&on| on).count();
            let weight = aggregation.weight(count, GroupCounts::default(), &normalisers, &divisors).unwrap();
            let derivative_t = |t: usize| if mask[t] { weight } else { 0.0 };
            value += weight * tokens.clone().filter(|&t| mask[t]).map(|t| loss[t]).sum::<f64>();
            derivative.extend(tokens.map(derivative_t));
            start += length;
        }
        compare_loss(&case, value, &mask);
        if case["outputs"]["dloss"].is_array() {
            close(&case, "dloss", &derivative, &numbers(&case["outputs"]["dloss"]), tolerance(&case));
        }
    }
}

#[test]
fn verl_value_loss() {
    for case in cases("verl_value_loss") {
        let params = &case["params"];
        let mode = params["loss_agg_mode"].as_str().unwrap();
        only_known(&case, "params", &["loss_agg_mode", "cliprange_value"]);
        let divisors = divisors(&case, &Value::Null);
        let clip = params["cliprange_value"].as_f64();
        let term = ValueTerm { divisors, ..ValueTerm::of(clip, aggregation(mode)) };
        let (lengths, mask) = (lengths(&case), mask(&case));
        let offsets = offsets(&lengths);
        let column = |field| column(&case, field).unwrap();
        let (value, old, returns) = (column("value"), column("old_value"), column("return"));
        let columns = CriticColumns {
            offsets: &offsets,
            mask: &mask,
            values: ValueColumns { value: &value, old: &old, returns: &returns },
            group_tokens: None,
            group_sequences: None,
        };
        let normalisers = normalisers(&Value::Null, &lengths, &mask);
        let (mut derivatives, mut sums) = (Vec::new(), Vec::new());
        term.evaluate(&columns, &normalisers, &mut derivatives, &mut sums).unwrap();
        let outputs = &case["outputs"];
        let expected = numbers(&outputs["dloss_dvalue"]);
        close(&case, "dloss_dvalue", &derivatives, &expected, tolerance(&case));
        let metrics = ValueMetrics::of(&sums);
        close(&case, "loss", &[metrics.loss], &[number(&outputs["loss"])], tolerance(&case));
        // The reference divides by the number of tokens + 1e-8.
        let tokens = mask.iter().filter(|&&on| on).count() as f64;
        let expected = number(&outputs["clipfrac"]) * (tokens + 1e-8) / tokens;
        close(&case, "clipfrac", &[metrics.clip_share], &[expected], tolerance(&case));
    }
}
