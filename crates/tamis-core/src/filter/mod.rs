//! Filters decide which groups have a signal.
//!
//! Data flows one way: a [`Metric`] reads one number per trajectory from the groups, flat with offsets; a
//! [`Filter`] turns the groups' numbers into one [`Verdict`] each; [`crate::schedule`] decides what that
//! means for the batch. A verdict is a value, never an error, and a filter uses only the metric.
//!
//! | filter | keeps a group when |
//! |---|---|
//! | [`Variance`] | its scored members differ: `max − min > tolerance` |
//! | [`MeanRange`] | the mean of its scored members lies between two bounds |
//! | [`TopP`] | it is among the best of its round that hold a share of the mass |
//! | [`TopK`] | it is among the k best of its round |
//! | [`MinP`] | its score is at least a share of the best of its round |
//! | [`Percentile`] | its rank in the round lies in a band |
//! | [`WithinGroup`] | always; chooses which members train |
//!
//! The first two judge each group by itself. The next four compare the groups of a whole generation round
//! ([`Pool`] defines the score and the groups that compete). Judging the kept groups again keeps them all
//! with the filters that judge each group by itself, with [`MinP`], and with [`TopK`] with a count; shares of
//! a round are shares of whatever is in it.
//!
//! Two rules hold for every filter. A member without a finite metric (no answer, NaN) is *unscored*: it is
//! left out of the group's statistics and never counts as zero. A group with no scored member, or with fewer
//! than two of n > 1, is dropped as `unscored`.
//!
//! # All correct, all wrong
//! A group dropped for lack of contrast is `all_wrong` if every scored member is at or below the metric's
//! [`OutcomeScale::wrong`] (0), `all_correct` if every one is at or above [`OutcomeScale::correct`] (1), and
//! otherwise `uniform`. This suits a score in {0, 1}, one in {−1, +1} and a fraction in \[0, 1\]; a uniform
//! group of partial credit is `uniform`. Length and entropy have no outcome scale: their uniform groups are
//! `uniform`.

mod group_filter;
mod keeping;
mod mean_range;
mod metric;
mod min_p;
mod percentile;
mod pool;
mod statistics;
mod top_k;
mod top_p;
mod variance;
mod verdict;
mod within_group;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use group_filter::GroupFilter;
pub use keeping::Keeping;
pub use mean_range::{Bounds, MeanRange};
pub use metric::{AvailableMetrics, ExtraColumns, FinalReward, Metric, MetricError};
pub use min_p::MinP;
pub use percentile::Percentile;
pub use pool::{Pool, PoolScore, Prefer};
pub use statistics::GroupStatistics;
pub use top_k::{Quota, TopK};
pub use top_p::{Mass, TopP};
pub use variance::{Singleton, Variance};
pub use verdict::{DropReason, OutcomeScale, Verdict};
pub use within_group::WithinGroup;

use crate::entry::Entry;
use crate::fault::Fault;
use crate::setting::{Named, OutOfRange, Ranged};

/// The catalogue's entries of this module.
pub const ENTRIES: &[Entry] = &[
    variance::ENTRY,
    mean_range::ENTRY,
    top_p::ENTRY,
    top_k::ENTRY,
    min_p::ENTRY,
    percentile::ENTRY,
    within_group::ENTRY,
];

/// Number of groups that a filter must see before it can judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Each group by itself: the verdict does not depend on the other groups in the slice.
    Point,
    /// All groups of a round together.
    Pool,
}

/// Turns the statistics of scored groups into verdicts.
///
/// Implementations are pure: equal statistics give equal verdicts.
pub trait Filter: Named + Ranged {
    /// Whether groups are judged one by one or, in a [`Self::pool`], a round at a time.
    fn scope(&self) -> Scope {
        if self.pool().is_some() { Scope::Pool } else { Scope::Point }
    }

    /// Whether every setting is in range and they fit together.
    fn check(&self) -> Result<(), FilterError> {
        Ok(self.check_ranges()?)
    }

    /// The filter's rule in words: `groups with max > min`.
    fn rule(&self) -> String;

    /// The pool in which it compares the groups of a round, if it does.
    fn pool(&self) -> Option<Pool> {
        None
    }

