mod fills;
mod how_verl_counts_wrongly;
mod passed_over;

use crate::filter::Verdict;
use crate::group::{GroupId, PolicyVersion};
use crate::schedule::{
    Command, Count, Diagnosis, Event, FillOrder, GroupFacts, OnEmptyRound, OnExhausted, RoundLimit,
    RoundSize, RunEnd, ScheduleSettings, Scheduler, SkipReason, Spent, StepClose, StopCause, Surplus,
};

/// Ten tokens a turn.
fn spent(tokens: u64) -> Spent {
    Spent { tokens, turns: tokens / 10 }
}

/// A driver over endless or finite data; the test decides the results of groups.
struct Driver {
    rounds: Scheduler,
    next: u64,
    version: u64,
    /// Prompts left in the epoch; `None`: endless.
    left: Option<usize>,
    per_epoch: usize,
    log: Vec<String>,
}

#[derive(Clone, Copy)]
enum Fate {
    Mixed,
    Correct,
    Wrong,
    Failed,
}

fn scored(group: GroupId, fate: Fate, n: usize) -> Event {
    let correct = match fate {
        Fate::Mixed => n / 2,
        Fate::Correct => n,
        Fate::Wrong | Fate::Failed => 0,
    };
    let values = (0..n).map(|member| f64::from(u8::from(member < correct))).collect();
    Event::Scored {
        group,
        values,
        facts: GroupFacts { spent: spent(10 * n as u64), ..GroupFacts::default() },
    }
}

impl Driver {
    fn new(settings: ScheduleSettings) -> Self {
        let rounds = Scheduler::rounds(settings).unwrap();
        Self { rounds, next: 0, version: 0, left: None, per_epoch: 0, log: vec![] }
    }

    fn with_data(settings: ScheduleSettings, per_epoch: usize) -> Self {
        Self { left: Some(per_epoch), per_epoch, ..Self::new(settings) }
    }

    fn send(&mut self, event: Event) -> Vec<Command> {
        let commands = self.rounds.handle(event).unwrap();
        for command in &commands {
            match command {
                Command::NextEpoch { .. } => self.left = Some(self.per_epoch),
                Command::RoundComplete(report) => self.log.push(report.to_string()),
                Command::StepReady(close) | Command::SkipStep { close, .. } => {
                    close.report.accounting.check().unwrap();
                    self.log.push(close.report.to_string());
                }
                _ => {}
            }
        }
        commands
    }

    fn begin(&mut self) -> Vec<Command> {
        self.send(Event::BeginStep)
    }

    fn trained(&mut self) {
        self.version += 1;
        assert_eq!(self.send(Event::Trained { left_out: 0, tokens: 0, turns: 0 }), []);
        assert_eq!(self.send(Event::Published { version: PolicyVersion(self.version) }), []);
    }

    /// Answers a draw and any that follow for the same round. Returns the groups started and the last
    /// commands.
    fn dispatch(&mut self, commands: &[Command]) -> (Vec<GroupId>, Vec<Command>) {
        let mut started = Vec::new();
        let mut commands = commands.to_vec();
        while let Some(Command::Draw { num_prompts, .. }) = commands.last() {
            let take = self.left.map_or(*num_prompts, |left| left.min(*num_prompts));
            self.left = self.left.map(|left| left - take);
            let groups: Vec<GroupId> = (self.next..self.next + take as u64).map(GroupId).collect();
            self.next += take as u64;
            started.extend(&groups);
            commands = self.send(Event::Dispatched {
                groups,
                version: PolicyVersion(self.version),
                exhausted: self.left == Some(0),
            });
        }
        (started, commands)
    }

