//! Sums from which mean, deviation and extremes follow.

/// Sums of a number around a shift, so that values close to the shift do not cancel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    shift: f64,
    count: f64,
    first: f64,
    second: f64,
    /// Sums of the values and of their squares, unshifted: for weights far from the shift, moments around it
    /// would leave only rounding.
    total: f64,
    squares: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// No values yet; `shift` is near the expected values.
    pub(crate) fn around(shift: f64) -> Self {
        Self {
            shift,
            count: 0.0,
            first: 0.0,
            second: 0.0,
            total: 0.0,
            squares: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
        }
    }

    pub(crate) fn add(&mut self, value: f64) {
        self.add_times(value, 1.0);
    }

    /// Adds a value that `times` tokens have.
    pub(crate) fn add_times(&mut self, value: f64, times: f64) {
        let offset = value - self.shift;
        self.count += times;
        self.first += times * offset;
        self.second += times * (offset * offset);
        self.total += times * value;
        self.squares += times * (value * value);
        self.min = if value < self.min || value.is_nan() { value } else { self.min };
        self.max = if value > self.max || value.is_nan() { value } else { self.max };
    }

    pub(crate) fn count(&self) -> f64 {
        self.count
    }

    /// Mean; NaN without values.
    pub(crate) fn mean(&self) -> f64 {
        self.shift + self.first / self.count
    }

    /// Standard deviation; NaN with fewer than `ddof + 1` values.
    pub(crate) fn deviation(&self, ddof: f64) -> f64 {
        let freedom = self.count - ddof;
        if freedom <= 0.0 {
            return f64::NAN;
        }
        let squares = self.second - self.first * (self.first / self.count);
        // Equal values have none; rounding may make others slightly negative. NaN stays.
        if self.min >= self.max || squares < 0.0 { 0.0 } else { (squares / freedom).sqrt() }
    }

    /// Kish's effective sample size as a share of the sample, `(Σw)² / (n·Σw²)`; NaN without values or if
    /// every weight is 0.
    pub(crate) fn effective_share(&self) -> f64 {
        self.total * self.total / (self.count * self.squares)
    }

    /// Smallest and largest; NaN without values.
    pub(crate) fn extremes(&self) -> (f64, f64) {
        if self.count > 0.0 { (self.min, self.max) } else { (f64::NAN, f64::NAN) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_by_hand() {
        // The sums may be taken around any number.
        for around in [1.0, 2.0] {
            let mut spread = Spread::around(around);
            spread.add(1.0);
            spread.add_times(3.0, 2.0);
            assert!((spread.mean() - 7.0 / 3.0).abs() < 1e-15);
            // Deviations -4/3, 2/3, 2/3: squares 16/9 + 4/9 + 4/9 = 8/3.
            assert!((spread.deviation(1.0) - (4.0_f64 / 3.0).sqrt()).abs() < 1e-15);
            assert!((spread.effective_share() - 49.0 / (3.0 * 19.0)).abs() < 1e-15);
            assert_eq!(spread.extremes(), (1.0, 3.0));
        }
    }

    /// Weights near 0 have a share too; around 1 their squares are lost.
    #[test]
    fn the_share_of_tiny_weights() {
        let mut spread = Spread::around(1.0);
        for weight in [1e-12, 3e-12] {
            spread.add(weight);
        }
        assert!((spread.effective_share() - 0.8).abs() < 1e-12, "{}", spread.effective_share());
    }

    #[test]
    fn rounding_makes_no_deviation() {
        for value in [0.1_f64, 0.3, 0.7, 1.0 / 3.0, 2.7, 1e8 / 3.0] {
            let (mut equal, mut close) = (Spread::around(0.0), Spread::around(0.0));
            let next = f64::from_bits(value.to_bits() + 1);
            for i in 1..100 {
                equal.add(value);
                close.add(if i % 2 == 0 { value } else { next });
                if i > 1 {
                    assert_eq!(equal.deviation(1.0).to_bits(), 0, "{value} {i}");
                    // Squares may come out slightly negative.
                    assert!((0.0..1e-6 * value).contains(&close.deviation(1.0)), "{value} {i}");
                }
            }
        }
    }

    #[test]
    fn nothing_has_no_mean_one_value_has_extremes_and_two_a_deviation() {
        let mut spread = Spread::around(0.0);
        assert!(spread.mean().is_nan() && spread.deviation(0.0).is_nan() && spread.extremes().0.is_nan());
        spread.add(3.0);
        assert!(spread.deviation(1.0).is_nan());
        assert_eq!(spread.extremes(), (3.0, 3.0));
        spread.add(1.0);
        assert!((spread.deviation(1.0) - 2_f64.sqrt()).abs() < 1e-15);
    }
}
