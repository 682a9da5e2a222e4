//! verl's filter-group log lines in `run.log`, which programs count: `Generated batch N`,
//! `Filtered (std=0): n (p%)`, `Kept (std>0): n prompts`. In rounds, a batch is a round. Streaming has no
//! rounds: the groups that settled in a step, in the order of dispatch, are cut evenly into as many batches
//! as `train/num_gen_batches` counts. The words are the same for every filter. Without a filter only the
//! first line is written.

use std::fmt::Write as _;

use tamis_core::filter::DropReason;
use tamis_core::schedule::{StepReport, Tally};
use tamis_rollout::{Fate, Record};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct GeneratedBatch {
    pub(super) groups: u64,
    /// Groups that were abandoned before the filter judged them.
    pub(super) given_up: u64,
    pub(super) dropped: u64,
    pub(super) kept: u64,
    /// Dropped groups that ended with their first members.
    pub(super) screened: u64,
    pub(super) first_members: u64,
}

impl GeneratedBatch {
    pub(super) fn of_round(tally: &Tally) -> Self {
        Self {
            groups: tally.groups,
            given_up: tally.aborted,
            dropped: tally.dropped(),
            kept: tally.kept,
            ..Self::default()
        }
    }

    /// Counts of some groups that settled in a step.
    fn of_groups(records: &[&Record]) -> Self {
        let mut batch = Self { groups: records.len() as u64, ..Self::default() };
        for record in records {
            match &record.fate {
                Fate::Aborted => batch.given_up += 1,
                Fate::Dropped(reason) => {
                    batch.dropped += 1;
                    if *reason == DropReason::Screened {
                        batch.screened += 1;
                        batch.first_members += record.group.trajectories.len() as u64;
                    }
                }
                Fate::KeptWhenInsufficient(_) => batch.dropped += 1,
                Fate::Failed(_) | Fate::Duplicated => {}
                Fate::Trained | Fate::Surplus | Fate::Stale | Fate::Carried => batch.kept += 1,
            }
        }
        batch
    }

    /// The line that counts the batch.
    pub(super) fn line(&self, number: u64, group_size: usize) -> String {
        let whole = self.groups.saturating_sub(self.screened);
        let trajectories = whole * group_size as u64 + self.first_members;
        format!("Generated batch {number}, {} prompts, {trajectories} trajectories", self.groups)
    }

    /// The lines about the filter's verdicts.
    pub(super) fn verdicts(&self) -> String {
        let mut text = String::new();
        let judged = self.groups - self.given_up;
        // A share of nothing is undefined.
        if judged > 0 {
            let share = 100.0 * self.dropped as f64 / judged as f64;
            let _ = writeln!(text, "Filtered (std=0): {} ({share:.2}%)", self.dropped);
        }
        let _ = write!(text, "Kept (std>0): {} prompts", self.kept);
        text
    }
}

/// The lines about the groups that settled in a streaming step.
pub(super) fn lines_of_step(report: &StepReport, mut settled: Vec<&Record>, group_size: usize) -> String {
    settled.sort_by_key(|record| record.group.id);
    let rounds = usize::try_from(report.rounds).unwrap_or(usize::MAX);
    // Groups in flight from the step before may settle in a step that begins none.
    let num_batches = if settled.is_empty() { rounds } else { rounds.max(1) };
    let mut lines = Vec::new();
    for place in 0..num_batches {
        let bound = |place: usize| settled.len() * place / num_batches;
        let groups = settled.get(bound(place)..bound(place + 1)).unwrap_or_default();
        let batch = GeneratedBatch::of_groups(groups);
        lines.push(batch.line(place as u64 + 1, group_size));
        if report.is_filtered {
            lines.push(batch.verdicts());
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_batch() {
        let batch =
            GeneratedBatch { groups: 9, given_up: 1, dropped: 5, kept: 2, ..GeneratedBatch::default() };
        assert_eq!(batch.line(3, 4), "Generated batch 3, 9 prompts, 36 trajectories");
        assert_eq!(batch.verdicts(), "Filtered (std=0): 5 (62.50%)\nKept (std>0): 2 prompts");
        // Two members each of three groups were generated.
        let screened = GeneratedBatch { screened: 3, first_members: 6, ..batch };
        assert_eq!(screened.line(3, 4), "Generated batch 3, 9 prompts, 30 trajectories");
        let given_up = GeneratedBatch { groups: 2, given_up: 2, ..GeneratedBatch::default() };
        assert_eq!(given_up.verdicts(), "Kept (std>0): 0 prompts", "there is no share of nothing");
    }

    #[test]
    fn a_streaming_step_has_as_many_batches_as_it_counts() {
        let report = StepReport { rounds: 2, is_filtered: true, ..StepReport::default() };
        let nothing = lines_of_step(&report, Vec::new(), 4);
        assert_eq!(nothing.lines().count(), 4, "{nothing}");
        let none = lines_of_step(&StepReport::default(), Vec::new(), 4);
        assert_eq!(none, "");
    }
}
