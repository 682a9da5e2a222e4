//! Every loss once more, written the plain way: one trajectory at a time, no blocks, no derivatives.
//!
//! What a loss detaches is taken at `base`, the log-probabilities at which the derivative is asked for; so the slope of this function
//! at `base` is the derivative that the objective must report, and its value there is the loss.

use tamis_core::objective::{
    Aggregation, CispoBound, Clip, Columns, Dppo, GroupCounts, GspoForm, Importance, KlEstimator, KlKind,
    Normalisers, Objective, PolicyLoss, Selection,
};

use crate::batch::Gathered;

/// The numbers of one unmasked token.
#[derive(Clone, Copy)]
struct At {
    base: f64,
    logprob: f64,
    old: f64,
    behaviour: f64,
    reference: f64,
    weight: f64,
    advantage: f64,
    selected: bool,
    left_out: bool,
}

fn clamp(value: f64, limit: Option<f64>) -> f64 {
    limit.map_or(value, |limit| value.max(-limit).min(limit))
}

fn mean(row: &[At], of: impl Fn(&At) -> f64) -> f64 {
    row.iter().map(of).sum::<f64>() / row.len() as f64
}

/// The ratio of each token; `now` picks the log-probability.
fn ratios(row: &[At], importance: Importance, bound: impl Fn(f64) -> f64) -> Vec<f64> {
    row.iter()
        .map(|at| match importance {
            Importance::Token => bound(at.logprob - at.old).exp(),
            Importance::Sequence => bound(mean(row, |at| at.logprob - at.old)).exp(),
            Importance::SequenceToken => bound(mean(row, |at| at.base - at.old) + at.logprob - at.base).exp(),
        })
        .collect()
}

/// The same with every log-probability at its base.
fn frozen(row: &[At], importance: Importance, bound: impl Fn(f64) -> f64) -> Vec<f64> {
    let row: Vec<At> = row.iter().map(|at| At { logprob: at.base, ..*at }).collect();
    ratios(&row, importance, bound)
}

fn clipped(clip: &Clip, ratio: f64, advantage: f64) -> f64 {
    let capped = clip.cap.map_or(ratio, |cap| ratio.min(cap));
    let held = ratio.max(1.0 - clip.low).min(1.0 + clip.high);
    let loss = (-advantage * capped).max(-advantage * held);
    match clip.dual {
        Some(dual) if advantage < 0.0 => loss.min(-advantage * dual),
        _ => loss,
    }
}

fn dppo(loss: &Dppo, row: &[At], is_trained: impl Fn(&At) -> bool) -> Vec<f64> {
    let ratios = frozen(row, Importance::Token, |d| clamp(d, loss.log_ratio_limit));
    let each = row.iter().zip(ratios).map(|(at, ratio)| {
        if is_trained(at) { -at.advantage * ratio.min(loss.ratio_cap) * at.logprob } else { 0.0 }
    });
    each.collect()
}

