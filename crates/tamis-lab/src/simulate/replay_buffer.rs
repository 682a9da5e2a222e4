//! The replay buffer of verl's default trainer (verl 0.9.1, `trainer/ppo/v1/replay_buffer.py`).
//!
//! No schedule of tamis resembles it. The buffer polls for ended groups every two seconds, and decides on all
//! of them at once.
//!
//! | | synchronous | asynchronous |
//! |---|---|---|
//! | at the start of a step | a batch of prompts | the same; before the first step, one more batch |
//! | for each dropped group | two prompts, if there is room for them | one prompt |
//! | a batch is full | it awaits groups in flight and drops the surplus | it is trained at once; the rest stays |
//! | a group that is too old | does not occur | dropped and replaced |
//!
//! It takes the events of the scheduler and answers with its commands.

use std::collections::BTreeMap;

use tamis_core::filter::{GroupFilter, GroupStatistics, Scope};
use tamis_core::group::{GroupId, PolicyVersion};
use tamis_core::schedule::{
    Accounting, Command, Count, Event, GroupSummary, ScheduleSettings, SettingsError, Spent, StepClose,
    StepReport, Tally,
};

/// Seconds between two polls.
pub(crate) const POLL: f64 = 2.0;
/// Prompts that the synchronous trainer starts for each dropped group.
const CREDIT: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VerlTrainer {
    /// `sync`, with at most `max_in_flight` prompts in flight.
    Synchronous { max_in_flight: usize },
    /// `colocate_async` and `separate_async`: a group may be up to `max_lag` steps old.
    Asynchronous { max_lag: u64 },
}

/// A group in flight, or one that has ended and is not trained yet.
#[derive(Debug, Clone, Copy)]
struct Held {
    step: u64,
    version: PolicyVersion,
    spent: Spent,
}

/// State of the buffer during a run.
#[derive(Debug)]
pub(crate) struct ReplayBuffer {
    settings: ScheduleSettings,
    filter: GroupFilter,
    trainer: VerlTrainer,
    in_flight: BTreeMap<GroupId, Held>,
    /// Groups that ended since the last poll.
    ended: BTreeMap<GroupId, (Held, GroupStatistics, GroupSummary)>,
    /// Kept groups in order of dispatch.
    kept: BTreeMap<GroupId, Held>,
    stale: Vec<GroupId>,
    /// Prompts to start as soon as there is room.
    credit: usize,
    is_draining: bool,
    is_open: bool,
    step: u64,
    version: PolicyVersion,
    epoch: u64,
    is_epoch_over: bool,
    asked: usize,
    /// Groups judged since the last kept one.
    in_vain: u64,
    tally: Tally,
    accounting: Accounting,
}

impl ReplayBuffer {
    /// The buffer at the start of a run.
    ///
    /// # Errors
    /// The filter compares the groups of a round.
    pub(crate) fn new(settings: ScheduleSettings, trainer: VerlTrainer) -> Result<Self, SettingsError> {
        let filter = settings.filter.unwrap_or_default();
        if filter.scope() == Scope::Pool {
            return Err(SettingsError::PoolFilter { filter: filter.name() });
        }
        Ok(Self {
            settings,
            filter,
            trainer,
            in_flight: BTreeMap::new(),
            ended: BTreeMap::new(),
            kept: BTreeMap::new(),
            stale: Vec::new(),
            credit: 0,
            is_draining: false,
            is_open: false,
            step: 0,
            version: PolicyVersion::default(),
            epoch: 0,
            is_epoch_over: false,
            asked: 0,
            in_vain: 0,
            tally: Tally::default(),
            accounting: Accounting::default(),
        })
    }

    pub(crate) fn settings(&self) -> &ScheduleSettings {
        &self.settings
    }

    pub(crate) fn set_num_prompts(&mut self, num_prompts: usize) {
        self.settings.num_prompts = Some(num_prompts as u64);
    }

