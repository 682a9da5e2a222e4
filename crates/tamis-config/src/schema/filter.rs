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
        /// Of each generation round, the best groups that together hold the share `p` of the mass (RAGEN).
        TopP = "top_p",
        /// Of each generation round, the `k` best groups, or a `fraction` of all.
        TopK = "top_k",
        /// Of each generation round, the groups whose score is at least the share `p` of the best.
        MinP = "min_p",
        /// Of each generation round, the groups ranked from the share `low` to the share `high`, best first.
        Percentile = "percentile",
        /// Every group, of which only the `k` members (or a `fraction`) train whose metric varies most.
        WithinGroup = "within_group",
    }
}

choice! {
    /// What a pool filter ranks groups by, over the scored members of a group.
    pub enum PoolScore {
        /// Standard deviation of the metric.
        Deviation = "deviation",
        /// Its variance.
        Variance = "variance",
        /// Its mean.
        Mean = "mean",
        /// Its sum.
        Sum = "sum",
    }
}

impl FilterKind {
    /// Whether it compares the groups of a round, rather than judge each alone.
    pub fn compares_groups(self) -> bool {
        match self {
            Self::TopP | Self::TopK | Self::MinP | Self::Percentile => true,
            Self::Variance | Self::MeanRange | Self::WithinGroup => false,
        }
    }
}

choice! {
    /// Which scores a pool filter prefers.
    pub enum Prefer {
        /// The largest.
        Largest = "largest",
        /// The smallest.
        Smallest = "smallest",
    }
}

choice! {
    /// What a group weighs for `top_p`.
    pub enum Mass {
        /// `exp(score / temperature)`: keeps at least one group, and depends on the scale of the reward.
        Softmax = "softmax",
        /// The score: may keep none, and does not depend on the scale.
        Linear = "linear",
        /// The square of the deviation: may keep none, and does not depend on the scale.
        Variance = "variance",
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

impl FilterKind {
    /// Whether it compares the groups of a round with each other.
    pub fn is_pool(self) -> bool {
        matches!(self, Self::TopP | Self::TopK | Self::MinP | Self::Percentile)
    }
}

section! {
    /// The sieve of groups. Null: every group is trained on.
    pub struct FilterConfig {
        /// How a group is judged.
        kind: FilterKind = "variance", Any, Fixed;
        /// The number per trajectory that is looked at: the name of a reward, `acc`, `score`, `seq_reward` (sum before KL),
        /// `seq_final_reward` (after KL), `token_level_rewards`, `length`, `entropy` (mean over the tokens, nats). Null: the raw outcome (`acc`, else `score`).
        metric: Option<String> = "null", NotEmpty, Fixed;
        /// Largest spread that still counts as uniform (kind `variance`).
        tolerance: f64 = "0.0", NonNegative, Fixed;
        /// What happens to a group of one trajectory (kind `variance`).
        singleton: Singleton = "keep", Any, Fixed;
        /// Lower bound of the mean (kind `mean_range`); where the band begins (kind `percentile`).
        low: f64 = "0.0", Any, Fixed;
        /// Upper bound of the mean (kind `mean_range`); where the band ends (kind `percentile`).
        high: f64 = "1.0", Any, Fixed;
        /// Whether the bounds themselves are inside (kind `mean_range`).
        bounds: Bounds = "open", Any, Fixed;
        /// What groups are ranked by (the pool filters `top_p`, `top_k`, `min_p`, `percentile`).
        score: PoolScore = "deviation", Any, Fixed;
        /// 0: deviation and variance of a population; 1: those of a sample, as RAGEN has them (pool filters).
        ddof: usize = "0", Between(0.0, 1.0), Fixed;
        /// Which scores are the good ones (pool filters).
        prefer: Prefer = "largest", Any, Fixed;
        /// Whether groups whose score is 0 compete (pool filters), or uniform groups are kept (kind `within_group`).
        include_zero: bool = "true", Any, Fixed;
        /// Share of the mass that is kept (kind `top_p`); share of the best score that a group needs (kind `min_p`).
        p: Option<f64> = "null", Probability, Fixed;
        /// What a group weighs (kind `top_p`).
        mass: Mass = "softmax", Any, Fixed;
        /// Divides scores before the softmax, in units of the score (kind `top_p` with mass `softmax`).
        temperature: f64 = "1.0", Positive, Fixed;
        /// Mass that may be missing, in units of the score or its square (kind `top_p` with mass `linear` or `variance`).
        slack: f64 = "0.0", NonNegative, Fixed;
        /// Groups kept of a round (kind `top_k`); members of each group that train (kind `within_group`).
        k: Option<usize> = "null", AtLeast(1.0), Fixed;
        /// The same as a part of all, in place of `k`.
        fraction: Option<f64> = "null", Probability, Fixed;
    }
}
