//! Laws of the objective.

mod by_hand;

use proptest::prelude::*;
use tamis_core::objective::{
    Accumulator, AdvantageColumn, Aggregation, CispoBound, Clip, ClipCov, Columns, Derivatives, Evaluation,
    GroupCounts, Gspo, GspoForm, Importance, KlController, KlCov, KlEstimator, KlKind, KlTerm, LossMasks,
    Normalisers, Objective, Outcome, PolicyLoss, Reinforce, Selection,
};

use crate::batch::{Batch, Gathered, batch, objective, run};

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

/// The same settings without anything that is constant in the derivative: the derivative is then that of the
/// value.
fn without_constants(mut objective: Objective) -> Objective {
    if objective.policy.is_constant_weight() {
        objective.policy = PolicyLoss::Clip(Clip::symmetric(0.2));
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

/// Weight of a token in a loss with a constant weight, written as in its paper, times the weight of the
/// correction. `None` for other losses. `tokens` are those of the trajectory.
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
            // The correction is a factor only of the trajectory's weight.
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
    let metrics = outcome.metrics.to_pairs().into_iter().map(|(_, value)| value.to_bits());
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
        // Log-probability and entropy: their indices among the columns.
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
                // At a kink the two sides differ; any value between them is a derivative there.
                let (left, right) = ((value - low) / step, (high - value) / step);
                let tolerance = 1e-6 * (1.0 + slope.abs());
                if (left - right).abs() < 1e-3 * (1.0 + slope.abs()) {
                    // The kink of one token among many has a small effect.
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

    /// With a constant weight the loss is `-A·w·logprob` and its derivative `-A·w`, with the weight of the
    /// loss's formula.
    #[test]
    fn a_constant_weight_is_that_of_the_formula(objective in objective(), batch in batch()) {
        // For GSPO's tokens a ratio is constant, not a weight: the next law covers them.
        let is_another = !objective.policy.is_constant_weight() || matches!(objective.policy, PolicyLoss::Gspo(_));
        if objective.policy.needed_aggregation().is_some() || is_another {
            return Ok(());
        }
        let objective = Objective { importance: objective.importance, ..Objective::of(objective.policy, Aggregation::TokenSum) };
        let gathered = batch.whole();
        let (outcome, derivatives) = evaluate(&objective, &gathered, &batch.normalisers);
        let (mut value, mut size) = (0.0, 0.0);
        for (i, pair) in gathered.offsets.windows(2).enumerate() {
            let tokens: Vec<usize> = (pair[0]..pair[1]).filter(|&t| gathered.mask[t]).collect();
            for &t in &tokens {
                let found = derivatives.logprob[t];
                let is_left_out = gathered.selection[t] & Selection::LEFT_OUT != 0;
                let weight = constant_weight(&objective, &gathered, &tokens, t, gathered.advantage[i]);
                // Without a formula for the weight, the loss must still agree with the derivatives.
                let of_formula = weight.map_or(found, |weight| -gathered.advantage[i] * weight);
                let slope = if is_left_out { 0.0 } else { of_formula };
                prop_assert!((found - slope).abs() <= 1e-9 * (1.0 + slope.abs()), "{:?}: {} against {}", objective.policy, found, slope);
                value += slope * gathered.columns[0][t];
                size += (slope * gathered.columns[0][t]).abs();
            }
        }
        prop_assert!((outcome.loss - value).abs() <= 1e-9 * (1.0 + size), "{} against {}", outcome.loss, value);
    }

    #[test]
    fn a_token_answers_for_the_trajectorys_ratio_as_for_its_own(objective in objective(), batch in batch()) {
        let (whole, own) = match objective.policy {
            PolicyLoss::Gspo(Gspo { clip_low, clip_high, .. }) => (
                PolicyLoss::Gspo(Gspo { clip_low, clip_high, form: GspoForm::Token, log_ratio_limit: None }),
                PolicyLoss::Clip(Clip { clip_low, clip_high, ..Clip::symmetric(0.0) }),
            ),
            policy => (policy.clone(), policy),
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
        let (outcome, found) = evaluate(&of(whole.clone(), importance), &gathered, &batch.normalisers);
        prop_assert!((outcome.loss - expected.loss).abs() <= 1e-8 * (1.0 + expected.loss.abs()));
        for (found, slope) in found.logprob.iter().zip(&slopes.logprob) {
            prop_assert!((found - slope).abs() <= 1e-8 * (1.0 + slope.abs()), "{:?}: {} against {}", whole, found, slope);
        }
    }

    #[test]
    fn a_straight_through_divergence_has_the_slope_of_k2(objective in objective(), batch in batch()) {
        let Some(term) = objective.kl.filter(|term| !term.bias_corrected) else { return Ok(()) };
        let of = |estimator| {
            let kl = Some(KlTerm { estimator, ..term });
            evaluate(&Objective { kl, ..objective.clone() }, &batch.whole(), &batch.normalisers)
        };
        let through = of(KlEstimator { straight_through: true, ..term.estimator });
        let value = of(KlEstimator { straight_through: false, ..term.estimator }).0.loss;
        prop_assert_eq!(through.0.loss.to_bits(), value.to_bits());
        let k2 = of(KlEstimator::plain(KlKind::K2)).1;
        prop_assert_eq!(through.1.logprob, k2.logprob);
    }

    #[test]
    fn a_trajectorys_slope_is_shared_out_or_not(objective in objective(), batch in batch()) {
        let objective = Objective { kl: None, entropy: None, ..objective };
        prop_assume!(objective.policy.has_importance_levels());
        let of = |importance| evaluate(&Objective { importance, ..objective.clone() }, &batch.whole(), &batch.normalisers);
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
        // By value, not by draw: the two losses whose choice is not random.
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
            run(&objective, &columns, &batch.normalisers);
        prop_assert!(chosen.iter().all(|&t| derivatives.logprob[t] == 0.0));
        let tokens = outcome.metrics.tokens;
        prop_assert!(tokens == 0.0 || (outcome.metrics.clip_share * tokens - chosen.len() as f64).abs() < 1e-9);
    }

    /// A group of weight 2 is equivalent to two such groups, under every aggregation, and weights of 1 change
    /// no bit.
    #[test]
    fn a_weight_stands_for_as_many_groups(objective in objective(), batch in batch(), doubled in prop::collection::vec(any::<bool>(), 4)) {
        let weights: Vec<f64> =
            doubled.iter().take(batch.group_sizes.len()).map(|&twice| if twice { 2.0 } else { 1.0 }).collect();
        let mask = |gathered: &Gathered| {
            tamis_core::ragged::Ragged::from_rows(
                gathered.offsets.windows(2).map(|ends| gathered.mask[ends[0]..ends[1]].to_vec()),
            )
        };
        let state = objective.initial_state();
        let whole = batch.whole();
        let of_members = |weights: &[f64]| -> Vec<f64> {
            weights.iter().zip(&batch.group_sizes).flat_map(|(&weight, &size)| vec![weight; size]).collect()
        };
        let weighted = |weights: &[f64]| {
            let (normalisers, _) = Normalisers::weighted(&mask(&whole), &batch.group_sizes, Some(weights)).unwrap();
            let of_members = of_members(weights);
            let columns = Columns { sequence_weight: Some(&of_members), ..whole.columns() };
            objective.value_and_gradient(&columns, &normalisers, &state).unwrap()
        };
        let plain = objective.value_and_gradient(&whole.columns(), &batch.normalisers, &state).unwrap();
        let of_ones = weighted(&vec![1.0; weights.len()]);
        prop_assert_eq!(of_ones.0.loss.to_bits(), plain.0.loss.to_bits());
        prop_assert_eq!(&of_ones.1, &plain.1);

        // The same groups, with those of weight 2 twice.
        let (mut rows, mut sizes, mut first) = (Vec::new(), Vec::new(), 0);
        for (&size, &weight) in batch.group_sizes.iter().zip(&weights) {
            for _ in 0..weight as usize {
                rows.extend(first..first + size);
                sizes.push(size);
            }
            first += size;
        }
        let twice = batch.gather(&rows);
        let (normalisers, _) = Normalisers::of(&mask(&twice), &sizes).unwrap();
        let (expected, _) = objective.value_and_gradient(&twice.columns(), &normalisers, &state).unwrap();
        let found = weighted(&weights).0;
        // Adaptive parts use plain means; the coefficients of this batch are those of its start.
        prop_assert!(
            (found.loss - expected.loss).abs() <= 1e-9 * (1.0 + expected.loss.abs()),
            "{} instead of {}", found.loss, expected.loss
        );
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
            candidates: None,
            given: None,
            sequence_weight: None,
        };
        let state = objective.initial_state();
        let (outcome, derivatives) = objective.value_and_gradient(&narrow, &batch.normalisers, &state).unwrap();
        // A log-ratio next to a kink may round to its other side: the result lies between those of doubles
        // slightly to either side.
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
            // A number too small for single precision is 0.
            let tolerance = 1e-5 * size.max(least.abs()).max(most.abs()) + f64::from(f32::MIN_POSITIVE);
            (least - tolerance..=most + tolerance).contains(&found) || (found.is_nan() && around[1].is_nan())
        };
        let named: Vec<_> = around.iter().map(|(outcome, _)| outcome.metrics.to_pairs()).collect();
        for (i, (name, found)) in outcome.metrics.to_pairs().into_iter().enumerate() {
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
            // The largest token gives the size of the parts that cancel within a token; if all of them
            // cancel, the coefficient of the KL does.
            let size = objective.kl.map_or(0.0, |term| term.controller.initial().coef);
            let size = of(&around[1].1).iter().fold(size, |size, derivative| size.max(derivative.abs()));
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
        prop_assume!(!objective.policy.pulls_without_advantage());
        let objective = Objective { kl: None, entropy: None, ..objective };
        let mut gathered = batch.whole();
        gathered.advantage.fill(0.0);
        let (outcome, derivatives) = evaluate(&objective, &gathered, &batch.normalisers);
        prop_assert_eq!(outcome.loss, 0.0);
        prop_assert!(derivatives.logprob.iter().all(|derivative| *derivative == 0.0));
    }

    #[test]
    fn on_policy_the_gradient_is_minus_advantage_times_weight(objective in objective(), batch in batch()) {
        prop_assume!(objective.policy.is_gradient_on_policy());
        let masks = LossMasks::default();
        let objective = Objective { kl: None, entropy: None, masks, ..objective };
        let gathered = batch.whole();
        let nothing = vec![0; gathered.mask.len()];
        // The policy is the one that sampled, so every ratio is 1.
        let behaviour = Some(&gathered.columns[0][..]);
        let columns = Columns { old: None, behaviour, weight: None, selection: Some(&nothing), ..gathered.columns() };
        let (outcome, derivatives) =
            run(&objective, &columns, &batch.normalisers);
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
