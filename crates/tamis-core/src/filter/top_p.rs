//! `top_p`: the best groups that together have a share of the mass.

use super::pool::SLACK;
use super::{Filter, FilterError, GroupStatistics, OutcomeScale, Pool, PoolScore, Prefer, Verdict};
use crate::entry::{Entry, Family};
use crate::figure::exact_percent;
use crate::setting::Ranged as _;
use crate::{choice, settings};

pub(super) const ENTRY: Entry = Entry {
    name: "top_p",
    family: Family::Filter,
    formula: "the shortest prefix of the ranking with sum(mass) >= p * sum over all(mass); mass = exp(score \
        / temperature) | score | score^2",
    source: "RAGEN, rollout_filter_strategy top_p (softmax: 2026-01; linear: 2026-03); RAGEN-2, arXiv 2604.06268",
    degenerate: &[
        "scale: `softmax` depends on it: at 0/1 outcomes all masses are nearly equal and p: 0.9 keeps about \
            nine groups in ten, at deviations of several points it keeps two or three; `linear` and \
            `variance` do not, apart from `slack`",
        "`softmax` keeps at least one group of those that compete; `linear` and `variance` keep none if \
            no score is positive or p times the mass is at most `slack`",
        "p: 1 keeps every group that competes, so that with `include_zero: false` it drops only the uniform groups",
        "groups of equal score are taken in dispatch order; unscored groups never compete and count for nothing",
        "judging the kept groups again may drop more of them, except with p: 1",
    ],
    known_as: &[("RAGEN", "actor_rollout_ref.rollout.rollout_filter_strategy=top_p")],
    differences: &[
        "RAGEN's deviation is that of a sample: `ddof: 1` gives its numbers, and its linear form has `slack: 0.01`",
        "RAGEN's linear form with `smallest` keeps nothing once a score of 0 competes; here groups without mass are passed over",
    ],
    ..Entry::REGISTERED
};

choice! {
    /// Weight of a group for `top_p`.
    pub enum Mass {
        /// `exp(score / temperature)`, or of the negated score if the smallest are preferred: a nucleus, as
        /// in the sampling of tokens. Keeps at least one group, and depends on the scale of the reward.
        Softmax = "softmax",
        /// The score. It may keep no group, and does not depend on the scale.
        Linear = "linear",
        /// The square of the score, which must be the deviation. It may keep no group, and does not depend on
        /// the scale.
        Variance = "variance",
    }
}

settings! {
    /// Keeps the best groups of a round that together have a share `p` of the mass of all that compete.
    ///
    /// In the ranking by score (see [`Pool`]), the shortest prefix is kept whose mass reaches `p · Σ mass`
    /// (`linear`, `variance`: less `slack`; all: within a billionth of the whole, so that nine of ten equal
    /// groups have 0.9). With `p = 1` every group that competes is kept.
    ///
    /// | mass | of a group | keeps at least |
    /// |---|---|---|
    /// | [`Softmax`](Mass::Softmax) | `exp(±score / temperature)` | one group, if any competes |
    /// | [`Linear`](Mass::Linear) | `score` if positive, otherwise it has none and is never kept | nothing, if no score is positive or `p · Σ ≤ slack` |
    /// | [`Variance`](Mass::Variance) | `score²`, likewise | likewise |
    ///
    /// # Scale
    /// The softmax is not invariant under a change of the reward's scale. With eight groups of 0/1 outcomes
    /// of deviations 0.52 to 0, `p = 0.9` keeps seven, one of them of deviation 0; the same nucleus over
    /// Sokoban's returns (deviations 5.6 to 0) keeps three. Set `temperature` to the size of a deviation
    /// worth telling apart, or take a mass that is invariant: `linear` and `variance` with `slack = 0`.
    ///
    /// # Source
    /// RAGEN, `rollout_filter.py`, strategy `top_p`: the softmax nucleus of its filtering document, and the
    /// linear form that followed.
    ///
    /// # Differs from
    /// RAGEN, in which a score of 0 ends the walk of the linear form: if the smallest are preferred and the
    /// round has a uniform group, it keeps nothing. Here a group without mass is passed over. RAGEN's
    /// deviation has `ddof = 1`, and its linear form `slack = 0.01`.
    ///
    /// ```
    /// use tamis_core::filter::{judge_columns, Mass, TopP};
    /// // Deviations 4, 3, 2, 1.
    /// let column = [-4.0, 4.0, -3.0, 3.0, -2.0, 2.0, -1.0, 1.0];
    /// let filter = TopP { mass: Mass::Linear, ..TopP::of(0.6) };
    /// let (verdicts, _) = judge_columns(&filter, None, &column, &[0, 2, 4, 6, 8])?;
    /// let kept: Vec<bool> = verdicts.iter().map(|verdict| verdict.is_kept()).collect();
    /// assert_eq!(kept, [true, true, false, false]); // 4 + 3 of 10
    /// # Ok::<(), tamis_core::filter::FilterError>(())
    /// ```
    #[derive(Copy)]
    pub struct TopP {
        /// Share of the round's mass that is kept.
        p: f64, Probability;
        /// Weight of a group in the mass of its round.
        mass: Mass = Mass::Softmax;
        /// Temperature of the softmax, in units of the score; read with `mass: softmax`.
        temperature: f64 = 1.0, Positive;
        /// Mass that may be missing from the share, in units of the score or its square; read with
        /// `mass: linear` and `variance`.
        slack: f64 = 0.0, NonNegative;
        ..pool: Pool;
    }
}

