//! `schedule`: when prompts are dispatched and how a batch is filled.

use tamis_core::schedule::selector::Selector;
use tamis_core::schedule::{FillOrder, OnExhausted, OnLimit, RoundLimit};
use tamis_core::{choice, settings};

use crate::value::{EmptyRounds, MaxRounds};

choice! {
    /// How the groups of a training batch are collected.
    pub enum ScheduleMode {
        /// Whole generation rounds of `data.gen_batch_size`: the reference behaviour of verl and EasyR1.
        Rounds = "rounds",
        /// Rounds of as many prompts as the batch probably lacks: the missing groups divided by the keep rate
        /// of the last rounds, plus `margin`, in multiples of `granularity`. The first round of a run draws
        /// `data.gen_batch_size`.
        Deficit = "deficit",
        /// Group by group: a dropped group is replaced at once, and nothing waits for a round. With
        /// `surplus: carry`, groups continue to generate while a step trains.
        Streaming = "streaming",
    }
}

// The bound of `carry` is a key of its own, `max_lag`, so that it can be set, shown and reset like every
// other key. `Surplus` of the scheduling machine has it inside.
choice! {
    /// Use of kept groups beyond `data.train_batch_size`.
    pub enum SurplusKind {
        /// Surplus groups are discarded and counted.
        Discard = "discard",
        /// Surplus groups are kept for the next step, with the log-probabilities that they were sampled with,
        /// up to an age of `max_lag`.
        Carry = "carry",
    }
}

settings! {
    /// When prompts are dispatched and how a training batch is filled.
    pub struct ScheduleConfig {
        /// How the groups of a training batch are collected.
        mode: ScheduleMode = ScheduleMode::Rounds;
        /// Generate further rounds until the batch is full (always with `mode: streaming`). False: one round;
        /// the step trains on the groups that were kept.
        refill: bool = true;
        /// With `mode: deficit`, a round draws a multiple of this number of prompts. Null:
        /// `train.ppo_mini_batch_size`.
        granularity: Option<usize> = None, Between(1.0, 1e6);
        /// Safety margin of a round with `mode: deficit`, in standard deviations of the number of kept
        /// groups. With 0, one round fills the batch half the time; with 1, about five times in six.
        margin: f64 = 1.0, AtLeast(0.0);
        /// Most generation rounds of one step. With `mode: deficit` and `streaming`: most prompts of a step,
        /// in units of `data.gen_batch_size`. `auto` derives it from the keep rate k of the last rounds:
        /// `data.train_batch_size` / (`data.gen_batch_size` x k) + 2, rounded down. It never decreases within
        /// a step. While nothing was kept it is 10 times the rounds of a batch without a filter, and it is
        /// never above 50 times. Null: no limit.
        max_num_gen_batches: MaxRounds = MaxRounds(RoundLimit::Rounds(10)), AtLeast(1.0);
        /// Action if a step's batch is not full when `max_num_gen_batches` is reached. A step that kept no
        /// group at all is skipped, unless this is `error`.
        on_limit: OnLimit = OnLimit::Error;
        /// Rounds generated at once. With more than 1, the prompts of the next rounds start while a round is
        /// still generating. Rounds are still judged in order, so with `surplus: discard` the trained groups
        /// do not change. Groups that are not needed are aborted, and their prompts are drawn again. With
        /// `mode: streaming`: most groups in flight, in units of `data.gen_batch_size`. Null: 8 with
        /// `mode: streaming` and servers, otherwise 1.
        rounds_in_flight: Option<usize> = None, AtLeast(1.0);
        /// Action if a round keeps no group: `retry` (as many rounds as the limit allows), `retry:N` (N such
        /// rounds in a row are an error), `skip` (the step is skipped) or `error`.
        on_empty_round: EmptyRounds = EmptyRounds::default();
        /// Action if the data of an epoch ends before the batch is full. An epoch that keeps no group at all
        /// ends the run.
        on_exhausted: OnExhausted = OnExhausted::NextEpoch;
        /// Use of kept groups beyond `data.train_batch_size`.
        surplus: SurplusKind = SurplusKind::Discard;
        /// Greatest age of a carried group, in steps. Required with `surplus: carry`.
        max_lag: Option<usize> = None, AtLeast(1.0);
        /// Number of members with which a group begins, at least 2 and fewer than `rollout.n`. It needs
        /// `mode: streaming` and `filter.kind: variance`. The other members start once two of these differ in
        /// the filter's metric. If all of these are alike, the group ends with them and is dropped as
        /// `screened`. This is cheaper if pass rates differ much between prompts. It is biased: prompts are
        /// trained on in proportion to the probability that these few members differ, so hard and easy
        /// prompts are trained on less often. Null: all members start at once.
        screen_first: Option<usize> = None, AtLeast(2.0);
        /// Order in which kept groups fill the batch.
        order: FillOrder = FillOrder::Dispatch;
        /// Train on every mini-batch as soon as it is complete, while the rest of the step is still
        /// generating (with `mode: streaming` and servers). Results are the same as with the whole batch, and
        /// come sooner. It is refused, with the reason, if the objective needs the whole step. The learner
        /// holds a copy of weights and optimizer meanwhile. Once a mini-batch of a step was trained on, the
        /// step is not skipped: if the limit or the end of the data ends it, it trains on the groups that it
        /// has, whatever `on_limit` and `on_exhausted` are. False: training starts when the batch is
        /// complete.
        early_updates: bool = true;
        /// How the next prompts of an epoch are chosen, by the results of their earlier groups. The `kind`
        /// has further keys.
        selector: Selector = Selector::default();
    }
}
