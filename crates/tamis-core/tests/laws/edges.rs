//! The objective where a definition has an edge: nothing to train on, a view of a view, a threshold met exactly.

use tamis_core::objective::{
    AdvantageColumn, Aggregation, Columns, GroupCounts, LossMasks, Normalisers, Objective, PolicyLoss,
};

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
