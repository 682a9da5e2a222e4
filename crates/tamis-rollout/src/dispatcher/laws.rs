//! Laws of the dispatcher under an arbitrary generator: nothing is lost, nothing is trained twice,
//! everything is counted, nothing hangs, and the trained groups do not depend on the times of events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tamis_core::filter::Metric;
use tamis_core::group::Trajectory;
use tamis_core::schedule::{Members, ScheduleSettings, StreamingSettings, Surplus};
use tamis_env::reward::exact::Exact;
use tamis_env::reward::{RewardFunction, RewardInput, RewardOutcome};

use super::tests::{Heard, Rows, scorer, settings, with};
use super::*;
use crate::fake::{FakeFaults, FakeGenerator, FakeSettings};
use crate::generator::{InFlight, Publication, Wait, Weights};
use crate::inbox::Ignored;
use crate::record::End;
use crate::sample_journal::tests::{Disk, Memory};
use crate::sample_journal::{Beginning, Journalled};

/// A random run of the dispatcher: its settings and its timing.
#[derive(Debug, Clone)]
struct Plan {
    is_streaming: bool,
    train_batch_size: usize,
    gen_batch_size: usize,
    group_size: usize,
    /// Members with which a group of a stream is begun.
    first: Option<usize>,
    rounds_in_flight: usize,
    carries: bool,
    /// Parts of a step are handed out before it is complete.
    hands_out: bool,
    /// Completions that the reward function gets together.
    batch_size: usize,
    per_epoch: u64,
    steps: u64,
    faults: FakeFaults,
}

/// Scores exactly, in batches of this size.
struct Batches(usize);

impl RewardFunction for Batches {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        Exact {}.score(batch)
    }

    fn batch_size(&self) -> usize {
        self.0
    }
}

impl Plan {
    fn settings(&self) -> DispatcherSettings {
        DispatcherSettings { hands_out_parts: self.hands_out, ..settings(self.group_size) }
    }

    fn machine(&self) -> Scheduler {
        let run = ScheduleSettings {
            surplus: if self.carries { Surplus::Carry { max_lag: 1 } } else { Surplus::Discard },
            rounds_in_flight: if self.is_streaming { 1 } else { self.rounds_in_flight },
            metric: Metric::SeqReward,
            screen_first: self.first.filter(|first| self.is_streaming && *first < self.group_size),
            total_steps: Some(self.steps),
            ..ScheduleSettings::verl(self.train_batch_size, self.gen_batch_size, self.group_size, 0)
        };
        if self.is_streaming {
            let mini_batch_size = self.train_batch_size.div_ceil(2);
            Scheduler::streaming(StreamingSettings { run, mini_batch_size, max_in_flight: 24 })
        } else {
            Scheduler::rounds(run)
        }
        .expect("settings")
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    let sizes = (1usize..5, 1usize..7, 2usize..5, 1usize..3, prop::option::of(2usize..4));
    let fault = || prop_oneof![2 => Just(0.0), 1 => 0.0..0.25f64];
    let faults = (fault(), fault(), fault(), fault(), fault(), fault());
    let batch_size = prop_oneof![Just(1usize), 2..6usize, Just(usize::MAX)];
    (any::<bool>(), sizes, any::<[bool; 2]>(), batch_size, 3u64..30, 1u64..5, faults).prop_map(
        |(is_streaming, sizes, [carries, hands_out], batch_size, per_epoch, steps, faults)| {
            let (train_batch_size, gen_batch_size, group_size, rounds_in_flight, first) = sizes;
            let (transient, permanent, duplicate, hang, late, foreign) = faults;
            Plan {
                is_streaming,
                train_batch_size,
                gen_batch_size,
                group_size,
                first,
                rounds_in_flight,
                carries,
                hands_out,
                batch_size,
                per_epoch,
                steps,
                faults: FakeFaults { transient, permanent, duplicate, hang, late, foreign },
            }
        },
    )
}

/// A trained group in comparable form: epoch, prompt, and each member's text, tokens and reward (as bits).
type Trained = (u64, u64, Vec<(String, Vec<u32>, u64)>);

/// Everything that a run of the dispatcher did.
#[derive(Debug, Default, PartialEq)]
struct Story {
    batches: Vec<Vec<Trained>>,
    end: Option<String>,
    /// How each group ended.
    fates: BTreeMap<u64, &'static str>,
    /// At the end.
    machine: Option<Scheduler>,
    ignored: Ignored,
}

fn describe(record: &Record) -> Trained {
    let member =
        |member: &Trajectory| (member.text.clone(), member.token_ids.clone(), member.reward.to_bits());
    let members = record.group.trajectories.iter().map(member).collect();
    (record.group.epoch, record.group.prompt.0, members)
}

/// The state that a checkpoint would keep between two steps.
#[derive(Clone)]
struct Saved {
    machine: Scheduler,
    next_group: u64,
    version: PolicyVersion,
    held: Vec<Record>,
    in_flight: Vec<(u64, u32)>,
    health: RewardHealth,
    source: Rows,
    fates: BTreeMap<u64, &'static str>,
    num_batches: usize,
}

/// The order in which things were taken in, in memory, each with the step after the last that was trained.
#[derive(Default)]
struct Noted {
    taken: Vec<(u64, Taken)>,
    step: u64,
}

impl Noted {
    /// All events taken in after a step.
    fn after(&self, step: u64) -> Vec<Taken> {
        self.taken.iter().filter(|(of, _)| *of > step).map(|(_, taken)| taken.clone()).collect()
    }
}

impl OrderLog for Noted {
    fn note(&mut self, taken: &Taken) -> Result<(), GeneratorError> {
        self.taken.push((self.step, taken.clone()));
        Ok(())
    }

