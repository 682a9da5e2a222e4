//! Laws of the machine under random choices, data and arrivals.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use crate::filter::{DropReason, GroupFilter, Variance, Verdict};
use crate::group::{GroupId, PolicyVersion};
use crate::random::{Key, Purpose};
use crate::schedule::{
    Accounting, Command, Count, Event, FillOrder, GroupFacts, MOST_BATCHES, Members, OnEmptyRound,
    OnExhausted, OnLimit, RoundLimit, RoundSize, ScheduleError, ScheduleSettings, Scheduler, Spent,
    StepClose, Surplus,
};

fn settings() -> impl Strategy<Value = ScheduleSettings> {
    let deficit =
        (1usize..5, 0.0..3.0f64).prop_map(|(granularity, margin)| RoundSize::Deficit { granularity, margin });
    let size = prop_oneof![Just(RoundSize::Fixed), deficit];
    let rounds_in_flight = prop_oneof![2 => Just(1usize), 1 => 2usize..5];
    let sizes = (1usize..6, 1usize..9, 1usize..4, size, rounds_in_flight);
    let limit = prop_oneof![
        1 => Just(RoundLimit::None),
        2 => (1u64..4).prop_map(RoundLimit::Rounds),
        1 => Just(RoundLimit::Auto)
    ];
    let switches = (any::<bool>(), any::<bool>(), limit, 0u32..4);
    let choices = (
        prop_oneof![
            Just(OnLimit::Error),
            Just(OnLimit::UsePartial),
            Just(OnLimit::Skip),
            Just(OnLimit::KeepDropped),
            Just(OnLimit::Duplicate)
        ],
        prop_oneof![
            Just(OnEmptyRound::Retry { times: None }),
            (0u32..3).prop_map(|times| OnEmptyRound::Retry { times: Some(times) }),
            Just(OnEmptyRound::Skip),
            Just(OnEmptyRound::Error)
        ],
        prop_oneof![Just(OnExhausted::NextEpoch), Just(OnExhausted::UsePartial), Just(OnExhausted::Stop)],
        prop_oneof![Just(Surplus::Discard), (0u64..4).prop_map(|max_lag| Surplus::Carry { max_lag })],
        prop_oneof![Just(FillOrder::Dispatch), Just(FillOrder::Completion)],
    );
    let ends = (prop::option::of(1u64..8), prop::option::of(1u64..5), prop::option::of(1u64..40));
    (sizes, switches, choices, ends).prop_map(
        |(sizes, switches, choices, (total_steps, total_epochs, num_prompts))| {
            let (train_batch_size, gen_batch_size, group_size, size, rounds_in_flight) = sizes;
            let (filter, refill, max_num_gen_batches, max_skipped_steps) = switches;
            let (on_limit, on_empty_round, on_exhausted, surplus, order) = choices;
            let gen_batch_size = match (filter, refill) {
                (false, _) => train_batch_size,
                (true, false) => gen_batch_size.max(train_batch_size),
                (true, true) => gen_batch_size,
            };
            ScheduleSettings {
                gen_batch_size,
                // Without a filter or refill a round is the batch.
                size: if filter && refill && rounds_in_flight == 1 { size } else { RoundSize::Fixed },
                rounds_in_flight,
                filter: filter.then(|| GroupFilter::Variance(Variance::default())),
                refill,
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
            }
        },
    )
}

/// Data and policy: what a group comes to is a function of its prompt and of the policy version that samples
/// it.
#[derive(Debug, Clone, Copy)]
struct World {
    seed: u64,
    per_epoch: usize,
    keep: f64,
    /// Share of the trained members that bear no loss.
    leave_out: f64,
    fail: f64,
    /// Whether the end of an epoch is told with the last prompts or only on the next draw.
    is_late: bool,
    /// The run is cancelled after so many events.
    cancel_after: Option<usize>,
    /// Steps after which the driver asks for no more.
    patience: u64,
}

fn world() -> impl Strategy<Value = World> {
    (
        any::<u64>(),
        0usize..20,
        prop_oneof![Just(0.0), Just(1.0), 0.0..1.0],
        prop_oneof![Just(0.0), 0.0..1.0],
        prop_oneof![Just(0.0), 0.0..=1.0],
        any::<bool>(),
        prop::option::weighted(0.2, 0usize..60),
    )
        .prop_map(|(seed, per_epoch, keep, fail, leave_out, is_late, cancel_after)| World {
            seed,
            per_epoch,
            keep,
            leave_out,
            fail,
            is_late,
            cancel_after,
            patience: 12,
        })
}

