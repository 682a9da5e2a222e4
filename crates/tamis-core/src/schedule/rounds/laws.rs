//! Laws of the machine under random choices, data and arrivals.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use crate::filter::{DropReason, Verdict};
use crate::group::{GroupId, PolicyVersion};
use crate::random::{Key, Purpose};
use crate::schedule::laws::{
    self as world, PromptOf, Prompts, World, any_events, check_nonsense, resumed, world,
};
use crate::schedule::{
    Accounting, Command, Count, Event, FillOrder, GroupFacts, MOST_BATCHES, Members, OnExhausted, OnLimit,
    RoundSize, ScheduleSettings, Scheduler, Spent, StepClose, Surplus,
};

fn settings() -> impl Strategy<Value = ScheduleSettings> {
    let deficit =
        (1usize..5, 0.0..3.0f64).prop_map(|(granularity, margin)| RoundSize::Deficit { granularity, margin });
    let size = prop_oneof![Just(RoundSize::Fixed), deficit];
    let rounds_in_flight = prop_oneof![2 => Just(1usize), 1 => 2usize..5];
    let on_limit = prop::sample::select(OnLimit::ALL);
    let surplus =
        prop_oneof![Just(Surplus::Discard), (0u64..4).prop_map(|max_lag| Surplus::Carry { max_lag })];
    let own = (size, rounds_in_flight, any::<bool>(), on_limit, surplus);
    (world::settings(), own).prop_map(|(run, (size, rounds_in_flight, refill, on_limit, surplus))| {
        let filter = run.filter.is_some();
        ScheduleSettings {
            gen_batch_size: match (filter, refill) {
                (false, _) => run.train_batch_size,
                (true, false) => run.gen_batch_size.max(run.train_batch_size),
                (true, true) => run.gen_batch_size,
            },
            // Without a filter or refill a round is the batch.
            size: if filter && refill && rounds_in_flight == 1 { size } else { RoundSize::Fixed },
            rounds_in_flight,
            refill,
            on_limit,
            surplus,
            ..run
        }
    })
}

#[derive(Debug, Default, PartialEq)]
struct Story {
    /// The commands as JSON, one entry an event.
    lines: Vec<String>,
    /// Prompts trained on, step by step.
    trained: Vec<Vec<PromptOf>>,
    /// The end of the run, if it ended.
    end: Option<String>,
}

impl World {
    fn event(&self, group: GroupId, prompts: &Prompts, settings: &ScheduleSettings) -> Event {
        let (prompt, version) = prompts.of[&group];
        match self.outcome((prompt, version), settings.group_size) {
            Some((values, facts)) => Event::Scored { group, values, facts },
            None => Event::Failed { group, spent: Spent::on_answer(1 + prompt.1) },
        }
    }

    /// Runs to the end and checks every law on the way. `shuffle` permutes arrivals; with `resume` the
    /// machine is replaced by its deserialised state before every event.
    fn play(&self, settings: &ScheduleSettings, shuffle: Option<u64>, resume: bool) -> Story {
        let mut machine = Scheduler::rounds(settings.clone()).unwrap();
        let mut story = Story::default();
        let (mut version, mut prompts) = (0u64, Prompts::new(self));
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
                    // Prompts that were requested are no longer started.
                    Event::Dispatched { groups, .. } => prompts.of.retain(|group, _| !groups.contains(group)),
                    Event::Scored { group, .. } | Event::Failed { group, .. } => flying.push(group),
                    Event::Aborted { group, .. } => aborting.push(group),
                    _ => {}
                }
                event = Event::Cancelled;
            }
            if resume {
                machine = resumed(&machine);
            }
            if let Event::Dispatched { groups, .. } = &event {
                flying.extend(groups);
            }
            spent += world::spent(&event);
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
                        assert!(prompts.returned.is_empty(), "prompts of an epoch are drawn in it");
                        prompts.begin_epoch(self);
                        continue;
                    }
                    Command::Draw { num_prompts, .. } => {
                        let most = match settings.max_num_gen_batches.most(settings) {
                            Some(limit) => limit as usize,
                            None => MOST_BATCHES as usize,
                        };
                        assert!(*num_prompts <= most * settings.gen_batch_size);
                        due.push_front(prompts.draw(self, *num_prompts, version));
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
                        story.trained.push(prompts.of_groups(batch));
                        let without_loss = self.left_out(close.report.accounting.trained);
                        let Count { trajectories, turns, tokens, .. } = without_loss;
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
                        left_out += without_loss;
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
                for group in &close.returned {
                    let place = fates.get(group);
                    assert!(!matches!(place, Some(&("trained" | "kept_when_insufficient" | "surplus"))));
                }
                prompts.give_back(&close.returned);
                assert!(!close.aborted.iter().any(|group| flying.contains(group)));
            }
            if story.end.is_some() {
                break;
            }
            match event {
                Event::Trained { .. } => {
                    due.push_back(Event::Published { version: PolicyVersion(version) });
                }
                Event::Published { .. } if story.trained.len() >= self.patience => break,
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
                        self.event(group, &prompts, settings)
                    }
                }
            };
        }
        if story.end.is_some() {
            assert!(flying.is_empty());
            // Aborted groups are answered after the end of the run, and still count.
            for group in aborting {
                spent += Spent::on_answer(7);
                let last = match self.event(group, &prompts, settings) {
                    Event::Scored { values, .. } => {
                        let facts = GroupFacts { spent: Spent::on_answer(7), ..GroupFacts::default() };
                        Event::Scored { group, values, facts }
                    }
                    _ => Event::Aborted { group, spent: Spent::on_answer(7) },
                };
                assert_eq!(machine.handle(last.clone()), Ok(Vec::new()));
                assert!(machine.handle(last).is_err());
            }
            assert_eq!(machine.totals().generated.groups as usize, prompts.of.len());
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

/// Groups that fill a batch besides kept ones are allowed by the settings, and were judged accordingly.
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn every_run_ends_and_balances(settings in settings(), world in world()) {
        let story = world.play(&settings, None, false);
        prop_assert!(story.end.is_some() || story.trained.len() == world.patience);
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
        // The commands are equal too: the events in between have no commands.
        prop_assert_eq!(first.lines, second.lines);
    }

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
        // A driver that draws ahead learns earlier that an epoch has ended, if that is reported late.
        let world = World { cancel_after: None, is_late: false, ..world };
        let several = ScheduleSettings { rounds_in_flight, ..one.clone() };
        let (one, several) = (world.play(&one, None, false), world.play(&several, Some(seed), false));
        prop_assert_eq!((one.trained, one.end), (several.trained, several.end));
    }

    #[test]
    fn nonsense_is_refused_and_leaves_the_machine_as_it_was(
        settings in settings(), events in any_events(),
    ) {
        check_nonsense(Scheduler::rounds(settings).unwrap(), events);
    }
}
