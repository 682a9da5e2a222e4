//! `min_p`: groups not far behind the best.

use super::pool::SLACK;
use super::{Filter, GroupStatistics, OutcomeScale, Pool, Prefer, Verdict};
use crate::entry::{Entry, Family};
use crate::figure::exact_percent;
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "min_p",
    family: Family::Filter,
    formula: "score >= p * max(score); with the smallest preferred, score <= min(score) / p",
    source: "RAGEN, rollout_filter_strategy min_p",
    degenerate: &[
        "scale: a positive factor on the scores does not matter; a shift of means and sums does",
        "the best group is always kept, if any competes; if the best deviation is 0 all are kept, unless `include_zero: false`",
        "for a best score below 0 the bound is max / p or min * p, so that the best is within its own bound",
        "unscored groups never compete",
    ],
    known_as: &[("RAGEN", "actor_rollout_ref.rollout.rollout_filter_strategy=min_p")],
    differences: &["RAGEN keeps nothing if the best score is negative"],
    ..Entry::REGISTERED
};
settings! {
    /// Keeps the groups of a round whose score is at least a share `p` of the best: `score ≥ p · max`, or, if
    /// the smallest are preferred, `score ≤ min / p` (both within a billionth). See [`Pool`] for the score
    /// and for the groups that compete.
    ///
    /// `p = 0` keeps every group that competes, `p = 1` only those level with the best. For a negative best
    /// score the bound is on the other side (`max / p`, `min · p`), so that it is never beyond the best.
    ///
    /// # Scale
    /// Multiplying the scores by a positive factor changes nothing; a shift (of a mean or a sum) does.
    ///
    /// # Source
    /// RAGEN, `rollout_filter.py`, strategy `min_p`, whose `prefer: smallest` was added on 2026-01-25.
    ///
    /// ```
    /// use tamis_core::filter::{judge_columns, MinP, Pool};
    /// let column = [-5.0, 5.0, -4.0, 4.0, -3.9, 3.9]; // deviations 5, 4, 3.9
    /// let (verdicts, _) = judge_columns(&MinP { p: 0.8, pool: Pool::default() }, None, &column, &[0, 2, 4, 6])?;
    /// let kept: Vec<bool> = verdicts.iter().map(|verdict| verdict.is_kept()).collect();
    /// assert_eq!(kept, [true, true, false]);
    /// # Ok::<(), tamis_core::filter::FilterError>(())
    /// ```
    #[derive(Copy)]
    pub struct MinP {
        /// Share of the best score that a group needs.
        p: f64, Between(0.0, 1.0);
        ..pool: Pool;
    }
}

impl Filter for MinP {
    fn rule(&self) -> String {
        format!(
            "the groups of each round that reach {} of the best, by the {}",
            exact_percent(self.p),
            self.pool.describe_ranking()
        )
    }

    fn pool(&self) -> Option<Pool> {
        Some(self.pool)
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
