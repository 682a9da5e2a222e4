//! Laws of the machine under random choices, data and arrivals.

use proptest::prelude::*;

use super::*;
use crate::filter::{GroupFilter, Variance};
use crate::random::{Key, Purpose};
use crate::schedule::{GroupFacts, MOST_BATCHES, OnEmptyRound, OnExhausted, OnLimit, RoundSize, Surplus};

fn settings() -> impl Strategy<Value = ScheduleSettings> {
    let deficit =
        (1usize..5, 0.0..3.0f64).prop_map(|(granularity, margin)| RoundSize::Deficit { granularity, margin });
    let size = prop_oneof![Just(RoundSize::Fixed), deficit];
    let sizes = (1usize..6, 1usize..9, 1usize..4, size);
    let switches = (any::<bool>(), any::<bool>(), -1i64..4, 0u32..4);
    let choices = (
        prop_oneof![Just(OnLimit::Error), Just(OnLimit::UsePartial), Just(OnLimit::Skip)],
        prop_oneof![
            Just(OnEmptyRound::Retry { times: None }),
            (0u32..3).prop_map(|times| OnEmptyRound::Retry { times: Some(times) }),
            Just(OnEmptyRound::Skip),
            Just(OnEmptyRound::Error)
        ],
        prop_oneof![Just(OnExhausted::NextEpoch), Just(OnExhausted::UsePartial), Just(OnExhausted::Stop)],
        prop_oneof![Just(Surplus::Discard), (0u64..4).prop_map(|max_lag| Surplus::Carry { max_lag })],
        prop_oneof![Just(Order::Dispatch), Just(Order::Completion)],
    );
    let ends = (prop::option::of(1u64..8), prop::option::of(1u64..5));
    (sizes, switches, choices, ends).prop_map(|(sizes, switches, choices, (total_steps, total_epochs))| {
        let (train_batch_size, gen_batch_size, group_size, size) = sizes;
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
            size: if filter && refill { size } else { RoundSize::Fixed },
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
            ..ScheduleSettings::new(train_batch_size, group_size)
        }
    })
}

/// Data and policy: a function of the group id alone.
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

#[derive(Debug, Default, PartialEq)]
struct Story {
    /// The commands as JSON, one entry an event.
    lines: Vec<String>,
    trained: Vec<Vec<GroupId>>,
    is_ended: bool,
}

impl World {
    fn event(&self, group: GroupId, group_size: usize) -> Event {
        let key = Key::new(self.seed, Purpose::Rollout).with(group.0);
        if key.uniform(0) < self.fail {
            return Event::Failed { group, num_tokens: key.below(1, 100) };
        }
        // Kept: one member differs. Dropped for every reason that the variance filter has.
        let uniform = [0.0, 1.0, 0.5, f64::NAN][key.below(3, 4) as usize];
        let mut values = vec![uniform; group_size];
        if key.uniform(2) < self.keep {
            values.fill(0.0);
            values[key.below(4, group_size as u64) as usize] = 1.0;
        }
        let facts = GroupFacts { num_tokens: key.below(5, 1000), is_identical_in_text: key.below(6, 2) == 0 };
        Event::Scored { group, values, facts }
    }

