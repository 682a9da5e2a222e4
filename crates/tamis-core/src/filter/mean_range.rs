//! `mean_range`: a group must be neither too easy nor too hard.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{DropReason, Filter, FilterError, GroupStatistics, OutcomeScale, Scope, Verdict};
use crate::entry::{Entry, Family};
use crate::figure::shortest;

/// The catalogue's entry.
pub(super) const ENTRY: Entry = Entry {
    name: "mean_range",
    family: Family::Filter,
    meaning: "keeps a group that is neither too easy nor too hard",
    formula: "low < mean(metric) < high over the scored members, or <= with `ends: closed`",
    source: "EasyR1, online filtering; OpenRLHF, dynamic filtering",
    defaults: &[("filter.low", "0"), ("filter.high", "1"), ("filter.bounds", "open")],
    degenerate: &[
        "a group of one is judged like any other",
        "a uniform group inside the range is kept although its advantages are zero",
    ],
    known_as: &[("EasyR1", "algorithm.filter_low, algorithm.filter_high")],
    differences: &[],
};

/// Whether a bound itself is inside the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ends {
    /// `low < mean < high`.
    #[default]
    Open,
    /// `low ≤ mean ≤ high`.
    Closed,
}

/// Keeps a group whose mean over scored members lies between two bounds.
///
/// With the open range (0, 1) on a metric in {0, 1} it keeps what [`Variance`](super::Variance) keeps; EasyR1's online filtering is the
/// open (0.01, 0.99), OpenRLHF's the open (0, 1), a band such as \[0.2, 0.8\] drops nearly-solved and nearly-hopeless prompts too.
///
/// A group of one is judged like any other. A uniform group inside the range is *kept*: on a shaped reward (accuracy plus
/// format, say) that is a group of zero advantage, so filter on the raw outcome.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeanRange {
    /// Lower bound, in units of the metric.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
    /// Whether the bounds are inside.
    #[serde(default)]
    pub ends: Ends,
}

impl MeanRange {
    /// With its settings checked. Infinite bounds are no bounds.
    ///
    /// # Errors
    /// [`FilterError::EmptyRange`] where no mean could lie inside (a bound is NaN, `low > high`, or equal with open ends).
    pub fn new(low: f64, high: f64, ends: Ends) -> Result<Self, FilterError> {
        let range = Self { low, high, ends };
        let holds_something = match ends {
            Ends::Open => low < high,
            Ends::Closed => low <= high,
        };
        if holds_something { Ok(range) } else { Err(FilterError::EmptyRange { range: range.to_string() }) }
    }

    /// The verdict on one group.
    pub fn judge_one(&self, group: &GroupStatistics, scale: Option<OutcomeScale>) -> Verdict {
        if group.is_unscored() {
            return Verdict::Dropped(DropReason::Unscored);
        }
        let (below, above) = match self.ends {
            Ends::Open => (group.mean <= self.low, group.mean >= self.high),
            Ends::Closed => (group.mean < self.low, group.mean > self.high),
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

impl fmt::Display for MeanRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ends {
            Ends::Open => write!(formatter, "({}, {})", shortest(self.low), shortest(self.high)),
            Ends::Closed => write!(formatter, "[{}, {}]", shortest(self.low), shortest(self.high)),
        }
    }
}

impl Filter for MeanRange {
    fn name(&self) -> &'static str {
        "mean_range"
    }

    fn scope(&self) -> Scope {
        Scope::Point
    }

    fn judge(&self, groups: &[GroupStatistics], scale: Option<OutcomeScale>) -> Vec<Verdict> {
        groups.iter().map(|group| self.judge_one(group, scale)).collect()
    }
}
