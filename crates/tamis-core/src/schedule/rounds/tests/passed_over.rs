//! Epochs of few groups, because most prompts are passed over.

use super::*;

/// Rounds of four; five of them fill an epoch in which every prompt is taken.
fn settings() -> ScheduleSettings {
    ScheduleSettings { num_prompts: Some(20), ..ScheduleSettings::verl(4, 4, 2, 0) }
}

/// Runs rounds that keep these numbers of groups until the run ends or asks for nothing more; returns the
/// last commands.
fn play(driver: &mut Driver, kept: &[usize]) -> Vec<Command> {
    let mut commands = Vec::new();
    for &kept in kept {
        if !matches!(commands.last(), Some(Command::Draw { .. })) {
            commands = driver.begin();
        }
        commands = driver.more(&commands, kept);
        if matches!(commands.last(), Some(Command::StepReady(_))) {
            driver.trained();
        }
        if driver.rounds.is_ended() {
            break;
        }
    }
    commands
}

fn cause(commands: &[Command]) -> Option<StopCause> {
    matches!(commands.last(), Some(Command::Stop { .. })).then(|| stopped(commands).0.cause)
}

#[test]
fn short_epochs_end_a_run_when_as_many_groups_were_judged_as_there_are_prompts() {
    // Six of twenty prompts are taken in an epoch: three epochs are eighteen, the fourth ends in round 6.
    assert_eq!(cause(&play(&mut Driver::with_data(settings(), 6), &[0; 5])), None);
    let mut driver = Driver::with_data(settings(), 6);
    let commands = play(&mut driver, &[0; 10]);
    let (diagnosis, _) = stopped(&commands);
    assert_eq!(diagnosis.cause, StopCause::EpochWithoutKept { epoch: 3, epochs: 4 });
    assert_eq!((diagnosis.tally.groups, diagnosis.rounds, driver.rounds.progress().rounds), (24, 6, 6));
    insta::assert_snapshot!(diagnosis.to_string().lines().next().unwrap_or_default(), @"stopped in step 1: no group was kept in all of epochs 1 to 4 (6 rounds)");
}

#[test]
fn a_kept_group_begins_the_count_anew() {
    // An occasional kept group is a signal, however few groups an epoch has.
    let mut driver = Driver::with_data(settings(), 2);
    let rounds: Vec<usize> = (0..400).map(|round| usize::from(round % 4 == 0)).collect();
    assert_eq!(cause(&play(&mut driver, &rounds)), None);
    assert_eq!((driver.rounds.progress().steps, driver.rounds.progress().epoch > 700), (25, true));
    // Twenty in a row, and not fewer. A round has two epochs.
    let mut driver = Driver::with_data(settings(), 2);
    let rounds: Vec<usize> = [1].into_iter().chain([0; 10]).collect();
    let commands = play(&mut driver, &rounds);
    assert_eq!(cause(&commands), Some(StopCause::EpochWithoutKept { epoch: 11, epochs: 11 }));
    // A later epoch of the round in which the last of them ends keeps a group.
    let mut driver = Driver::with_data(settings(), 3);
    let mut commands = play(&mut driver, &[0; 5]);
    commands = driver.round(&commands, |place| if place == 3 { Fate::Mixed } else { Fate::Wrong });
    assert_eq!(cause(&commands), None);
    assert!(matches!(commands.last(), Some(Command::Draw { .. })));
}

/// The same if the run has not kept a single group: it has nothing to finish with.
#[test]
fn a_run_that_never_kept_a_group_has_a_diagnosis() {
    let of = |run: ScheduleSettings, total_epochs, per_epoch, kept: &[usize]| {
        let run = ScheduleSettings { total_epochs: Some(total_epochs), ..run };
        play(&mut Driver::with_data(run, per_epoch), kept)
    };
    for (epochs, per_epoch) in [(1, 4), (1, 6), (2, 4), (3, 5), (1, 2)] {
        let commands = of(settings(), epochs, per_epoch, &[0; 8]);
        let (diagnosis, _) = stopped(&commands);
        let expected = StopCause::EpochWithoutKept { epoch: epochs - 1, epochs };
        assert_eq!(diagnosis.cause, expected, "{epochs} of {per_epoch}");
        assert_eq!(diagnosis.tally.groups, epochs * per_epoch as u64);
    }
    // A step that is abandoned because of an empty round, or because the data ended, does not count as
    // trained.
    for skips in [
        ScheduleSettings { on_empty_round: OnEmptyRound::Skip, max_skipped_steps: 100, ..settings() },
        ScheduleSettings { on_exhausted: OnExhausted::UsePartial, max_skipped_steps: 100, ..settings() },
    ] {
        let commands = of(skips, 2, 4, &[0; 8]);
        assert!(matches!(cause(&commands), Some(StopCause::EpochWithoutKept { .. })), "{commands:?}");
    }
    // One group of the first epoch was kept, or a batch was: the end is reported as usual.
    for kept in [1, 4] {
        assert_eq!(ended(&of(settings(), 2, 4, &[kept, 0])).0, "TotalEpochs", "{kept}");
    }
}

#[test]
fn groups_that_are_given_up_do_not_count() {
    let run = ScheduleSettings { rounds_in_flight: 3, num_prompts: None, ..settings() };
    let mut driver = Driver::with_data(run, 4);
    for _ in 0..20 {
        let begun = driver.begin();
        let (groups, mut commands) = driver.dispatch(&begun);
        for group in &groups[..4] {
            commands = driver.send(scored(*group, Fate::Mixed, 2));
        }
        let close = ready(&commands);
        driver.left = driver.left.map(|left| left + close.returned.len());
        driver.trained();
    }
    assert_eq!(driver.rounds.progress().steps, 20);
}
