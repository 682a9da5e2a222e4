//! What the losses of policy and critic have in common: how a batch is cut, the divisors of its means, and
//! whether the aggregation needs a length.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tamis_core::objective::{self as core, Aggregation};
use tamis_core::ragged::Ragged;

use crate::error::{column_error, refused};
use crate::rows::{Rows, flat, lengths_of, read};

/// Divisors of a loss's means: tokens, trajectories and groups with an unmasked token, counted over the whole
/// optimizer batch. Loss and derivatives are multiplied by `dp_size`, for ranks whose gradients are averaged.
#[pyclass(module = "tamis._native", frozen, get_all, eq)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Normalisers {
    /// Unmasked tokens.
    tokens: f64,
    /// Trajectories with an unmasked token.
    sequences: f64,
    /// Groups with an unmasked token.
    groups: f64,
    /// Data-parallel ranks whose gradients are averaged.
    dp_size: f64,
}

/// The cuts of a batch: the length of each trajectory, and which of its tokens are trained on.
pub(crate) struct Cuts {
    pub(crate) offsets: Vec<usize>,
    pub(crate) lengths: Vec<usize>,
    pub(crate) mask: Ragged<bool>,
}

impl Cuts {
    /// From offsets if they were passed, otherwise from the rows of the first column.
    pub(crate) fn of<T>(
        py: Python<'_>,
        name: &str,
        first: &Rows<T>,
        offsets: Option<&Bound<'_, PyAny>>,
        mask: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let given = match offsets {
            None => None,
            Some(offsets) => Some(lengths_of(&flat::<usize>(offsets, "offsets")?, "offsets", py)?),
        };
        let num_values = first.values.len();
        let Some(lengths) = given.or_else(|| first.lengths.clone()) else {
            let message = format!("column `{name}` has no rows: pass one row per trajectory, or `offsets`");
            return Err(column_error(py, &message));
        };
        let mut offsets = vec![0];
        for length in &lengths {
            offsets.push(offsets.last().copied().unwrap_or(0) + length);
        }
        let expected = offsets.last().copied().unwrap_or(0);
        if expected != num_values {
            let message = format!("column `{name}` has {num_values} values, expected {expected}");
            return Err(column_error(py, &message));
        }
        let mask = match mask {
            None => Ragged::from_lengths(vec![true; num_values], &lengths),
            Some(mask) => Ragged::from_lengths(read::<bool>(mask, "mask")?.values, &lengths),
        };
        let mask = mask.map_err(|error| column_error(py, &format!("column `mask`: {error}")))?;
        Ok(Self { offsets, lengths, mask })
    }
}

/// A value above 0 by more than this is not a log-probability. Rounding in single precision stays below it.
const ROUNDING: f64 = 1e-3;

impl Cuts {
    /// Refuses a column of log-probabilities \[N\] with a value above 0, or with NaN unless that means "not
    /// given". Masked values are not checked.
    pub(crate) fn check_logprobs<T: Copy + Into<f64>>(
        &self,
        py: Python<'_>,
        name: &str,
        values: &[T],
        may_be_nan: bool,
    ) -> PyResult<()> {
        let is_refused = |value: f64| value > ROUNDING || (value.is_nan() && !may_be_nan);
        let Some((place, value, fix)) = self.first_of(values, is_refused).map(|(place, value)| {
            let fix = if value.is_nan() {
                "leave what has no log-probability out of `mask`"
            } else {
                "log-probabilities are 0 or less (pass no probabilities and no losses, and compute them in float32)"
            };
            (place, value, fix)
        }) else {
            return Ok(());
        };
        Err(column_error(py, &format!("column `{name}` is {value} at {place}: {fix}")))
    }

    /// Refuses a column of numbers \[N\] with NaN. Masked values are not checked.
    pub(crate) fn check_numbers<T: Copy + Into<f64>>(
        &self,
        py: Python<'_>,
        name: &str,
        values: &[T],
    ) -> PyResult<()> {
        match self.first_of(values, f64::is_nan) {
            None => Ok(()),
            Some((place, _)) => {
                let message =
                    format!("column `{name}` is NaN at {place}: leave what has no value out of `mask`");
                Err(column_error(py, &message))
            }
        }
    }

    /// The place of the first unmasked value that satisfies a condition, in words, and the value.
    fn first_of<T: Copy + Into<f64>>(
        &self,
        values: &[T],
        condition: impl Fn(f64) -> bool,
    ) -> Option<(String, f64)> {
        let unmasked = self.mask.values().iter().zip(values).map(|(stays, value)| (*stays, (*value).into()));
        let place = unmasked.clone().position(|(stays, value)| stays && condition(value))?;
        let row = self.offsets.partition_point(|offset| *offset <= place).saturating_sub(1);
        let value = unmasked.map(|(_, value)| value).nth(place)?;
        Some((format!("token {} of trajectory {row}", place - self.offsets[row]), value))
    }
}

