//! Laws of the machine under random choices, data, arrivals and timing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use crate::filter::{DropReason, Verdict};
use crate::group::{GroupId, PolicyVersion};
use crate::random::{Key, Purpose};
use crate::schedule::laws::{
    self as world, PromptOf, Prompts, World, any_events, check_nonsense, resumed, world,
};
use crate::schedule::run::Phase;
use crate::schedule::{
    Accounting, Command, Count, Event, FillOrder, GroupFacts, OnEmptyRound, OnLimit, RoundLimit,
    ScheduleSettings, Scheduler, Spent, StepClose, StreamingSettings, Surplus,
};

fn spent(count: Count) -> Spent {
    Spent { tokens: count.tokens, turns: count.turns }
}

fn settings() -> impl Strategy<Value = StreamingSettings> {
    let on_limit = prop_oneof![Just(OnLimit::Error), Just(OnLimit::UsePartial), Just(OnLimit::Skip)];
    let surplus =
        prop_oneof![Just(Surplus::Discard), (1u64..4).prop_map(|max_lag| Surplus::Carry { max_lag })];
    let own = (1usize..7, 1usize..20, prop::option::of(2usize..4), on_limit, surplus);
    (world::settings(), own).prop_map(
        |(run, (mini_batch_size, max_in_flight, screen_first, on_limit, surplus))| {
            // Only if the filter can judge by the first members and there are fewer of them than n.
            let screen_first = screen_first.filter(|first| run.filter.is_some() && *first < run.group_size);
            let run = ScheduleSettings { screen_first, on_limit, surplus, ..run };
            StreamingSettings { run, mini_batch_size, max_in_flight }
        },
    )
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    group: GroupId,
    members_told: usize,
    /// Number of begun members.
    begun: usize,
}

#[derive(Debug, Default, PartialEq)]
struct Story {
    /// The events and the commands in answer to them, as JSON.
    lines: Vec<String>,
    /// Prompts trained on, step by step.
    trained: Vec<Vec<PromptOf>>,
    is_ended: bool,
}

/// The driver's side: prompts, groups in flight, pending answers.
struct Driver<'a> {
    world: &'a World,
    settings: &'a StreamingSettings,
    machine: Scheduler,
    prompts: Prompts,
    version: u64,
    flying: Vec<InFlight>,
    /// Groups that the machine still holds.
    held: BTreeSet<GroupId>,
    /// Handed out and not closed.
    handed: Vec<GroupId>,
    due: VecDeque<Event>,
    aborting: Vec<GroupId>,
    /// Everything reported so far as generated.
    spent: Spent,
    /// The part of it that was spent on trained groups.
    spent_on_trained: Spent,
    ends: BTreeMap<GroupId, &'static str>,
    left_behind: Accounting,
    /// Number of begun members of all groups.
    members_begun: u64,
    story: Story,
    lags: Vec<u64>,
}

impl<'a> Driver<'a> {
    fn new(world: &'a World, settings: &'a StreamingSettings) -> Self {
        Self {
            machine: Scheduler::streaming(settings.clone()).unwrap(),
            prompts: Prompts::new(world),
            version: 0,
            flying: Vec::new(),
            held: BTreeSet::new(),
            handed: Vec::new(),
            due: VecDeque::from([Event::BeginStep]),
            aborting: Vec::new(),
            spent: Spent::default(),
            spent_on_trained: Spent::default(),
            ends: BTreeMap::new(),
            left_behind: Accounting::default(),
            members_begun: 0,
            story: Story::default(),
            lags: Vec::new(),
            world,
            settings,
        }
    }

    fn draw(&mut self, num_prompts: usize) -> Event {
        let event = self.prompts.draw(self.world, num_prompts, self.version);
        let begun = self.settings.run.num_first_members();
        if let Event::Dispatched { groups, .. } = &event {
            self.members_begun += (begun * groups.len()) as u64;
            self.flying.extend(groups.iter().map(|&group| InFlight { group, members_told: 0, begun }));
        }
        event
    }

    fn leave(&mut self, groups: &[GroupId], place: &'static str) {
        for group in groups {
            assert!(self.held.remove(group), "{group:?} went {place} and was not held");
            assert_eq!(self.ends.insert(*group, place), None, "{group:?} twice");
        }
    }

