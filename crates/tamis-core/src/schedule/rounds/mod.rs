//! The machine of whole generation rounds, repeated until the batch is full.
//!
//! ```text
//!            BeginStep                Dispatched             all settled
//!   idle ───────────────▶ drawing ───────────────▶ generating ──────────┐
//!    ▲  ▲                    ▲  ▲       │ epoch ended short: NextEpoch,   │ RoundComplete, then
//!    │  │                    │  └───────┘ Draw the remainder              │
//!    │  │                    └────────────────────────────────────────────┤ batch not full: Draw
//!    │  └───────────────────────── SkipStep ◀─────────────────────────────┤ limit, empty round
//!    │            Trained                                                  │
//!    └─────────── training ◀───── StepReady ◀─────────────────────────────┤ full, or partial by choice
//!                                 Finish, Stop ◀──────────────────────────┘
//! ```
//!
//! A round is `gen_batch_size` prompts, or as many as the batch probably lacks ([`RoundSize`](super::RoundSize)), drawn across the end of an epoch where the choices allow it. All its groups settle before
//! anything is decided, so which groups are trained depends on arrival only where `order: completion` asks for that. The batch is the
//! first `train_batch_size` kept groups, carried ones before new ones.
//!
//! **It always ends.** Beyond the limits that the user sets: an epoch in which no group was kept stops the run (epochs that lie
//! wholly within one round are judged with that round), and so do more than `max_skipped_steps` attempts at a step in a row that trained nothing, and an epoch
//! without a prompt. What is left, an epoch that keeps at least one group, is progress towards a batch.

mod close;
mod decide;
#[cfg(test)]
mod laws;
#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::round_size::KeepRate;
use super::{
    Accounting, Command, Count, Event, FinishReason, GroupSummary, Order, Progress, RoundReport,
    ScheduleError, ScheduleSettings, Surplus, Tally,
};
use crate::filter::{Filter, GroupStatistics, Verdict};
use crate::group::{GroupId, PolicyVersion};

/// The scheduler of whole rounds. See [the module](self).
///
/// ```
/// use tamis_core::filter::Verdict;
/// use tamis_core::group::{GroupId, PolicyVersion};
/// use tamis_core::schedule::{Command, Event, GroupFacts, Rounds, ScheduleSettings};
///
/// let mut rounds = Rounds::new(ScheduleSettings::new(1, 2))?;
/// let drawn = rounds.handle(Event::BeginStep)?;
/// assert_eq!(drawn, [Command::Draw { step: 1, round: 1, num_prompts: 1 }]);
///
/// let group = GroupId(0);
/// rounds.handle(Event::Dispatched { groups: vec![group], version: PolicyVersion(0), exhausted: false })?;
/// let facts = GroupFacts { num_tokens: 9, is_identical_in_text: false };
/// let commands = rounds.handle(Event::Scored { group, values: vec![1.0, 0.0], facts })?;
/// let [judged, Command::RoundComplete(round), Command::StepReady(step)] = &commands[..] else { unreachable!() };
/// assert_eq!(*judged, Command::Judged { group, verdict: Verdict::Kept });
/// assert_eq!((round.tally.kept, &step.trained[..]), (1, &[group][..]));
/// rounds.handle(Event::Trained { left_out: 0 })?;
/// rounds.handle(Event::Published { version: PolicyVersion(1) })?;
/// assert_eq!(rounds.progress().steps, 1);
/// # Ok::<(), tamis_core::schedule::ScheduleError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rounds {
    settings: ScheduleSettings,
    phase: Phase,
    progress: Progress,
    version: PolicyVersion,
    last_group: Option<GroupId>,
    arrivals: u64,
    /// Kept and not yet trained: carried groups and those of this step's rounds.
    ready: Vec<Kept>,
    /// The round in the making, in dispatch order.
    slots: Vec<Slot>,
    unsettled: usize,
    step: OpenStep,
    epochs: BTreeMap<u64, Epoch>,
    /// The current epoch has no prompt left.
    epoch_over: bool,
    skipped_in_a_row: u32,
    /// Since a step was last trained: for the diagnosis of a run that only skips.
    since_trained: Tally,
    num_rounds_untrained: u64,
    keep_rate: KeepRate,
    totals: Accounting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    Idle,
    Drawing { asked: usize },
    Generating,
    Training { trajectories: u64 },
    Ended,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Idle => "between steps",
            Self::Drawing { .. } => "waiting for prompts",
            Self::Generating => "waiting for groups",
            Self::Training { .. } => "waiting for the step to be trained",
            Self::Ended => "at its end",
        }
    }
}

