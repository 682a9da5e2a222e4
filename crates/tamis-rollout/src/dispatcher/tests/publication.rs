//! Groups in flight over a publication, and the counted cost of aborted ones.

use tamis_core::schedule::Members;

use super::*;

/// A stream whose groups keep generating over a publication.
fn stream(train_batch_size: usize, group_size: usize) -> Dispatcher {
    let run = ScheduleSettings {
        surplus: tamis_core::schedule::Surplus::Carry { max_lag: 2 },
        metric: Metric::SeqReward,
        ..ScheduleSettings::verl(train_batch_size, 4, group_size, 0)
    };
    let mini_batch_size = train_batch_size;
    let streaming = tamis_core::schedule::StreamingSettings { run, mini_batch_size, max_in_flight: 16 };
    Dispatcher::new(settings(group_size), Scheduler::streaming(streaming).expect("settings"))
}

/// Scores exactly, until the scores are abandoned.
struct Until(Arc<std::sync::atomic::AtomicBool>);

impl RewardFunction for Until {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Answered> {
        if self.0.load(std::sync::atomic::Ordering::SeqCst) {
            return vec![Answered::Failed(tamis_env::reward::RewardFailure::Interrupted); batch.len()];
        }
        Exact {}.score(batch)
    }
}

/// The weights of a trained step are always published, so that the saved state is the one after that
/// step: also if Ctrl-C abandons scores, and if the generator is lost.
#[test]
fn a_publication_comes_to_its_end() {
    for (is_interrupted, is_gone) in [(true, false), (false, true), (true, true)] {
        let mut dispatcher = stream(2, 4);
        let fake = FakeSettings { max_delay: 40, ..FakeSettings::faultless(4) };
        let mut generator = gone(FakeGenerator::new(fake), 0);
        let ends = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (mut source, mut heard) = (Rows::new(1000), Heard::default());
        let mut scorer = scorer(Until(Arc::clone(&ends)));
        dispatcher
            .collect(with(&mut generator, &mut source, &mut scorer, &mut heard))
            .expect("goes on")
            .expect("a step");
        dispatcher.note_trained(Members::default()).expect("trained");
        ends.store(is_interrupted, std::sync::atomic::Ordering::SeqCst);
        generator.num_lost = if is_gone { u32::MAX } else { 0 };
        let publication = Publication { version: PolicyVersion(1), weights: crate::Weights::InProcess };
        let stops = || is_interrupted;
        let with_stop = Dependencies {
            is_interrupted: &stops,
            ..with(&mut generator, &mut source, &mut scorer, &mut heard)
        };
        let end =
            dispatcher.publish(&publication, InFlight::Wait, OnStop::Finish, with_stop).expect("a state");
        assert_eq!(matches!(end, PublicationEnd::Lost(_)), is_gone, "{end:?}");
        // A process after this one has all that there was, and asks for the rest.
        let (machine, held) = (dispatcher.machine().clone(), dispatcher.held().cloned().collect());
        let health = dispatcher.reward_health().clone();
        let (next, version) = (dispatcher.next_group(), PolicyVersion(1));
        let mut resumed = Dispatcher::resume(settings(4), machine, next, version, held, health);
        ends.store(false, std::sync::atomic::Ordering::SeqCst);
        let mut generator = FakeGenerator::new(fake);
        generator.publish(&publication, InFlight::Wait).expect("taken");
        generator.next(Wait::Forever).expect("published");
        let collected = resumed
            .collect(with(&mut generator, &mut source, &mut scorer, &mut heard))
            .expect("goes on")
            .expect("a step");
        assert!(matches!(collected.end, End::Ready));
        collected.report.accounting.check().expect("balanced");
    }
}

/// If an event of a noted order does not come again, the run continues without it and reports what is
/// missing.
#[test]
fn an_order_that_is_not_followed_to_its_end_is_told() {
    let mut dispatcher = stream(2, 4);
    let id = SampleId::of_member(GroupId(7000), 1);
    dispatcher.follow(vec![Taken::Sample { id, end: SampleEnd::Sampled }, Taken::StepEnd]);
    let (mut generator, mut source) = (FakeGenerator::new(FakeSettings::faultless(4)), Rows::new(1000));
    let (mut scorer, mut heard) = (scorer(Exact {}), Heard::default());
    let collected = dispatcher.collect(with(&mut generator, &mut source, &mut scorer, &mut heard));
    assert!(matches!(collected.expect("goes on").expect("a step").end, End::Ready));
    let [warning] = &heard.warnings[..] else { panic!("{:?}", heard.warnings) };
    assert!(warning.contains(
        "(order.bin) cannot be followed any further: its next entry is the end of group 7000, member 1"
    ));
    assert!(warning.contains("2 of its entries are ignored"), "{warning}");
}

