//! `filter`: the sieve of groups.

use crate::define::{choice, section};

choice! {
    /// How a group is judged.
    pub enum FilterKind {
        /// Dropped where the metric is the same for all members (largest minus smallest at most `tolerance`): DAPO's dynamic
        /// sampling.
        Variance = "variance",
        /// Kept where the group's mean of the metric lies between `low` and `high`: EasyR1's and OpenRLHF's online filtering.
        MeanRange = "mean_range",
    }
}

choice! {
    /// What happens to a group of one trajectory.
    pub enum Singleton {
        /// Kept, as verl does.
        Keep = "keep",
        /// Dropped.
        Drop = "drop",
    }
}

choice! {
    /// Whether a mean equal to `low` or `high` counts as inside.
    pub enum Bounds {
        /// It does not: `low < mean < high`.
        Open = "open",
        /// It does: `low <= mean <= high`.
        Closed = "closed",
    }
}

section! {
    /// The sieve of groups. Null: every group is trained on.
    pub struct FilterConfig {
        /// How a group is judged.
        kind: FilterKind = "variance", Any, Fixed;
        /// The number per trajectory that is looked at: the name of a reward, `acc`, `score`, `seq_reward` (sum before KL),
        /// `seq_final_reward` (after KL), `token_level_rewards`, `length`, `entropy`. Null: the raw outcome (`acc`, else `score`).
        metric: Option<String> = "null", NotEmpty, Fixed;
        /// Largest spread that still counts as uniform (kind `variance`).
        tolerance: f64 = "0.0", NonNegative, Fixed;
        /// What happens to a group of one trajectory (kind `variance`).
        singleton: Singleton = "keep", Any, Fixed;
        /// Lower bound of the mean (kind `mean_range`).
        low: f64 = "0.0", Any, Fixed;
        /// Upper bound of the mean (kind `mean_range`).
        high: f64 = "1.0", Any, Fixed;
        /// Whether the bounds themselves are inside (kind `mean_range`).
        bounds: Bounds = "open", Any, Fixed;
    }
}
