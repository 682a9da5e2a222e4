//! Numbers in short: how many, their mean, their bounds, their spread.

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

    /// Mean and standard error of the differences `after - before` in pairs, such as two policies' outcomes
    /// on the same prompts. The difficulty of the prompts drops out, so the mean difference has a smaller
    /// error than either mean. Incomplete pairs are left out; `None` if no pair is left.
    ///
    /// ```
    /// use tamis_run::metrics::summary::NumberSummary;
    /// let before = [Some(0.0), Some(1.0), Some(0.0), None];
    /// let gain = NumberSummary::of_differences(&before, &[Some(1.0), Some(1.0), Some(0.0), Some(1.0)]);
    /// let gain = gain.expect("three pairs");
    /// assert_eq!((gain.count, gain.mean), (3, 1.0 / 3.0));
    /// ```
    pub fn of_differences(before: &[Option<f64>], after: &[Option<f64>]) -> Option<Self> {
        Self::of(before.iter().zip(after).filter_map(|(before, after)| Some((*after)? - (*before)?)))
    }

    /// Standard error of the mean, of numbers that were drawn independently. `None` below two numbers,
    /// and if all are equal: then this sample does not show how much others would differ.
    pub fn standard_error(&self) -> Option<f64> {
        self.std.filter(|_| self.min < self.max).map(|std| std / (self.count as f64).sqrt())
    }
}

/// Whether two or more numbers that are not NaN are there and all are the same (max == min).
#[expect(clippy::float_cmp, reason = "uniformity is max == min, exactly")]
pub fn has_one_value(values: impl IntoIterator<Item = f64>) -> bool {
    NumberSummary::of(values).is_some_and(|summary| summary.count > 1 && summary.min == summary.max)
}
