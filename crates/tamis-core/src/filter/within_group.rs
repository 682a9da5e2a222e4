//! `within_group`: the k members of each group with the largest variance.

use super::{Filter, FilterError, GroupStatistics, OutcomeScale, Pool, Quota, Verdict};
use crate::entry::{Entry, Family};
use crate::setting::Ranged as _;
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "within_group",
    family: Family::Filter,
    formula: "argmax over j of Var(j smallest, k - j largest), j = 0..k",
    source: "RAGEN, rollout_filter_strategy within_group (branch more-experiments); Xu et al., PODS, arXiv \
        2504.13818, max-variance down-sampling",
    degenerate: &[
        "scale: neither scale nor shift of the metric matters",
        "a group is kept or dropped whole: members that are not chosen are generated, scored and reported, \
            and are left out of the group's advantage statistics and the loss; they count as left out \
            (`unchosen`), not as trained",
        "with k members scored or fewer, all scored members are chosen; a uniform group keeps its first k, \
            or is dropped with `include_zero: false`",
        "members of equal metric are chosen by their place in the group; a fraction is rounded to whole members, at least two",
    ],
    known_as: &[("RAGEN", "actor_rollout_ref.rollout.rollout_filter_strategy=within_group")],
    differences: &[
        "RAGEN removes the other trajectories from the batch; here the loss's denominators leave them out, which has the same effect",
        "RAGEN may choose a single member, which has nothing to compare with; here it is at least two",
    ],
    ..Entry::REGISTERED
};
settings! {
    /// Keeps every group with enough scored members, and chooses the k of its members whose metric has the
    /// largest variance.
    ///
    /// The optimum is the j smallest and the k − j largest for some j, so k + 1 candidates suffice: O(G log
    /// G) a group. [`Filter::members`] returns the chosen members. The verdict is on the group, which is
    /// never split: members that are not chosen count as generated and as left out, and the learner skips
    /// them like unscored ones.
    ///
    /// # Scale
    /// Multiplying the metric by a positive factor or shifting it does not change the choice.
    ///
    /// # Source
    /// RAGEN, branch `more-experiments`, strategy `within_group`; max-variance down-sampling of Xu et al.
    /// 2025 (PODS), arXiv 2504.13818.
    ///
    /// ```
    /// use tamis_core::filter::{Filter, WithinGroup};
    /// let filter = WithinGroup { k: Some(3), ..WithinGroup::default() };
    /// // 0, 0.1 and 1 have variance 0.202; 0, 0.6 and 1 have 0.169.
    /// assert_eq!(filter.members(&[0.1, 1.0, 0.0, 0.6]), Some(vec![true, true, true, false]));
    /// ```
    #[derive(Copy)]
    pub struct WithinGroup {
        /// Number of members of each group that train, at least 2. Null: `fraction` decides.
        k: Option<usize> = None, AtLeast(2.0);
        /// Share of each group's members that trains, in place of `k`.
        fraction: Option<f64> = None, Probability;
        /// Keep groups in which all members have the same metric.
        include_zero: bool = true;
    }
}

impl WithinGroup {
    /// Number of members of a group that train.
    pub fn quota(&self) -> Quota {
        Quota::of(self.k, self.fraction)
    }

    /// Number of members chosen from a group of `size`.
    pub fn num_chosen(&self, size: usize) -> usize {
        match self.quota() {
            Quota::Count(count) => count,
            Quota::Fraction(fraction) => ((fraction * size as f64).round_ties_even() as usize).max(2),
        }
    }
}

/// From ascending values: how many of the smallest are among the k of largest variance.
fn num_smallest(ascending: &[f64], k: usize) -> usize {
    let n = ascending.len();
    // Relative to the middle of the range and in units of it: no cancellation, no overflow.
    let (Some(low), Some(high)) = (ascending.first(), ascending.last()) else { return 0 };
    let (middle, half) = (low / 2.0 + high / 2.0, high / 2.0 - low / 2.0);
    let relative = |i: usize| ascending.get(i).map_or(0.0, |value| (value - middle) / half);
    let (mut sum, mut squares) = (0.0, 0.0);
    for i in n - k..n {
        sum += relative(i);
        squares += relative(i) * relative(i);
    }
    let spread = |sum: f64, squares: f64| squares * k as f64 - sum * sum;
    let (mut best, mut most) = (0, spread(sum, squares));
    for j in 1..=k {
        let (added, removed) = (relative(j - 1), relative(n - k + j - 1));
        sum += added - removed;
        squares += added * added - removed * removed;
        let this = spread(sum, squares);
        // By more than rounding: of equally good choices the one with more of the largest values.
        if this > most + 1e-12 * (k * k) as f64 {
            (best, most) = (j, this);
        }
    }
    best
}

impl Filter for WithinGroup {
    fn chooses_members(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), FilterError> {
        self.check_ranges()?;
        Quota::check("within_group", self.k, self.fraction)
    }

    fn rule(&self) -> String {
        format!("{} of the members of each group, those of the largest variance", self.quota())
    }

    fn admits_uniform(&self) -> bool {
        self.include_zero
    }

    fn judge(&self, groups: &[GroupStatistics], scale: Option<OutcomeScale>) -> Vec<Verdict> {
        // The whole ranking of a pool by deviation: unscored groups are left out, and so are uniform ones if
        // requested.
        let ranking = Pool { include_zero: self.include_zero, ..Pool::default() }.rank(groups, scale);
        let num = ranking.len();
        ranking.keep(0..num)
    }

    fn members(&self, values: &[f64]) -> Option<Vec<bool>> {
        let mut order: Vec<usize> = (0..values.len()).filter(|i| values[*i].is_finite()).collect();
        let k = self.num_chosen(values.len()).min(order.len());
        // Adding 0 turns -0 into 0, so that the index in the group decides between them.
        order.sort_by(|a, b| (values[*a] + 0.0).total_cmp(&(values[*b] + 0.0)));
        let ascending: Vec<f64> = order.iter().map(|i| values[*i]).collect();
        let uniform = ascending.first() >= ascending.last();
        let smallest = if uniform { k } else { num_smallest(&ascending, k) };
        let mut chosen = vec![false; values.len()];
        for i in order.iter().take(smallest).chain(order.iter().rev().take(k - smallest)) {
            chosen[*i] = true;
        }
        Some(chosen)
    }
}
