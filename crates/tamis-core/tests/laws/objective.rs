//! Laws of the objective.

use proptest::prelude::*;
use tamis_core::objective::{
    Accumulator, AdvantageColumn, Aggregation, CispoBound, Clip, ClipCov, Columns, Derivatives, EntropyBonus,
    Evaluation, GroupCounts, Gspo, GspoForm, Importance, KlController, KlCov, KlEstimator, KlKind, KlTerm,
    LengthDivisors, LossMasks, Normalisers, Objective, Outcome, PolicyLoss, Reinforce, Selection,
};
use tamis_core::ragged::Ragged;

use crate::batch::{Batch, Gathered, batch, objective};

/// DAPO as released: clip 0.2/0.28, dual clip 10, token mean.
fn dapo() -> Objective {
    Objective::of(PolicyLoss::Clip(Clip::verl(0.2, 0.28, 10.0)), Aggregation::TokenMean)
}

/// GRPO: clip 0.2, trajectory mean, k3 with 0.04.
fn grpo() -> Objective {
    let kl = KlTerm {
        estimator: KlEstimator { clamped: true, ..KlEstimator::plain(KlKind::K3) },
        controller: KlController::Fixed { coef: 0.04 },
        bias_corrected: false,
    };
    let aggregation = Aggregation::SeqMeanTokenMean;
    Objective { kl: Some(kl), ..Objective::of(PolicyLoss::Clip(Clip::symmetric(0.2)), aggregation) }
}

/// The same settings without anything that is held constant where it is differentiated: the derivative is
/// that of the value.
fn without_constants(mut objective: Objective) -> Objective {
    match &mut objective.policy {
        PolicyLoss::Gspo(loss) => loss.form = GspoForm::Sequence,
        PolicyLoss::Cispo(_) | PolicyLoss::DppoTv(_) | PolicyLoss::DppoKl(_) | PolicyLoss::Vespo(_) => {
            objective.policy = PolicyLoss::Clip(Clip::symmetric(0.2));
        }
        _ => {}
    }
    if objective.importance == Importance::SequenceToken {
        objective.importance = Importance::Sequence;
    }
    if let Some(term) = &mut objective.kl {
        term.estimator.straight_through = false;
    }
    objective
}

/// Log-probability less the old one, of some tokens.
fn log_ratios(gathered: &Gathered, tokens: impl Iterator<Item = usize>) -> impl Iterator<Item = f64> {
    tokens.map(|t| gathered.columns[0][t] - gathered.columns[1][t])
}

/// What a token is weighed with by a loss that holds its weight constant, written as its paper writes it, times
/// the weight of the correction. `None`: the loss is differentiated through its ratio, and its derivative is a
/// central difference. `tokens` are those of the trajectory.
fn constant_weight(
    objective: &Objective,
    gathered: &Gathered,
    tokens: &[usize],
    t: usize,
    advantage: f64,
) -> Option<f64> {
    let [logprob, old, .., weight] = &gathered.columns;
    let all = || log_ratios(gathered, tokens.iter().copied());
    let log_ratio = match objective.importance {
        Importance::Token => logprob[t] - old[t],
        Importance::Sequence | Importance::SequenceToken => all().sum::<f64>() / tokens.len() as f64,
    };
    let ratio = |limit: Option<f64>| limit.map_or(log_ratio, |limit| log_ratio.clamp(-limit, limit)).exp();
    // Probabilities of the token, before and now.
    let (before, now) = (old[t].exp(), logprob[t].exp());
    let of_token = match &objective.policy {
        PolicyLoss::Reinforce(_) | PolicyLoss::Gpg(_) => 1.0,
        PolicyLoss::Cispo(loss) => match loss.bound {
            CispoBound::Relative => {
                ratio(loss.log_ratio_limit).clamp(1.0 - loss.clip_low, 1.0 + loss.clip_high)
            }
            CispoBound::Absolute => ratio(loss.log_ratio_limit).min(loss.max_ratio),
        },
        PolicyLoss::DppoTv(loss) => {
            let is_held =
                if advantage > 0.0 { now - before > loss.clip_high } else { before - now > loss.clip_low };
            if is_held { 0.0 } else { ratio(loss.log_ratio_limit).min(loss.max_ratio) }
        }
        PolicyLoss::DppoKl(loss) => {
            let others = ((1.0 - before + 1e-8) / (1.0 - now + 1e-8)).ln();
            let divergence = before * (before / now).ln() + (1.0 - before) * others;
            let is_held = if advantage > 0.0 {
                now > before && divergence > loss.clip_high
            } else {
                now < before && divergence > loss.clip_low
            };
            if is_held { 0.0 } else { ratio(loss.log_ratio_limit).min(loss.max_ratio) }
        }
        PolicyLoss::Vespo(loss) => {
            // The correction is a factor of the trajectory's weight, and of nothing else.
            let corrections = tokens.iter().map(|&t| weight[t].ln()).sum::<f64>();
            let log_weight = (all().sum::<f64>() + corrections).clamp(1e-8_f64.ln(), 20.0);
            let (k, lambda) = if advantage >= 0.0 {
                (loss.k_positive, loss.lambda_positive)
            } else {
                (loss.k_negative, loss.lambda_negative)
            };
            return Some((k * log_weight + lambda * (1.0 - log_weight.exp())).exp());
        }
        _ => return None,
    };
    Some(of_token * weight[t])
}

fn evaluate(objective: &Objective, gathered: &Gathered, normalisers: &Normalisers) -> (Outcome, Derivatives) {
    objective.value_and_gradient(&gathered.columns(), normalisers, &objective.initial_state()).unwrap()
}

fn loss(objective: &Objective, gathered: &Gathered, normalisers: &Normalisers) -> f64 {
    evaluate(objective, gathered, normalisers).0.loss
}