impl TopP {
    /// With the share `p` and every other key at its default.
    pub fn of(p: f64) -> Self {
        Self { p, mass: Mass::Softmax, temperature: 1.0, slack: 0.0, pool: Pool::default() }
    }

    /// Mass of each ranked group, relative to the largest, and the value of 1 in these units.
    fn masses(&self, scores: &[f64]) -> (Vec<f64>, f64) {
        let first = scores.first().copied().unwrap_or(0.0);
        match self.mass {
            Mass::Softmax => {
                let sign = if self.pool.prefer == Prefer::Largest { 1.0 } else { -1.0 };
                // Halved before the subtraction, so that the difference of two enormous scores stays finite.
                let logit = |score: f64| sign * (score / 2.0 - first / 2.0) / self.temperature * 2.0;
                (scores.iter().map(|score| logit(*score).exp()).collect(), 1.0)
            }
            Mass::Linear | Mass::Variance => {
                let largest = scores.iter().copied().fold(0.0, f64::max);
                let power = if self.mass == Mass::Linear { 1 } else { 2 };
                let mass = |score: f64| if score > 0.0 { (score / largest).powi(power) } else { 0.0 };
                (scores.iter().map(|score| mass(*score)).collect(), largest.powi(power))
            }
        }
    }
}

impl Filter for TopP {
    fn idle_keys(&self) -> (&'static [&'static str], &'static str) {
        match self.mass {
            Mass::Softmax => (&["slack"], "the mass is `softmax`"),
            Mass::Linear | Mass::Variance => (&["temperature"], "the mass is not `softmax`"),
        }
    }

    fn check(&self) -> Result<(), FilterError> {
        self.check_ranges()?;
        if self.mass == Mass::Variance && self.pool.score != PoolScore::Deviation {
            let message = format!(
                "the top_p filter's mass `variance` is the square of the deviation: it needs the score `deviation`, not `{}`",
                self.pool.score
            );
            return Err(FilterError::of_keys(
                &["mass", "score"],
                message,
                "use `score: deviation`, or `mass: linear`",
            ));
        }
        Ok(())
    }

    fn rule(&self) -> String {
        let Self { p, mass, pool, .. } = self;
        format!(
            "the groups of each round that hold {} of the {mass} mass, by the {}",
            exact_percent(*p),
            pool.describe_ranking()
        )
    }

    fn pool(&self) -> Option<Pool> {
        Some(self.pool)
    }

    fn admits_uniform(&self) -> bool {
        let has_mass = self.mass == Mass::Softmax || self.p >= 1.0;
        self.pool.admits_uniform() && (has_mass || !self.pool.is_by_spread())
    }

    fn judge(&self, groups: &[GroupStatistics], scale: Option<OutcomeScale>) -> Vec<Verdict> {
        let ranking = self.pool.rank(groups, scale);
        let num = ranking.len();
        if self.p >= 1.0 || num == 0 {
            return ranking.keep(0..num);
        }
        let scores: Vec<f64> = ranking.scores().collect();
        let (masses, unit) = self.masses(&scores);
        let total: f64 = masses.iter().sum();
        let is_share = self.mass != Mass::Softmax;
        let slack = if is_share && self.slack > 0.0 { self.slack / unit } else { 0.0 };
        // If every score is 0, or too large to divide by, the total is not a positive number and nothing is
        // kept.
        let wanted = self.p * total - slack;
        if is_share && !(total > 0.0 && wanted > 0.0) {
            return ranking.keep(0..0);
        }
        // If the smallest are preferred, the groups without mass come before those with some.
        let start = masses.iter().position(|mass| *mass > 0.0).unwrap_or(0);
        let mut sum = 0.0;
        let mut end = start;
        for mass in masses.iter().skip(start) {
            sum += mass;
            end += 1;
            if sum >= wanted - SLACK * total {
                break;
            }
        }
        ranking.keep(start..end)
    }
}
