//! Duration of a step under each schedule, on a server with long and short completions, on a virtual clock.
//!
//! ```text
//! cargo run --release -p tamis-core --example step_time
//! cargo run --release -p tamis-core --example step_time -- TRAIN     training takes TRAIN of the generation of one full round
//! ```
//!
//! The server decodes up to S samples at once, one token each an iteration, and an iteration with b of them
//! takes 1 + ρ b / S with ρ = 0.5. Lengths are lognormal with σ = 1 (median 200 tokens, at most 4000), one
//! batch of 128 groups of 8 fills the server four times over (S = 256), and the pass rates of the prompts
//! follow Beta(0.3, 0.3), so that 47 % of the groups are kept. Whatever is random depends on the prompt
//! alone: every schedule meets the same prompts in the same order.

#![expect(clippy::print_stdout, reason = "a program that prints its measurement")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use tamis_core::group::{GroupId, PolicyVersion};
use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::{
    Command, Event, FillOrder, GroupFacts, OnLimit, RoundLimit, RoundSize, ScheduleError, ScheduleSettings,
    Scheduler, Spent, StreamingSettings, Surplus,
};

const GROUPS: usize = 128;
const MEMBERS: usize = 8;
const SLOTS: usize = GROUPS * MEMBERS / 4;
const RHO: f64 = 0.5;
const STEPS: u64 = 60;
/// Steps before the first that counts.
const WARM_UP: u64 = 10;

/// A number of Beta(a, a) by Jöhnk's method.
fn beta(key: Key, a: f64) -> f64 {
    let mut counter = 0;
    loop {
        let [x, y] = [0, 1].map(|i| key.uniform(counter + i).powf(1.0 / a));
        if x + y > 0.0 && x + y <= 1.0 {
            return x / (x + y);
        }
        counter += 2;
    }
}

/// Completion lengths and scores of a group.
fn members(group: GroupId) -> Vec<(f64, f64)> {
    let key = Key::new(1, Purpose::Rollout).with(group.0);
    let pass = beta(key.with(0), 0.3);
    let member = |i: u64| {
        let length = (200.0 * key.with(1).normal(i).exp()).clamp(1.0, 4000.0).round();
        (length, f64::from(u8::from(key.with(2).uniform(i) < pass)))
    };
    (0..MEMBERS as u64).map(member).collect()
}

/// A decoding sample: where its last token comes, in iterations of the server, and whose it is.
#[derive(PartialEq)]
struct Decoding {
    end: f64,
    group: GroupId,
    member: usize,
}

impl Eq for Decoding {}

impl PartialOrd for Decoding {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decoding {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.end.total_cmp(&other.end).then((self.group, self.member).cmp(&(other.group, other.member)))
    }
}

#[derive(Default)]
struct Server {
    clock: f64,
    iterations: f64,
    decoding: BinaryHeap<Reverse<Decoding>>,
    waiting: VecDeque<(GroupId, usize)>,
    open: BTreeMap<GroupId, (Vec<(f64, f64)>, usize)>,
    generated: u64,
    busy: f64,
}

impl Server {
    fn fill(&mut self) {
        while self.decoding.len() < SLOTS
            && let Some((group, member)) = self.waiting.pop_front()
        {
            let length = self.open[&group].0[member].0;
            self.decoding.push(Reverse(Decoding { end: self.iterations + length, group, member }));
        }
    }

    /// Goes on to the next completion, or to `until` where that comes first.
    fn advance(&mut self, until: Option<f64>) -> Option<(GroupId, usize)> {
        self.fill();
        let pace = 1.0 + RHO * self.decoding.len() as f64 / SLOTS as f64;
        let end = self.decoding.peek().map(|next| self.clock + (next.0.end - self.iterations) * pace);
        match (end, until) {
            (Some(end), until) if until.is_none_or(|until| end <= until) => {
                self.pass(end, pace);
                self.decoding.pop().map(|done| (done.0.group, done.0.member))
            }
            (_, Some(until)) => {
                self.pass(until, pace);
                None
            }
            (_, None) => None,
        }
    }

