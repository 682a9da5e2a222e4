//! The filters by name, as configured.

use super::{Filter, MeanRange, MinP, Percentile, TopK, TopP, Variance, WithinGroup};
use crate::tagged;

tagged! {
    /// The rule by which a group is kept or dropped.
    #[derive(Copy)]
    pub enum GroupFilter: Filter, default Variance {
        /// Dropped where the metric is the same for all members (largest minus smallest at most `tolerance`):
        /// DAPO's dynamic sampling.
        Variance(Variance) = "variance",
        /// Kept where the group's mean of the metric lies between `low` and `high`: EasyR1's and OpenRLHF's
        /// online filtering.
        MeanRange(MeanRange) = "mean_range",
        /// Of each generation round, the best groups that together hold the share `p` of the mass (RAGEN).
        TopP(TopP) = "top_p",
        /// Of each generation round, the `k` best groups, or a `fraction` of all.
        TopK(TopK) = "top_k",
        /// Of each generation round, the groups whose score is at least `p` times the best.
        MinP(MinP) = "min_p",
        /// Of each generation round, the groups ranked from the share `low` to the share `high`, best first.
        Percentile(Percentile) = "percentile",
        /// Every group, of which only the `k` members (or a `fraction`) train whose metric varies most.
        WithinGroup(WithinGroup) = "within_group",
    }
}
