//! Objectives with numbers that can be checked by hand.

use tamis_core::objective::{
    Accumulator, AdvantageColumn, Aggregation, Clip, Columns, EntropyBonus, Evaluation, GroupCounts,
    Importance, KlController, KlEstimator, KlKind, KlTerm, LengthDivisors, Normalisers, Objective,
    PolicyLoss,
};
use tamis_core::ragged::Ragged;

use super::{dapo, grpo};
use crate::batch::run;

/// Two groups: one trajectory of 1 token and one of 3; one of 2. Advantages 1 and -1; 2. All ratios are 1, so
/// a token's loss is -A.
fn small() -> (Vec<usize>, Vec<bool>, Vec<f64>, Vec<f64>) {
    (vec![0, 1, 4, 6], vec![true; 6], vec![-1.0; 6], vec![1.0, -1.0, 2.0])
}

const SMALL: Normalisers = Normalisers { tokens: 6.0, sequences: 3.0, groups: 2.0, dp_size: 1.0 };

/// With a response limit of 4 tokens.
fn divided_by_4(objective: Objective) -> Objective {
    let divisors = LengthDivisors { loss_scale_factor: 4.0, ..LengthDivisors::default() };
    Objective { divisors, ..objective }
}

#[test]
fn aggregations_by_hand() {
    let (offsets, mask, logprob, advantage) = small();
    let (normalisers, group_tokens) =
        Normalisers::of(&Ragged::from_lengths(mask.clone(), &[1, 3, 2]).unwrap(), &[2, 1]).unwrap();
    assert_eq!(normalisers, SMALL);
    assert_eq!(group_tokens, [4.0, 4.0, 2.0]);
    // Token sums per trajectory: -1, +3, -4.
    let expected = [
        (Aggregation::TokenMean, -2.0 / 6.0, [-1.0 / 6.0, 1.0 / 6.0, -2.0 / 6.0]),
        (Aggregation::SeqMeanTokenSum, -2.0 / 3.0, [-1.0 / 3.0, 1.0 / 3.0, -2.0 / 3.0]),
        (Aggregation::SeqMeanTokenMean, (-1.0 + 1.0 - 2.0) / 3.0, [-1.0 / 3.0, 1.0 / 9.0, -2.0 / 6.0]),
        (Aggregation::SeqMeanTokenSumNorm, -2.0 / 12.0, [-1.0 / 12.0, 1.0 / 12.0, -2.0 / 12.0]),
        // Group means 2/4 and -4/2.
        (Aggregation::GroupTokenMean, (0.5 - 2.0) / 2.0, [-1.0 / 8.0, 1.0 / 8.0, -2.0 / 4.0]),
        (Aggregation::TokenSum, -2.0, [-1.0, 1.0, -2.0]),
    ];
    for (aggregation, loss, [first, second, third]) in expected {
        let objective = divided_by_4(Objective::of(PolicyLoss::Clip(Clip::symmetric(0.2)), aggregation));
        let columns = Columns {
            group_tokens: Some(&group_tokens),
            ..Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&advantage))
        };
        let (outcome, derivatives) = run(&objective, &columns, &normalisers);
        let name = aggregation.as_str();
        assert!((outcome.loss - loss).abs() < 1e-15, "{name}: {} against {loss}", outcome.loss);
        let tokens = [first, second, second, second, third, third];
        for (actual, expected) in derivatives.logprob.iter().zip(tokens) {
            assert!((actual - expected).abs() < 1e-15, "{name}: {actual} against {expected}");
        }
    }
}