    /// Whether it polls again after [`POLL`] seconds.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_open && self.asked == 0
    }

    /// Number of groups judged since the last kept one, if they cover the whole data: verl would run forever.
    pub(crate) fn in_vain(&self) -> Option<u64> {
        let all = self.settings.num_prompts.unwrap_or(u64::MAX).max(self.settings.train_batch_size as u64);
        Some(self.in_vain).filter(|in_vain| *in_vain >= all)
    }

    pub(crate) fn handle(&mut self, event: Event) -> Vec<Command> {
        match event {
            Event::BeginStep => {
                self.step += 1;
                (self.is_open, self.is_draining, self.credit) = (true, false, 0);
                let batch = self.settings.train_batch_size;
                let warms_up = self.step == 1 && matches!(self.trainer, VerlTrainer::Asynchronous { .. });
                self.draw(if warms_up { 2 * batch } else { batch })
            }
            Event::Dispatched { groups, version, exhausted } => {
                let held = Held { step: self.step, version, spent: Spent::default() };
                self.accounting.generated += self.count(groups.len(), Spent::default());
                self.is_epoch_over = exhausted;
                self.asked = self.asked.saturating_sub(groups.len());
                self.in_flight.extend(groups.into_iter().map(|group| (group, held)));
                if self.asked > 0 { self.draw(self.asked) } else { self.poll() }
            }
            Event::Scored { group, values, facts } => {
                if let Some(held) = self.in_flight.remove(&group) {
                    let statistics = GroupStatistics::of(&values, self.settings.metric.outcome_scale());
                    let summary = GroupSummary::of(&statistics, facts);
                    self.accounting.generated += facts.spent;
                    self.ended.insert(group, (Held { spent: facts.spent, ..held }, statistics, summary));
                }
                Vec::new()
            }
            Event::Published { version } => {
                self.version = version;
                Vec::new()
            }
            // Groups are never screened, aborted or lost here, and a step is closed as soon as it is ready.
            _ => Vec::new(),
        }
    }

    /// Processes ended groups: drops and replaces them, and closes the step if its batch is full.
    pub(crate) fn poll(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        let num_dropped = self.judge(&mut commands) + self.evict_stale();
        let batch = self.settings.train_batch_size;
        let is_full = self.kept.len() >= batch;
        let (refill, is_ready) = match self.trainer {
            VerlTrainer::Synchronous { max_in_flight } => {
                self.is_draining |= is_full;
                self.credit = if self.is_draining { 0 } else { self.credit + CREDIT * num_dropped };
                let refill = self.credit.min(max_in_flight.saturating_sub(self.in_flight.len()));
                self.credit -= refill;
                (refill, is_full && self.in_flight.is_empty())
            }
            VerlTrainer::Asynchronous { .. } => (num_dropped, is_full),
        };
        // It polls again as soon as these have started.
        if refill > 0 {
            commands.extend(self.draw(refill));
        } else if is_ready {
            commands.push(Command::StepReady(Box::new(self.close())));
        }
        commands
    }

    fn draw(&mut self, num_prompts: usize) -> Vec<Command> {
        let mut commands = Vec::new();
        if std::mem::take(&mut self.is_epoch_over) {
            self.epoch += 1;
            commands.push(Command::NextEpoch { epoch: self.epoch });
        }
        self.asked = num_prompts;
        commands.push(Command::Draw { step: self.step, round: 1, num_prompts });
        commands
    }

    fn count(&self, groups: usize, spent: Spent) -> Count {
        Count::of(groups, self.settings.group_size, spent)
    }

    /// Judges ended groups, and returns the number of dropped ones.
    fn judge(&mut self, commands: &mut Vec<Command>) -> usize {
        let ended = std::mem::take(&mut self.ended);
        let statistics: Vec<GroupStatistics> = ended.values().map(|(_, statistics, _)| *statistics).collect();
        let verdicts = self.filter.judge(&statistics, self.settings.metric.outcome_scale());
        let mut num_dropped = 0;
        for ((group, (held, _, summary)), verdict) in ended.into_iter().zip(verdicts) {
            self.tally.add_judged(verdict, &summary);
            commands.push(Command::Judged { group, verdict });
            if verdict.is_kept() {
                self.kept.insert(group, held);
                self.in_vain = 0;
            } else {
                self.accounting.dropped += self.count(1, held.spent);
                self.in_vain += 1;
                num_dropped += 1;
            }
        }
        num_dropped
    }

    /// Drops groups that started too many steps ago, and returns their number.
    fn evict_stale(&mut self) -> usize {
        let VerlTrainer::Asynchronous { max_lag } = self.trainer else { return 0 };
        let is_stale = |held: &Held| self.step - held.step > max_lag;
        let stale: Vec<GroupId> =
            self.kept.iter().filter(|(_, held)| is_stale(held)).map(|(group, _)| *group).collect();
        for group in &stale {
            let spent = self.kept.remove(group).map(|held| held.spent).unwrap_or_default();
            self.accounting.stale += self.count(1, spent);
        }
        self.stale.extend(&stale);
        stale.len()
    }

    /// Closes the step with a batch of the oldest groups.
    fn close(&mut self) -> StepClose {
        self.is_open = false;
        let mut left = std::mem::take(&mut self.kept).into_iter();
        let batch: Vec<(GroupId, Held)> = left.by_ref().take(self.settings.train_batch_size).collect();
        let max_lag = batch.iter().map(|(_, held)| self.version.0 - held.version.0).max().unwrap_or(0);
        let spent = batch.iter().map(|(_, held)| held.spent).sum();
        self.accounting.trained += self.count(batch.len(), spent);
        let mut surplus = Vec::new();
        if let VerlTrainer::Synchronous { .. } = self.trainer {
            for (group, held) in left {
                self.accounting.surplus += self.count(1, held.spent);
                surplus.push(group);
            }
        } else {
            self.kept = left.collect();
        }
        let report = StepReport {
            step: self.step,
            epoch: self.epoch,
            target: self.settings.train_batch_size,
            num_accumulated: batch.len() + surplus.len() + self.kept.len(),
            all: std::mem::take(&mut self.tally),
            accounting: std::mem::take(&mut self.accounting),
            max_lag,
            is_filtered: true,
            may_stay_in_flight: matches!(self.trainer, VerlTrainer::Asynchronous { .. }),
            ..StepReport::default()
        };
        StepClose {
            trained: batch.into_iter().map(|(group, _)| group).collect(),
            kept_when_insufficient: Vec::new(),
            duplicated: Vec::new(),
            surplus,
            stale: std::mem::take(&mut self.stale),
            carried: self.kept.keys().copied().collect(),
            aborted: Vec::new(),
            returned: Vec::new(),
            report,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tamis_core::schedule::GroupFacts;

    use super::*;

    fn buffer(batch: usize, trainer: VerlTrainer) -> ReplayBuffer {
        ReplayBuffer::new(ScheduleSettings::new(batch, 2), trainer).unwrap()
    }

    /// Starts groups, and returns the buffer's commands.
    fn dispatch(buffer: &mut ReplayBuffer, ids: std::ops::Range<u64>) -> Vec<Command> {
        let groups = ids.map(GroupId).collect();
        buffer.handle(Event::Dispatched { groups, version: buffer.version, exhausted: false })
    }

    fn score(buffer: &mut ReplayBuffer, id: u64, is_mixed: bool) {
        let values = vec![1.0, if is_mixed { 0.0 } else { 1.0 }];
        let facts = GroupFacts { spent: Spent { tokens: 3, turns: 2 }, ..GroupFacts::default() };
        let said = buffer.handle(Event::Scored { group: GroupId(id), values, facts });
        assert_eq!(said, [], "nothing is decided between two looks");
    }

    fn drawn(commands: &[Command]) -> Option<usize> {
        commands.iter().find_map(|command| match command {
            Command::Draw { num_prompts, .. } => Some(*num_prompts),
            _ => None,
        })
    }

    fn closed(commands: &[Command]) -> Option<&StepClose> {
        commands.iter().find_map(|command| match command {
            Command::StepReady(close) => Some(&**close),
            _ => None,
        })
    }

    fn ids(groups: &[GroupId]) -> Vec<u64> {
        groups.iter().map(|group| group.0).collect()
    }

    /// Batches of four, with at most four groups in flight. Each dropped group gives two prompts as soon as
    /// there is room, and unused credit stays. A full batch waits for groups in flight, which are then
    /// dropped.
    #[test]
    fn the_synchronous_trainer_starts_two_and_throws_the_rest_away() {
        let mut buffer = buffer(4, VerlTrainer::Synchronous { max_in_flight: 4 });
        assert_eq!(drawn(&buffer.handle(Event::BeginStep)), Some(4));
        assert_eq!(dispatch(&mut buffer, 0..4), []);
        (0..3).for_each(|id| score(&mut buffer, id, id == 0));
        // Two of three are dropped, which gives credit for four; one is in flight.
        assert_eq!(drawn(&buffer.poll()), Some(3));
        assert_eq!(dispatch(&mut buffer, 4..7), []);
        assert_eq!(buffer.credit, 1);
        (3..6).for_each(|id| score(&mut buffer, id, true));
        let commands = buffer.poll();
        // The batch is full: nothing more starts, and the last group is awaited.
        assert_eq!((drawn(&commands), closed(&commands)), (None, None));
        assert!(buffer.is_waiting());
        score(&mut buffer, 6, true);
        let commands = buffer.poll();
        let close = closed(&commands).unwrap();
        assert_eq!((ids(&close.trained), ids(&close.surplus)), (vec![0, 3, 4, 5], vec![6]));
        let accounting = close.report.accounting;
        assert_eq!(accounting.check(), Ok(()));
        assert_eq!((accounting.generated.groups, accounting.dropped.groups), (7, 2));
        assert!(!buffer.is_waiting());
        // The next step starts with its own batch and no group of this one.
        assert_eq!(drawn(&buffer.handle(Event::BeginStep)), Some(4));
        assert!(buffer.kept.is_empty() && buffer.credit == 0);
    }

    #[test]
    fn the_asynchronous_trainer_starts_one_and_keeps_the_rest_until_it_is_too_old() {
        let mut buffer = buffer(2, VerlTrainer::Asynchronous { max_lag: 1 });
        // A warm-up batch and the step's own batch.
        assert_eq!(drawn(&buffer.handle(Event::BeginStep)), Some(4));
        dispatch(&mut buffer, 0..4);
        (0..3).for_each(|id| score(&mut buffer, id, id > 0));
        assert_eq!(drawn(&buffer.poll()), Some(1));
        let commands = dispatch(&mut buffer, 4..5);
        assert_eq!(ids(&closed(&commands).unwrap().trained), [1, 2]);
        for version in 1..3 {
            buffer.handle(Event::Published { version: PolicyVersion(version) });
            let first = 3 + 2 * version;
            buffer.handle(Event::BeginStep);
            if version == 1 {
                (3..5).for_each(|id| score(&mut buffer, id, true));
                let commands = dispatch(&mut buffer, first..first + 2);
                let close = closed(&commands).unwrap();
                assert_eq!((ids(&close.trained), close.report.max_lag), (vec![3, 4], 1));
            }
        }
        // The two groups from the second step end in the fourth, and are replaced.
        dispatch(&mut buffer, 7..9);
        buffer.step += 1;
        (5..9).for_each(|id| score(&mut buffer, id, true));
        assert_eq!(drawn(&buffer.poll()), Some(2));
        let commands = dispatch(&mut buffer, 9..11);
        let close = closed(&commands).unwrap();
        assert_eq!((ids(&close.trained), ids(&close.stale)), (vec![7, 8], vec![5, 6]));
    }

    #[test]
    fn data_without_a_mixed_group_is_noticed() {
        let mut buffer = buffer(2, VerlTrainer::Synchronous { max_in_flight: 2 });
        buffer.set_num_prompts(4);
        buffer.handle(Event::BeginStep);
        for first in [0, 2] {
            assert_eq!(buffer.in_vain(), None);
            dispatch(&mut buffer, first..first + 2);
            (first..first + 2).for_each(|id| score(&mut buffer, id, false));
            buffer.poll();
        }
        assert_eq!(buffer.in_vain(), Some(4));
    }
}
