//! The choices of a run's schedule.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{RoundLimit, RoundSize};
use crate::choice;
use crate::fault;
use crate::fault::Fault;
use crate::filter::{GroupFilter, Metric};

choice! {
    /// What happens if `max_num_gen_batches` rounds have not filled the batch of a step.
    pub enum OnLimit {
        /// The run stops with a diagnosis, as in verl.
        Error = "error",
        /// The step trains on the groups that it has, as in EasyR1's dynamic sampling.
        UsePartial = "use_partial",
        /// The step discards its groups, and the next step starts.
        Skip = "skip",
        /// The step trains on the groups that it has, and fills the rest of the batch with groups that the
        /// filter dropped in this step, first dispatched first (slime's `keep_when_insufficient`); never with
        /// unscored ones. They are counted as `kept_when_insufficient`. Not with `mode: streaming`.
        KeepDropped = "keep_dropped",
        /// The step trains on the groups that it has, and fills the rest of the batch with copies of them;
        /// numbers of copies differ by at most one (SkyRL's `dynamic_sampling.type: replace`). They are
        /// counted as `duplicated`. Not with `mode: streaming`.
        Duplicate = "duplicate",
    }
}

/// What happens if a round keeps no group while the batch is not full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnEmptyRound {
    /// Generates again, up to this many empty rounds in a row (`None`: as often as the limit on rounds
    /// allows), then stops.
    Retry {
        /// Allowed number of empty rounds in a row.
        times: Option<u32>,
    },
    /// Ends this attempt at the step and starts another.
    Skip,
    /// The run stops with a diagnosis.
    Error,
}

impl Default for OnEmptyRound {
    fn default() -> Self {
        Self::Retry { times: None }
    }
}

choice! {
    /// What happens if the data of an epoch ends before the batch is full.
    pub enum OnExhausted {
        /// The next epoch continues to fill the batch.
        NextEpoch = "next_epoch",
        /// The step trains on the groups that it has.
        UsePartial = "use_partial",
        /// The run ends after the last full step.
        Stop = "stop",
    }
}

/// What happens to kept groups that the step does not need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Surplus {
    /// Discarded.
    #[default]
    Discard,
    /// Kept for the next step, with the log-probabilities of the policy that sampled them.
    Carry {
        /// A group whose lag would be greater is discarded as stale.
        max_lag: u64,
    },
}

choice! {
    /// What happens to samples in flight while servers load new weights.
    pub enum InFlight {
        /// Samples in flight are finished first, with the old weights. Nothing new is started meanwhile.
        Wait = "wait",
        /// Samples in flight pause and continue with the new weights. Each token records the weights that
        /// sampled it.
        Keep = "keep",
        /// Samples in flight are aborted and sampled again.
        Abort = "abort",
    }
}

choice! {
    /// Order in which kept groups fill the batch.
    pub enum FillOrder {
        /// In the order of dispatch, without a bias towards short completions.
        Dispatch = "dispatch",
        /// In the order in which groups finish.
        Completion = "completion",
    }
}