    fn close(&mut self, close: &StepClose, goes_on: bool) {
        let accounting = close.report.accounting;
        accounting.check().unwrap();
        assert_eq!(accounting.carried_in, self.left_behind.carried_out);
        assert_eq!(accounting.in_flight_in, self.left_behind.in_flight_out);
        self.left_behind = accounting;
        self.spent_on_trained += spent(accounting.trained);
        assert_eq!(close.trained, self.handed, "what was handed out is what the step trains");
        assert!(close.trained.len() <= self.settings.run.train_batch_size);
        for group in std::mem::take(&mut self.handed) {
            assert_eq!(self.ends.insert(group, "trained"), None, "{group:?} twice");
        }
        self.leave(&close.surplus, "surplus");
        self.leave(&close.stale, "stale");
        let back: BTreeSet<GroupId> = close.returned.iter().copied().collect();
        let given_up: BTreeSet<GroupId> =
            close.surplus.iter().chain(&close.stale).chain(&close.aborted).copied().collect();
        if goes_on {
            assert!(back.is_superset(&given_up));
            for group in back.difference(&given_up) {
                assert!(["dropped", "failed"].contains(&self.ends[group]), "{group:?}");
                assert!(close.trained.last().is_some_and(|last| last < group), "{group:?}");
            }
        } else {
            assert!(back.is_empty());
        }
        self.prompts.give_back(&close.returned);
        let carried: BTreeSet<GroupId> = close.carried.iter().copied().collect();
        let flying: BTreeSet<GroupId> = self.flying.iter().map(|flight| flight.group).collect();
        assert_eq!(self.held, carried.union(&flying).copied().collect::<BTreeSet<_>>());
        assert!(close.report.max_lag <= self.machine.run.max_lag());
    }

    fn carry_out(&mut self, commands: &[Command]) {
        for command in commands {
            match command {
                Command::NextEpoch { epoch } => {
                    self.prompts.begin_epoch(self.world);
                    assert_eq!(*epoch, self.prompts.epoch);
                }
                Command::Draw { num_prompts, .. } => {
                    let answer = self.draw(*num_prompts);
                    self.due.push_front(answer);
                }
                Command::Continue { group } => {
                    let n = self.settings.run.group_size;
                    let flight = self.flying.iter_mut().find(|flight| flight.group == *group);
                    let flight = flight.expect("only a group in flight goes on");
                    assert!(flight.begun < n, "once");
                    self.members_begun += (n - flight.begun) as u64;
                    flight.begun = n;
                }
                Command::Judged { group, verdict } => {
                    if *verdict == Verdict::Dropped(DropReason::Screened) {
                        self.flying.retain(|flight| flight.group != *group);
                    }
                    if !verdict.is_kept() {
                        self.leave(&[*group], "dropped");
                    }
                }
                Command::Train { groups, part, .. } => {
                    assert!(!groups.is_empty() && groups.len() <= self.settings.mini_batch_size);
                    assert!((*part == 0) == self.handed.is_empty());
                    for group in groups {
                        assert!(self.held.remove(group));
                        self.lags.push(self.version - self.prompts.of[group].1);
                    }
                    self.handed.extend(groups);
                }
                Command::Abort { groups } => {
                    self.leave(groups, "aborted");
                    self.flying.retain(|flight| !groups.contains(&flight.group));
                    self.aborting.extend(groups);
                }
                Command::StepClosed(close) => {
                    assert!(!close.trained.is_empty());
                    self.story.trained.push(self.prompts.of_groups(&close.trained));
                    let left_out = self.world.left_out(close.report.accounting.trained);
                    let Count { trajectories: left_out, turns, tokens, .. } = left_out;
                    self.close(close, true);
                    self.due.push_back(Event::Trained { left_out, tokens, turns });
                }
                Command::SkipStep { close, .. } => {
                    assert!(close.trained.is_empty());
                    self.close(close, true);
                    self.due.push_back(Event::BeginStep);
                }
                Command::Finish { close, .. } => {
                    self.story.is_ended = true;
                    self.close(close, false);
                }
                Command::Stop { diagnosis, close } => {
                    assert!(!diagnosis.to_string().is_empty());
                    self.story.is_ended = true;
                    self.close(close, false);
                }
                Command::RoundComplete(_) | Command::StepReady(_) => {
                    panic!("{command:?} is not of streaming")
                }
            }
        }
        assert!(self.flying.len() <= self.settings.max_in_flight);
        // Stale groups are named when the step closes.
        let held: BTreeSet<GroupId> =
            self.machine.held().chain(self.machine.run.step.stale.iter().copied()).collect();
        assert_eq!(held, self.held);
    }

