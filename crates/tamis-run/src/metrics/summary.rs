//! Numbers in short: how many, their mean, their bounds, their spread; and whether a difference is more than
//! noise.

/// A difference counts from so many standard errors on.
const CLEAR: f64 = 2.0;
/// Fewer pairs do not show how much others would differ.
const FEWEST: usize = 3;

/// Count, mean, smallest, largest and sample deviation of the numbers that are not NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberSummary {
    /// Number of values that are not NaN.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// Sample deviation (ddof 1); `None` below two numbers, as TRL's `nanstd` gives NaN.
    pub std: Option<f64>,
}

impl NumberSummary {
    /// Summary of all numbers that are not NaN; `None` if there are none.
    ///
    /// The deviation takes two passes, so equal numbers give exactly the rounding of their mean, which
    /// is 0 for all likely rewards; [`has_one_value`] is the test for uniformity.
    ///
    /// ```
    /// use tamis_run::metrics::summary::NumberSummary;
    /// let summary = NumberSummary::of([1.0, f64::NAN, 2.0, 6.0]).expect("three numbers");
    /// assert_eq!((summary.count, summary.mean, summary.min, summary.max), (3, 3.0, 1.0, 6.0));
    /// assert_eq!(summary.std, Some(7f64.sqrt())); // (4 + 1 + 9) / 2
    /// ```
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Self {
            count,
            mean,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            std: (count > 1).then(|| (squares / (count - 1) as f64).sqrt()),
        })
    }

    /// Standard error of the mean, of numbers that were drawn independently. `None` below two numbers,
    /// and if all are equal: then this sample does not show how much others would differ.
    pub fn standard_error(&self) -> Option<f64> {
        self.std.filter(|_| self.min < self.max).map(|std| std / (self.count as f64).sqrt())
    }
}

/// Whether a difference is more than noise: larger than two of its standard errors.
///
/// ```
/// use tamis_run::metrics::summary::is_clear;
/// assert_eq!([0.1, -0.1, 0.08].map(|difference| is_clear(difference, 0.04)), [true, true, false]);
/// ```
pub fn is_clear(difference: f64, standard_error: f64) -> bool {
    difference.abs() > CLEAR * standard_error
}

/// What a paired difference shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The second measurement is better.
    Better,
    /// The second measurement is worse.
    Worse,
    /// No pair changed.
    None,
    /// The difference is within the noise.
    Unclear,
}

/// Differences `after - before` of two measurements of the same prompts, pair by pair. What makes the prompts
/// unlike drops out, so that the mean difference is known better than the two means are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairedDifference {
    /// The differences.
    pub summary: NumberSummary,
    /// Number of pairs whose two numbers differ.
    pub num_changed: usize,
}

impl PairedDifference {
    /// The differences of numbers that belong to each other, as two policies' outcomes on the same prompts
    /// do. Pairs of which one is missing are left out; `None` if there is no other.
    ///
    /// ```
    /// use tamis_run::metrics::summary::PairedDifference;
    /// let before = [Some(0.0), Some(1.0), Some(0.0), None];
    /// let gain = PairedDifference::new(&before, &[Some(1.0), Some(1.0), Some(0.0), Some(1.0)]);
    /// let gain = gain.expect("three pairs");
    /// assert_eq!((gain.summary.count, gain.summary.mean, gain.num_changed), (3, 1.0 / 3.0, 1));
    /// ```
    pub fn new(before: &[Option<f64>], after: &[Option<f64>]) -> Option<Self> {
        let pairs = before.iter().zip(after).filter_map(|(before, after)| Some((*after)? - (*before)?));
        let differences: Vec<f64> = pairs.filter(|difference| !difference.is_nan()).collect();
        let num_changed = differences.iter().filter(|difference| **difference != 0.0).count();
        Some(Self { summary: NumberSummary::of(differences)?, num_changed })
    }

    /// What the differences show. Better and worse need two standard errors, at least three pairs and more
    /// than one that changed: a single prompt that flips decides nothing. If all pairs changed by the same
    /// amount, they have no standard error, and three pairs are enough.
    ///
    /// ```
    /// use tamis_run::metrics::summary::{Change, PairedDifference};
    /// let change = |after: &[f64]| {
    ///     let after: Vec<_> = after.iter().copied().map(Some).collect();
    ///     PairedDifference::new(&vec![Some(0.0); after.len()], &after).expect("pairs").change()
    /// };
    /// assert_eq!(change(&[1.0, 0.0, 1.0, 1.0]), Change::Better); // 0.75, and an error of 0.25
    /// assert_eq!(change(&[-1.0, 0.0, 0.0, 0.0]), Change::Unclear); // -0.25, and an error of 0.25
    /// assert_eq!(change(&[-1.0, -1.0, -1.0]), Change::Worse);
    /// assert_eq!(change(&[1.0, 1.0]), Change::Unclear);
    /// assert_eq!(change(&[0.0, 0.0]), Change::None);
    /// ```
    pub fn change(&self) -> Change {
        let NumberSummary { count, mean, .. } = self.summary;
        let error = self.summary.standard_error().unwrap_or(0.0);
        match mean {
            _ if self.num_changed == 0 => Change::None,
            _ if self.num_changed == 1 || count < FEWEST || !is_clear(mean, error) => Change::Unclear,
            mean if mean > 0.0 => Change::Better,
            _ => Change::Worse,
        }
    }
}

/// Whether two or more numbers that are not NaN are there and all are the same (max == min).
#[expect(clippy::float_cmp, reason = "uniformity is max == min, exactly")]
pub fn has_one_value(values: impl IntoIterator<Item = f64>) -> bool {
    NumberSummary::of(values).is_some_and(|summary| summary.count > 1 && summary.min == summary.max)
}