/// The four presets on one batch, as in the side-by-side table of the documentation.
#[test]
fn presets_side_by_side() {
    let (offsets, mask, logprob, advantage) = small();
    let (normalisers, group_tokens) =
        Normalisers::of(&Ragged::from_lengths(mask.clone(), &[1, 3, 2]).unwrap(), &[2, 1]).unwrap();
    let mut lines = Vec::new();
    let clip = |clip_high| PolicyLoss::Clip(Clip { clip_high, ..Clip::symmetric(0.2) });
    for (name, objective) in [
        ("grpo", Objective { kl: None, ..grpo() }),
        ("dapo", dapo()),
        ("dapo_paper", Objective::of(clip(0.28), Aggregation::GroupTokenMean)),
        ("dr_grpo", divided_by_4(Objective::of(clip(0.2), Aggregation::SeqMeanTokenSumNorm))),
    ] {
        let columns = Columns {
            group_tokens: Some(&group_tokens),
            ..Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&advantage))
        };
        let (outcome, derivatives) = run(&objective, &columns, &normalisers);
        let per_trajectory: Vec<String> =
            [0, 1, 4].iter().map(|&t| format!("{:+.4}", derivatives.logprob[t])).collect();
        lines.push(format!("{:<10}  {:+.4}  {}", name, outcome.loss, per_trajectory.join("  ")));
    }
    insta::assert_snapshot!(lines.join("\n"), @"
    grpo        -0.6667  -0.3333  +0.1111  -0.3333
    dapo        -0.3333  -0.1667  +0.1667  -0.3333
    dapo_paper  -0.7500  -0.1250  +0.1250  -0.5000
    dr_grpo     -0.1667  -0.0833  +0.0833  -0.1667
    ");
    let page = include_str!("../../../../../docs/objectives.md");
    for line in lines {
        assert!(page.contains(&line), "docs/objectives.md lacks the line `{line}`");
    }
}

#[test]
fn nothing_to_train_on_is_zero_and_moves_nothing() {
    let term = KlTerm {
        estimator: KlEstimator::plain(KlKind::K3),
        controller: KlController::Adaptive { initial: 0.3, target: 0.1, horizon: 10.0 },
        bias_corrected: false,
    };
    for &aggregation in Aggregation::ALL {
        let objective = Objective {
            kl: Some(term),
            entropy: Some(EntropyBonus::constant(0.1)),
            ..Objective::of(PolicyLoss::Clip(Clip::verl(0.2, 0.28, 3.0)), aggregation)
        };
        // Masked trajectories of 2, 0 and 1 tokens in two groups, and no trajectory at all.
        for (lengths, advantage, group_sizes) in
            [(&[2, 0, 1][..], &[1.0, 0.5, -1.0][..], &[2, 1][..]), (&[], &[], &[])]
        {
            let num_tokens = lengths.iter().sum();
            let mask = Ragged::from_lengths(vec![false; num_tokens], lengths).unwrap();
            let (normalisers, group_tokens) = Normalisers::of(&mask, group_sizes).unwrap();
            let group_sequences = Normalisers::group_sequences(&mask, group_sizes).unwrap();
            let numbers = vec![-1.0; num_tokens];
            let advantage = AdvantageColumn::PerTrajectory(advantage);
            let columns = Columns {
                reference: Some(&numbers),
                entropy: Some(&numbers),
                group_tokens: Some(&group_tokens),
                group_sequences: Some(&group_sequences),
                ..Columns::new(mask.offsets(), mask.values(), &numbers, advantage)
            };
            let (outcome, derivatives) = run(&objective, &columns, &normalisers);
            assert_eq!((outcome.loss, outcome.state), (0.0, objective.initial_state()));
            assert!(outcome.metrics.ratio_mean.is_nan() && outcome.metrics.tokens == 0.0);
            let mut all = derivatives.logprob.iter().chain(&derivatives.entropy);
            assert!(all.all(|derivative| *derivative == 0.0));
        }
    }
    // A fully masked trajectory, or group, together with others.
    let some = Normalisers { tokens: 5.0, sequences: 2.0, groups: 2.0, dp_size: 1.0 };
    let group = GroupCounts { tokens: Some(0.0), sequences: Some(0.0) };
    for aggregation in Aggregation::ALL {
        let weight = aggregation.weight(0, group, &some, &LengthDivisors::default()).unwrap();
        assert!(weight.is_finite(), "{}", aggregation.as_str());
    }
}

