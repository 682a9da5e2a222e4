//! Laws of the machine under random choices, data, arrivals and timing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use crate::filter::{DropReason, GroupFilter, Variance, Verdict};
use crate::group::{GroupId, PolicyVersion};
use crate::random::{Key, Purpose};
use crate::schedule::run::Phase;
use crate::schedule::{
    Accounting, Command, Count, Event, FillOrder, GroupFacts, OnEmptyRound, OnExhausted, OnLimit, RoundLimit,
    ScheduleError, ScheduleSettings, Scheduler, Spent, StepClose, StreamingSettings, Surplus,
};

fn spent(count: Count) -> Spent {
    Spent { tokens: count.tokens, turns: count.turns }
}

fn settings() -> impl Strategy<Value = StreamingSettings> {
    let sizes = (1usize..6, 1usize..9, 1usize..6, 1usize..7, 1usize..20);
    let limit = prop_oneof![
        1 => Just(RoundLimit::None),
        2 => (1u64..4).prop_map(RoundLimit::Rounds),
        1 => Just(RoundLimit::Auto)
    ];
    let switches = (any::<bool>(), limit, 0u32..4, prop::option::of(2usize..4));
    let choices = (
        prop_oneof![Just(OnLimit::Error), Just(OnLimit::UsePartial), Just(OnLimit::Skip)],
        prop_oneof![
            Just(OnEmptyRound::Retry { times: None }),
            (0u32..3).prop_map(|times| OnEmptyRound::Retry { times: Some(times) }),
            Just(OnEmptyRound::Skip),
            Just(OnEmptyRound::Error)
        ],
        prop_oneof![Just(OnExhausted::NextEpoch), Just(OnExhausted::UsePartial), Just(OnExhausted::Stop)],
        prop_oneof![Just(Surplus::Discard), (1u64..4).prop_map(|max_lag| Surplus::Carry { max_lag })],
        prop_oneof![Just(FillOrder::Dispatch), Just(FillOrder::Completion)],
    );
    let ends = (prop::option::of(1u64..8), prop::option::of(1u64..5), prop::option::of(1u64..40));
    (sizes, switches, choices, ends).prop_map(
        |(sizes, switches, choices, (total_steps, total_epochs, num_prompts))| {
            let (train_batch_size, gen_batch_size, group_size, mini_batch_size, max_in_flight) = sizes;
            let (filter, max_num_gen_batches, max_skipped_steps, screen_first) = switches;
            // Only where it says something, and can.
            let screen_first = screen_first.filter(|first| filter && *first < group_size);
            let (on_limit, on_empty_round, on_exhausted, surplus, order) = choices;
            let run = ScheduleSettings {
                gen_batch_size,
                screen_first,
                filter: filter.then(|| GroupFilter::Variance(Variance::default())),
                max_num_gen_batches,
                on_limit,
                on_empty_round,
                on_exhausted,
                surplus,
                order,
                max_skipped_steps,
                total_steps,
                total_epochs,
                num_prompts,
                ..ScheduleSettings::new(train_batch_size, group_size)
            };
            StreamingSettings { run, mini_batch_size, max_in_flight }
        },
    )
}

/// Data and policy: what a group comes to is a function of its prompt and of the policy version that samples
/// it.
#[derive(Debug, Clone, Copy)]
struct World {
    seed: u64,
    per_epoch: u64,
    keep: f64,
    fail: f64,
    leave_out: f64,
    /// Whether the end of an epoch is said with the last prompts or only on the next draw.
    is_late: bool,
    /// The run is cancelled after so many events, at the next that it can be.
    cancel_after: Option<usize>,
    /// Steps after which the driver asks for no more.
    patience: usize,
}

