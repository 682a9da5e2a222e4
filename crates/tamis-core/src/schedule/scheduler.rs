//! The machine that a run has: what every mode does with an event, around the policy of its mode.

use serde::{Deserialize, Serialize};

use super::ledger::GroupOutcome;
use super::rounds::Rounds;
use super::run::{GoesBack, Phase, ScheduleRun};
use super::streaming::Streaming;
use super::{
    Accounting, Admission, Command, Event, FillOrder, FirstMembers, GroupFacts, GroupSummary, Members,
    Progress, Result, RunEnd, ScheduleSettings, Spent, StreamingSettings, Surplus,
};
use crate::fault;
use crate::filter::{DropReason, GroupStatistics, Verdict};
use crate::group::GroupId;

/// The scheduling machine of a run, of whole rounds or streaming. What drives it, saves it and reports of it
/// need not know which.
///
/// ```
/// use tamis_core::filter::Verdict;
/// use tamis_core::group::{GroupId, PolicyVersion};
/// use tamis_core::schedule::{Command, Event, GroupFacts, ScheduleSettings, Scheduler, Spent};
///
/// let mut scheduler = Scheduler::rounds(ScheduleSettings::new(1, 2))?;
/// let drawn = scheduler.handle(Event::BeginStep)?;
/// assert_eq!(drawn, [Command::Draw { step: 1, round: 1, num_prompts: 1 }]);
///
/// let group = GroupId(0);
/// scheduler.handle(Event::Dispatched { groups: vec![group], version: PolicyVersion(0), exhausted: false })?;
/// let facts = GroupFacts { spent: Spent { tokens: 9, turns: 2 }, ..GroupFacts::default() };
/// let commands = scheduler.handle(Event::Scored { group, values: vec![1.0, 0.0], facts })?;
/// let [judged, Command::RoundComplete(round), Command::StepReady(step)] = &commands[..] else { unreachable!() };
/// assert_eq!(*judged, Command::Judged { group, verdict: Verdict::Kept });
/// assert_eq!((round.tally.kept, &step.trained[..]), (1, &[group][..]));
/// scheduler.handle(Event::Trained { left_out: 0, tokens: 0, turns: 0 })?;
/// scheduler.handle(Event::Published { version: PolicyVersion(1) })?;
/// assert_eq!(scheduler.progress().steps, 1);
/// # Ok::<(), tamis_core::schedule::ScheduleError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduler {
    pub(super) run: ScheduleRun,
    pub(super) policy: Policy,
}

/// The policy that decides the next command, by the run's mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "a run has one")]
pub(super) enum Policy {
    Rounds(Rounds),
    Streaming(Streaming),
}

impl Scheduler {
    /// A scheduler of whole generation rounds at the start of a run: rounds of `gen_batch_size` prompts, or
    /// of as many as the batch probably lacks ([`RoundSize`](super::RoundSize)), until the batch is full.
    ///
    /// All groups of a round settle before anything is decided, so which groups are trained depends on
    /// arrival only where `order: completion` asks for that. The batch is the first `train_batch_size` kept
    /// groups, carried ones before new ones.
    /// **It always ends.** Beyond the limits that the user sets: an epoch in which no group was kept stops
    /// the run, unless a later epoch of the same round keeps one, and so do more than `max_skipped_steps`
    /// attempts at a step in a row that trained nothing, and an epoch without a prompt. Where something
    /// passes over prompts, an epoch of a few groups says little: then epochs in a row that kept nothing stop
    /// it once as many groups were judged in them as there are prompts ([`Scheduler::set_num_prompts`]), or
    /// the data are over and none of the run's groups was kept. The remaining case, epochs that keep at least
    /// one group, is progress towards a batch.
    pub fn rounds(settings: ScheduleSettings) -> Result<Self> {
        settings.check()?;
        Ok(Self {
            run: ScheduleRun::new(settings, GoesBack::GivenUp),
            policy: Policy::Rounds(Rounds::default()),
        })
    }

