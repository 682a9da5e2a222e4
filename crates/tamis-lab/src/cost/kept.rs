//! How often a filter keeps a group, given the probability that a member is correct.

use tamis_core::filter::{GroupFilter, GroupStatistics, Metric, Verdict};

/// For each number c of correct members, whether the filter keeps the group.
pub(crate) struct KeptGroups {
    n: usize,
    /// ln of the binomial coefficient (n, c).
    choose: Vec<f64>,
    /// Numbers c to sum over: the kept ones, or the dropped ones if these are fewer.
    summed: Vec<usize>,
    sums_kept: bool,
}

impl KeptGroups {
    pub(crate) fn new(filter: GroupFilter, n: usize) -> Self {
        let scale = Metric::from("acc").outcome_scale();
        let groups: Vec<GroupStatistics> = (0..=n).map(|c| statistics(c, n)).collect();
        let is_kept: Vec<bool> = filter.judge(&groups, scale).into_iter().map(Verdict::is_kept).collect();
        let num_kept = is_kept.iter().filter(|kept| **kept).count();
        let sums_kept = 2 * num_kept <= n + 1;
        let summed = (0..=n).filter(|c| is_kept[*c] == sums_kept).collect();
        let mut choose = vec![0.0; n + 1];
        for c in 1..=n {
            choose[c] = choose[c - 1] + ((n - c + 1) as f64 / c as f64).ln();
        }
        Self { n, choose, summed, sums_kept }
    }

    pub(crate) fn group_size(&self) -> usize {
        self.n
    }

    /// Distance from the mean beyond which terms are below rounding.
    fn reach(&self, rate: f64) -> f64 {
        30.0 + 9.0 * (self.n as f64 * rate * (1.0 - rate)).sqrt()
    }

    /// Upper limit on the terms of a sum.
    pub(crate) fn num_terms(&self) -> usize {
        self.summed.len().min(2 * self.reach(0.5) as usize)
    }

    /// P(kept), and E\[c; kept\], at a pass rate.
    pub(crate) fn at(&self, rate: f64) -> (f64, f64) {
        let (right, wrong) = (rate.ln(), (1.0 - rate).ln());
        // 0 for a count of 0, even if the logarithm is infinite.
        let times = |count: usize, log: f64| if count == 0 { 0.0 } else { count as f64 * log };
        let (mean, reach) = (self.n as f64 * rate, self.reach(rate));
        let first = self.summed.partition_point(|c| (*c as f64) < mean - reach);
        let (mut all, mut of_right) = (0.0, 0.0);
        for &c in self.summed[first..].iter().take_while(|c| **c as f64 <= mean + reach) {
            let probability = (self.choose[c] + times(c, right) + times(self.n - c, wrong)).exp();
            all += probability;
            of_right += c as f64 * probability;
        }
        if self.sums_kept {
            (all, of_right)
        } else {
            ((1.0 - all).max(0.0), (self.n as f64 * rate - of_right).max(0.0))
        }
    }
}

/// Statistics of a group of n members with c correct ones.
fn statistics(c: usize, n: usize) -> GroupStatistics {
    let mean = c as f64 / n as f64;
    GroupStatistics {
        size: n,
        num_scored: n,
        num_correct: Some(c),
        mean,
        std: (mean * (1.0 - mean)).sqrt(),
        min: if c == n { 1.0 } else { 0.0 },
        max: if c == 0 { 0.0 } else { 1.0 },
    }
}
