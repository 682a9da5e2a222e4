use crate::group::{GroupId, PolicyVersion};
use crate::random::{Key, Purpose};
use crate::schedule::{
    Admission, Command, Count, Event, FillOrder, GroupFacts, RunEnd, ScheduleSettings, Scheduler, Spent,
    StepClose, StopCause, StreamingSettings, Surplus,
};

fn settings(train_batch_size: usize, mini_batch_size: usize, surplus: Surplus) -> StreamingSettings {
    let run = ScheduleSettings { surplus, ..ScheduleSettings::new(train_batch_size, 2) };
    StreamingSettings { run, mini_batch_size, max_in_flight: 4096 }
}

/// A machine with a driver that answers draws at once.
struct Driver {
    machine: Scheduler,
    /// Prompts of an epoch, and the number left in it.
    per_epoch: usize,
    left: usize,
    next: u64,
    version: u64,
    flying: Vec<GroupId>,
    parts: Vec<Vec<u64>>,
    closed: Vec<StepClose>,
    continued: Vec<u64>,
    end: Option<Command>,
}

impl Driver {
    fn new(settings: StreamingSettings) -> Self {
        Self::starting(settings, Admission::default(), usize::MAX)
    }

    fn starting(settings: StreamingSettings, admission: Admission, per_epoch: usize) -> Self {
        Self {
            machine: Scheduler::streaming_with(settings, admission).unwrap(),
            per_epoch,
            left: per_epoch,
            next: 0,
            version: 0,
            flying: vec![],
            parts: vec![],
            closed: vec![],
            continued: vec![],
            end: None,
        }
    }

