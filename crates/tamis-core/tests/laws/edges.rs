//! The objective where a definition has an edge: nothing to train on, a view of a view, a threshold met exactly.

use tamis_core::objective::{
    AdvantageColumn, Aggregation, ClipCov, Columns, GroupCounts, Importance, LossMasks, Normalisers,
    Objective, PolicyLoss, Vespo,
};
use tamis_core::random::{Key, Purpose};

const ONE: Normalisers = Normalisers { tokens: 1.0, sequences: 1.0, groups: 1.0, dp_size: 1.0 };

#[test]
fn nothing_has_no_extremes() {
    let objective = Objective::of(PolicyLoss::Reinforce, Aggregation::TokenSum);
    let columns = Columns::new(&[0, 1], &[false], &[-1.0], AdvantageColumn::PerTrajectory(&[1.0]));
    let (outcome, _) = objective.value_and_gradient(&columns, &ONE, &objective.initial_state()).unwrap();
    let metrics = outcome.metrics;
    assert!(metrics.ratio_max.is_nan() && metrics.ratio_min.is_nan());
    assert!(metrics.clip_share_low_min.is_nan() && metrics.clip_share_high_max.is_nan());
}

#[test]
fn a_view_of_a_view_is_a_view() {
    let offsets = [0, 2, 3, 5, 9];
    let logprob: Vec<f64> = (0..9).map(f64::from).collect();
    let advantage = [0.0, 1.0, 2.0, 3.0];
    let columns = Columns {
        group_tokens: Some(&advantage),
        ..Columns::new(&offsets, &[true; 9], &logprob, AdvantageColumn::PerToken(&logprob))
    };
    let view = columns.sequences(1..4).sequences(1..3);
    assert_eq!((view.offsets, view.mask.len(), view.logprob), (&[3, 5, 9][..], 6, &logprob[3..9]));
    assert_eq!((view.num_sequences(), view.num_tokens(), view.group_tokens), (2, 6, Some(&advantage[2..4])));
    assert_eq!(view.check(), Ok(()));
    assert!(matches!(view.advantage, AdvantageColumn::PerToken(column) if column == &logprob[3..9]));
    // Outside of what there is: nothing.
    for range in [3..5, 5..5, std::ops::Range { start: 3, end: 2 }] {
        let none = columns.sequences(range.clone());
        assert_eq!((none.num_sequences(), none.num_tokens()), (0, 0), "{range:?}");
    }
}

#[test]
fn counts_that_say_nobody_is_there_divide_nothing() {
    let counts = GroupCounts { tokens: Some(0.0), sequences: Some(0.0) };
    for aggregation in [Aggregation::GroupMeanTokenMean, Aggregation::GroupMeanSeqMean] {
        assert_eq!(aggregation.weight(2, counts, &ONE), Ok(0.0), "{}", aggregation.name());
    }
}

/// Off-policy is what has drifted by more than the threshold.
#[test]
fn a_drift_of_the_threshold_is_allowed() {
    let masks = LossMasks { top_entropy: None, off_policy: Some(0.5) };
    let objective = Objective { masks, ..Objective::of(PolicyLoss::Reinforce, Aggregation::TokenSum) };
    for (behaviour, slope) in [(-0.5, 1.0), (-0.499, 0.0)] {
        let behaviour = [behaviour];
        let columns = Columns {
            behaviour: Some(&behaviour),
            ..Columns::new(&[0, 1], &[true], &[-1.0], AdvantageColumn::PerTrajectory(&[-1.0]))
        };
        let (_, derivatives) =
            objective.value_and_gradient(&columns, &ONE, &objective.initial_state()).unwrap();
        assert_eq!(derivatives.logprob, [slope], "{behaviour:?}");
    }
}

const VESPO: Vespo = Vespo { k_positive: 2.0, lambda_positive: 3.0, k_negative: 3.0, lambda_negative: 2.0 };

/// Of three tokens one has doubled, so W = 2; two are good and one is bad.
#[test]
fn the_weight_of_mixed_advantages_is_their_mean() {
    let objective = Objective::of(PolicyLoss::Vespo(VESPO), Aggregation::TokenSum);
    let (logprob, old) = ([-1.0; 3], [-1.0 - 2_f64.ln(), -1.0, -1.0]);
    let columns = Columns {
        old: Some(&old),
        ..Columns::new(&[0, 3], &[true; 3], &logprob, AdvantageColumn::PerToken(&[1.0, -1.0, 1.0]))
    };
    let (outcome, derivatives) =
        objective.value_and_gradient(&columns, &ONE, &objective.initial_state()).unwrap();
    let (positive, negative) = (4.0 * (-3_f64).exp(), 8.0 * (-2_f64).exp());
    let (name, own) = outcome.metrics.own.unwrap();
    assert_eq!(name, "vespo/phi_seq_mean");
    assert!((own - (2.0 * positive + negative) / 3.0).abs() < 1e-14, "{own}");
    for (found, slope) in derivatives.logprob.iter().zip([-positive, negative, -positive]) {
        assert!((found - slope).abs() < 1e-14, "{found} {slope}");
    }
    // The trajectory's weight is the loss's own matter: its ratios are reported token by token, whatever the level.
    for importance in [Importance::Sequence, Importance::SequenceToken] {
        let levelled = Objective { importance, ..objective };
        let (other, _) = levelled.value_and_gradient(&columns, &ONE, &objective.initial_state()).unwrap();
        assert_eq!(other.metrics.ratio_mean, outcome.metrics.ratio_mean, "{importance:?}");
        assert!((other.metrics.ratio_mean - 4.0 / 3.0).abs() < 1e-14);
    }
}

#[test]
fn all_tokens_are_the_top_of_a_share_of_one() {
    let masked = |share| {
        let masks = LossMasks { top_entropy: Some(share), off_policy: None };
        Objective { masks, ..Objective::of(PolicyLoss::Reinforce, Aggregation::TokenSum) }
    };
    assert!(
        !masked(1.0).needs_selection() && masked(0.99).needs_selection() && masked(0.0).needs_selection()
    );
    let entropy = [0.5, 2.0, 1.0];
    let columns = Columns {
        entropy: Some(&entropy),
        ..Columns::new(&[0, 3], &[true; 3], &[-1.0; 3], AdvantageColumn::PerTrajectory(&[1.0]))
    };
    let flags = |share| masked(share).select(&columns, Key::new(1, Purpose::MiniBatch)).unwrap().flags;
    assert_eq!((flags(1.0), flags(0.5), flags(0.0)), (vec![0, 0, 0], vec![1, 0, 0], vec![1, 0, 1]));
}

/// Covariances of 1 each: both bounds are outside.
#[test]
fn candidates_lie_between_the_bounds() {
    let columns =
        Columns::new(&[0, 1, 2], &[true; 2], &[-1.0, -3.0], AdvantageColumn::PerTrajectory(&[1.0, -1.0]));
    let candidates = |cov_low, cov_high| {
        ClipCov { low: 0.2, high: 0.2, share: 0.5, cov_low, cov_high }.candidates(&columns)
    };
    assert_eq!(candidates(0.5, 1.5), [0, 1]);
    assert_eq!((candidates(1.0, 1.5), candidates(0.5, 1.0)), (vec![], vec![]));
}
