//! The common part of pool filters: the score by which the groups of a round are ranked, and the groups that
//! may compete.

use super::{DropReason, GroupStatistics, OutcomeScale, Verdict};
use crate::{choice, settings};

choice! {
    /// Statistic by which a pool filter ranks groups, over the scored members of a group.
    ///
    /// Together with the metric this covers RAGEN's rankings: its `reward_variance` is the deviation of the
    /// reward, `reward` its mean, `reward_sum` its sum, `length` and `entropy` the mean of those metrics,
    /// `entropy_variance` the deviation of the entropy.
    pub enum PoolScore {
        /// Standard deviation of the metric; 0 for a group of one.
        Deviation = "deviation",
        /// Variance of the metric.
        Variance = "variance",
        /// Mean of the metric.
        Mean = "mean",
        /// Sum of the metric.
        Sum = "sum",
    }
}

choice! {
    /// Which groups are the best for a pool filter.
    pub enum Prefer {
        /// The groups of the largest score.
        Largest = "largest",
        /// The groups of the smallest score.
        Smallest = "smallest",
    }
}

settings! {
    /// How the groups of a round compete: the part that all pool filters share.
    ///
    /// Groups are ranked by score, best first; groups of equal score in dispatch order. Scores that agree to
    /// twelve digits are equal: the rank of a deviation must not depend on the order in which members were
    /// added.
    ///
    /// Groups without enough scored members are dropped as `unscored` and never compete. Without
    /// `include_zero`, groups whose score is 0 (at most 1e-10 in size) do not compete either.
    ///
    /// A dropped group gets the most specific name. If groups are ranked by spread, one with equal members is
    /// all correct, all wrong or uniform (`singleton` if it has one member), whether it competed or not. The
    /// same holds for a group of score 0 that did not compete; if its members differ (a mean of 0), it is
    /// `zero_score`. Every other group competed, and its rank kept it out: `outside_pool`.
    #[derive(Copy)]
    pub struct Pool {
        /// Number by which the groups of a round are ranked.
        score: PoolScore = PoolScore::Deviation;
        /// Delta degrees of freedom of deviation and variance: 0 for a population, 1 for a sample, as in
        /// RAGEN.
        ddof: u8 = 0, Between(0.0, 1.0);
        /// End of the ranking that counts as best.
        prefer: Prefer = Prefer::Largest;
        /// Let groups whose score is 0 compete. If false, they are dropped first.
        include_zero: bool = true;
    }
}

/// A score at most this far from 0 counts as 0 (RAGEN's number).
const ZERO: f64 = 1e-10;

/// Tolerance in comparisons of shares of a sum and of counts of groups, so that nine of ten equal groups are
/// 0.9 of them.
pub(super) const SLACK: f64 = 1e-9;

/// A number to 40 bits of its mantissa, within the finite ones: equal groups have the same, whatever the
/// order of their sums.
fn to_twelve_digits(score: f64) -> f64 {
    let rounded = f64::from_bits((score.to_bits() + (1 << 11)) & !((1 << 12) - 1));
    // Rounding must not leave the finite numbers, and there is only one zero.
    rounded.clamp(f64::MIN, f64::MAX) + 0.0
}

impl Pool {
    /// Whether groups are ranked by how much their members differ.
    pub fn is_by_spread(self) -> bool {
        matches!(self.score, PoolScore::Deviation | PoolScore::Variance)
    }

    /// Whether a group of equal members may be kept. Ranked by spread, it may only if its score of 0
    /// competes; otherwise it is treated like any other.
    pub(super) fn admits_uniform(self) -> bool {
        self.include_zero || !self.is_by_spread()
    }

    /// The ranking in words: `largest deviation, but not 0,`.
    pub(super) fn describe_ranking(self) -> String {
        let zero = if self.include_zero { "" } else { ", but not 0," };
        format!("{} {}{zero}", self.prefer, self.score)
    }

