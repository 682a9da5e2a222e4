use proptest::prelude::*;

use super::*;

fn collapse(form: CollapseForm) -> EarlyStop {
    let settings = RewardCollapse { form, baseline_steps: 2, window: 3, share: 0.1 };
    EarlyStop::new(EarlyStopSettings { reward_collapse: Some(settings), ..EarlyStopSettings::default() })
}

/// Feeds rounds (deviation, whether successful), and returns the round, from 1, at which the run stops.
fn stops_at(early_stop: &mut EarlyStop, rounds: &[(f64, bool)]) -> Option<usize> {
    rounds
        .iter()
        .position(|&(in_group_reward_std, is_successful)| {
            early_stop.attempt(Attempt { in_group_reward_std, is_successful }).is_some()
        })
        .map(|place| place + 1)
}

#[test]
fn the_documents_form_counts_every_attempt() {
    // Baseline (0.4 + 0.6) / 2 = 0.5, threshold 0.05.
    let rounds = [(0.4, true), (0.6, true), (0.04, true), (0.04, false), (0.0, false), (0.0, true)];
    assert_eq!(stops_at(&mut collapse(CollapseForm::Attempts), &rounds), Some(5));
    // In the later form only successful steps count: there is no third low one.
    assert_eq!(stops_at(&mut collapse(CollapseForm::Steps), &rounds), None);
    let more = [(0.4, true), (0.6, true), (0.04, true), (0.0, false), (0.0, true), (0.0, true)];
    assert_eq!(stops_at(&mut collapse(CollapseForm::Steps), &more), Some(6));
}

#[test]
fn rounds_before_the_baseline_fill_the_documents_window() {
    // The empty rounds between the baseline's steps are in the window, which is full at the first round after
    // the baseline.
    let rounds = [(1.0, true), (0.01, false), (0.01, false), (0.05, true), (0.01, true)];
    // Baseline (1 + 0.05) / 2, threshold 0.0525; window 0.01, 0.05, 0.01.
    assert_eq!(stops_at(&mut collapse(CollapseForm::Attempts), &rounds), Some(5));
    assert_eq!(stops_at(&mut collapse(CollapseForm::Steps), &rounds), None);
}

#[test]
fn the_threshold_is_strict_and_a_baseline_of_zero_never_fires() {
    let at = [(0.5, true), (0.5, true), (0.05, true), (0.05, true), (0.05, true), (0.05, true)];
    assert_eq!(stops_at(&mut collapse(CollapseForm::Steps), &at), None);
    let nothing = [(0.0, true); 20];
    for form in [CollapseForm::Attempts, CollapseForm::Steps] {
        assert_eq!(stops_at(&mut collapse(form), &nothing), None);
    }
    // One round above the threshold restarts the wait for a full window.
    let once = [(0.5, true), (0.5, true), (0.0, true), (0.0, true), (0.06, true), (0.0, true), (0.0, true)];
    assert_eq!(stops_at(&mut collapse(CollapseForm::Steps), &once), None);
    let unscored = [(0.5, true), (0.5, true), (0.0, true), (f64::NAN, true), (0.0, true), (0.0, true)];
    assert_eq!(stops_at(&mut collapse(CollapseForm::Steps), &unscored), Some(6));
}

#[test]
fn low_success_must_last() {
    let settings = EarlyStopSettings {
        low_success: Some(LowSuccess { floor: 0.01, patience: 2 }),
        ..Default::default()
    };
    let mut early_stop = EarlyStop::new(settings);
    assert_eq!(early_stop.validation(&[0.5, 0.0]), None);
    assert_eq!(early_stop.validation(&[0.5, 0.01]), None);
    assert_eq!(early_stop.validation(&[0.009]), None);
    assert_eq!(early_stop.validation(&[]), None);
    assert_eq!(early_stop.validation(&[f64::NAN]), None);
    let reason = early_stop.validation(&[0.3, 0.002]).unwrap();
    assert_eq!(reason, StopReason::LowSuccess { validations: 2, lowest: 0.002, floor: 0.01 });
}

#[test]
fn a_stopped_run_stays_stopped_until_its_stop_is_switched_off() {
    let settings = EarlyStopSettings { empty_steps: Some(EmptySteps { patience: 1 }), ..Default::default() };
    let mut early_stop = EarlyStop::new(settings);
    assert_eq!(early_stop.stop_reason(), None);
    assert_eq!(early_stop.step(false), early_stop.stop_reason());
    assert_eq!(early_stop.step(true), None);
    let state = early_stop.state().clone();
    let resumed = |settings| EarlyStop::new(settings).resume(state.clone()).stop_reason();
    assert_eq!(resumed(settings), Some(StopReason::EmptySteps { steps: 1 }));
    assert_eq!(resumed(EarlyStopSettings::default()), None);
}

#[test]
fn what_the_person_is_told() {
    let say = |reason: StopReason| format!("{}: {reason}", reason.name());
    insta::assert_snapshot!(say(StopReason::RewardCollapse { window: 10, largest: 0.0123, baseline: 0.25, share: 0.1 }), @"reward_collapse: the reward's deviation within groups has collapsed: at most 0.0123 in each of the last 10 rounds, below 10% of the 0.2500 it began with");
    insta::assert_snapshot!(say(StopReason::LowSuccess { validations: 5, lowest: 0.0, floor: 0.01 }), @"low_success: validation success stayed below 0.01 for 5 validations in a row, 0.0000 in the last");
    insta::assert_snapshot!(say(StopReason::EmptySteps { steps: 5 }), @"empty_steps: 5 steps in a row had no group to train on");
}

proptest! {
    #[test]
    fn resumed_is_uninterrupted(
        rounds in prop::collection::vec((prop_oneof![Just(0.0), Just(0.02), 0.3..0.7_f64], any::<bool>()), 0..40),
        at in 0_usize..40,
        later in any::<bool>(),
    ) {
        let form = if later { CollapseForm::Steps } else { CollapseForm::Attempts };
        let whole = stops_at(&mut collapse(form), &rounds);
        let (before, after) = rounds.split_at(at.min(rounds.len()));
        let mut first = collapse(form);
        if let Some(stop) = stops_at(&mut first, before) {
            prop_assert_eq!(whole, Some(stop));
        } else {
            let saved = serde_json::to_string(first.state()).unwrap();
            let mut second = collapse(form).resume(serde_json::from_str(&saved).unwrap());
            prop_assert_eq!(whole, stops_at(&mut second, after).map(|place| place + before.len()));
        }
    }

    #[test]
    fn stops_are_collapses(rounds in prop::collection::vec((0.0..1.0_f64, any::<bool>()), 0..60)) {
        for form in [CollapseForm::Attempts, CollapseForm::Steps] {
            if let Some(at) = stops_at(&mut collapse(form), &rounds) {
                let seen = &rounds[..at];
                let baseline: Vec<f64> = seen.iter().filter(|round| round.1).map(|round| round.0).take(2).collect();
                prop_assert_eq!(baseline.len(), 2);
                let threshold = 0.1 * (baseline[0] + baseline[1]) / 2.0;
                let counted: Vec<f64> =
                    seen.iter().filter(|round| form == CollapseForm::Attempts || round.1).map(|round| round.0).collect();
                prop_assert!(counted.len() >= 3 && counted.iter().rev().take(3).all(|std| *std < threshold));
            }
        }
    }
}