/// A prompt in an epoch.
type PromptOf = (u64, usize);

#[derive(Debug, Default, PartialEq)]
struct Story {
    /// The commands as JSON, one entry an event.
    lines: Vec<String>,
    /// Prompts trained on, step by step.
    trained: Vec<Vec<PromptOf>>,
    /// The end of the run, where it ended.
    end: Option<String>,
}

impl World {
    fn event(&self, group: GroupId, prompt: PromptOf, version: u64, group_size: usize) -> Event {
        let key = Key::new(self.seed, Purpose::Rollout).with(prompt.0).with(prompt.1 as u64).with(version);
        if key.uniform(0) < self.fail {
            return Event::Failed { group, spent: Spent::on_answer(key.below(1, 100)) };
        }
        // Kept: one member differs. Dropped for every reason that the variance filter has.
        let uniform = [0.0, 1.0, 0.5, f64::NAN][key.below(3, 4) as usize];
        let mut values = vec![uniform; group_size];
        if key.uniform(2) < self.keep {
            values.fill(0.0);
            values[key.below(4, group_size as u64) as usize] = 1.0;
        }
        let facts = GroupFacts {
            spent: Spent { tokens: key.below(5, 1000), turns: key.below(8, 9) },
            num_lost_tokens: key.below(7, 3),
            num_lost_turns: key.below(9, 2),
            is_identical_in_text: key.below(6, 2) == 0,
        };
        Event::Scored { group, values, facts }
    }