#[test]
fn a_nan_reaches_the_loss() {
    for (logprob, old) in [(f64::NAN, Some(-1.0)), (-1.0, Some(f64::NAN)), (f64::NAN, None)] {
        let objective = dapo();
        let (offsets, mask, logprob, advantage) = ([0, 1], [true], [logprob], [1.0]);
        let old = old.map(|old| [old]);
        let columns = Columns {
            old: old.as_ref().map(|old| &old[..]),
            ..Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&advantage))
        };
        let normalisers = Normalisers { tokens: 1.0, sequences: 1.0, groups: 1.0, dp_size: 1.0 };
        let (outcome, derivatives) = run(&objective, &columns, &normalisers);
        assert!(outcome.loss.is_nan() && derivatives.logprob[0].is_nan());
    }
}

#[test]
fn metrics_by_hand() {
    // A good trajectory of one token with ratio 2; a bad one with ratios 1/2, 4, 1 and a masked token.
    let (offsets, mask) = ([0, 1, 5], [true, true, true, true, false]);
    let two = 2_f64.ln();
    let (logprob, old) = ([two - 5.0, -5.0 - two, 2.0 * two - 5.0, -5.0, 0.0], [-5.0; 5]);
    let columns = Columns {
        old: Some(&old),
        ..Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&[1.0, -1.0]))
    };
    let normalisers = Normalisers { tokens: 4.0, sequences: 2.0, groups: 1.0, dp_size: 1.0 };
    let objective = Objective { policy: PolicyLoss::Clip(Clip::verl(0.2, 0.28, 3.0)), ..dapo() };
    let (outcome, _) = run(&objective, &columns, &normalisers);
    let metrics = outcome.metrics;
    let near = |actual: f64, expected: f64| assert!((actual - expected).abs() < 1e-14, "{actual} {expected}");
    // -1.28 clipped high, 0.8 clipped low, 3 on the dual clip, 1.
    near(outcome.loss, (-1.28 + 0.8 + 3.0 + 1.0) / 4.0);
    near(metrics.policy_loss, outcome.loss);
    assert_eq!((metrics.tokens, metrics.sequences), (4.0, 2.0));
    assert_eq!((metrics.clip_share, metrics.clip_share_dual), (0.5, 0.25));
    assert_eq!((metrics.clip_share_low, metrics.clip_share_high), (0.25, 0.25));
    // Per trajectory: no low token in the first, and its only token is high; one low of three in the second.
    assert_eq!((metrics.clip_share_low_min, metrics.clip_share_high_max), (0.0, 1.0));
    near(metrics.ratio_mean, (2.0 + 0.5 + 4.0 + 1.0) / 4.0);
    near(metrics.ratio_max, 4.0);
    near(metrics.ratio_min, 0.5);
    near(metrics.old_kl, -2.0 * two / 4.0);
    near(metrics.old_kl_k3, (7.5 - 4.0 - 2.0 * two) / 4.0);
}

/// The k3 estimate uses the log-ratio from which the loss takes its ratio, so that it is never negative.
#[test]
fn the_divergence_of_limited_ratios_is_not_negative() {
    let (offsets, mask) = ([0, 3, 4], [true, false, true, true]);
    // 5 and -5 beyond a limit of 1/2, a masked token, 1/4 within it.
    let (logprob, old) = ([-1.0, -9.0, -6.0, -1.75], [-6.0, -1.0, -1.0, -2.0]);
    let columns = Columns {
        old: Some(&old),
        ..Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&[1.0, -1.0]))
    };
    let normalisers = Normalisers { tokens: 3.0, sequences: 2.0, groups: 1.0, dp_size: 1.0 };
    let k3 = |log_ratio: f64| log_ratio.exp_m1() - log_ratio;
    let of = |importance| {
        let clip = Clip { log_ratio_limit: Some(0.5), ..Clip::verl(0.2, 0.2, 3.0) };
        let objective = Objective { policy: PolicyLoss::Clip(clip), importance, ..dapo() };
        run(&objective, &columns, &normalisers).0.metrics.old_kl_k3
    };
    let by_token = of(Importance::Token);
    assert!((by_token - (k3(0.5) + k3(-0.5) + k3(0.25)) / 3.0).abs() < 1e-14, "{by_token}");
    // The first trajectory's mean is 0.
    let by_trajectory = of(Importance::Sequence);
    assert!((by_trajectory - k3(0.25) / 3.0).abs() < 1e-14, "{by_trajectory}");
}