    /// Runs a whole round after the commands that drew it; `fate` gives the result by index in the round.
    fn round(&mut self, commands: &[Command], fate: impl Fn(usize) -> Fate) -> Vec<Command> {
        let (groups, mut commands) = self.dispatch(commands);
        let n = self.rounds.settings().group_size;
        if self.rounds.is_ended() {
            return commands;
        }
        for (place, group) in groups.into_iter().enumerate() {
            commands = match fate(place) {
                Fate::Failed => self.send(Event::Failed { group, spent: spent(5) }),
                fate => self.send(scored(group, fate, n)),
            };
        }
        commands
    }

    fn first(&mut self, kept: usize) -> Vec<Command> {
        self.kept(&[kept])
    }

    /// A step with rounds that keep these numbers of groups.
    fn kept(&mut self, kept: &[usize]) -> Vec<Command> {
        let begun = self.begin();
        kept.iter().fold(begun, |commands, &kept| self.more(&commands, kept))
    }

    fn more(&mut self, commands: &[Command], kept: usize) -> Vec<Command> {
        self.round(commands, |place| if place < kept { Fate::Mixed } else { Fate::Wrong })
    }
}

fn ready(commands: &[Command]) -> &StepClose {
    match commands.last() {
        Some(Command::StepReady(close)) => close,
        other => panic!("not ready: {other:?}"),
    }
}

fn stopped(commands: &[Command]) -> (&Diagnosis, &StepClose) {
    match commands.last() {
        Some(Command::Stop { diagnosis, close }) => (diagnosis, close),
        other => panic!("not stopped: {other:?}"),
    }
}

/// The end of a run, or of an attempt, without a diagnosis.
fn ended(commands: &[Command]) -> (String, &StepClose) {
    match commands.last() {
        Some(Command::Finish { why, close }) => (format!("{why:?}"), close),
        Some(Command::SkipStep { why, close }) => (format!("skip: {why:?}"), close),
        other => panic!("not ended: {other:?}"),
    }
}

fn metric(close: &StepClose, name: &str) -> f64 {
    close.report.metrics().into_iter().find(|(key, _)| key == name).map_or(f64::NAN, |(_, value)| value)
}