fn world() -> impl Strategy<Value = World> {
    (
        any::<u64>(),
        0u64..20,
        prop_oneof![Just(0.0), Just(1.0), 0.0..1.0],
        prop_oneof![Just(0.0), 0.0..1.0],
        prop_oneof![Just(0.0), 0.0..=1.0],
        any::<bool>(),
        prop::option::weighted(0.2, 0usize..80),
    )
        .prop_map(|(seed, per_epoch, keep, fail, leave_out, is_late, cancel_after)| World {
            seed,
            per_epoch,
            keep,
            fail,
            leave_out,
            is_late,
            cancel_after,
            patience: 12,
        })
}

/// A prompt in an epoch.
type PromptOf = (u64, u64);

#[derive(Debug, Clone, Copy)]
struct InFlight {
    group: GroupId,
    prompt: PromptOf,
    version: u64,
    members_told: usize,
    /// Members that are begun.
    begun: usize,
}

#[derive(Debug, Default, PartialEq)]
struct Story {
    /// The events with the commands that answered them, as JSON.
    lines: Vec<String>,
    /// Prompts trained on, step by step.
    trained: Vec<Vec<PromptOf>>,
    is_ended: bool,
}

/// The driver's side: prompts, groups in flight, answers that are due.
struct Driver<'a> {
    world: &'a World,
    settings: &'a StreamingSettings,
    machine: Scheduler,
    epoch: u64,
    left: u64,
    returned: VecDeque<PromptOf>,
    next_group: u64,
    version: u64,
    flying: Vec<InFlight>,
    prompts: BTreeMap<GroupId, (PromptOf, u64)>,
    /// Groups that the machine still has.
    held: BTreeSet<GroupId>,
    /// Handed out and not closed.
    handed: Vec<GroupId>,
    due: VecDeque<Event>,
    aborting: Vec<GroupId>,
    /// What was generated as told so far, of everything.
    spent: Spent,
    /// That of trained groups.
    spent_on_trained: Spent,
    ends: BTreeMap<GroupId, &'static str>,
    left_behind: Accounting,
    /// Members that were begun of all groups.
    members_begun: u64,
    story: Story,
    lags: Vec<u64>,
}

