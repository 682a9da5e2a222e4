//! One step, as far as a log has it.

use std::collections::BTreeMap;

use super::fact::Batch;
use super::format::VERL_COUNTS;

/// Figures of a step that are kept. Of a long log, only what is shown is held.
const FIGURES: [&str; 43] = [
    "actor/entropy",
    "actor/grad_norm",
    "actor/kl_loss",
    "actor/lr",
    "actor/pg_clipfrac",
    "actor/ppo_kl",
    "all/critic/score/mean",
    "all/frac_reward_zero_std",
    "all/pass_rate",
    "all/response_length/mean",
    "critic/rewards/mean",
    "critic/score/mean",
    "dynamic_sampling/num_gen_batches",
    "dynamic_sampling/target_prompt_num",
    "eval_reward",
    "groups/aborted",
    "groups/dropped",
    "groups/duplicated",
    "groups/failed",
    "groups/generated",
    "groups/kept_when_insufficient",
    "groups/stale",
    "groups/surplus",
    "groups/trained",
    "perf/gen_throughput",
    "perf/mfu",
    "perf/throughput",
    "perf/time_per_step",
    "perf/update_throughput",
    "response_length/clip_ratio",
    "response_length/mean",
    "schedule/max_lag",
    "step_time",
    "timing_s/step",
    "train/early_stopped",
    "train/filter_rate",
    "train/num_gen_batches",
    "train/num_kept_prompts",
    "training/filter_groups/discarded_surplus_samples",
    "training/filter_groups/evicted_samples",
    "training/off_policy/evicted_samples",
    "training/rollout_failure/evicted_samples",
    "trajectories/generated",
];
/// The same figures under the names of EasyR1, and of parts that have names of their own.
const PREFIXES: [&str; 4] = ["reward/", "train/num_dropped/", "val-core/", "val/"];
const DROPPED: &str = "train/num_dropped/";

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Step {
    /// Its number, if the log has it.
    pub(super) number: Option<u64>,
    pub(super) batches: Vec<Batch>,
    pub(super) values: BTreeMap<String, f64>,
    /// Latest number of groups that were ready.
    pub(super) ready: Option<u64>,
    /// Groups wanted.
    pub(super) target: Option<u64>,
    /// Groups of a batch, if the configuration was printed before.
    pub(super) gen_batch_size: Option<u64>,
    /// Groups that it trains on, from the same place.
    pub(super) train_batch_size: Option<u64>,
    /// Whether verl's default trainer counts what left its buffer. A missing count is then 0.
    pub(super) has_verl_counts: bool,
    /// When it ended, in seconds since an arbitrary day.
    pub(super) ended: Option<f64>,
    /// Whether lines name its batches. If not, they are counted by the accumulated groups.
    pub(super) names_batches: bool,
    /// Number of batches in attempts that were abandoned.
    pub(super) given_up: usize,
    pub(super) is_generated: bool,
}

impl Step {
    /// Whether nothing is known of it.
    pub(super) fn is_blank(&self) -> bool {
        self.batches.is_empty() && self.values.is_empty() && self.ready.is_none()
    }

    /// Adds figures that are shown.
    pub(super) fn add(&mut self, values: BTreeMap<String, f64>) {
        let is_shown = |name: &str| {
            FIGURES.binary_search(&name).is_ok() || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        };
        self.values.extend(values.into_iter().filter(|(name, _)| is_shown(name)));
    }

    /// The batch of a number, from 1. Those before it are made, too.
    pub(super) fn batch(&mut self, number: usize) -> &mut Batch {
        // A damaged line may name a number that would make millions of batches.
        let number = number.clamp(1, self.batches.len() + 1000);
        if self.batches.len() < number {
            self.batches.resize_with(number, Batch::default);
        }
        &mut self.batches[number - 1]
    }

    /// The first of these figures that exists and is finite.
    pub(super) fn figure(&self, names: &[&str]) -> Option<f64> {
        names.iter().find_map(|name| self.values.get(*name)).copied().filter(|value| value.is_finite())
    }

    fn count(&self, names: &[&str]) -> Option<u64> {
        self.figure(names).filter(|value| *value >= 0.0).map(|value| value.round() as u64)
    }

    pub(super) fn num_batches(&self) -> u64 {
        let told = self.count(&["train/num_gen_batches", "dynamic_sampling/num_gen_batches"]);
        told.unwrap_or(0).max(self.batches.len() as u64)
    }

    /// Number of groups kept, and of batches for which it is known; `false` if there were more batches.
    pub(super) fn kept(&self) -> (u64, u64, bool) {
        if let Some(kept) = self.count(&["train/num_kept_prompts"]) {
            return (kept, self.num_batches(), true);
        }
        if let Some(trained) = self.place("trained").filter(|_| self.has_verl_counts) {
            return (trained.saturating_add(self.kept_beyond_batch().unwrap_or(0)), 1, true);
        }
        let known: Vec<u64> = self.batches.iter().filter_map(|batch| batch.kept).collect();
        let is_whole = known.len() as u64 >= self.num_batches();
        let sum = sum(known.iter().copied());
        // A step that is trained was filled.
        let least = if is_whole || self.ready.is_none() { 0 } else { self.target.unwrap_or(0) };
        (sum.max(least), known.len() as u64, is_whole)
    }

