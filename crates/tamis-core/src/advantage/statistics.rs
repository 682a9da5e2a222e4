//! Statistics of rewards, within groups and over the batch. All of them leave out unscored members (NaN).

/// Count, mean, extremes and spread of the scored members of a slice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Moments {
    /// Number of values that are not NaN.
    pub(crate) count: usize,
    /// Their mean; NaN if there are none.
    pub(crate) mean: f64,
    /// Sum of squared differences from the mean.
    squares: f64,
    min: f64,
    max: f64,
    sum: f64,
}

impl Moments {
    /// Two passes, so that a large mean does not cancel the spread.
    pub(crate) fn of(values: &[f64]) -> Self {
        // A sum is NaN only if a member is, or if opposite infinities were added: then the remaining ones are
        // handled separately.
        let moments = Self::of_numbers(values);
        if !moments.sum.is_nan() {
            return moments;
        }
        let scored: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
        Self::of_numbers(&scored)
    }

    /// For numbers without NaN, in four lanes.
    fn of_numbers(values: &[f64]) -> Self {
        let (chunks, rest) = values.as_chunks::<LANES>();
        let mut sums = [0.0; LANES];
        let (mut mins, mut maxs) = ([f64::INFINITY; LANES], [f64::NEG_INFINITY; LANES]);
        let mut each = |i: usize, value: f64| {
            sums[i] += value;
            mins[i] = if value < mins[i] { value } else { mins[i] };
            maxs[i] = if value > maxs[i] { value } else { maxs[i] };
        };
        for chunk in chunks {
            (0..LANES).for_each(|i| each(i, chunk[i]));
        }
        rest.iter().enumerate().for_each(|(i, &value)| each(i, value));
        let total = |[a, b, c, d]: [f64; LANES]| (a + c) + (b + d);
        let sum = total(sums);
        let mean = sum / values.len() as f64;
        let mut squares = [0.0; LANES];
        let mut each = |i: usize, value: f64| squares[i] += (value - mean) * (value - mean);
        for chunk in chunks {
            (0..LANES).for_each(|i| each(i, chunk[i]));
        }
        rest.iter().enumerate().for_each(|(i, &value)| each(i, value));
        Self {
            count: values.len(),
            mean,
            squares: total(squares),
            min: mins.into_iter().fold(f64::INFINITY, f64::min),
            max: maxs.into_iter().fold(f64::NEG_INFINITY, f64::max),
            sum,
        }
    }

    /// For numbers with a count each, for example lengths with their trajectories. NaN is left out.
    ///
    /// The function is called twice and must return the same numbers both times.
    pub(crate) fn weighted<I: Iterator<Item = (f64, usize)>>(numbers: impl Fn() -> I) -> Self {
        let scored = || numbers().filter(|(value, weight)| !value.is_nan() && *weight > 0);
        let (mut count, mut sum, mut min, mut max) = (0_usize, 0.0, f64::INFINITY, f64::NEG_INFINITY);
        for (value, weight) in scored() {
            count += weight;
            sum += value * weight as f64;
            min = min.min(value);
            max = max.max(value);
        }
        let mean = sum / count as f64;
        let squares = scored().map(|(value, weight)| weight as f64 * (value - mean) * (value - mean)).sum();
        Self { count, mean, squares, min, max, sum }
    }

    /// Sum of those that are not NaN.
    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }

    /// Whether the scored members do not differ: max == min, or at most one of them.
    pub(crate) fn is_uniform(&self) -> bool {
        self.count < 2 || self.min >= self.max
    }

    /// Standard deviation; exactly 0 if the values do not differ, NaN with fewer than `ddof + 1` of them.
    pub(crate) fn deviation(&self, ddof: u8) -> f64 {
        let freedom = self.count as f64 - f64::from(ddof);
        if freedom <= 0.0 {
            f64::NAN
        } else if self.min >= self.max {
            0.0
        } else {
            (self.squares / freedom).sqrt()
        }
    }
}

/// Number of lanes that are summed in parallel, in the same order whatever the processor's vectors.
const LANES: usize = 4;
