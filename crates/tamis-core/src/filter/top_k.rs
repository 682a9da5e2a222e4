//! `top_k`: the k best groups of a round.

use serde::{Deserialize, Serialize};

use super::pool::SLACK;
use super::{Filter, FilterError, GroupStatistics, OutcomeScale, Pool, Scope, Verdict};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "top_k",
    family: Family::Filter,
    meaning: "keeps the k best groups of a round",
    formula: "the first k of the ranking; k a count, or max(1, floor(fraction * groups of the round))",
    source: "RAGEN, rollout_filter_strategy top_k (a count; since 2026-01-25 a fraction, the count being top_k_abs)",
    defaults: &[
        ("filter.k", "required"),
        ("filter.fraction", "required (in place of `k`)"),
        ("filter.score", "deviation"),
        ("filter.ddof", "0"),
        ("filter.prefer", "largest"),
        ("filter.include_zero", "true"),
    ],
    degenerate: &[
        "scale: only the order of the scores counts, so neither scale nor shift of a score matters",
        "fewer groups compete than k: all of them are kept, which may be none",
        "a fraction is of all groups of the round, whether they compete or not, and at least one group",
        "groups of equal score are taken in dispatch order; unscored groups never compete",
    ],
    known_as: &[
        ("RAGEN", "actor_rollout_ref.rollout.rollout_filter_strategy=top_k"),
        ("RAGEN", "actor_rollout_ref.rollout.rollout_filter_strategy=top_k_abs"),
    ],
    differences: &[],
};

/// How many of a set: so many, or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quota {
    /// So many.
    Count(usize),
    /// A part of all, in (0, 1].
    Fraction(f64),
}

impl Quota {
    /// Checks it for a filter; `least` is the smallest count that makes sense.
    pub(super) fn check(self, filter: &'static str, least: usize) -> Result<(), FilterError> {
        match self {
            Self::Count(count) if count < least => Err(FilterError::Count { filter, least, count }),
            Self::Fraction(value) if !(value > 0.0 && value <= 1.0) => {
                Err(FilterError::Share { filter, setting: "fraction", value })
            }
            _ => Ok(()),
        }
    }
}

/// Keeps the k best groups of a round, fewer where fewer compete. See [`Pool`] for score, ties and who competes.
///
/// A fraction is taken of all groups of the round, kept down to a whole number, and at least one: `max(1, ⌊f · P⌋)`.
///
/// # Scale
/// Only the order of the scores counts.
///
/// # Source
/// RAGEN, `rollout_filter.py`: `top_k` was a count (4 of 8 groups), and is a fraction since 2026-01-25, when the count became `top_k_abs`.
///
/// ```
/// use tamis_core::filter::{judge_columns, OutcomeScale, Pool, Quota, TopK};
/// let acc = [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0];
/// let filter = TopK { k: Quota::Count(1), pool: Pool::default() };
/// let scale = Some(OutcomeScale::default());
/// let (verdicts, _) = judge_columns(&filter, scale, &acc, &[0, 2, 4, 6, 8])?;
/// let names: Vec<_> = verdicts.iter().map(|verdict| verdict.name()).collect();
/// // The second and the last spread alike: the one dispatched first is taken.
/// assert_eq!(names, ["all_correct", "kept", "all_correct", "outside_pool"]);
/// # Ok::<(), tamis_core::filter::FilterError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopK {
    /// How many.
    pub k: Quota,
    /// Score, and who competes.
    #[serde(default)]
    pub pool: Pool,
}

impl TopK {
    /// The filter with its settings checked.
    ///
    /// # Errors
    /// [`FilterError::Count`] for 0, [`FilterError::Share`] for a fraction outside (0, 1], and those of the pool's settings.
    pub fn checked(self) -> Result<Self, FilterError> {
        self.pool.check()?;
        self.k.check("top_k", 1)?;
        Ok(self)
    }
}

impl Filter for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn scope(&self) -> Scope {
        Scope::Pool
    }

    fn judge(&self, groups: &[GroupStatistics], scale: Option<OutcomeScale>) -> Vec<Verdict> {
        let ranking = self.pool.rank(groups, scale);
        let k = match self.k {
            Quota::Count(count) => count,
            Quota::Fraction(fraction) => ((fraction * groups.len() as f64 + SLACK) as usize).max(1),
        };
        let end = k.min(ranking.len());
        ranking.keep(0..end)
    }
}