    /// The score of a group; `None` if too few of its members have a metric.
    ///
    /// ```
    /// use tamis_core::filter::{GroupStatistics, Pool, PoolScore};
    /// let group = GroupStatistics::of(&[3.0, 5.0, f64::NAN], None);
    /// let score = |score, ddof| Pool { score, ddof, ..Pool::default() }.score_of(&group);
    /// assert_eq!(score(PoolScore::Deviation, 0), Some(1.0));
    /// assert_eq!(score(PoolScore::Variance, 1), Some(2.0));
    /// assert_eq!(score(PoolScore::Sum, 0), Some(8.0));
    /// ```
    pub fn score_of(self, group: &GroupStatistics) -> Option<f64> {
        if group.is_unscored() {
            return None;
        }
        let count = group.num_scored as f64;
        // A single member has no spread, and no degree of freedom to divide by.
        let freedom = (count - f64::from(self.ddof)).max(1.0);
        let score = match self.score {
            PoolScore::Deviation if self.ddof == 0 => group.std,
            PoolScore::Deviation => group.std * (count / freedom).sqrt(),
            PoolScore::Variance => group.std * group.std * (count / freedom),
            PoolScore::Mean => group.mean,
            PoolScore::Sum => group.mean * count,
        };
        Some(to_twelve_digits(score))
    }

    pub(super) fn rank(self, groups: &[GroupStatistics], scale: Option<OutcomeScale>) -> Ranking {
        let mut verdicts = Vec::with_capacity(groups.len());
        let mut places = Vec::with_capacity(groups.len());
        for (i, group) in groups.iter().enumerate() {
            let reason = match self.score_of(group) {
                None => DropReason::Unscored,
                Some(score) if !self.include_zero && score.abs() <= ZERO => self.name_zero(group, scale),
                Some(score) => {
                    places.push((score, i));
                    // The reason if it is not chosen: a group without spread lacks signal, whatever the
                    // others of its round are like.
                    if self.is_by_spread() && group.min >= group.max {
                        self.name_zero(group, scale)
                    } else {
                        DropReason::OutsidePool
                    }
                }
            };
            verdicts.push(Verdict::Dropped(reason));
        }
        // The index decides ties, so an unstable sort gives a unique order.
        match self.prefer {
            Prefer::Largest => {
                places.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            }
            Prefer::Smallest => places.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))),
        }
        Ranking { verdicts, places }
    }

    fn name_zero(self, group: &GroupStatistics, scale: Option<OutcomeScale>) -> DropReason {
        if group.size == 1 && self.is_by_spread() {
            DropReason::Singleton
        } else if group.min < group.max {
            DropReason::ZeroScore
        } else {
            OutcomeScale::name_of(scale, group, DropReason::Uniform)
        }
    }
}

/// The competing groups of a round, best first, and the present verdict on every group.
pub(super) struct Ranking {
    verdicts: Vec<Verdict>,
    /// Score, and index in the round.
    places: Vec<(f64, usize)>,
}

impl Ranking {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Their scores, best first.
    pub(super) fn scores(&self) -> impl DoubleEndedIterator<Item = f64> {
        self.places.iter().map(|(score, _)| *score)
    }

    /// Keeps those whose rank, from 0, is in the range.
    pub(super) fn keep(mut self, ranks: std::ops::Range<usize>) -> Vec<Verdict> {
        for (_, i) in self.places.get(ranks).unwrap_or_default() {
            if let Some(verdict) = self.verdicts.get_mut(*i) {
                *verdict = Verdict::Kept;
            }
        }
        self.verdicts
    }

    pub(super) fn keep_where(mut self, condition: impl Fn(f64) -> bool) -> Vec<Verdict> {
        for (_, i) in self.places.iter().filter(|(score, _)| condition(*score)) {
            if let Some(verdict) = self.verdicts.get_mut(*i) {
                *verdict = Verdict::Kept;
            }
        }
        self.verdicts
    }
}
