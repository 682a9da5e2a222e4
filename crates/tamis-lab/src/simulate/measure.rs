//! What is measured of a policy.

use std::collections::BTreeMap;

use serde::Serialize;
use tamis_config::SimulatedPolicy;
use tamis_core::filter::DropReason;
use tamis_core::schedule::{Accounting, StepReport, Tally};

use crate::simulate::completion::Completion;

/// Pass rates below which a prompt is hard, and above which it is easy.
const HARD: f64 = 0.1;
const EASY: f64 = 0.9;
/// Cells of a histogram of lengths for each factor of e.
const CELLS: f64 = 64.0;

/// What a policy came to, over the second half of its steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyResult {
    /// Its name.
    pub name: SimulatedPolicy,
    /// Steps that it trained; the numbers are of the second half of these.
    pub steps: u64,
    /// Why it ended before its last step, where it did.
    pub ended: Option<String>,
    /// Groups of a batch that the filter kept, each counted once, as a share of the batch: below 1 where
    /// copies or dropped groups fill it, or where it may be smaller.
    pub kept_share: Option<f64>,
    /// Passes over the data in all steps, prompts that were passed over included.
    pub passes: f64,
    /// Trajectories generated for each that was trained on.
    pub generated_per_kept: Option<f64>,
    /// Completion tokens generated for each that was trained on.
    pub tokens_per_kept: Option<f64>,
    /// Trajectories, in groups, that were generated for nothing for each group that was trained on, by cause.
    pub wasted: BTreeMap<&'static str, f64>,
    /// Seconds of a step; none without servers.
    pub step_time: Option<f64>,
    /// Share of the servers' slots that decoded.
    pub utilisation: Option<f64>,
    /// Mean lag of trained groups, in policy versions.
    pub lag_mean: Option<f64>,
    /// The greatest.
    pub lag_max: u64,
    /// Effective share of the weights of trained groups: 1 where all weigh the same.
    pub weight_ess: Option<f64>,
    /// Weighted share of trained groups of prompts with a pass rate below 0.1, what is cut being wrong.
    pub hard_share: Option<f64>,
    /// And above 0.9.
    pub easy_share: Option<f64>,
    /// Kolmogorov-Smirnov distance of the trained completions' lengths from those of all mixed groups that
    /// were started: 0 where none is preferred for its length.
    pub length_ks: Option<f64>,
}

/// Weights by length, in cells of the logarithm.
#[derive(Debug, Default, Clone)]
struct Lengths(Vec<f64>);

impl Lengths {
    fn add(&mut self, members: &[Completion], weight: f64) {
        for member in members {
            let cell = (f64::from(member.length).ln() * CELLS) as usize;
            if self.0.len() <= cell {
                self.0.resize(cell + 1, 0.0);
            }
            self.0[cell] += weight;
        }
    }

    /// The largest difference of two distribution functions.
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

/// Counts of the steps that are measured.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    /// Share of a group that is generated where it ends with its first members.
    screened_share: f64,
    train_batch_size: usize,
    accounting: Accounting,
    tally: Tally,
    /// Steps that were trained: attempts that were given up are a part of the next.
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
    /// Of batches of so many groups, of which this share is generated where they end with their first
    /// members.
    pub(crate) fn new(train_batch_size: usize, screened_share: f64) -> Self {
        Self { screened_share, train_batch_size, ..Self::default() }
    }

    /// A group was started whose members score differently, and was taken with that probability.
    pub(crate) fn start(&mut self, members: &[Completion], inclusion: f64) {
        self.started.add(members, 1.0 / inclusion);
    }

    pub(crate) fn train(&mut self, members: &[Completion], rate: f64, lag: u64, weight: f64) {
        self.trained.add(members, weight);
        self.groups += 1.0;
        self.lags += lag as f64;
        self.weights += weight;
        self.squares += weight * weight;
        self.hard += if rate < HARD { weight } else { 0.0 };
        self.easy += if rate > EASY { weight } else { 0.0 };
    }

    /// A step was closed, or an attempt at it given up.
    pub(crate) fn close(&mut self, report: &StepReport, is_trained: bool) {
        self.accounting.append(&report.accounting);
        self.tally.append(&report.all);
        self.steps += u64::from(is_trained);
        self.lag_max = self.lag_max.max(report.max_lag);
    }

    /// The result, after so many passes over the data: over so many seconds, of which the slots decoded so
    /// many, of so many.
    pub(crate) fn result(
        &self,
        name: SimulatedPolicy,
        steps: u64,
        passes: f64,
        time: Option<(f64, f64, usize)>,
    ) -> PolicyResult {
        let Accounting { generated, trained, surplus, stale, failed, aborted, .. } = self.accounting;
        let has_any = trained.groups > 0;
        let mut wasted = BTreeMap::new();
        let dropped = self.tally.dropped_by().map(|(reason, groups)| {
            let share = if reason == DropReason::Screened { self.screened_share } else { 1.0 };
            (reason.name(), share * groups as f64 / trained.groups as f64)
        });
        // A group that was given up may have been begun with a part of its members.
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
            step_time: time.filter(|_| self.steps > 0).map(|(seconds, ..)| seconds / self.steps as f64),
            utilisation: time
                .filter(|(seconds, ..)| *seconds > 0.0)
                .map(|(seconds, busy, slots)| busy / seconds / slots as f64),
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
            let members: Vec<Completion> =
                lengths.iter().map(|&length| Completion { length, is_correct: true }).collect();
            all.add(&members, 2.0);
            all
        };
        assert_eq!(of(&[1, 10, 100, 1000]).distance(&of(&[1, 10, 100, 1000])), Some(0.0));
        // Half of the one is above all of the other.
        assert_eq!(of(&[1, 10, 100, 1000]).distance(&of(&[1, 10])), Some(0.5));
        assert_eq!(of(&[]).distance(&of(&[1])), None);
    }
}