    /// Whether its settings allow it to keep a group whose members all have the same metric: it is a
    /// selection among the groups of a round, and such groups compete. A group-relative advantage learns
    /// nothing from them.
    ///
    /// ```
    /// use tamis_core::filter::{Filter, Mass, Pool, TopP, Variance};
    /// let softmax = TopP::of(0.9);
    /// assert!(softmax.admits_uniform());
    /// // Without mass such a group is never kept, and without `include_zero` it does not compete.
    /// assert!(!TopP { mass: Mass::Linear, ..softmax }.admits_uniform());
    /// let pool = Pool { include_zero: false, ..Pool::default() };
    /// assert!(!TopP { pool, ..softmax }.admits_uniform());
    /// assert!(!Variance::default().admits_uniform());
    /// ```
    fn admits_uniform(&self) -> bool {
        self.pool().is_some_and(Pool::admits_uniform)
    }

    /// Whether a group with this smallest and largest metric among some members is kept whatever the others
    /// score. Only the variance filter can know that before the group is complete.
    fn is_certain(&self, min: f64, max: f64) -> bool {
        let _ = (min, max);
        false
    }

    /// What happens to a group of one, if a key decides it.
    fn singleton(&self) -> Option<Singleton> {
        None
    }

    /// Whether it chooses among the members of the groups that it keeps ([`Self::members`]).
    fn chooses_members(&self) -> bool {
        false
    }

    /// Keys of the filter that another of its keys disables, and the reason.
    fn idle_keys(&self) -> (&'static [&'static str], &'static str) {
        (&[], "")
    }

    /// One verdict per group, in order. `groups` is any slice of groups for [`Scope::Point`], a whole round
    /// for [`Scope::Pool`].
    fn judge(&self, groups: &[GroupStatistics], scale: Option<OutcomeScale>) -> Vec<Verdict>;

    /// Members of a kept group that train, by its metric \[G\]; `None`: all of them. The group stays whole in
    /// every count: a member that is not chosen is left out of advantage and loss like an unscored one.
    fn members(&self, values: &[f64]) -> Option<Vec<bool>> {
        let _ = values;
        None
    }
}

/// A filter's settings are not valid, or its groups cannot be judged.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{fault}")]
pub struct FilterError {
    fault: Fault,
    keys: Vec<&'static str>,
}

impl FilterError {
    /// Keys of a filter that do not go together, and the fix.
    fn of_keys(keys: &[&'static str], message: impl Into<String>, hint: &str) -> Self {
        Self { fault: Fault::new(message).with_hint(hint), keys: keys.to_vec() }
    }

    /// The keys of the filter to which it applies; empty if it is about the groups.
    pub fn keys(&self) -> &[&'static str] {
        &self.keys
    }

    /// The fix, if the message does not contain it.
    pub fn hint(&self) -> Option<&str> {
        self.fault.hint()
    }
}

impl From<Fault> for FilterError {
    fn from(fault: Fault) -> Self {
        Self { fault, keys: Vec::new() }
    }
}

impl From<OutOfRange> for FilterError {
    fn from(range: OutOfRange) -> Self {
        Self { keys: vec![range.key], fault: range.into() }
    }
}

/// Judges P groups whose metric is flat: group i is `metric[offsets[i]..offsets[i + 1]]` (\[B\] and \[P +
/// 1\]).
///
/// Every judgement takes this path, in a run and offline. Linear in B; it allocates only the two results
/// \[P\]. [`Keeping`] serves callers that need only the flags.
///
/// ```
/// use tamis_core::filter::{judge_columns, DropReason, OutcomeScale, Variance, Verdict};
/// let acc = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0];
/// let (verdicts, statistics) =
///     judge_columns(&Variance::default(), Some(OutcomeScale::default()), &acc, &[0, 2, 4, 6])?;
/// assert_eq!(verdicts, [
///     Verdict::Kept,
///     Verdict::Dropped(DropReason::AllWrong),
///     Verdict::Dropped(DropReason::AllCorrect),
/// ]);
/// assert_eq!((statistics[0].mean, statistics[0].std), (0.5, 0.5));
/// # Ok::<(), tamis_core::filter::FilterError>(())
/// ```
///
/// # Errors
/// A [`Fault`] if the offsets do not cut the values into groups.
pub fn judge_columns(
    filter: &dyn Filter,
    scale: Option<OutcomeScale>,
    metric: &[f64],
    offsets: &[usize],
) -> Result<(Vec<Verdict>, Vec<GroupStatistics>), FilterError> {
    let statistics = GroupStatistics::of_columns(metric, offsets, scale)?;
    Ok((filter.judge(&statistics, scale), statistics))
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod pool_tests;
#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod tests;