    /// A streaming scheduler at the start of a run: group by group, a replacement for every group that is
    /// dropped.
    ///
    /// Groups are dispatched one draw at a time, whenever there is room for another; whatever is decided is
    /// decided at an event, so nothing waits for a round. Finished mini-batches are handed out
    /// ([`Command::Train`]) while the rest of the batch still generates, and with `surplus: carry` groups go
    /// on generating and settling while a step trains.
    ///
    /// **Order.** A kept group enters the batch when every group dispatched before it is settled:
    /// `order: dispatch`. Which groups are trained on then depends on nothing but which were dispatched, and
    /// short completions have no advantage over long ones. With `surplus: discard` the prompts of all groups
    /// that were dispatched after the last one of a batch go back to the source, whatever they had come to by
    /// then ([`StepClose::returned`](super::StepClose)), so that the batches of a whole run are the same
    /// whatever the timing. `order: completion` takes groups as they come.
    ///
    /// **First members.** With [`screen_first`](ScheduleSettings::screen_first) a group is begun with so many
    /// members, and [`Command::Continue`] asks for the others as soon as two differ. [`Event::Screened`] says
    /// what the first ones came to; where they are alike, the group is dropped. It counts with the members
    /// that were begun.
    /// **It always ends.** Epochs in a row that kept nothing end the run once they hold as many judged groups
    /// as there are prompts ([`Scheduler::set_num_prompts`]; not known, a round's worth, `gen_batch_size`),
    /// and so do the data where none of the run's groups was kept; a step dispatches at most
    /// `max_num_gen_batches` × `gen_batch_size` groups; more than `max_skipped_steps` attempts in a row that
    /// trained nothing end it too.
    ///
    /// # Errors
    /// Where the settings contradict themselves, the filter compares the groups of a round, or what it says
    /// of a group cannot be known from its first members where these are to show it.
    ///
    /// ```
    /// use tamis_core::group::{GroupId, PolicyVersion};
    /// use tamis_core::schedule::{Command, Event, GroupFacts, ScheduleSettings, Scheduler, StreamingSettings};
    ///
    /// let run = ScheduleSettings::new(2, 2);
    /// let mut machine = Scheduler::streaming(StreamingSettings { run, mini_batch_size: 1, max_in_flight: 64 })?;
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
    /// let first_of = |command: &Command| match command {
    ///     Command::Train { groups, .. } => Some(groups[0].0),
    ///     _ => None,
    /// };
    /// let trained: Vec<_> = commands.iter().filter_map(first_of).collect();
    /// assert_eq!(trained, [0, 1]);
    /// # Ok::<(), tamis_core::schedule::ScheduleError>(())
    /// ```
    pub fn streaming(settings: StreamingSettings) -> Result<Self> {
        Self::streaming_with(settings, Admission::default())
    }

    /// [`Self::streaming`] that starts groups as another system does.
    pub fn streaming_with(settings: StreamingSettings, admission: Admission) -> Result<Self> {
        let policy = Streaming::new(&settings, admission)?;
        Ok(Self {
            run: ScheduleRun::new(settings.run, GoesBack::Untrained),
            policy: Policy::Streaming(policy),
        })
    }

    /// The choices that every mode has: sizes, filter, limits, ends.
    pub fn settings(&self) -> &ScheduleSettings {
        &self.run.settings
    }

    /// Changes how long the run goes on: the only settings that a resumed run may change.
    pub fn set_length(&mut self, total_steps: Option<u64>, total_epochs: Option<u64>) {
        self.run.settings.total_steps = total_steps;
        self.run.settings.total_epochs = total_epochs;
    }

    /// Says how many prompts the data have, those that are passed over too. Not known, each epoch counts as a
    /// whole pass over them.
    pub fn set_num_prompts(&mut self, num_prompts: usize) {
        self.run.settings.num_prompts = Some(num_prompts as u64);
    }

    /// Steps, rounds, epochs and prompts so far; of a streaming run rounds stay 0.
    pub fn progress(&self) -> Progress {
        self.run.progress
    }

    /// Accounting of the groups of all closed steps.
    pub fn totals(&self) -> &Accounting {
        self.run.ledger.totals()
    }

