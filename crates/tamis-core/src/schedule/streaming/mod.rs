//! The machine of `streaming` mode: group by group, a replacement for every group that is dropped.
//!
//! Groups are dispatched one draw at a time, whenever there is room for another; whatever is decided is decided at an event, so nothing
//! waits for a round. Finished mini-batches are handed out while the rest of the batch still generates, and with `surplus: carry`
//! groups go on generating and settling while a step trains.
//!
//! # Admission
//! Of T groups a step, and a bound η on their lag (0 with `surplus: discard`), at most
//!
//! ```text
//! undecided <= ((η + 1) T - handed out - secured) / k
//! ```
//!
//! groups are in flight whose verdict is open (with `surplus: carry` less a deviation of what they will come to, (1 - k)^½ of the square root of
//! the numerator: what is kept beyond it would grow too old), where k is the keep rate of the last groups (1 before any is known), and a group is *secured* when it was kept or is certain
//! to be: under the variance filter from the first member on that scores otherwise than another. This is Little's law for a sieve
//! (AReaL and SkyRL leave the 1/k out and keep their servers 1 - k empty). So groups are hardly ever too old, and a kept group costs 1/k
//! generated ones and the handful that is in flight when the last step is full.
//!
//! # Order
//! A kept group enters the batch when every group dispatched before it is settled: `order: dispatch`. Which groups are trained on then depends on
//! nothing but which were dispatched, and short completions have no advantage over long ones. With `surplus: discard` the
//! prompts of all groups that were dispatched after the last one of a batch go back to the source, whatever they had come to by then
//! ([`StepClose::returned`](super::StepClose)), so that the batches of a whole run are the same whatever the timing. `order: completion` takes groups as they come.
//!
//! # It always ends
//! Epochs in a row that kept nothing end the run once they hold a round's worth of groups (`gen_batch_size`); a step
//! dispatches at most `max_num_gen_batches` × `gen_batch_size` groups; more than `max_skipped_steps` attempts in a row that trained nothing
//! end it too.

mod decide;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ledger::{Kept, Ledger};
use super::round_size::KeepRate;
use super::{
    Accounting, Command, Event, FinishReason, GroupSummary, OnEmptyRound, Progress, ScheduleError,
    ScheduleSettings, SkipReason, StopCause, Surplus, Tally,
};
use crate::filter::{Filter, GroupStatistics, Scope, Verdict};
use crate::group::{GroupId, PolicyVersion};

/// The choices of a streaming run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamingSettings {
    /// Sizes, limits and ends, as for rounds. `gen_batch_size` is the unit of limits alone; `size` and `refill` are not read.
    pub run: ScheduleSettings,
    /// Groups of a mini-batch: so many are handed out as soon as they are ready. `train_batch_size` and more: the batch is handed out whole.
    pub mini_batch_size: usize,
    /// Groups in flight, at most.
    pub max_in_flight: usize,
}

