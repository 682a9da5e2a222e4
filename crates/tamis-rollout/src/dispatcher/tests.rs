//! A small world to drive: prompts without a model, rewards by exact match, and single cases.

mod publication;
mod screening;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tamis_core::filter::Metric;
use tamis_core::group::Trajectory;
use tamis_core::random::{Key, Purpose};
use tamis_core::schedule::{ScheduleSettings, Spent};
use tamis_data::prompt::Prompt;
use tamis_env::reward::RewardInput;
use tamis_env::reward::exact::Exact;
use tamis_env::reward::{NamedReward, Nature, RewardFunction, RewardOutcome as Answered, Rewards};

use super::*;
use crate::fake::{FakeFaults, FakeGenerator, FakeSettings, sampling};
use crate::generator::{
    AbortScope, FailureKind, GeneratorEvent, InFlight, Publication, Sample, SamplePurpose, SampleRequest,
    VersionSpan, Wait,
};
use crate::record::End;
use crate::source::DrawnPrompt;
use crate::source::{DrawnPrompts, PreparedPrompt};
use crate::support;

impl Dependencies<'_> {
    /// The same for a shorter time.
    fn again(&mut self) -> Dependencies<'_> {
        Dependencies {
            source: self.source,
            generator: self.generator,
            scorer: self.scorer,
            reference: self.reference.as_mut().map(|reference| &mut **reference as &mut dyn Reference),
            observer: self.observer,
            order: self.order.as_mut().map(|order| &mut **order as &mut dyn OrderLog),
            is_interrupted: self.is_interrupted,
        }
    }
}

impl Dispatcher {
    /// Calls [`Dispatcher::next`] until the step ends and joins its parts; `None` if the run is to
    /// stop.
    pub(crate) fn collect(&mut self, mut with: Dependencies<'_>) -> Result<Option<Collected>, DispatchError> {
        loop {
            match self.next(with.again())? {
                Next::Part(_) => {}
                Next::Step(collected) => return Ok(Some(*collected)),
                Next::Interrupted => return Ok(None),
            }
        }
    }
}

/// A prompt source of a given number of prompts an epoch, each the number of its row; returned prompts come
/// first.
#[derive(Clone)]
pub(crate) struct Rows {
    per_epoch: u64,
    pub(crate) epoch: u64,
    pub(crate) next: u64,
    pub(crate) given_back: VecDeque<(u64, u64)>,
}

impl Rows {
    pub(crate) fn new(per_epoch: u64) -> Self {
        Self { per_epoch, epoch: 0, next: 0, given_back: VecDeque::new() }
    }
}

pub(crate) fn prompt(row: u64) -> PreparedPrompt {
    PreparedPrompt {
        prompt: Arc::new(Prompt {
            ground_truth: Some("x".to_owned()),
            ..support::prompt(row, &row.to_string(), "sums")
        }),
        token_ids: Arc::from([row as u32]),
        text: "?".into(),
        continued: "".into(),
        images: Arc::default(),
    }
}

impl PromptSource for Rows {
    fn draw(&mut self, n: usize, _version: PolicyVersion) -> DrawnPrompts {
        let mut prompts = Vec::new();
        while prompts.len() < n {
            let (epoch, row) = match self.given_back.pop_front() {
                Some(place) => place,
                None if self.next < self.per_epoch => {
                    self.next += 1;
                    (self.epoch, self.next - 1)
                }
                None => break,
            };
            prompts.push(DrawnPrompt { epoch, prompt: prompt(row), inclusion: 1.0 });
        }
        DrawnPrompts { prompts, exhausted: self.next == self.per_epoch && self.given_back.is_empty() }
    }

    fn give_back(&mut self, prompts: Vec<DrawnPrompt>) {
        for prompt in prompts.into_iter().rev() {
            self.given_back.push_front((prompt.epoch, prompt.prompt.prompt.id.0));
        }
    }

    fn next_epoch(&mut self) {
        (self.epoch, self.next) = (self.epoch + 1, 0);
    }
}

#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) warnings: Vec<String>,
}