    /// Whether it waits for what a group comes to.
    pub fn awaits(&self, group: GroupId) -> bool {
        self.run.ledger.is_in_flight(group)
    }

    /// Members of a group in flight that are begun; `None` of a group that is not in flight.
    pub fn num_begun(&self, group: GroupId) -> Option<usize> {
        self.run.ledger.num_begun(group)
    }

    /// Whether it goes by whole rounds, and decides nothing before one has settled.
    pub fn goes_by_rounds(&self) -> bool {
        matches!(self.policy, Policy::Rounds(_))
    }

    /// Whether what is trained on, or what is told of it, depends on the order in which groups come to
    /// something.
    pub fn depends_on_timing(&self) -> bool {
        let settings = self.settings();
        let carries_ahead =
            settings.rounds_in_flight > 1 && matches!(settings.surplus, Surplus::Carry { .. });
        !self.goes_by_rounds() || settings.order == FillOrder::Completion || carries_ahead
    }

    /// Whether the run has finished or stopped.
    pub fn is_ended(&self) -> bool {
        self.run.phase == Phase::Ended
    }

    /// Groups whose trajectories the driver must still have: kept and not yet trained, or not yet settled.
    pub fn held(&self) -> impl Iterator<Item = GroupId> {
        self.run.ledger.held()
    }

    /// Takes an event in and says what to do.
    ///
    /// # Errors
    /// Where the event does not fit; the machine is then as it was before.
    pub fn handle(&mut self, event: Event) -> Result<Vec<Command>> {
        let run = &mut self.run;
        let mut commands = Vec::new();
        match event {
            Event::BeginStep => {
                run.expect(run.phase == Phase::Idle, "begin_step")?;
                run.open(&mut commands);
                match &mut self.policy {
                    Policy::Rounds(policy) => policy.begin_step(run, &mut commands)?,
                    Policy::Streaming(policy) => policy.begin_step(run, &mut commands)?,
                }
            }
            Event::Dispatched { groups, version, exhausted } => {
                let drawn = run.note_dispatched(&groups, version, exhausted)?;
                match &mut self.policy {
                    Policy::Rounds(policy) => policy.note_dispatched(run, &groups, &drawn, &mut commands)?,
                    Policy::Streaming(policy) => policy.dispatched(run, &drawn, &mut commands)?,
                }
            }
            Event::Sampled { group, value } => {
                if !run.ledger.is_aborting(group) {
                    run.ledger.flight(group)?;
                    // A round is judged when it is complete.
                    if matches!(self.policy, Policy::Streaming(_)) {
                        run.see(group, value.unwrap_or(f64::NAN), &mut commands);
                    }
                }
            }
            Event::Screened { group, values, facts } => {
                if !run.ledger.is_aborting(group) {
                    self.screened(group, &values, facts, &mut commands)?;
                }
            }
            Event::Scored { group, values, facts } => {
                if self.ends_abort(group, facts.spent + facts.lost()) {
                    return Ok(commands);
                }
                let run = &mut self.run;
                run.ledger.flight(group)?;
                let expected = run.settings.group_size;
                if values.len() != expected {
                    let actual = values.len();
                    return Err(fault!(
                        "expected {expected} trajectories, got {actual} (group {group})",
                        group = group.0
                    )
                    .into());
                }
                // A driver that was quicker than the command has generated them all the same.
                run.ledger.begin_rest(group);
                run.ledger.spend(facts.lost());
                let scale = run.settings.metric.outcome_scale();
                let statistics = GroupStatistics::of(&values, scale);
                let first = FirstMembers::of(&values, run.settings.num_first_members(), scale);
                let summary = GroupSummary { first, ..GroupSummary::of(&statistics, facts) };
                self.finished(group, GroupOutcome::Scored(summary), &mut commands)?;
            }
            Event::Failed { group, spent } => {
                if self.ends_abort(group, spent) {
                    return Ok(commands);
                }
                self.run.ledger.flight(group)?;
                self.finished(group, GroupOutcome::Failed(spent), &mut commands)?;
            }
            Event::Aborted { group, spent } => {
                if !self.ends_abort(group, spent) {
                    return Err(fault!("group {group} is not being generated", group = group.0).into());
                }
            }
            Event::Trained { left_out, tokens, turns } => {
                run.note_trained(Members { trajectories: left_out, spent: Spent { tokens, turns } })?;
            }
            Event::Published { version } => run.note_published(version)?,
            Event::Cancelled => {
                run.expect(!matches!(run.phase, Phase::Training { .. } | Phase::Ended), "cancelled")?;
                if run.phase == Phase::Idle {
                    run.open(&mut commands);
                }
                match &mut self.policy {
                    Policy::Rounds(policy) => policy.finish(run, RunEnd::Cancelled, &mut commands)?,
                    Policy::Streaming(_) => run.finish(RunEnd::Cancelled, &mut commands)?,
                }
            }
        }
        Ok(commands)
    }

