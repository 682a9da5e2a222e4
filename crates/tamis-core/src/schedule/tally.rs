//! Counts of a round, a step or an epoch: verdicts by reason, failures, and the sums from which rates and
//! means follow.

use serde::{Deserialize, Serialize};

use super::selector::Side;
use super::{FirstMembers, GroupSummary, Spent};
use crate::filter::{DropReason, Verdict};

/// Verdicts on the groups of a round, a step or an epoch, and the statistics of their metric.
///
/// Groups are added in dispatch order, so the sums do not depend on which finished first.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Groups generated: kept + dropped + failed + aborted.
    pub groups: u64,
    /// Trajectories in them.
    pub trajectories: u64,
    /// Completion tokens in them.
    pub tokens: u64,
    /// Kept by the filter.
    pub kept: u64,
    /// Dropped: every scored member correct.
    pub all_correct: u64,
    /// Dropped: every scored member wrong.
    pub all_wrong: u64,
    /// Dropped: uniform otherwise.
    pub uniform: u64,
    /// Dropped: too few members with a metric.
    pub unscored: u64,
    /// Dropped: mean below the range.
    pub below_range: u64,
    /// Dropped: mean above the range.
    pub above_range: u64,
    /// Dropped: groups of one.
    pub singleton: u64,
    /// Dropped: score of 0.
    pub zero_score: u64,
    /// Dropped: other groups of the round were preferred.
    pub outside_pool: u64,
    /// Dropped: the first members alike, and the group ended with them.
    pub screened: u64,
    /// Those of them whose first members are all correct.
    pub screened_correct: u64,
    /// Those of them whose first members are all wrong.
    pub screened_wrong: u64,
    /// Generation failed for good.
    pub failed: u64,
    /// Still generating when the run ended.
    pub aborted: u64,
    /// Groups in which all texts are the same, whatever their verdict.
    pub identical_in_text: u64,
    /// Scored trajectories.
    pub scored: u64,
    /// Scored trajectories of groups whose metric has an outcome scale.
    pub rated: u64,
    /// Those of them that are correct.
    pub correct: u64,
    /// Σ over groups with at least two such members of c(c − 1)/(k(k − 1)): an unbiased estimate of each
    /// prompt's squared pass rate. If groups begin with some of their members, only those count: every group
    /// has the same number of them.
    pub pairs_correct: f64,
    /// Σ over the same groups of c/k.
    pub pass_rates: f64,
    /// Number of those groups.
    pub paired_groups: u64,
    /// Σ of the metric over scored trajectories.
    pub metric_sum: f64,
    /// Σ of group deviations (ddof 0) over groups with a scored member.
    pub std_sum: f64,
    /// Number of groups with a scored member.
    pub scored_groups: u64,
}

/// A sum that stays finite in f64, so that a state with enormous rewards can be written as JSON and read
/// back.
fn finite_sum(a: f64, b: f64) -> f64 {
    (a + b).clamp(f64::MIN, f64::MAX)
}

impl Tally {
    /// Adds a judged group.
    pub fn add_judged(&mut self, verdict: Verdict, summary: &GroupSummary) {
        self.groups += 1;
        self.trajectories += u64::from(summary.num_trajectories);
        self.tokens += summary.spent.tokens;
        let scored = u64::from(summary.num_scored);
        self.scored += scored;
        self.identical_in_text += u64::from(summary.is_identical_in_text);
        if let (Some(mean), Some(std)) = (summary.mean, summary.std) {
            self.metric_sum = finite_sum(self.metric_sum, mean * scored as f64);
            self.std_sum = finite_sum(self.std_sum, std);
            self.scored_groups += 1;
        }
        if let Some(correct) = summary.num_correct {
            let correct = u64::from(correct);
            self.rated += scored;
            self.correct += correct;
        }
        if let FirstMembers { num_scored: scored @ 2.., num_correct: Some(correct) } = summary.unbiased() {
            let (scored, correct) = (u64::from(scored), u64::from(correct));
            self.paired_groups += 1;
            self.pass_rates += correct as f64 / scored as f64;
            self.pairs_correct +=
                (correct * correct.saturating_sub(1)) as f64 / (scored * (scored - 1)) as f64;
        }
        let place = match verdict {
            Verdict::Kept => &mut self.kept,
            Verdict::Dropped(DropReason::AllCorrect) => &mut self.all_correct,
            Verdict::Dropped(DropReason::AllWrong) => &mut self.all_wrong,
            Verdict::Dropped(DropReason::Uniform) => &mut self.uniform,
            Verdict::Dropped(DropReason::Unscored) => &mut self.unscored,
            Verdict::Dropped(DropReason::BelowRange) => &mut self.below_range,
            Verdict::Dropped(DropReason::AboveRange) => &mut self.above_range,
            Verdict::Dropped(DropReason::Singleton) => &mut self.singleton,
            Verdict::Dropped(DropReason::ZeroScore) => &mut self.zero_score,
            Verdict::Dropped(DropReason::OutsidePool) => &mut self.outside_pool,
            Verdict::Dropped(DropReason::Screened) => &mut self.screened,
        };
        *place += 1;
        if let (Verdict::Dropped(DropReason::Screened), Some(correct)) = (verdict, summary.num_correct) {
            match Side::of(correct, summary.num_scored) {
                Some(Side::Easy) => self.screened_correct += 1,
                Some(Side::Hard) => self.screened_wrong += 1,
                None => {}
            }
        }
    }