    /// The next event: a pending one, or a random one of a group in flight.
    fn next_event(&mut self, dice: Key, turn: u64) -> Option<Event> {
        // Nothing happens between a draw and its answer: prompts are at hand.
        if matches!(self.due.front(), Some(Event::Dispatched { .. })) {
            return self.due.pop_front();
        }
        let choices = self.flying.len() + self.due.len() + self.aborting.len();
        if choices == 0 {
            return None;
        }
        let pick = dice.with(turn).below(0, choices as u64) as usize;
        if pick < self.due.len() {
            return self.due.pop_front();
        }
        if pick < self.due.len() + self.aborting.len() {
            let group = self.aborting.swap_remove(pick - self.due.len());
            // Or it finished before the abort reached it.
            return Some(if dice.with(turn).below(1, 2) == 0 {
                Event::Aborted { group, spent: Spent::on_answer(3) }
            } else {
                Event::Failed { group, spent: Spent::on_answer(3) }
            });
        }
        let place = pick - self.due.len() - self.aborting.len();
        let flight = self.flying[place];
        let n = self.settings.run.group_size;
        let outcome = self.world.outcome(self.prompts.of[&flight.group], n);
        if let Some((values, _)) = &outcome
            && flight.members_told + 1 < flight.begun
        {
            self.flying[place].members_told += 1;
            let value = Some(values[flight.members_told]).filter(|value| !value.is_nan());
            return Some(Event::Sampled { group: flight.group, value });
        }
        if let Some((values, _)) = &outcome
            && flight.begun < n
        {
            let facts = GroupFacts { spent: Spent { tokens: 3, turns: 1 }, ..GroupFacts::default() };
            let values = values[..flight.begun].to_vec();
            return Some(Event::Screened { group: flight.group, values, facts });
        }
        self.flying.swap_remove(place);
        let group = flight.group;
        Some(if let Some((values, facts)) = outcome {
            Event::Scored { group, values, facts }
        } else {
            self.leave(&[group], "failed");
            Event::Failed { group, spent: Spent::on_answer(2) }
        })
    }

    /// Runs to the end and checks every law on the way. `timing` decides when things happen; with `resume`
    /// the machine is replaced by its deserialised state before every event.
    fn play(mut self, timing: u64, resume: bool) -> Story {
        let dice = Key::new(timing, Purpose::Shuffle);
        for turn in 0.. {
            assert!(turn < 40_000, "does not end: {:?} {:?}", self.settings, self.world);
            if self.story.is_ended {
                break;
            }
            let is_training = matches!(self.machine.run.phase, Phase::Training { .. });
            let is_cancelled =
                self.world.cancel_after.is_some_and(|after| turn >= after as u64) && !is_training;
            let awaits_prompts = matches!(self.due.front(), Some(Event::Dispatched { .. }));
            let event = if is_cancelled && !awaits_prompts {
                Event::Cancelled
            } else {
                let Some(event) = self.next_event(dice, turn) else {
                    panic!("stuck: {:?} {:?} {:?}", self.machine, self.settings, self.world)
                };
                event
            };
            let mut screened = None;
            if event == Event::BeginStep && self.story.trained.len() >= self.world.patience {
                break;
            }
            self.spent += world::spent(&event);
            match &event {
                Event::Screened { group, facts, .. } => screened = Some((*group, facts.spent)),
                Event::Dispatched { groups, .. } => self.held.extend(groups),
                Event::Trained { .. } => {
                    self.due.push_back(Event::Published { version: PolicyVersion(self.version + 1) });
                }
                Event::Published { version } => {
                    self.version = version.0;
                    self.due.push_back(Event::BeginStep);
                }
                _ => {}
            }
            if resume {
                self.machine = resumed(&self.machine);
            }
            let line = serde_json::to_string(&event).unwrap();
            let commands = self.machine.handle(event).unwrap();
            if let Some((group, spent)) = screened.filter(|(group, _)| !self.machine.awaits(*group)) {
                // What was generated for a continuing group is reported with the rest of it.
                self.spent += spent;
                assert_eq!(self.machine.num_begun(group), None);
            }
            self.story.lines.push(format!("{line} {}", serde_json::to_string(&commands).unwrap()));
            self.carry_out(&commands);
        }
        if self.story.is_ended {
            // Aborted groups are answered after the end of the run, and still count.
            for group in std::mem::take(&mut self.aborting) {
                self.spent += Spent::on_answer(11);
                let last = Event::Aborted { group, spent: Spent::on_answer(11) };
                assert_eq!(self.machine.handle(last), Ok(Vec::new()));
            }
            assert_eq!(spent(self.machine.totals().generated), self.spent);
        }
        let totals = *self.machine.totals();
        totals.check().unwrap();
        assert_eq!(spent(totals.trained) + spent(totals.left_out), self.spent_on_trained);
        let count = |place: &str| self.ends.values().filter(|end| **end == place).count() as u64;
        for (place, counted) in
            [("trained", totals.trained), ("surplus", totals.surplus), ("stale", totals.stale)]
        {
            assert_eq!(counted.groups, count(place), "{place}");
        }
        if self.story.is_ended {
            assert!(self.held.is_empty(), "{:?}", self.held);
            assert_eq!(totals.generated.groups as usize, self.prompts.of.len());
            assert_eq!(totals.generated.trajectories, self.members_begun, "what is begun is counted");
            for (place, counted) in
                [("dropped", totals.dropped), ("failed", totals.failed), ("aborted", totals.aborted)]
            {
                assert_eq!(counted.groups, count(place), "{place}");
            }
            assert!(self.machine.handle(Event::BeginStep).is_err());
        }
        // No prompt of an epoch is trained twice.
        let mut once = BTreeSet::new();
        assert!(self.story.trained.iter().flatten().all(|prompt| once.insert(*prompt)));
        assert!(self.lags.iter().all(|lag| *lag <= self.machine.run.max_lag()), "{:?}", self.lags);
        self.story
    }
}

