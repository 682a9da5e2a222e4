//! Events per second that the streaming scheduler processes with many groups in flight, and whether that
//! depends on their number.
//!
//! ```text
//! cargo run --release -p tamis-bench --example schedule_speed
//! ```

#![expect(clippy::print_stdout, reason = "a program that prints its measurement")]

use std::time::Instant;

use tamis_core::group::{GroupId, PolicyVersion};
use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::{
    Command, Event, GroupFacts, ScheduleError, ScheduleSettings, Scheduler, Spent, StreamingSettings, Surplus,
};

/// Groups of 8, about half of which are kept, in random order of completion, with one event per member.
fn events_per_second(in_flight: usize) -> Result<f64, ScheduleError> {
    let n = 8;
    let run = ScheduleSettings {
        surplus: Surplus::Carry { max_lag: 2 },
        ..ScheduleSettings::new((in_flight / 6).max(1), n)
    };
    let mut machine =
        Scheduler::streaming(StreamingSettings { run, mini_batch_size: 64, max_in_flight: in_flight })?;
    let key = Key::new(1, Purpose::Shuffle);
    let (mut next, mut version, mut num_events, mut steps) = (0u64, 0u64, 0u64, 0u64);
    let mut flying: Vec<GroupId> = Vec::new();
    let mut pending = vec![Event::BeginStep];
    let clock = Instant::now();
    while num_events < 4_000_000 {
        let event = if let Some(event) = pending.pop() {
            event
        } else {
            let place = key.below(num_events, flying.len() as u64) as usize;
            let group = flying.swap_remove(place);
            let ones = u32::from(key.with(group.0).below(0, 2) == 0);
            let mut values = vec![0.0; n];
            values[n - 1] = f64::from(ones);
            for &value in &values[..n - 1] {
                machine.handle(Event::Sampled { group, value: Some(value) })?;
            }
            num_events += n as u64 - 1;
            Event::Scored { group, values, facts: GroupFacts::default() }
        };
        num_events += 1;
        for command in machine.handle(event)? {
            match command {
                Command::Draw { num_prompts, .. } => {
                    let groups: Vec<GroupId> = (next..next + num_prompts as u64).map(GroupId).collect();
                    next += num_prompts as u64;
                    flying.extend(&groups);
                    pending.push(Event::Dispatched {
                        groups,
                        version: PolicyVersion(version),
                        exhausted: false,
                    });
                }
                Command::Abort { groups } => {
                    let gone: std::collections::BTreeSet<GroupId> = groups.iter().copied().collect();
                    flying.retain(|group| !gone.contains(group));
                    pending.extend(
                        groups.into_iter().map(|group| Event::Aborted { group, spent: Spent::on_answer(0) }),
                    );
                }
                Command::StepClosed(_) => {
                    steps += 1;
                    version += 1;
                    let version = PolicyVersion(version);
                    pending.extend([
                        Event::BeginStep,
                        Event::Published { version },
                        Event::Trained { left_out: 0, tokens: 0, turns: 0 },
                    ]);
                }
                _ => {}
            }
        }
    }
    let seconds = clock.elapsed().as_secs_f64();
    println!(
        "{in_flight:>7} in flight: {:>5.2} million events/s, {steps} steps",
        num_events as f64 / seconds / 1e6
    );
    Ok(num_events as f64 / seconds)
}

fn main() -> Result<(), ScheduleError> {
    for in_flight in [1_000, 10_000, 100_000] {
        events_per_second(in_flight)?;
    }
    Ok(())
}