    /// Adds a group whose generation failed for good, with the number of begun members and the amount
    /// generated for it.
    pub fn add_failed(&mut self, num_members: usize, spent: Spent) {
        self.groups += 1;
        self.trajectories += num_members as u64;
        self.tokens += spent.tokens;
        self.failed += 1;
    }

    /// Adds a group that was aborted before it was judged, with the number of begun members.
    pub fn add_aborted(&mut self, num_members: usize) {
        self.groups += 1;
        self.trajectories += num_members as u64;
        self.aborted += 1;
    }

    /// Adds another tally.
    pub fn append(&mut self, other: &Self) {
        self.groups += other.groups;
        self.trajectories += other.trajectories;
        self.tokens += other.tokens;
        self.kept += other.kept;
        self.all_correct += other.all_correct;
        self.all_wrong += other.all_wrong;
        self.uniform += other.uniform;
        self.unscored += other.unscored;
        self.below_range += other.below_range;
        self.above_range += other.above_range;
        self.singleton += other.singleton;
        self.zero_score += other.zero_score;
        self.outside_pool += other.outside_pool;
        self.screened += other.screened;
        self.screened_correct += other.screened_correct;
        self.screened_wrong += other.screened_wrong;
        self.failed += other.failed;
        self.aborted += other.aborted;
        self.identical_in_text += other.identical_in_text;
        self.scored += other.scored;
        self.rated += other.rated;
        self.correct += other.correct;
        self.pairs_correct += other.pairs_correct;
        self.pass_rates += other.pass_rates;
        self.paired_groups += other.paired_groups;
        self.metric_sum = finite_sum(self.metric_sum, other.metric_sum);
        self.std_sum = finite_sum(self.std_sum, other.std_sum);
        self.scored_groups += other.scored_groups;
    }

    /// Groups that the filter dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped_by().iter().map(|(_, number)| number).sum()
    }

    /// Dropped groups by reason.
    pub fn dropped_by(&self) -> [(DropReason, u64); 10] {
        DropReason::ALL.map(|reason| {
            let number = match reason {
                DropReason::AllCorrect => self.all_correct,
                DropReason::AllWrong => self.all_wrong,
                DropReason::Uniform => self.uniform,
                DropReason::Unscored => self.unscored,
                DropReason::BelowRange => self.below_range,
                DropReason::AboveRange => self.above_range,
                DropReason::Singleton => self.singleton,
                DropReason::ZeroScore => self.zero_score,
                DropReason::OutsidePool => self.outside_pool,
                DropReason::Screened => self.screened,
            };
            (reason, number)
        })
    }

    /// Number of judged groups (all but aborted).
    pub fn judged(&self) -> u64 {
        self.groups - self.aborted
    }

    /// Kept / generated groups, without aborted ones; `None` if there are none.
    pub fn keep_rate(&self) -> Option<f64> {
        (self.judged() > 0).then(|| self.kept as f64 / self.judged() as f64)
    }

    /// Dropped / generated groups, without aborted ones; `None` if there are none.
    pub fn filter_rate(&self) -> Option<f64> {
        (self.judged() > 0).then(|| self.dropped() as f64 / self.judged() as f64)
    }

    /// Mean over generated groups of the metric's deviation within the group (ddof 0); `None` if no group has
    /// a scored member.
    pub fn mean_std(&self) -> Option<f64> {
        (self.scored_groups > 0).then(|| self.std_sum / self.scored_groups as f64)
    }

    /// Mean of the metric over scored trajectories.
    pub fn mean_metric(&self) -> Option<f64> {
        (self.scored > 0).then(|| self.metric_sum / self.scored as f64)
    }

    /// Mean over groups of the share of correct members, from the members that give an unbiased estimate;
    /// `None` if no group has two of these.
    pub fn mean_pass_rate(&self) -> Option<f64> {
        (self.paired_groups > 0).then(|| self.pass_rates / self.paired_groups as f64)
    }

    /// Share of scored trajectories that are correct, if the metric has outcomes. If groups begin with some
    /// of their members, this is not the pass rate of the data: groups with unlike members have more members.
    pub fn pass_rate(&self) -> Option<f64> {
        (self.rated > 0).then(|| self.correct as f64 / self.rated as f64)
    }
}