/// The scheduler of `streaming` mode. See [the module](self).
///
/// ```
/// use tamis_core::group::{GroupId, PolicyVersion};
/// use tamis_core::schedule::{Command, Event, GroupFacts, ScheduleSettings, Streaming, StreamingSettings};
///
/// let run = ScheduleSettings::new(2, 2);
/// let mut machine = Streaming::new(StreamingSettings { run, mini_batch_size: 1, max_in_flight: 64 })?;
/// // Two groups are wanted, and nothing is known of the keep rate: no more are started.
/// let drawn = machine.handle(Event::BeginStep)?;
/// assert_eq!(drawn, [Command::Draw { step: 1, round: 1, num_prompts: 2 }]);
/// let groups = (0..2).map(GroupId).collect();
/// machine.handle(Event::Dispatched { groups, version: PolicyVersion(0), exhausted: false })?;
/// let scored = |id: u64, values: [f64; 2]| Event::Scored {
///     group: GroupId(id),
///     values: values.to_vec(),
///     facts: GroupFacts::default(),
/// };
/// // The second group is done and kept. The first is still generating, and older.
/// let commands = machine.handle(scored(1, [0.0, 1.0]))?;
/// assert!(!commands.iter().any(|command| matches!(command, Command::Train { .. })));
/// // Now both are in order: each is a mini-batch.
/// let commands = machine.handle(scored(0, [1.0, 0.0]))?;
/// let trained: Vec<_> =
///     commands.iter().filter_map(|command| if let Command::Train { groups, .. } = command { Some(groups[0].0) } else { None }).collect();
/// assert_eq!(trained, [0, 1]);
/// # Ok::<(), tamis_core::schedule::ScheduleError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Streaming {
    settings: StreamingSettings,
    phase: Phase,
    progress: Progress,
    version: PolicyVersion,
    ledger: Ledger,
    step: OpenStep,
    /// Steps trained when the present step was opened; `None` before the first.
    window: Option<u64>,
    /// Groups handed out in that step; all of them once it is closed.
    handed: usize,
    /// Prompts asked for, while the answer is awaited.
    asked: Option<usize>,
    keep_rate: KeepRate,
    /// Groups settled since one was last kept.
    settled_in_vain: u64,
    /// What ends the run once the mini-batches that were handed out are trained.
    stop_next: Option<(StopCause, Tally, u64)>,
    epochs: BTreeMap<u64, Epoch>,
    /// What was generated in the last epochs, none of which kept anything.
    barren: Tally,
    /// The current epoch has no prompt left.
    epoch_over: bool,
    skipped_in_a_row: u32,
    /// Since a step was last trained: for the diagnosis of a run that only skips.
    since_trained: Tally,
    dispatched_untrained: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    Idle,
    Open,
    Training { trajectories: u64 },
    Ended,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Idle => "between steps",
            Self::Open => "filling a step",
            Self::Training { .. } => "waiting for the step to be trained",
            Self::Ended => "at its end",
        }
    }
}

/// The step in the making.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct OpenStep {
    tally: Tally,
    batch: Tally,
    trained: Vec<GroupId>,
    stale: Vec<GroupId>,
    aborted: Vec<GroupId>,
    parts: u64,
    max_lag: u64,
}

/// A pass over the data that still has groups in flight or prompts to come.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
struct Epoch {
    dispatched: u64,
    settled: u64,
    tally: Tally,
    is_over: bool,
}

impl Streaming {
    /// At the start of a run.
    ///
    /// # Errors
    /// Where the settings contradict themselves, or the filter compares the groups of a round.
    pub fn new(settings: StreamingSettings) -> Result<Self, ScheduleError> {
        let run = &settings.run;
        run.check_sizes()?;
        for (setting, size) in [
            ("train.ppo_mini_batch_size", settings.mini_batch_size),
            ("max_in_flight", settings.max_in_flight),
        ] {
            if size == 0 {
                return Err(super::SettingsError::Zero { setting }.into());
            }
        }
        if let Some(filter) = run.filter.filter(|filter| filter.scope() == Scope::Pool) {
            return Err(super::SettingsError::PoolFilter { filter: filter.name() }.into());
        }
        Ok(Self {
            ledger: Ledger::new(run.group_size, run.order),
            phase: Phase::Idle,
            progress: Progress::default(),
            version: PolicyVersion::default(),
            step: OpenStep::default(),
            window: None,
            handed: 0,
            asked: None,
            keep_rate: KeepRate::default(),
            settled_in_vain: 0,
            stop_next: None,
            epochs: BTreeMap::from([(0, Epoch::default())]),
            barren: Tally::default(),
            epoch_over: false,
            skipped_in_a_row: 0,
            since_trained: Tally::default(),
            dispatched_untrained: 0,
            settings,
        })
    }

    /// The choices it was made with.
    pub fn settings(&self) -> &StreamingSettings {
        &self.settings
    }

    /// Changes how long the run goes on: the only settings that a resumed run may change.
    pub fn set_length(&mut self, total_steps: Option<u64>, total_epochs: Option<u64>) {
        self.settings.run.total_steps = total_steps;
        self.settings.run.total_epochs = total_epochs;
    }

    /// Steps, epochs and prompts so far; rounds stay 0.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Where the groups of all closed steps went.
    pub fn totals(&self) -> &Accounting {
        self.ledger.totals()
    }

