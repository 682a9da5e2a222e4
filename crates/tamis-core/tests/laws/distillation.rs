//! Distillation in the loss: cases by hand, and laws of the divergence over candidates.

use proptest::prelude::*;
use tamis_core::objective::{
    AdvantageColumn, Aggregation, CandidateColumns, Columns, Derivatives, Distillation, DistillationRest,
    Normalisers, Objective, PolicyLoss, Reinforce,
};

fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let sum = logits.iter().map(|z| z.exp()).sum::<f64>().ln();
    logits.iter().map(|z| z - sum).collect()
}

fn divergence(settings: Distillation, policy: &[f64], teacher: &[f64]) -> f64 {
    settings.token(policy, teacher, &mut vec![0.0; policy.len()]).divergence
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-9 * expected.abs().max(1.0)
}

fn of(logs: [f64; 2]) -> [f64; 2] {
    logs.map(f64::ln)
}

#[test]
fn two_candidates_by_hand() {
    // The policy has 1/2 and 1/4 of the candidates, the teacher 1/8 and 1/8.
    let (policy, teacher) = (of([0.5, 0.25]), of([0.125, 0.125]));
    let with =
        |beta, rest| divergence(Distillation { beta, rest, ..Distillation::default() }, &policy, &teacher);
    let ln = f64::ln;
    // Forward: the rest has 1/4 and 3/4.
    let expected = 0.125 * ln(0.25) + 0.125 * ln(0.5) + 0.75 * ln(3.0);
    assert!(close(with(0.0, DistillationRest::Bucket), expected));
    // Reverse.
    let expected = 0.5 * ln(4.0) + 0.25 * ln(2.0) + 0.25 * ln(1.0 / 3.0);
    assert!(close(with(1.0, DistillationRest::Bucket), expected));
    // By their sums, 2/3 and 1/3 of the policy, 1/2 and 1/2 of the teacher.
    let expected = 0.5 * ln(0.75) + 0.5 * ln(1.5);
    assert!(close(with(0.0, DistillationRest::Renormalized), expected));
    // Half of both: m is 7/12 and 5/12.
    let teachers = 0.5 * ln(6.0 / 7.0) + 0.5 * ln(6.0 / 5.0);
    let policies = 2.0 / 3.0 * ln(8.0 / 7.0) + 1.0 / 3.0 * ln(4.0 / 5.0);
    assert!(close(with(0.5, DistillationRest::Renormalized), 0.5 * teachers + 0.5 * policies));
    // As they are.
    let expected = 0.5 * ln(4.0) + 0.25 * ln(2.0);
    assert!(close(with(1.0, DistillationRest::Ignored), expected));
    assert_eq!(with(0.0, DistillationRest::Ignored), 0.0);
}

#[test]
fn bounds_end_the_gradient() {
    let settings = Distillation { rest: DistillationRest::Ignored, ..Distillation::default() };
    let (policy, teacher) = (of([0.01, 0.5]), of([0.5, 0.25]));
    let mut slopes = [0.0; 2];
    let free = settings.token(&policy, &teacher, &mut slopes);
    assert!(close(free.divergence, 0.5 * 50_f64.ln() + 0.25 * 0.5_f64.ln()));
    assert_eq!(slopes.map(|slope| (slope * 1e9).round() / 1e9), [-0.5, -0.25]);
    // The first candidate counts as e^-2, and no longer moves.
    let held = Distillation { min_logprob: Some(-2.0), ..settings }.token(&policy, &teacher, &mut slopes);
    assert!(close(held.divergence, 0.5 * (0.5_f64.ln() + 2.0) + 0.25 * 0.5_f64.ln()));
    assert_eq!((slopes[0], (slopes[1] * 1e9).round() / 1e9), (0.0, -0.25));
    let clipped = Distillation { clip: Some(0.5), ..settings }.token(&policy, &teacher, &mut slopes);
    assert_eq!((clipped.divergence, slopes), (0.5, [0.0; 2]));
    assert!(close(clipped.policy_mass, 0.51) && close(clipped.teacher_mass, 0.75));
}

#[test]
fn no_candidate_is_no_divergence() {
    let settings = Distillation::default();
    let mut slopes = [1.0; 2];
    let found = settings.token(&of([0.5, 0.25]), &[f64::NEG_INFINITY; 2], &mut slopes);
    assert_eq!((found.divergence, slopes, found.teacher_mass), (0.0, [0.0; 2], 0.0));
    // One that is none beside one that is.
    let one = settings.token(&of([0.5, 0.25]), &[f64::NEG_INFINITY, 0.25_f64.ln()], &mut slopes);
    assert_eq!((one.divergence, slopes[0]), (0.0, 0.0));
}

fn objective(distillation: Distillation) -> Objective {
    Objective {
        distillation: Some(distillation),
        ..Objective::of(PolicyLoss::Reinforce(Reinforce::default()), Aggregation::TokenMean)
    }
}

