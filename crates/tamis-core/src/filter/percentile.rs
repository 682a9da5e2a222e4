//! `percentile`: a band of the ranking.

use super::{Filter, FilterError, GroupStatistics, OutcomeScale, Pool, Verdict};
use crate::entry::{Entry, Family};
use crate::figure::exact_percent;
use crate::figure::shortest;
use crate::setting::Ranged as _;
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "percentile",
    family: Family::Filter,
    formula: "ranks round(low * n) up to round(high * n), of the n groups that compete, best first; at least one",
    source: "RAGEN, rollout_filter_strategy percentile_range (branch more-experiments)",
    degenerate: &[
        "scale: only the order of the scores counts, so neither scale nor shift of a score matters",
        "a band narrower than a group keeps the one group at its start; if nothing competes, none is kept",
        "halves are rounded to the even rank; bands that share a bound share no group",
        "groups of equal score are ranked in dispatch order; unscored groups never compete",
    ],
    known_as: &[("RAGEN", "actor_rollout_ref.rollout.rollout_filter_strategy=percentile_range")],
    differences: &[],
    ..Entry::REGISTERED
};
settings! {
    /// Keeps the groups whose rank lies between two shares of the ranking:
    /// `round(low · n) ≤ rank < round(high · n)` with the n competing groups ranked from 0, best first, and
    /// at least one group. See [`Pool`] for the score, ties and the groups that compete.
    ///
    /// `low = 0, high = 0.25` is the best quarter. The four quarters share no group and leave none out (with
    /// four groups or more).
    ///
    /// # Scale
    /// Depends only on the order of the scores.
    ///
    /// # Source
    /// RAGEN, branch `more-experiments`, strategy `percentile_range` (its ablation by quartiles of the reward
    /// deviation).
    #[derive(Copy)]
    pub struct Percentile {
        /// Start of the kept band of the ranking, as a share of the ranking: 0 is the best group.
        low: f64 = 0.0;
        /// End of the kept band of the ranking, as a share of the ranking: 1 is the worst group.
        high: f64 = 1.0;
        ..pool: Pool;
    }
}

impl Filter for Percentile {
    fn check(&self) -> Result<(), FilterError> {
        self.check_ranges()?;
        if 0.0 <= self.low && self.low < self.high && self.high <= 1.0 {
            Ok(())
        } else {
            let message = format!(
                "the percentile filter's band must satisfy 0 <= low < high <= 1, got {} to {}",
                shortest(self.low),
                shortest(self.high)
            );
            Err(FilterError::of_keys(&["low", "high"], message, "`low: 0, high: 0.25` is the best quarter"))
        }
    }

    fn rule(&self) -> String {
        let Self { low, high, pool } = self;
        format!(
            "the groups of each round from {} to {} of the ranking, by the {}",
            exact_percent(*low),
            exact_percent(*high),
            pool.describe_ranking()
        )
    }

    fn pool(&self) -> Option<Pool> {
        Some(self.pool)
    }

    fn judge(&self, groups: &[GroupStatistics], scale: Option<OutcomeScale>) -> Vec<Verdict> {
        let ranking = self.pool.rank(groups, scale);
        let num = ranking.len();
        let rank = |share: f64| ((share * num as f64).round_ties_even() as usize).min(num);
        let (low, high) = (rank(self.low), rank(self.high));
        if low < high {
            return ranking.keep(low..high);
        }
        let start = low.min(num.saturating_sub(1));
        let end = (start + 1).min(num);
        ranking.keep(start..end)
    }
}