#[test]
fn step_n_of_dynamic_sampling() {
    let mut driver = Driver::new(ScheduleSettings::easyr1(128, 16, 3));
    for _ in 0..41 {
        let commands = driver.first(128);
        ready(&commands);
        driver.trained();
    }
    driver.log.clear();
    let commands = driver.kept(&[45, 62, 50]);
    let close = ready(&commands);
    assert_eq!(close.trained.len(), 128);
    assert_eq!(close.report.batch.trajectories, 2048);
    assert_eq!(close.surplus.len(), 29);
    // The oldest are trained: the rounds' 45, 62 and the first 21 of the third.
    let base = 41 * 128;
    let expected = (base..base + 45).chain(base + 128..base + 190).chain(base + 256..base + 277).map(GroupId);
    assert!(close.trained.iter().copied().eq(expected));
    insta::assert_snapshot!(driver.log.join("\n"), @"
step 42 round 1: 128 prompts, 2048 trajectories; dropped 83 (64.8%): 83 all wrong; kept 45 (35.2%); mean std 0.176; accumulated 45/128
step 42 round 2: 128 prompts, 2048 trajectories; dropped 66 (51.6%): 66 all wrong; kept 62 (48.4%); mean std 0.242; accumulated 107/128
step 42 round 3: 128 prompts, 2048 trajectories; dropped 78 (60.9%): 78 all wrong; kept 50 (39.1%); mean std 0.195; accumulated 157/128
step 42 batch complete: 3 rounds, 384 prompts generated, 157 kept (40.9%); training on 128 groups, 2048 trajectories, 20480 tokens; 29 surplus
");
    assert_eq!(metric(close, "dynamic_sampling/num_gen_batches"), 3.0);
    assert_eq!(metric(close, "dynamic_sampling/num_accumulated_prompts"), 157.0);
    assert_eq!(metric(close, "dynamic_sampling/target_prompt_num"), 128.0);
}

#[test]
fn example_1_of_filter_groups() {
    let mut driver = Driver::new(ScheduleSettings::verl(1024, 1024, 8, 15));
    let begun = driver.begin();
    // 30 % correct: 100 all correct, 500 all wrong, 424 of both.
    let commands = driver.round(&begun, |place| match place {
        0..424 => Fate::Mixed,
        424..524 => Fate::Correct,
        _ => Fate::Wrong,
    });
    assert_eq!(commands.last(), Some(&Command::Draw { step: 1, round: 2, num_prompts: 1024 }));
    let commands = driver.more(&commands, 420);
    let commands = driver.more(&commands, 415);
    let close = ready(&commands);
    assert_eq!(
        (close.trained.len(), close.report.batch.trajectories, close.surplus.len()),
        (1024, 8192, 235)
    );
    insta::assert_snapshot!(driver.log.join("\n"), @"
step 1 round 1: 1024 prompts, 8192 trajectories; dropped 600 (58.6%): 100 all correct, 500 all wrong; kept 424 (41.4%); mean std 0.207; accumulated 424/1024
step 1 round 2: 1024 prompts, 8192 trajectories; dropped 604 (59.0%): 604 all wrong; kept 420 (41.0%); mean std 0.205; accumulated 844/1024
step 1 round 3: 1024 prompts, 8192 trajectories; dropped 609 (59.5%): 609 all wrong; kept 415 (40.5%); mean std 0.203; accumulated 1259/1024
step 1 batch complete: 3 rounds, 3072 prompts generated, 1259 kept (41.0%); training on 1024 groups, 8192 trajectories, 81920 tokens; 235 surplus
");
    let metrics: Vec<String> =
        close.report.metrics().iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    insta::assert_snapshot!(metrics.join("\n"), @"
    train/num_gen_batches 3.0000
    train/filter_rate 0.5902
    train/mean_metric_std 0.2049
    train/num_kept_prompts 1259.0000
    dynamic_sampling/num_gen_batches 3.0000
    dynamic_sampling/num_accumulated_prompts 1259.0000
    dynamic_sampling/target_prompt_num 1024.0000
    dynamic_sampling/num_prompts_used 1024.0000
    dynamic_sampling/num_trajectories_used 8192.0000
    dynamic_sampling/skipped 0.0000
    all/filter_metric/mean 0.2375
    train/filter_metric/mean 0.5000
    all/pass_rate 0.2375
    groups/generated 3072.0000
    trajectories/generated 24576.0000
    groups/carried_in 0.0000
    trajectories/carried_in 0.0000
    groups/trained 1024.0000
    trajectories/trained 8192.0000
    trajectories/left_out 0.0000
    groups/dropped 1813.0000
    trajectories/dropped 14504.0000
    groups/surplus 235.0000
    trajectories/surplus 1880.0000
    groups/stale 0.0000
    trajectories/stale 0.0000
    groups/failed 0.0000
    trajectories/failed 0.0000
    groups/aborted 0.0000
    trajectories/aborted 0.0000
    groups/carried_out 0.0000
    trajectories/carried_out 0.0000
    tokens/generated 245760.0000
    tokens/trained 81920.0000
    turns/generated 24576.0000
    turns/trained 8192.0000
    schedule/max_lag 0.0000
    ");
}

#[test]
fn errors_at_the_limit_as_verl() {
    let mut driver = Driver::new(ScheduleSettings::verl(8, 8, 4, 2));
    let commands = driver.kept(&[3, 2]);
    assert!(matches!(commands[..], [.., Command::RoundComplete(_), Command::Stop { .. }]), "{commands:?}");
    let (diagnosis, close) = stopped(&commands);
    assert_eq!((diagnosis.cause, close.surplus.len()), (StopCause::LimitReached, 5));
    assert_eq!(close.report.accounting.dropped, Count::of(11, 4, spent(440)));
    assert!(driver.rounds.is_ended());
}

/// ⌊T / (G k) + 2⌋ rounds, with k the keep rate of the last rounds; within a step the limit only rises.
#[test]
fn an_adaptive_limit() {
    let settings =
        ScheduleSettings { max_num_gen_batches: RoundLimit::Auto, ..ScheduleSettings::verl(8, 4, 4, 0) };
    // Half is kept: 8 / (4 x 1/2) + 2 = 6 rounds, and 4 fill the batch.
    let mut driver = Driver::new(settings.clone());
    assert_eq!(ready(&driver.kept(&[2; 4])).report.rounds, 4);
    driver.trained();
    let rounds_without_more = |driver: &mut Driver, mut commands: Vec<Command>| {
        let mut rounds = 1;
        while matches!(commands.last(), Some(Command::Draw { .. })) {
            commands = driver.more(&commands, 0);
            rounds += 1;
        }
        (rounds, commands)
    };
    // The next step keeps less and less: its limit rises, to at most 50 times two rounds.
    let commands = driver.first(1);
    assert_eq!(rounds_without_more(&mut driver, commands).0, 100);
    // Nothing is kept: ten times.
    let mut driver = Driver::new(settings);
    let commands = driver.first(0);
    let (_, commands) = rounds_without_more(&mut driver, commands);
    let (diagnosis, _) = stopped(&commands);
    assert_eq!((diagnosis.cause, diagnosis.rounds), (StopCause::LimitReached, 20));
    insta::assert_snapshot!(diagnosis.to_string().lines().next().unwrap_or_default(), @"stopped in step 1: 0 of 8 groups kept after 20 rounds (max_num_gen_batches = auto: 20, the largest value of 8 / (4 x keep rate) + 2 in this step; 10 times the rounds without a filter while nothing is kept)");
}

#[test]
fn uses_what_there_is_at_the_limit_as_easyr1() {
    let mut driver = Driver::new(ScheduleSettings::easyr1(8, 4, 3));
    let mut commands = driver.kept(&[1, 0, 2]);
    let close = ready(&commands);
    assert_eq!(close.trained, [GroupId(0), GroupId(16), GroupId(17)]);
    assert!(close.report.is_partial());
    insta::assert_snapshot!(close.report, @"step 1 partial batch: 3 rounds, 24 prompts generated, 3 kept (12.5%); training on 3 of 8 groups, 12 trajectories, 120 tokens");
    driver.trained();
    // Nothing is kept: the step is skipped, and its number stays free.
    commands = driver.kept(&[0, 0, 0]);
    let (why, close) = ended(&commands);
    assert_eq!((why.as_str(), metric(close, "dynamic_sampling/skipped")), ("skip: LimitReached", 1.0));
    insta::assert_snapshot!(close.report, @"step 2 not trained: 3 rounds, 24 prompts generated, 0 kept (0.0%)");
    assert_eq!(driver.rounds.progress().steps, 1);
    let commands = driver.begin();
    assert_eq!(commands, [Command::Draw { step: 2, round: 1, num_prompts: 8 }]);
}

#[test]
fn easyr1_at_the_end_of_the_data() {
    let settings = ScheduleSettings { total_epochs: Some(2), ..ScheduleSettings::easyr1(8, 2, 0) };
    let mut driver = Driver::with_data(settings, 20);
    let commands = driver.kept(&[2, 2]);
    assert_eq!(commands.last(), Some(&Command::Draw { step: 1, round: 3, num_prompts: 8 }));
    // Four prompts are left; the epoch ends inside the round.
    let commands = driver.more(&commands, 1);
    let close = ready(&commands);
    assert_eq!((close.trained.len(), close.report.all.groups), (5, 20));
    driver.trained();
    let commands = driver.begin();
    let draw = Command::Draw { step: 2, round: 1, num_prompts: 8 };
    assert_eq!(commands, [Command::NextEpoch { epoch: 1 }, draw]);
    ready(&driver.more(&commands, 8));
    driver.trained();
    ready(&driver.first(8));
    driver.trained();
    let commands = driver.first(0);
    let (why, close) = ended(&commands);
    assert_eq!((why.as_str(), close.report.accounting.dropped), ("TotalEpochs", Count::of(4, 2, spent(80))));
    assert_eq!(driver.rounds.totals().generated, Count::of(40, 2, spent(800)));
}

#[test]
fn an_epoch_without_a_kept_group_ends_the_run_without_any_limit() {
    for on_exhausted in [OnExhausted::NextEpoch, OnExhausted::UsePartial, OnExhausted::Stop] {
        for per_epoch in [24, 20, 3] {
            let settings = ScheduleSettings { on_exhausted, ..ScheduleSettings::verl(8, 8, 2, 0) };
            let mut driver = Driver::with_data(settings, per_epoch);
            let mut commands = driver.begin();
            for _ in 0..10 {
                if driver.rounds.is_ended() {
                    break;
                }
                commands = driver.round(&commands, |_| Fate::Correct);
            }
            let (diagnosis, _) = stopped(&commands);
            // A round of eight uses three prompts twice, and continues beyond that if it may.
            let epoch = u64::from(per_epoch == 3 && on_exhausted == OnExhausted::NextEpoch);
            assert_eq!(diagnosis.cause, StopCause::EpochWithoutKept { epoch, epochs: epoch + 1 });
            assert!(driver.rounds.progress().prompts <= 24, "{per_epoch}");
        }
    }
}

/// A data source that reports its end only on the next draw.
#[test]
fn late_news_of_the_end() {
    let mut driver =
        Driver::new(ScheduleSettings { total_epochs: Some(3), ..ScheduleSettings::verl(4, 4, 2, 0) });
    driver.first(1);
    let nothing = Event::Dispatched { groups: vec![], version: PolicyVersion(0), exhausted: true };
    let commands = driver.send(nothing.clone());
    assert_eq!(
        commands,
        [Command::NextEpoch { epoch: 1 }, Command::Draw { step: 1, round: 2, num_prompts: 4 }]
    );
    let commands = driver.send(nothing.clone());
    let (diagnosis, close) = stopped(&commands);
    assert_eq!(diagnosis.cause, StopCause::NoPrompts { epoch: 1 });
    assert_eq!(close.surplus, [GroupId(0)]);
    // And nothing kept.
    let settings = ScheduleSettings { on_exhausted: OnExhausted::Stop, ..ScheduleSettings::verl(4, 4, 2, 0) };
    let mut driver = Driver::new(settings);
    driver.first(0);
    let commands = driver.send(nothing);
    let (diagnosis, _) = stopped(&commands);
    assert_eq!(diagnosis.cause, StopCause::EpochWithoutKept { epoch: 0, epochs: 1 });
    assert_eq!((diagnosis.rounds, commands.len()), (1, 1));
}

#[test]
fn empty_rounds() {
    let of = |on_empty_round| {
        Driver::new(ScheduleSettings {
            on_empty_round,
            max_skipped_steps: 2,
            ..ScheduleSettings::verl(4, 4, 2, 0)
        })
    };
    let mut driver = of(OnEmptyRound::Retry { times: Some(1) });
    let commands = driver.kept(&[0, 1, 0]);
    assert!(matches!(commands.last(), Some(Command::Draw { round: 4, .. })), "one empty round is borne");
    let commands = driver.more(&commands, 0);
    assert_eq!(stopped(&commands).0.cause, StopCause::EmptyRounds { rounds: 2 });
    let commands = of(OnEmptyRound::Error).kept(&[3, 0]);
    assert!(matches!(commands.last(), Some(Command::Stop { .. })), "as EasyR1, though groups are at hand");
    let mut driver = of(OnEmptyRound::Skip);
    for _ in 0..2 {
        assert_eq!(ended(&driver.first(0)).0, "skip: EmptyRound");
    }
    let commands = driver.first(0);
    let (diagnosis, _) = stopped(&commands);
    assert_eq!(diagnosis.cause, StopCause::SkippedSteps { steps: 3, why: SkipReason::EmptyRound });
    // The diagnosis covers everything generated since a step was trained.
    assert_eq!((diagnosis.tally.groups, diagnosis.rounds), (12, 3));
}

#[test]
fn without_refill_one_round_is_trained_on() {
    let settings = ScheduleSettings {
        refill: false,
        gen_batch_size: 8,
        on_exhausted: OnExhausted::NextEpoch,
        ..ScheduleSettings::new(4, 2)
    };
    let mut driver = Driver::new(settings.clone());
    let commands = driver.first(2);
    assert_eq!(ready(&commands).trained.len(), 2);
    driver.trained();
    let commands = driver.first(7);
    assert_eq!((ready(&commands).trained.len(), ready(&commands).surplus.len()), (4, 3));
    driver.trained();
    // Nothing survived: the rule for empty rounds applies, here another round.
    let commands = driver.first(0);
    assert_eq!(commands.last(), Some(&Command::Draw { step: 3, round: 2, num_prompts: 8 }));

    // The last round of the run is short; its survivors are also trained on.
    let mut driver = Driver::with_data(ScheduleSettings { total_epochs: Some(1), ..settings }, 3);
    let commands = driver.first(1);
    assert_eq!(ready(&commands).trained, [GroupId(0)]);
}

#[test]
fn filter_off() {
    let settings = ScheduleSettings { filter: None, total_epochs: Some(1), ..ScheduleSettings::new(4, 2) };
    let mut driver = Driver::with_data(settings, 6);
    let begun = driver.begin();
    let commands =
        driver.round(&begun, |place| [Fate::Wrong, Fate::Correct, Fate::Failed, Fate::Mixed][place]);
    assert_eq!(ready(&commands).trained, [GroupId(0), GroupId(1), GroupId(3)]);
    driver.trained();
    let begun = driver.begin();
    let commands = driver.round(&begun, |_| Fate::Wrong);
    assert_eq!(ready(&commands).trained, [GroupId(4), GroupId(5)]);
    driver.trained();
    assert!(matches!(driver.begin()[..], [Command::Finish { why: RunEnd::TotalEpochs, .. }]));
    insta::assert_snapshot!(driver.log.join("\n"), @"
    step 1 round 1: 4 prompts, 8 trajectories; filter off; failed 1; mean std 0.167; accumulated 3/4
    step 1 partial batch: 1 round, 4 prompts generated; training on 3 of 4 groups, 6 trajectories, 60 tokens; 1 failed
    step 2 round 1: 2 prompts, 4 trajectories; filter off; mean std 0.000; accumulated 2/4
    step 2 partial batch: 1 round, 2 prompts generated; training on 2 of 4 groups, 4 trajectories, 40 tokens
    ");
}

#[test]
fn carried_surplus_comes_first_and_grows_stale() {
    let settings =
        ScheduleSettings { surplus: Surplus::Carry { max_lag: 1 }, ..ScheduleSettings::verl(4, 8, 2, 0) };
    let mut driver = Driver::new(settings);
    let commands = driver.first(7);
    let close = ready(&commands);
    assert_eq!(close.carried, [GroupId(4), GroupId(5), GroupId(6)]);
    assert_eq!(driver.rounds.held().collect::<Vec<_>>(), close.carried);
    driver.trained();
    let commands = driver.first(7);
    let close = ready(&commands);
    assert_eq!(close.trained, [GroupId(4), GroupId(5), GroupId(6), GroupId(8)]);
    assert_eq!((close.carried.len(), close.report.max_lag), (6, 1));
    driver.trained();
    // Six carried groups fill the next batch without a round.
    let commands = driver.begin();
    let close = ready(&commands);
    assert_eq!((close.report.rounds, close.trained.len(), close.carried.len()), (0, 4, 2));
    insta::assert_snapshot!(close.report, @"step 3 batch complete: 0 rounds, 0 prompts generated, 0 kept (-), 6 carried in; training on 4 groups, 8 trajectories, 80 tokens; 2 carried out");
    driver.trained();
    // The other two were sampled two versions ago.
    let commands = driver.first(4);
    let close = ready(&commands);
    assert_eq!(close.stale, [GroupId(13), GroupId(14)]);
    assert_eq!((close.report.max_lag, close.report.accounting.stale), (0, Count::of(2, 2, spent(40))));
    driver.rounds.totals().check().unwrap();
}

#[test]
fn completion_order_is_a_choice() {
    for (order, expected) in [(FillOrder::Dispatch, [0, 1]), (FillOrder::Completion, [3, 2])] {
        let mut driver = Driver::new(ScheduleSettings { order, ..ScheduleSettings::verl(2, 4, 2, 0) });
        let begun = driver.begin();
        let (groups, mut commands) = driver.dispatch(&begun);
        for group in groups.into_iter().rev() {
            commands = driver.send(scored(group, Fate::Mixed, 2));
        }
        assert_eq!(ready(&commands).trained, expected.map(GroupId));
    }
}

#[test]
fn a_cancelled_run_loses_nothing_uncounted() {
    let mut driver = Driver::new(ScheduleSettings::verl(4, 4, 2, 0));
    let commands = driver.first(1);
    let (groups, _) = driver.dispatch(&commands);
    driver.send(scored(groups[2], Fate::Mixed, 2));
    driver.send(Event::Failed { group: groups[0], spent: spent(3) });
    let commands = driver.send(Event::Cancelled);
    let [abort, judged, Command::Finish { why: RunEnd::Cancelled, close }] = &commands[..] else {
        panic!("{commands:?}")
    };
    assert_eq!(*abort, Command::Abort { groups: vec![groups[1], groups[3]] });
    assert_eq!(*judged, Command::Judged { group: groups[2], verdict: Verdict::Kept });
    assert_eq!(close.aborted, [groups[1], groups[3]]);
    assert_eq!(close.surplus, [GroupId(0), groups[2]]);
    let accounting = close.report.accounting;
    assert_eq!(
        (accounting.failed, accounting.aborted),
        (Count::of(1, 2, spent(3)), Count::of(2, 2, spent(0)))
    );
    // And between steps.
    let mut driver = Driver::new(ScheduleSettings::verl(4, 4, 2, 0));
    assert!(matches!(driver.send(Event::Cancelled)[..], [Command::Finish { .. }]));
}

/// A last round is not generated if it could not fill the batch even with all its groups kept.
#[test]
fn no_generation_in_vain() {
    let settings = ScheduleSettings { total_epochs: Some(1), ..ScheduleSettings::verl(8, 8, 2, 0) };
    let mut driver = Driver::with_data(settings, 19);
    let commands = driver.first(8);
    ready(&commands);
    driver.trained();
    let commands = driver.first(3);
    let (groups, commands) = driver.dispatch(&commands);
    let [Command::Abort { groups: stopped }, Command::Finish { why: RunEnd::TotalEpochs, close }] =
        &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!((&close.aborted, stopped, close.surplus.len()), (&groups, &groups, 3));
}

#[test]
fn events_that_do_not_fit() {
    let mut driver = Driver::new(ScheduleSettings::verl(4, 4, 2, 0));
    let mut errors = Vec::new();
    let mut refuse = |driver: &mut Driver, event: Event| {
        let before = driver.rounds.clone();
        errors.push(driver.rounds.handle(event).unwrap_err().to_string());
        assert_eq!(driver.rounds, before);
    };
    let dispatched = |ids: &[u64], exhausted| Event::Dispatched {
        groups: ids.iter().copied().map(GroupId).collect(),
        version: PolicyVersion(2),
        exhausted,
    };
    let mixed = |id| scored(GroupId(id), Fate::Mixed, 2);
    refuse(&mut driver, dispatched(&[0], true));
    refuse(&mut driver, mixed(0));
    refuse(&mut driver, Event::Trained { left_out: 0, tokens: 0, turns: 0 });
    driver.begin();
    refuse(&mut driver, Event::BeginStep);
    refuse(&mut driver, dispatched(&[0, 1], false));
    refuse(&mut driver, dispatched(&[0, 1, 2, 3, 4], false));
    refuse(&mut driver, dispatched(&[0, 2, 1, 3], false));
    driver.send(dispatched(&[0, 1, 2, 3], false));
    refuse(&mut driver, mixed(7));
    refuse(&mut driver, scored(GroupId(1), Fate::Mixed, 3));
    driver.send(mixed(1));
    refuse(&mut driver, Event::Failed { group: GroupId(1), spent: spent(0) });
    for id in [0, 2, 3] {
        driver.send(mixed(id));
    }
    refuse(&mut driver, Event::Published { version: PolicyVersion(1) });
    refuse(&mut driver, Event::Trained { left_out: 9, tokens: 0, turns: 0 });
    refuse(&mut driver, Event::Cancelled);
    insta::assert_snapshot!(errors.join("\n"), @"
    event `dispatched` came while the scheduler was between steps
    group 0 is not being generated
    event `trained` came while the scheduler was between steps
    event `begin_step` came while the scheduler was waiting for prompts
    4 prompts should have been drawn, but 2 were dispatched and the epoch continues
    4 prompts should have been drawn, but 5 were dispatched and the epoch continues
    group 1 was dispatched after group 2; ids must increase in dispatch order
    group 7 is not being generated
    expected 2 trajectories, got 3 (group 1)
    group 1 was settled before
    policy version 1 came after version 2
    9 members were left out of a batch of 8
    event `cancelled` came while the scheduler was waiting for the step to be trained
    ");
}

#[test]
fn a_driver_may_begin_fewer_groups_than_a_deficit_round_asks_for() {
    let fixed = ScheduleSettings::verl(2, 2, 2, 0);
    let deficit =
        ScheduleSettings { size: RoundSize::Deficit { granularity: 1, margin: 0.0 }, ..fixed.clone() };
    let groups = |ids: std::ops::Range<u64>| Event::Dispatched {
        groups: ids.map(GroupId).collect(),
        version: PolicyVersion(0),
        exhausted: false,
    };
    for (settings, is_taken) in [(deficit, true), (fixed, false)] {
        let mut driver = Driver::new(settings);
        driver.begin();
        driver.send(groups(0..2));
        driver.send(scored(GroupId(0), Fate::Wrong, 2));
        let asked = driver.send(scored(GroupId(1), Fate::Wrong, 2));
        // Nothing of two was kept, which gives an estimate of a quarter: eight for two.
        let num = if is_taken { 8 } else { 2 };
        assert!(matches!(asked.last(), Some(Command::Draw { num_prompts, .. }) if *num_prompts == num));
        assert!(driver.rounds.handle(groups(2..2)).is_err(), "none at all");
        if !is_taken {
            assert!(driver.rounds.handle(groups(2..3)).is_err());
            continue;
        }
        assert_eq!(driver.send(groups(2..5)), []);
        driver.send(scored(GroupId(2), Fate::Mixed, 2));
        driver.send(scored(GroupId(3), Fate::Wrong, 2));
        let commands = driver.send(scored(GroupId(4), Fate::Mixed, 2));
        let Some(Command::StepReady(close)) = commands.last() else { panic!("{commands:?}") };
        assert_eq!(close.trained, [GroupId(2), GroupId(4)]);
        assert_eq!(close.report.accounting.generated.groups, 5);
    }
}
