//! Summary of a filter's verdicts, as text and as JSON.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use tamis_core::figure::{counted, fixed, percent};
use tamis_core::filter::{DropReason, GroupFilter, GroupStatistics, Verdict};

use super::columns::RolloutColumns;

/// Summary of a filter's verdicts. `Display` is the text for the user, `Serialize` the JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FilterSummary {
    /// The filter's name.
    pub filter: &'static str,
    /// The filter's rule as text.
    pub rule: String,
    /// The metric's column or columns.
    pub metric: String,
    /// Rows read.
    pub num_rows: usize,
    /// Trajectories judged.
    pub num_trajectories: usize,
    /// Trajectories without a metric.
    pub num_unscored_trajectories: usize,
    /// Smallest group.
    pub min_group_size: usize,
    /// Largest group.
    pub max_group_size: usize,
    /// Groups.
    pub num_prompts: usize,
    /// Groups kept.
    pub num_kept: usize,
    /// Kept groups whose scored members, two or more, all have the same metric: a selection may keep some.
    pub num_kept_uniform: usize,
    /// Kept groups of one trajectory, in which a filter has nothing to compare.
    pub num_kept_single: usize,
    /// Groups dropped.
    pub num_dropped: usize,
    /// Dropped groups by reason; every reason is listed.
    pub dropped: Dropped,
    /// Kept / all groups.
    pub keep_rate: f64,
    /// Mean over groups of the metric's standard deviation in the group (ddof 0); `null` if nothing is
    /// scored.
    pub mean_std: Option<f64>,
    /// Mean of the metric over scored trajectories.
    pub mean_metric: Option<f64>,
    /// Share of scored trajectories that are correct, if the metric shows that.
    pub pass_rate: Option<f64>,
    /// Files written.
    pub outputs: Vec<Output>,
    /// Warnings about the groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Dropped groups by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Dropped {
    /// Every scored member correct.
    pub all_correct: usize,
    /// Every scored member wrong.
    pub all_wrong: usize,
    /// Uniform otherwise.
    pub uniform: usize,
    /// Too few members with a metric.
    pub unscored: usize,
    /// Mean below the range.
    pub below_range: usize,
    /// Mean above the range.
    pub above_range: usize,
    /// Groups of one.
    pub singleton: usize,
    /// A score of 0.
    pub zero_score: usize,
    /// Other groups were preferred.
    pub outside_pool: usize,
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Output {
    /// The file.
    pub path: PathBuf,
    /// Rows in it.
    pub num_rows: u64,
}

impl FilterSummary {
    pub(super) fn new(
        name: &'static str,
        filter: &GroupFilter,
        columns: &RolloutColumns,
        verdicts: &[Verdict],
        statistics: &[GroupStatistics],
        outputs: Vec<(PathBuf, u64)>,
    ) -> Self {
        let mut dropped = Dropped::default();
        for verdict in verdicts {
            let Verdict::Dropped(reason) = verdict else { continue };
            *match reason {
                DropReason::AllCorrect => &mut dropped.all_correct,
                DropReason::AllWrong => &mut dropped.all_wrong,
                DropReason::Uniform => &mut dropped.uniform,
                DropReason::Unscored => &mut dropped.unscored,
                DropReason::BelowRange => &mut dropped.below_range,
                DropReason::AboveRange => &mut dropped.above_range,
                DropReason::Singleton => &mut dropped.singleton,
                DropReason::ZeroScore => &mut dropped.zero_score,
                DropReason::OutsidePool => &mut dropped.outside_pool,
                // A schedule drops groups for this reason before they are whole; a filter sees only whole
                // groups.
                DropReason::Screened => continue,
            } += 1;
        }
        let num_prompts = verdicts.len();
        let num_kept = verdicts.iter().filter(|verdict| verdict.is_kept()).count();
        let is_uniform = |group: &GroupStatistics| group.num_scored > 1 && group.min >= group.max;
        let kept = verdicts.iter().zip(statistics).filter(|(verdict, _)| verdict.is_kept());
        let num_kept_uniform = kept.clone().filter(|(_, group)| is_uniform(group)).count();
        let num_kept_single = kept.filter(|(_, group)| group.size == 1).count();
        let num_trajectories = statistics.iter().map(|group| group.size).sum();
        let num_scored: usize = statistics.iter().map(|group| group.num_scored).sum();
        let scored = || statistics.iter().filter(|group| group.num_scored > 0);
        let mean = |sum: f64, count: usize| (count > 0).then(|| sum / count as f64);
        let num_correct: Option<usize> = statistics.iter().map(|group| group.num_correct).sum();
        Self {
            filter: name,
            rule: filter.rule().trim_end_matches(',').to_owned(),
            metric: columns.metric.clone(),
            num_rows: columns.num_rows(),
            num_trajectories,
            num_unscored_trajectories: num_trajectories - num_scored,
            min_group_size: statistics.iter().map(|group| group.size).min().unwrap_or(0),
            max_group_size: statistics.iter().map(|group| group.size).max().unwrap_or(0),
            num_prompts,
            num_kept,
            num_kept_uniform,
            num_kept_single,
            num_dropped: num_prompts - num_kept,
            dropped,
            keep_rate: mean(num_kept as f64, num_prompts).unwrap_or(0.0),
            mean_std: weighted_mean(scored().map(|group| (group.std, 1))),
            mean_metric: weighted_mean(scored().map(|group| (group.mean, group.num_scored))),
            pass_rate: num_correct.and_then(|correct| mean(correct as f64, num_scored)),
            outputs: outputs.into_iter().map(|(path, num_rows)| Output { path, num_rows }).collect(),
            warnings: columns.warnings.clone(),
        }
    }
}

