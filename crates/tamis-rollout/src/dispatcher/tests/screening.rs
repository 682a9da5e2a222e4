//! Groups that begin with only some of their members.

use std::collections::BTreeMap;

use tamis_core::schedule::yields::PassRateSpread;
use tamis_core::schedule::{StreamingSettings, Surplus};

use super::*;
use crate::generator::Weights;

const N: usize = 8;

/// A run of some steps: the number of requested samples, the machine at its end, and the text of each
/// member of every ended group, by prompt.
fn run(screen_first: Option<usize>, steps: u64) -> (u64, Scheduler, BTreeMap<u64, Vec<String>>) {
    let run = ScheduleSettings {
        surplus: Surplus::Carry { max_lag: 1 },
        screen_first,
        metric: Metric::SeqReward,
        total_steps: Some(steps),
        ..ScheduleSettings::new(16, N)
    };
    let machine = Scheduler::streaming(StreamingSettings { run, mini_batch_size: 16, max_in_flight: 32 });
    let mut dispatcher = Dispatcher::new(settings(N), machine.expect("settings"));
    let mut generator = FakeGenerator::new(FakeSettings { max_delay: 9, ..FakeSettings::faultless(5) });
    let (mut source, mut scorer) = (Rows::new(1_000_000), scorer(Exact {}));
    let mut texts = BTreeMap::new();
    for version in 1.. {
        let heard = &mut Heard::default();
        let collected = dispatcher.collect(with(&mut generator, &mut source, &mut scorer, heard));
        let collected = collected.expect("collected").expect("nobody stops it");
        for record in collected.trained.iter().chain(&collected.others) {
            let members = record.group.trajectories.iter().map(|member| member.text.clone()).collect();
            texts.insert(record.group.prompt.0, members);
        }
        if !matches!(collected.end, End::Ready) {
            break;
        }
        dispatcher.note_trained(Members::default()).expect("trained");
        let publication = Publication { version: PolicyVersion(version), weights: Weights::InProcess };
        let dependencies = with(&mut generator, &mut source, &mut scorer, heard);
        dispatcher.publish(&publication, InFlight::Keep, OnStop::GiveUp, dependencies).expect("published");
    }
    (generator.num_submitted(), dispatcher.machine().clone(), texts)
}

/// The requested samples are exactly the counted ones, as many as the law predicts. Each sample equals
/// the one of a group that is begun whole.
#[test]
fn no_more_is_generated_than_counted_and_a_member_is_what_it_is_anyway() {
    let steps = 60;
    let (asked_whole, machine_whole, whole) = run(None, steps);
    assert_eq!(asked_whole, machine_whole.totals().generated.trajectories);
    for first in [2, 3] {
        let (asked, machine, texts) = run(Some(first), steps);
        let totals = machine.totals();
        totals.check().expect("balanced");
        assert_eq!(asked, totals.generated.trajectories);
        assert_eq!(totals.trained.trajectories, steps * 16 * N as u64);
        // Pass rates are uniform. What was aborted at the end is not part of the law.
        let keep = PassRateSpread::Beta { a: 1.0, b: 1.0 }.keep_probability(first);
        let law = ((N - first) as f64 + first as f64 / keep) / N as f64;
        let settled = totals.trained.trajectories + totals.dropped.trajectories;
        let cost = settled as f64 / totals.trained.trajectories as f64;
        assert!((cost / law - 1.0).abs() < 0.1, "{first}: {cost} instead of {law}");
        let mut screened = 0;
        for (prompt, members) in &texts {
            assert!(members.len() == N || members.len() == first || members.is_empty());
            let Some(of_whole) = whole.get(prompt).filter(|members| members.len() == N) else { continue };
            assert_eq!(members[..], of_whole[..members.len()], "prompt {prompt}");
            screened += usize::from(members.len() == first);
        }
        assert!(screened > 100, "{screened}");
    }
}