/// Two trajectories, of two tokens and one, the second of which is masked.
fn evaluate(
    objective: &Objective,
    logprob: &[f64],
    candidates: CandidateColumns<'_, f64>,
) -> (tamis_core::objective::Outcome, Derivatives) {
    let normalisers = Normalisers { tokens: 2.0, sequences: 2.0, groups: 1.0, dp_size: 1.0 };
    let columns = Columns {
        candidates: Some(candidates),
        ..Columns::new(
            &[0, 2, 3],
            &[true, false, true],
            logprob,
            AdvantageColumn::PerTrajectory(&[3.0, -1.0]),
        )
    };
    objective.value_and_gradient(&columns, &normalisers, &objective.initial_state()).unwrap()
}

#[test]
fn the_term_is_added_to_the_policy_loss_or_stands_alone() {
    let logprob = [0.5_f64.ln(), f64::NAN, 0.25_f64.ln()];
    let ones = [0.5_f64.ln(), f64::NAN, 0.5_f64.ln()];
    let teacher = [0.25_f64.ln(), f64::NAN, 0.5_f64.ln()];
    let sampled = [f64::NEG_INFINITY, f64::NAN, 0.5_f64.ln()];
    let candidates =
        CandidateColumns { per_token: 1, logprob: &ones, teacher: &teacher, sampled: Some(&sampled) };
    let first = 0.25 * 0.5_f64.ln() + 0.75 * 1.5_f64.ln();
    let beside = Distillation { top_k: 1, coefficient: 2.0, ..Distillation::default() };
    let (outcome, slopes) = evaluate(&objective(beside), &logprob, candidates);
    let metrics = outcome.metrics.distillation.unwrap();
    // The third token's candidate is where the teacher has it.
    assert!(close(metrics.divergence, 0.5 * first) && close(metrics.loss, 0.5 * first));
    assert!(close(metrics.policy_mass, 0.5) && close(metrics.teacher_mass, 0.375));
    assert!(close(outcome.loss, outcome.metrics.policy_loss + first));
    let slopes_of_candidates = slopes.candidates.iter().map(|slope| (slope * 1e9).round() / 1e9);
    assert_eq!(slopes_of_candidates.collect::<Vec<_>>(), [0.5, 0.0, 0.0]);
    assert_eq!(slopes.logprob, [-1.5, 0.0, 0.5]);

    let alone = Distillation { advantages: false, ..beside };
    let (outcome, slopes) = evaluate(&objective(alone), &logprob, candidates);
    assert_eq!(outcome.metrics.policy_loss, 0.0);
    assert!(close(outcome.loss, first));
    assert_eq!(slopes.logprob, [0.0; 3]);

    // The sampled token of the third place is 1/4 of the policy's and 1/2 of the teacher's: with it nothing
    // is left for the teacher.
    let sampled_too = Distillation { sampled: true, ..alone };
    let (with_sampled, slopes) = evaluate(&objective(sampled_too), &logprob, candidates);
    assert!(with_sampled.loss > outcome.loss && slopes.logprob[2] != 0.0 && slopes.logprob[0] == 0.0);
    let without = CandidateColumns { sampled: None, ..candidates };
    let columns = Columns {
        candidates: Some(without),
        ..Columns::new(&[0, 3], &[true; 3], &logprob, AdvantageColumn::PerTrajectory(&[1.0]))
    };
    let normalisers = Normalisers { tokens: 2.0, sequences: 1.0, groups: 1.0, dp_size: 1.0 };
    let refused = |objective: Objective, columns: Columns<'_, f64>| {
        objective
            .value_and_gradient(&columns, &normalisers, &objective.initial_state())
            .unwrap_err()
            .to_string()
    };
    insta::assert_snapshot!(refused(objective(sampled_too), columns), @"column `candidates.sampled` is missing; a distillation that compares the sampled token needs it");
    insta::assert_snapshot!(refused(objective(alone), Columns { candidates: None, ..columns }), @"column `candidates` is missing; the distillation in the loss needs it");
    let nothing = Distillation { top_k: 0, ..alone };
    insta::assert_snapshot!(refused(objective(nothing), columns), @"`distillation.top_k` is 0 and `distillation.sampled` is false: no token is compared");
}

fn rows() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
    (2..7_usize).prop_flat_map(|size| {
        let row = || prop::collection::vec(-3.0..3.0_f64, size);
        (row(), row())
    })
}

fn any_rest() -> impl Strategy<Value = DistillationRest> {
    prop::sample::select(DistillationRest::ALL)
}