    /// Groups kept in all batches but the last, if nothing is known about the last one except that it filled
    /// the step.
    pub(super) fn kept_before_last(&self) -> Option<u64> {
        self.count(&["train/num_gen_batches"]).filter(|batches| *batches > 0)?;
        if self.names_batches || self.count(&["train/num_kept_prompts"]).is_some() {
            return None;
        }
        let before = usize::try_from(self.num_batches()).ok()?.checked_sub(1)?;
        let (before, last) = self.batches.split_at_checked(before)?;
        let kept: Option<Vec<u64>> = before.iter().map(|batch| batch.kept).collect();
        kept.filter(|_| last.iter().all(|batch| batch.kept.is_none())).map(|kept| sum(kept.into_iter()))
    }

    /// The latest accumulated number belongs to the first batch of another attempt, by a process that was
    /// started again.
    pub(super) fn begin_again(&mut self) {
        self.batches = vec![Batch { kept: self.ready, ..Batch::default() }];
    }

    /// The sum over the batches, if it is known for each.
    fn of_batches(&self, count: impl Fn(&Batch) -> Option<u64>) -> Option<u64> {
        let counts: Option<Vec<u64>> = self.batches.iter().map(count).collect();
        counts.filter(|counts| !counts.is_empty()).map(|counts| sum(counts.into_iter()))
    }

    pub(super) fn dropped(&self) -> Option<u64> {
        self.place("dropped").or_else(|| self.of_batches(|batch| batch.dropped))
    }

    pub(super) fn generated(&self) -> Option<u64> {
        let settled = || {
            let places = ["dropped", "trained", "surplus", "stale", "failed"].map(|name| self.place(name));
            let all: Option<Vec<u64>> = places.into_iter().collect();
            all.filter(|_| self.has_verl_counts).map(|all| sum(all.into_iter()))
        };
        let told = self.count(&["groups/generated"]).or_else(settled);
        told.or_else(|| self.of_batches(|batch| batch.groups))
    }

    /// The step without the batches at its end that have no verdict yet, and their groups.
    pub(super) fn judged(&self) -> (Self, u64) {
        let is_judged = |batch: &Batch| {
            batch.dropped.is_some() || batch.kept.is_some() || batch.share.is_some() || batch.is_impossible
        };
        let end = self.batches.iter().rposition(is_judged).map_or(0, |last| last + 1);
        let (judged, rest) = self.batches.split_at(end);
        let unjudged = sum(rest.iter().filter_map(|batch| batch.groups));
        (Self { batches: judged.to_vec(), ..self.clone() }, unjudged)
    }

    pub(super) fn trajectories(&self) -> Option<u64> {
        self.count(&["trajectories/generated"]).or_else(|| self.of_batches(|batch| batch.trajectories))
    }

    /// Number of groups in a place of the accounting.
    pub(super) fn place(&self, name: &str) -> Option<u64> {
        self.count(&[&format!("groups/{name}")])
            .or_else(|| self.place_of_verl(name).filter(|_| self.has_verl_counts))
    }

    /// The same for verl's default trainer, whose step trains on a whole batch.
    fn place_of_verl(&self, name: &str) -> Option<u64> {
        if name == "trained" {
            return self.train_batch_size;
        }
        let (_, metric) = VERL_COUNTS.iter().find(|(place, _)| *place == name)?;
        self.count(&[metric]).or(Some(0))
    }

    /// Whether there is a count of verl's default trainer.
    pub(super) fn names_verl_counts(&self) -> bool {
        VERL_COUNTS.iter().any(|(_, metric)| self.values.contains_key(*metric))
    }

    /// Groups that verl's default trainer kept in addition to those of the batch.
    pub(super) fn kept_beyond_batch(&self) -> Option<u64> {
        let places = ["surplus", "stale"].map(|name| self.place(name));
        self.has_verl_counts.then(|| sum(places.into_iter().flatten()))
    }

    /// Groups dropped by reason.
    pub(super) fn reasons(&self) -> BTreeMap<String, u64> {
        let mut reasons: BTreeMap<String, u64> = self
            .values
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(DROPPED)?.to_owned(), value.max(0.0) as u64)))
            .collect();
        if reasons.is_empty() {
            for (reason, count) in self.batches.iter().flat_map(|batch| &batch.reasons) {
                let all = reasons.entry(reason.clone()).or_default();
                *all = all.saturating_add(*count);
            }
        }
        reasons
    }

    /// Sum of the filter rates of its batches, and their number.
    pub(super) fn filter_rates(&self) -> (f64, u64) {
        if self.has_verl_counts
            && let (Some(dropped), (kept, 1.., true)) = (self.dropped(), self.kept())
        {
            let judged = dropped.saturating_add(kept);
            return if judged > 0 { (dropped as f64 / judged as f64, 1) } else { (0.0, 0) };
        }
        let rates: Vec<f64> = self.batches.iter().filter_map(Batch::filter_rate).collect();
        if !rates.is_empty() {
            return (rates.iter().sum(), rates.len() as u64);
        }
        let num_batches = self.num_batches();
        self.figure(&["train/filter_rate"]).map_or((0.0, 0), |rate| (rate * num_batches as f64, num_batches))
    }

    /// Seconds that it took, if a figure has them.
    pub(super) fn seconds(&self) -> Option<f64> {
        self.figure(&["timing_s/step", "perf/time_per_step", "step_time"])
    }
}

/// A log may contain any number.
fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_in_order() {
        assert!(FIGURES.is_sorted());
    }

    #[test]
    fn a_damaged_number_takes_no_memory() {
        let mut step = Step::default();
        step.batch(usize::MAX).kept = Some(1);
        assert_eq!(step.batches.len(), 1000);
    }
}