/// Loss of each token, with its weights.
fn policy(objective: &Objective, row: &[At]) -> Vec<f64> {
    let importance = objective.importance;
    let mut weighted = true;
    let mut losses: Vec<f64> = match &objective.policy {
        PolicyLoss::Clip(clip) | PolicyLoss::Luspo(clip) => {
            let ratios = ratios(row, importance, |d| clamp(d, clip.log_ratio_limit));
            row.iter().zip(ratios).map(|(at, ratio)| clipped(clip, ratio, at.advantage)).collect()
        }
        PolicyLoss::Decoupled(loss) => {
            let ratios = ratios(row, importance, |d| clamp(d, loss.clip.log_ratio_limit));
            let each = row.iter().zip(ratios).map(|(at, ratio)| {
                let weight = (at.old - at.behaviour).exp().min(loss.weight_cap.unwrap_or(f64::INFINITY));
                weight * clipped(&loss.clip, ratio, at.advantage)
            });
            each.collect()
        }
        PolicyLoss::Gspo(loss) => {
            let importance = match loss.form {
                GspoForm::Sequence => Importance::Sequence,
                GspoForm::Token => Importance::SequenceToken,
            };
            let clip = Clip { high: loss.high, ..Clip::symmetric(loss.low) };
            let ratios = ratios(row, importance, |d| d.min(loss.log_ratio_limit.unwrap_or(f64::INFINITY)));
            row.iter().zip(ratios).map(|(at, ratio)| clipped(&clip, ratio, at.advantage)).collect()
        }
        PolicyLoss::Reinforce | PolicyLoss::Gpg => row.iter().map(|at| -at.advantage * at.logprob).collect(),
        PolicyLoss::ClipCov(loss) => {
            let clip = Clip { high: loss.high, ..Clip::symmetric(loss.low) };
            let ratios = ratios(row, Importance::Token, |d| d);
            let each = row.iter().zip(ratios);
            each.map(|(at, ratio)| if at.selected { 0.0 } else { clipped(&clip, ratio, at.advantage) })
                .collect()
        }
        PolicyLoss::KlCov(loss) => row
            .iter()
            .map(|at| {
                let d = at.logprob - at.old;
                -at.advantage * d.exp() + if at.selected { loss.coef * d.abs() } else { 0.0 }
            })
            .collect(),
        PolicyLoss::GeoMean(loss) => {
            weighted = false;
            let kept: Vec<At> = row.iter().copied().filter(|at| !at.left_out).collect();
            let length = kept.len() as f64 + loss.length_epsilon;
            let over = |of: &dyn Fn(&At) -> f64| kept.iter().map(of).sum::<f64>() / length;
            let log_ratio = over(&|at| {
                let d = at.logprob - at.old;
                let held = d.max(-loss.low).min(loss.high);
                let sign = if at.advantage == 0.0 { 0.0 } else { at.advantage.signum() };
                sign * (sign * d).min(sign * held)
            });
            let weight = over(&|at| (at.weight + loss.weight_epsilon).ln()).exp();
            let loss =
                if kept.is_empty() { 0.0 } else { -over(&|at| at.advantage) * log_ratio.exp() * weight };
            vec![loss; row.len()]
        }
        PolicyLoss::Cispo(loss) => {
            let (low, high) = match loss.bound {
                CispoBound::Relative { low, high } => (1.0 - low, 1.0 + high),
                CispoBound::Absolute { max } => (0.0, max),
            };
            let ratios = frozen(row, importance, |d| clamp(d, loss.log_ratio_limit));
            let each = row.iter().zip(ratios);
            each.map(|(at, ratio)| -ratio.max(low).min(high) * at.advantage * at.logprob).collect()
        }
        PolicyLoss::Sapo(loss) => {
            let ratios = ratios(row, importance, |d| clamp(d, loss.log_ratio_limit));
            let each = row.iter().zip(ratios).map(|(at, ratio)| {
                let tau = if at.advantage > 0.0 { loss.tau_positive } else { loss.tau_negative };
                -(4.0 / tau) / (1.0 + (-tau * (ratio - 1.0)).exp()) * at.advantage
            });
            each.collect()
        }
        PolicyLoss::DppoTv(loss) => dppo(loss, row, |at| {
            let moved = at.base.exp() - at.old.exp();
            if at.advantage > 0.0 { moved <= loss.high } else { moved >= -loss.low }
        }),
        PolicyLoss::DppoKl(loss) => dppo(loss, row, |at| {
            let (new, old) = (at.base.exp(), at.old.exp());
            let kl = old * (at.old - at.base) + (1.0 - old) * ((1.0 - old + 1e-8) / (1.0 - new + 1e-8)).ln();
            // A log-probability above 0 has no divergence: NaN holds nothing.
            let is_held =
                if at.advantage > 0.0 { kl > loss.high && new > old } else { kl > loss.low && new < old };
            !is_held
        }),
        PolicyLoss::Dro(loss) => row
            .iter()
            .map(|at| 0.5 * loss.beta * (at.logprob - at.old).powi(2) - at.advantage * at.logprob)
            .collect(),
        PolicyLoss::Vespo(loss) => {
            weighted = false;
            let sum: f64 = row
                .iter()
                .map(|at| (at.base - at.old).clamp(-20.0, 20.0) + at.weight.max(1e-8).ln().min(20.0))
                .sum();
            let log_weight = sum.clamp(1e-8_f64.ln(), 20.0);
            let phi = |k: f64, lambda: f64| (lambda + k * log_weight - lambda * log_weight.exp()).exp();
            let each = row.iter().map(|at| {
                let phi = if at.advantage >= 0.0 {
                    phi(loss.k_positive, loss.lambda_positive)
                } else {
                    phi(loss.k_negative, loss.lambda_negative)
                };
                if at.left_out { 0.0 } else { -phi * at.advantage * at.logprob }
            });
            each.collect()
        }
    };
    let is_far = objective
        .masks
        .off_policy
        .is_some_and(|threshold| mean(row, |at| at.behaviour - at.base) > threshold);
    for (loss, at) in losses.iter_mut().zip(row) {
        if weighted {
            *loss *= if at.left_out { 0.0 } else { at.weight };
        }
        if is_far && at.advantage < 0.0 {
            *loss = 0.0;
        }
    }
    losses
}

