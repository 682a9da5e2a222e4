//! `variance`: a group must have contrast.

use super::{DropReason, Filter, GroupStatistics, OutcomeScale, Verdict};
use crate::entry::{Entry, Family};
use crate::figure::shortest;
use crate::{choice, settings};

pub(super) const ENTRY: Entry = Entry {
    name: "variance",
    family: Family::Filter,
    formula: "max(metric) - min(metric) > tolerance",
    source: "Yu et al., DAPO, arXiv 2503.14476, eq. 11",
    degenerate: &[
        "a group of one is kept, or dropped with `singleton: drop`",
        "a group without a scored member, or with one of several, is dropped as `unscored`",
    ],
    known_as: &[("verl", "algorithm.filter_groups"), ("EasyR1", "algorithm.online_filtering")],
    differences: &[
        "verl keeps a group if numpy.std > 0, which rounding makes true for some uniform groups; here max == min decides",
    ],
    ..Entry::REGISTERED
};

choice! {
    /// What happens to a group of one trajectory, in which there is nothing to compare.
    pub enum Singleton {
        /// Kept, as in verl: with `rollout.n: 1` the filter keeps every group.
        Keep = "keep",
        /// Dropped as `singleton`.
        Drop = "drop",
    }
}

settings! {
    /// Keeps a group whose scored members differ: `max − min > tolerance`.
    ///
    /// This is dynamic sampling of DAPO (Yu et al. 2025, arXiv 2503.14476, equation 11), whose "neither all
    /// correct nor all wrong" is the case of a metric in {0, 1}. If all members are equal, every
    /// group-relative advantage is zero.
    ///
    /// # Differs from
    /// verl's recipe (0.9.1), which keeps a group if `numpy.std(values) > 0`. Rounding makes that true for
    /// some groups of equal members: of 0.1 at sizes 3, 6, 7, 12 to 15, 18 and more; of 0.7 at 3, 6, 7, 11,
    /// 12, 15, ...; of 1/3 at 10, 11, 15, 18, .... verl keeps such a group, and its advantages are rounding
    /// noise over a tiny deviation; here it is dropped. At sizes 2, 4, 8, 16 and 32, and for metrics in {0,
    /// 1} or {−1, +1} at any size, both rules agree. verl drops a group with a NaN whatever its other members
    /// are (its V1 trainer keeps it); here its scored members decide.
    #[derive(Copy)]
    pub struct Variance {
        /// Largest spread (largest minus smallest member) that still counts as uniform, in units of the
        /// metric.
        tolerance: f64 = 0.0, NonNegative;
        /// Verdict on a group of one trajectory.
        singleton: Singleton = Singleton::Keep;
    }
}

impl Variance {
    /// The verdict on one group.
    pub fn judge_one(&self, group: &GroupStatistics, scale: Option<OutcomeScale>) -> Verdict {
        if group.is_unscored() {
            return Verdict::Dropped(DropReason::Unscored);
        }
        if group.size == 1 {
            return match self.singleton {
                Singleton::Keep => Verdict::Kept,
                Singleton::Drop => Verdict::Dropped(DropReason::Singleton),
            };
        }
        if group.max - group.min > self.tolerance {
            return Verdict::Kept;
        }
        Verdict::Dropped(OutcomeScale::name_of(scale, group, DropReason::Uniform))
    }
}

impl Filter for Variance {
    fn singleton(&self) -> Option<Singleton> {
        Some(self.singleton)
    }

    fn rule(&self) -> String {
        match self.tolerance {
            tolerance if tolerance > 0.0 => format!("groups with max - min > {}", shortest(tolerance)),
            _ => "groups with max > min".to_owned(),
        }
    }

    fn is_certain(&self, min: f64, max: f64) -> bool {
        max - min > self.tolerance
    }

    fn judge(&self, groups: &[GroupStatistics], scale: Option<OutcomeScale>) -> Vec<Verdict> {
        groups.iter().map(|group| self.judge_one(group, scale)).collect()
    }
}
