//! The fleet over servers that fail in every way, on a virtual clock: each request ends exactly once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake_server;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fake_server::{FakeServer, GOOD, Habits, Seen, TestClock, World};
use tamis_core::group::{FinishReason, PolicyVersion};
use tamis_core::random::{Key, Purpose};
use tamis_rollout::clock::{Bell, Clock};
use tamis_rollout::fleet::{Fleet, FleetMessage, FleetSettings, Moves};
use tamis_rollout::server::{Server, ServerEvent, ServerReport};
use tamis_rollout::wire::vllm::Figures;
use tamis_rollout::wire::{Fault, FaultClass};
use tamis_rollout::{
    AbortScope, FailureKind, Generator, GeneratorError, GeneratorEvent, InFlight, Publication, Sample,
    SampleId, SamplePurpose, SampleRequest, Sampling, VersionSpan, Wait, Weights,
};

fn connect(
    seed: u64,
    servers: &[(Habits, Option<Duration>)],
    settings: FleetSettings,
) -> Result<World, GeneratorError> {
    connect_to(seed, servers, settings, |_, _| {})
}

/// Servers that are changed before they are connected to, by their place.
fn connect_to(
    seed: u64,
    servers: &[(Habits, Option<Duration>)],
    settings: FleetSettings,
    change: impl Fn(usize, &mut FakeServer),
) -> Result<World, GeneratorError> {
    connect_moving(seed, servers, settings, change, |_| None)
}

/// Servers that move.
fn connect_moving(
    seed: u64,
    servers: &[(Habits, Option<Duration>)],
    settings: FleetSettings,
    change: impl Fn(usize, &mut FakeServer),
    moves: impl FnOnce(&TestClock) -> Option<Moves>,
) -> Result<World, GeneratorError> {
    let clock = TestClock::new();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let messages = Arc::new(Mutex::new(Vec::new()));
    let fake = |(place, &(habits, lives_until)): (usize, &(Habits, Option<Duration>))| {
        let seen = Arc::clone(&seen);
        let mut server = FakeServer { seen, lives_until, ..FakeServer::new(seed, place, habits, &clock) };
        change(place, &mut server);
        Box::new(server) as Box<dyn Server>
    };
    let hear = Arc::clone(&messages);
    let interrupted = Arc::new(AtomicBool::new(false));
    let servers: Vec<_> = servers.iter().enumerate().map(fake).collect();
    let fleet = Fleet::connect_moving(
        servers,
        moves(&clock),
        settings,
        Box::new(clock.clone()),
        Bell::default(),
        Arc::clone(&interrupted),
        Box::new(move |message| hear.lock().unwrap().push(message)),
    )?;
    Ok(World { fleet, seen, messages, clock, interrupted })
}

fn request(group: u64, member: u32) -> SampleRequest {
    SampleRequest {
        prompt: None,
        id: SampleId { purpose: SamplePurpose::Rollout, group, member, turn: 0, attempt: 0 },
        prompt_token_ids: Arc::from([1, 2]),
        images: Arc::default(),
        key: Key::new(7, Purpose::Rollout).with(group).with(u64::from(member)),
        sampling: Arc::new(Sampling::plain(3)),
    }
}

fn publication(version: u64) -> Publication {
    Publication { version: PolicyVersion(version), weights: Weights::Folder("/weights".into()) }
}

/// Submits a sample of each of these groups.
fn submit_all(fleet: &mut Fleet, groups: std::ops::Range<u64>) {
    groups.for_each(|group| fleet.submit(request(group, 0)).expect("taken"));
}

/// Publishes, while nothing else happens.
fn publish(fleet: &mut Fleet, version: u64) {
    fleet.publish(&publication(version), InFlight::Wait).expect("begun");
    let published = GeneratorEvent::Published { version: PolicyVersion(version) };
    assert_eq!(fleet.next(Wait::Forever).expect("goes on"), [published]);
}