/// A kept group that is not yet trained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Kept {
    id: GroupId,
    version: PolicyVersion,
    arrival: u64,
    summary: GroupSummary,
}

/// A group of the round in the making.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Slot {
    id: GroupId,
    epoch: u64,
    version: PolicyVersion,
    state: SlotState,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SlotState {
    InFlight,
    Scored { arrival: u64, summary: GroupSummary },
    Failed { num_tokens: u64 },
}

/// The step in the making.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct OpenStep {
    rounds: u64,
    empty_rounds: u32,
    tally: Tally,
    accounting: Accounting,
    stale: Vec<GroupId>,
}

/// A pass over the data that still has groups in flight or prompts to come.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
struct Epoch {
    dispatched: u64,
    tally: Tally,
    /// Rounds of the run completed when it began.
    began: u64,
    is_over: bool,
}

impl Rounds {
    /// At the start of a run.
    ///
    /// # Errors
    /// Where the settings contradict themselves.
    pub fn new(settings: ScheduleSettings) -> Result<Self, ScheduleError> {
        settings.check()?;
        Ok(Self {
            settings,
            phase: Phase::Idle,
            progress: Progress::default(),
            version: PolicyVersion::default(),
            last_group: None,
            arrivals: 0,
            ready: Vec::new(),
            slots: Vec::new(),
            unsettled: 0,
            step: OpenStep::default(),
            epochs: BTreeMap::from([(0, Epoch::default())]),
            epoch_over: false,
            skipped_in_a_row: 0,
            since_trained: Tally::default(),
            num_rounds_untrained: 0,
            keep_rate: KeepRate::default(),
            totals: Accounting::default(),
        })
    }

    /// The choices it was made with.
    pub fn settings(&self) -> &ScheduleSettings {
        &self.settings
    }

    /// Changes how long the run goes on: the only settings that a resumed run may change.
    pub fn set_length(&mut self, total_steps: Option<u64>, total_epochs: Option<u64>) {
        self.settings.total_steps = total_steps;
        self.settings.total_epochs = total_epochs;
    }

    /// Steps, rounds, epochs and prompts so far.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Where the groups of all closed steps went.
    pub fn totals(&self) -> &Accounting {
        &self.totals
    }

    /// Whether the run has finished or stopped.
    pub fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Groups whose trajectories the driver must still have: kept and not yet trained, or being generated.
    pub fn held(&self) -> impl Iterator<Item = GroupId> {
        self.ready.iter().map(|kept| kept.id).chain(self.slots.iter().map(|slot| slot.id))
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
            Event::Scored { group, values, facts } => {
                let expected = self.settings.group_size;
                let slot = self.in_flight(group, "scored")?;
                if values.len() != expected {
                    let actual = values.len();
                    return Err(ScheduleError::GroupSize { group: group.0, expected, actual });
                }
                let statistics = GroupStatistics::of(&values, self.settings.metric.outcome_scale());
                let summary = GroupSummary::of(&statistics, facts);
                let state = SlotState::Scored { arrival: self.arrivals, summary };
                self.arrivals += 1;
                self.settle(slot, state, &mut commands)?;
            }
            Event::Failed { group, num_tokens } => {
                let slot = self.in_flight(group, "failed")?;
                self.settle(slot, SlotState::Failed { num_tokens }, &mut commands)?;
            }
            Event::Trained { left_out } => {
                let Phase::Training { trajectories } = self.phase else {
                    return Err(ScheduleError::Unexpected { event: "trained", phase: self.phase.name() });
                };
                if left_out > trajectories {
                    return Err(ScheduleError::LeftOut { left_out, trajectories });
                }
                self.totals.leave_out(left_out);
                self.progress.steps += 1;
                self.skipped_in_a_row = 0;
                self.since_trained = Tally::default();
                self.num_rounds_untrained = 0;
                self.phase = Phase::Idle;
            }
            // A round is judged when it is complete, and nothing of it is given up before.
            Event::Sampled { .. } => {}
            Event::Aborted { .. } => {
                return Err(ScheduleError::Unexpected { event: "aborted", phase: self.phase.name() });
            }
            Event::Published { version } => {
                self.expect(self.phase != Phase::Ended, "published")?;
                self.check_version(version)?;
                self.version = version;
            }
            Event::Cancelled => {
                self.expect(!matches!(self.phase, Phase::Training { .. } | Phase::Ended), "cancelled")?;
                if self.phase == Phase::Idle {
                    self.open_step();
                }
                self.finish(FinishReason::Cancelled, &mut commands)?;
            }
        }
        Ok(commands)
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