impl Observer for Heard {
    fn round_begins(&mut self, _step: u64, _round: u64, _num_prompts: usize) {}
    fn groups_finished(&mut self, _finished: usize) {}
    fn round_complete(&mut self, _report: &RoundReport) {}
    fn epoch_begins(&mut self, _epoch: u64) {}
    fn warn(&mut self, message: &str) {
        self.warnings.push(message.to_owned());
    }
}

pub(crate) fn scorer(function: impl RewardFunction + 'static) -> Scorer {
    scorer_of(function, Nature::VERIFIER)
}

fn scorer_of(function: impl RewardFunction + 'static, nature: Nature) -> Scorer {
    let function = NamedReward { nature, ..NamedReward::verifier("exact", Box::new(function)) };
    Scorer::new(Rewards::new(vec![function]).expect("a function"))
}

pub(crate) fn settings(group_size: usize) -> DispatcherSettings {
    DispatcherSettings {
        seed: 1,
        group_size,
        sampling: Sampling::clone(&sampling(6)),
        recomputes_logprobs: false,
        is_metric_unproven: false,
        hands_out_parts: false,
    }
}

/// Two prompts with two completions each in one round, all trained on.
fn one_round() -> Dispatcher {
    let rounds = ScheduleSettings {
        filter: None,
        refill: false,
        total_steps: Some(1),
        metric: Metric::SeqReward,
        ..ScheduleSettings::verl(2, 2, 2, 1)
    };
    Dispatcher::new(settings(2), Scheduler::rounds(rounds).expect("settings"))
}

fn collect(
    dispatcher: &mut Dispatcher,
    generator: &mut dyn Generator,
    scorer: &mut Scorer,
    heard: &mut Heard,
) -> Result<Collected, DispatchError> {
    let collected = dispatcher.collect(with(generator, &mut Rows::new(1000), scorer, heard))?;
    Ok(collected.expect("nobody stops it"))
}

/// Passes requests on, and maps the events by a function. It is lost for the given number of calls.
pub(crate) struct Says<F> {
    pub(crate) generator: FakeGenerator,
    says: F,
    pub(crate) num_lost: u32,
}

fn says<F>(generator: FakeGenerator, says: F) -> Says<F> {
    Says { generator, says, num_lost: 0 }
}

/// The same, but lost for the given number of calls.
pub(crate) fn gone(
    generator: FakeGenerator,
    num_lost: u32,
) -> Says<fn(GeneratorEvent) -> Vec<GeneratorEvent>> {
    Says { generator, says: |event| vec![event], num_lost }
}

impl<F: FnMut(GeneratorEvent) -> Vec<GeneratorEvent> + Send> Generator for Says<F> {
    fn submit(&mut self, request: SampleRequest) -> Result<(), GeneratorError> {
        self.generator.submit(request)
    }
    fn abort(&mut self, what: AbortScope) {
        self.generator.abort(what);
    }
    fn publish(&mut self, weights: &Publication, in_flight: InFlight) -> Result<(), GeneratorError> {
        self.generator.publish(weights, in_flight)
    }
    fn next(&mut self, wait: Wait) -> Result<Vec<GeneratorEvent>, GeneratorError> {
        if self.num_lost > 0 {
            self.num_lost -= 1;
            return Err(GeneratorError::Unreachable { tried: vec!["there".to_owned()] });
        }
        Ok(self.generator.next(wait)?.into_iter().flat_map(&mut self.says).collect())
    }
    fn load(&self) -> crate::generator::Load {
        self.generator.load()
    }
}

fn right() -> FakeGenerator {
    FakeGenerator::answering(FakeSettings::faultless(1), Box::new(|_| "x".to_owned()))
}