    /// Whether the run has finished or stopped.
    pub fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Groups whose trajectories the driver must still have: kept and not yet trained, or being generated.
    pub fn held(&self) -> impl Iterator<Item = GroupId> {
        self.ledger.held()
    }

    /// Takes an event in and says what to do.
    ///
    /// # Errors
    /// Where the event does not fit; the machine is then as it was before.
    pub fn handle(&mut self, event: Event) -> Result<Vec<Command>, ScheduleError> {
        let mut commands = Vec::new();
        match event {
            Event::BeginStep => {
                self.expect(self.phase == Phase::Idle, "begin_step")?;
                self.begin_step(&mut commands)?;
            }
            Event::Dispatched { groups, version, exhausted } => {
                self.dispatched(&groups, version, exhausted, &mut commands)?;
            }
            Event::Sampled { group, value } => {
                if !self.ledger.is_aborting(group) {
                    self.ledger.flight(group)?;
                    let filter = &self.settings.run.filter;
                    let is_certain =
                        |min, max| filter.as_ref().is_some_and(|filter| filter.is_certain(min, max));
                    self.ledger.see(group, value.unwrap_or(f64::NAN), is_certain);
                }
            }
            Event::Scored { group, values, facts } => {
                if self.ends_abort(group) {
                    return Ok(commands);
                }
                let epoch = self.ledger.flight(group)?.epoch;
                let expected = self.settings.run.group_size;
                if values.len() != expected {
                    let actual = values.len();
                    return Err(ScheduleError::GroupSize { group: group.0, expected, actual });
                }
                let scale = self.settings.run.metric.outcome_scale();
                let statistics = GroupStatistics::of(&values, scale);
                let verdict = match &self.settings.run.filter {
                    Some(filter) => filter.judge(&[statistics], scale).first().copied(),
                    None => None,
                };
                let verdict = verdict.unwrap_or(Verdict::Kept);
                let summary = GroupSummary::of(&statistics, facts);
                let mut alone = Tally::default();
                alone.add_judged(verdict, &summary);
                commands.push(Command::Judged { group, verdict });
                if verdict.is_kept() {
                    self.ledger.keep(group, summary);
                } else {
                    self.ledger.drop(group);
                }
                self.settled(epoch, &alone, &mut commands)?;
            }
            Event::Failed { group, num_tokens } => {
                if self.ends_abort(group) {
                    return Ok(commands);
                }
                let epoch = self.ledger.flight(group)?.epoch;
                let mut alone = Tally::default();
                alone.add_failed(self.settings.run.group_size, num_tokens);
                self.ledger.fail(group);
                self.settled(epoch, &alone, &mut commands)?;
            }
            Event::Aborted { group, .. } => {
                if !self.ends_abort(group) {
                    return Err(ScheduleError::UnknownGroup { group: group.0 });
                }
            }
            Event::Trained { left_out } => {
                let Phase::Training { trajectories } = self.phase else {
                    return Err(ScheduleError::Unexpected { event: "trained", phase: self.phase.name() });
                };
                if left_out > trajectories {
                    return Err(ScheduleError::LeftOut { left_out, trajectories });
                }
                self.ledger.leave_out(left_out);
                self.progress.steps += 1;
                self.skipped_in_a_row = 0;
                self.since_trained = Tally::default();
                self.dispatched_untrained = 0;
                self.phase = Phase::Idle;
            }
            Event::Published { version } => {
                self.expect(self.phase != Phase::Ended, "published")?;
                self.check_version(version)?;
                self.version = version;
            }
            Event::Cancelled => {
                self.expect(!matches!(self.phase, Phase::Training { .. } | Phase::Ended), "cancelled")?;
                self.finish(FinishReason::Cancelled, &mut commands)?;
            }
        }
        Ok(commands)
    }

    /// Takes the last word of a group that was given up, whatever it is.
    fn ends_abort(&mut self, group: GroupId) -> bool {
        let is_aborting = self.ledger.is_aborting(group);
        self.ledger.end_abort(group);
        is_aborting
    }