    /// The place of a group that is being generated.
    fn in_flight(&self, group: GroupId, event: &'static str) -> Result<usize, ScheduleError> {
        self.expect(matches!(self.phase, Phase::Drawing { .. } | Phase::Generating), event)?;
        let place = self
            .slots
            .binary_search_by_key(&group, |slot| slot.id)
            .map_err(|_| ScheduleError::UnknownGroup { group: group.0 })?;
        match self.slots.get(place) {
            Some(slot) if slot.state == SlotState::InFlight => Ok(place),
            _ => Err(ScheduleError::SettledTwice { group: group.0 }),
        }
    }

    fn settle(
        &mut self,
        place: usize,
        state: SlotState,
        commands: &mut Vec<Command>,
    ) -> Result<(), ScheduleError> {
        if let Some(slot) = self.slots.get_mut(place) {
            slot.state = state;
            self.unsettled -= 1;
        }
        self.complete_if_settled(commands)
    }

    fn complete_if_settled(&mut self, commands: &mut Vec<Command>) -> Result<(), ScheduleError> {
        if self.phase == Phase::Generating && self.unsettled == 0 {
            return self.complete_round(commands);
        }
        Ok(())
    }

    /// Opens a step: carried groups come in, those too old go.
    fn open_step(&mut self) {
        let group_size = self.settings.group_size;
        self.step = OpenStep::default();
        self.step.accounting.carried_in = Count::of(self.ready.len(), group_size);
        if let Surplus::Carry { max_lag } = self.settings.surplus {
            let version = self.version.0;
            let is_fresh = |kept: &Kept| version - kept.version.0 <= max_lag;
            self.step.stale = self.ready.iter().filter(|kept| !is_fresh(kept)).map(|kept| kept.id).collect();
            self.ready.retain(is_fresh);
        }
    }

    fn dispatched(
        &mut self,
        groups: &[GroupId],
        version: PolicyVersion,
        exhausted: bool,
        commands: &mut Vec<Command>,
    ) -> Result<(), ScheduleError> {
        let Phase::Drawing { asked } = self.phase else {
            return Err(ScheduleError::Unexpected { event: "dispatched", phase: self.phase.name() });
        };
        let dispatched = groups.len();
        if dispatched > asked || (dispatched < asked && !exhausted) {
            return Err(ScheduleError::Draw { asked, dispatched });
        }
        let mut last = self.last_group;
        for &group in groups {
            if let Some(previous) = last.filter(|previous| *previous >= group) {
                return Err(ScheduleError::GroupOrder { group: group.0, previous: previous.0 });
            }
            last = Some(group);
        }
        self.check_version(version)?;

        self.last_group = last;
        self.version = version;
        let epoch = self.progress.epoch;
        let in_flight = |&id| Slot { id, epoch, version, state: SlotState::InFlight };
        self.slots.extend(groups.iter().map(in_flight));
        self.unsettled += dispatched;
        self.progress.prompts += dispatched as u64;
        self.progress.prompts_in_epoch += dispatched as u64;
        self.step.accounting.generated += Count::of(dispatched, self.settings.group_size);
        let ledger = self.epochs.entry(epoch).or_default();
        ledger.dispatched += dispatched as u64;
        ledger.is_over = exhausted;
        let is_empty_epoch = exhausted && ledger.dispatched == 0;
        self.epoch_over = exhausted;
        self.after_dispatch(asked - dispatched, is_empty_epoch, commands)
    }