/// Settings of a scheduler in every mode. `size`, `rounds_in_flight` and `refill` apply only to rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSettings {
    /// Number of groups that a step trains on.
    pub train_batch_size: usize,
    /// Number of prompts that a round draws; with [`RoundSize::Deficit`] only the first round of the run.
    pub gen_batch_size: usize,
    /// Whether every round draws this many.
    #[serde(default)]
    pub size: RoundSize,
    /// Rounds that are generated at once, at least 1. With more than 1, the prompts of the next rounds start
    /// while a round is still generating. Rounds are still judged in order. Groups that are not needed once
    /// the batch is full are aborted and their prompts go back (or they are carried, if surplus is). The
    /// trained groups do not depend on this number.
    #[serde(default = "one")]
    pub rounds_in_flight: usize,
    /// n, the number of members of a group.
    pub group_size: usize,
    /// Number of members with which a group begins, in a streaming schedule. The others follow once two of
    /// these differ by the filter. If all of these are alike, the group ends with them and is dropped as
    /// [`DropReason::Screened`](crate::filter::DropReason::Screened). `None`: all members begin at once. A
    /// kept group then costs (n − n₀ + n₀ / k(n₀)) / n instead of 1 / k(n) groups; k(m) is the share of
    /// prompts whose first m members differ. Prompts are then trained on in proportion to k(n₀ | p) instead
    /// of k(n | p).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub screen_first: Option<usize>,
    /// Filter that judges the groups. `None`: one round a step, which trains on every group that did not
    /// fail.
    pub filter: Option<GroupFilter>,
    /// Whether rounds repeat until the batch is full. If not: one round a step, which trains on the surviving
    /// groups.
    pub refill: bool,
    /// Rounds that a step may take; with [`RoundSize::Deficit`] and in streaming schedules, their prompts.
    pub max_num_gen_batches: RoundLimit,
    /// What happens at that limit.
    pub on_limit: OnLimit,
    /// Seed that selects the groups to copy ([`OnLimit::Duplicate`]).
    #[serde(default)]
    pub seed: u64,
    /// What happens if a round keeps nothing.
    pub on_empty_round: OnEmptyRound,
    /// What happens when the data ends.
    pub on_exhausted: OnExhausted,
    /// What happens to surplus.
    pub surplus: Surplus,
    /// Order in which kept groups fill the batch.
    pub order: FillOrder,
    /// The run stops after more than this many skipped steps in a row.
    pub max_skipped_steps: u32,
    /// The run finishes after this many steps.
    pub total_steps: Option<u64>,
    /// The run finishes after this many passes over the data.
    pub total_epochs: Option<u64>,
    /// Number of prompts in the data, if known. Epochs that keep nothing end the run once this many groups
    /// were judged in them; if prompts are passed over, not before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_prompts: Option<u64>,
    /// The filter's metric. Only its scale of outcomes is used; its values come with the groups.
    pub metric: Metric,
    /// The sampling temperature, if known; for diagnoses.
    pub temperature: Option<f64>,
    /// Whether top_k, top_p or min_p restrict the sampling, if known; for diagnoses.
    #[serde(default)]
    pub cuts_sampling: Option<bool>,
    /// Whether the gold answers were scored at the start, if known; for diagnoses.
    #[serde(default)]
    pub scores_gold: Option<bool>,
    /// The key that sets the difficulty of prompts, for a diagnosis (`data.train`, ...).
    #[serde(default = "default_difficulty")]
    pub difficulty_in: String,
}

fn one() -> usize {
    1
}

