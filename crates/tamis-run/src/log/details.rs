//! Parts of a step that are not single numbers: distributions, completions, and the times of its
//! stages.

use crate::metrics::timings::Span;

/// Details of a step, for the loggers that show them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepDetails {
    /// Distributions by logged name.
    pub distributions: Vec<(&'static str, Histogram)>,
    /// Completions of the step.
    pub samples: Vec<SampleText>,
    /// The step itself first, then its stages.
    pub spans: Vec<Span>,
}

/// A completion to read.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleText {
    /// The prompt as the policy sees it.
    pub prompt: String,
    /// The completion.
    pub completion: String,
    /// Its reward; `None`: unscored.
    pub reward: Option<f64>,
    /// Its counted outcome: `trained`, the reason why it was dropped, ...
    pub verdict: String,
}

const NUM_BUCKETS: usize = 30;

/// A distribution as counts in buckets of equal width.
///
/// ```
/// use tamis_run::log::details::Histogram;
/// let histogram = Histogram::of([0.0, 0.5, 1.0, f64::NAN]).expect("numbers");
/// assert_eq!((histogram.num(), histogram.sum), (3, 1.5));
/// assert_eq!(histogram.edges.len(), histogram.counts.len() + 1);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// Edges of the buckets, in increasing order: one more than there are buckets.
    pub edges: Vec<f64>,
    /// Number of values in each bucket; the upper edge of the last one belongs to it, no other upper edge
    /// does.
    pub counts: Vec<u64>,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Sum of the values.
    pub sum: f64,
    /// Sum of their squares.
    pub sum_squares: f64,
}

impl Histogram {
    /// Histogram of the finite values among these; `None` if there are none. Values that are all equal
    /// fill one bucket of width 1 around them.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let min = values.iter().copied().reduce(f64::min)?;
        let max = values.iter().copied().reduce(f64::max)?;
        let (sum, sum_squares) = (values.iter().sum(), values.iter().map(|value| value * value).sum());
        let width = (max - min) / NUM_BUCKETS as f64;
        if !(width.is_finite() && width > 0.0) {
            let (edges, counts) = (vec![min - 0.5, max + 0.5], vec![values.len() as u64]);
            return Some(Self { edges, counts, min, max, sum, sum_squares });
        }
        let mut edges: Vec<f64> = (0..NUM_BUCKETS).map(|bucket| min + width * bucket as f64).collect();
        edges.push(max);
        let mut counts = vec![0; NUM_BUCKETS];
        for value in values {
            let bucket = (((value - min) / width) as usize).min(NUM_BUCKETS - 1);
            if let Some(count) = counts.get_mut(bucket) {
                *count += 1;
            }
        }
        Some(Self { edges, counts, min, max, sum, sum_squares })
    }

    /// Number of values.
    pub fn num(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_hand() {
        let histogram = Histogram::of((0..=30).map(f64::from)).expect("numbers");
        assert_eq!(histogram.edges[..3], [0.0, 1.0, 2.0]);
        let mut expected = vec![1; 30];
        expected[29] = 2;
        assert_eq!(histogram.counts, expected, "the largest value is in the last bucket");
        let Histogram { min, max, sum, sum_squares, .. } = histogram;
        assert_eq!((min, max, sum, sum_squares), (0.0, 30.0, 465.0, 9455.0));
    }

    #[test]
    fn one_value_fills_one_bucket_and_none_gives_none() {
        let histogram = Histogram::of([2.0, 2.0]).expect("numbers");
        assert_eq!((histogram.edges, histogram.counts), (vec![1.5, 2.5], vec![2]));
        assert_eq!(Histogram::of([f64::NAN, f64::INFINITY]), None);
    }
}