    /// Plays a run to its end, checking every law on the way; `shuffle` permutes arrivals within a round, `resume` replaces the machine by its
    /// serialised self before every event.
    fn play(&self, settings: &ScheduleSettings, shuffle: Option<u64>, resume: bool) -> Story {
        let mut rounds = Rounds::new(settings.clone()).unwrap();
        let mut story = Story::default();
        let (mut next, mut version, mut left) = (0u64, 0u64, self.per_epoch);
        let mut generated = 0usize;
        let mut left_out = 0;
        let mut fates: BTreeMap<GroupId, &'static str> = BTreeMap::new();
        let mut flying: Vec<GroupId> = Vec::new();
        let mut event = Event::BeginStep;
        for events in 0.. {
            assert!(events < 20_000, "does not end: {settings:?} {self:?}");
            if self.cancel_after.is_some_and(|after| events >= after)
                && !matches!(event, Event::Trained { .. })
            {
                event = Event::Cancelled;
            }
            if resume {
                let text = serde_json::to_string(&rounds).unwrap();
                rounds = serde_json::from_str(&text).unwrap();
            }
            if let Event::Dispatched { groups, .. } = &event {
                generated += groups.len();
                flying.extend(groups);
            }
            let commands = rounds.handle(event.clone()).unwrap();
            story.lines.push(serde_json::to_string(&commands).unwrap());
            let mut following = None;
            for command in &commands {
                let close = match command {
                    Command::Train { .. } | Command::Abort { .. } | Command::StepClosed(_) => {
                        panic!("{command:?} is of streaming")
                    }
                    Command::NextEpoch { .. } => {
                        left = self.per_epoch;
                        continue;
                    }
                    Command::Draw { num_prompts, .. } => {
                        assert!(*num_prompts > 0);
                        let most = match settings.round_limit() {
                            Some(limit) => limit as usize,
                            None => MOST_BATCHES as usize,
                        };
                        assert!(*num_prompts <= most * settings.gen_batch_size);
                        let take = left.min(*num_prompts);
                        left -= take;
                        let groups: Vec<GroupId> = (next..next + take as u64).map(GroupId).collect();
                        next += take as u64;
                        let exhausted = take < *num_prompts || (left == 0 && !self.is_late);
                        following =
                            Some(Event::Dispatched { groups, version: PolicyVersion(version), exhausted });
                        continue;
                    }
                    Command::Judged { .. } => continue,
                    Command::RoundComplete(report) => {
                        assert!(report.to_string().starts_with("step "));
                        continue;
                    }
                    Command::StepReady(close) => {
                        assert!(
                            !close.trained.is_empty() && close.trained.len() <= settings.train_batch_size
                        );
                        let may_be_short = settings.is_one_round()
                            || settings.on_limit == OnLimit::UsePartial
                            || settings.on_exhausted == OnExhausted::UsePartial;
                        assert!(may_be_short || close.trained.len() == settings.train_batch_size);
                        version += 1;
                        story.trained.push(close.trained.clone());
                        let trajectories = close.report.accounting.trained.trajectories;
                        let without_loss = (self.leave_out * trajectories as f64).round() as u64;
                        let mut report = close.report;
                        report.leave_out(without_loss, 0);
                        report.accounting.check().unwrap();
                        assert_eq!(report.batch.trajectories, report.accounting.trained.trajectories);
                        left_out += without_loss;
                        following = Some(Event::Trained { left_out: without_loss });
                        close
                    }
                    Command::SkipStep { close, .. } => {
                        assert!(close.trained.is_empty());
                        following = Some(Event::BeginStep);
                        close
                    }
                    Command::Finish { close, .. } => {
                        story.is_ended = true;
                        close
                    }
                    Command::Stop { diagnosis, close } => {
                        assert!(!diagnosis.to_string().is_empty());
                        story.is_ended = true;
                        close
                    }
                };
                close.report.accounting.check().unwrap();
                if let Some(limit) = settings.round_limit() {
                    let generated = close.report.accounting.generated.groups;
                    assert!(generated <= limit * settings.gen_batch_size as u64, "bounded waste");
                }
                if let Surplus::Carry { max_lag } = settings.surplus {
                    assert!(close.report.max_lag <= max_lag);
                } else {
                    assert_eq!(close.report.max_lag, 0);
                }
                for (place, groups) in [
                    ("trained", &close.trained),
                    ("surplus", &close.surplus),
                    ("stale", &close.stale),
                    ("aborted", &close.aborted),
                ] {
                    for group in groups {
                        assert_eq!(fates.insert(*group, place), None, "{group:?} twice");
                    }
                }
                flying.retain(|group| !close.aborted.contains(group));
            }
            if story.is_ended {
                break;
            }
            event = match following {
                Some(event) => event,
                None if matches!(event, Event::Trained { .. }) => {
                    Event::Published { version: PolicyVersion(version) }
                }
                None if matches!(event, Event::Published { .. }) => {
                    if story.trained.len() as u64 >= self.patience {
                        break;
                    }
                    Event::BeginStep
                }
                None => {
                    assert!(!flying.is_empty(), "stuck after {event:?}: {settings:?} {self:?}");
                    let pick = shuffle.map_or(0, |seed| {
                        Key::new(seed, Purpose::Shuffle).below(events as u64, flying.len() as u64) as usize
                    });
                    let group = flying.remove(pick);
                    self.event(group, settings.group_size)
                }
            };
        }
        let totals = rounds.totals();
        totals.check().unwrap();
        assert_eq!(totals.generated.groups as usize, generated);
        let count = |place: &str| fates.values().filter(|fate| **fate == place).count() as u64;
        assert_eq!(totals.trained.groups, count("trained"));
        assert_eq!(totals.left_out, Count { groups: 0, trajectories: left_out });
        let members = (totals.trained.groups as usize * settings.group_size) as u64;
        assert_eq!(totals.trained.trajectories + left_out, members);
        assert_eq!(totals.surplus.groups, count("surplus"));
        assert_eq!(totals.stale.groups, count("stale"));
        assert_eq!(totals.aborted.groups, count("aborted"));
        if story.is_ended {
            assert_eq!(totals.carried_out, Count::default());
            assert_eq!(rounds.held().count(), 0);
            assert!(rounds.handle(Event::BeginStep).is_err());
        }
        assert_eq!(rounds.progress().steps, story.trained.len() as u64);
        story
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
            Event::Scored { group, values, facts: GroupFacts { num_tokens: 7, is_identical_in_text: true } }
        }),
        2 => group().prop_map(|group| Event::Failed { group, num_tokens: u64::from(u32::MAX) }),
        2 => (0u64..12).prop_map(|left_out| Event::Trained { left_out }),
        1 => (0u64..4).prop_map(|version| Event::Published { version: PolicyVersion(version) }),
        1 => Just(Event::Cancelled),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn every_run_ends_and_balances(settings in settings(), world in world()) {
        let story = world.play(&settings, None, false);
        prop_assert!(story.is_ended || story.trained.len() as u64 == world.patience);
    }

    #[test]
    fn the_same_events_give_the_same_commands_also_after_a_resume(settings in settings(), world in world()) {
        prop_assert_eq!(world.play(&settings, None, false), world.play(&settings, None, true));
    }

    #[test]
    fn in_dispatch_order_arrival_does_not_matter(settings in settings(), world in world(), seed in any::<u64>()) {
        let settings = ScheduleSettings { order: Order::Dispatch, ..settings };
        let world = World { cancel_after: None, ..world };
        let (first, second) = (world.play(&settings, None, false), world.play(&settings, Some(seed), false));
        prop_assert_eq!(&first.trained, &second.trained);
        // The commands too: the events in between answer with none.
        prop_assert_eq!(first.lines, second.lines);
    }

    #[test]
    fn nonsense_is_refused_and_leaves_the_machine_as_it_was(
        settings in settings(),
        events in prop::collection::vec(any_event(), 0..60),
    ) {
        let mut rounds = Rounds::new(settings).unwrap();
        for event in events {
            let before = rounds.clone();
            match rounds.handle(event) {
                Ok(commands) => {
                    for command in commands {
                        if let Command::StepReady(close) | Command::SkipStep { close, .. } | Command::Finish { close, .. } | Command::Stop { close, .. } = command {
                            prop_assert_eq!(close.report.accounting.check(), Ok(()));
                        }
                    }
                }
                Err(ScheduleError::Unbalanced(unbalanced)) => prop_assert!(false, "{unbalanced}"),
                Err(_) => prop_assert_eq!(&rounds, &before),
            }
            let text = serde_json::to_string(&rounds).unwrap();
            prop_assert_eq!(serde_json::from_str::<Rounds>(&text).unwrap(), rounds.clone());
        }
    }
}