    fn pass(&mut self, until: f64, pace: f64) {
        self.busy += self.decoding.len() as f64 * (until - self.clock);
        self.iterations += (until - self.clock) / pace;
        self.clock = until;
    }

    fn abort(&mut self, groups: &[GroupId]) {
        let gone: BTreeSet<GroupId> = groups.iter().copied().collect();
        self.waiting.retain(|(group, _)| !gone.contains(group));
        self.decoding.retain(|sample| !gone.contains(&sample.0.group));
        self.open.retain(|group, _| !gone.contains(group));
    }
}

/// Measurements of a schedule after the warm-up.
struct Found {
    step_time: f64,
    groups_a_step: f64,
    /// Share of the slots that decoded.
    load: f64,
    max_lag: u64,
    /// Mean length of what was trained on over that of all that was started.
    length: f64,
}

/// Number and length of samples, summed.
#[derive(Default)]
struct Lengths(f64, f64);

impl Lengths {
    fn add(&mut self, group: GroupId) {
        for (length, _) in members(group) {
            self.0 += 1.0;
            self.1 += length;
        }
    }

    fn mean(&self) -> f64 {
        self.1 / self.0
    }
}

fn run(mut machine: Scheduler, train_time: f64) -> Result<Found, ScheduleError> {
    let mut server = Server::default();
    let mut events = VecDeque::from([Event::BeginStep]);
    let (mut next, mut steps, mut version, mut max_lag) = (0u64, 0u64, 0u64, 0u64);
    // When the learner is done with what it was given, and whether that ends the step.
    let (mut learner, mut is_closed) = (0.0f64, false);
    let mut began = (0.0, 0u64, 0.0);
    let (mut started, mut trained) = (Lengths::default(), Lengths::default());
    loop {
        while let Some(event) = events.pop_front() {
            for command in machine.handle(event)? {
                match command {
                    Command::Draw { num_prompts, .. } => {
                        let groups: Vec<GroupId> = (next..next + num_prompts as u64).map(GroupId).collect();
                        next += num_prompts as u64;
                        for &group in &groups {
                            server.open.insert(group, (members(group), 0));
                            started.add(group);
                            server.waiting.extend((0..MEMBERS).map(|member| (group, member)));
                        }
                        server.generated += groups.len() as u64;
                        events.push_back(Event::Dispatched {
                            groups,
                            version: PolicyVersion(version),
                            exhausted: false,
                        });
                    }
                    Command::Abort { groups } => {
                        server.abort(&groups);
                        events.extend(
                            groups
                                .into_iter()
                                .map(|group| Event::Aborted { group, spent: Spent::on_answer(0) }),
                        );
                    }
                    Command::Train { groups, .. } => {
                        let share = groups.len() as f64 / GROUPS as f64;
                        learner = learner.max(server.clock) + share * train_time;
                        for group in groups {
                            trained.add(group);
                        }
                    }
                    Command::StepReady(close) => {
                        server.abort(&close.aborted);
                        for group in &close.trained {
                            trained.add(*group);
                        }
                        learner = server.clock + train_time;
                        is_closed = true;
                    }
                    Command::StepClosed(close) => {
                        max_lag = max_lag.max(close.report.max_lag);
                        is_closed = true;
                    }
                    Command::Finish { .. } | Command::Stop { .. } => {
                        let counted = (steps - WARM_UP) as f64;
                        let time = server.clock - began.0;
                        return Ok(Found {
                            step_time: time / counted,
                            groups_a_step: (server.generated - began.1) as f64 / counted,
                            load: (server.busy - began.2) / time / SLOTS as f64,
                            max_lag,
                            length: trained.mean() / started.mean(),
                        });
                    }
                    _ => {}
                }
            }
        }
        if let Some((group, member)) = server.advance(is_closed.then_some(learner)) {
            let Some((samples, num_done)) = server.open.get_mut(&group) else { continue };
            *num_done += 1;
            if *num_done < MEMBERS {
                events.push_back(Event::Sampled { group, value: Some(samples[member].1) });
                continue;
            }
            let values = samples.iter().map(|sample| sample.1).collect();
            let spent = samples.iter().map(|sample| Spent::on_answer(sample.0 as u64)).sum();
            server.open.remove(&group);
            events.push_back(Event::Scored {
                group,
                values,
                facts: GroupFacts { spent, ..GroupFacts::default() },
            });
        } else {
            is_closed = false;
            steps += 1;
            version += 1;
            if steps == WARM_UP {
                began = (server.clock, server.generated, server.busy);
            }
            let published = Event::Published { version: PolicyVersion(version) };
            events.extend([Event::Trained { left_out: 0, tokens: 0, turns: 0 }, published, Event::BeginStep]);
        }
    }
}

