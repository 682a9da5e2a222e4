//! A group's metric in a handful of numbers.

use super::{FilterError, OutcomeScale};

/// Statistics of one group's metric over its scored members, those whose value is finite.
///
/// `mean`, `std`, `min` and `max` are NaN where no member is scored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupStatistics {
    /// Members, scored or not.
    pub size: usize,
    /// Members with a finite metric.
    pub num_scored: usize,
    /// Scored members at or above the outcome scale's `correct`; `None` where the metric has no such scale.
    pub num_correct: Option<usize>,
    /// Mean of the scored.
    pub mean: f64,
    /// Their population standard deviation (ddof 0); exactly 0 where all are equal.
    pub std: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl GroupStatistics {
    /// Of one group's values \[G\]. Sums run in member order, in f64.
    ///
    /// Equal members give `std` exactly 0, unlike a two-pass formula in floating point (`numpy.std([0.1] * 3)` is 1.4e-17).
    ///
    /// ```
    /// use tamis_core::filter::GroupStatistics;
    /// let group = GroupStatistics::of(&[1.0, f64::NAN, 0.0, 1.0, 1.0], None);
    /// assert_eq!((group.size, group.num_scored, group.mean), (5, 4, 0.75));
    /// assert_eq!(group.std, (3.0_f64 / 16.0).sqrt());
    /// ```
    pub fn of(values: &[f64], scale: Option<OutcomeScale>) -> Self {
        let correct = scale.map_or(f64::INFINITY, |scale| scale.correct);
        let mut num_scored = 0;
        let mut num_correct = 0;
        let mut sum = 0.0;
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        for &value in values {
            if value.is_finite() {
                num_scored += 1;
                num_correct += usize::from(value >= correct);
                sum += value;
                min = if value < min { value } else { min };
                max = if value > max { value } else { max };
            }
        }
        let size = values.len();
        let num_correct = scale.map(|_| num_correct);
        if num_scored == 0 {
            return Self {
                size,
                num_scored,
                num_correct,
                mean: f64::NAN,
                std: f64::NAN,
                min: f64::NAN,
                max: f64::NAN,
            };
        }
        if min >= max {
            // -0.0 and 0.0 are equal too; adding 0.0 gives them one name.
            let value = min + 0.0;
            return Self { size, num_scored, num_correct, mean: value, std: 0.0, min: value, max: value };
        }
        let count = num_scored as f64;
        // Divided first where the sum overflows, so that a group of enormous rewards still has a mean.
        let mean = if sum.is_finite() {
            sum / count
        } else {
            values.iter().filter(|value| value.is_finite()).map(|value| value / count).sum()
        };
        let mut squares = 0.0;
        for &value in values {
            if value.is_finite() {
                squares += (value - mean) * (value - mean);
            }
        }
        Self { size, num_scored, num_correct, mean, std: (squares / count).sqrt(), min, max }
    }

    /// Of every group of a flat column, cut as in [`judge_columns`](super::judge_columns).
    ///
    /// # Errors
    /// Where the offsets do not cut the values into groups.
    pub fn of_columns(
        metric: &[f64],
        offsets: &[usize],
        scale: Option<OutcomeScale>,
    ) -> Result<Vec<Self>, FilterError> {
        let len = metric.len();
        let (first, last) = (offsets.first().copied(), offsets.last().copied());
        if first != Some(0) || last != Some(len) {
            return Err(FilterError::OffsetEnds { first, last, len });
        }
        offsets
            .windows(2)
            .enumerate()
            .map(|(group, pair)| {
                let [start, end] = [pair[0], pair[1]];
                metric.get(start..end).map(|values| Self::of(values, scale)).ok_or(FilterError::Offsets {
                    group,
                    start,
                    end,
                    len,
                })
            })
            .collect()
    }

    /// Whether too few members have a metric for a verdict: none, or one of several.
    pub fn is_unscored(&self) -> bool {
        self.num_scored == 0 || (self.size > 1 && self.num_scored < 2)
    }
}
