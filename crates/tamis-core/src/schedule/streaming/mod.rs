//! The policy of `streaming` mode: group by group, with a replacement for every dropped group. Its guarantees
//! are listed at [`Scheduler::streaming`](super::Scheduler::streaming).
//!
//! # Admission
//! The number of groups in flight whose verdict is open (*undecided*) is bounded by
//!
//! ```text
//! undecided <= ((η + 1) T - handed out - secured) / k
//! ```
//!
//! T is the number of groups of a step, η the bound on their lag (0 with `surplus: discard`), and k the keep
//! rate of the last groups (1 before any is known). A group is *secured* if it was kept or is certain to be:
//! under the variance filter, as soon as two members score differently. With `surplus: carry` the bound is
//! lower by a deviation of the number of groups that will be kept, (1 - k)^½ of the square root of the
//! numerator: groups kept beyond it would grow too old.
//!
//! This is Little's law for a sieve (AReaL and SkyRL omit the 1/k and leave 1 - k of their servers idle).
//! Groups are rarely too old, and a kept group costs 1/k generated ones plus the few that are in flight when
//! the last step is full.

mod decide;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use super::barren::Barren;
use super::run::{Drawn, Phase, ScheduleRun};
use super::{
    Command, OnEmptyRound, OnLimit, Result, ScheduleSettings, SettingsError, SkipReason, StopCause, Tally,
};
use crate::fault;
use crate::filter::{Scope, Verdict};
use crate::group::GroupId;

/// The choices of a streaming run.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamingSettings {
    /// Sizes, limits and ends, as for rounds. `gen_batch_size` is only the unit of limits; `size`,
    /// `rounds_in_flight` and `refill` are not read.
    pub run: ScheduleSettings,
    /// Groups of a mini-batch: as soon as this many are ready, they are handed out. At `train_batch_size` or
    /// more, the batch is handed out whole.
    pub mini_batch_size: usize,
    /// Maximum number of groups in flight.
    pub max_in_flight: usize,
}

/// How many groups are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// As many as the batch probably lacks, divided by the keep rate so far.
    #[default]
    KeepRate,
    /// Another `chunk` whenever fewer groups are in flight, kept or handed out than the steps within the
    /// bound on lag need, as if all were kept. OpenRLHF and the asynchronous systems do this with a chunk of
    /// 1, slime with its `over_sampling_batch_size`.
    Replace {
        /// Groups started at once.
        chunk: usize,
    },
    /// As many as may be in flight, however many are already kept, as in prime-rl.
    Saturate,
}

/// State of the groups that were drawn and handed out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Streaming {
    mini_batch_size: usize,
    max_in_flight: usize,
    admission: Admission,
    /// Number of steps trained when the present step was opened; `None` before the first.
    window: Option<u64>,
    /// Number of groups handed out in the step; all of them once it is closed.
    handed: usize,
    /// Groups settled since the last kept one.
    settled_in_vain: u64,
    /// The cause that ends the run once the handed-out mini-batches are trained.
    stop_next: Option<(StopCause, Tally, u64)>,
    /// The last epochs, if they kept nothing.
    barren: Barren,
}

impl Streaming {
    pub(super) fn new(settings: &StreamingSettings, admission: Admission) -> Result<Self, SettingsError> {
        let &StreamingSettings { ref run, mini_batch_size, max_in_flight } = settings;
        run.check_sizes()?;
        run.check_screen()?;
        let chunk = if let Admission::Replace { chunk } = admission { chunk } else { 1 };
        for (setting, size) in [
            ("train.ppo_mini_batch_size", mini_batch_size),
            ("max_in_flight", max_in_flight),
            ("chunk", chunk),
        ] {
            if size == 0 {
                return Err(fault!("`{setting}` must be at least 1").into());
            }
        }
        if let Some(filter) = run.filter.filter(|filter| filter.scope() == Scope::Pool) {
            return Err(SettingsError::PoolFilter { filter: filter.name() });
        }
        if let on_limit @ (OnLimit::KeepDropped | OnLimit::Duplicate) = run.on_limit {
            return Err(fault!("`schedule.on_limit: {on_limit}` fills the batch after its last round, but a streaming schedule hands out \
                groups as they finish").into());
        }
        Ok(Self {
            mini_batch_size,
            max_in_flight,
            admission,
            window: None,
            handed: 0,
            settled_in_vain: 0,
            stop_next: None,
            barren: Barren::default(),
        })
    }

    pub(super) fn dispatched(
        &mut self,
        run: &mut ScheduleRun,
        drawn: &Drawn,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        run.step.rounds = rounds(run, run.ledger.num_dispatched());
        if drawn.is_empty_epoch {
            let cause = StopCause::NoPrompts { epoch: run.progress.epoch };
            return self.stop(run, cause, commands);
        }
        self.go_on(run, commands)
    }

    /// A group is complete or has failed: judges it, and continues.
    pub(super) fn finished(
        &mut self,
        run: &mut ScheduleRun,
        group: GroupId,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        let verdict = run.judge(&[group])?.into_iter().next().flatten();
        self.settled(run, group, verdict, commands)
    }

    /// A finished group has its verdict or has failed: counts it, and continues.
    pub(super) fn settled(
        &mut self,
        run: &mut ScheduleRun,
        group: GroupId,
        verdict: Option<Verdict>,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        let alone = run.settle(group, verdict, commands);
        let batch = run.settings.train_batch_size;
        run.observe(|keep_rate| keep_rate.observe_one(alone.kept > 0, batch));
        self.settled_in_vain = if alone.kept > 0 { 0 } else { self.settled_in_vain + 1 };
        run.count(&alone);
        let a_round = run.settings.gen_batch_size as u64;
        if run.phase == Phase::Open
            && self.settled_in_vain > 0
            && self.settled_in_vain.is_multiple_of(a_round)
        {
            let rounds = u32::try_from(self.settled_in_vain / a_round).unwrap_or(u32::MAX);
            let cause = StopCause::EmptyRounds { rounds };
            match run.settings.on_empty_round {
                OnEmptyRound::Error => return self.stop(run, cause, commands),
                OnEmptyRound::Retry { times: Some(times) } if rounds > times => {
                    return self.stop(run, cause, commands);
                }
                OnEmptyRound::Skip => return self.give_up(run, SkipReason::EmptyRound, commands),
                OnEmptyRound::Retry { .. } => {}
            }
        }
        self.go_on(run, commands)
    }

    fn hand_out(&mut self, run: &mut ScheduleRun, groups: usize, commands: &mut Vec<Command>) {
        let groups = run.train(groups);
        self.handed += groups.len();
        commands.push(Command::Train { step: run.progress.steps + 1, part: run.step.parts, groups });
        run.step.parts += 1;
    }
}

/// Groups in rounds of `gen_batch_size`; a begun round counts.
fn rounds(run: &ScheduleRun, groups: u64) -> u64 {
    groups.div_ceil(run.settings.gen_batch_size.max(1) as u64)
}