#[test]
fn events_that_nobody_waits_for_are_counted_and_used_for_nothing() {
    let renamed = |id: SampleId, event: &GeneratorEvent| match event {
        GeneratorEvent::Sampled { sample, .. } => {
            let sample = Sample { text: "wrong".to_owned(), ..sample.clone() };
            GeneratorEvent::Sampled { id, sample }
        }
        other => other.clone(),
    };
    let strange = move |event: GeneratorEvent| {
        let GeneratorEvent::Sampled { id, .. } = event else { return vec![event] };
        let others = [
            SampleId { purpose: SamplePurpose::Validation, ..id },
            SampleId { group: id.group + 7, ..id },
            SampleId { member: 2, ..id },
            SampleId { turn: 1, ..id },
            SampleId { attempt: 1, ..id },
        ];
        let mut events: Vec<GeneratorEvent> = others.into_iter().map(|id| renamed(id, &event)).collect();
        events.push(event.clone());
        events.push(renamed(id, &event));
        events
    };
    let mut dispatcher = one_round();
    let mut heard = Heard::default();
    let collected = collect(&mut dispatcher, &mut says(right(), strange), &mut scorer(Exact {}), &mut heard)
        .expect("a step");
    assert_eq!(collected.trained.len(), 2);
    for record in &collected.trained {
        assert!(record.group.trajectories.iter().all(|member| member.text == "x"), "{:?}", record.group);
        assert_eq!(record.values, [1.0, 1.0]);
    }
    let ignored = dispatcher.inbox().take_ignored();
    assert_eq!((ignored.duplicate, ignored.foreign), (4, 20));
    assert_eq!(dispatcher.inbox().take_ignored().classes().count(), 0, "told once");
}

#[test]
fn a_sample_without_log_probabilities_is_taken_where_the_learner_computes_them() {
    let silent = |event: GeneratorEvent| match event {
        GeneratorEvent::Sampled { id, sample } => {
            vec![GeneratorEvent::Sampled { id, sample: Sample { logprobs: Vec::new(), ..sample } }]
        }
        event => vec![event],
    };
    for recomputes_logprobs in [false, true] {
        let mut dispatcher = one_round();
        dispatcher.settings.recomputes_logprobs = recomputes_logprobs;
        let mut heard = Heard::default();
        let collected =
            collect(&mut dispatcher, &mut says(right(), silent), &mut scorer(Exact {}), &mut heard)
                .expect("a step");
        let members: Vec<&Trajectory> =
            collected.trained.iter().flat_map(|record| &record.group.trajectories).collect();
        assert_eq!(members.len(), if recomputes_logprobs { 4 } else { 0 });
        for member in members {
            assert_eq!(member.logprobs.len(), member.token_ids.len());
            assert!(!member.has_logprobs() && member.logprobs.iter().all(|logprob| logprob.is_nan()));
        }
        let reason =
            heard.warnings.iter().any(|warning| warning.contains("the sample has 0 log-probabilities"));
        assert_eq!(reason, !recomputes_logprobs, "{:?}", heard.warnings);
    }
}

#[test]
fn a_member_that_fails_fails_its_group_with_all_that_it_cost() {
    let fails = |event: GeneratorEvent| match event {
        GeneratorEvent::Sampled { id, .. } if (id.group, id.member) == (0, 1) => {
            let reason = "the server says no".to_owned();
            vec![GeneratorEvent::Failed {
                id,
                kind: FailureKind::Permanent,
                reason,
                spent: Spent::on_answer(40),
            }]
        }
        event => vec![event],
    };
    let mut dispatcher = one_round();
    let mut heard = Heard::default();
    let collected = collect(&mut dispatcher, &mut says(right(), fails), &mut scorer(Exact {}), &mut heard)
        .expect("a step");
    assert_eq!(collected.trained.iter().map(|record| record.group.id.0).collect::<Vec<_>>(), [1]);
    assert_eq!(collected.others[0].fate, Fate::Failed("the server says no".to_owned()));
    assert_eq!(heard.warnings, ["group 0 of `sums` failed: the server says no"]);
    let failed = collected.report.accounting.failed;
    assert_eq!((failed.groups, failed.trajectories), (1, 2));
    assert!(failed.tokens > 40 && failed.tokens <= 46, "the other member had its tokens: {failed:?}");
    assert!(collected.report.accounting.check().is_ok());
}