/// One column of the derivatives.
type Column = fn(&Derivatives) -> &[f64];

/// The bits of everything, NaN equal to NaN.
fn bits(outcome: &Outcome) -> Vec<u64> {
    let metrics = outcome.metrics.named().into_iter().map(|(_, value)| value.to_bits());
    std::iter::once(outcome.loss.to_bits())
        .chain(metrics)
        .chain(outcome.state.kl.map(|kl| kl.coef.to_bits()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn derivatives_are_central_differences(objective in objective(), batch in batch(), probes in any::<u64>()) {
        let objective = without_constants(objective);
        let mut gathered = batch.whole();
        let (outcome, derivatives) = evaluate(&objective, &gathered, &batch.normalisers);
        let value = outcome.loss;
        // Log-probability and entropy: their place among the columns.
        let analytic = [(0, &derivatives.logprob), (4, &derivatives.entropy)];
        let probes = tamis_core::random::Key::new(probes, tamis_core::random::Purpose::Bootstrap).permutation(gathered.mask.len());
        for (column, derivative) in analytic {
            for &t in probes.iter().take(12).filter(|&&t| t < derivative.len()) {
                let derivative = derivative[t];
                let at = gathered.columns[column][t];
                let mut difference = |step: f64| {
                    gathered.columns[column][t] = at + step;
                    let high = loss(&objective, &gathered, &batch.normalisers);
                    gathered.columns[column][t] = at - step;
                    let low = loss(&objective, &gathered, &batch.normalisers);
                    gathered.columns[column][t] = at;
                    ((high - low) / (2.0 * step), high, low)
                };
                let step = 1e-5;
                let (slope, high, low) = difference(step);
                // At a kink the two sides differ; there any value between them is a derivative.
                let (left, right) = ((value - low) / step, (high - value) / step);
                let tolerance = 1e-6 * (1.0 + slope.abs());
                if (left - right).abs() < 1e-3 * (1.0 + slope.abs()) {
                    // A kink of one token among many is as slight as that.
                    prop_assert!((slope - derivative).abs() <= (left - right).abs() + tolerance * 10.0,
                        "column {} token {}: {} against {}", column, t, derivative, slope);
                } else {
                    let (least, most) = (left.min(right) - 1e-3, left.max(right) + 1e-3);
                    prop_assert!((least..=most).contains(&derivative),
                        "column {} token {}: {} outside {}..{}", column, t, derivative, least, most);
                }
            }
        }
    }

    /// Where the weight is a constant the loss is `-A·w·logprob` and its derivative `-A·w`, with the weight of
    /// the loss's formula.
    #[test]
    fn a_constant_weight_is_that_of_the_formula(objective in objective(), batch in batch()) {
        if objective.policy.needed_aggregation().is_some() {
            return Ok(());
        }
        let objective = Objective { importance: objective.importance, ..Objective::of(objective.policy, Aggregation::TokenSum) };
        let gathered = batch.whole();
        let (outcome, derivatives) = evaluate(&objective, &gathered, &batch.normalisers);
        let (mut value, mut size) = (0.0, 0.0);
        for (i, pair) in gathered.offsets.windows(2).enumerate() {
            let tokens: Vec<usize> = (pair[0]..pair[1]).filter(|&t| gathered.mask[t]).collect();
            for &t in &tokens {
                let Some(weight) = constant_weight(&objective, &gathered, &tokens, t, gathered.advantage[i]) else {
                    return Ok(());
                };
                let is_left_out = gathered.selection[t] & Selection::LEFT_OUT != 0;
                let slope = if is_left_out { 0.0 } else { -gathered.advantage[i] * weight };
                let found = derivatives.logprob[t];
                prop_assert!((found - slope).abs() <= 1e-9 * (1.0 + slope.abs()), "{:?}: {} against {}", objective.policy, found, slope);
                value += slope * gathered.columns[0][t];
                size += (slope * gathered.columns[0][t]).abs();
            }
        }
        prop_assert!((outcome.loss - value).abs() <= 1e-9 * (1.0 + size), "{} against {}", outcome.loss, value);
    }

    /// A token that answers alone for the ratio of its trajectory has the slope that it has where that ratio
    /// is its own.
    #[test]
    fn a_token_answers_for_the_trajectorys_ratio_as_for_its_own(objective in objective(), batch in batch()) {
        let (whole, own) = match objective.policy {
            PolicyLoss::Gspo(Gspo { clip_low, clip_high, .. }) => (
                PolicyLoss::Gspo(Gspo { clip_low, clip_high, form: GspoForm::Token, log_ratio_limit: None }),
                PolicyLoss::Clip(Clip { clip_low, clip_high, ..Clip::symmetric(0.0) }),
            ),
            policy => (policy, policy),
        };
        let importance = if whole.has_importance_levels() { Importance::SequenceToken } else { Importance::Token };
        if importance == Importance::Token && !matches!(whole, PolicyLoss::Gspo(_)) {
            return Ok(());
        }
        let gathered = batch.whole();
        let mut moved = batch.whole();
        for pair in gathered.offsets.windows(2) {
            let tokens = (pair[0]..pair[1]).filter(|&t| gathered.mask[t]);
            let mean = log_ratios(&gathered, tokens.clone()).sum::<f64>() / tokens.count() as f64;
            for t in pair[0]..pair[1] {
                let shift = gathered.columns[0][t] - mean - gathered.columns[1][t];
                // The ratio of the old policy to the one that sampled stays.
                moved.columns[1][t] += shift;
                moved.columns[2][t] += shift;
            }
        }
        let of = |policy, importance| Objective { importance, ..Objective::of(policy, objective.aggregation) };
        let (expected, slopes) = evaluate(&of(own, Importance::Token), &moved, &batch.normalisers);
        let (outcome, found) = evaluate(&of(whole, importance), &gathered, &batch.normalisers);
        prop_assert!((outcome.loss - expected.loss).abs() <= 1e-8 * (1.0 + expected.loss.abs()));
        for (found, slope) in found.logprob.iter().zip(&slopes.logprob) {
            prop_assert!((found - slope).abs() <= 1e-8 * (1.0 + slope.abs()), "{:?}: {} against {}", whole, found, slope);
        }
    }

    /// A straight-through estimate of the divergence has its own value, and the slope of `k2`.
    #[test]
    fn a_straight_through_divergence_has_the_slope_of_k2(objective in objective(), batch in batch()) {
        let Some(term) = objective.kl.filter(|term| !term.bias_corrected) else { return Ok(()) };
        let of = |estimator| {
            let kl = Some(KlTerm { estimator, ..term });
            evaluate(&Objective { kl, ..objective }, &batch.whole(), &batch.normalisers)
        };
        let through = of(KlEstimator { straight_through: true, ..term.estimator });
        let value = of(KlEstimator { straight_through: false, ..term.estimator }).0.loss;
        prop_assert_eq!(through.0.loss.to_bits(), value.to_bits());
        let k2 = of(KlEstimator::plain(KlKind::K2)).1;
        prop_assert_eq!(through.1.logprob, k2.logprob);
    }

    /// A ratio of the trajectory that each token answers for alone has the same value and, over the
    /// trajectory, the same slope.
    #[test]
    fn a_trajectorys_slope_is_shared_out_or_not(objective in objective(), batch in batch()) {
        let objective = Objective { kl: None, entropy: None, ..objective };
        prop_assume!(objective.policy.has_importance_levels());
        let of = |importance| evaluate(&Objective { importance, ..objective }, &batch.whole(), &batch.normalisers);
        let ((together, shared), (alone, own)) = (of(Importance::Sequence), of(Importance::SequenceToken));
        prop_assert_eq!(together.loss.to_bits(), alone.loss.to_bits());
        for pair in batch.whole().offsets.windows(2) {
            let sum = |slopes: &[f64]| slopes[pair[0]..pair[1]].iter().sum::<f64>();
            let (shared, own) = (sum(&shared.logprob), sum(&own.logprob));
            prop_assert!((shared - own).abs() <= 1e-11 * (1.0 + own.abs()), "{} against {}", shared, own);
        }
    }

    #[test]
    fn an_accumulator_of_all_is_the_outcome_of_the_batch(objective in objective(), batch in batch()) {
        let gathered = batch.whole();
        let state = objective.initial_state();
        let mut evaluation = Evaluation::default();
        objective.evaluate(&gathered.columns(), &batch.normalisers, &state, &mut evaluation).unwrap();
        let mut accumulator = Accumulator::new(evaluation.sequences.len());
        for (index, sums) in evaluation.sequences.iter().enumerate() {
            accumulator.record(index, *sums).unwrap();
        }
        let outcome = Outcome::of(&evaluation.sequences, &objective, &state);
        prop_assert_eq!(bits(&outcome), bits(&accumulator.finish(&objective, &state)));
    }

    #[test]
    fn permuting_trajectories_permutes_their_derivatives(objective in objective(), batch in batch(), order in any::<u64>()) {
        let key = tamis_core::random::Key::new(order, tamis_core::random::Purpose::MiniBatch);
        let order = key.permutation(batch.trajectories.len());
        let (whole, moved) = (batch.whole(), batch.gather(&order));
        let (expected, derivatives) = evaluate(&objective, &whole, &batch.normalisers);
        let (outcome, after) = evaluate(&objective, &moved, &batch.normalisers);
        prop_assert!((outcome.loss - expected.loss).abs() <= 1e-12 * (1.0 + expected.loss.abs()));
        for (place, &index) in order.iter().enumerate() {
            let here = moved.offsets[place]..moved.offsets[place + 1];
            let there = whole.offsets[index]..whole.offsets[index + 1];
            prop_assert_eq!(&after.logprob[here], &derivatives.logprob[there]);
        }
    }

    #[test]
    fn a_choice_over_the_batch_is_the_same_whatever_the_order(batch in batch(), share in 0.01..1.0_f64, order in any::<u64>()) {
        let key = tamis_core::random::Key::new(order, tamis_core::random::Purpose::MiniBatch);
        let order = key.permutation(batch.trajectories.len());
        let (whole, moved) = (batch.whole(), batch.gather(&order));
        // By value, not by draw: the two whose choice has no randomness.
        let kl_cov = PolicyLoss::KlCov(KlCov { share, cov_coefficient: 1.0 });
        let top = LossMasks { top_entropy: Some(share), off_policy: None };
        for objective in [
            Objective::of(kl_cov, Aggregation::TokenMean),
            Objective { masks: top, ..Objective::of(PolicyLoss::Reinforce(Reinforce {}), Aggregation::TokenMean) },
        ] {
            prop_assert!(objective.needs_selection());
            let expected = objective.select(&whole.columns(), key).unwrap().flags;
            let flags = objective.select(&moved.columns(), key).unwrap().flags;
            let count = |flags: &[u8]| flags.iter().filter(|&&flags| flags != 0).count();
            prop_assert_eq!(count(&flags), count(&expected));
            for (place, &index) in order.iter().enumerate() {
                let (here, there) = (moved.offsets[place]..moved.offsets[place + 1], whole.offsets[index]..whole.offsets[index + 1]);
                for (here, there) in here.zip(there) {
                    prop_assert!(expected[there] == 0 || whole.mask[there]);
                    // Rounding of the means may swap near ties, but only those.
                    if objective.masks.top_entropy.is_some() {
                        prop_assert_eq!(flags[here], expected[there]);
                    }
                }
            }
        }
    }

    #[test]
    fn clip_cov_takes_out_candidates_only_and_as_many_as_asked(batch in batch(), share in 0.01..1.0_f64, seed in any::<u64>()) {
        let loss = ClipCov { clip_low: 0.2, clip_high: 0.2, share, cov_low: -0.1, cov_high: 1.0 };
        let objective = Objective::of(PolicyLoss::ClipCov(loss), Aggregation::TokenMean);
        let gathered = batch.whole();
        let columns = gathered.columns();
        let key = tamis_core::random::Key::new(seed, tamis_core::random::Purpose::MiniBatch);
        let flags = objective.select(&columns, key).unwrap().flags;
        prop_assert_eq!(&flags, &objective.select(&columns, key).unwrap().flags);
        let chosen: Vec<usize> = (0..flags.len()).filter(|&t| flags[t] == Selection::BY_COVARIANCE).collect();
        let candidates = loss.candidates(&columns);
        prop_assert!(chosen.iter().all(|t| candidates.contains(t) && gathered.mask[*t]));
        prop_assert_eq!(chosen.len(), candidates.len().min(loss.count(&columns)));
        let columns = Columns { selection: Some(&flags), ..columns };
        let (outcome, derivatives) =
            objective.value_and_gradient(&columns, &batch.normalisers, &objective.initial_state()).unwrap();
        prop_assert!(chosen.iter().all(|&t| derivatives.logprob[t] == 0.0));
        let tokens = outcome.metrics.tokens;
        prop_assert!(tokens == 0.0 || (outcome.metrics.clip_share * tokens - chosen.len() as f64).abs() < 1e-9);
    }

    #[test]
    fn masked_values_change_nothing(objective in objective(), batch in batch(), junk in prop_oneof![Just(f64::NAN), Just(f64::INFINITY), -1e9..1e9_f64]) {
        let mut gathered = batch.whole();
        let (expected, derivatives) = evaluate(&objective, &gathered, &batch.normalisers);
        for column in &mut gathered.columns {
            for (value, &on) in column.iter_mut().zip(&gathered.mask) {
                if !on {
                    *value = junk;
                }
            }
        }
        let (outcome, after) = evaluate(&objective, &gathered, &batch.normalisers);
        prop_assert_eq!(bits(&outcome), bits(&expected));
        prop_assert_eq!(&after, &derivatives);
        for derivative in [&after.logprob, &after.entropy] {
            for (derivative, &on) in derivative.iter().zip(&gathered.mask) {
                prop_assert!(on || *derivative == 0.0);
            }
        }
    }

    #[test]
    fn any_cut_into_micro_batches_gives_the_same_bits(
        objective in objective(),
        batch in batch(),
        order in any::<u64>(),
        size in 1..5_usize,
    ) {
        let (expected, whole) = evaluate(&objective, &batch.whole(), &batch.normalisers);
        // Any order: a token budget sorts by length.
        let count = batch.trajectories.len();
        let order = tamis_core::random::Key::new(order, tamis_core::random::Purpose::MiniBatch).permutation(count);
        let mut accumulator = Accumulator::new(count);
        let mut evaluation = Evaluation::default();
        let whole_offsets = batch.whole().offsets;
        for indices in order.chunks(size) {
            let gathered = batch.gather(indices);
            objective
                .evaluate(&gathered.columns(), &batch.normalisers, &objective.initial_state(), &mut evaluation)
                .unwrap();
            for (place, &index) in indices.iter().enumerate() {
                accumulator.record(index, evaluation.sequences[place]).unwrap();
                let here = gathered.offsets[place]..gathered.offsets[place + 1];
                let there = whole_offsets[index]..whole_offsets[index + 1];
                let pairs = [
                    (&evaluation.derivatives.logprob, &whole.logprob),
                    (&evaluation.derivatives.entropy, &whole.entropy),
                ];
                for (cut, uncut) in pairs {
                    // A column that is not differentiated has no derivatives at all.
                    prop_assert_eq!(cut.get(here.clone()).unwrap_or(&[]), uncut.get(there.clone()).unwrap_or(&[]));
                }
            }
        }
        prop_assert_eq!(bits(&accumulator.finish(&objective, &objective.initial_state())), bits(&expected));
    }

    #[test]
    fn a_view_is_the_same_as_a_copy(objective in objective(), batch in batch(), start in 0..4_usize, count in 0..4_usize) {
        let gathered = batch.whole();
        let end = (start + count).min(batch.trajectories.len());
        let start = start.min(end);
        let copied = batch.gather(&(start..end).collect::<Vec<_>>());
        let view = gathered.columns().sequences(start..end);
        let state = objective.initial_state();
        let (mut of_view, mut of_copy) = (Evaluation::default(), Evaluation::default());
        objective.evaluate(&view, &batch.normalisers, &state, &mut of_view).unwrap();
        objective.evaluate(&copied.columns(), &batch.normalisers, &state, &mut of_copy).unwrap();
        prop_assert_eq!(of_view, of_copy);
    }

    #[test]
    fn ranks_average_to_the_whole(objective in objective(), batch in batch(), cut in 0..9_usize) {
        let cut = cut.min(batch.trajectories.len());
        let normalisers = Normalisers { dp_size: 2.0, ..batch.normalisers };
        let part = |range: std::ops::Range<usize>| loss(&objective, &batch.gather(&range.collect::<Vec<_>>()), &normalisers);
        let whole = loss(&objective, &batch.whole(), &batch.normalisers);
        let average = f64::midpoint(part(0..cut), part(cut..batch.trajectories.len()));
        prop_assert!((whole - average).abs() <= 1e-12 * (1.0 + whole.abs()), "{} {}", whole, average);
    }

    #[test]
    fn single_precision_gives_what_double_gives(objective in objective(), batch in batch()) {
        let mut gathered = batch.whole();
        for column in &mut gathered.columns {
            for value in column {
                *value = f64::from(*value as f32);
            }
        }
        let single: Vec<Vec<f32>> =
            gathered.columns.iter().map(|column| column.iter().map(|&value| value as f32).collect()).collect();
        let wide = gathered.columns();
        let narrow = Columns {
            offsets: wide.offsets,
            mask: wide.mask,
            logprob: &single[0],
            old: Some(&single[1]),
            behaviour: Some(&single[2]),
            reference: Some(&single[3]),
            entropy: Some(&single[4]),
            weight: Some(&single[5]),
            advantage: wide.advantage,
            group_tokens: wide.group_tokens,
            group_sequences: wide.group_sequences,
            selection: wide.selection,
        };
        let state = objective.initial_state();
        let (outcome, derivatives) = objective.value_and_gradient(&narrow, &batch.normalisers, &state).unwrap();
        // A log-ratio next to a kink may round to its other side: what is found lies between what doubles
        // give a little to either side.
        let around: Vec<(Outcome, Derivatives)> = [-1e-5, 0.0, 1e-5]
            .iter()
            .map(|shift| {
                let old: Vec<f64> = gathered.columns[1].iter().map(|old| old + shift).collect();
                let columns = Columns { old: Some(&old), ..wide };
                objective.value_and_gradient(&columns, &batch.normalisers, &state).unwrap()
            })
            .collect();
        let is_between = |found: f64, around: &[f64], size: f64| {
            let least = around.iter().copied().fold(f64::INFINITY, f64::min);
            let most = around.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            // What single precision cannot hold is 0.
            let tolerance = 1e-5 * size.max(least.abs()).max(most.abs()) + f64::from(f32::MIN_POSITIVE);
            (least - tolerance..=most + tolerance).contains(&found) || (found.is_nan() && around[1].is_nan())
        };
        let named: Vec<_> = around.iter().map(|(outcome, _)| outcome.metrics.named()).collect();
        for (i, (name, found)) in outcome.metrics.named().into_iter().enumerate() {
            let around = [named[0][i].1, named[1][i].1, named[2][i].1];
            prop_assert!(is_between(found, &around, 1.0), "{}: {} against {:?}", name, found, around);
        }
        let losses: Vec<f64> = around.iter().map(|(outcome, _)| outcome.loss).collect();
        prop_assert!(is_between(outcome.loss, &losses, 1.0), "loss {} against {:?}", outcome.loss, losses);
        let columns: [(&[f32], Column); 2] = [
            (&derivatives.logprob, |derivatives| &derivatives.logprob),
            (&derivatives.entropy, |derivatives| &derivatives.entropy),
        ];
        for (found, of) in columns {
            // Of the parts that cancel in a token the largest token knows.
            let size = of(&around[1].1).iter().fold(0.0, |size: f64, derivative| size.max(derivative.abs()));
            for (t, &found) in found.iter().enumerate() {
                let around = [of(&around[0].1)[t], of(&around[1].1)[t], of(&around[2].1)[t]];
                prop_assert!(is_between(found.into(), &around, size), "token {}: {} against {:?}", t, found, around);
                prop_assert!(gathered.mask[t] || found == 0.0, "token {} is masked", t);
            }
        }
    }

    #[test]
    fn one_advantage_per_token_is_the_same_as_one_for_all(objective in objective(), batch in batch()) {
        let gathered = batch.whole();
        let per_token: Vec<f64> = batch
            .trajectories
            .iter()
            .flat_map(|trajectory| vec![trajectory.advantage; trajectory.mask.len()])
            .collect();
        let columns = Columns { advantage: AdvantageColumn::PerToken(&per_token), ..gathered.columns() };
        let state = objective.initial_state();
        let (outcome, derivatives) = objective.value_and_gradient(&columns, &batch.normalisers, &state).unwrap();
        let expected = evaluate(&objective, &gathered, &batch.normalisers);
        prop_assert_eq!(bits(&outcome), bits(&expected.0));
        prop_assert_eq!(derivatives, expected.1);
    }

    #[test]
    fn without_advantage_or_regulariser_there_is_nothing_to_learn(objective in objective(), batch in batch()) {
        // The two losses that pull towards the old policy do so without an advantage.
        prop_assume!(!matches!(objective.policy, PolicyLoss::KlCov(_) | PolicyLoss::Dro(_)));
        let objective = Objective { kl: None, entropy: None, ..objective };
        let mut gathered = batch.whole();
        gathered.advantage.fill(0.0);
        let (outcome, derivatives) = evaluate(&objective, &gathered, &batch.normalisers);
        prop_assert_eq!(outcome.loss, 0.0);
        prop_assert!(derivatives.logprob.iter().all(|derivative| *derivative == 0.0));
    }

    #[test]
    fn on_policy_the_gradient_is_minus_advantage_times_weight(objective in objective(), batch in batch()) {
        // All but those that read the ratio's own bound as a value (TRL's CISPO) are the policy gradient
        // where every ratio is 1.
        let bounded_below_one = match objective.policy {
            PolicyLoss::Cispo(loss) => loss.bound == CispoBound::Absolute && loss.max_ratio < 1.0,
            PolicyLoss::GeoMean(loss) => loss.length_epsilon > 0.0,
            PolicyLoss::Decoupled(_) => true,
            _ => false,
        };
        prop_assume!(!bounded_below_one);
        let masks = LossMasks::default();
        let objective = Objective { kl: None, entropy: None, masks, ..objective };
        let gathered = batch.whole();
        let nothing = vec![0; gathered.mask.len()];
        let columns = Columns { old: None, weight: None, selection: Some(&nothing), ..gathered.columns() };
        let (outcome, derivatives) =
            objective.value_and_gradient(&columns, &batch.normalisers, &objective.initial_state()).unwrap();
        let mut start = 0;
        for trajectory in &batch.trajectories {
            let tokens = trajectory.mask.iter().filter(|&&on| on).count();
            let weight = objective.aggregation.weight(tokens, GroupCounts { tokens: Some(trajectory.group_tokens), sequences: Some(trajectory.group_sequences) }, &batch.normalisers, &objective.divisors).unwrap();
            for (&on, derivative) in trajectory.mask.iter().zip(&derivatives.logprob[start..]) {
                let expected = if on { -trajectory.advantage * weight } else { 0.0 };
                prop_assert!((derivative - expected).abs() <= 1e-12 * expected.abs());
            }
            start += trajectory.mask.len();
        }
        prop_assert!(outcome.metrics.tokens == 0.0 || (outcome.metrics.ratio_max == 1.0 && outcome.metrics.old_kl == 0.0));
        prop_assert!(outcome.metrics.tokens == 0.0 || outcome.metrics.old_kl_k3.abs() < 1e-15);
    }

    #[test]
    fn normalisers_count_what_the_mask_leaves(batch in batch()) {
        let Batch { trajectories, group_sizes, normalisers } = &batch;
        let tokens = |trajectory: &crate::batch::Trajectory| trajectory.mask.iter().filter(|&&on| on).count();
        prop_assert_eq!(normalisers.tokens, trajectories.iter().map(tokens).sum::<usize>() as f64);
        prop_assert_eq!(normalisers.sequences, trajectories.iter().filter(|t| tokens(t) > 0).count() as f64);
        let (mut groups, mut rest) = (0, trajectories.as_slice());
        for &size in group_sizes {
            let (group, others) = rest.split_at(size);
            let tokens: usize = group.iter().map(tokens).sum();
            groups += usize::from(tokens > 0);
            prop_assert!(group.iter().all(|trajectory| trajectory.group_tokens == tokens as f64));
            rest = others;
        }
        prop_assert_eq!(normalisers.groups, groups as f64);
    }
}

/// Two groups: one trajectory of 1 token and one of 3; one of 2. Advantages 1 and -1; 2. Ratios all 1, so
/// that a token's loss is -A.
fn small() -> (Vec<usize>, Vec<bool>, Vec<f64>, Vec<f64>) {
    (vec![0, 1, 4, 6], vec![true; 6], vec![-1.0; 6], vec![1.0, -1.0, 2.0])
}

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
    assert_eq!(normalisers, Normalisers { tokens: 6.0, sequences: 3.0, groups: 2.0, dp_size: 1.0 });
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
        let (outcome, derivatives) =
            objective.value_and_gradient(&columns, &normalisers, &objective.initial_state()).unwrap();
        let name = aggregation.as_str();
        assert!((outcome.loss - loss).abs() < 1e-15, "{name}: {} against {loss}", outcome.loss);
        let tokens = [first, second, second, second, third, third];
        for (actual, expected) in derivatives.logprob.iter().zip(tokens) {
            assert!((actual - expected).abs() < 1e-15, "{name}: {actual} against {expected}");
        }
    }
}

