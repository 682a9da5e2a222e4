//! The objective at the edges of its definitions: nothing to train on, a view of a view, a value exactly at a
//! threshold.

use tamis_core::objective::{
    AdvantageColumn, Aggregation, Cispo, CispoBound, Clip, ClipCov, Columns, Decoupled, Derivatives, DppoKl,
    DppoTv, Dro, GeoMean, GroupCounts, Gspo, GspoForm, Importance, KlController, KlCov, KlEstimator, KlKind,
    KlTerm, LengthDivisors, LossMasks, Normalisers, Objective, ObjectiveMetrics, Outcome, PolicyLoss,
    Reinforce, Sapo, Selection, Vespo,
};
use tamis_core::random::{Key, Purpose};

use crate::batch::run;

const ONE: Normalisers = Normalisers { tokens: 1.0, sequences: 1.0, groups: 1.0, dp_size: 1.0 };
const CISPO: Cispo = Cispo {
    bound: CispoBound::Relative,
    clip_low: 0.2,
    clip_high: 0.2,
    max_ratio: 5.0,
    log_ratio_limit: None,
};
const DPPO_TV: DppoTv = DppoTv { clip_low: 0.5, clip_high: 0.5, max_ratio: 0.5, log_ratio_limit: None };
const DPPO_KL: DppoKl = DppoKl { clip_low: 0.5, clip_high: 0.5, max_ratio: 0.5, log_ratio_limit: None };

fn geo_mean(clip: f64) -> PolicyLoss {
    PolicyLoss::GeoMean(GeoMean { clip_low: clip, clip_high: clip, length_epsilon: 0.0, weight_epsilon: 0.0 })
}

fn reinforce(masks: LossMasks) -> Objective {
    Objective { masks, ..Objective::of(PolicyLoss::Reinforce(Reinforce {}), Aggregation::TokenSum) }
}

/// One unmasked trajectory with its log-probabilities, the old ones, and the advantage of each token.
fn row(objective: &Objective, logprob: &[f64], old: &[f64], advantage: &[f64]) -> (Outcome, Derivatives) {
    let (offsets, mask) = ([0, logprob.len()], vec![true; logprob.len()]);
    let columns = Columns {
        old: Some(old),
        ..Columns::new(&offsets, &mask, logprob, AdvantageColumn::PerToken(advantage))
    };
    run(objective, &columns, &ONE)
}

#[test]
fn nothing_has_no_extremes() {
    let objective = reinforce(LossMasks::default());
    let columns = Columns::new(&[0, 1], &[false], &[-1.0], AdvantageColumn::PerTrajectory(&[1.0]));
    let (outcome, _) = run(&objective, &columns, &ONE);
    let metrics = outcome.metrics;
    assert!(metrics.ratio_max.is_nan() && metrics.ratio_min.is_nan());
    assert!(metrics.clip_share_low_min.is_nan() && metrics.clip_share_high_max.is_nan());
}

/// Trajectories shorter and longer than a chunk of tokens, all of them far from the old policy on the same
/// side: at the limit, which is inside, and beyond it.
#[test]
fn ratios_of_tokens_that_are_all_far_off() {
    let importances = [Importance::Token, Importance::Sequence, Importance::SequenceToken];
    let cases = [(-1.0, 1.0), (1.0, 1.0), (-1.0, 0.5), (1.0, 0.5)];
    for (importance, (distance, limit)) in importances.into_iter().flat_map(|i| cases.map(|case| (i, case))) {
        let clip = Clip {
            clip_low: 1.0,
            clip_high: 10.0,
            dual_clip: None,
            delta: None,
            log_ratio_limit: Some(limit),
        };
        let objective =
            Objective { importance, ..Objective::of(PolicyLoss::Clip(clip), Aggregation::TokenSum) };
        let held = distance * limit;
        for length in [3, 8, 11, 16, 37] {
            let (old, logprob) = (vec![-3.0; length], vec![-3.0 + distance; length]);
            let (outcome, derivatives) = row(&objective, &logprob, &old, &vec![1.0; length]);
            let metrics = outcome.metrics;
            let found = [
                metrics.ratio_mean,
                metrics.ratio_min,
                metrics.ratio_max,
                metrics.old_kl_k3 + 1.0 + held,
                -outcome.loss / length as f64,
            ];
            let case = format!("{length} tokens at {distance}, limit {limit}, {importance:?}: {found:?}");
            assert!(found.iter().all(|ratio| (ratio - held.exp()).abs() < 1e-13), "{case}");
            let slope = if limit < 1.0 { 0.0 } else { -held.exp() };
            assert!(derivatives.logprob.iter().all(|found| (found - slope).abs() < 1e-13), "{case}");
        }
    }
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
    // A range outside the trajectories gives nothing.
    for range in [3..5, 5..5, std::ops::Range { start: 3, end: 2 }] {
        let none = columns.sequences(range.clone());
        assert_eq!((none.num_sequences(), none.num_tokens()), (0, 0), "{range:?}");
    }
    let empty = Columns::<f64>::new(&[], &[], &[], AdvantageColumn::PerTrajectory(&[]));
    assert_eq!((empty.sequences(0..0).num_sequences(), empty.sequences(0..1).num_tokens()), (0, 0));
}

