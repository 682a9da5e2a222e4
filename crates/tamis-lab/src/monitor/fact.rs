//! The facts in one line of a log.

use std::collections::BTreeMap;

/// A fact about a run, from one line.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fact {
    /// The step whose groups are generated from now on, if the log names it.
    StepBegins { step: Option<u64> },
    /// A batch was generated.
    Batch {
        /// The step, if the line names it.
        step: Option<u64>,
        /// Its number in the step, from 1.
        number: u64,
        /// The counts in the line.
        of: Batch,
    },
    /// Verdicts on the latest batch.
    Verdicts(Batch),
    /// Groups ready, and wanted for the step.
    Accumulated {
        ready: u64,
        target: Option<u64>,
        /// Whether generation for the step has ended.
        is_enough: bool,
    },
    /// So many batches of the step are done, and it is not full yet.
    Refills(u64),
    /// The attempt at the step is abandoned, and another one begins.
    Skipped,
    /// Generation for the step has ended: it is trained on.
    Generated {
        /// Its number, if the line has it.
        step: Option<u64>,
    },
    /// The step is trained, with these figures.
    Trained { step: u64, values: BTreeMap<String, f64> },
    /// One figure of the latest generated step.
    Figure(String, f64),
    /// Number of steps of the run.
    TotalSteps(u64),
    /// Groups of a batch, by the run's configuration.
    GenBatchSize(u64),
    /// Groups that a step trains on, by the run's configuration.
    TrainBatchSize(u64),
    /// A message for the user.
    Warning(String),
    /// An error.
    Error(String),
}

/// Counts of a batch, as far as lines have them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Batch {
    pub(super) groups: Option<u64>,
    pub(super) trajectories: Option<u64>,
    pub(super) dropped: Option<u64>,
    pub(super) kept: Option<u64>,
    pub(super) share: Option<f64>,
    pub(super) reasons: BTreeMap<String, u64>,
    /// Whether lines had counts that no batch can have. All of the batch's counts are then ignored.
    pub(super) is_impossible: bool,
}

/// No batch has more groups: a larger number is damaged.
const MOST_GROUPS: u64 = 1 << 40;

impl Batch {
    /// Whether the counts can be those of one batch: dropped and kept groups were generated.
    fn is_possible(&self) -> bool {
        let judged = self.dropped.unwrap_or(0).saturating_add(self.kept.unwrap_or(0));
        judged.max(self.groups.unwrap_or(0)) <= MOST_GROUPS
            && self.groups.is_none_or(|groups| judged <= groups)
    }

    /// Adds the counts that another line has for the same batch.
    pub(super) fn merge(&mut self, other: Self) {
        if self.is_impossible {
            return;
        }
        self.groups = other.groups.or(self.groups);
        self.trajectories = other.trajectories.or(self.trajectories);
        self.dropped = other.dropped.or(self.dropped);
        self.kept = other.kept.or(self.kept);
        // The first one has a line of its own; others repeat it with fewer digits.
        self.share = self.share.or(other.share);
        if !other.reasons.is_empty() {
            self.reasons = other.reasons;
        }
        if other.is_impossible || !self.is_possible() {
            let groups = self.groups.filter(|groups| *groups <= MOST_GROUPS);
            *self = Self { groups, is_impossible: true, ..Self::default() };
        }
    }

    /// Share of the groups that was dropped.
    pub(super) fn filter_rate(&self) -> Option<f64> {
        self.share.or_else(|| {
            let (dropped, kept) = (self.dropped?, self.kept?);
            let all = dropped as f64 + kept as f64;
            (all > 0.0).then(|| dropped as f64 / all)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_judged_was_generated() {
        let of = |groups, dropped, kept| {
            let mut batch = Batch { groups, ..Batch::default() };
            batch.merge(Batch { dropped, share: Some(0.5), ..Batch::default() });
            batch.merge(Batch { kept, ..Batch::default() });
            batch
        };
        assert!(!of(Some(10), Some(6), Some(4)).is_impossible && !of(None, Some(6), None).is_impossible);
        for [groups, dropped, kept] in
            [[Some(10), Some(15), None], [Some(10), Some(6), Some(5)], [None, None, Some(u64::MAX)]]
        {
            let of = of(groups, dropped, kept);
            assert!(of.is_impossible && of.groups == groups, "{of:?}");
            assert_eq!((of.dropped, of.kept, of.filter_rate()), (None, None, None));
        }
    }
}