    /// Plays a run to its end, checking every law on the way; `shuffle` permutes arrivals, and `resume`
    /// replaces the machine by its serialised self before every event.
    fn play(&self, settings: &ScheduleSettings, shuffle: Option<u64>, resume: bool) -> Story {
        let mut machine = Scheduler::rounds(settings.clone()).unwrap();
        let mut story = Story::default();
        let (mut next, mut version, mut epoch, mut left) = (0u64, 0u64, 0u64, self.per_epoch);
        let mut returned: VecDeque<PromptOf> = VecDeque::new();
        let mut prompts: BTreeMap<GroupId, (PromptOf, u64)> = BTreeMap::new();
        let (mut left_out, mut spent) = (Count::default(), Spent::default());
        let mut fates: BTreeMap<GroupId, &'static str> = BTreeMap::new();
        let mut verdicts: BTreeMap<GroupId, Verdict> = BTreeMap::new();
        let mut copies = 0;
        let mut flying: Vec<GroupId> = Vec::new();
        let mut aborting: Vec<GroupId> = Vec::new();
        let mut due = VecDeque::new();
        let mut event = Event::BeginStep;
        for events in 0.. {
            assert!(events < 20_000, "does not end: {settings:?} {self:?}");
            if self.cancel_after.is_some_and(|after| events >= after)
                && !matches!(event, Event::Trained { .. })
            {
                match event {
                    // What was asked for is not started any more.
                    Event::Dispatched { groups, .. } => prompts.retain(|group, _| !groups.contains(group)),
                    Event::Scored { group, .. } | Event::Failed { group, .. } => flying.push(group),
                    Event::Aborted { group, .. } => aborting.push(group),
                    _ => {}
                }
                event = Event::Cancelled;
            }
            if resume {
                let text = serde_json::to_string(&machine).unwrap();
                let resumed: Scheduler = serde_json::from_str(&text).unwrap();
                assert_eq!(resumed, machine);
                machine = resumed;
            }
            match &event {
                Event::Dispatched { groups, .. } => flying.extend(groups),
                Event::Scored { facts, .. } => spent += facts.spent + facts.lost(),
                Event::Failed { spent: told, .. } | Event::Aborted { spent: told, .. } => spent += *told,
                _ => {}
            }
            let commands = machine.handle(event.clone()).unwrap();
            story.lines.push(serde_json::to_string(&commands).unwrap());
            for command in &commands {
                let mut goes_on = true;
                let close = match command {
                    Command::Train { .. } | Command::StepClosed(_) | Command::Continue { .. } => {
                        panic!("{command:?} is of streaming")
                    }
                    Command::Abort { groups } => {
                        assert!(groups.iter().all(|group| flying.contains(group)));
                        flying.retain(|group| !groups.contains(group));
                        aborting.extend(groups);
                        continue;
                    }
                    Command::NextEpoch { .. } => {
                        assert!(returned.is_empty(), "prompts of an epoch are drawn in it");
                        epoch += 1;
                        left = self.per_epoch;
                        continue;
                    }
                    Command::Draw { num_prompts, .. } => {
                        assert!(*num_prompts > 0);
                        let most = match settings.max_num_gen_batches.most(settings) {
                            Some(limit) => limit as usize,
                            None => MOST_BATCHES as usize,
                        };
                        assert!(*num_prompts <= most * settings.gen_batch_size);
                        let mut groups = Vec::new();
                        while groups.len() < *num_prompts {
                            let prompt = match returned.pop_front() {
                                Some(prompt) => prompt,
                                None if left > 0 => {
                                    left -= 1;
                                    (epoch, left)
                                }
                                None => break,
                            };
                            groups.push(GroupId(next));
                            prompts.insert(GroupId(next), (prompt, version));
                            next += 1;
                        }
                        let is_over = left == 0 && returned.is_empty();
                        let exhausted = groups.len() < *num_prompts || (is_over && !self.is_late);
                        let version = PolicyVersion(version);
                        due.push_front(Event::Dispatched { groups, version, exhausted });
                        continue;
                    }
                    Command::Judged { group, verdict } => {
                        assert_eq!(verdicts.insert(*group, *verdict), None, "{group:?} judged twice");
                        continue;
                    }
                    Command::RoundComplete(report) => {
                        assert!(report.to_string().starts_with("step "));
                        continue;
                    }
                    Command::StepReady(close) => {
                        let size = close.trained.len() + close.duplicated.len();
                        assert!(!close.trained.is_empty() && size <= settings.train_batch_size);
                        let may_be_short = settings.is_one_round()
                            || matches!(settings.on_limit, OnLimit::UsePartial | OnLimit::KeepDropped)
                            || settings.on_exhausted == OnExhausted::UsePartial;
                        assert!(may_be_short || size == settings.train_batch_size);
                        check_fill(settings, close, &verdicts);
                        copies += close.duplicated.len() as u64;
                        version += 1;
                        let batch = close.trained.iter().chain(&close.duplicated);
                        story.trained.push(batch.map(|group| prompts[group].0).collect());
                        let trained = close.report.accounting.trained;
                        let share = |number: u64| (self.leave_out * number as f64).round() as u64;
                        let Count { trajectories, turns, tokens, .. } = trained;
                        let (trajectories, turns, tokens) =
                            (share(trajectories), share(turns), share(tokens));
                        let mut report = close.report;
                        report.leave_out(Members { trajectories, spent: Spent { tokens, turns } });
                        report.accounting.check().unwrap();
                        let Accounting { trained, kept_when_insufficient, duplicated, .. } =
                            report.accounting;
                        let mut batch = trained;
                        batch += kept_when_insufficient;
                        batch += duplicated;
                        assert_eq!(report.batch.groups, batch.groups);
                        assert_eq!(report.batch.trajectories, batch.trajectories);
                        assert_eq!(report.batch.tokens, batch.tokens);
                        left_out += Count { groups: 0, trajectories, turns, tokens };
                        due.push_back(Event::Trained { left_out: trajectories, tokens, turns });
                        close
                    }
                    Command::SkipStep { close, .. } => {
                        assert!(close.trained.is_empty());
                        due.push_back(Event::BeginStep);
                        close
                    }
                    Command::Finish { why, close } => {
                        story.end = Some(format!("{why:?}"));
                        goes_on = false;
                        close
                    }
                    Command::Stop { diagnosis, close } => {
                        assert!(!diagnosis.to_string().is_empty());
                        story.end = Some(format!("{:?}", diagnosis.cause));
                        goes_on = false;
                        close
                    }
                };
                let accounting = close.report.accounting;
                accounting.check().unwrap();
                if let Some(limit) = settings.max_num_gen_batches.most(settings) {
                    let most = limit * settings.gen_batch_size as u64;
                    assert!(accounting.generated.groups <= most, "bounded waste");
                }
                let ahead = (settings.rounds_in_flight - 1) * settings.gen_batch_size;
                assert!(!goes_on || accounting.aborted.groups <= ahead as u64, "bounded waste");
                assert!(accounting.in_flight_out.groups <= ahead as u64);
                if let Surplus::Carry { max_lag } = settings.surplus {
                    assert!(close.report.max_lag <= max_lag);
                } else {
                    assert_eq!(close.report.max_lag, 0);
                    assert_eq!(accounting.in_flight_out, Count::default());
                }
                let is_kept = |group: &&GroupId| !close.kept_when_insufficient.contains(group);
                let kept: Vec<GroupId> = close.trained.iter().filter(is_kept).copied().collect();
                for (place, groups) in [
                    ("trained", &kept),
                    ("kept_when_insufficient", &close.kept_when_insufficient),
                    ("surplus", &close.surplus),
                    ("stale", &close.stale),
                    ("aborted", &close.aborted),
                ] {
                    for group in groups {
                        assert_eq!(fates.insert(*group, place), None, "{group:?} twice");
                    }
                }
                assert!(close.returned.is_empty() || goes_on);
                assert!(close.returned.is_sorted());
                for group in close.returned.iter().rev() {
                    let place = fates.get(group);
                    assert!(!matches!(place, Some(&("trained" | "kept_when_insufficient" | "surplus"))));
                    returned.push_front(prompts[group].0);
                }
                assert!(!close.aborted.iter().any(|group| flying.contains(group)));
            }
            if story.end.is_some() {
                break;
            }
            match event {
                Event::Trained { .. } => {
                    due.push_back(Event::Published { version: PolicyVersion(version) });
                }
                Event::Published { .. } if story.trained.len() as u64 >= self.patience => break,
                Event::Published { .. } => due.push_back(Event::BeginStep),
                _ => {}
            }
            let pick = |choices: usize| {
                shuffle.map_or(0, |seed| {
                    Key::new(seed, Purpose::Shuffle).below(events as u64, choices as u64) as usize
                })
            };
            let choices = aborting.len() + flying.len();
            // Groups settle while a step trains; nothing comes between a draw and its answer.
            let settles = choices > 0 && shuffle.is_some() && pick(3) == 0;
            let is_draw = matches!(due.front(), Some(Event::Dispatched { .. }));
            event = match due.pop_front() {
                Some(event) if is_draw || !settles => event,
                later => {
                    due.extend(later);
                    assert!(choices > 0, "stuck after {event:?}: {settings:?} {self:?}");
                    let place = pick(choices);
                    if place < aborting.len() {
                        Event::Aborted { group: aborting.swap_remove(place), spent: Spent::on_answer(3) }
                    } else {
                        let group = flying.remove(place - aborting.len());
                        let (prompt, version) = prompts[&group];
                        self.event(group, prompt, version, settings.group_size)
                    }
                }
            };
        }
        if story.end.is_some() {
            assert!(flying.is_empty());
            // What was given up is answered when the run has ended, and still counts.
            for group in aborting {
                spent += Spent::on_answer(7);
                let (prompt, version) = prompts[&group];
                let last = match self.event(group, prompt, version, settings.group_size) {
                    Event::Scored { values, .. } => {
                        let facts = GroupFacts { spent: Spent::on_answer(7), ..GroupFacts::default() };
                        Event::Scored { group, values, facts }
                    }
                    _ => Event::Aborted { group, spent: Spent::on_answer(7) },
                };
                assert_eq!(machine.handle(last.clone()), Ok(Vec::new()));
                assert!(machine.handle(last).is_err());
            }
            assert_eq!(machine.totals().generated.groups as usize, prompts.len());
            let Count { turns, tokens, .. } = machine.totals().generated;
            assert_eq!(Spent { tokens, turns }, spent);
            assert_eq!(machine.totals().carried_out, Count::default());
            assert_eq!(machine.totals().in_flight_out, Count::default());
            assert_eq!(machine.held().count(), 0);
            assert!(machine.handle(Event::BeginStep).is_err());
        }
        let totals = machine.totals();
        totals.check().unwrap();
        let count = |place: &str| fates.values().filter(|fate| **fate == place).count() as u64;
        assert_eq!(totals.trained.groups, count("trained"));
        assert_eq!(totals.kept_when_insufficient.groups, count("kept_when_insufficient"));
        assert_eq!(totals.duplicated.groups, copies);
        assert_eq!(totals.left_out, left_out);
        let members = (totals.trained.groups as usize * settings.group_size) as u64;
        assert_eq!(totals.trained.trajectories + left_out.trajectories, members);
        assert_eq!(totals.surplus.groups, count("surplus"));
        assert_eq!(totals.stale.groups, count("stale"));
        assert_eq!(totals.aborted.groups, count("aborted"));
        assert_eq!(machine.progress().steps, story.trained.len() as u64);
        story
    }
}

