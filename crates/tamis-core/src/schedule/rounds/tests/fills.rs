//! Batches that are short when the limit on rounds is reached, and the groups that fill them.

use super::{Driver, Fate, ended, metric, ready, scored, spent};
use crate::filter::Verdict;
use crate::group::GroupId;
use crate::schedule::{
    Command, Event, FillOrder, GroupFacts, OnLimit, ScheduleSettings, Scheduler, StepClose, StreamingSettings,
};

fn settings(train: usize, generated: usize, rounds: i64, on_limit: OnLimit) -> ScheduleSettings {
    ScheduleSettings { on_limit, seed: 7, ..ScheduleSettings::verl(train, generated, 2, rounds) }
}

fn ids(groups: &[u64]) -> Vec<GroupId> {
    groups.iter().copied().map(GroupId).collect()
}

fn names(close: &StepClose) -> Vec<String> {
    close.report.metrics().into_iter().map(|(name, _)| name).collect()
}

/// One round of 8, of which 3 are kept: 5 copies of them, each once and two of them once more.
#[test]
fn copies_of_kept_groups_fill_the_batch() {
    let mut driver = Driver::new(settings(8, 8, 1, OnLimit::Duplicate));
    let commands = driver.first(3);
    let close = ready(&commands);
    assert_eq!(close.trained, ids(&[0, 1, 2]));
    assert_eq!(close.duplicated.len(), 5);
    let mut copies = [0; 3];
    for group in &close.duplicated {
        copies[group.0 as usize] += 1;
    }
    copies.sort_unstable();
    assert_eq!(copies, [1, 2, 2]);
    assert_eq!(close.kept_when_insufficient, []);
    insta::assert_snapshot!(driver.log.join("\n"), @"
    step 1 round 1: 8 prompts, 16 trajectories; dropped 5 (62.5%): 5 all wrong; kept 3 (37.5%); mean std 0.188; accumulated 3/8
    step 1 batch complete: 1 round, 8 prompts generated, 3 kept (37.5%); training on 8 groups, 16 trajectories, 160 tokens; 5 duplicated
    ");
    assert_eq!([metric(close, "groups/duplicated"), metric(close, "trajectories/duplicated")], [5.0, 10.0]);
    assert_eq!([metric(close, "groups/generated"), metric(close, "groups/dropped")], [8.0, 5.0]);
    assert_eq!([metric(close, "groups/trained"), metric(close, "tokens/trained")], [3.0, 60.0]);
    assert_eq!(metric(close, "dynamic_sampling/num_prompts_used"), 8.0);
    assert_eq!(metric(close, "dynamic_sampling/num_accumulated_prompts"), 3.0);
    assert!(!names(close).contains(&"groups/kept_when_insufficient".to_owned()));
    driver.trained();
    assert_eq!(driver.rounds.totals().duplicated.groups, 5);
    assert_eq!(driver.rounds.totals().trained.groups, 3);
    // The draw is keyed by seed and step.
    let copies_of = |seed| {
        let mut driver = Driver::new(ScheduleSettings { seed, ..settings(40, 40, 1, OnLimit::Duplicate) });
        let commands = driver.first(30);
        ready(&commands).duplicated.clone()
    };
    assert_eq!(copies_of(1), copies_of(1));
    assert_ne!(copies_of(1), copies_of(2));
}

#[test]
fn dropped_groups_fill_the_batch() {
    let fates = [Fate::Wrong, Fate::Mixed, Fate::Failed, Fate::Correct, Fate::Wrong, Fate::Mixed];
    for rounds in [1, 2] {
        let mut driver = Driver::new(settings(4 * rounds, 6, rounds as i64, OnLimit::KeepDropped));
        let mut commands = driver.begin();
        for _ in 0..rounds {
            commands = driver.round(&commands, |place| fates[place]);
        }
        let close = ready(&commands);
        let (trained, dropped): (&[u64], &[u64]) =
            if rounds == 1 { (&[0, 1, 3, 5], &[0, 3]) } else { (&[0, 1, 3, 4, 5, 6, 7, 11], &[0, 3, 4, 6]) };
        assert_eq!(close.trained, ids(trained));
        assert_eq!(close.kept_when_insufficient, ids(dropped));
        assert_eq!(close.duplicated, []);
        let of = |place: &str| metric(close, &format!("groups/{place}"));
        let rounds = rounds as f64;
        assert_eq!([of("trained"), of("kept_when_insufficient")], [2.0 * rounds; 2]);
        assert_eq!([of("dropped"), of("failed")], [rounds; 2]);
        // The verdicts stay unchanged.
        assert_eq!(metric(close, "train/filter_rate"), 0.5);
        assert_eq!(metric(close, "train/num_kept_prompts"), 2.0 * rounds);
        assert!(!names(close).contains(&"groups/duplicated".to_owned()));
        let judged = |command: &Command| matches!(command, Command::Judged { verdict: Verdict::Kept, .. });
        assert_eq!(commands.iter().filter(|command| judged(command)).count(), 2);
        driver.trained();
        assert_eq!(driver.rounds.held().count(), 0);
        let line = driver.log.pop().unwrap();
        let told = format!("; {} kept when insufficient; {} failed", 2.0 * rounds, rounds);
        assert!(line.contains("batch complete") && line.ends_with(&told), "{line}");
    }
    // In order of completion, if that order fills batches.
    let completion =
        ScheduleSettings { order: FillOrder::Completion, ..settings(3, 4, 1, OnLimit::KeepDropped) };
    let mut driver = Driver::new(completion);
    let begun = driver.begin();
    let (groups, mut commands) = driver.dispatch(&begun);
    for place in [3, 0, 2, 1] {
        let fate = if place == 2 { Fate::Mixed } else { Fate::Wrong };
        commands = driver.send(scored(groups[place], fate, 2));
    }
    assert_eq!(ready(&commands).trained, ids(&[0, 2, 1]));
    assert_eq!(ready(&commands).kept_when_insufficient, ids(&[0, 1]));
}

#[test]
fn a_group_without_scores_fills_nothing_and_the_batch_stays_short_where_others_lack() {
    let mut driver = Driver::new(settings(4, 4, 1, OnLimit::KeepDropped));
    let begun = driver.begin();
    let (groups, _) = driver.dispatch(&begun);
    let unscored = Event::Scored {
        group: groups[0],
        values: vec![f64::NAN; 2],
        facts: GroupFacts { spent: spent(20), ..GroupFacts::default() },
    };
    driver.send(unscored);
    driver.send(scored(groups[1], Fate::Correct, 2));
    driver.send(Event::Failed { group: groups[2], spent: spent(5) });
    let commands = driver.send(scored(groups[3], Fate::Mixed, 2));
    let close = ready(&commands);
    assert_eq!(close.trained, ids(&[1, 3]));
    assert_eq!(close.kept_when_insufficient, ids(&[1]));
    assert!(close.report.is_partial());
    assert_eq!(metric(close, "groups/dropped"), 1.0);
}

#[test]
fn nothing_is_filled_where_nothing_was_kept_or_the_batch_is_full() {
    for on_limit in [OnLimit::KeepDropped, OnLimit::Duplicate] {
        let mut driver = Driver::new(settings(4, 4, 1, on_limit));
        let commands = driver.first(0);
        let (why, close) = ended(&commands);
        assert_eq!((why.as_str(), close.trained.len(), close.duplicated.len()), ("skip: LimitReached", 0, 0));
        assert_eq!(close.report.accounting.dropped.groups, 4);
        // Groups dropped in one attempt are not available to the next.
        let commands = driver.first(4);
        let close = ready(&commands);
        assert_eq!(close.trained, ids(&[4, 5, 6, 7]));
        assert_eq!((close.kept_when_insufficient.len(), close.duplicated.len()), (0, 0));
        driver.trained();
        // Before the limit another round is drawn, and its groups come first.
        let mut driver = Driver::new(settings(4, 4, 2, on_limit));
        let commands = driver.kept(&[3, 2]);
        assert_eq!(ready(&commands).trained, ids(&[0, 1, 2, 4]));
        assert_eq!(ready(&commands).surplus, ids(&[5]));
    }
}

#[test]
fn a_streaming_schedule_fills_nothing() {
    for on_limit in [OnLimit::KeepDropped, OnLimit::Duplicate] {
        let run = settings(4, 4, 1, on_limit);
        let refused = Scheduler::streaming(StreamingSettings { run, mini_batch_size: 2, max_in_flight: 8 });
        assert_eq!(
            refused.unwrap_err().to_string(),
            format!(
                "`schedule.on_limit: {on_limit}` fills the batch after its last round, but a streaming schedule hands out groups as they \
                finish"
            )
        );
    }
}