/// Near the old policy the k3 estimate is half the mean square of the log-ratios, also in single precision,
/// in which `ratio - 1` would leave only rounding.
#[test]
fn a_small_divergence_is_no_rounding() {
    let key = tamis_core::random::Key::new(7, tamis_core::random::Purpose::MiniBatch);
    let draw = |t: u64| key.uniform(t) - 0.5;
    for drift in [1e-3, 1e-4] {
        let old: Vec<f32> = (0..1000).map(|t| (-0.6 + 0.5 * draw(t)) as f32).collect();
        let logprob: Vec<f32> =
            (0..1000).map(|t| old[t as usize] + (drift * draw(5000 + t)) as f32).collect();
        let (offsets, mask) = ([0, 1000], vec![true; 1000]);
        let columns = Columns {
            old: Some(&old),
            ..Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&[1.0]))
        };
        let normalisers = Normalisers { tokens: 1000.0, sequences: 1.0, groups: 1.0, dp_size: 1.0 };
        let objective = dapo();
        let state = objective.initial_state();
        let found = objective.value_and_gradient(&columns, &normalisers, &state).unwrap().0.metrics.old_kl_k3;
        let gaps = logprob.iter().zip(&old).map(|(&one, &other)| f64::from(one) - f64::from(other));
        let expected = gaps.map(|gap| gap.exp_m1() - gap).sum::<f64>() / 1000.0;
        assert!((found - expected).abs() <= 0.02 * expected, "{drift}: {found}, expected {expected}");
    }
}

#[test]
fn counts_of_ranks_add_up() {
    let first = Normalisers { tokens: 6.0, sequences: 3.0, groups: 2.0, dp_size: 1.0 };
    let second = Normalisers { tokens: 10.0, sequences: 4.0, groups: 1.0, dp_size: 1.0 };
    let both = Normalisers { tokens: 16.0, sequences: 7.0, groups: 3.0, dp_size: 2.0 };
    assert_eq!(first.merge(second), both);
}

#[test]
fn what_was_not_given_is_not_reported_as_zero() {
    let (offsets, mask, logprob, advantage) = small();
    let columns = Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&advantage));
    let objective = dapo();
    let (outcome, _) = run(&objective, &columns, &SMALL);
    assert!(outcome.metrics.entropy.is_nan() && outcome.metrics.behaviour_kl.is_nan());
    assert_eq!(outcome.metrics.kl, None);
    let given = Columns { entropy: Some(&[0.5; 6]), behaviour: Some(&[-0.75; 6]), ..columns };
    let (outcome, _) = run(&objective, &given, &SMALL);
    // Without old log-probabilities the policy is its own old policy.
    assert_eq!((outcome.metrics.entropy, outcome.metrics.behaviour_kl), (0.5, 0.25));
    let older = Columns { old: Some(&[-1.5; 6]), ..given };
    let (older, _) = run(&objective, &older, &SMALL);
    assert_eq!(older.metrics.behaviour_kl, 0.75);
    // exp(-1/4) - 1 + 1/4.
    assert!((outcome.metrics.behaviour_kl_k3 - ((-0.25_f64).exp() - 0.75)).abs() < 1e-15);
}