    fn expect(&self, fits: bool, event: &'static str) -> Result<(), ScheduleError> {
        if fits { Ok(()) } else { Err(ScheduleError::Unexpected { event, phase: self.phase.name() }) }
    }

    fn check_version(&self, version: PolicyVersion) -> Result<(), ScheduleError> {
        if version < self.version {
            return Err(ScheduleError::VersionOrder { version: version.0, previous: self.version.0 });
        }
        Ok(())
    }

    /// The greatest lag that a trained group may have.
    fn max_lag(&self) -> u64 {
        match self.settings.run.surplus {
            Surplus::Discard => 0,
            Surplus::Carry { max_lag } => max_lag,
        }
    }

    fn dispatched(
        &mut self,
        groups: &[GroupId],
        version: PolicyVersion,
        exhausted: bool,
        commands: &mut Vec<Command>,
    ) -> Result<(), ScheduleError> {
        let Some(asked) = self.asked else {
            return Err(ScheduleError::Unexpected { event: "dispatched", phase: self.phase.name() });
        };
        let dispatched = groups.len();
        if dispatched > asked || (dispatched < asked && !exhausted) {
            return Err(ScheduleError::Draw { asked, dispatched });
        }
        self.ledger.check_order(groups)?;
        self.check_version(version)?;
        self.asked = None;
        self.version = version;
        let epoch = self.progress.epoch;
        self.ledger.dispatch(groups, version, epoch);
        self.progress.prompts += dispatched as u64;
        self.progress.prompts_in_epoch += dispatched as u64;
        self.dispatched_untrained += dispatched as u64;
        let ledger = self.epochs.entry(epoch).or_default();
        ledger.dispatched += dispatched as u64;
        ledger.is_over = exhausted;
        let is_empty_epoch = exhausted && ledger.dispatched == 0;
        self.epoch_over = exhausted;
        if is_empty_epoch {
            return self.stop(StopCause::NoPrompts { epoch }, commands);
        }
        self.go_on(commands)
    }

    /// Counts a group that was judged or failed, and goes on.
    fn settled(
        &mut self,
        epoch: u64,
        alone: &Tally,
        commands: &mut Vec<Command>,
    ) -> Result<(), ScheduleError> {
        self.keep_rate.observe_one(alone.kept > 0, self.settings.run.train_batch_size);
        self.settled_in_vain = if alone.kept > 0 { 0 } else { self.settled_in_vain + 1 };
        self.step.tally.append(alone);
        self.since_trained.append(alone);
        let ledger = self.epochs.entry(epoch).or_default();
        ledger.settled += 1;
        ledger.tally.append(alone);
        let a_round = self.settings.run.gen_batch_size as u64;
        if self.phase == Phase::Open
            && self.settled_in_vain > 0
            && self.settled_in_vain.is_multiple_of(a_round)
        {
            let rounds = u32::try_from(self.settled_in_vain / a_round).unwrap_or(u32::MAX);
            let cause = StopCause::EmptyRounds { rounds };
            match self.settings.run.on_empty_round {
                OnEmptyRound::Error => return self.stop(cause, commands),
                OnEmptyRound::Retry { times: Some(times) } if rounds > times => {
                    return self.stop(cause, commands);
                }
                OnEmptyRound::Skip => return self.give_up(SkipReason::EmptyRound, commands),
                OnEmptyRound::Retry { .. } => {}
            }
        }
        self.go_on(commands)
    }

    /// Hands the next mini-batch out.
    fn hand_out(&mut self, groups: usize, commands: &mut Vec<Command>) {
        let kept = self.ledger.train(groups);
        for Kept { id, version, summary } in &kept {
            self.step.trained.push(*id);
            self.step.max_lag = self.step.max_lag.max(self.version.0 - version.0);
            self.step.batch.add_judged(Verdict::Kept, summary);
        }
        self.handed += kept.len();
        commands.push(Command::Train {
            step: self.progress.steps + 1,
            part: self.step.parts,
            groups: kept.iter().map(|kept| kept.id).collect(),
        });
        self.step.parts += 1;
    }
}