#[test]
fn counts_that_say_nobody_is_there_divide_nothing() {
    let counts = GroupCounts { tokens: Some(0.0), sequences: Some(0.0) };
    let divisors = LengthDivisors { length_epsilon: 0.5, ..LengthDivisors::default() };
    for aggregation in [Aggregation::GroupTokenMean, Aggregation::GroupSeqMean] {
        assert_eq!(aggregation.weight(2, counts, &ONE, &divisors), Ok(0.0), "{}", aggregation.as_str());
    }
    let alone = GroupCounts { tokens: Some(1.0), sequences: Some(1.0) };
    for aggregation in [Aggregation::GroupTokenMean, Aggregation::GroupSeqMean] {
        assert_eq!(aggregation.weight(1, alone, &ONE, &divisors), Ok(1.0), "{}", aggregation.as_str());
    }
    let by_length =
        |length| Aggregation::SeqMeanTokenMean.weight(length, GroupCounts::default(), &ONE, &divisors);
    assert_eq!([by_length(0), by_length(2)], [Ok(0.0), Ok(0.4)]);
}

const VESPO: Vespo = Vespo { k_positive: 2.0, lambda_positive: 3.0, k_negative: 3.0, lambda_negative: 2.0 };

/// One of three tokens has doubled its probability, so W = 2; two are good and one is bad.
#[test]
fn the_weight_of_mixed_advantages_is_their_mean() {
    let objective = Objective::of(PolicyLoss::Vespo(VESPO), Aggregation::TokenSum);
    let (logprob, old) = ([-1.0; 3], [-1.0 - 2_f64.ln(), -1.0, -1.0]);
    let (outcome, derivatives) = row(&objective, &logprob, &old, &[1.0, -1.0, 1.0]);
    let (positive, negative) = (4.0 * (-3_f64).exp(), 8.0 * (-2_f64).exp());
    let (name, own) = outcome.metrics.own.unwrap();
    assert_eq!(name, "vespo/phi_seq_mean");
    assert!((own - (2.0 * positive + negative) / 3.0).abs() < 1e-14, "{own}");
    for (found, slope) in derivatives.logprob.iter().zip([-positive, negative, -positive]) {
        assert!((found - slope).abs() < 1e-14, "{found} {slope}");
    }
    // The loss defines the trajectory's weight itself: its ratios are reported token by token, whatever the
    // level.
    for importance in [Importance::Sequence, Importance::SequenceToken] {
        let levelled = Objective { importance, ..objective.clone() };
        let (other, _) = row(&levelled, &logprob, &old, &[1.0, -1.0, 1.0]);
        assert_eq!(other.metrics.ratio_mean, outcome.metrics.ratio_mean, "{importance:?}");
        assert!((other.metrics.ratio_mean - 4.0 / 3.0).abs() < 1e-14);
    }
}

/// A power that makes the weight of good tokens overflow has no effect on a trajectory of bad ones, including
/// masked tokens.
#[test]
fn what_overflows_for_good_tokens_is_nothing_to_bad_ones() {
    let steep = Vespo { k_positive: 1e9, ..VESPO };
    let outcome = |vespo: Vespo| {
        let objective = Objective::of(PolicyLoss::Vespo(vespo), Aggregation::TokenSum);
        let (logprob, old) = ([-1.0; 3], [-1.0 - 2_f64.ln(), -1.0, -1.0]);
        let columns = Columns {
            old: Some(&old),
            ..Columns::new(&[0, 3], &[true, true, false], &logprob, AdvantageColumn::PerTrajectory(&[-1.0]))
        };
        let (outcome, derivatives) = run(&objective, &columns, &ONE);
        (outcome.loss, derivatives.logprob)
    };
    assert!(outcome(VESPO).0.is_finite());
    assert_eq!(outcome(steep), outcome(VESPO));
}

