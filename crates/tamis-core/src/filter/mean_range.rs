//! `mean_range`: a group must be neither too easy nor too hard.

use super::{DropReason, Filter, FilterError, GroupStatistics, OutcomeScale, Verdict};
use crate::entry::{Entry, Family};
use crate::figure::shortest;
use crate::setting::Ranged as _;
use crate::{choice, settings};

pub(super) const ENTRY: Entry = Entry {
    name: "mean_range",
    family: Family::Filter,
    formula: "low < mean(metric) < high over the scored members, or <= with `bounds: closed`",
    source: "EasyR1, online filtering; OpenRLHF, dynamic filtering",
    degenerate: &[
        "a group of one is judged like any other",
        "a uniform group inside the range is kept although its advantages are zero",
    ],
    known_as: &[
        ("EasyR1", "algorithm.filter_low, algorithm.filter_high"),
        ("OpenRLHF", "dynamic_filtering, dynamic_filtering_reward_range"),
    ],
    differences: &[],
    ..Entry::REGISTERED
};

choice! {
    /// What happens to a group whose mean equals `low` or `high`.
    pub enum Bounds {
        /// Dropped: a group is kept if `low < mean < high`.
        Open = "open",
        /// Kept: a group is kept if `low <= mean <= high`.
        Closed = "closed",
    }
}

settings! {
    /// Keeps a group whose mean over scored members lies between two bounds.
    ///
    /// With the open range (0, 1) on a metric in {0, 1} it keeps the same groups as
    /// [`Variance`](super::Variance). EasyR1's online filtering is the open (0.01, 0.99), OpenRLHF's the open
    /// (0, 1). A band such as \[0.2, 0.8\] also drops nearly-solved and nearly-hopeless prompts.
    ///
    /// A group of one is judged like any other. A uniform group inside the range is *kept*: on a shaped
    /// reward (accuracy plus format, for example) such a group has zero advantage, so filter on the raw
    /// outcome.
    #[derive(Copy)]
    pub struct MeanRange {
        /// Lower bound of the group's mean, in units of the metric.
        low: f64 = 0.0;
        /// Upper bound of the group's mean, in units of the metric.
        high: f64 = 1.0;
        /// Verdict on a group whose mean equals `low` or `high`.
        bounds: Bounds = Bounds::Open;
    }
}

impl MeanRange {
    /// The verdict on one group.
    pub fn judge_one(&self, group: &GroupStatistics, scale: Option<OutcomeScale>) -> Verdict {
        if group.is_unscored() {
            return Verdict::Dropped(DropReason::Unscored);
        }
        let (below, above) = match self.bounds {
            Bounds::Open => (group.mean <= self.low, group.mean >= self.high),
            Bounds::Closed => (group.mean < self.low, group.mean > self.high),
        };
        if below {
            Verdict::Dropped(OutcomeScale::name_of(scale, group, DropReason::BelowRange))
        } else if above {
            Verdict::Dropped(OutcomeScale::name_of(scale, group, DropReason::AboveRange))
        } else {
            Verdict::Kept
        }
    }
}

impl Filter for MeanRange {
    fn check(&self) -> Result<(), FilterError> {
        self.check_ranges()?;
        let Self { low, high, bounds } = *self;
        let (holds_something, [open, close]) = match bounds {
            Bounds::Open => (low < high, ["(", ")"]),
            Bounds::Closed => (low <= high, ["[", "]"]),
        };
        if holds_something {
            return Ok(());
        }
        let message = format!(
            "no group mean lies within the bounds of the mean_range filter, {open}{}, {}{close}",
            shortest(low),
            shortest(high)
        );
        Err(FilterError::of_keys(&["low", "high"], message, "swap `low` and `high`, or raise `high`"))
    }

    fn rule(&self) -> String {
        let relation = if self.bounds == Bounds::Open { "<" } else { "<=" };
        format!("groups with {} {relation} mean {relation} {}", shortest(self.low), shortest(self.high))
    }

    fn judge(&self, groups: &[GroupStatistics], scale: Option<OutcomeScale>) -> Vec<Verdict> {
        groups.iter().map(|group| self.judge_one(group, scale)).collect()
    }
}