/// The error that ends the fleet, with the number of events before it.
fn lost(fleet: &mut Fleet) -> (GeneratorError, usize) {
    let mut num_events = 0;
    loop {
        match fleet.next(Wait::Forever) {
            Ok(events) => num_events += events.len(),
            Err(error) => return (error, num_events),
        }
    }
}

fn finish(fleet: &mut Fleet) -> Vec<GeneratorEvent> {
    let mut all = Vec::new();
    loop {
        let events = fleet.next(Wait::Forever).expect("goes on");
        if events.is_empty() {
            return all;
        }
        all.extend(events);
    }
}

#[test]
fn whatever_happens_each_request_comes_to_one_end() {
    for seed in 0..60_u64 {
        println!("seed {seed}");
        let habits = Habits {
            faulty: 50 + 10 * (seed % 20),
            refuses: 10,
            repeats: 30,
            dies: if seed % 3 == 0 { 10 } else { 0 },
            unpublished: if seed % 3 == 0 { 100 } else { 0 },
            spoils: 10,
        };
        let settings = FleetSettings { max_in_flight: Some(16), ..FleetSettings::default() };
        let World { mut fleet, seen, .. } = connect(seed, &[(habits, None); 3], settings).expect("answer");
        let key = Key::new(seed, Purpose::Task);
        let mut ends = HashMap::<SampleId, GeneratorEvent>::new();
        let mut submitted = HashMap::<SampleId, PolicyVersion>::new();
        let mut aborted = BTreeSet::new();
        let mut version = PolicyVersion(0);
        let mut take = |events: Vec<GeneratorEvent>,
                        submitted: &HashMap<SampleId, PolicyVersion>,
                        version: &mut PolicyVersion| {
            for event in events {
                let id = match &event {
                    GeneratorEvent::Published { version: published } => {
                        assert!(*published > *version, "seed {seed}");
                        *version = *published;
                        continue;
                    }
                    GeneratorEvent::Sampled { id, sample } => {
                        let sampled_by = sample.versions[0].version;
                        assert!(sampled_by >= submitted[id], "seed {seed}: {id} by {sampled_by:?}");
                        *id
                    }
                    GeneratorEvent::Failed { id, .. } | GeneratorEvent::Aborted { id, .. } => *id,
                };
                assert!(submitted.contains_key(&id), "seed {seed}: {id} was not submitted");
                assert!(ends.insert(id, event).is_none(), "seed {seed}: {id} ended twice");
            }
        };
        for round in 0..20_u64 {
            if round % 5 == 2 {
                let mode = [InFlight::Wait, InFlight::Keep, InFlight::Abort][(round / 5 % 3) as usize];
                fleet.publish(&publication(round), mode).expect("published");
                while version < PolicyVersion(round) {
                    let events = fleet.next(Wait::Forever).expect("goes on");
                    take(events, &submitted, &mut version);
                }
            }
            for group in 0..4 {
                for member in 0..8 {
                    let request = request(round * 4 + group, member);
                    submitted.insert(request.id, version);
                    let id = request.id;
                    fleet.submit(request.clone()).expect("taken");
                    let again = fleet.submit(request).expect_err("twice").to_string();
                    assert_eq!(again, format!("{id} is in flight already"));
                }
            }
            if key.below(round, 3) == 0 {
                let group = round * 4 + key.below(100 + round, 4);
                fleet.abort(AbortScope::Group { purpose: SamplePurpose::Rollout, group });
                aborted.insert(group);
            }
            let events = fleet.next(Wait::No).expect("goes on");
            take(events, &submitted, &mut version);
        }
        let events = finish(&mut fleet);
        take(events, &submitted, &mut version);
        assert_eq!(ends.len(), submitted.len(), "seed {seed}");
        assert_eq!(fleet.load().in_flight, 0);
        let seen = seen.lock().unwrap();
        assert!(seen.most.values().all(|&most| most <= 16), "seed {seed}: {:?}", seen.most);
        // Servers that were lost with samples in flight add to the faults that they reported.
        let counted = &fleet.fault_counts().samples;
        for (class, num) in &seen.faults {
            assert!(counted[class] >= *num, "seed {seed}: {class:?}");
        }
        let failed = ends.values().filter(|end| matches!(end, GeneratorEvent::Failed { .. })).count();
        let gone = ends
            .iter()
            .filter(|(id, end)| matches!(end, GeneratorEvent::Aborted { .. }) && !aborted.contains(&id.group))
            .count();
        if seed % 3 != 0 {
            assert_eq!(counted, &seen.faults, "seed {seed}");
            assert!(failed < submitted.len() / 8, "seed {seed}: {failed} failed");
        }
        let sampled = ends.values().filter(|end| matches!(end, GeneratorEvent::Sampled { .. })).count();
        assert!(sampled > submitted.len() / 3, "seed {seed}: {sampled}, {failed} failed, {gone} aborted");
    }
}