#[test]
fn all_tokens_are_the_top_of_a_share_of_one() {
    let masked = |share| {
        let masks = LossMasks { top_entropy: Some(share), off_policy: None };
        reinforce(masks)
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

/// Covariances of 1 each: both bounds are exclusive.
#[test]
fn candidates_lie_between_the_bounds() {
    let columns =
        Columns::new(&[0, 1, 2], &[true; 2], &[-1.0, -3.0], AdvantageColumn::PerTrajectory(&[1.0, -1.0]));
    let candidates = |cov_low, cov_high| {
        ClipCov { clip_low: 0.2, clip_high: 0.2, share: 0.5, cov_low, cov_high }.candidates(&columns)
    };
    assert_eq!(candidates(0.5, 1.5), [0, 1]);
    assert_eq!((candidates(1.0, 1.5), candidates(0.5, 1.0)), (vec![], vec![]));
}

/// One of four candidates is drawn, and every one of them by some key.
#[test]
fn every_candidate_may_be_drawn() {
    let cov = ClipCov { clip_low: 0.2, clip_high: 0.2, share: 0.25, cov_low: 0.5, cov_high: 1.5 };
    let objective = Objective::of(PolicyLoss::ClipCov(cov), Aggregation::TokenSum);
    let advantage = AdvantageColumn::PerTrajectory(&[1.0, -1.0]);
    let columns = Columns::new(&[0, 2, 4], &[true; 4], &[-1.0, -1.0, -3.0, -3.0], advantage);
    let mut drawn = [0; 4];
    for seed in 0..40 {
        let flags = objective.select(&columns, Key::new(seed, Purpose::MiniBatch)).unwrap().flags;
        for (times, flags) in drawn.iter_mut().zip(flags) {
            *times += usize::from(flags == Selection::BY_COVARIANCE);
        }
    }
    assert_eq!(drawn.iter().sum::<usize>(), 40);
    assert!(drawn.iter().all(|times| *times > 0), "{drawn:?}");
}

/// Metrics and derivative of one token.
fn one(policy: PolicyLoss, logprob: f64, old: f64, advantage: f64) -> (ObjectiveMetrics, f64) {
    let objective = Objective::of(policy, Aggregation::TokenSum);
    let (logprob, old, advantage) = ([logprob], [old], [advantage]);
    let columns = Columns {
        old: Some(&old),
        selection: Some(&[0]),
        ..Columns::new(&[0, 1], &[true], &logprob, AdvantageColumn::PerTrajectory(&advantage))
    };
    let (outcome, derivatives) = run(&objective, &columns, &ONE);
    (outcome.metrics, derivatives.logprob[0])
}

/// Bounds of 0: the old policy itself is within them, and its token is trained.
#[test]
fn the_bound_itself_is_inside() {
    let cispo =
        |bound| PolicyLoss::Cispo(Cispo { bound, clip_low: 0.0, clip_high: 0.0, max_ratio: 1.0, ..CISPO });
    for policy in [
        PolicyLoss::Clip(Clip::symmetric(0.0)),
        PolicyLoss::Clip(Clip { delta: Some(1.0 + f64::EPSILON), ..Clip::symmetric(0.0) }),
        PolicyLoss::Gspo(Gspo {
            clip_low: 0.0,
            clip_high: 0.0,
            form: GspoForm::Sequence,
            log_ratio_limit: None,
        }),
        geo_mean(0.0),
        cispo(CispoBound::Relative),
        cispo(CispoBound::Absolute),
        PolicyLoss::DppoTv(DppoTv { clip_low: 0.0, clip_high: 0.0, max_ratio: 1.0, ..DPPO_TV }),
        PolicyLoss::DppoKl(DppoKl { clip_low: 0.0, clip_high: 0.0, max_ratio: 1.0, ..DPPO_KL }),
    ] {
        for advantage in [1.0, -1.0] {
            let (metrics, slope) = one(policy.clone(), -1.0, -1.0, advantage);
            assert_eq!(slope, -advantage, "{policy:?}");
            let shares = [
                metrics.clip_share,
                metrics.clip_share_dual,
                metrics.clip_share_low,
                metrics.clip_share_high,
            ];
            assert_eq!(shares, [0.0; 4], "{policy:?} {advantage}");
        }
    }
    // The high bound equals the cap: nothing is clipped that would not be capped.
    let clip = Clip { delta: Some(1.5), ..Clip::symmetric(0.5) };
    let token = clip.token(1.0, 1.0);
    assert_eq!((token.loss, token.dloss, token.is_clipped, token.is_high), (-1.5, 0.0, false, false));
    // The dual bound equals the cap: both are 2, and of two equal values neither is the smaller.
    let clip = Clip { delta: Some(2.0), dual_clip: Some(2.0), ..Clip::symmetric(0.2) };
    let token = clip.token(1.0, -1.0);
    assert_eq!((token.loss, token.is_dual), (2.0, false));
    let limited =
        Gspo { clip_low: 0.2, clip_high: 0.2, form: GspoForm::Sequence, log_ratio_limit: Some(1.0) };
    assert!((one(PolicyLoss::Gspo(limited), -1.0, -2.0, -1.0).1 - 1_f64.exp()).abs() < 1e-14);
    assert_eq!(one(PolicyLoss::Gspo(limited), -1.0, -2.01, -1.0).1, 0.0);
}

#[test]
fn clipped_tokens_are_counted_by_side() {
    let cispo = PolicyLoss::Cispo(CISPO);
    for policy in [PolicyLoss::Clip(Clip::symmetric(0.2)), cispo.clone(), geo_mean(0.2)] {
        for (old, advantage, low, high) in [
            (-2.0, 1.0, 0.0, 1.0),
            (-2.0, -1.0, 0.0, 0.0),
            (-2.0, 0.0, 0.0, 0.0),
            (-0.5, 1.0, 0.0, 0.0),
            (-0.5, -1.0, 1.0, 0.0),
            (-0.5, 0.0, 0.0, 0.0),
        ] {
            let (metrics, _) = one(policy.clone(), -1.0, old, advantage);
            let found = (metrics.clip_share_low, metrics.clip_share_high);
            assert_eq!(found, (low, high), "{policy:?} {old} {advantage}");
        }
    }
    // CISPO bounds its weight whatever the advantage.
    for (old, advantage) in [(-2.0, 1.0), (-2.0, -1.0), (-0.5, 1.0), (-0.5, -1.0)] {
        assert_eq!(one(cispo.clone(), -1.0, old, advantage).0.clip_share, 1.0);
    }
}

#[test]
fn masked_tokens_are_not_counted() {
    let cispo = Cispo { bound: CispoBound::Absolute, max_ratio: 0.5, ..CISPO };
    for (policy, expected) in [
        (PolicyLoss::Cispo(cispo), (1.0, 0.0)),
        (PolicyLoss::DppoTv(DPPO_TV), (0.0, 1.0)),
        (PolicyLoss::DppoKl(DPPO_KL), (0.0, 1.0)),
    ] {
        for mask in [
            &[true][..],
            &[true, false, true],
            &[true; 8],
            &[false, true, true, true, false, true, true, true, true],
        ] {
            let objective = Objective::of(policy.clone(), Aggregation::TokenSum);
            let logprob = vec![-1.0; mask.len()];
            let offsets = [0, mask.len()];
            let columns = Columns {
                old: Some(&logprob),
                ..Columns::new(&offsets, mask, &logprob, AdvantageColumn::PerTrajectory(&[1.0]))
            };
            let (outcome, _) = run(&objective, &columns, &ONE);
            let found = (outcome.metrics.clip_share, outcome.metrics.clip_share_dual);
            assert_eq!(found, expected, "{policy:?} {mask:?}");
        }
    }
}

#[test]
fn divergences_of_certain_tokens() {
    let dppo =
        |low, high| PolicyLoss::DppoKl(DppoKl { clip_low: low, clip_high: high, max_ratio: 3.0, ..DPPO_KL });
    let half = 0.5_f64.ln();
    // From 1 to 1/2: ln 2.
    assert_eq!(one(dppo(0.69, 0.2), half, 0.0, -1.0).1, 0.0);
    assert_eq!(one(dppo(0.70, 0.2), half, 0.0, -1.0).1, 0.5);
    // From 1/2 to 1: ln(1/2)/2 + ln(1/2 · 1e8)/2 = 8.5.
    assert_eq!(one(dppo(0.2, 8.0), 0.0, half, 1.0).1, 0.0);
    assert!((one(dppo(0.2, 9.0), 0.0, half, 1.0).1 + 2.0).abs() < 1e-14);
}

/// A good token whose probability has doubled, bounded at 0.4; one without advantage moves nothing, wherever
/// it is.
#[test]
fn the_geometric_mean_of_held_ratios() {
    let policy = geo_mean(0.4);
    let two = 2_f64.ln();
    let (metrics, _) = one(policy.clone(), -1.0, -1.0 - two, 1.0);
    assert!((metrics.ratio_mean - 0.4_f64.exp()).abs() < 1e-15);
    // The divergence is that of the policies, not of the bounded ratio: 2 - 1 - ln 2.
    assert!((metrics.old_kl_k3 - (1.0 - two)).abs() < 1e-14, "{}", metrics.old_kl_k3);
    let objective = Objective::of(policy, Aggregation::TokenSum);
    // For two tokens, one unmoved, it is that of their mean ratio √2, for each of them.
    let (outcome, _) = row(&objective, &[-1.0; 2], &[-1.0 - two, -1.0], &[1.0; 2]);
    let expected = 2_f64.sqrt() - 1.0 - two / 2.0;
    assert!((outcome.metrics.old_kl_k3 - expected).abs() < 1e-14, "{}", outcome.metrics.old_kl_k3);
    for (first, second) in [(1.0, 0.0), (-1.0, 0.0)] {
        let advantage = [first, second];
        let old = [-1.0, -1.0 - second - two * first];
        let (outcome, derivatives) = row(&objective, &[-1.0; 2], &old, &advantage);
        assert_eq!(outcome.metrics.ratio_mean, 1.0, "{advantage:?}");
        assert_eq!(derivatives.logprob, [-0.5 * first, 0.0], "{advantage:?}");
    }
}

#[test]
fn a_mean_over_no_token_is_one() {
    let policy = geo_mean(0.4);
    let objective = Objective::of(policy, Aggregation::TokenSum);
    let columns = Columns {
        old: Some(&[-2.0, -1.5]),
        selection: Some(&[Selection::LEFT_OUT; 2]),
        ..Columns::new(&[0, 2], &[true; 2], &[-1.0; 2], AdvantageColumn::PerTrajectory(&[1.0]))
    };
    let (outcome, _) = run(&objective, &columns, &ONE);
    assert_eq!((outcome.metrics.ratio_mean, outcome.metrics.ratio_max), (1.0, 1.0));
}

#[test]
fn a_penalty_is_no_push() {
    // Far off-policy, and without an advantage: the pull towards the old policy stays.
    let masks = LossMasks { top_entropy: None, off_policy: Some(0.5) };
    let objective =
        Objective { masks, ..Objective::of(PolicyLoss::Dro(Dro { beta: 0.5 }), Aggregation::TokenSum) };
    for (advantage, slope) in [(0.0, -0.5), (-1.0, 0.0), (1.0, -1.5)] {
        let (_, derivatives) = row(&objective, &[-2.0], &[-1.0], &[advantage]);
        assert_eq!(derivatives.logprob, [slope], "{advantage:?}");
    }
}

#[test]
fn tokens_that_pay_for_their_distance_are_counted() {
    let objective =
        Objective::of(PolicyLoss::KlCov(KlCov { share: 0.5, cov_coefficient: 1.0 }), Aggregation::TokenSum);
    let columns = Columns {
        selection: Some(&[Selection::BY_COVARIANCE, 0, 0, Selection::BY_COVARIANCE]),
        ..Columns::new(
            &[0, 4],
            &[true, true, true, false],
            &[-1.0; 4],
            AdvantageColumn::PerTrajectory(&[1.0]),
        )
    };
    let (outcome, _) = run(&objective, &columns, &ONE);
    assert_eq!(outcome.metrics.clip_share, 1.0 / 3.0);
}

/// At d of 0, 1 and -3 under each estimator: values 0, 1, -3; 0, 1, 3; 0, 1/2, 9/2; 0, 1/e, e^3 - 4, or
/// bounded at 10.
#[test]
fn divergences_by_hand() {
    let e = 1_f64.exp();
    let (grown, held) = (3_f64.exp() - 4.0, 10.0);
    let k3 = [0.0, 1.0 - 1.0 / e, 1.0 - 3_f64.exp()];
    for (kind, clamped, values, slopes) in [
        (KlKind::K1, true, [0.0, 1.0, -3.0], [1.0, 1.0, 1.0]),
        (KlKind::Abs, true, [0.0, 1.0, 3.0], [0.0, 1.0, -1.0]),
        (KlKind::K2, true, [0.0, 0.5, 4.5], [0.0, 1.0, -3.0]),
        (KlKind::K3, false, [0.0, 1.0 / e, grown], k3),
        (KlKind::K3, true, [0.0, 1.0 / e, held], [k3[0], k3[1], 0.0]),
    ] {
        let estimator = KlEstimator { kind, straight_through: false, clamped };
        let kl = KlTerm { estimator, controller: KlController::Fixed { coef: 0.5 }, bias_corrected: false };
        let objective = Objective { kl: Some(kl), ..reinforce(LossMasks::default()) };
        let columns = Columns {
            reference: Some(&[-4.0, -5.0, -1.0]),
            ..Columns::new(&[0, 3], &[true; 3], &[-4.0; 3], AdvantageColumn::PerTrajectory(&[0.0]))
        };
        let (outcome, derivatives) = run(&objective, &columns, &ONE);
        let total: f64 = values.iter().sum();
        assert!((outcome.metrics.kl_loss.unwrap() - total).abs() < 1e-13, "{estimator:?}");
        for (found, slope) in derivatives.logprob.iter().zip(slopes) {
            assert!((found - 0.5 * slope).abs() < 1e-13, "{estimator:?}: {found} {slope}");
        }
    }
}

#[test]
fn a_shut_gate_pushes_nothing() {
    let sapo = |tau, log_ratio_limit| {
        PolicyLoss::Sapo(Sapo { tau_positive: tau, tau_negative: tau, log_ratio_limit })
    };
    for advantage in [1.0, -1.0] {
        let slopes = [
            one(sapo(1.0, None), -1.0, -900.0, advantage).1,
            one(sapo(1000.0, None), -11.0, -1.0, advantage).1,
        ];
        assert_eq!(slopes, [0.0; 2]);
    }
    // The limit itself is inside: r = e, gate 1/(1 + exp(-(e - 1))).
    let gate = 1.0 / (1.0 + (1.0 - 1_f64.exp()).exp());
    let slope = one(sapo(1.0, Some(1.0)), -1.0, -2.0, 1.0).1;
    assert!((slope + 4.0 * gate * (1.0 - gate) * 1_f64.exp()).abs() < 1e-14, "{slope}");
    assert_eq!(one(sapo(1.0, Some(1.0)), -1.0, -2.01, 1.0).1, 0.0);
}

#[test]
fn an_unknown_sampler_is_the_proximal_policy() {
    let decoupled = |weight_cap| Decoupled {
        clip_low: 0.2,
        clip_high: 0.2,
        dual_clip: None,
        weight_cap,
        log_ratio_limit: None,
    };
    let policy = PolicyLoss::Decoupled(decoupled(Some(1.5)));
    let objective = Objective::of(policy, Aggregation::TokenSum);
    let columns = Columns {
        old: Some(&[-1.0; 4]),
        behaviour: Some(&[f64::NAN, -1.0 + 2_f64.ln(), -9.0, f64::NAN]),
        ..Columns::new(
            &[0, 4],
            &[true, true, true, false],
            &[-1.0; 4],
            AdvantageColumn::PerTrajectory(&[1.0]),
        )
    };
    let (_, derivatives) = run(&objective, &columns, &ONE);
    for (found, slope) in derivatives.logprob.iter().zip([-1.0, -0.5, -1.5, 0.0]) {
        assert!((found - slope).abs() < 1e-14, "{found} {slope}");
    }
    // A sampler that considered a token impossible leaves a finite weight: without an advantage the token
    // contributes nothing.
    let policy = PolicyLoss::Decoupled(decoupled(None));
    let objective = Objective::of(policy, Aggregation::TokenSum);
    let columns = Columns {
        old: Some(&[-1.0_f32]),
        behaviour: Some(&[-9999.0]),
        ..Columns::new(&[0, 1], &[true], &[-1.0], AdvantageColumn::PerTrajectory(&[0.0]))
    };
    let state = objective.initial_state();
    let (outcome, derivatives) = objective.value_and_gradient(&columns, &ONE, &state).unwrap();
    assert_eq!((outcome.loss, derivatives.logprob), (0.0, vec![0.0]));
}
