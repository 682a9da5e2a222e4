//! Section 1.4 of the notes on verl; one test per defect.

use super::*;

/// verl's `total_training_steps` counts generation batches, so the last step is never recognised, the last
/// validation is not done and the progress bar stops at 18 %. Here steps are trained batches, however many
/// rounds they need.
#[test]
fn total_steps_are_training_steps() {
    let settings = ScheduleSettings { total_steps: Some(3), ..ScheduleSettings::verl(4, 4, 2, 0) };
    let mut driver = Driver::with_data(settings, 1000);
    for step in 1..=3 {
        let commands = driver.kept(&[1; 4]);
        let report = &ready(&commands).report;
        assert_eq!((report.step, report.rounds, report.is_last), (step, 4, step == 3));
        driver.trained();
        let progress = driver.rounds.progress();
        assert_eq!((progress.steps, progress.rounds), (step, 4 * step));
        assert_eq!(progress.fraction(Some(3), None, 1000), Some(step as f64 / 3.0));
    }
    // One finish, after the last step was trained, with the number of trained steps. verl labels the last
    // checkpoint one too high.
    let commands = driver.begin();
    let [Command::Finish { why: RunEnd::TotalSteps, close }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!((driver.rounds.progress().steps, close.report.batch.groups), (3, 0));
}

#[test]
fn the_end_of_the_last_epoch_is_announced() {
    let settings = ScheduleSettings { total_epochs: Some(1), ..ScheduleSettings::verl(4, 4, 2, 0) };
    let mut driver = Driver::with_data(settings, 8);
    let commands = driver.kept(&[2, 2]);
    ready(&commands);
    driver.trained();
    assert!(matches!(driver.begin()[..], [Command::Finish { why: RunEnd::TotalEpochs, .. }]));
    assert_eq!(driver.rounds.progress().fraction(None, Some(1), 8), Some(1.0));
}

/// verl's last partial batch vanishes. Here it is counted, or trained on if so configured.
#[test]
fn the_last_partial_batch_is_accounted_for() {
    for (on_exhausted, trained, surplus) in
        [(OnExhausted::NextEpoch, 0, 3), (OnExhausted::UsePartial, 3, 0), (OnExhausted::Stop, 0, 3)]
    {
        let settings =
            ScheduleSettings { total_epochs: Some(1), on_exhausted, ..ScheduleSettings::verl(4, 4, 2, 0) };
        let mut driver = Driver::with_data(settings, 8);
        let commands = driver.kept(&[2, 1]);
        let close = match commands.last() {
            Some(Command::Finish { close, .. } | Command::StepReady(close)) => close,
            other => panic!("{other:?}"),
        };
        assert_eq!((close.trained.len(), close.surplus.len()), (trained, surplus));
    }
}

/// verl keeps its partial batch across the end of an epoch. So does this, and the epoch's number follows the
/// prompts.
#[test]
fn groups_of_two_epochs_fill_one_batch() {
    let mut driver = Driver::with_data(ScheduleSettings::verl(4, 4, 2, 0), 4);
    let mut commands = driver.first(1);
    for epoch in 1..4 {
        assert!(commands.contains(&Command::NextEpoch { epoch }));
        commands = driver.more(&commands, 1);
    }
    assert_eq!(ready(&commands).trained, [0, 4, 8, 12].map(GroupId));
    assert_eq!(ready(&commands).report.epoch, 3);
    // An epoch ends within a round.
    let mut driver = Driver::with_data(ScheduleSettings::verl(8, 8, 2, 0), 12);
    let commands = driver.kept(&[5, 8]);
    let report = &ready(&commands).report;
    assert_eq!((report.all.groups, report.epoch), (16, 1));
    let progress = driver.rounds.progress();
    assert_eq!((progress.epoch, progress.prompts_in_epoch, progress.prompts), (1, 4, 16));
}