    fn forget(&mut self, num_left: usize) -> Result<(), GeneratorError> {
        self.taken.truncate(self.taken.len() - num_left);
        Ok(())
    }
}

/// When processes are gone.
#[derive(Debug, Clone, Copy)]
struct Kill {
    /// The numbers of polls after which the first two processes end, while they collect or publish.
    after: [u64; 2],
    /// Whether each of them is asked to stop, and saves the state after its last finished step.
    is_asked: [bool; 2],
    /// Number of steps between two saved states.
    save_every: usize,
    /// A process without a saved state is asked to stop during the publication of this step: the step
    /// is finished and saved, and the process ends.
    stop_after: usize,
}

/// The source of answers, and how a resumed run gets the same ones in the same order.
#[derive(Debug, Clone, Copy)]
enum World {
    /// Servers, whose answers come in an order that is noted.
    Noted(FakeSettings),
    /// The engine in this process: everything is a function of keys, and nothing is noted.
    ByKeys {
        /// The longest delay.
        longest: u64,
        faults: FakeFaults,
    },
}

impl World {
    fn is_noted(self) -> bool {
        matches!(self, Self::Noted(_))
    }

    /// The generator of a process that continues a run; `journal` holds what earlier processes
    /// received.
    fn generator(self, process: u64, journal: &Disk, at: Beginning) -> Box<dyn Generator> {
        match self {
            Self::Noted(fake) => {
                let fake = FakeSettings { seed: fake.seed + process, ..fake };
                let servers = FakeGenerator::new(fake).with_lead(fake.seed % 3);
                Box::new(Journalled::new(servers, Box::new(Memory::open(journal, 0)), at))
            }
            Self::ByKeys { longest, faults } => {
                let FakeFaults { transient, permanent, .. } = faults;
                let faults = FakeFaults { transient, permanent, ..FakeFaults::default() };
                let fake = FakeSettings { faults, ..FakeSettings::faultless(0) };
                Box::new(FakeGenerator::new(fake).by_keys(longest))
            }
        }
    }
}

/// Plays a run to its end and checks every law on the way. If its process is killed, a new one
/// continues from the last saved state and follows the order in which the first one took events in: it
/// trains on the same groups.
fn play(plan: &Plan, world: World, kill: Option<Kill>) -> Story {
    let mut story = Story::default();
    let mut source = Rows::new(plan.per_epoch);
    let mut dispatcher = Dispatcher::new(plan.settings(), plan.machine());
    let journal = Disk::default();
    let at = |version, next_group| Beginning { version, step: version.0 + 1, next_group };
    let mut generator = world.generator(0, &journal, at(PolicyVersion(0), 0));
    let mut scorer = scorer(Batches(plan.batch_size));
    let mut fates: BTreeMap<u64, &'static str> = BTreeMap::new();
    let (mut saved, mut latest): (Option<Saved>, Option<Saved>) = (None, None);
    let mut kills = kill.iter().flat_map(|kill| kill.after.into_iter().zip(kill.is_asked));
    let (mut version, mut left, mut num_processes) = (0, kills.next(), 1);
    let mut heard = Heard::default();
    let (mut noted, mut witnessed) = (Noted { step: 1, ..Noted::default() }, Vec::new());
    let looks = std::cell::Cell::new(0u64);
    let (mut is_gone, mut has_stopped) = (false, false);
    for _ in 0..400 {
        if std::mem::take(&mut is_gone) {
            // Another process: its generator knows the journal, and it starts from the last saved
            // state.
            if story.batches.len() > witnessed.len() {
                witnessed.clone_from(&story.batches);
            }
            latest.clone_from(&saved);
            let (machine, next, at_version, held, in_flight, health) = if let Some(saved) = saved.clone() {
                source = saved.source;
                fates = saved.fates;
                story.batches.truncate(saved.num_batches);
                version = saved.version.0;
                let Saved { machine, next_group, version, held, in_flight, health, .. } = saved;
                (machine, next_group, version, held, in_flight, health)
            } else {
                source = Rows::new(plan.per_epoch);
                fates.clear();
                story.batches.clear();
                version = 0;
                (plan.machine(), 0, PolicyVersion(0), Vec::new(), Vec::new(), RewardHealth::default())
            };
            generator = world.generator(num_processes, &journal, at(at_version, next));
            num_processes += 1;
            let weights = Weights::InProcess;
            generator.publish(&Publication { version: at_version, weights }, InFlight::Wait).expect("taken");
            while generator.next(Wait::Forever).expect("goes on").is_empty() {}
            dispatcher = Dispatcher::resume(plan.settings(), machine, next, at_version, held, health);
            dispatcher.ask_in_order(&in_flight);
            dispatcher.follow(noted.after(version));
            noted.step = version + 1;
        }
        looks.set(0);
        let limit = left;
        let is_killed = || {
            looks.set(looks.get() + 1);
            assert!(looks.get() < 200_000, "it hangs: {plan:?} {world:?}");
            limit.is_some_and(|(limit, _)| looks.get() > limit)
        };
        // Nothing of the step is used. Who was asked to stop saves the state before it.
        let mut end_process =
            |left: &mut Option<(u64, bool)>, saved: &mut Option<Saved>, latest: &Option<Saved>| {
                if left.is_some_and(|(_, is_asked)| is_asked) {
                    saved.clone_from(latest);
                }
                *left = kills.next();
            };
        let mut parts = Vec::new();
        let collected = loop {
            let next = dispatcher.next(Dependencies {
                order: world.is_noted().then_some(&mut noted as &mut dyn OrderLog),
                is_interrupted: &is_killed,
                ..with(&mut *generator, &mut source, &mut scorer, &mut heard)
            });
            match next {
                Ok(Next::Part(records)) => parts.extend(records.iter().map(describe)),
                Ok(Next::Step(collected)) => break Some(*collected),
                Ok(Next::Interrupted) => break None,
                Err(error) => panic!("{error:?}: {plan:?} {world:?}"),
            }
        };
        let Some(collected) = collected else {
            end_process(&mut left, &mut saved, &latest);
            is_gone = true;
            continue;
        };
        collected.report.accounting.check().expect("balanced");
        for (records, is_trained) in [(&collected.trained, true), (&collected.others, false)] {
            for record in records {
                let fate = record.fate.name();
                assert_eq!(is_trained, fate == "trained");
                let before = fates.insert(record.group.id.0, fate);
                assert_eq!(before, None, "group {} ends twice: {plan:?} {world:?}", record.group.id.0);
                if fate == "screened" {
                    let members = &record.group.trajectories;
                    assert_eq!(Some(members.len()), plan.first, "the others were never begun");
                    assert_eq!(record.values.len(), members.len());
                    assert!(members.windows(2).all(|pair| pair[0].text == pair[1].text));
                }
                if is_trained {
                    let first = &record.group.trajectories[..plan.machine().settings().num_first_members()];
                    assert!(
                        plan.first.is_none_or(|_| first.iter().any(|member| member.text != first[0].text)),
                        "the first ones differ: {plan:?}"
                    );
                    assert_eq!(record.group.trajectories.len(), plan.group_size, "whole groups");
                    let members: Vec<u32> =
                        record.group.trajectories.iter().map(|member| member.sample_index).collect();
                    assert_eq!(members, (0..plan.group_size as u32).collect::<Vec<u32>>());
                    assert!(record.group.trajectories.iter().all(|member| !member.reward.is_nan()));
                    let distinct: BTreeSet<String> =
                        record.group.trajectories.iter().map(|member| member.text.clone()).collect();
                    assert_eq!(distinct.len(), 2, "the filter keeps those that differ");
                }
            }
        }
        story.ignored.add(dispatcher.inbox().take_ignored());
        assert!(parts.is_empty() || matches!(collected.end, End::Ready), "a part is trained on: {plan:?}");
        match collected.end {
            End::Ready => {
                let batch: Vec<Trained> = collected.trained.iter().map(describe).collect();
                assert!(batch.starts_with(&parts), "parts are the first of the batch: {plan:?} {world:?}");
                story.batches.push(batch);
                dispatcher.note_trained(Members::default()).expect("trained");
                version += 1;
                let weights = Weights::InProcess;
                let publication = Publication { version: PolicyVersion(version), weights };
                let stops = !has_stopped && kill.is_some_and(|kill| kill.stop_after == story.batches.len());
                let with = Dependencies {
                    order: world.is_noted().then_some(&mut noted as &mut dyn OrderLog),
                    is_interrupted: if stops { &|| true } else { &is_killed },
                    ..with(&mut *generator, &mut source, &mut scorer, &mut heard)
                };
                // An event that comes earlier than before is taken in at its old time.
                let follows = !dispatcher.replay.is_over();
                let on_stop = if stops { OnStop::Finish } else { OnStop::GiveUp };
                match dispatcher.publish(&publication, InFlight::Wait, on_stop, with).expect("published") {
                    PublicationEnd::Done => {}
                    PublicationEnd::GivenUp => {
                        end_process(&mut left, &mut saved, &latest);
                        is_gone = true;
                        continue;
                    }
                    PublicationEnd::Lost(lost) => panic!("{lost}"),
                }
                assert_eq!(dispatcher.pending().count(), 0);
                noted.step = version + 1;
                let is_all_in = dispatcher.inbox.of_groups.is_empty() && dispatcher.scored.is_empty();
                assert!(is_all_in || follows, "what was heard of is in the state: {plan:?} {world:?}");
                latest = Some(Saved {
                    machine: dispatcher.machine().clone(),
                    next_group: dispatcher.next_group(),
                    version: PolicyVersion(version),
                    held: dispatcher.held().cloned().collect(),
                    in_flight: dispatcher.in_flight(),
                    health: dispatcher.reward_health().clone(),
                    source: source.clone(),
                    fates: fates.clone(),
                    num_batches: story.batches.len(),
                });
                if stops || story.batches.len().is_multiple_of(kill.map_or(1, |kill| kill.save_every)) {
                    saved.clone_from(&latest);
                }
                (is_gone, has_stopped) = (stops, has_stopped || stops);
            }
            End::Skipped(_) => {}
            End::Finished(why) => story.end = Some(format!("{why:?}")),
            End::Stopped(diagnosis) => story.end = Some(format!("{:?}", diagnosis.cause)),
        }
        left = left.map(|(left, is_asked)| (left.saturating_sub(looks.get()), is_asked));
        if story.end.is_some() {
            break;
        }
    }
    let gives_up = heard.warnings.iter().find(|warning| warning.contains("order.bin"));
    assert_eq!(gives_up, None, "{plan:?} {world:?} {kill:?}");
    assert!(story.end.is_some(), "it never ends: {plan:?} {world:?}");
    assert!(story.batches.starts_with(&witnessed), "what was trained on is: {plan:?} {world:?} {kill:?}");
    // Every group that there ever was is in exactly one place.
    let ids: Vec<u64> = fates.keys().copied().collect();
    assert_eq!(ids, (0..dispatcher.next_group()).collect::<Vec<u64>>(), "{plan:?} {world:?}");
    assert_eq!(dispatcher.held().count(), 0);
    let totals = dispatcher.machine().totals();
    totals.check().expect("balanced");
    let count = |name: &str| fates.values().filter(|fate| **fate == name).count() as u64;
    assert_eq!(totals.generated.groups, ids.len() as u64);
    assert_eq!(totals.trained.groups, count("trained"));
    assert_eq!(totals.failed.groups, count("failed"), "{plan:?} {world:?}");
    assert_eq!(totals.aborted.groups, count("aborted"));
    assert_eq!(totals.stale.groups, count("stale"));
    assert_eq!(totals.surplus.groups, count("surplus"));
    (story.fates, story.machine) = (fates, Some(dispatcher.machine().clone()));
    story
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever fails: no group is lost or trained twice, all counts add up, and the run ends.
    #[test]
    fn nothing_is_lost_and_nothing_hangs(plan in plan(), seed in any::<u64>(), max_delay in 0u64..40) {
        let fake = FakeSettings { seed, max_delay, faults: plan.faults };
        play(&plan, World::Noted(fake), None);
    }

    /// The groups trained on are a function of the data, not of when anything ended: by rounds, and streaming
    /// without a lag.
    #[test]
    fn batches_do_not_depend_on_the_timing(plan in plan(), seeds in any::<[u64; 2]>(), max_delay in 1u64..40) {
        // What is carried from rounds drawn ahead depends on their progress.
        let carries = plan.carries && !plan.is_streaming && plan.rounds_in_flight == 1;
        let plan = Plan { carries, ..plan };
        // Which requests fail is a function of the key. Their times, and repeated, late or foreign
        // answers, are not. A request that hangs fails by a time-out, which depends on timing.
        let faults = FakeFaults { hang: 0.0, ..plan.faults };
        let quiet = FakeSettings { seed: 0, max_delay: 0, faults: FakeFaults { duplicate: 0.0, late: 0.0, foreign: 0.0, ..faults } };
        let expected = play(&plan, World::Noted(quiet), None);
        for seed in seeds {
            let found = play(&plan, World::Noted(FakeSettings { seed, max_delay, faults }), None);
            assert_same(&found, &expected);
        }
    }

    /// A run can be killed or stopped after any number of polls. It continues from the last saved
    /// state, and trains on what it had trained on until then, whatever the generator does now. By
    /// rounds, and streaming without a lag, the later batches are also the same as those of an
    /// undisturbed run. If everything is a function of keys, they always are.
    #[test]
    fn a_run_goes_on_from_any_instant(
        plan in plan(), seed in any::<u64>(), max_delay in 0u64..20, kill in kill(),
    ) {
        let faults = FakeFaults { hang: 0.0, ..plan.faults };
        let world = World::Noted(FakeSettings { seed: seed >> 1, max_delay, faults });
        let found = play(&plan, world, Some(kill));
        if !plan.carries || (!plan.is_streaming && plan.rounds_in_flight == 1) {
            let expected = play(&plan, world, None);
            assert_same(&found, &expected);
        }
        // Many end at the same instant.
        let world = World::ByKeys { longest: max_delay % 5, faults };
        let [found, expected] = [Some(kill), None].map(|kill| Story { ignored: Ignored::default(), ..play(&plan, world, kill) });
        // How far a group had come when the end of the run aborted it depends only on the instant.
        let has_aborted = expected.fates.values().any(|fate| *fate == "aborted");
        let [found, expected] = [found, expected].map(|story| Story { machine: story.machine.filter(|_| !has_aborted), ..story });
        assert!(found == expected, "{plan:?} {world:?} {kill:?}: {found:?} {expected:?}");
    }
}

fn kill() -> impl Strategy<Value = Kill> {
    let after = [0u64..120, 0u64..120];
    (after, any::<[bool; 2]>(), 1usize..4, 1usize..6).prop_map(|(after, is_asked, save_every, stop_after)| {
        Kill { after, is_asked, save_every, stop_after }
    })
}

/// The same batches and the same end. Epochs that keep nothing end a run, and how many groups of an
/// epoch a stream had settled by then depends on timing. So one of two such runs may continue for
/// longer, and the other trains its last step only on what it had.
fn assert_same(found: &Story, expected: &Story) {
    let is_barren = |story: &Story| story.end.as_ref().is_some_and(|end| end.contains("EpochWithoutKept"));
    if is_barren(found) || is_barren(expected) {
        let [found, expected] = [found, expected].map(|story| story.batches.concat());
        let common = found.len().min(expected.len());
        assert_eq!(found[..common], expected[..common]);
    } else {
        assert_eq!((&found.batches, &found.end), (&expected.batches, &expected.end));
    }
}

/// Every class of fault occurs and is counted.
#[test]
fn every_fault_is_met_and_counted() {
    for is_streaming in [false, true] {
        let plan = Plan {
            is_streaming,
            train_batch_size: 4,
            gen_batch_size: 6,
            group_size: 4,
            first: is_streaming.then_some(2),
            rounds_in_flight: 1,
            carries: is_streaming,
            hands_out: false,
            batch_size: 1,
            per_epoch: 1000,
            steps: 12,
            faults: FakeFaults::all(0.05),
        };
        let fake = FakeSettings { seed: 11, max_delay: 30, faults: plan.faults };
        let story = play(&plan, World::Noted(fake), None);
        assert_eq!(story.batches.len(), 12);
        let ignored = story.ignored;
        assert!(ignored.duplicate > 0 && ignored.foreign > 0, "{ignored:?}");
        assert!(!is_streaming || ignored.late > 0, "{ignored:?}");
    }
}
