//! `top_k`: the k best groups of a round.

use std::fmt;

use super::pool::SLACK;
use super::{Filter, FilterError, GroupStatistics, OutcomeScale, Pool, Verdict};
use crate::entry::{Entry, Family};
use crate::figure::exact_percent;
use crate::setting::Ranged as _;
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "top_k",
    family: Family::Filter,
    formula: "the first k of the ranking; k a count, or max(1, floor(fraction * groups of the round))",
    source: "RAGEN, rollout_filter_strategy top_k (a count; since 2026-01-25 a fraction, the count being top_k_abs)",
    degenerate: &[
        "scale: only the order of the scores counts, so neither scale nor shift of a score matters",
        "if fewer than k groups compete, all of them are kept, which may be none",
        "a fraction counts all groups of the round, whether they compete or not, and is at least one group",
        "groups of equal score are taken in dispatch order; unscored groups never compete",
    ],
    known_as: &[
        ("RAGEN", "actor_rollout_ref.rollout.rollout_filter_strategy=top_k"),
        ("RAGEN", "actor_rollout_ref.rollout.rollout_filter_strategy=top_k_abs"),
    ],
    differences: &[],
    ..Entry::REGISTERED
};

/// Number of members to keep from a set: a count, or a share of the set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quota {
    /// A count.
    Count(usize),
    /// A part of all, in (0, 1].
    Fraction(f64),
}

impl fmt::Display for Quota {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(formatter, "{count}"),
            Self::Fraction(fraction) => formatter.write_str(&exact_percent(*fraction)),
        }
    }
}

impl Quota {
    /// Combines the keys `k` and `fraction`; all members if neither is set, which [`Self::check`] refuses.
    pub(super) fn of(k: Option<usize>, fraction: Option<f64>) -> Self {
        k.map_or_else(|| Self::Fraction(fraction.unwrap_or(1.0)), Self::Count)
    }

    /// Whether one of the keys `k` and `fraction` of a filter is set.
    pub(super) fn check(
        filter: &'static str,
        k: Option<usize>,
        fraction: Option<f64>,
    ) -> Result<(), FilterError> {
        let refuse = |has, hint| {
            let message = format!("the {filter} filter needs one of `k` and `fraction`, but has {has}");
            Err(FilterError::of_keys(&["fraction", "k"], message, hint))
        };
        match (k, fraction) {
            (Some(_), Some(_)) => refuse("both", "remove `k` or `fraction`"),
            (None, None) => refuse("neither", "`fraction: 0.5` is half of them"),
            _ => Ok(()),
        }
    }
}

settings! {
    /// Keeps the k best groups of a round, or all that compete if these are fewer. See [`Pool`] for the
    /// score, ties and the groups that compete.
    ///
    /// A fraction is taken of all groups of the round, rounded down to a whole number, and at least one:
    /// `max(1, ⌊f · P⌋)`.
    ///
    /// # Scale
    /// Depends only on the order of the scores.
    ///
    /// # Source
    /// RAGEN, `rollout_filter.py`: `top_k` was a count (4 of 8 groups), and is a fraction since 2026-01-25,
    /// when the count became `top_k_abs`.
    ///
    /// ```
    /// use tamis_core::filter::{judge_columns, OutcomeScale, TopK};
    /// let acc = [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0];
    /// let filter = TopK { k: Some(1), ..TopK::default() };
    /// let scale = Some(OutcomeScale::default());
    /// let (verdicts, _) = judge_columns(&filter, scale, &acc, &[0, 2, 4, 6, 8])?;
    /// let names: Vec<_> = verdicts.iter().map(|verdict| verdict.name()).collect();
    /// // The second and the last have the same spread: the one dispatched first is taken.
    /// assert_eq!(names, ["all_correct", "kept", "all_correct", "outside_pool"]);
    /// # Ok::<(), tamis_core::filter::FilterError>(())
    /// ```
    #[derive(Copy)]
    pub struct TopK {
        /// Number of groups kept of each round. Null: `fraction` decides.
        k: Option<usize> = None, AtLeast(1.0);
        /// Share of each round's groups that is kept, in place of `k`.
        fraction: Option<f64> = None, Probability;
        ..pool: Pool;
    }
}

impl TopK {
    /// Number of groups of a round that are kept.
    pub fn quota(&self) -> Quota {
        Quota::of(self.k, self.fraction)
    }
}

impl Filter for TopK {
    fn check(&self) -> Result<(), FilterError> {
        self.check_ranges()?;
        Quota::check("top_k", self.k, self.fraction)
    }

    fn rule(&self) -> String {
        format!("{} of the groups of each round, by the {}", self.quota(), self.pool.describe_ranking())
    }

    fn pool(&self) -> Option<Pool> {
        Some(self.pool)
    }

    fn judge(&self, groups: &[GroupStatistics], scale: Option<OutcomeScale>) -> Vec<Verdict> {
        let ranking = self.pool.rank(groups, scale);
        let k = match self.quota() {
            Quota::Count(count) => count,
            Quota::Fraction(fraction) => ((fraction * groups.len() as f64 + SLACK) as usize).max(1),
        };
        let end = k.min(ranking.len());
        ranking.keep(0..end)
    }
}