/// The four presets on one batch, as the side-by-side table of the documentation prints them.
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
        let (outcome, derivatives) =
            objective.value_and_gradient(&columns, &normalisers, &objective.initial_state()).unwrap();
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
    let page = include_str!("../../../../docs/objectives.md");
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
    for aggregation in [
        Aggregation::TokenMean,
        Aggregation::SeqMeanTokenSum,
        Aggregation::SeqMeanTokenMean,
        Aggregation::SeqMeanTokenSumNorm,
        Aggregation::GroupTokenMean,
        Aggregation::TokenSum,
    ] {
        let objective = Objective {
            kl: Some(term),
            entropy: Some(EntropyBonus::constant(0.1)),
            ..Objective::of(PolicyLoss::Clip(Clip::verl(0.2, 0.28, 3.0)), aggregation)
        };
        let masked = (vec![0, 2, 2, 3], vec![false; 3], vec![-1.0; 3], vec![1.0, 0.5, -1.0], vec![2, 1]);
        let empty = (vec![0], vec![], vec![], vec![], vec![]);
        for (offsets, mask, logprob, advantage, group_sizes) in [masked, empty] {
            let lengths: Vec<usize> = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let (normalisers, group_tokens) =
                Normalisers::of(&Ragged::from_lengths(mask.clone(), &lengths).unwrap(), &group_sizes)
                    .unwrap();
            let columns = Columns {
                reference: Some(&logprob),
                entropy: Some(&logprob),
                group_tokens: Some(&group_tokens),
                ..Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&advantage))
            };
            let (outcome, derivatives) =
                objective.value_and_gradient(&columns, &normalisers, &objective.initial_state()).unwrap();
            assert_eq!(outcome.loss, 0.0);
            assert_eq!(outcome.state, objective.initial_state());
            assert!(outcome.metrics.ratio_mean.is_nan() && outcome.metrics.tokens == 0.0);
            assert!(
                derivatives.logprob.iter().chain(&derivatives.entropy).all(|derivative| *derivative == 0.0)
            );
        }
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
        let (outcome, derivatives) =
            objective.value_and_gradient(&columns, &normalisers, &objective.initial_state()).unwrap();
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
    let (outcome, _) =
        objective.value_and_gradient(&columns, &normalisers, &objective.initial_state()).unwrap();
    let metrics = outcome.metrics;
    let near = |actual: f64, expected: f64| assert!((actual - expected).abs() < 1e-14, "{actual} {expected}");
    // -1.28 clipped high, 0.8 clipped low, 3 on the dual clip, 1.
    near(outcome.loss, (-1.28 + 0.8 + 3.0 + 1.0) / 4.0);
    near(metrics.policy_loss, outcome.loss);
    assert_eq!((metrics.tokens, metrics.sequences), (4.0, 2.0));
    assert_eq!((metrics.clip_share, metrics.clip_share_dual), (0.5, 0.25));
    assert_eq!((metrics.clip_share_low, metrics.clip_share_high), (0.25, 0.25));
    // Per trajectory: no low token in the first, one high of one; one low of three in the second.
    assert_eq!((metrics.clip_share_low_min, metrics.clip_share_high_max), (0.0, 1.0));
    near(metrics.ratio_mean, (2.0 + 0.5 + 4.0 + 1.0) / 4.0);
    near(metrics.ratio_max, 4.0);
    near(metrics.ratio_min, 0.5);
    near(metrics.old_kl, -2.0 * two / 4.0);
    near(metrics.old_kl_k3, (7.5 - 4.0 - 2.0 * two) / 4.0);
}