/// The settings contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// A streaming schedule has no rounds whose groups could be compared.
    #[error("the filter {filter} compares the groups of a round, but a streaming schedule has none")]
    PoolFilter {
        /// The filter.
        filter: &'static str,
    },
    /// Any other contradiction.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl ScheduleSettings {
    /// The default rounds of tamis: filter and refill on, no limit on rounds (see the mode `rounds` for what
    /// still ends a run), surplus discarded, dispatch order, the next epoch begins at the end of the data.
    pub fn new(train_batch_size: usize, group_size: usize) -> Self {
        Self {
            train_batch_size,
            gen_batch_size: train_batch_size,
            size: RoundSize::default(),
            rounds_in_flight: 1,
            group_size,
            screen_first: None,
            filter: Some(GroupFilter::default()),
            refill: true,
            max_num_gen_batches: RoundLimit::None,
            on_limit: OnLimit::default(),
            seed: 0,
            on_empty_round: OnEmptyRound::default(),
            on_exhausted: OnExhausted::default(),
            surplus: Surplus::default(),
            order: FillOrder::default(),
            max_skipped_steps: 10,
            total_steps: None,
            total_epochs: None,
            num_prompts: None,
            metric: Metric::from("acc"),
            temperature: None,
            cuts_sampling: None,
            scores_gold: None,
            difficulty_in: default_difficulty(),
        }
    }

    /// verl's `algorithm.filter_groups` with `enable=True`: an error at the limit (no limit if ≤ 0), surplus
    /// discarded, rounds continue over the end of an epoch.
    ///
    /// # Differs from
    /// verl if an epoch keeps no group at all: verl continues to the last epoch, this stops.
    pub fn verl(
        train_batch_size: usize,
        gen_batch_size: usize,
        group_size: usize,
        max_num_gen_batches: i64,
    ) -> Self {
        let max_num_gen_batches = RoundLimit::of(max_num_gen_batches);
        Self { gen_batch_size, max_num_gen_batches, ..Self::new(train_batch_size, group_size) }
    }

    /// EasyR1's `algorithm.use_dynamic_sample` (its limit is `dynamic_sample_max_gen_batches`, 3 by default).
    /// At the limit and at the end of the data the kept groups are trained on; a step that kept nothing is
    /// skipped. The metric is the reward before KL.
    pub fn easyr1(rollout_batch_size: usize, group_size: usize, max_gen_batches: i64) -> Self {
        Self {
            max_num_gen_batches: RoundLimit::of(max_gen_batches),
            on_limit: OnLimit::UsePartial,
            on_exhausted: OnExhausted::UsePartial,
            metric: Metric::SeqReward,
            ..Self::new(rollout_batch_size, group_size)
        }
    }

    /// Checks the settings against each other.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.check_sizes()?;
        let (gen_batch_size, train_batch_size) = (self.gen_batch_size, self.train_batch_size);
        if self.filter.is_none() && gen_batch_size != train_batch_size {
            return Err(fault!("without a filter every group of the one round is trained on: `data.gen_batch_size` {gen_batch_size} \
            must equal `data.train_batch_size` {train_batch_size}").into());
        }
        if !self.refill && gen_batch_size < train_batch_size {
            return Err(fault!("without refill one round must be able to fill the batch: `data.gen_batch_size` {gen_batch_size} is \
            below `data.train_batch_size` {train_batch_size}").into());
        }
        if self.screen_first.is_some() {
            return Err(fault!("`schedule.screen_first` starts groups with a part of their members, but a schedule of rounds starts whole \
                groups").into());
        }
        if let (RoundSize::Deficit { .. }, rounds_in_flight @ 2..) = (self.size, self.rounds_in_flight) {
            return Err(fault!("`schedule.rounds_in_flight` {rounds_in_flight} with rounds sized to what the batch lacks: that size is \
                known only when the round before is judged").into());
        }
        Ok(())
    }

    /// Checks that no size is 0.
    pub(super) fn check_sizes(&self) -> Result<(), SettingsError> {
        let granularity = match self.size {
            RoundSize::Fixed => 1,
            RoundSize::Deficit { granularity, .. } => granularity,
        };
        for (setting, size) in [
            ("data.train_batch_size", self.train_batch_size),
            ("data.gen_batch_size", self.gen_batch_size),
            ("rollout.n", self.group_size),
            ("schedule.granularity", granularity),
            ("schedule.rounds_in_flight", self.rounds_in_flight),
        ] {
            if size == 0 {
                return Err(fault!("`{setting}` must be at least 1").into());
            }
        }
        Ok(())
    }

    /// Checks that the first members of a group can show whether the others are worth generating.
    pub(super) fn check_screen(&self) -> Result<(), SettingsError> {
        let Some(first) = self.screen_first else { return Ok(()) };
        if first < 2 || first >= self.group_size {
            return Err(fault!("`schedule.screen_first` {first} must be at least 2 and below `rollout.n` {group_size}: a single member \
                cannot differ, and all members are the whole group", group_size = self.group_size).into());
        }
        match &self.filter {
            Some(filter) if filter.is_certain(0.0, f64::MAX) => Ok(()),
            filter => {
                let filter = filter.as_ref().map_or("null", |filter| filter.name());
                Err(fault!("`schedule.screen_first` checks whether the first members differ, which does not predict how the filter \
                    {filter} judges all of them").into())
            }
        }
    }

    /// Number of members with which a group begins.
    pub fn num_first_members(&self) -> usize {
        self.screen_first.unwrap_or(self.group_size)
    }

    /// Whether every step is exactly one round.
    pub fn is_one_round(&self) -> bool {
        self.filter.is_none() || !self.refill
    }
}

/// The keys of data files and of the built-in task.
fn default_difficulty() -> String {
    "`data.train` or `data.arithmetic.levels`".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions() {
        let settings = ScheduleSettings::new(512, 8);
        assert_eq!(settings.check(), Ok(()));
        let error = |change: &dyn Fn(&mut ScheduleSettings)| {
            let mut settings = settings.clone();
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        insta::assert_snapshot!(error(&|s| s.train_batch_size = 0), @"`data.train_batch_size` must be at least 1");
        insta::assert_snapshot!(error(&|s| s.gen_batch_size = 0), @"`data.gen_batch_size` must be at least 1");
        insta::assert_snapshot!(error(&|s| s.group_size = 0), @"`rollout.n` must be at least 1");
        insta::assert_snapshot!(error(&|s| (s.filter, s.gen_batch_size) = (None, 1536)), @"without a filter every group of the one round is trained on: `data.gen_batch_size` 1536 must equal `data.train_batch_size` 512");
        insta::assert_snapshot!(error(&|s| s.screen_first = Some(4)), @"`schedule.screen_first` starts groups with a part of their members, but a schedule of rounds starts whole groups");
        insta::assert_snapshot!(error(&|s| (s.refill, s.gen_batch_size) = (false, 128)), @"without refill one round must be able to fill the batch: `data.gen_batch_size` 128 is below `data.train_batch_size` 512");
    }
}