#[test]
fn the_groups_of_an_unfinished_attempt_are_there() {
    // One answer is lost.
    let lost = |event: GeneratorEvent| match event {
        GeneratorEvent::Sampled { id, .. } if (id.group, id.member) == (1, 1) => Vec::new(),
        event => vec![event],
    };
    let mut dispatcher = one_round();
    let broken =
        collect(&mut dispatcher, &mut says(right(), lost), &mut scorer(Exact {}), &mut Heard::default())
            .expect_err("it is waited for");
    assert_eq!(
        broken.to_string(),
        "the generator stopped: 1 samples are in flight and the generator returns none of them"
    );
    let unfinished = dispatcher.unfinished(1);
    assert_eq!(unfinished.len(), 2);
    assert!(unfinished.iter().all(|record| record.fate == Fate::Aborted));
    let members: Vec<usize> = unfinished.iter().map(|record| record.group.trajectories.len()).collect();
    assert_eq!(members, [2, 1], "what was generated before the error");
    assert!(dispatcher.unfinished(2).is_empty());
}

/// A sample that the generator aborts by itself is requested again, and fails if that repeats too
/// often.
#[test]
fn what_is_given_up_without_a_word_is_asked_for_again() {
    for (times, is_trained) in [(3, true), (100, false)] {
        let given_up = move |event: GeneratorEvent| match event {
            GeneratorEvent::Sampled { id, .. } if (id.group, id.member) == (0, 0) && id.attempt < times => {
                vec![GeneratorEvent::Aborted { id, spent: Spent::on_answer(5) }]
            }
            event => vec![event],
        };
        let mut dispatcher = one_round();
        let mut generator = says(right(), given_up);
        let collected =
            collect(&mut dispatcher, &mut generator, &mut scorer(Exact {}), &mut Heard::default())
                .expect("a step");
        assert_eq!(collected.trained.len(), 1 + usize::from(is_trained));
        assert!(collected.report.accounting.check().is_ok());
    }
}

/// Scores four completions at a time, outside: returns which it got together.
struct Fours;

impl RewardFunction for Fours {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Answered> {
        let sum: u64 = batch.iter().map(|input| input.prompt.id.0 + 1).sum();
        batch.iter().map(|_| Answered::score(sum as f64 * 100.0 + batch.len() as f64)).collect()
    }
    fn batch_size(&self) -> usize {
        4
    }
    fn concurrency(&self) -> usize {
        3
    }
}

/// Functions that score several completions get those of the dispatch order together, in whatever order
/// they end, on their own threads.
#[test]
fn reward_functions_get_the_same_completions_together_whatever_ends_first() {
    let scores = |max_delay: u64, seed: u64| {
        let rounds = ScheduleSettings {
            filter: None,
            refill: false,
            metric: Metric::SeqReward,
            ..ScheduleSettings::verl(5, 5, 3, 1)
        };
        let mut dispatcher = Dispatcher::new(settings(3), Scheduler::rounds(rounds).expect("settings"));
        let fake = FakeSettings { max_delay, ..FakeSettings::faultless(seed) };
        let mut generator = FakeGenerator::new(fake);
        let collected = collect(
            &mut dispatcher,
            &mut generator,
            &mut scorer_of(Fours, Nature::EXTERNAL),
            &mut Heard::default(),
        )
        .expect("a step");
        let rewards = |record: &Record| -> Vec<f64> {
            record.group.trajectories.iter().map(|member| member.reward).collect()
        };
        collected.trained.iter().flat_map(rewards).collect::<Vec<f64>>()
    };
    let expected = scores(0, 1);
    // Prompts 1, 1, 1, 2 | 2, 2, 3, 3 | 3, 4, 4, 4 | 5, 5, 5 and no more.
    assert_eq!((expected[0].to_bits(), expected[14].to_bits()), (504f64.to_bits(), 1503f64.to_bits()));
    for seed in 1..20 {
        assert_eq!(scores(50, seed), expected, "seed {seed}");
    }
}

/// Fails on everything, outside.
struct Broken;