impl<'a> Driver<'a> {
    fn new(world: &'a World, settings: &'a StreamingSettings) -> Self {
        Self {
            machine: Scheduler::streaming(settings.clone()).unwrap(),
            epoch: 0,
            left: world.per_epoch,
            returned: VecDeque::new(),
            next_group: 0,
            version: 0,
            flying: Vec::new(),
            prompts: BTreeMap::new(),
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

    /// The result of a group: the values of its members, or nothing where it fails.
    fn outcome(&self, group: &InFlight) -> Option<Vec<f64>> {
        let key = Key::new(self.world.seed, Purpose::Rollout)
            .with(group.prompt.0)
            .with(group.prompt.1)
            .with(group.version);
        if key.uniform(0) < self.world.fail {
            return None;
        }
        let n = self.settings.run.group_size;
        let mut values = vec![[0.0, 1.0, 0.5, f64::NAN][key.below(3, 4) as usize]; n];
        if key.uniform(2) < self.world.keep {
            values.fill(0.0);
            values[key.below(4, n as u64) as usize] = 1.0;
        }
        Some(values)
    }

    fn draw(&mut self, num_prompts: usize) -> Event {
        let mut groups = Vec::new();
        let mut exhausted = false;
        for _ in 0..num_prompts {
            let prompt = match self.returned.pop_front() {
                Some(prompt) => prompt,
                None if self.left > 0 => {
                    self.left -= 1;
                    (self.epoch, self.left)
                }
                None => {
                    exhausted = true;
                    break;
                }
            };
            let begun = self.settings.run.num_first_members();
            self.members_begun += begun as u64;
            let group = GroupId(self.next_group);
            self.next_group += 1;
            groups.push(group);
            self.flying.push(InFlight { group, prompt, version: self.version, members_told: 0, begun });
            self.prompts.insert(group, (prompt, self.version));
        }
        exhausted |= self.left == 0 && self.returned.is_empty() && !self.world.is_late;
        Event::Dispatched { groups, version: PolicyVersion(self.version), exhausted }
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
        // To the front, before those that came back earlier and were not drawn again.
        for group in close.returned.iter().rev() {
            self.returned.push_front(self.prompts[group].0);
        }
        let carried: BTreeSet<GroupId> = close.carried.iter().copied().collect();
        let flying: BTreeSet<GroupId> = self.flying.iter().map(|flight| flight.group).collect();
        assert_eq!(self.held, carried.union(&flying).copied().collect::<BTreeSet<_>>());
        assert!(close.report.max_lag <= self.machine.run.max_lag());
    }

    fn carry_out(&mut self, commands: &[Command]) {
        for command in commands {
            match command {
                Command::NextEpoch { epoch } => {
                    assert_eq!(*epoch, self.epoch + 1);
                    self.epoch += 1;
                    self.left = self.world.per_epoch;
                }
                Command::Draw { num_prompts, .. } => {
                    assert!(*num_prompts > 0);
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
                        self.lags.push(self.version - self.prompts[group].1);
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
                    let prompts = close.trained.iter().map(|group| self.prompts[group].0).collect();
                    self.story.trained.push(prompts);
                    let trained = close.report.accounting.trained;
                    let share = |number: u64| (self.world.leave_out * number as f64).round() as u64;
                    let Count { trajectories, turns, tokens, .. } = trained;
                    let (left_out, turns, tokens) = (share(trajectories), share(turns), share(tokens));
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

    /// The next event: one that is due, or something of a group in flight, as the dice say.
    fn next_event(&mut self, dice: Key, turn: u64) -> Option<Event> {
        // Nothing else happens between a draw and its answer: prompts are at hand.
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
            // Or it was done before it heard of it.
            return Some(if dice.with(turn).below(1, 2) == 0 {
                Event::Aborted { group, spent: Spent::on_answer(3) }
            } else {
                Event::Failed { group, spent: Spent::on_answer(3) }
            });
        }
        let place = pick - self.due.len() - self.aborting.len();
        let flight = self.flying[place];
        let outcome = self.outcome(&flight);
        let n = self.settings.run.group_size;
        if let Some(values) = &outcome
            && flight.members_told + 1 < flight.begun
        {
            self.flying[place].members_told += 1;
            let value = Some(values[flight.members_told]).filter(|value| !value.is_nan());
            return Some(Event::Sampled { group: flight.group, value });
        }
        if let Some(values) = &outcome
            && flight.begun < n
        {
            let facts = GroupFacts { spent: Spent { tokens: 3, turns: 1 }, ..GroupFacts::default() };
            let values = values[..flight.begun].to_vec();
            return Some(Event::Screened { group: flight.group, values, facts });
        }
        self.flying.swap_remove(place);
        let group = flight.group;
        Some(if let Some(values) = outcome {
            let facts = GroupFacts {
                spent: Spent { tokens: 5 + group.0 % 7, turns: group.0 % 4 },
                num_lost_tokens: group.0 % 3,
                num_lost_turns: group.0 % 2,
                is_identical_in_text: false,
            };
            Event::Scored { group, values, facts }
        } else {
            self.leave(&[group], "failed");
            Event::Failed { group, spent: Spent::on_answer(2) }
        })
    }

    /// Plays a run to its end, checking every law on the way; `timing` decides what happens when, and
    /// `resume` replaces the machine by its serialised self before every event.
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
            match &event {
                Event::Scored { facts, .. } => self.spent += facts.spent + facts.lost(),
                Event::Screened { group, facts, .. } => screened = Some((*group, facts.spent)),
                Event::Failed { spent, .. } | Event::Aborted { spent, .. } => self.spent += *spent,
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
                let text = serde_json::to_string(&self.machine).unwrap();
                let resumed: Scheduler = serde_json::from_str(&text).unwrap();
                assert_eq!(resumed, self.machine);
                self.machine = resumed;
            }
            let line = serde_json::to_string(&event).unwrap();
            let commands = self.machine.handle(event).unwrap();
            if let Some((group, spent)) = screened.filter(|(group, _)| !self.machine.awaits(*group)) {
                // What was generated for a group that goes on is told with the rest of it.
                self.spent += spent;
                assert_eq!(self.machine.num_begun(group), None);
            }
            self.story.lines.push(format!("{line} {}", serde_json::to_string(&commands).unwrap()));
            self.carry_out(&commands);
        }
        if self.story.is_ended {
            // What was given up is answered when the run has ended, and still counts.
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
            assert_eq!(totals.generated.groups, self.next_group);
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

/// Any event at all, sensible or not.
fn any_event() -> impl Strategy<Value = Event> {
    let group = || (0u64..12).prop_map(GroupId);
    let value = prop_oneof![Just(f64::NAN), Just(0.0), Just(1.0), any::<f64>()];
    let values = prop::collection::vec(value, 0..4);
    prop_oneof![
        2 => Just(Event::BeginStep),
        4 => (0u64..10, 0u64..5, 0u64..3, any::<bool>()).prop_map(|(first, count, version, exhausted)| {
            let groups = (first..first + count).map(GroupId).collect();
            Event::Dispatched { groups, version: PolicyVersion(version), exhausted }
        }),
        4 => (group(), values.clone()).prop_map(|(group, values)| Event::Screened { group, values, facts: GroupFacts::default() }),
        8 => (group(), values).prop_map(|(group, values)| Event::Scored { group, values, facts: GroupFacts::default() }),
        4 => (group(), prop::option::of(0.0..1.0f64)).prop_map(|(group, value)| Event::Sampled { group, value }),
        2 => group().prop_map(|group| Event::Failed { group, spent: Spent::on_answer(u64::from(u32::MAX)) }),
        1 => group().prop_map(|group| Event::Aborted { group, spent: Spent::on_answer(1) }),
        2 => (0u64..12, 0u64..30, 0u64..9).prop_map(|(left_out, tokens, turns)| Event::Trained { left_out, tokens, turns }),
        1 => (0u64..4).prop_map(|version| Event::Published { version: PolicyVersion(version) }),
        1 => Just(Event::Cancelled),
    ]
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

    /// Batches depend on the groups dispatched and their results, not on the time: on-policy, those of two
    /// runs are the same.
    #[test]
    fn in_dispatch_order_timing_does_not_matter(
        settings in settings(), world in world(), first in any::<u64>(), second in any::<u64>(),
    ) {
        let run = ScheduleSettings {
            order: FillOrder::Dispatch,
            surplus: Surplus::Discard,
            // How many groups in a row are dropped depends on which come first.
            on_empty_round: OnEmptyRound::Retry { times: None },
            // And so does how much the keep rate is known to be at any time.
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
        // A run without signal may end a few groups earlier or later: how many were dispatched in vain is a
        // matter of timing.
        let (short, long) =
            if first.trained.len() <= second.trained.len() { (first, second) } else { (second, first) };
        // Its last batch is short, even where the driver asked for no more before the end was said.
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
        settings in settings(),
        events in prop::collection::vec(any_event(), 0..60),
    ) {
        let mut machine = Scheduler::streaming(settings).unwrap();
        for event in events {
            let before = machine.clone();
            match machine.handle(event) {
                Ok(_) => {}
                Err(ScheduleError::Unbalanced(unbalanced)) => prop_assert!(false, "{unbalanced}"),
                Err(_) => prop_assert_eq!(&machine, &before),
            }
            let text = serde_json::to_string(&machine).unwrap();
            prop_assert_eq!(serde_json::from_str::<Scheduler>(&text).unwrap(), machine.clone());
        }
    }
}
