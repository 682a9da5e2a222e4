//! The filters by name, as configured.

use super::{Filter, GroupStatistics, MeanRange, MinP, Percentile, Scope, TopK, TopP, Variance, WithinGroup};
use crate::tagged;

tagged! {
    /// The rule that keeps or drops a group.
    #[derive(Copy)]
    pub enum GroupFilter: Filter, default Variance {
        /// Keeps a group whose members differ in the metric (largest minus smallest above `tolerance`):
        /// DAPO's dynamic sampling.
        Variance(Variance) = "variance",
        /// Keeps a group whose mean of the metric lies between `low` and `high`: EasyR1's and OpenRLHF's
        /// online filtering.
        MeanRange(MeanRange) = "mean_range",
        /// Keeps the best groups of a generation round that together have the share `p` of the mass (RAGEN).
        TopP(TopP) = "top_p",
        /// Keeps the `k` best groups of a generation round, or a `fraction` of all.
        TopK(TopK) = "top_k",
        /// Keeps the groups of a generation round whose score is at least `p` times the best.
        MinP(MinP) = "min_p",
        /// Keeps the groups of a generation round whose rank is between the shares `low` and `high`, best
        /// first.
        Percentile(Percentile) = "percentile",
        /// Keeps every group, and trains on the `k` of its members (or a `fraction`) whose metric varies
        /// most.
        WithinGroup(WithinGroup) = "within_group",
    }
}

impl GroupFilter {
    /// The largest group that [`may_keep_binary`](Self::may_keep_binary) tries.
    pub const LARGEST_TRIED: usize = 64;

    /// Whether some group of `size` members is kept if the metric of each is 0, 1 or unscored. The means of
    /// such a group are k/m for 0 <= k <= m <= `size`. Also true of filters that rank a round or choose
    /// members, and of groups above [`LARGEST_TRIED`](Self::LARGEST_TRIED).
    ///
    /// ```
    /// use tamis_core::filter::{GroupFilter, MeanRange};
    /// let range = GroupFilter::MeanRange(MeanRange { low: 0.8, high: 0.9, ..MeanRange::default() });
    /// assert!(!range.may_keep_binary(5) && range.may_keep_binary(6)); // 5/6 = 0.83
    /// ```
    pub fn may_keep_binary(&self, size: usize) -> bool {
        let is_tried = self.scope() == Scope::Point && !self.chooses_members() && size <= Self::LARGEST_TRIED;
        let is_kept = |num_scored: usize, num_right: usize| {
            let value = |member: usize| match member {
                member if member < num_right => 1.0,
                member if member < num_scored => 0.0,
                _ => f64::NAN,
            };
            let values: Vec<f64> = (0..size).map(value).collect();
            self.judge(&[GroupStatistics::of(&values, None)], None).iter().any(|verdict| verdict.is_kept())
        };
        let mut sizes = (0..=size).flat_map(|scored| (0..=scored).map(move |right| (scored, right)));
        !is_tried || sizes.any(|(scored, right)| is_kept(scored, right))
    }
}