impl RewardFunction for Broken {
    fn score(&self, _batch: &[RewardInput<'_>]) -> Vec<Answered> {
        panic!("a fault of the function")
    }
}

#[test]
fn a_reward_function_that_panics_outside_ends_the_run_with_an_error() {
    let broken = collect(
        &mut one_round(),
        &mut right(),
        &mut scorer_of(Broken, Nature::EXTERNAL),
        &mut Heard::default(),
    );
    let error = broken.err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some("the threads that wait for reward functions have ended"));
}

#[test]
fn an_interruption_ends_the_collection() {
    let looks = Cell::new(0);
    let interrupted = || {
        looks.set(looks.get() + 1);
        looks.get() > 1
    };
    let mut generator = FakeGenerator::new(FakeSettings { max_delay: 30, ..FakeSettings::faultless(3) });
    let (mut source, mut scorer, mut heard) = (Rows::new(10), scorer(Exact {}), Heard::default());
    let with = with(&mut generator, &mut source, &mut scorer, &mut heard);
    let ended = one_round().collect(Dependencies { is_interrupted: &interrupted, ..with });
    assert!(ended.is_ok_and(|collected| collected.is_none()), "interrupted");
}

/// Counts the passes over every group.
struct Passes(BTreeMap<u64, usize>, Vec<usize>);

impl Reference for Passes {
    fn pass(&mut self, groups: &[&Group]) -> Result<Option<ReferencePass>, DispatchError> {
        self.1.push(groups.len());
        for group in groups {
            *self.0.entry(group.id.0).or_default() += 1;
        }
        let members = || groups.iter().flat_map(|group| &group.trajectories);
        Ok(Some(ReferencePass {
            // With the spread of the rewards, and below them.
            final_rewards: members().map(|member| member.reward - 0.25).collect(),
            logprobs: Ragged::from_rows(members().map(|member| vec![-2.0; member.token_ids.len()])),
        }))
    }
}

/// A filter on rewards after the KL penalty needs one pass of the reference a round, without a group twice.
/// Streaming, it needs one pass a group.
#[test]
fn every_group_takes_one_reference_pass_before_the_filter() {
    for is_streaming in [false, true] {
        let run = ScheduleSettings { metric: Metric::SeqFinalReward, ..ScheduleSettings::verl(3, 4, 4, 0) };
        let machine = if is_streaming {
            let settings =
                tamis_core::schedule::StreamingSettings { run, mini_batch_size: 3, max_in_flight: 8 };
            Scheduler::streaming(settings)
        } else {
            Scheduler::rounds(run)
        };
        let mut dispatcher = Dispatcher::new(settings(4), machine.expect("settings"));
        let fake = FakeSettings { max_delay: 9, ..FakeSettings::faultless(2) };
        let mut passes = Passes(BTreeMap::new(), Vec::new());
        let collected = dispatcher
            .collect(Dependencies {
                reference: Some(&mut passes),
                ..with(
                    &mut FakeGenerator::new(fake),
                    &mut Rows::new(100),
                    &mut scorer(Exact {}),
                    &mut Heard::default(),
                )
            })
            .expect("goes on")
            .expect("a step");
        assert!(passes.0.values().all(|&times| times == 1), "{:?}", passes.0);
        assert!(passes.1.iter().all(|&groups| groups == if is_streaming { 1 } else { 4 }), "{:?}", passes.1);
        for record in &collected.trained {
            let finals = record.final_rewards.as_ref().expect("passed");
            assert_eq!(finals, &record.values);
            assert!(finals.iter().all(|reward| [0.75, -0.25].contains(reward)), "{finals:?}");
            assert_eq!(record.reference.as_ref().map(Ragged::num_rows), Some(4));
        }
    }
}