fn play(world: &World, settings: &StreamingSettings, timing: u64, resume: bool) -> Story {
    Driver::new(world, settings).play(timing, resume)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn every_run_ends_and_balances(settings in settings(), world in world(), timing in any::<u64>()) {
        let story = play(&world, &settings, timing, false);
        prop_assert!(story.is_ended || story.trained.len() >= world.patience);
    }

    #[test]
    fn the_same_events_give_the_same_commands_also_after_a_resume(
        settings in settings(), world in world(), timing in any::<u64>(),
    ) {
        prop_assert_eq!(play(&world, &settings, timing, false), play(&world, &settings, timing, true));
    }

    #[test]
    fn in_dispatch_order_timing_does_not_matter(
        settings in settings(), world in world(), first in any::<u64>(), second in any::<u64>(),
    ) {
        let run = ScheduleSettings {
            order: FillOrder::Dispatch,
            surplus: Surplus::Discard,
            // The number of dropped groups in a row depends on their order.
            on_empty_round: OnEmptyRound::Retry { times: None },
            // So does the certainty of the keep rate at any time.
            max_num_gen_batches: match settings.run.max_num_gen_batches {
                RoundLimit::Auto => RoundLimit::None,
                limit => limit,
            },
            ..settings.run
        };
        let settings = StreamingSettings { run, ..settings };
        let world = World { cancel_after: None, ..world };
        let target = settings.run.train_batch_size;
        let (first, second) = (play(&world, &settings, first, false), play(&world, &settings, second, false));
        // A run without signal may end a few groups earlier or later: timing decides how many were dispatched
        // in vain.
        let (short, long) =
            if first.trained.len() <= second.trained.len() { (first, second) } else { (second, first) };
        // Its last batch may be short, even if the driver asked for no more before the end was reported.
        for (i, (batch, other)) in short.trained.iter().zip(&long.trained).enumerate() {
            let common = batch.len().min(other.len());
            let is_full = common == target;
            if i + 1 < short.trained.len() || (is_full && !short.is_ended) {
                prop_assert_eq!(batch, other);
            } else {
                prop_assert_eq!(&batch[..common], &other[..common]);
            }
        }
    }

    #[test]
    fn nonsense_is_refused_and_leaves_the_machine_as_it_was(
        settings in settings(), events in any_events(),
    ) {
        check_nonsense(Scheduler::streaming(settings).unwrap(), events);
    }
}