/// The k3 estimate is of the log-ratio that the loss took its ratio of, so that it is never negative.
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
        let state = objective.initial_state();
        objective.value_and_gradient(&columns, &normalisers, &state).unwrap().0.metrics.old_kl_k3
    };
    let by_token = of(Importance::Token);
    assert!((by_token - (k3(0.5) + k3(-0.5) + k3(0.25)) / 3.0).abs() < 1e-14, "{by_token}");
    // The first trajectory's mean is 0.
    let by_trajectory = of(Importance::Sequence);
    assert!((by_trajectory - k3(0.25) / 3.0).abs() < 1e-14, "{by_trajectory}");
}

/// Near the old policy the k3 estimate is half the mean square of the log-ratios, in single precision too:
/// `ratio - 1` would leave rounding alone.
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
fn nothing_weighs_nothing() {
    let normalisers = Normalisers { tokens: 0.0, sequences: 0.0, groups: 0.0, dp_size: 1.0 };
    let some = Normalisers { tokens: 5.0, sequences: 2.0, groups: 2.0, dp_size: 1.0 };
    for aggregation in [
        Aggregation::TokenMean,
        Aggregation::SeqMeanTokenSum,
        Aggregation::SeqMeanTokenMean,
        Aggregation::SeqMeanTokenSumNorm,
        Aggregation::GroupTokenMean,
        Aggregation::GroupSeqMean,
    ] {
        let group = GroupCounts { tokens: Some(0.0), sequences: Some(0.0) };
        let divisors = LengthDivisors::default();
        assert_eq!(
            aggregation.weight(0, group, &normalisers, &divisors),
            Ok(0.0),
            "{}",
            aggregation.as_str()
        );
        // A fully masked trajectory, or group, beside others.
        assert!(
            aggregation.weight(0, group, &some, &divisors).unwrap().is_finite(),
            "{}",
            aggregation.as_str()
        );
    }
}

