//! Measures a policy over the steps of a simulated run.

use std::collections::BTreeMap;

use serde::Serialize;
use tamis_config::SimulatedPolicy;
use tamis_core::filter::DropReason;
use tamis_core::schedule::{Accounting, StepReport, Tally};

use crate::simulate::completion::SimulatedCompletion;

/// Pass rates below which a prompt is hard, and above which it is easy.
const HARD: f64 = 0.1;
const EASY: f64 = 0.9;
/// Cells of a histogram of lengths for each factor of e.
const CELLS: f64 = 64.0;

/// Results of a policy over the second half of its steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyResult {
    /// Its name.
    pub name: SimulatedPolicy,
    /// Trained steps. The numbers cover the second half of these.
    pub steps: u64,
    /// Why it ended before its last step, if it did.
    pub ended: Option<String>,
    /// Groups of a batch that the filter kept, each counted once, as a share of the batch size. Below 1 if
    /// copies or dropped groups fill the batch, or if it may be smaller.
    pub kept_share: Option<f64>,
    /// Passes over the data in all steps, including skipped prompts.
    pub passes: f64,
    /// Generated trajectories per trained trajectory.
    pub generated_per_kept: Option<f64>,
    /// Generated completion tokens per trained completion token.
    pub tokens_per_kept: Option<f64>,
    /// Trajectories generated in vain by cause, in groups per trained group.
    pub wasted: BTreeMap<&'static str, f64>,
    /// Seconds per step; `None` without servers.
    pub step_time: Option<f64>,
    /// Share of the servers' slots that decoded.
    pub utilisation: Option<f64>,
    /// Mean lag of trained groups, in policy versions.
    pub lag_mean: Option<f64>,
    /// Greatest lag of a trained group, in policy versions.
    pub lag_max: u64,
    /// Effective sample size of the weights of trained groups, as a share: 1 if all weights are equal.
    pub weight_ess: Option<f64>,
    /// Weighted share of trained groups whose prompt's pass rate is below 0.1. Truncated completions are
    /// wrong.
    pub hard_share: Option<f64>,
    /// The same share for pass rates above 0.9.
    pub easy_share: Option<f64>,
    /// Kolmogorov-Smirnov distance between the lengths of trained completions and those of all mixed groups
    /// that were started. 0 if selection does not depend on length.
    pub length_ks: Option<f64>,
}

/// Weights by length, in logarithmic cells.
#[derive(Debug, Default, Clone)]
struct Lengths(Vec<f64>);

impl Lengths {
    fn add(&mut self, members: &[SimulatedCompletion], weight: f64) {
        for member in members {
            let cell = (f64::from(member.length).ln() * CELLS) as usize;
            if self.0.len() <= cell {
                self.0.resize(cell + 1, 0.0);
            }
            self.0[cell] += weight;
        }
    }

    /// Largest difference between the two distribution functions.
    fn distance(&self, other: &Self) -> Option<f64> {
        let totals: [f64; 2] = [self.0.iter().sum(), other.0.iter().sum()];
        if totals.iter().any(|total| *total <= 0.0) {
            return None;
        }
        let (mut below, mut most) = ([0.0, 0.0], 0.0_f64);
        for cell in 0..self.0.len().max(other.0.len()) {
            for (below, lengths) in below.iter_mut().zip([self, other]) {
                *below += lengths.0.get(cell).copied().unwrap_or(0.0);
            }
            most = most.max((below[0] / totals[0] - below[1] / totals[1]).abs());
        }
        Some(most)
    }
}

/// Simulated time of the measured steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlayedTime {
    pub(crate) seconds: f64,
    /// Seconds that slots decoded.
    pub(crate) busy: f64,
    /// Number of slots.
    pub(crate) slots: usize,
}

/// Counts over the measured steps.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    /// Share of a group that is generated if it ends with its first members.
    screened_share: f64,
    train_batch_size: usize,
    accounting: Accounting,
    tally: Tally,
    /// Trained steps. A discarded attempt counts toward the next step.
    steps: u64,
    lag_max: u64,
    lags: f64,
    groups: f64,
    weights: f64,
    squares: f64,
    hard: f64,
    easy: f64,
    started: Lengths,
    trained: Lengths,
}

