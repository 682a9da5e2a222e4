//! `min_p`: groups not far behind the best.

use serde::{Deserialize, Serialize};

use super::pool::SLACK;
use super::{Filter, FilterError, GroupStatistics, OutcomeScale, Pool, Prefer, Scope, Verdict};
use crate::entry::{Entry, Family};

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "min_p",
    family: Family::Filter,
    meaning: "keeps the groups of a round whose score is at least a share of the best",
    formula: "score >= p * max(score); preferring the smallest, score <= min(score) / p",
    source: "RAGEN, rollout_filter_strategy min_p",
    defaults: &[
        ("filter.p", "required"),
        ("filter.score", "deviation"),
        ("filter.ddof", "0"),
        ("filter.prefer", "largest"),
        ("filter.include_zero", "true"),
    ],
    degenerate: &[
        "scale: no positive factor on the scores matters; a shift of means and sums does",
        "the best group is always kept, where one competes; where the best deviation is 0 all are, unless `include_zero: false`",
        "a best score below 0 is stretched the other way, to max / p and min * p, so that the best is within its own bound",
        "unscored groups never compete",
    ],
    known_as: &[("RAGEN", "actor_rollout_ref.rollout.rollout_filter_strategy=min_p")],
    differences: &["RAGEN keeps nothing where the best score is negative"],
};

/// Keeps the groups of a round whose score is at least a share `p` of the best: `score ≥ p · max`, or with the smallest preferred
/// `score ≤ min / p` (both within a billionth). See [`Pool`] for score and who competes.
///
/// `p = 0` keeps every group that competes, `p = 1` only those level with the best. A negative best score is stretched the other
/// way (`max / p`, `min · p`), so that the bound is never beyond the best.
///
/// # Scale
/// A positive factor on the scores changes nothing; a shift (of a mean or a sum) does.
///
/// # Source
/// RAGEN, `rollout_filter.py`, strategy `min_p`, whose `prefer: smallest` came on 2026-01-25.
///
/// ```
/// use tamis_core::filter::{judge_columns, MinP, Pool};
/// let column = [-5.0, 5.0, -4.0, 4.0, -3.9, 3.9]; // deviations 5, 4, 3.9
/// let (verdicts, _) = judge_columns(&MinP { p: 0.8, pool: Pool::default() }, None, &column, &[0, 2, 4, 6])?;
/// let kept: Vec<bool> = verdicts.iter().map(|verdict| verdict.is_kept()).collect();
/// assert_eq!(kept, [true, true, false]);
/// # Ok::<(), tamis_core::filter::FilterError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MinP {
    /// The share of the best score, in \[0, 1\].
    pub p: f64,
    /// Score, and who competes.
    #[serde(default)]
    pub pool: Pool,
}

impl MinP {
    /// The filter with its settings checked.
    ///
    /// # Errors
    /// [`FilterError::MinP`] where `p` is outside \[0, 1\], and those of the pool's settings.
    pub fn checked(self) -> Result<Self, FilterError> {
        self.pool.check()?;
        if (0.0..=1.0).contains(&self.p) { Ok(self) } else { Err(FilterError::MinP(self.p)) }
    }
}

impl Filter for MinP {
    fn name(&self) -> &'static str {
        "min_p"
    }

    fn scope(&self) -> Scope {
        Scope::Pool
    }

    fn judge(&self, groups: &[GroupStatistics], scale: Option<OutcomeScale>) -> Vec<Verdict> {
        let ranking = self.pool.rank(groups, scale);
        let Some(best) = ranking.scores().next().filter(|_| self.p > 0.0) else {
            let num = ranking.len();
            return ranking.keep(0..num);
        };
        // Towards the worse scores: down for the largest, up for the smallest.
        let shrinks = (self.pool.prefer == Prefer::Largest) == (best >= 0.0);
        let bound = if shrinks { best * self.p } else { best / self.p };
        let slack = SLACK * bound.abs().min(f64::MAX);
        match self.pool.prefer {
            Prefer::Largest => ranking.keep_where(|score| score >= bound - slack),
            Prefer::Smallest => ranking.keep_where(|score| score <= bound + slack),
        }
    }
}