#[test]
fn a_failure_that_may_pass_is_asked_for_again_and_one_that_will_not_is_not() {
    let habits = Habits { faulty: 1000, ..GOOD };
    let settings = FleetSettings { most_faults: 100, ..FleetSettings::default() };
    let World { mut fleet, clock, .. } = connect(1, &[(habits, None)], settings).expect("answers");
    fleet.submit(request(3, 1)).expect("taken");
    let begun = clock.now();
    let events = finish(&mut fleet);
    let [GeneratorEvent::Failed { id, kind, reason, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*id, *kind), (request(3, 1).id, FailureKind::Transient));
    assert!(reason.starts_with("http://s0 after 5 attempts: "), "{reason}");
    assert_eq!(fleet.fault_counts().samples.values().sum::<u64>(), 5);
    // Pauses of 0.5, 1, 2 and 4 s, each between half of it and all of it, and five samples of at most 2
    // s.
    let took = clock.now() - begun;
    assert!((Duration::from_millis(3750)..Duration::from_secs(18)).contains(&took), "{took:?}");

    let habits = Habits { refuses: 1000, ..GOOD };
    let World { mut fleet, .. } = connect(1, &[(habits, None)], settings).expect("answers");
    fleet.submit(request(3, 1)).expect("taken");
    let events = finish(&mut fleet);
    let [GeneratorEvent::Failed { kind: FailureKind::Permanent, reason, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(reason, "http://s0: refused: too long");
}

#[test]
fn a_group_stays_on_one_server_and_groups_spread() {
    let settings = FleetSettings { max_in_flight: Some(64), ..FleetSettings::default() };
    let World { mut fleet, seen, .. } = connect(1, &[(GOOD, None); 4], settings).expect("answer");
    for group in 0..16 {
        for member in 0..8 {
            fleet.submit(request(group, member)).expect("taken");
        }
    }
    assert_eq!(finish(&mut fleet).len(), 128);
    // The next turns of its episodes too, though nothing of it was in flight between.
    for group in [3, 0, 1, 2, 7, 15, 8] {
        let mut next = request(group, 5);
        next.id.turn = 1;
        fleet.submit(next).expect("taken");
    }
    assert_eq!(finish(&mut fleet).len(), 7);
    let seen = seen.lock().unwrap();
    assert!(seen.groups.values().all(|servers| servers.len() == 1), "{:?}", seen.groups);
    assert!(seen.most.values().all(|&most| most == 32), "{:?}", seen.most);
}

/// A sample that waited when it was aborted leaves nothing behind that would send its id twice.
#[test]
fn an_id_is_free_again_once_it_was_given_up() {
    let settings = FleetSettings { max_in_flight: Some(1), ..FleetSettings::default() };
    let World { mut fleet, .. } = connect(1, &[(GOOD, None)], settings).expect("answers");
    submit_all(&mut fleet, 0..3);
    for _ in 0..3 {
        fleet.abort(AbortScope::Sample(request(2, 0).id));
        fleet.submit(request(2, 0)).expect("free again");
    }
    let events = finish(&mut fleet);
    let aborted = events.iter().filter(|event| matches!(event, GeneratorEvent::Aborted { .. })).count();
    assert_eq!((aborted, events.len()), (3, 6), "{events:?}");
    assert_eq!(fleet.fault_counts().num_unknown, 0);
}

#[test]
fn the_load_says_what_room_there_is() {
    let settings = FleetSettings { max_in_flight: Some(4), ..FleetSettings::default() };
    let World { mut fleet, .. } = connect(1, &[(GOOD, None); 2], settings).expect("answer");
    assert_eq!((fleet.load().in_flight, fleet.load().room), (0, 8));
    for member in 0..3 {
        fleet.submit(request(0, member)).expect("taken");
    }
    assert_eq!((fleet.load().in_flight, fleet.load().room), (3, 5));
    for member in 3..20 {
        fleet.submit(request(0, member)).expect("taken");
    }
    assert_eq!((fleet.load().in_flight, fleet.load().room), (20, 0));
    assert_eq!(finish(&mut fleet).len(), 20);
    assert!(fleet.next(Wait::Forever).expect("nothing in flight").is_empty());
}

#[test]
fn no_server_at_the_start_is_said_with_what_was_tried() {
    let dead = (GOOD, Some(Duration::ZERO));
    let Err(GeneratorError::Unreachable { tried }) = connect(1, &[dead; 2], FleetSettings::default()) else {
        panic!("somebody answered")
    };
    assert_eq!(tried, ["http://s0: connect: refused", "http://s1: connect: refused"]);
    let Err(GeneratorError::Unreachable { tried }) = connect(1, &[], FleetSettings::default()) else {
        panic!("nobody was asked")
    };
    assert_eq!(tried, ["no server is configured"]);
    // One of two is enough.
    let World { messages, .. } =
        connect(1, &[dead, (GOOD, None)], FleetSettings::default()).expect("one answers");
    let messages = messages.lock().unwrap();
    let [FleetMessage::Lost { server, .. }] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!(server, "http://s0");
}

#[test]
fn a_fleet_that_is_lost_waits_and_says_so() {
    let dying = (GOOD, Some(Duration::from_secs(3)));
    let settings =
        FleetSettings { give_up_after: Some(Duration::from_secs(150)), ..FleetSettings::default() };
    let World { mut fleet, messages, interrupted, .. } =
        connect(1, &[dying], settings).expect("answers at first");
    submit_all(&mut fleet, 0..4000);
    let (error, ended) = lost(&mut fleet);
    assert_eq!(error.to_string(), "no server answers: http://s0: connect: refused");
    assert!(ended < 4000);
    let waits = |message: &FleetMessage| match message {
        FleetMessage::Waiting { for_so_long, .. } => Some(for_so_long.as_secs()),
        _ => None,
    };
    let waits: Vec<u64> = messages.lock().unwrap().iter().filter_map(waits).collect();
    assert_eq!(waits, [0, 60, 120]);
    // An interruption is noticed while it waits.
    interrupted.store(true, std::sync::atomic::Ordering::Relaxed);
    let settings = FleetSettings::default();
    let World { mut fleet, interrupted, .. } = connect(1, &[dying], settings).expect("answers at first");
    fleet.submit(request(0, 0)).expect("taken");
    interrupted.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(fleet.next(Wait::Forever).expect("an early end").is_empty());
}

/// A server dies with its samples, and is restarted at another address.
#[test]
fn a_server_that_answers_elsewhere_is_given_the_weights_and_used_there() {
    for (num, dies_after) in [(1, 1), (2, 1), (2, 60)] {
        println!("{num} servers, one of which dies after {dies_after} s");
        let mut servers = vec![(GOOD, None); num];
        servers[0].1 = Some(Duration::from_secs(dies_after));
        let there = Arc::new(Mutex::new(None));
        let (at, seen_there) = (Arc::clone(&there), Arc::new(Mutex::new(Seen::default())));
        let seen_of_moved = Arc::clone(&seen_there);
        let moves = |clock: &TestClock| -> Option<Moves> {
            let clock = clock.clone();
            let after = clock.now() + Duration::from_secs(dies_after + 5);
            Some(Box::new(move || {
                let mut at = at.lock().unwrap();
                if at.is_some() || clock.now() < after {
                    return Vec::new();
                }
                *at = Some(clock.now());
                let (name, seen) = ("http://elsewhere".to_owned(), Arc::clone(&seen_of_moved));
                let server = FakeServer { name, seen, ..FakeServer::new(3, 9, GOOD, &clock) };
                vec![(0, Box::new(server) as Box<dyn Server>)]
            }))
        };
        let settings = FleetSettings { max_in_flight: Some(16), ..FleetSettings::default() };
        let World { mut fleet, seen, messages, clock, .. } =
            connect_moving(1, &servers, settings, |_, _| {}, moves).expect("answer");
        publish(&mut fleet, 9);
        let mut num_sampled = 0;
        let mut take = |events: Vec<GeneratorEvent>| {
            for event in events {
                let GeneratorEvent::Sampled { sample, .. } = event else { panic!("{event:?}") };
                assert_eq!(sample.versions[0].version, PolicyVersion(9));
                num_sampled += 1;
            }
        };
        // Requests until long after the move: all of them end in a sample, by the published weights.
        for group in 0..400 {
            fleet.submit(request(group, 0)).expect("taken");
            let end = clock.now() + Duration::from_millis(400);
            while clock.now() < end {
                take(fleet.next(Wait::Until(end)).expect("goes on"));
            }
        }
        take(finish(&mut fleet));
        assert_eq!(num_sampled, 400);
        assert!(there.lock().unwrap().is_some());
        let elsewhere = seen_there.lock().unwrap();
        assert_eq!(elsewhere.publications, 1);
        assert!(elsewhere.groups.len() > 20, "{}", elsewhere.groups.len());
        assert_eq!(seen.lock().unwrap().publications as usize, num);
        let said: Vec<String> = messages.lock().unwrap().iter().map(ToString::to_string).collect();
        let moved = "the server at http://s0 was restarted and now answers at http://elsewhere";
        let at = said.iter().position(|line| line == moved).expect("said");
        let after: Vec<&String> = said[at + 1..].iter().filter(|line| line.contains("elsewhere")).collect();
        assert_eq!(after, ["http://elsewhere is used"], "{said:?}");
    }
}

/// A server that is gone when it is connected to, and answers at another address a moment later.
#[test]
fn a_server_that_moves_while_it_is_connected_to_is_found() {
    let moves = |clock: &TestClock| -> Option<Moves> {
        let clock = clock.clone();
        let mut after = Some(clock.now() + Duration::from_secs(20));
        Some(Box::new(move || {
            if after.take_if(|after| *after <= clock.now()).is_none() {
                return Vec::new();
            }
            vec![(0, Box::new(FakeServer::new(3, 9, GOOD, &clock)) as Box<dyn Server>)]
        }))
    };
    let gone = [(GOOD, Some(Duration::ZERO))];
    let World { mut fleet, .. } =
        connect_moving(1, &gone, FleetSettings::default(), |_, _| {}, moves).expect("answers");
    fleet.submit(request(0, 0)).expect("taken");
    assert!(matches!(finish(&mut fleet)[..], [GeneratorEvent::Sampled { .. }]));
}

#[test]
fn a_drained_server_gets_nothing_more() {
    let World { mut fleet, seen, messages, clock, .. } =
        connect(1, &[(GOOD, None); 2], FleetSettings::default()).expect("answer");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("drain");
    fleet.drain_by(file.clone());
    fleet.submit(request(0, 0)).expect("taken");
    std::fs::write(&file, "http://nobody\nhttp://s0/\n").unwrap();
    assert!(fleet.next(Wait::No).expect("goes on").is_empty());
    submit_all(&mut fleet, 1..20);
    assert_eq!(finish(&mut fleet).len(), 20);
    let on_first = || seen.lock().unwrap().groups.values().filter(|on| on.contains("http://s0")).count();
    assert_eq!(on_first(), 1);
    assert!(messages.lock().unwrap().contains(&FleetMessage::Drained { server: "http://s0".to_owned() }));
    // It missed a publication meanwhile, and is given the weights before it is used again.
    publish(&mut fleet, 1);
    std::fs::remove_file(&file).unwrap();
    for group in 20..400 {
        fleet.submit(request(group, 0)).expect("taken");
        for event in fleet.next(Wait::Forever).expect("goes on") {
            let GeneratorEvent::Sampled { sample, .. } = event else { panic!("{event:?}") };
            assert_eq!(sample.versions[0].version, PolicyVersion(1));
        }
    }
    assert!(on_first() > 20, "{}", on_first());
    let not_drained = |messages: &FleetMessage| match messages {
        FleetMessage::NotDrained { what, .. } => Some(what.clone()),
        _ => None,
    };
    let not_drained = || messages.lock().unwrap().iter().filter_map(not_drained).collect::<Vec<_>>();
    assert_eq!(not_drained(), ["http://nobody"], "said once, however often it is read");
    // One that missed none may have been started again meanwhile.
    let num_published = || seen.lock().unwrap().publications;
    let before = num_published();
    std::fs::write(&file, "http://s0\n").unwrap();
    let mut wait = |seconds| {
        let end = clock.now() + Duration::from_secs(seconds);
        while clock.now() < end {
            fleet.next(Wait::Until(end)).expect("goes on");
        }
    };
    wait(10);
    // An unreadable file changes nothing.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    wait(30);
    assert_eq!(num_published(), before);
    assert_eq!(not_drained(), ["http://nobody", &file.display().to_string()]);
    std::fs::remove_dir(&file).unwrap();
    wait(10);
    assert_eq!(num_published(), before + 1);
}

#[test]
fn a_folder_that_no_server_can_load_ends_the_wait() {
    let refusing = |_: usize, server: &mut FakeServer| server.refuses_weights = true;
    for num in [1, 3] {
        let servers = vec![(GOOD, None); num];
        let World { mut fleet, .. } =
            connect_to(1, &servers, FleetSettings::default(), refusing).expect("answer");
        fleet.publish(&publication(1), InFlight::Wait).expect("begun");
        let (error, num_events) = lost(&mut fleet);
        assert!(num_events == 0 && matches!(error, GeneratorError::Unreachable { .. }), "{error:?}");
        let tried = (0..num).map(|place| format!("http://s{place}: refused: /weights: no config.json"));
        assert_eq!(error.to_string(), format!("no server answers: {}", tried.collect::<Vec<_>>().join("; ")));
    }
}

/// One of several was started without the routes that change weights: the run continues with the
/// others.
#[test]
fn a_server_that_refuses_weights_is_left_out_while_another_takes_them() {
    let refusing = |place: usize, server: &mut FakeServer| {
        if place == 0 {
            (server.refuses_weights, server.publish_takes) = (true, Duration::from_secs(60));
        }
    };
    let World { mut fleet, seen, messages, clock, .. } =
        connect_to(1, &[(GOOD, None); 2], FleetSettings::default(), refusing).expect("answer");
    for version in 1..4 {
        let begun = clock.now();
        publish(&mut fleet, version);
        // Its refusal takes long, and is waited for once.
        assert_eq!(clock.now() - begun < Duration::from_secs(1), version > 1, "version {version}");
        submit_all(&mut fleet, 100 * version..100 * version + 20);
        let sampled = |event: &GeneratorEvent| matches!(event, GeneratorEvent::Sampled { .. });
        assert_eq!(finish(&mut fleet).iter().filter(|event| sampled(event)).count(), 20);
    }
    assert!(seen.lock().unwrap().groups.values().all(|on| !on.contains("http://s0")));
    let lost = |message: &&FleetMessage| matches!(message, FleetMessage::Lost { .. });
    assert_eq!(messages.lock().unwrap().iter().filter(lost).count(), 1, "said once, not at each try");
}

/// A server that looks healthy and answers at once, but never with a sample, always has the least in flight.
#[test]
fn answers_that_are_no_samples_take_a_server_out_and_fail_no_request() {
    let spoiling = (Habits { spoils: 1000, ..GOOD }, None);
    // Either measure is enough: to take the server out, or to retry elsewhere.
    for most_bad_answers in [8, u32::MAX] {
        let settings =
            FleetSettings { max_in_flight: Some(16), most_bad_answers, ..FleetSettings::default() };
        let World { mut fleet, messages, .. } =
            connect(1, &[spoiling, (GOOD, None)], settings).expect("answer");
        submit_all(&mut fleet, 0..300);
        let events = finish(&mut fleet);
        let failed = events.iter().filter(|event| !matches!(event, GeneratorEvent::Sampled { .. }));
        assert_eq!((events.len(), failed.count()), (300, 0));
        let lost = |message: &FleetMessage| matches!(message, FleetMessage::Lost { server, fault } if server == "http://s0" && fault.class == FaultClass::LogprobOutOfRange);
        assert_eq!(messages.lock().unwrap().iter().any(lost), most_bad_answers == 8);
        // Taken out, it is tried ever more rarely: not once for each request.
        let spoiled = fleet.fault_counts().samples[&FaultClass::LogprobOutOfRange];
        assert_eq!(spoiled < 150, most_bad_answers == 8, "{spoiled} of 300");
    }
}

#[test]
fn a_server_without_room_is_waited_for_and_sent_fewer() {
    // One that wants to be asked again at once is not believed.
    for retry_after in [None, Some(Duration::ZERO), Some(Duration::from_secs(20))] {
        let small = |_: usize, server: &mut FakeServer| {
            (server.room, server.retry_after) = (3, retry_after);
        };
        let settings = FleetSettings::default();
        let World { mut fleet, messages, clock, .. } =
            connect_to(1, &[(GOOD, None)], settings, small).expect("answers");
        submit_all(&mut fleet, 0..60);
        let begun = clock.now();
        let events = finish(&mut fleet);
        let sampled = events.iter().filter(|event| matches!(event, GeneratorEvent::Sampled { .. })).count();
        assert_eq!((events.len(), sampled), (60, 60), "{retry_after:?}");
        let turned_away = |message: &&FleetMessage| matches!(message, FleetMessage::TurnedAway { .. });
        let messages = messages.lock().unwrap();
        let first = messages.iter().find(turned_away).expect("said").to_string();
        assert_eq!(first, "http://s0 is full (busy: no sample): for now it gets at most 128 samples at once");
        assert!(!messages.iter().any(|message| matches!(message, FleetMessage::Lost { .. })), "{messages:?}");
        // All but three of the first 60 come back once; then the limit comes down by halves to what there is
        // room for.
        let busy = fleet.fault_counts().samples[&FaultClass::Busy];
        assert!((57..400).contains(&busy), "{busy}");
        assert!(retry_after.is_none_or(|pause| clock.now() - begun > pause));
    }
}

/// A server that never has room again fails its requests in the end.
#[test]
fn no_room_is_waited_for_as_long_as_a_sample_may_take() {
    let full = |_: usize, server: &mut FakeServer| server.room = 0;
    let settings = FleetSettings { busy_timeout: Duration::from_secs(30), ..FleetSettings::default() };
    let World { mut fleet, clock, .. } = connect_to(1, &[(GOOD, None)], settings, full).expect("answers");
    fleet.submit(request(0, 0)).expect("taken");
    let begun = clock.now();
    let events = finish(&mut fleet);
    let [GeneratorEvent::Failed { reason, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(reason, "http://s0 after 5 attempts: busy: no sample");
    let took = clock.now() - begun;
    assert!((Duration::from_secs(150)..Duration::from_secs(180)).contains(&took), "{took:?}");
}