/// A validation while groups of a stream are in flight loses none of their events, and late answers of
/// one validation do not count in the next.
#[test]
fn who_samples_beside_the_groups_leaves_theirs_in_the_inbox() {
    let mut generator = FakeGenerator::new(FakeSettings {
        max_delay: 6,
        faults: FakeFaults { duplicate: 0.5, ..FakeFaults::default() },
        ..FakeSettings::faultless(5)
    });
    let mut inbox = Inbox::default();
    for group in 0..5 {
        let key = Key::new(1, Purpose::Rollout).with(group);
        generator.submit(SampleRequest { key, ..support::request(group, 0, 4) }).expect("taken");
    }
    let prompts: Vec<PreparedPrompt> = (0..4).map(prompt).collect();
    let mut trajectories = Vec::new();
    for _ in 0..2 {
        let with = crate::CompletionWorkers {
            generator: &mut generator,
            inbox: &mut inbox,
            scorer: &mut scorer(Exact {}),
            is_interrupted: &|| false,
        };
        let beside =
            Beside { purpose: SamplePurpose::Validation, step: 3, journal: "validation/3".to_owned() };
        let mut num_done = Vec::new();
        let done =
            crate::complete(with, &prompts, settings(3), beside, &mut |finished| num_done.push(finished));
        let done = done.expect("sampled").expect("nobody stops it");
        assert!(done.iter().all(|record| record.step == 3 && record.fate == Fate::Trained));
        assert_eq!(num_done, [1, 2, 3, 4]);
        trajectories.push(done.into_iter().map(|record| record.group.trajectories).collect::<Vec<_>>());
    }
    assert_eq!(trajectories[0], trajectories[1]);
    let is_scored = |one: &Trajectory| one.scores.contains_key("score") && !one.scores.contains_key("reward");
    let is_whole = |group: &Vec<Trajectory>| group.len() == 3 && group.iter().all(is_scored);
    assert!(trajectories[0].iter().all(is_whole));
    while generator.load().in_flight > 0 {
        inbox.of_groups.extend(generator.next(Wait::Forever).expect("goes on"));
    }
    let mut groups: Vec<u64> = inbox
        .of_groups
        .iter()
        .filter_map(|event| match event {
            GeneratorEvent::Sampled { id, .. } if id.purpose == SamplePurpose::Rollout => Some(id.group),
            _ => None,
        })
        .collect();
    groups.sort_unstable();
    groups.dedup();
    assert_eq!(groups, [0, 1, 2, 3, 4]);
    let ignored = inbox.take_ignored();
    assert!(ignored.duplicate + ignored.late > 0 && ignored.foreign == 0, "{ignored:?}");
}

/// Runs for a while, as a program that an interrupt is about to end.
struct Slow(Arc<AtomicUsize>);

impl RewardFunction for Slow {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<Answered> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        self.0.fetch_add(1, Ordering::SeqCst);
        batch.iter().map(|_| Answered::NoAnswer).collect()
    }
}

/// A program that a reward function has started would outlive the run.
#[test]
fn who_samples_beside_the_groups_leaves_no_reward_function_at_work() {
    let state = Arc::new(AtomicUsize::new(0));
    let with = crate::CompletionWorkers {
        generator: &mut right(),
        inbox: &mut Inbox::default(),
        scorer: &mut scorer_of(Slow(Arc::clone(&state)), Nature::EXTERNAL),
        is_interrupted: &|| state.load(Ordering::SeqCst) > 0,
    };
    let beside = Beside { purpose: SamplePurpose::Validation, step: 3, journal: "validation/3".to_owned() };
    let prompts: Vec<PreparedPrompt> = (0..2).map(prompt).collect();
    let done = crate::complete(with, &prompts, settings(2), beside, &mut |_| {}).expect("sampled");
    assert!(done.is_none(), "interrupted");
    assert_eq!(state.load(Ordering::SeqCst), 2);
}

/// The dependencies of a run of the dispatcher without interrupts.
pub(crate) fn with<'a>(
    generator: &'a mut dyn Generator,
    source: &'a mut Rows,
    scorer: &'a mut Scorer,
    observer: &'a mut Heard,
) -> Dependencies<'a> {
    Dependencies {
        source,
        generator,
        scorer,
        reference: None,
        observer,
        order: None,
        is_interrupted: &|| false,
    }
}