/// What fills a batch beside kept groups is what the settings say, and was judged so.
fn check_fill(settings: &ScheduleSettings, close: &StepClose, verdicts: &BTreeMap<GroupId, Verdict>) {
    let StepClose { trained, kept_when_insufficient, duplicated, .. } = close;
    assert!(kept_when_insufficient.is_empty() || settings.on_limit == OnLimit::KeepDropped);
    assert!(duplicated.is_empty() || settings.on_limit == OnLimit::Duplicate);
    assert!(kept_when_insufficient.is_sorted());
    assert!(kept_when_insufficient.iter().chain(duplicated).all(|group| trained.contains(group)));
    for group in trained {
        let verdict = verdicts[group];
        assert_eq!(verdict.is_kept(), !kept_when_insufficient.contains(group), "{group:?}: {verdict:?}");
        assert_ne!(verdict, Verdict::Dropped(DropReason::Unscored));
    }
    assert!(trained.len() > kept_when_insufficient.len(), "nothing was kept");
    let times = |group| duplicated.iter().filter(|copy| *copy == group).count();
    let (least, most) = (trained.iter().map(times).min(), trained.iter().map(times).max());
    assert!(most <= least.map(|least| least + 1), "copies are spread evenly");
    if settings.order == FillOrder::Dispatch {
        assert!(trained.is_sorted());
    }
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
        8 => (group(), values).prop_map(|(group, values)| {
            Event::Scored { group, values, facts: GroupFacts { spent: Spent { tokens: 7, turns: 3 }, is_identical_in_text: true, ..GroupFacts::default() } }
        }),
        2 => group().prop_map(|group| Event::Failed { group, spent: Spent::on_answer(u64::from(u32::MAX)) }),
        2 => (0u64..12, 0u64..30, 0u64..9).prop_map(|(left_out, tokens, turns)| Event::Trained { left_out, tokens, turns }),
        1 => (0u64..4).prop_map(|version| Event::Published { version: PolicyVersion(version) }),
        1 => Just(Event::Cancelled),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn every_run_ends_and_balances(settings in settings(), world in world()) {
        let story = world.play(&settings, None, false);
        prop_assert!(story.end.is_some() || story.trained.len() as u64 == world.patience);
    }

    #[test]
    fn the_same_events_give_the_same_commands_also_after_a_resume(settings in settings(), world in world()) {
        prop_assert_eq!(world.play(&settings, None, false), world.play(&settings, None, true));
    }

    #[test]
    fn in_dispatch_order_arrival_does_not_matter(settings in settings(), world in world(), seed in any::<u64>()) {
        let settings = ScheduleSettings { order: FillOrder::Dispatch, rounds_in_flight: 1, ..settings };
        let world = World { cancel_after: None, ..world };
        let (first, second) = (world.play(&settings, None, false), world.play(&settings, Some(seed), false));
        prop_assert_eq!(&first.trained, &second.trained);
        // The commands too: the events in between answer with none.
        prop_assert_eq!(first.lines, second.lines);
    }

    /// However many rounds are in flight and whatever comes first: the batches and the end of the run are
    /// those of rounds one by one.
    #[test]
    fn rounds_in_flight_change_no_batch(
        settings in settings(), world in world(), rounds_in_flight in 2usize..5, seed in any::<u64>(),
    ) {
        let one = ScheduleSettings {
            order: FillOrder::Dispatch,
            surplus: Surplus::Discard,
            size: RoundSize::Fixed,
            rounds_in_flight: 1,
            ..settings
        };
        // Who draws ahead learns earlier that an epoch is over where that is told late.
        let world = World { cancel_after: None, is_late: false, ..world };
        let several = ScheduleSettings { rounds_in_flight, ..one.clone() };
        let (one, several) = (world.play(&one, None, false), world.play(&several, Some(seed), false));
        prop_assert_eq!((one.trained, one.end), (several.trained, several.end));
    }

    #[test]
    fn nonsense_is_refused_and_leaves_the_machine_as_it_was(
        settings in settings(),
        events in prop::collection::vec(any_event(), 0..60),
    ) {
        let mut machine = Scheduler::rounds(settings).unwrap();
        for event in events {
            let before = machine.clone();
            match machine.handle(event) {
                Ok(commands) => {
                    for command in commands {
                        if let Command::StepReady(close) | Command::SkipStep { close, .. } | Command::Finish { close, .. } | Command::Stop { close, .. } = command {
                            prop_assert_eq!(close.report.accounting.check(), Ok(()));
                        }
                    }
                }
                Err(ScheduleError::Unbalanced(unbalanced)) => prop_assert!(false, "{unbalanced}"),
                Err(_) => prop_assert_eq!(&machine, &before),
            }
            let text = serde_json::to_string(&machine).unwrap();
            prop_assert_eq!(serde_json::from_str::<Scheduler>(&text).unwrap(), machine.clone());
        }
    }
}