fn divergence(estimator: KlEstimator, at: &At, logprob: f64) -> f64 {
    let d = logprob - at.reference;
    match estimator.kind {
        KlKind::K1 => d,
        KlKind::Abs => d.abs(),
        KlKind::K2 => d * d / 2.0,
        KlKind::K3 => {
            let value = (-d).exp_m1() + d;
            if estimator.clamped { value.min(10.0) } else { value }
        }
    }
}

/// Bounds on the log-ratio of the loss, which the bias correction of the divergence shares.
fn bound(policy: &PolicyLoss) -> (f64, f64) {
    let both = |limit: Option<f64>| limit.map_or((f64::NEG_INFINITY, f64::INFINITY), |limit| (-limit, limit));
    match policy {
        PolicyLoss::Clip(clip) | PolicyLoss::Luspo(clip) => both(clip.log_ratio_limit),
        PolicyLoss::Decoupled(loss) => both(loss.clip.log_ratio_limit),
        PolicyLoss::Gspo(loss) => (f64::NEG_INFINITY, loss.log_ratio_limit.unwrap_or(f64::INFINITY)),
        PolicyLoss::Cispo(loss) => both(loss.log_ratio_limit),
        PolicyLoss::Sapo(loss) => both(loss.log_ratio_limit),
        PolicyLoss::DppoTv(loss) | PolicyLoss::DppoKl(loss) => both(loss.log_ratio_limit),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    }
}

/// The whole loss of a gathered batch whose log-probabilities were `base` where the derivative is taken.
pub(crate) fn loss(
    objective: &Objective,
    gathered: &Gathered,
    base: &[f64],
    normalisers: &Normalisers,
) -> f64 {
    let columns: Columns<'_, f64> = gathered.columns();
    let [logprob, old, behaviour, reference, entropy, weight, value, old_value, returns] = &gathered.columns;
    let state = objective.initial_state();
    let mut total = 0.0;
    for i in 0..columns.num_sequences() {
        let tokens = gathered.offsets[i]..gathered.offsets[i + 1];
        let tokens: Vec<usize> = tokens.filter(|&t| gathered.mask[t]).collect();
        if tokens.is_empty() {
            continue;
        }
        let row: Vec<At> = tokens
            .iter()
            .map(|&t| At {
                base: base[t],
                logprob: logprob[t],
                old: old[t],
                behaviour: behaviour[t],
                reference: reference[t],
                weight: weight[t],
                advantage: gathered.advantage[i],
                selected: gathered.selection[t] & Selection::BY_COVARIANCE != 0,
                left_out: gathered.selection[t] & Selection::LEFT_OUT != 0,
            })
            .collect();
        let group = GroupCounts {
            tokens: Some(gathered.group_tokens[i]),
            sequences: Some(gathered.group_sequences[i]),
        };
        let scale = |aggregation: &Aggregation| aggregation.weight(row.len(), group, normalisers).unwrap();
        let whole = scale(&objective.aggregation);
        total += whole * policy(objective, &row).iter().sum::<f64>();
        if let (Some(term), Some(state)) = (objective.kl, state.kl) {
            let importance = match &objective.policy {
                PolicyLoss::Gspo(loss) if loss.form == GspoForm::Sequence => Importance::Sequence,
                PolicyLoss::Gspo(_) => Importance::SequenceToken,
                _ => objective.importance,
            };
            let (low, high) = bound(&objective.policy);
            let ratios = ratios(&row, importance, |d| d.max(low).min(high));
            for (at, ratio) in row.iter().zip(ratios) {
                let estimate = if term.estimator.straight_through {
                    let k2 = |logprob: f64| (logprob - at.reference).powi(2) / 2.0;
                    divergence(term.estimator, at, at.base) + k2(at.logprob) - k2(at.base)
                } else {
                    divergence(term.estimator, at, at.logprob)
                };
                total += whole * state.coef * estimate * if term.bias_corrected { ratio } else { 1.0 };
            }
        }
        if let (Some(bonus), Some(state)) = (objective.entropy, state.entropy) {
            let scale = scale(&bonus.aggregation.unwrap_or(objective.aggregation));
            let sum: f64 = tokens.iter().map(|&t| entropy[t]).sum();
            total -= scale * bonus.used(state) * sum;
        }
        if let Some(term) = objective.value {
            let scale = scale(&term.aggregation.unwrap_or(objective.aggregation));
            for &t in &tokens {
                let held = term
                    .clip
                    .map_or(value[t], |clip| value[t].max(old_value[t] - clip).min(old_value[t] + clip));
                let error = (value[t] - returns[t]).powi(2).max((held - returns[t]).powi(2));
                total += scale * term.coef * error / 2.0;
            }
        }
    }
    total
}