/// The divisors of means, and the counts of each trajectory's group. Passed values replace computed ones.
pub(crate) struct Counts {
    pub(crate) normalisers: core::Normalisers,
    pub(crate) group_tokens: Option<Vec<f64>>,
    pub(crate) group_sequences: Option<Vec<f64>>,
}

impl Counts {
    pub(crate) fn of(
        py: Python<'_>,
        cuts: &Cuts,
        aggregations: &[Aggregation],
        group_sizes: Option<&Bound<'_, PyAny>>,
        normalisers: Option<&Normalisers>,
        group_tokens: Option<&Bound<'_, PyAny>>,
        group_sequences: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let sizes = group_sizes.map(|sizes| flat::<usize>(sizes, "group_sizes")).transpose()?;
        let needs_groups = aggregations
            .iter()
            .find(|kind| matches!(kind, Aggregation::GroupTokenMean | Aggregation::GroupSeqMean));
        if let (Some(aggregation), None, None) = (needs_groups, &sizes, normalisers) {
            let message = format!("`group_sizes` is missing; aggregation `{aggregation}` needs it");
            return Err(column_error(py, &message));
        }
        // If no mean is over groups, each trajectory can count as one.
        let counted = sizes.is_some();
        let sizes = sizes.unwrap_or_else(|| vec![1; cuts.lengths.len()]);
        let count = |error| column_error(py, &format!("`group_sizes`: {error}"));
        let (own, tokens) = core::Normalisers::of(&cuts.mask, &sizes).map_err(count)?;
        let sequences = core::Normalisers::group_sequences(&cuts.mask, &sizes).map_err(count)?;
        let passed = |column: Option<&Bound<'_, PyAny>>, name| {
            column.map(|column| flat::<f64>(column, name)).transpose()
        };
        Ok(Self {
            normalisers: normalisers.map_or(own, Normalisers::inner),
            group_tokens: passed(group_tokens, "group_tokens")?.or(counted.then_some(tokens)),
            group_sequences: passed(group_sequences, "group_sequences")?.or(counted.then_some(sequences)),
        })
    }
}

impl Normalisers {
    pub(crate) fn inner(&self) -> core::Normalisers {
        let Self { tokens, sequences, groups, dp_size } = *self;
        core::Normalisers { tokens, sequences, groups, dp_size }
    }

    /// Divisors of 1.
    pub(crate) fn ones() -> Self {
        Self { tokens: 1.0, sequences: 1.0, groups: 1.0, dp_size: 1.0 }
    }

    pub(crate) fn of_counts(counts: core::Normalisers) -> Self {
        let core::Normalisers { tokens, sequences, groups, dp_size } = counts;
        Self { tokens, sequences, groups, dp_size }
    }
}

#[pymethods]
impl Normalisers {
    #[new]
    #[pyo3(signature = (tokens, sequences, groups, dp_size=1.0))]
    fn new(tokens: f64, sequences: f64, groups: f64, dp_size: f64) -> Self {
        Self { tokens, sequences, groups, dp_size }
    }

    fn __getnewargs__(&self) -> (f64, f64, f64, f64) {
        (self.tokens, self.sequences, self.groups, self.dp_size)
    }

    fn __repr__(&self) -> String {
        let Self { tokens, sequences, groups, dp_size } = self;
        format!("Normalisers(tokens={tokens}, sequences={sequences}, groups={groups}, dp_size={dp_size})")
    }
}

/// Whether an aggregation reads `loss_scale_factor`.
pub(crate) fn divides_by_scale(aggregation: Aggregation) -> bool {
    aggregation == Aggregation::SeqMeanTokenSumNorm
}

/// Refuses an aggregation that divides by a length if none was given. In a run that length is the response
/// limit.
pub(crate) fn require_scale(
    py: Python<'_>,
    mut aggregations: impl Iterator<Item = Aggregation>,
    has_scale: bool,
) -> PyResult<()> {
    match aggregations.find(|kind| divides_by_scale(*kind)) {
        Some(aggregation) if !has_scale => {
            let message = format!("the aggregation `{aggregation}` needs `objective.loss_scale_factor`");
            let hint = "set `loss_scale_factor` to the response limit in tokens";
            Err(refused(py, &message, Some(hint.to_owned())))
        }
        _ => Ok(()),
    }
}

/// Metrics by their names.
pub(crate) fn metrics_of(
    py: Python<'_>,
    pairs: impl IntoIterator<Item = (impl AsRef<str>, f64)>,
) -> PyResult<Bound<'_, PyDict>> {
    let metrics = PyDict::new(py);
    for (name, value) in pairs {
        metrics.set_item(name.as_ref(), value)?;
    }
    Ok(metrics)
}