    /// The first members of a group are scored: it goes on where they differ, and ends where they are alike.
    /// Where too few of them have a metric to tell, it goes on.
    fn screened(
        &mut self,
        group: GroupId,
        values: &[f64],
        facts: GroupFacts,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        let run = &mut self.run;
        run.ledger.flight(group)?;
        let (expected, actual) = (run.settings.num_first_members(), values.len());
        if actual != expected {
            return Err(fault!(
                "expected {expected} trajectories, got {actual} (group {group})",
                group = group.0
            )
            .into());
        }
        let is_begun = run.ledger.num_begun(group) == Some(run.settings.group_size);
        let Policy::Streaming(policy) = &mut self.policy else { return Ok(()) };
        if is_begun {
            return Ok(());
        }
        for value in values {
            run.see(group, *value, commands);
        }
        let statistics = GroupStatistics::of(values, run.settings.metric.outcome_scale());
        if run.ledger.is_certain(group) || statistics.is_unscored() {
            run.begin_rest(group, commands);
            return Ok(());
        }
        run.ledger.spend(facts.lost());
        run.ledger.finish(group, GroupOutcome::Scored(GroupSummary::of(&statistics, facts)));
        policy.settled(run, group, Some(Verdict::Dropped(DropReason::Screened)), commands)
    }

    /// Takes the last word of a group that was given up, whatever it is.
    fn ends_abort(&mut self, group: GroupId, spent: Spent) -> bool {
        let is_aborting = self.run.ledger.is_aborting(group);
        let is_ended = self.is_ended();
        self.run.ledger.end_abort(group, spent, is_ended);
        is_aborting
    }

    fn finished(&mut self, group: GroupId, outcome: GroupOutcome, commands: &mut Vec<Command>) -> Result<()> {
        self.run.ledger.finish(group, outcome);
        match &mut self.policy {
            Policy::Rounds(policy) => policy.note_finished(&mut self.run, group, commands),
            Policy::Streaming(policy) => policy.finished(&mut self.run, group, commands),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::PolicyVersion;

    #[test]
    fn either_mode_may_be_given_more_steps() {
        let run = ScheduleSettings { total_steps: Some(1), ..ScheduleSettings::new(1, 2) };
        let streaming = StreamingSettings { run: run.clone(), mini_batch_size: 1, max_in_flight: 8 };
        for mut scheduler in [Scheduler::rounds(run).unwrap(), Scheduler::streaming(streaming).unwrap()] {
            let group = GroupId(0);
            let events = [
                Event::BeginStep,
                Event::Dispatched { groups: vec![group], version: PolicyVersion(0), exhausted: false },
                Event::Scored { group, values: vec![1.0, 0.0], facts: GroupFacts::default() },
                Event::Trained { left_out: 0, tokens: 0, turns: 0 },
                Event::Published { version: PolicyVersion(1) },
            ];
            for event in events {
                scheduler.handle(event).unwrap();
            }
            // The end is set further off, and then comes.
            scheduler.set_length(Some(2), None);
            assert!(matches!(scheduler.handle(Event::BeginStep).unwrap()[..], [Command::Draw { .. }]));
            assert!(!scheduler.is_ended());
            scheduler.handle(Event::Cancelled).unwrap();
            assert!(scheduler.is_ended());
        }
    }
}
