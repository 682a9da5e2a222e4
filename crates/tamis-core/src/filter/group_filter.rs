//! The filters by name, as configured.

use super::{Filter, MeanRange, MinP, Percentile, TopK, TopP, Variance, WithinGroup};
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