#[test]
fn counts_of_ranks_add_up() {
    let first = Normalisers { tokens: 6.0, sequences: 3.0, groups: 2.0, dp_size: 1.0 };
    let second = Normalisers { tokens: 10.0, sequences: 4.0, groups: 1.0, dp_size: 1.0 };
    let both = Normalisers { tokens: 16.0, sequences: 7.0, groups: 3.0, dp_size: 2.0 };
    assert_eq!(first.merged(second), both);
}

#[test]
fn what_was_not_given_is_not_reported_as_zero() {
    let (offsets, mask, logprob, advantage) = small();
    let columns = Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&advantage));
    let normalisers = Normalisers { tokens: 6.0, sequences: 3.0, groups: 2.0, dp_size: 1.0 };
    let objective = dapo();
    let state = objective.initial_state();
    let (outcome, _) = objective.value_and_gradient(&columns, &normalisers, &state).unwrap();
    assert!(outcome.metrics.entropy.is_nan() && outcome.metrics.behaviour_kl.is_nan());
    assert_eq!(outcome.metrics.kl, None);
    let given = Columns { entropy: Some(&[0.5; 6]), behaviour: Some(&[-0.75; 6]), ..columns };
    let (outcome, _) = objective.value_and_gradient(&given, &normalisers, &state).unwrap();
    // Without old log-probabilities the policy is its own old one.
    assert_eq!((outcome.metrics.entropy, outcome.metrics.behaviour_kl), (0.5, 0.25));
    let older = Columns { old: Some(&[-1.5; 6]), ..given };
    let (older, _) = objective.value_and_gradient(&older, &normalisers, &state).unwrap();
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
    let normalisers = Normalisers { tokens: 6.0, sequences: 3.0, groups: 2.0, dp_size: 1.0 };
    let (outcome, _) =
        objective.value_and_gradient(&columns, &normalisers, &objective.initial_state()).unwrap();
    assert_eq!(outcome.state.kl.unwrap().coef, 0.5 * (1.0 + 0.2 * 3.0 / 10.0));
    assert_eq!(outcome.metrics.kl, Some(4.0));
    assert_eq!(outcome.metrics.kl_coef, Some(0.5));
    // -2/3 of the policy, and 4 times the coefficient.
    assert!((outcome.loss - (-2.0 / 3.0 + 4.0 * 0.5)).abs() < 1e-15);
    // The next batch uses the new coefficient.
    let (next, _) = objective.value_and_gradient(&columns, &normalisers, &outcome.state).unwrap();
    assert_eq!(next.metrics.kl_coef, outcome.state.kl.map(|kl| kl.coef));
}

