//! `schedule`: when prompts are dispatched and how a batch is filled.

use tamis_core::schedule::selector::Selector;
use tamis_core::schedule::{FillOrder, OnExhausted, OnLimit, RoundLimit};
use tamis_core::{choice, settings};

use crate::value::{EmptyRounds, MaxRounds};

choice! {
    /// How the groups of a training batch are brought together.
    pub enum ScheduleMode {
        /// Whole generation rounds of `data.gen_batch_size`: the reference behaviour of verl and EasyR1.
        Rounds = "rounds",
        /// Rounds of as many prompts as the batch probably lacks: the missing groups over the keep rate of
        /// the last rounds, plus `margin`, in multiples of `granularity`. The first round of a run draws
        /// `data.gen_batch_size`.
        Deficit = "deficit",
        /// Group by group: a group that is dropped is replaced at once, and nothing waits for a round. With
        /// `surplus: carry` groups go on generating while a step trains.
        Streaming = "streaming",
    }
}

choice! {
    /// Treatment of kept groups beyond `data.train_batch_size`.
    pub enum SurplusKind {
        /// Surplus groups are thrown away, and counted.
        Discard = "discard",
        /// Surplus groups go into the next step with the log-probabilities they were sampled with, up to
        /// `max_lag`.
        Carry = "carry",
    }
}

settings! {
    /// When prompts are dispatched and how a training batch is filled.
    pub struct ScheduleConfig {
        /// How the groups of a training batch are brought together.
        mode: ScheduleMode = ScheduleMode::Rounds;
        /// Generate further rounds until the batch is full (always with `mode: streaming`). False: one round,
        /// trained on what survived.
        refill: bool = true;
        /// Multiple in which a round draws prompts, with `mode: deficit`. Null: `train.ppo_mini_batch_size`.
        granularity: Option<usize> = None, Between(1.0, 1e6);
        /// Safety margin of a round with `mode: deficit`, in deviations of the number of kept groups: 0 fills
        /// the batch with one round half the time, 1 in about five of six.
        margin: f64 = 1.0, AtLeast(0.0);
        /// Most generation rounds of one step. With `mode: deficit` and `streaming`: most prompts of a step,
        /// in units of `data.gen_batch_size`. `auto`: what the keep rate k of the last rounds asks for,
        /// `data.train_batch_size` / (`data.gen_batch_size` x k) + 2, rounded down; it never falls within a
        /// step, is 10 times the rounds of a batch without a filter while nothing was kept, and never above
        /// 50 times. Null: no limit.
        max_num_gen_batches: MaxRounds = MaxRounds(RoundLimit::Rounds(10)), AtLeast(1.0);
        /// Treatment of a step whose batch is not full when `max_num_gen_batches` is reached. A step that
        /// kept no group at all is given up, unless this is `error`.
        on_limit: OnLimit = OnLimit::Error;
        /// Rounds generated at once. With more than 1 the prompts of the next rounds are started while a
        /// round still generates. Rounds are still judged one by one, so the trained groups do not change
        /// with `surplus: discard`; groups that turn out not to be needed are aborted and their prompts drawn
        /// again. With `mode: streaming`: most groups in flight, in units of `data.gen_batch_size`. Null: 8
        /// where servers generate a stream, otherwise 1.
        rounds_in_flight: Option<usize> = None, AtLeast(1.0);
        /// Treatment of a round that keeps no group: `retry` (as many rounds as the limit allows), `retry:N`
        /// (N such rounds in a row are an error), `skip` (the step is given up) or `error`.
        on_empty_round: EmptyRounds = EmptyRounds::default();
        /// Treatment of an epoch whose data ends before the batch is full. An epoch that keeps no group
        /// at all ends the run.
        on_exhausted: OnExhausted = OnExhausted::NextEpoch;
        /// Treatment of kept groups beyond `data.train_batch_size`.
        surplus: SurplusKind = SurplusKind::Discard;
        /// Greatest age of a carried group, in steps. Needed with `surplus: carry`.
        max_lag: Option<usize> = None, AtLeast(1.0);
        /// Members with which a group is begun, at least 2 and fewer than `rollout.n`, with `mode: streaming`
        /// and `filter.kind: variance`: the others are begun once two of these differ in the filter's metric,
        /// and a group whose first members are all alike ends with them, dropped as `screened`. Cheaper where
        /// prompts are unlike in their pass rates, and biased: prompts are trained on in proportion to the
        /// probability that so few members differ, so hard and easy ones less often. Null: all members are
        /// begun at once.
        screen_first: Option<usize> = None, AtLeast(2.0);
        /// Order in which kept groups fill the batch.
        order: FillOrder = FillOrder::Dispatch;
        /// Train on every mini-batch as soon as it is complete, while the rest of the step is generated, with
        /// `mode: streaming` and servers: the same numbers as with the whole batch, sooner. Refused, with the
        /// reason, where the objective needs the whole step. The learner keeps a copy of weights and
        /// optimizer meanwhile. A step of which a mini-batch was trained on is not given up any more: where
        /// the limit or the data end it, it trains what it has, whatever `on_limit` and `on_exhausted` say.
        /// False: the batch is trained on when it is complete.
        early_updates: bool = true;
        /// How the next prompts are chosen from those of an epoch, by what their groups came to before, with
        /// the keys of the `kind`.
        selector: Selector = Selector::default();
    }
}
