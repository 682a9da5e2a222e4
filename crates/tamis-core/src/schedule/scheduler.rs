//! The state machine of a run: what every mode does with an event, around the policy of its mode.

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

/// The scheduling machine of a run, in whole rounds or streaming. Code that drives it, saves it or reports on
/// it does not depend on the mode.
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
    /// A scheduler of whole generation rounds at the start of a run. Rounds of `gen_batch_size` prompts, or
    /// of as many as the batch probably lacks ([`RoundSize`](super::RoundSize)), repeat until the batch is
    /// full.
    ///
    /// All groups of a round settle before anything is decided, so the trained groups depend on arrival only
    /// with `order: completion`. The batch is the first `train_batch_size` kept groups, carried ones before
    /// new ones.
    ///
    /// **It always ends.** Besides the limits that the user sets, each of these stops the run: an epoch in
    /// which no group was kept, unless a later epoch of the same round keeps one; more than
    /// `max_skipped_steps` attempts at a step in a row that trained nothing; an epoch without a prompt. If
    /// prompts are passed over, an epoch of a few groups is weak evidence: then epochs in a row that kept
    /// nothing stop the run once as many groups were judged in them as there are prompts
    /// ([`Scheduler::set_num_prompts`]), or when the data end and no group of the run was kept. The remaining
    /// case, epochs that keep at least one group, is progress towards a batch.
    pub fn rounds(settings: ScheduleSettings) -> Result<Self> {
        settings.check()?;
        Ok(Self {
            run: ScheduleRun::new(settings, GoesBack::GivenUp),
            policy: Policy::Rounds(Rounds::default()),
        })
    }

    /// A streaming scheduler at the start of a run: it works group by group and replaces every dropped group.
    ///
    /// Groups are dispatched one draw at a time, whenever there is room for another. Every decision is made
    /// at an event, so nothing waits for a round. Finished mini-batches are handed out ([`Command::Train`])
    /// while the rest of the batch still generates. With `surplus: carry`, groups continue to generate and
    /// settle while a step trains.
    ///
    /// **Order.** With `order: dispatch`, a kept group enters the batch once every group dispatched before it
    /// is settled. The trained groups then depend only on which groups were dispatched, and short completions
    /// have no advantage over long ones. With `surplus: discard`, the prompts of all groups that were
    /// dispatched after the last one of a batch go back to the source, whatever their results
    /// ([`StepClose::returned`](super::StepClose)). The batches of a whole run are then independent of
    /// timing. `order: completion` takes groups as they finish.
    ///
    /// **First members.** With [`screen_first`](ScheduleSettings::screen_first), a group begins with this
    /// many members, and [`Command::Continue`] requests the others as soon as two differ. [`Event::Screened`]
    /// reports the results of the first members. If they are alike, the group is dropped; it counts with the
    /// members that were begun.
    ///
    /// **It always ends.** Each of these stops the run: epochs in a row that kept nothing, once they hold as
    /// many judged groups as there are prompts ([`Scheduler::set_num_prompts`]; if that is not known, a
    /// round's worth, `gen_batch_size`); the end of the data, if no group of the run was kept; more than
    /// `max_skipped_steps` attempts in a row that trained nothing. A step dispatches at most
    /// `max_num_gen_batches` × `gen_batch_size` groups.
    ///
    /// # Errors
    /// The settings contradict each other, the filter compares the groups of a round, or `screen_first` is
    /// set and the first members cannot show the filter's verdict on a group.
    ///
    /// ```
    /// use tamis_core::group::{GroupId, PolicyVersion};
    /// use tamis_core::schedule::{Command, Event, GroupFacts, ScheduleSettings, Scheduler, StreamingSettings};
    ///
    /// let run = ScheduleSettings::new(2, 2);
    /// let mut machine = Scheduler::streaming(StreamingSettings { run, mini_batch_size: 1, max_in_flight: 64 })?;
    /// // Two groups are needed, and the keep rate is unknown: no more are started.
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

    /// [`Self::streaming`] with another system's rule for starting groups.
    pub fn streaming_with(settings: StreamingSettings, admission: Admission) -> Result<Self> {
        let policy = Streaming::new(&settings, admission)?;
        Ok(Self {
            run: ScheduleRun::new(settings.run, GoesBack::Untrained),
            policy: Policy::Streaming(policy),
        })
    }

    /// The settings that every mode has: sizes, filter, limits, ends.
    pub fn settings(&self) -> &ScheduleSettings {
        &self.run.settings
    }

    /// Changes the length of the run: the only settings that may change when a run is resumed.
    pub fn set_length(&mut self, total_steps: Option<u64>, total_epochs: Option<u64>) {
        self.run.settings.total_steps = total_steps;
        self.run.settings.total_epochs = total_epochs;
    }

    /// Sets the number of prompts in the data, including those that are passed over. If it is unknown, each
    /// epoch counts as a whole pass over them.
    pub fn set_num_prompts(&mut self, num_prompts: usize) {
        self.run.settings.num_prompts = Some(num_prompts as u64);
    }

    /// Steps, rounds, epochs and prompts so far; rounds stay 0 in a streaming run.
    pub fn progress(&self) -> Progress {
        self.run.progress
    }

    /// Accounting of the groups of all closed steps.
    pub fn totals(&self) -> &Accounting {
        self.run.ledger.totals()
    }

    /// Whether it still waits for the result of a group.
    pub fn awaits(&self, group: GroupId) -> bool {
        self.run.ledger.is_in_flight(group)
    }

    /// Number of begun members of a group in flight; `None` if the group is not in flight.
    pub fn num_begun(&self, group: GroupId) -> Option<usize> {
        self.run.ledger.num_begun(group)
    }

    /// Whether it works in whole rounds and decides nothing before a round has settled.
    pub fn goes_by_rounds(&self) -> bool {
        matches!(self.policy, Policy::Rounds(_))
    }

    /// Whether the trained groups or their metrics depend on the order in which groups finish.
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

    /// Groups whose trajectories the driver must still hold: kept and not yet trained, or not yet settled.
    pub fn held(&self) -> impl Iterator<Item = GroupId> {
        self.run.ledger.held()
    }

    /// Processes an event and returns the commands that follow from it.
    ///
    /// # Errors
    /// The event does not fit the present state; the machine is then unchanged.
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
                // The driver has already generated the other members: it was quicker than the command.
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

    /// The first members of a group are scored: it continues if they differ and ends if they are alike. It
    /// also continues if too few of them have a metric.
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

    /// Handles the last event of an aborted group, whatever it is.
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
            // The end is moved further away, and then reached.
            scheduler.set_length(Some(2), None);
            assert!(matches!(scheduler.handle(Event::BeginStep).unwrap()[..], [Command::Draw { .. }]));
            assert!(!scheduler.is_ended());
            scheduler.handle(Event::Cancelled).unwrap();
            assert!(scheduler.is_ended());
        }
    }
}