fn main() -> Result<(), ScheduleError> {
    let share: f64 = std::env::args().nth(1).and_then(|share| share.parse().ok()).unwrap_or(0.0);
    let settings = ScheduleSettings {
        total_steps: Some(STEPS),
        max_num_gen_batches: RoundLimit::None,
        on_limit: OnLimit::UsePartial,
        ..ScheduleSettings::new(GROUPS, MEMBERS)
    };
    let rounds = |size: usize, surplus| {
        Scheduler::rounds(ScheduleSettings { gen_batch_size: size, surplus, ..settings.clone() })
    };
    let carry = Surplus::Carry { max_lag: 1 };
    let deficit = RoundSize::Deficit { granularity: 1, margin: 1.0 };
    let stream = |surplus, order| {
        Scheduler::streaming(StreamingSettings {
            run: ScheduleSettings { surplus, order, ..settings.clone() },
            mini_batch_size: GROUPS / 4,
            max_in_flight: 8 * GROUPS,
        })
    };
    // The generation of one round of T groups, which training is a share of.
    let one_round = {
        let filter = ScheduleSettings { filter: None, ..settings.clone() };
        run(Scheduler::rounds(filter)?, 0.0)?.step_time
    };
    let train_time = share * one_round;
    println!("training takes {share} of the generation of one round of {GROUPS} groups without a filter");
    println!(
        "{:<44} {:>9} {:>9} {:>12} {:>6} {:>8} {:>7}",
        "schedule", "step", "ratio", "groups/step", "load", "max lag", "length"
    );
    let base = run(rounds(GROUPS, Surplus::Discard)?, train_time)?.step_time;
    let cases = vec![
        ("rounds of 128", rounds(GROUPS, Surplus::Discard)?),
        ("rounds of 192", rounds(GROUPS * 3 / 2, Surplus::Discard)?),
        ("rounds of 384 (DAPO's three times)", rounds(3 * GROUPS, Surplus::Discard)?),
        ("rounds of 128, carry", rounds(GROUPS, carry)?),
        ("deficit", Scheduler::rounds(ScheduleSettings { size: deficit, ..settings.clone() })?),
        (
            "deficit, carry",
            Scheduler::rounds(ScheduleSettings { size: deficit, surplus: carry, ..settings.clone() })?,
        ),
        ("streaming", stream(Surplus::Discard, FillOrder::Dispatch)?),
        ("streaming, carry, lag 1", stream(carry, FillOrder::Dispatch)?),
        ("streaming, carry, lag 2", stream(Surplus::Carry { max_lag: 2 }, FillOrder::Dispatch)?),
        ("streaming, in order of completion", stream(Surplus::Discard, FillOrder::Completion)?),
        ("streaming, carry, lag 1, order of completion", stream(carry, FillOrder::Completion)?),
    ];
    for (name, machine) in cases {
        let found = run(machine, train_time)?;
        println!(
            "{name:<44} {:>9.0} {:>9.2} {:>12.0} {:>5.0}% {:>8} {:>7.2}",
            found.step_time,
            found.step_time / base,
            found.groups_a_step,
            100.0 * found.load,
            found.max_lag,
            found.length
        );
    }
    Ok(())
}