    fn send(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for command in self.machine.handle(event).unwrap() {
                match command {
                    Command::NextEpoch { .. } => self.left = self.per_epoch,
                    Command::Draw { num_prompts, .. } => {
                        let take = num_prompts.min(self.left) as u64;
                        self.left -= take as usize;
                        let groups: Vec<GroupId> = (self.next..self.next + take).map(GroupId).collect();
                        self.next += take;
                        self.flying.extend(&groups);
                        let version = PolicyVersion(self.version);
                        events.push(Event::Dispatched { groups, version, exhausted: self.left == 0 });
                    }
                    Command::Train { groups, .. } => {
                        self.parts.push(groups.iter().map(|group| group.0).collect());
                    }
                    Command::Abort { groups } => self.flying.retain(|group| !groups.contains(group)),
                    Command::StepClosed(close) => self.closed.push(*close),
                    Command::Judged { .. } => {}
                    Command::Continue { group } => self.continued.push(group.0),
                    end @ (Command::Finish { .. } | Command::Stop { .. }) => self.end = Some(end),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn scored(&mut self, group: u64, is_kept: bool) {
        self.complete(group, &[0.0, f64::from(u8::from(is_kept))]);
    }

    /// The first members of a group are scored.
    fn screened(&mut self, group: u64, values: &[f64]) {
        let facts = GroupFacts { spent: Spent { tokens: 10, turns: 2 }, ..GroupFacts::default() };
        self.send(Event::Screened { group: GroupId(group), values: values.to_vec(), facts });
    }

    fn complete(&mut self, group: u64, values: &[f64]) {
        self.flying.retain(|flying| flying.0 != group);
        let facts = GroupFacts { spent: Spent { tokens: 40, turns: 4 }, ..GroupFacts::default() };
        self.send(Event::Scored { group: GroupId(group), values: values.to_vec(), facts });
    }

    fn trained(&mut self) {
        self.version += 1;
        self.send(Event::Trained { left_out: 0, tokens: 0, turns: 0 });
        self.send(Event::Published { version: PolicyVersion(self.version) });
        self.send(Event::BeginStep);
    }

    fn in_flight(&self) -> Vec<u64> {
        self.flying.iter().map(|group| group.0).collect()
    }
}

#[test]
fn a_dropped_group_is_replaced_at_once_and_a_kept_one_is_not() {
    let mut driver = Driver::new(settings(2, 2, Surplus::Discard));
    driver.send(Event::BeginStep);
    assert_eq!(driver.in_flight(), [0, 1], "nothing is known: no more than are wanted");
    // None of one group is kept, so the rate is at most 1/2: room for 4.
    driver.scored(1, false);
    assert_eq!(driver.in_flight(), [0, 2, 3, 4]);
    // One is kept: one is lacking, at a rate of 2/3, and more than one are in flight.
    driver.scored(2, true);
    assert_eq!(driver.in_flight(), [0, 3, 4]);
}

#[test]
fn a_group_is_secured_by_its_first_disagreement() {
    let mut driver = Driver::new(settings(1, 1, Surplus::Discard));
    driver.send(Event::BeginStep);
    assert_eq!(driver.in_flight(), [0]);
    for value in [Some(1.0), Some(0.0)] {
        driver.send(Event::Sampled { group: GroupId(0), value });
    }
    driver.scored(0, true);
    assert_eq!(driver.parts, [[0]]);
    driver.trained();
    assert_eq!(driver.in_flight(), [1]);
    // The more are dropped, the more are in flight for the one that is lacking.
    while driver.in_flight().len() < 3 {
        driver.scored(driver.in_flight()[0], false);
    }
    let in_flight = driver.in_flight();
    // The first of them is certain: if the others are dropped, nothing replaces them.
    for value in [Some(1.0), None, Some(0.0)] {
        driver.send(Event::Sampled { group: GroupId(in_flight[0]), value });
    }
    for group in &in_flight[1..] {
        driver.scored(*group, false);
    }
    assert_eq!(driver.in_flight(), in_flight[..1]);
}

#[test]
fn mini_batches_leave_in_the_order_of_dispatch_while_the_rest_generates() {
    let mut driver = Driver::new(settings(4, 2, Surplus::Discard));
    driver.send(Event::BeginStep);
    driver.scored(3, false);
    assert_eq!(driver.in_flight(), [0, 1, 2, 4, 5, 6, 7, 8]);
    for group in [7, 1, 5] {
        driver.scored(group, true);
    }
    assert!(driver.parts.is_empty(), "0 is older than all of them");
    driver.scored(0, true);
    assert_eq!(driver.parts, [[0, 1]]);
    driver.scored(2, false);
    driver.scored(4, true);
    assert_eq!(driver.parts, [[0, 1], [4, 5]]);
    let close = &driver.closed[0];
    assert_eq!(close.trained, [0, 1, 4, 5].map(GroupId));
    // 7 was kept and not needed, 6 and 8 were in flight: their prompts go back.
    assert_eq!((&close.surplus[..], &close.aborted[..]), (&[7].map(GroupId)[..], &[6, 8].map(GroupId)[..]));
    assert_eq!(close.returned, [6, 7, 8].map(GroupId));
    assert!(driver.in_flight().is_empty());
    // An aborted group that ended before the abort reached it is no error, and one answer is enough.
    driver.send(Event::Failed { group: GroupId(6), spent: Spent::on_answer(3) });
    assert!(driver.machine.handle(Event::Aborted { group: GroupId(6), spent: Spent::on_answer(3) }).is_err());
}

#[test]
fn groups_settle_while_a_step_trains_and_old_ones_are_dropped() {
    let mut driver = Driver::new(settings(2, 2, Surplus::Carry { max_lag: 1 }));
    driver.send(Event::BeginStep);
    assert_eq!(driver.in_flight(), [0, 1, 2, 3], "two steps of two");
    for group in [0, 1] {
        driver.scored(group, false);
    }
    assert_eq!(driver.in_flight(), [2, 3, 4, 5, 6, 7, 8]);
    for group in [2, 3] {
        driver.scored(group, true);
    }
    // Step 1 trains; the others continue and settle.
    assert_eq!(driver.closed.len(), 1);
    for group in [4, 5, 6] {
        driver.scored(group, true);
    }
    driver.trained();
    assert_eq!(driver.parts, [[2, 3], [4, 5]]);
    let report = driver.closed[1].report;
    assert_eq!((report.max_lag, report.accounting.in_flight_in.groups), (1, 5));
    assert_eq!((report.accounting.carried_out.groups, report.accounting.in_flight_out.groups), (1, 2));
    // Version 2: samples of version 0 are too old, kept or not.
    driver.trained();
    let new = driver.in_flight();
    assert!(new.len() >= 2 && new[0] == 9, "{new:?}");
    for group in new {
        driver.scored(group, true);
    }
    let close = &driver.closed[2];
    assert_eq!((&close.stale[..], &close.aborted[..]), (&[6].map(GroupId)[..], &[7, 8].map(GroupId)[..]));
    assert_eq!(close.returned, [6, 7, 8].map(GroupId));
}

#[test]
fn a_kept_group_costs_one_over_the_keep_rate() {
    for keep in [0.2, 0.5, 0.9] {
        let mut driver = Driver::new(settings(128, 32, Surplus::Carry { max_lag: 1 }));
        let key = Key::new(3, Purpose::Shuffle);
        driver.send(Event::BeginStep);
        let (mut turn, mut is_training) = (0, false);
        while driver.closed.len() < 40 {
            turn += 1;
            // A step trains for as long as sixty groups take.
            if driver.closed.len() as u64 > driver.version
                && (is_training || driver.in_flight().is_empty())
                && turn % 60 == 0
            {
                driver.trained();
                is_training = false;
                continue;
            }
            is_training |= driver.closed.len() as u64 > driver.version;
            if driver.flying.is_empty() {
                continue;
            }
            let place = key.below(turn, driver.flying.len() as u64) as usize;
            let group = driver.flying[place].0;
            driver.scored(group, key.with(group).uniform(0) < keep);
        }
        let totals = driver.machine.totals();
        let cost = totals.generated.groups as f64 / totals.trained.groups as f64 * keep;
        // Groups carried out of the last step were generated too: two batches of forty-one.
        let carried = (totals.carried_out.groups + totals.in_flight_out.groups) as f64
            / totals.trained.groups as f64
            * keep;
        assert!(cost - carried < 1.05, "{keep}: {cost} of which {carried} is still there; {totals:?}");
    }
}

#[test]
fn filters_over_a_round_are_refused() {
    let mut settings = settings(2, 2, Surplus::Discard);
    settings.run.filter = Some(crate::filter::GroupFilter::TopP(crate::filter::TopP::of(0.9)));
    insta::assert_snapshot!(Scheduler::streaming(settings).unwrap_err(), @"the filter top_p compares the groups of a round, but a streaming schedule has none");
}

/// OpenRLHF (a chunk of 1), slime (a chunk of the batch) and prime-rl start groups like this.
#[test]
fn other_systems_start_groups_in_their_own_way() {
    let started = |admission, drops: &[u64]| {
        let settings = StreamingSettings { max_in_flight: 16, ..settings(4, 4, Surplus::Discard) };
        let mut driver = Driver::starting(settings, admission, usize::MAX);
        driver.send(Event::BeginStep);
        let mut started = vec![driver.next];
        for &group in drops {
            driver.scored(group, false);
            started.push(driver.next);
        }
        driver.scored(3, true);
        started.push(driver.next);
        started
    };
    // Four are needed; each dropped one is replaced, and a kept one is not.
    assert_eq!(started(Admission::Replace { chunk: 1 }, &[0, 1]), [4, 5, 6, 6]);
    // The first drop starts four more; three of these are spare.
    assert_eq!(started(Admission::Replace { chunk: 4 }, &[0, 1, 2, 4, 5]), [4, 8, 8, 8, 8, 12, 12]);
    // The servers are kept full, however many are kept.
    assert_eq!(started(Admission::Saturate, &[0]), [16, 17, 18]);
    let settings = settings(4, 4, Surplus::Discard);
    assert!(Scheduler::streaming_with(settings, Admission::Replace { chunk: 0 }).is_err());
}

/// Groups of four that begin with two members.
fn screening(surplus: Surplus) -> StreamingSettings {
    let settings = settings(1, 1, surplus);
    let run = ScheduleSettings { group_size: 4, screen_first: Some(2), ..settings.run };
    StreamingSettings { run, ..settings }
}

#[test]
fn a_group_whose_first_members_are_alike_ends_with_them() {
    let mut driver = Driver::new(screening(Surplus::Discard));
    driver.send(Event::BeginStep);
    assert_eq!(driver.machine.num_begun(GroupId(0)), Some(2));
    driver.send(Event::Sampled { group: GroupId(0), value: Some(0.0) });
    driver.screened(0, &[0.0, 0.0]);
    assert_eq!(driver.machine.num_begun(GroupId(0)), None, "it is over");
    // The first two members of the second group differ: the others are begun, once.
    driver.screened(1, &[0.0, 1.0]);
    assert_eq!((&driver.continued[..], driver.machine.num_begun(GroupId(1))), (&[1][..], Some(4)));
    driver.screened(1, &[0.0, 1.0]);
    driver.complete(1, &[0.0, 1.0, 1.0, 1.0]);
    assert_eq!((&driver.continued[..], &driver.parts[..]), (&[1][..], &[vec![1]][..]));
    let close = &driver.closed[0];
    let accounting = close.report.accounting;
    assert_eq!(accounting.dropped, Count { groups: 1, trajectories: 2, turns: 2, tokens: 10 });
    assert_eq!(accounting.trained, Count { groups: 1, trajectories: 4, turns: 4, tokens: 40 });
    // The others were in flight when the batch was full, with two members each.
    let aborted = accounting.aborted;
    assert_eq!(aborted.trajectories, 2 * aborted.groups);
    assert_eq!(accounting.generated.trajectories, 6 + aborted.trajectories);
    assert_eq!((close.report.all.screened, close.report.all.dropped()), (1, 1));
    assert_eq!(close.report.all.trajectories, accounting.generated.trajectories);
}

#[test]
fn the_others_are_begun_at_the_first_disagreement() {
    let mut driver = Driver::new(screening(Surplus::Discard));
    driver.send(Event::BeginStep);
    for (value, continued) in [(Some(1.0), 0), (None, 0), (Some(0.0), 1), (Some(0.5), 1)] {
        driver.send(Event::Sampled { group: GroupId(0), value });
        assert_eq!(driver.continued.len(), continued);
    }
    // Members without a metric do not show that the others are worthless.
    driver.complete(0, &[1.0, 0.0, 0.5, f64::NAN]);
    driver.trained();
    let next = driver.in_flight()[0];
    driver.screened(next, &[1.0, f64::NAN]);
    assert_eq!(driver.continued, [0, next]);
    // A driver that began all members on its own is counted in full.
    driver.complete(next, &[1.0, f64::NAN, 1.0, 1.0]);
    let next = driver.in_flight()[0];
    driver.complete(next, &[1.0, 0.0, 1.0, 1.0]);
    let accounting = driver.closed[1].report.accounting;
    assert_eq!((accounting.dropped.trajectories, accounting.trained.trajectories), (4, 4));
    assert_eq!(accounting.check(), Ok(()));
}

#[test]
fn members_count_in_the_step_in_which_they_are_begun() {
    let mut driver = Driver::new(screening(Surplus::Carry { max_lag: 1 }));
    driver.send(Event::BeginStep);
    assert_eq!(driver.in_flight(), [0, 1], "two steps of one");
    driver.screened(0, &[0.0, 1.0]);
    driver.complete(0, &[0.0, 1.0, 1.0, 1.0]);
    let first = driver.closed[0].report.accounting;
    assert_eq!((first.generated.trajectories, first.in_flight_out.trajectories), (6, 2));
    driver.screened(1, &[0.0, 1.0]);
    driver.trained();
    driver.complete(1, &[0.0, 1.0, 1.0, 1.0]);
    let second = driver.closed[1].report.accounting;
    assert_eq!((second.in_flight_in.trajectories, second.trained.trajectories), (2, 4));
    assert_eq!(second.check(), Ok(()));
    // A failed group has cost the members that were begun.
    driver.trained();
    let next = driver.in_flight()[0];
    driver.flying.retain(|flying| flying.0 != next);
    driver.send(Event::Failed { group: GroupId(next), spent: Spent::on_answer(3) });
    let tally = driver.machine.run.step.tally;
    assert_eq!((tally.failed, tally.trajectories), (1, 2));
}

#[test]
fn first_members_must_be_able_to_tell() {
    let error = |change: &dyn Fn(&mut ScheduleSettings)| {
        let mut settings = screening(Surplus::Discard);
        change(&mut settings.run);
        Scheduler::streaming(settings).unwrap_err().to_string()
    };
    insta::assert_snapshot!(error(&|run| run.screen_first = Some(4)), @"`schedule.screen_first` 4 must be at least 2 and below `rollout.n` 4: a single member cannot differ, and all members are the whole group");
    assert!(error(&|run| run.screen_first = Some(1)).contains("must be at least 2"));
    insta::assert_snapshot!(error(&|run| run.filter = None), @"`schedule.screen_first` checks whether the first members differ, which does not predict how the filter null judges all of them");
    let range = crate::filter::GroupFilter::MeanRange(crate::filter::MeanRange::default());
    assert!(error(&|run| run.filter = Some(range)).contains("how the filter mean_range judges"));
    // No group begins in part unless the settings request it.
    let mut driver = Driver::new(settings(1, 1, Surplus::Discard));
    driver.send(Event::BeginStep);
    assert_eq!(driver.machine.num_begun(GroupId(0)), Some(2));
    let early = Event::Screened { group: GroupId(0), values: vec![0.0], facts: GroupFacts::default() };
    assert!(driver.machine.handle(early).is_err());
}

/// A machine with epochs of two prompts: the first groups of every epoch but the last are still generating
/// when the batch is full, and are aborted.
#[test]
fn epochs_that_were_given_up_do_not_end_a_run() {
    let of = settings(1, 1, Surplus::Discard).run;
    let run = ScheduleSettings { order: FillOrder::Completion, ..of };
    let streaming = StreamingSettings { run, mini_batch_size: 1, max_in_flight: 6 };
    let mut driver = Driver::starting(streaming, Admission::Saturate, 2);
    driver.send(Event::BeginStep);
    for step in 0..20 {
        driver.scored(driver.next - 1, true);
        let close = &driver.closed[step];
        assert_eq!((close.trained.len(), close.aborted.len()), (1, 5));
        driver.trained();
    }
    assert_eq!((driver.machine.progress().steps, driver.end), (20, None));
}

/// Runs a stream over epochs of `per_epoch` prompts in which the first `kept` groups are kept; returns the
/// last command.
fn play_epochs(run: ScheduleSettings, per_epoch: usize, mut kept: usize) -> Command {
    let streaming = StreamingSettings { run, mini_batch_size: 64, max_in_flight: 4096 };
    let mut driver = Driver::starting(streaming, Admission::default(), per_epoch);
    driver.send(Event::BeginStep);
    loop {
        if let Some(end) = driver.end {
            return end;
        }
        if driver.closed.len() as u64 > driver.version {
            driver.trained();
        } else {
            // Groups end in the order in which they began.
            driver.scored(driver.in_flight()[0], kept > 0);
            kept = kept.saturating_sub(1);
        }
    }
}

/// For 64 prompts: epochs in which some are passed over, and rounds of more prompts than there are.
#[test]
fn a_run_that_never_kept_a_group_has_a_diagnosis() {
    let of = |gen_batch_size, per_epoch, total_epochs, kept| {
        let run = ScheduleSettings {
            num_prompts: Some(64),
            gen_batch_size,
            total_epochs,
            ..settings(8, 8, Surplus::Discard).run
        };
        play_epochs(run, per_epoch, kept)
    };
    for (gen_batch_size, per_epoch, total, last) in [
        (8, 28, Some(1), 0),
        (8, 28, Some(2), 1),
        (8, 28, None, 2),
        (128, 64, Some(1), 0),
        (128, 64, None, 0),
    ] {
        let Command::Stop { diagnosis, .. } = of(gen_batch_size, per_epoch, total, 0) else {
            panic!("epochs of {per_epoch} that kept nothing end well")
        };
        assert_eq!(diagnosis.cause, StopCause::EpochWithoutKept { epoch: last, epochs: last + 1 });
        assert_eq!(diagnosis.tally.groups, (last + 1) * per_epoch as u64);
    }
    // A batch was trained, or at least one group was kept.
    for kept in [8, 1] {
        let end = of(8, 28, Some(2), kept);
        assert!(matches!(end, Command::Finish { why: RunEnd::TotalEpochs, .. }), "{kept}: {end:?}");
    }
}

/// Groups that continue have four members and those that end have two: only the first two of each show how
/// often prompts are solved.
#[test]
fn pass_rates_are_those_of_the_members_that_groups_begin_with() {
    let mut run = screening(Surplus::Discard);
    (run.run.train_batch_size, run.mini_batch_size) = (64, 64);
    let mut driver = Driver::new(run);
    driver.send(Event::BeginStep);
    driver.screened(0, &[0.0, 0.0]);
    driver.screened(1, &[1.0, 1.0]);
    driver.screened(2, &[0.0, 1.0]);
    driver.complete(2, &[0.0, 1.0, 1.0, 1.0]);
    let tally = driver.machine.run.step.tally;
    assert_eq!((tally.rated, tally.correct), (8, 5));
    assert_eq!((tally.paired_groups, tally.pass_rates, tally.pairs_correct), (3, 1.5, 1.0));
    assert_eq!(tally.mean_pass_rate(), Some(0.5));
    // The machine's record of a group survives JSON.
    let text = serde_json::to_string(&driver.machine).unwrap();
    assert!(text.contains(r#""first":{"num_scored":2,"num_correct":1}"#), "{text}");
    let again: Scheduler = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&again).unwrap(), text);
}