/// Takes a number of steps at a generator without faults, with weights published between them.
fn take_steps(num_steps: u64, dispatcher: &mut Dispatcher, in_flight: InFlight) {
    let fake = FakeSettings { max_delay: 60, ..FakeSettings::faultless(4) };
    let (mut generator, mut source) = (FakeGenerator::new(fake), Rows::new(1000));
    let (mut scorer, mut heard) = (scorer(Exact {}), Heard::default());
    for version in 0..num_steps {
        if version > 0 {
            dispatcher.note_trained(Members::default()).expect("trained");
            let weights = crate::Weights::InProcess;
            let publication = Publication { version: PolicyVersion(version), weights };
            let with = with(&mut generator, &mut source, &mut scorer, &mut heard);
            dispatcher.publish(&publication, in_flight, OnStop::GiveUp, with).expect("published");
        }
        dispatcher
            .collect(with(&mut generator, &mut source, &mut scorer, &mut heard))
            .expect("goes on")
            .expect("a step");
    }
}

/// Groups that a full batch aborts leave with its step; their cost is reported after that, and counted.
#[test]
fn tokens_of_groups_that_a_full_batch_gives_up_are_counted() {
    let rounds = ScheduleSettings {
        metric: Metric::SeqReward,
        rounds_in_flight: 3,
        ..ScheduleSettings::verl(2, 2, 4, 0)
    };
    let mut dispatcher = Dispatcher::new(settings(4), Scheduler::rounds(rounds).expect("settings"));
    take_steps(6, &mut dispatcher, InFlight::Wait);
    let totals = *dispatcher.machine().totals();
    assert!(totals.aborted.groups > 0 && totals.aborted.tokens > 0, "{totals:?}");
}

/// Tokens of a sample that is aborted and requested again are counted, even if its group then
/// completes.
#[test]
fn tokens_of_attempts_that_were_given_up_are_counted() {
    let mut dispatcher = stream(2, 4);
    take_steps(5, &mut dispatcher, InFlight::Abort);
    let totals = *dispatcher.machine().totals();
    assert!(totals.aborted.tokens > 0 && totals.aborted.groups == 0, "{totals:?}");
    // The reported cost of a group under way is that of its members, plus what was lost.
    let lost = |record: &Record| record.generation.num_tokens - record.group.num_tokens() as u64;
    assert!(dispatcher.held().map(lost).sum::<u64>() > 0);
}

/// Groups in flight when weights are published end by the old ones and settle. With `Keep` their tokens
/// record which weights sampled them.
#[test]
fn a_publication_waits_for_what_is_in_flight_or_says_from_where_it_went_on() {
    for in_flight in [InFlight::Wait, InFlight::Keep, InFlight::Abort] {
        let mut dispatcher = stream(2, 4);
        let fake = FakeSettings { max_delay: 40, ..FakeSettings::faultless(4) };
        let (mut generator, mut source) = (FakeGenerator::new(fake), Rows::new(1000));
        let (mut scorer, mut heard) = (scorer(Exact {}), Heard::default());
        let mut lags = Vec::new();
        for version in 1..8 {
            let collected = dispatcher
                .collect(with(&mut generator, &mut source, &mut scorer, &mut heard))
                .expect("goes on")
                .expect("a step");
            assert!(matches!(collected.end, End::Ready));
            for record in &collected.trained {
                for member in &record.group.trajectories {
                    assert!(member.versions.0 <= member.versions.1 && member.versions.1.0 < version);
                    if in_flight == InFlight::Wait {
                        assert_eq!(member.versions, (record.group.dispatched, record.group.dispatched));
                    }
                    lags.push(version - 1 - member.versions.0.0);
                }
            }
            dispatcher.note_trained(Members::default()).expect("trained");
            let weights = crate::Weights::InProcess;
            let publication = Publication { version: PolicyVersion(version), weights };
            let with = with(&mut generator, &mut source, &mut scorer, &mut heard);
            dispatcher.publish(&publication, in_flight, OnStop::GiveUp, with).expect("published");
            assert_eq!(generator.version(), PolicyVersion(version));
        }
        assert!(lags.iter().all(|lag| *lag <= 2), "{in_flight:?}: {lags:?}");
        if in_flight != InFlight::Abort {
            assert!(lags.iter().any(|lag| *lag > 0), "{in_flight:?}: nothing was in flight");
        }
    }
}

#[test]
fn spans_of_kept_samples_cover_their_tokens() {
    let span = |version, start, end| VersionSpan { version: PolicyVersion(version), start, end };
    let fake = FakeSettings { max_delay: 30, ..FakeSettings::faultless(9) };
    let mut generator = FakeGenerator::new(fake);
    for member in 0..8 {
        generator.submit(support::request(0, member, 40)).expect("taken");
    }
    generator.next(Wait::Forever).expect("goes on");
    let publication = Publication { version: PolicyVersion(3), weights: crate::Weights::InProcess };
    generator.publish(&publication, InFlight::Keep).expect("taken");
    let mut num_split = 0;
    while generator.load().in_flight > 0 {
        for event in generator.next(Wait::Forever).expect("goes on") {
            let GeneratorEvent::Sampled { sample, .. } = event else { continue };
            let length = sample.token_ids.len() as u32;
            let split = sample.versions[0].end;
            num_split += usize::from(split > 0);
            assert_eq!(sample.versions, [span(0, 0, split), span(3, split, length)]);
        }
    }
    assert!(num_split > 0);
}
