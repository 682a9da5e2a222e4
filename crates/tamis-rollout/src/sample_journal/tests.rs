//! A run on a generator whose answers are never the same twice, killed at every instant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tamis_core::filter::Metric;
use tamis_core::schedule::{Members, ScheduleSettings, Scheduler, Spent, StreamingSettings};
use tamis_env::reward::exact::Exact;

use super::*;
use crate::dispatcher::tests::{Heard, Rows, gone, scorer, settings, with};
use crate::fake::{FakeFaults, FakeGenerator, FakeSettings};
use crate::generator::Weights;
use crate::{Dependencies, Dispatcher, End, OnStop, Record, RewardHealth};

/// A journal on a simulated disk, which stays when a process ends.
#[derive(Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<Vec<(u64, SampleIdentity, SampleOutcome)>>>);

impl Disk {
    pub(crate) fn all(&self) -> Vec<(u64, SampleIdentity, SampleOutcome)> {
        self.0.lock().expect("lock").clone()
    }
}

/// The journal of one process.
pub(crate) struct Memory {
    disk: Disk,
    /// Entries of the earlier process, not taken yet.
    known: Vec<(u64, SampleIdentity, SampleOutcome)>,
}

impl Memory {
    pub(crate) fn open(disk: &Disk, from: usize) -> Self {
        Self { known: disk.all()[from..].to_vec(), disk: disk.clone() }
    }
}

impl SampleJournal for Memory {
    fn take(&mut self, _: u64, asked: &SampleIdentity) -> Option<SampleOutcome> {
        let place = self.known.iter().position(|(_, earlier, _)| asked.is_answered_by(earlier))?;
        Some(self.known.remove(place).2)
    }

    fn put(&mut self, step: u64, outcomes: &[(SampleIdentity, SampleOutcome)]) -> Result<(), GeneratorError> {
        let mut disk = self.disk.0.lock().expect("lock");
        disk.extend(outcomes.iter().map(|(asked, outcome)| (step, *asked, outcome.clone())));
        Ok(())
    }

    fn settle(&mut self, next: u64) -> u64 {
        self.known.retain(|(step, ..)| *step >= next);
        self.disk.all().iter().take_while(|(step, ..)| *step < next).count() as u64
    }

    fn shorten(&mut self, _: u64) -> Result<(), GeneratorError> {
        Ok(())
    }
}

/// A server: no two answers of it are the same.
fn server(seed: u64, count: &Arc<AtomicU64>) -> FakeGenerator {
    let count = Arc::clone(count);
    let answer = move |request: &SampleRequest| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let is_right = request.key.with(number).uniform(0) < 0.5;
        if is_right { "x".to_owned() } else { format!("y{number}") }
    };
    let faults = FakeFaults { permanent: 0.03, duplicate: 0.1, late: 0.1, ..FakeFaults::default() };
    FakeGenerator::answering(FakeSettings { seed, max_delay: 12, faults }, Box::new(answer))
}

fn machine(is_streaming: bool) -> Scheduler {
    let run = ScheduleSettings {
        metric: Metric::SeqReward,
        total_steps: Some(4),
        ..ScheduleSettings::verl(3, 4, 3, 0)
    };
    if is_streaming {
        Scheduler::streaming(StreamingSettings { run, mini_batch_size: 3, max_in_flight: 8 })
    } else {
        Scheduler::rounds(run)
    }
    .expect("settings")
}

/// The state that a checkpoint holds.
#[derive(Clone)]
struct Saved {
    machine: Scheduler,
    next_group: u64,
    version: u64,
    held: Vec<Record>,
    health: RewardHealth,
    source: Rows,
    journal: usize,
    fates: BTreeMap<u64, &'static str>,
}