    /// Everything of the round is settled: counts it, in dispatch order, and decides.
    fn complete_round(&mut self, commands: &mut Vec<Command>) -> Result<(), ScheduleError> {
        let tally = self.settle_round(commands);
        self.keep_rate.observe(&tally);
        self.step.empty_rounds = if tally.kept == 0 { self.step.empty_rounds + 1 } else { 0 };
        commands.push(Command::RoundComplete(RoundReport {
            step: self.progress.steps + 1,
            round: self.step.rounds,
            tally,
            num_accumulated: self.ready.len(),
            target: self.settings.train_batch_size,
            is_filtered: self.settings.filter.is_some(),
        }));
        let dead = self.close_epochs(tally.kept);
        self.decide(Some(tally.kept), dead, commands)
    }

    /// Judges the round's scored groups together, in dispatch order: a filter may compare them.
    fn judge(&self, slots: &[Slot]) -> Vec<Verdict> {
        let scored = slots.iter().filter_map(|slot| match slot.state {
            SlotState::Scored { summary, .. } => Some(summary.statistics()),
            SlotState::Failed { .. } | SlotState::InFlight => None,
        });
        match &self.settings.filter {
            Some(filter) => filter.judge(&scored.collect::<Vec<_>>(), self.settings.metric.outcome_scale()),
            None => scored.map(|_| Verdict::Kept).collect(),
        }
    }

    /// Moves the round's groups to where they belong. Groups still in flight count as aborted.
    fn settle_round(&mut self, commands: &mut Vec<Command>) -> Tally {
        let group_size = self.settings.group_size;
        let one = Count::of(1, group_size);
        let mut tally = Tally::default();
        let slots = std::mem::take(&mut self.slots);
        let mut verdicts = self.judge(&slots).into_iter();
        for slot in slots {
            let mut alone = Tally::default();
            match slot.state {
                SlotState::Scored { arrival, summary } => {
                    // A filter gives one verdict a group.
                    let verdict = verdicts.next().unwrap_or(Verdict::Kept);
                    commands.push(Command::Judged { group: slot.id, verdict });
                    alone.add_judged(verdict, &summary);
                    if verdict.is_kept() {
                        let (id, version) = (slot.id, slot.version);
                        self.ready.push(Kept { id, version, arrival, summary });
                    } else {
                        self.step.accounting.dropped += one;
                    }
                }
                SlotState::Failed { num_tokens } => {
                    alone.add_failed(group_size, num_tokens);
                    self.step.accounting.failed += one;
                }
                SlotState::InFlight => {
                    alone.add_aborted(group_size);
                    self.step.accounting.aborted += one;
                }
            }
            tally.append(&alone);
            self.epochs.entry(slot.epoch).or_default().tally.append(&alone);
        }
        self.unsettled = 0;
        match self.settings.order {
            Order::Dispatch => self.ready.sort_by_key(|kept| kept.id),
            Order::Completion => self.ready.sort_by_key(|kept| kept.arrival),
        }
        self.progress.rounds += 1;
        self.num_rounds_untrained += 1;
        self.step.tally.append(&tally);
        self.since_trained.append(&tally);
        tally
    }

    /// Forgets epochs that are over, all their groups being settled; the first that kept nothing is returned with the rounds it took,
    /// unless it lies wholly within a round that kept something.
    fn close_epochs(&mut self, kept_in_round: u64) -> Option<(u64, Tally, u64)> {
        let mut dead = None;
        let rounds = self.progress.rounds;
        self.epochs.retain(|&number, epoch| {
            let took = rounds - epoch.began;
            if epoch.is_over && epoch.tally.kept == 0 && (took > 1 || kept_in_round == 0) {
                dead = dead.or(Some((number, epoch.tally, took)));
            }
            !epoch.is_over
        });
        dead
    }
}