#[test]
fn errors_name_what_is_wrong() {
    let (offsets, mask, logprob, advantage) = small();
    let normalisers = Normalisers { tokens: 6.0, sequences: 3.0, groups: 2.0, dp_size: 1.0 };
    let fine = Columns::new(&offsets, &mask, &logprob, AdvantageColumn::PerTrajectory(&advantage));
    let message = |objective: Objective, columns: Columns<'_, f64>| {
        let state = objective.initial_state();
        objective.value_and_gradient(&columns, &normalisers, &state).unwrap_err().to_string()
    };
    let dapo = dapo();
    let clip = |clip: Clip| Objective { policy: PolicyLoss::Clip(clip), ..dapo };

    insta::assert_snapshot!(message(dapo, Columns { logprob: &logprob[..5], ..fine }), @"column `logprob` has 5 values, expected 6");
    insta::assert_snapshot!(message(dapo, Columns { old: Some(&[]), ..fine }), @"column `old` has 0 values, expected 6");
    insta::assert_snapshot!(message(dapo, Columns { advantage: AdvantageColumn::PerTrajectory(&[1.0]), ..fine }), @"column `advantage` has 1 values, expected 3");
    insta::assert_snapshot!(message(dapo, Columns { offsets: &[0, 4, 1, 6], ..fine }), @"offsets of trajectory 1 go backwards");
    insta::assert_snapshot!(message(dapo, Columns { offsets: &[], ..fine }), @"column `mask` has 6 values, expected 0");
    insta::assert_snapshot!(message(grpo(), fine), @"column `reference` is missing; the KL term needs it");
    insta::assert_snapshot!(message(Objective { aggregation: Aggregation::GroupTokenMean, ..dapo }, fine), @"column `group_tokens` is missing; aggregation `group-token-mean` needs it");
    let bonus = EntropyBonus::constant(0.1);
    insta::assert_snapshot!(message(Objective { entropy: Some(bonus), ..dapo }, fine), @"column `entropy` is missing; the entropy bonus needs it");

    insta::assert_snapshot!(message(clip(Clip::symmetric(1.5)), fine), @"objective setting `loss.clip_low` is 1.5; expected a number from 0 to 1");
    insta::assert_snapshot!(message(clip(Clip { clip_high: -0.1, ..Clip::symmetric(0.2) }), fine), @"objective setting `loss.clip_high` is -0.1; expected a number of at least 0");
    insta::assert_snapshot!(message(clip(Clip::verl(0.2, 0.28, 1.0)), fine), @"objective setting `loss.dual_clip` is 1; expected a number above 1");
    insta::assert_snapshot!(message(clip(Clip { delta: Some(0.0), ..Clip::symmetric(0.2) }), fine), @"objective setting `loss.delta` is 0; expected a number above 0");
    insta::assert_snapshot!(message(clip(Clip { log_ratio_limit: Some(f64::NAN), ..Clip::symmetric(0.2) }), fine), @"objective setting `loss.log_ratio_limit` is NaN; expected a number above 0");
    let divided = |loss_scale_factor, length_epsilon| Objective {
        divisors: LengthDivisors { loss_scale_factor, length_epsilon },
        ..dapo
    };
    insta::assert_snapshot!(message(divided(0.0, 0.0), fine), @"objective setting `loss_scale_factor` is 0; expected the response limit in tokens, above 0");
    insta::assert_snapshot!(message(divided(1.0, -1.0), fine), @"objective setting `length_epsilon` is -1; expected a finite number of at least 0");
    let kl = |controller| Objective {
        kl: Some(KlTerm { estimator: KlEstimator::plain(KlKind::K3), controller, bias_corrected: false }),
        ..dapo
    };
    insta::assert_snapshot!(message(kl(KlController::Fixed { coef: f64::INFINITY }), fine), @"objective setting `kl.coef` is inf; expected a finite number");
    insta::assert_snapshot!(message(kl(KlController::Adaptive { initial: f64::NAN, target: 0.1, horizon: 1.0 }), fine), @"objective setting `kl.initial` is NaN; expected a finite number");
    insta::assert_snapshot!(message(kl(KlController::Adaptive { initial: 0.1, target: 0.0, horizon: 1.0 }), fine), @"objective setting `kl.target` is 0; expected a number above 0");
    insta::assert_snapshot!(message(kl(KlController::Adaptive { initial: 0.1, target: 0.1, horizon: 0.0 }), fine), @"objective setting `kl.horizon` is 0; expected a number above 0");
    let infinite = EntropyBonus::constant(f64::INFINITY);
    insta::assert_snapshot!(message(Objective { entropy: Some(infinite), ..dapo }, fine), @"objective setting `entropy.coef` is inf; expected a finite number");

    insta::assert_snapshot!("k4".parse::<KlEstimator>().unwrap_err(), @"unknown KL estimator `k4`; known are k1 (kl), abs, k2 (mse), k3 (low_var_kl), each also with a trailing +");
    let mask = Ragged::from_rows([vec![true]]);
    insta::assert_snapshot!(Normalisers::of(&mask, &[2]).unwrap_err(), @"column `mask` has 1 values, expected 2");

    let mut evaluation = Evaluation::default();
    dapo.evaluate(&fine, &normalisers, &dapo.initial_state(), &mut evaluation).unwrap();
    let mut accumulator = Accumulator::new(3);
    accumulator.record(0, evaluation.sequences[0]).unwrap();
    insta::assert_snapshot!(accumulator.record(0, evaluation.sequences[0]).unwrap_err(), @"trajectory 0 of an optimizer batch of 3 was recorded twice");
    insta::assert_snapshot!(accumulator.record(3, evaluation.sequences[0]).unwrap_err(), @"trajectory 3 of an optimizer batch of 3 does not exist");
}