impl Measure {
    /// `screened_share` is the share of a group that is generated if it ends with its first members.
    pub(crate) fn new(train_batch_size: usize, screened_share: f64) -> Self {
        Self { screened_share, train_batch_size, ..Self::default() }
    }

    /// Counts a started group whose members score differently. `inclusion` is the probability with which its
    /// prompt was chosen.
    pub(crate) fn start(&mut self, members: &[SimulatedCompletion], inclusion: f64) {
        self.started.add(members, 1.0 / inclusion);
    }

    pub(crate) fn train(&mut self, members: &[SimulatedCompletion], rate: f64, lag: u64, weight: f64) {
        self.trained.add(members, weight);
        self.groups += 1.0;
        self.lags += lag as f64;
        self.weights += weight;
        self.squares += weight * weight;
        self.hard += if rate < HARD { weight } else { 0.0 };
        self.easy += if rate > EASY { weight } else { 0.0 };
    }

    /// Counts a closed step or a discarded attempt.
    pub(crate) fn close(&mut self, report: &StepReport, is_trained: bool) {
        self.accounting.append(&report.accounting);
        self.tally.append(&report.all);
        self.steps += u64::from(is_trained);
        self.lag_max = self.lag_max.max(report.max_lag);
    }

    /// The result. `passes` is the number of passes over the data.
    pub(crate) fn result(
        &self,
        name: SimulatedPolicy,
        steps: u64,
        passes: f64,
        time: Option<PlayedTime>,
    ) -> PolicyResult {
        let Accounting { generated, trained, surplus, stale, failed, aborted, .. } = self.accounting;
        let has_any = trained.groups > 0;
        let mut wasted = BTreeMap::new();
        let dropped = self.tally.dropped_by().map(|(reason, groups)| {
            let share = if reason == DropReason::Screened { self.screened_share } else { 1.0 };
            (reason.name(), share * groups as f64 / trained.groups as f64)
        });
        // A discarded group may have only some of its members.
        let places = [("surplus", surplus), ("stale", stale), ("failed", failed), ("aborted", aborted)]
            .map(|(cause, count)| (cause, count.trajectories as f64 / trained.trajectories as f64));
        for (cause, share) in dropped.into_iter().chain(places) {
            if has_any && share > 0.0 {
                wasted.insert(cause, share);
            }
        }
        let of_weights = |part: f64| (self.weights > 0.0).then(|| part / self.weights);
        PolicyResult {
            name,
            steps,
            ended: None,
            kept_share: (self.steps > 0)
                .then(|| trained.groups as f64 / (self.steps as f64 * self.train_batch_size as f64)),
            passes,
            generated_per_kept: has_any.then(|| generated.trajectories as f64 / trained.trajectories as f64),
            tokens_per_kept: (trained.tokens > 0).then(|| generated.tokens as f64 / trained.tokens as f64),
            wasted,
            step_time: time.filter(|_| self.steps > 0).map(|time| time.seconds / self.steps as f64),
            utilisation: time
                .filter(|time| time.seconds > 0.0)
                .map(|time| time.busy / time.seconds / time.slots as f64),
            lag_mean: (self.groups > 0.0).then(|| self.lags / self.groups),
            lag_max: self.lag_max,
            weight_ess: (self.squares > 0.0)
                .then(|| self.weights * self.weights / (self.groups * self.squares)),
            hard_share: of_weights(self.hard),
            easy_share: of_weights(self.easy),
            length_ks: self.trained.distance(&self.started),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_as_far_apart_as_their_distribution_functions() {
        let of = |lengths: &[u32]| {
            let mut all = Lengths::default();
            let members: Vec<SimulatedCompletion> =
                lengths.iter().map(|&length| SimulatedCompletion { length, is_correct: true }).collect();
            all.add(&members, 2.0);
            all
        };
        assert_eq!(of(&[1, 10, 100, 1000]).distance(&of(&[1, 10, 100, 1000])), Some(0.0));
        // Half of one distribution lies above all of the other.
        assert_eq!(of(&[1, 10, 100, 1000]).distance(&of(&[1, 10])), Some(0.5));
        assert_eq!(of(&[]).distance(&of(&[1])), None);
    }
}
