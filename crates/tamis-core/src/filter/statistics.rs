//! A group's metric in a few numbers.

use super::{FilterError, OutcomeScale};
use crate::fault;

/// Statistics of one group's metric over its scored members (those with a finite value).
///
/// `mean`, `std`, `min` and `max` are NaN if no member is scored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupStatistics {
    /// Members, scored or not.
    pub size: usize,
    /// Members with a finite metric.
    pub num_scored: usize,
    /// Scored members at or above the outcome scale's `correct`; `None` if the metric has no such scale.
    pub num_correct: Option<usize>,
    /// Mean of the scored members.
    pub mean: f64,
    /// Their population standard deviation (ddof 0); exactly 0 if all are equal.
    pub std: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl GroupStatistics {
    /// From one group's values \[G\]. Sums run in member order, in f64.
    ///
    /// Equal members give `std` exactly 0, unlike a two-pass formula in floating point
    /// (`numpy.std([0.1] * 3)` is 1.4e-17).
    ///
    /// ```
    /// use tamis_core::filter::GroupStatistics;
    /// let group = GroupStatistics::of(&[1.0, f64::NAN, 0.0, 1.0, 1.0], None);
    /// assert_eq!((group.size, group.num_scored, group.mean), (5, 4, 0.75));
    /// assert_eq!(group.std, (3.0_f64 / 16.0).sqrt());
    /// ```
    #[inline]
    pub fn of(values: &[f64], scale: Option<OutcomeScale>) -> Self {
        // Nearly every group is fully scored. A finite sum proves it, and then no value needs its own branch.
        let correct = scale.map_or(f64::INFINITY, |scale| scale.correct);
        let mut num_correct = 0;
        let mut sum = 0.0;
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        for &value in values {
            num_correct += usize::from(value >= correct);
            sum += value;
            min = if value < min { value } else { min };
            max = if value > max { value } else { max };
        }
        if !sum.is_finite() || values.is_empty() {
            return Self::of_scored(values, scale);
        }
        let count = values.len() as f64;
        let mean = sum / count;
        let mut squares = 0.0;
        for &value in values {
            squares += (value - mean) * (value - mean);
        }
        if !squares.is_finite() {
            return Self::of_scored(values, scale);
        }
        let std = (squares / count).sqrt();
        let is_uniform = min >= max;
        Self {
            size: values.len(),
            num_scored: values.len(),
            num_correct: scale.map(|_| num_correct),
            mean: if is_uniform { min } else { mean },
            std: if is_uniform { 0.0 } else { std },
            min,
            max,
        }
    }

    /// For a group with members without a finite value, or whose sum or sum of squares is beyond f64.
    #[cold]
    fn of_scored(values: &[f64], scale: Option<OutcomeScale>) -> Self {
        let scored: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let size = values.len();
        if scored.is_empty() {
            let (mean, num_correct) = (f64::NAN, scale.map(|_| 0));
            return Self { size, num_scored: 0, num_correct, mean, std: mean, min: mean, max: mean };
        }
        if scored.len() < size {
            return Self { size, ..Self::of(&scored, scale) };
        }
        // Divided first, so that a group of enormous rewards still has a mean.
        let count = size as f64;
        let mean = scored.iter().map(|value| value / count).sum::<f64>();
        let (min, max) = scored
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), &value| (value.min(min), value.max(max)));
        // In units of the range: no deviation is more than half of it.
        let range = max / 2.0 - min / 2.0;
        let relative = |value: f64| (value / 2.0 - mean / 2.0) / range;
        let variance: f64 = scored.iter().map(|value| relative(*value) * relative(*value) / count).sum();
        let is_uniform = min >= max;
        Self {
            size,
            num_scored: size,
            num_correct: scale.map(|scale| scored.iter().filter(|value| **value >= scale.correct).count()),
            mean: if is_uniform { min } else { mean },
            std: if is_uniform { 0.0 } else { 2.0 * variance.sqrt() * range },
            min,
            max,
        }
    }

    /// For every group of a flat column, cut as in [`judge_columns`](super::judge_columns).
    ///
    /// # Errors
    /// The offsets do not cut the values into groups.
    pub fn of_columns(
        metric: &[f64],
        offsets: &[usize],
        scale: Option<OutcomeScale>,
    ) -> Result<Vec<Self>, FilterError> {
        let len = metric.len();
        let (first, last) = (offsets.first().copied(), offsets.last().copied());
        if first != Some(0) || last != Some(len) {
            return Err(fault!("group offsets must begin at 0 and end at the {len} values there are, got {first:?} to {last:?}").into());
        }
        if let Some(group) = offsets.windows(2).position(|pair| pair[0] > pair[1] || pair[1] > len) {
            return Err(fault!(
                "group {group} ends at {end}, but it must lie between {start} and the {len} values there are",
                start = offsets[group],
                end = offsets[group + 1]
            )
            .into());
        }
        Ok(offsets.windows(2).map(|pair| Self::of(&metric[pair[0]..pair[1]], scale)).collect())
    }

    /// Whether too few members have a metric for a verdict: none, or one of several.
    pub fn is_unscored(&self) -> bool {
        self.num_scored == 0 || (self.size > 1 && self.num_scored < 2)
    }
}
