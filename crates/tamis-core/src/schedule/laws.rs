//! The environment in which the laws of rounds and of streaming are tested: settings, data, a policy, and a
//! driver's prompts.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::{
    Command, Count, Event, FillOrder, GroupFacts, OnEmptyRound, OnExhausted, RoundLimit, ScheduleSettings,
    Scheduler, Spent, Unbalanced,
};
use crate::filter::{GroupFilter, Variance};
use crate::group::{GroupId, PolicyVersion};
use crate::random::{Key, Purpose};

/// The settings that every schedule has; the others are at their defaults.
pub(super) fn settings() -> impl Strategy<Value = ScheduleSettings> {
    let sizes = (1usize..6, 1usize..9, 1usize..6);
    let limit = prop_oneof![
        1 => Just(RoundLimit::None),
        2 => (1u64..4).prop_map(RoundLimit::Rounds),
        1 => Just(RoundLimit::Auto)
    ];
    let switches = (any::<bool>(), limit, 0u32..4);
    let choices = (
        prop_oneof![
            Just(OnEmptyRound::Retry { times: None }),
            (0u32..3).prop_map(|times| OnEmptyRound::Retry { times: Some(times) }),
            Just(OnEmptyRound::Skip),
            Just(OnEmptyRound::Error)
        ],
        prop::sample::select(OnExhausted::ALL),
        prop::sample::select(FillOrder::ALL),
    );
    let ends = (prop::option::of(1u64..8), prop::option::of(1u64..5), prop::option::of(1u64..40));
    (sizes, switches, choices, ends).prop_map(
        |(sizes, switches, choices, (total_steps, total_epochs, num_prompts))| {
            let (train_batch_size, gen_batch_size, group_size) = sizes;
            let (filter, max_num_gen_batches, max_skipped_steps) = switches;
            let (on_empty_round, on_exhausted, order) = choices;
            ScheduleSettings {
                gen_batch_size,
                filter: filter.then(|| GroupFilter::Variance(Variance::default())),
                max_num_gen_batches,
                on_empty_round,
                on_exhausted,
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

/// Data and policy: the result of a group is a function of its prompt and of the policy version that samples
/// it.
#[derive(Debug, Clone, Copy)]
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) per_epoch: u64,
    pub(super) keep: f64,
    pub(super) fail: f64,
    /// Share of the trained members that have no loss.
    pub(super) leave_out: f64,
    /// Whether the end of an epoch is reported with the last prompts or only on the next draw.
    pub(super) is_late: bool,
    /// The run is cancelled after this many events, as soon as possible.
    pub(super) cancel_after: Option<usize>,
    /// Steps after which the driver stops.
    pub(super) patience: usize,
}

pub(super) fn world() -> impl Strategy<Value = World> {
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
pub(super) type PromptOf = (u64, u64);

/// A prompt and the version that samples its group.
pub(super) type SampledFrom = (PromptOf, u64);

impl World {
    /// The result of a group: the values of its members and its facts, or nothing if it fails.
    pub(super) fn outcome(&self, (prompt, version): SampledFrom, n: usize) -> Option<(Vec<f64>, GroupFacts)> {
        let key = Key::new(self.seed, Purpose::Rollout).with(prompt.0).with(prompt.1).with(version);
        if key.uniform(0) < self.fail {
            return None;
        }
        // Kept: one member differs. Dropped for every reason that the variance filter has.
        let mut values = vec![[0.0, 1.0, 0.5, f64::NAN][key.below(3, 4) as usize]; n];
        if key.uniform(2) < self.keep {
            values.fill(0.0);
            values[key.below(4, n as u64) as usize] = 1.0;
        }
        let facts = GroupFacts {
            spent: Spent { tokens: key.below(5, 1000), turns: key.below(8, 9) },
            num_lost_tokens: key.below(7, 3),
            num_lost_turns: key.below(9, 2),
            is_identical_in_text: key.below(6, 2) == 0,
        };
        Some((values, facts))
    }

    /// The part of the trained amount that has no loss.
    pub(super) fn left_out(&self, trained: Count) -> Count {
        let share = |number: u64| (self.leave_out * number as f64).round() as u64;
        let Count { trajectories, turns, tokens, .. } = trained;
        Count { groups: 0, trajectories: share(trajectories), turns: share(turns), tokens: share(tokens) }
    }
}

/// The prompts of a run: those left in the epoch, and those that were given back.
pub(super) struct Prompts {
    pub(super) epoch: u64,
    left: u64,
    pub(super) returned: VecDeque<PromptOf>,
    /// Prompt and version of every group that was drawn.
    pub(super) of: BTreeMap<GroupId, SampledFrom>,
}

impl Prompts {
    pub(super) fn new(world: &World) -> Self {
        Self { epoch: 0, left: world.per_epoch, returned: VecDeque::new(), of: BTreeMap::new() }
    }

    pub(super) fn begin_epoch(&mut self, world: &World) {
        self.epoch += 1;
        self.left = world.per_epoch;
    }

    /// The answer to a draw.
    pub(super) fn draw(&mut self, world: &World, num_prompts: usize, version: u64) -> Event {
        assert!(num_prompts > 0);
        let mut groups = Vec::new();
        while groups.len() < num_prompts {
            let prompt = match self.returned.pop_front() {
                Some(prompt) => prompt,
                None if self.left > 0 => {
                    self.left -= 1;
                    (self.epoch, self.left)
                }
                None => break,
            };
            let group = GroupId(self.of.len() as u64);
            groups.push(group);
            self.of.insert(group, (prompt, version));
        }
        let is_over = self.left == 0 && self.returned.is_empty();
        let exhausted = groups.len() < num_prompts || (is_over && !world.is_late);
        Event::Dispatched { groups, version: PolicyVersion(version), exhausted }
    }

    /// To the front, before prompts that were given back earlier and not drawn again.
    pub(super) fn give_back(&mut self, groups: &[GroupId]) {
        for group in groups.iter().rev() {
            self.returned.push_front(self.of[group].0);
        }
    }

    pub(super) fn of_groups<'g>(&self, groups: impl IntoIterator<Item = &'g GroupId>) -> Vec<PromptOf> {
        groups.into_iter().map(|group| self.of[group].0).collect()
    }
}

/// The amount generated according to an event, if the event reports it.
pub(super) fn spent(event: &Event) -> Spent {
    match event {
        Event::Scored { facts, .. } => facts.spent + facts.lost(),
        Event::Failed { spent, .. } | Event::Aborted { spent, .. } => *spent,
        _ => Spent::default(),
    }
}

/// The machine, as it is after a resume.
pub(super) fn resumed(machine: &Scheduler) -> Scheduler {
    let text = serde_json::to_string(machine).unwrap();
    let resumed = serde_json::from_str(&text).unwrap();
    assert_eq!(&resumed, machine);
    resumed
}

/// Any event at all, sensible or not.
fn any_event() -> impl Strategy<Value = Event> {
    let group = || (0u64..12).prop_map(GroupId);
    let value = prop_oneof![Just(f64::NAN), Just(0.0), Just(1.0), any::<f64>()];
    let values = prop::collection::vec(value, 0..4);
    let facts = |is_identical_in_text| GroupFacts {
        spent: Spent { tokens: 7, turns: 3 },
        is_identical_in_text,
        ..GroupFacts::default()
    };
    prop_oneof![
        2 => Just(Event::BeginStep),
        4 => (0u64..10, 0u64..5, 0u64..3, any::<bool>()).prop_map(|(first, count, version, exhausted)| {
            let groups = (first..first + count).map(GroupId).collect();
            Event::Dispatched { groups, version: PolicyVersion(version), exhausted }
        }),
        4 => (group(), values.clone())
            .prop_map(move |(group, values)| Event::Screened { group, values, facts: facts(false) }),
        8 => (group(), values, any::<bool>())
            .prop_map(move |(group, values, same)| Event::Scored { group, values, facts: facts(same) }),
        4 => (group(), prop::option::of(0.0..1.0f64))
            .prop_map(|(group, value)| Event::Sampled { group, value }),
        2 => group().prop_map(|group| Event::Failed { group, spent: Spent::on_answer(u64::from(u32::MAX)) }),
        1 => group().prop_map(|group| Event::Aborted { group, spent: Spent::on_answer(1) }),
        2 => (0u64..12, 0u64..30, 0u64..9)
            .prop_map(|(left_out, tokens, turns)| Event::Trained { left_out, tokens, turns }),
        1 => (0u64..4).prop_map(|version| Event::Published { version: PolicyVersion(version) }),
        1 => Just(Event::Cancelled),
    ]
}

pub(super) fn any_events() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(any_event(), 0..60)
}

/// Nonsense is refused and leaves the machine unchanged; events that it accepts balance and survive a resume.
pub(super) fn check_nonsense(mut machine: Scheduler, events: Vec<Event>) {
    for event in events {
        let before = machine.clone();
        match machine.handle(event) {
            Ok(commands) => {
                for command in commands {
                    if let Command::StepReady(close)
                    | Command::StepClosed(close)
                    | Command::SkipStep { close, .. }
                    | Command::Finish { close, .. }
                    | Command::Stop { close, .. } = command
                    {
                        assert_eq!(close.report.accounting.check(), Ok(()));
                    }
                }
            }
            Err(error) => {
                let source = std::error::Error::source(&error);
                assert!(source.is_none_or(|source| !source.is::<Unbalanced>()), "{error}");
                assert_eq!(machine, before);
            }
        }
        resumed(&machine);
    }
}
