//! How the rewards of a run moved: a run without a validation has nothing else that shows whether it learns.

use std::cmp::Ordering;

use tamis_core::figure::fixed;
use tamis_run::metrics::summary::is_clear;

use super::measure::Choice;
use super::series::Series;

/// The steps that have a figure, each with it.
pub(crate) fn values(series: &Series, name: &str) -> Vec<(u64, f64)> {
    series.rows.iter().filter_map(|row| Some((row.step, *row.values.get(name)?))).collect()
}

/// The rewards of everything generated, in the first and in the last fifth of the steps.
pub(crate) fn reward(series: &Series) -> Option<(Ordering, String)> {
    let name = Choice::Reward.name(series)?;
    let values: Vec<f64> = values(series, &name).into_iter().map(|(_, value)| value).collect();
    let fifth = values.len() / 5;
    if fifth == 0 {
        return None;
    }
    let of = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        (mean, squares / values.len() as f64 / (values.len().max(2) - 1) as f64)
    };
    let (first, first_error) = of(values.get(..fifth)?);
    let (last, last_error) = of(values.get(values.len() - fifth..)?);
    let change = last - first;
    let verdict = match is_clear(change, (first_error + last_error).sqrt()) {
        false => Ordering::Equal,
        true if change > 0.0 => Ordering::Greater,
        true => Ordering::Less,
    };
    let text = format!(
        "the mean reward (`{name}`) was {} in the first fifth of the steps and {} in the last",
        fixed(first, 3),
        fixed(last, 3)
    );
    Some((verdict, text))
}

/// The change of the rewards in words, if it is too small to count.
pub(crate) fn reward_is_unclear(series: &Series) -> Option<String> {
    reward(series).filter(|(verdict, _)| *verdict != Ordering::Greater).map(|(_, change)| change)
}