fn any_beta() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(1.0), 0.05..0.95_f64]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// With every token a candidate it is the divergence of the whole distributions, whatever `rest` is.
    #[test]
    fn all_candidates_are_the_whole((policy, teacher) in rows(), beta in any_beta(), rest in any_rest()) {
        let (p, q) = (log_softmax(&policy), log_softmax(&teacher));
        let mean = |weights: &[f64], ratio: &dyn Fn(usize) -> f64| {
            (0..p.len()).map(|v| weights[v].exp() * ratio(v)).sum::<f64>()
        };
        let m = |v: usize| (beta * q[v].exp() + (1.0 - beta) * p[v].exp()).ln();
        let expected = if beta == 0.0 {
            mean(&q, &|v| q[v] - p[v])
        } else if beta == 1.0 {
            mean(&p, &|v| p[v] - q[v])
        } else {
            beta * mean(&q, &|v| q[v] - m(v)) + (1.0 - beta) * mean(&p, &|v| p[v] - m(v))
        };
        let found = divergence(Distillation { beta, rest, ..Distillation::default() }, &p, &q);
        prop_assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }

    /// A teacher that is the policy has no divergence and no gradient; any other has one above 0.
    #[test]
    fn equal_ones_do_not_diverge((policy, teacher) in rows(), beta in any_beta(), rest in any_rest()) {
        let (p, q) = (log_softmax(&policy), log_softmax(&teacher));
        let settings = Distillation { beta, rest, ..Distillation::default() };
        let k = p.len() - 1;
        let mut slopes = vec![0.0; k];
        let same = settings.token(&p[..k], &p[..k], &mut slopes);
        prop_assert!(same.divergence.abs() < 1e-12);
        if rest == DistillationRest::Bucket || rest == DistillationRest::Renormalized {
            prop_assert!(slopes.iter().all(|slope| slope.abs() < 1e-9), "{slopes:?}");
            prop_assert!(divergence(settings, &p[..k], &q[..k]) > -1e-12);
        }
    }

    /// The divergence between the two ends comes near them: divided by beta it is the forward, by 1 - beta
    /// the reverse one.
    #[test]
    fn the_ends_are_limits((policy, teacher) in rows(), rest in any_rest()) {
        let (p, q) = (log_softmax(&policy), log_softmax(&teacher));
        let with = |beta| divergence(Distillation { beta, rest, ..Distillation::default() }, &p, &q);
        let near = 1e-6;
        let (forward, reverse) = (with(0.0), with(1.0));
        prop_assert!((with(near) / near - forward).abs() < 1e-3 * forward.max(1.0));
        prop_assert!((with(1.0 - near) / near - reverse).abs() < 1e-3 * reverse.max(1.0));
    }

    /// Exchanging candidates exchanges their derivatives, and changes nothing else.
    #[test]
    fn order_does_not_matter((policy, teacher) in rows(), beta in any_beta(), rest in any_rest()) {
        let (p, q) = (log_softmax(&policy), log_softmax(&teacher));
        let k = p.len() - 1;
        let settings = Distillation { beta, rest, ..Distillation::default() };
        let backwards = |row: &[f64]| row[..k].iter().rev().copied().collect::<Vec<f64>>();
        let (mut one, mut other) = (vec![0.0; k], vec![0.0; k]);
        let first = settings.token(&p[..k], &q[..k], &mut one);
        let second = settings.token(&backwards(&p), &backwards(&q), &mut other);
        prop_assert!(close(first.divergence, second.divergence));
        other.reverse();
        prop_assert!(one.iter().zip(&other).all(|(one, other)| close(*one, *other)));
    }

    /// The derivative by every logit is the central difference.
    #[test]
    fn the_gradient_is_the_central_difference(
        (policy, teacher) in rows(),
        beta in any_beta(),
        rest in any_rest(),
        all in any::<bool>(),
    ) {
        let q = log_softmax(&teacher);
        // Of all tokens, the rest has no probability to lose.
        let k = if all && rest != DistillationRest::Bucket { q.len() } else { q.len() - 1 };
        let settings = Distillation { beta, rest, ..Distillation::default() };
        let value = |logits: &[f64]| divergence(settings, &log_softmax(logits)[..k], &q[..k]);
        let p = log_softmax(&policy);
        let mut slopes = vec![0.0; k];
        let found = settings.token(&p[..k], &q[..k], &mut slopes);
        // Where a divergence turns from below 0, it has two slopes.
        prop_assume!(rest != DistillationRest::Ignored || found.divergence == 0.0 || found.divergence > 1e-3);
        let total: f64 = slopes.iter().sum();
        for place in 0..policy.len() {
            let analytic = slopes.get(place).copied().unwrap_or(0.0) - p[place].exp() * total;
            let moved = |by: f64| {
                let mut logits = policy.clone();
                logits[place] += by;
                value(&logits)
            };
            let step = 1e-5;
            let numeric = (moved(step) - moved(-step)) / (2.0 * step);
            prop_assert!(
                (analytic - numeric).abs() < 1e-6 || found.divergence == 0.0 && numeric >= 0.0,
                "{place}: {analytic} {numeric}"
            );
        }
    }
}