#[test]
fn an_adaptive_coefficient_moves_with_the_divergence() {
    let term = KlTerm {
        estimator: KlEstimator::plain(KlKind::K1),
        controller: KlController::Adaptive { initial: 0.5, target: 1.0, horizon: 10.0 },
        bias_corrected: false,
    };
    let objective = Objective { kl: Some(term), ..grpo() };
    let (offsets, mask, logprob, advantage) = small();
    // d = 4 on every token: far above the target, so + 0.2 · 3 trajectories / 10.
    let reference = vec![-5.0; 6];
    let columns = Columns {
        reference: Some(&reference),
        ..Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&advantage))
    };
    let (outcome, _) = run(&objective, &columns, &SMALL);
    assert_eq!(outcome.state.kl.unwrap().coef, 0.5 * (1.0 + 0.2 * 3.0 / 10.0));
    assert_eq!(outcome.metrics.kl, Some(4.0));
    assert_eq!(outcome.metrics.kl_coef, Some(0.5));
    // -2/3 of the policy, and 4 times the coefficient.
    assert!((outcome.loss - (-2.0 / 3.0 + 4.0 * 0.5)).abs() < 1e-15);
    // The next batch uses the new coefficient.
    let (next, _) = objective.value_and_gradient(&columns, &SMALL, &outcome.state).unwrap();
    assert_eq!(next.metrics.kl_coef, outcome.state.kl.map(|kl| kl.coef));
}

#[test]
fn errors_name_what_is_wrong() {
    let (offsets, mask, logprob, advantage) = small();
    let fine = Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&advantage));
    let message = |objective: Objective, columns: Columns<'_, f64>| {
        let state = objective.initial_state();
        objective.value_and_gradient(&columns, &SMALL, &state).unwrap_err().to_string()
    };
    insta::assert_snapshot!(message(dapo(), Columns { logprob: &logprob[..5], ..fine }), @"column `logprob` has 5 values, expected 6");
    insta::assert_snapshot!(message(dapo(), Columns { old: Some(&[]), ..fine }), @"column `old` has 0 values, expected 6");
    insta::assert_snapshot!(message(dapo(), Columns { advantage: AdvantageColumn::PerTrajectory(&[1.0]), ..fine }), @"column `advantage` has 1 values, expected 3");
    insta::assert_snapshot!(message(dapo(), Columns { offsets: &[0, 4, 1, 6], ..fine }), @"offsets of trajectory 1 go backwards");
    insta::assert_snapshot!(message(dapo(), Columns { offsets: &[], ..fine }), @"column `mask` has 6 values, expected 0");
    insta::assert_snapshot!(message(grpo(), fine), @"column `reference` is missing; the KL term needs it");
    insta::assert_snapshot!(message(Objective { aggregation: Aggregation::GroupTokenMean, ..dapo() }, fine), @"column `group_tokens` is missing; aggregation `group-token-mean` needs it");
    let bonus = EntropyBonus::constant(0.1);
    insta::assert_snapshot!(message(Objective { entropy: Some(bonus), ..dapo() }, fine), @"column `entropy` is missing; the entropy bonus needs it");

    let infinite = EntropyBonus::constant(f64::INFINITY);
    insta::assert_snapshot!(message(Objective { entropy: Some(infinite), ..dapo() }, fine), @"objective setting `entropy.coef` is inf; expected a finite number");

    insta::assert_snapshot!("k4".parse::<KlEstimator>().unwrap_err(), @"unknown KL estimator `k4`; known are k1 (kl), abs, k2 (mse), k3 (low_var_kl), each also with a trailing +");
    let mask = Ragged::from_rows([vec![true]]);
    insta::assert_snapshot!(Normalisers::of(&mask, &[2]).unwrap_err(), @"column `mask` has 1 values, expected 2");

    let mut evaluation = Evaluation::default();
    dapo().evaluate(&fine, &SMALL, &dapo().initial_state(), &mut evaluation).unwrap();
    let mut accumulator = Accumulator::new(3);
    accumulator.record(0, evaluation.sequences[0]).unwrap();
    insta::assert_snapshot!(accumulator.record(0, evaluation.sequences[0]).unwrap_err(), @"trajectory 0 of an optimizer batch of 3 was recorded twice");
    insta::assert_snapshot!(accumulator.record(3, evaluation.sequences[0]).unwrap_err(), @"trajectory 3 of an optimizer batch of 3 does not exist");
}