/// Weighted mean of (number, weight) pairs; `None` if all weights are 0. The mean is finite even if the sum
/// overflows.
fn weighted_mean(parts: impl Iterator<Item = (f64, usize)> + Clone) -> Option<f64> {
    let count = parts.clone().map(|(_, weight)| weight).sum::<usize>() as f64;
    let sum: f64 = parts.clone().map(|(value, weight)| value * weight as f64).sum();
    let mean = || {
        if sum.is_finite() {
            sum / count
        } else {
            parts.map(|(value, weight)| value * (weight as f64 / count)).sum()
        }
    };
    (count > 0.0).then(mean)
}

impl fmt::Display for FilterSummary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |part: usize| percent(part as f64 / self.num_prompts.max(1) as f64);
        let sizes = if self.min_group_size == self.max_group_size {
            self.max_group_size.to_string()
        } else {
            format!("{} to {}", self.min_group_size, self.max_group_size)
        };
        writeln!(formatter, "Filter statistics ({} of {}):", self.filter, self.metric)?;
        writeln!(
            formatter,
            "  - Total prompts: {} ({}, {sizes} a prompt)",
            self.num_prompts,
            counted(self.num_trajectories, "trajectory")
        )?;
        let dropped = &self.dropped;
        writeln!(formatter, "  - Dropped: {} ({})", self.num_dropped, share(self.num_dropped))?;
        for (i, (reason, number)) in [
            ("all wrong", dropped.all_wrong),
            ("all correct", dropped.all_correct),
            ("other uniform", dropped.uniform),
            ("unscored", dropped.unscored),
            ("below range", dropped.below_range),
            ("above range", dropped.above_range),
            ("single", dropped.singleton),
            ("zero score", dropped.zero_score),
            ("outside pool", dropped.outside_pool),
        ]
        .into_iter()
        .enumerate()
        {
            if i < 2 || number > 0 {
                writeln!(formatter, "      {reason}: {number} ({})", share(number))?;
            }
        }
        let single = if self.num_kept_single > 0 { ", and groups of one" } else { "" };
        let kept = (self.num_kept, share(self.num_kept));
        write!(formatter, "  - Kept ({}{single}): {} ({})", self.rule, kept.0, kept.1)?;
        if self.num_kept_single > 0 {
            write!(
                formatter,
                "\n      of these groups of one: {} ({})",
                self.num_kept_single,
                share(self.num_kept_single)
            )?;
        }
        if self.num_kept_uniform > 0 {
            write!(
                formatter,
                "\n      of these uniform: {} ({})",
                self.num_kept_uniform,
                share(self.num_kept_uniform)
            )?;
        }
        if let Some(std) = self.mean_std {
            write!(formatter, "\n  - Mean std: {}", fixed(std, 3))?;
        }
        if let Some(mean) = self.mean_metric {
            write!(formatter, "\n  - Mean metric: {}", fixed(mean, 3))?;
        }
        if let Some(pass_rate) = self.pass_rate {
            write!(formatter, "\n  - Pass rate: {}", percent(pass_rate))?;
        }
        if self.num_unscored_trajectories > 0 {
            write!(formatter, "\n  - Unscored trajectories: {}", self.num_unscored_trajectories)?;
        }
        for output in &self.outputs {
            write!(formatter, "\n  - Wrote {} ({})", output.path.display(), counted(output.num_rows, "row"))?;
        }
        Ok(())
    }
}
