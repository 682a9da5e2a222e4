//! Verdict of a filter on a group.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::GroupStatistics;

/// Verdict of a filter on a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The group has a signal.
    Kept,
    /// The group has no signal, for this reason.
    Dropped(DropReason),
}

impl Verdict {
    /// Whether the group may be trained on.
    pub fn is_kept(self) -> bool {
        self == Self::Kept
    }

    /// `kept`, or the reason's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Dropped(reason) => reason.name(),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Why a group was dropped. [The module](super) defines all-correct and all-wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// Every scored member reaches the top of the outcome scale.
    AllCorrect,
    /// No scored member rises above the bottom of the outcome scale.
    AllWrong,
    /// All scored members have the same metric, elsewhere on the scale.
    Uniform,
    /// Too few members have a metric.
    Unscored,
    /// The mean lies below the range.
    BelowRange,
    /// The mean lies above the range.
    AboveRange,
    /// A group of one member, and the filter is set to drop those.
    Singleton,
    /// The score by which a pool filter ranks is 0 although the members differ, and the filter is set to drop
    /// those.
    ZeroScore,
    /// Other groups of its round were preferred.
    OutsidePool,
    /// Its first members have the same metric, and the schedule ended it with them
    /// ([`screen_first`](crate::schedule::ScheduleSettings::screen_first)): the scores of the others are
    /// unknown.
    Screened,
}

impl DropReason {
    /// Every reason, in the order in which reports list them.
    pub const ALL: [Self; 10] = [
        Self::AllCorrect,
        Self::AllWrong,
        Self::Uniform,
        Self::Unscored,
        Self::BelowRange,
        Self::AboveRange,
        Self::Singleton,
        Self::ZeroScore,
        Self::OutsidePool,
        Self::Screened,
    ];

    /// The name in rollout files.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllCorrect => "all_correct",
            Self::AllWrong => "all_wrong",
            Self::Uniform => "uniform",
            Self::Unscored => "unscored",
            Self::BelowRange => "below_range",
            Self::AboveRange => "above_range",
            Self::Singleton => "singleton",
            Self::ZeroScore => "zero_score",
            Self::OutsidePool => "outside_pool",
            Self::Screened => "screened",
        }
    }

    /// The reason as reports write it, after a number.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::AllCorrect => "all correct",
            Self::AllWrong => "all wrong",
            Self::Uniform => "other uniform",
            Self::Unscored => "unscored",
            Self::BelowRange => "below range",
            Self::AboveRange => "above range",
            Self::Singleton => "single",
            Self::ZeroScore => "zero score",
            Self::OutsidePool => "outside pool",
            Self::Screened => "screened",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A metric's values for "wrong" and "correct"; the default is 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OutcomeScale {
    /// A trajectory at or below it is wrong.
    pub wrong: f64,
    /// A trajectory at or above it is correct.
    pub correct: f64,
}

impl Default for OutcomeScale {
    fn default() -> Self {
        Self { wrong: 0.0, correct: 1.0 }
    }
}

impl OutcomeScale {
    /// Name of a group without contrast: its best member is compared with `wrong`, its worst with `correct`.
    pub(super) fn name_of(scale: Option<Self>, group: &GroupStatistics, otherwise: DropReason) -> DropReason {
        match scale {
            Some(scale) if group.max <= scale.wrong => DropReason::AllWrong,
            Some(scale) if group.min >= scale.correct => DropReason::AllCorrect,
            _ => otherwise,
        }
    }
}