/// Runs to the end; the process is killed after this many polls of the dispatcher.
fn run(is_streaming: bool, seed: u64, kill_after: u64) {
    let (disk, count) = (Disk::default(), Arc::new(AtomicU64::new(0)));
    let mut saved = Saved {
        machine: machine(is_streaming),
        next_group: 0,
        version: 0,
        held: Vec::new(),
        health: RewardHealth::default(),
        source: Rows::new(1000),
        journal: 0,
        fates: BTreeMap::new(),
    };
    let looks = std::cell::Cell::new(0);
    let place = format!("streaming {is_streaming}, seed {seed}, killed after {kill_after}");
    for process in 0..2 {
        // What the earlier process had received since the checkpoint.
        let had: BTreeSet<(u64, PolicyVersion)> = disk.all()[saved.journal..]
            .iter()
            .map(|(_, asked, _)| (asked.key.bits(0), asked.version))
            .collect();
        let on_disk = disk.all().len();
        let Saved { machine, next_group, version, held, health, mut source, journal, mut fates } =
            saved.clone();
        let mut version = version;
        let mut dispatcher =
            Dispatcher::resume(settings(3), machine, next_group, PolicyVersion(version), held, health);
        let mut generator = Journalled::new(
            server(seed + process, &count),
            Box::new(Memory::open(&disk, journal)),
            Beginning { version: PolicyVersion(version), step: version + 1, next_group },
        );
        let (mut scorer, mut heard) = (scorer(Exact {}), Heard::default());
        let is_killed = || {
            looks.set(looks.get() + 1);
            assert!(looks.get() < 100_000, "it hangs: {place}");
            process == 0 && looks.get() > kill_after
        };
        let ended = loop {
            let collected = dispatcher.collect(Dependencies {
                is_interrupted: &is_killed,
                ..with(&mut generator, &mut source, &mut scorer, &mut heard)
            });
            let Some(collected) = collected.unwrap_or_else(|error| panic!("{error}: {place}")) else {
                break false;
            };
            collected.report.accounting.check().expect("balanced");
            for record in collected.trained.iter().chain(&collected.others) {
                assert_eq!(fates.insert(record.group.id.0, record.fate.name()), None, "{place}");
            }
            // Exactly what was journalled is trained on, whichever process received it.
            let journalled = disk.all();
            for record in &collected.trained {
                for member in &record.group.trajectories {
                    let is_it = |outcome: &SampleOutcome| matches!(outcome, SampleOutcome::Sampled(sample) if sample.text == member.text && sample.token_ids == member.token_ids);
                    assert!(journalled.iter().any(|(.., outcome)| is_it(outcome)), "{place}");
                }
            }
            match collected.end {
                End::Ready => {}
                End::Skipped(_) => continue,
                End::Finished(_) | End::Stopped(_) => break true,
            }
            dispatcher.note_trained(Members::default()).expect("trained");
            version += 1;
            let publication = Publication { version: PolicyVersion(version), weights: Weights::InProcess };
            let with = with(&mut generator, &mut source, &mut scorer, &mut heard);
            dispatcher.publish(&publication, InFlight::Wait, OnStop::GiveUp, with).expect("published");
            generator.memory_mut().set_step(version + 1);
            // A checkpoint every second step.
            if version % 2 == 0 {
                saved = Saved {
                    machine: dispatcher.machine().clone(),
                    next_group: dispatcher.next_group(),
                    version,
                    held: dispatcher.held().cloned().collect(),
                    health: dispatcher.reward_health().clone(),
                    source: source.clone(),
                    journal: generator.memory_mut().settle(version + 1) as usize,
                    fates: fates.clone(),
                };
            }
        };
        // No known sample is requested again.
        for (_, asked, _) in &disk.all()[on_disk..] {
            assert!(
                process == 0 || !had.contains(&(asked.key.bits(0), asked.version)),
                "{} was asked for again: {place}",
                asked.id
            );
        }
        if ended {
            assert_eq!(
                fates.keys().copied().collect::<Vec<_>>(),
                (0..dispatcher.next_group()).collect::<Vec<_>>()
            );
            assert_eq!(fates.values().filter(|fate| **fate == "trained").count(), 12, "{place}");
            return;
        }
    }
    panic!("killed twice: {place}");
}

/// A run that is killed at any poll of the dispatcher has the samples it had, requests the rest, and
/// loses and repeats none.
#[test]
fn a_run_that_is_killed_at_any_instant_has_the_samples_it_had() {
    for is_streaming in [false, true] {
        for seed in [3, 17] {
            for kill_after in 0..150 {
                run(is_streaming, seed, kill_after);
            }
        }
    }
}

#[test]
fn nothing_that_was_read_back_goes_with_a_generator_that_is_lost() {
    let request = crate::support::request(0, 0, 4);
    let (id, key) = (request.id, request.key);
    let asked = SampleIdentity { id, key, version: PolicyVersion(0), was_in_flight: false };
    let failed = SampleOutcome::Failed {
        kind: FailureKind::Permanent,
        reason: "known".to_owned(),
        spent: Spent::on_answer(3),
    };
    let disk = Disk::default();
    disk.0.lock().expect("lock").push((1, asked, failed));
    let generator = gone(server(1, &Arc::default()), 1);
    let begin = Beginning { version: PolicyVersion(0), step: 1, next_group: 0 };
    let mut generator = Journalled::new(generator, Box::new(Memory::open(&disk, 0)), begin);
    generator.submit(request).expect("taken");
    generator.next(Wait::Forever).expect_err("lost");
    let events = generator.next(Wait::Forever).expect("goes on");
    assert!(
        matches!(&events[..], [GeneratorEvent::Failed { reason, .. }] if reason == "known"),
        "{events:?}"
    );
}
