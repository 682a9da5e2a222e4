//! From a step's batch to new weights: mini-batches, epochs, micro-batches, and the objective between forward and backward.

use std::num::NonZeroUsize;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tamis_core::advantage::Advantages;
use tamis_core::correction::{Correction, SamplerColumns};
use tamis_core::group::Group;
use tamis_core::objective::{
    Accumulator, AdvantageColumn, Columns, Evaluation, Metrics, Normalisers, Objective, ObjectiveState,
    PolicyLoss, Selection, ZeroGroups,
};
use tamis_core::ragged::Ragged;
use tamis_core::random::Key;
use tamis_core::schedule::mini_batches;

use crate::learner::{Coefficients, Learner, LearnerError, LearnerSequence, PolicyScores};

/// How an optimizer batch is cut for the forward pass; the result does not depend on it beyond the order of f32 additions into the
/// gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MicroBatch {
    /// At most this many tokens, a prompt that neighbours share counted once; a longer sequence passes alone.
    Tokens(usize),
    /// This many sequences.
    Sequences(usize),
}

/// How a batch becomes optimizer updates.
#[derive(Debug, Clone)]
pub struct UpdateSettings {
    /// Groups of one update.
    pub mini_batch_size: NonZeroUsize,
    /// Passes over the batch.
    pub epochs: usize,
    /// Shuffle groups before they are cut into mini-batches.
    pub shuffle: Option<Key>,
    /// How a mini-batch is cut.
    pub micro_batch: MicroBatch,
    /// Leave truncated trajectories out of the loss.
    pub mask_truncated: bool,
    /// Correction for a sampler that is not the policy.
    pub correction: Option<Correction>,
    /// Key of the choices that the objective draws.
    pub key: Key,
}

/// A step's batch: whole groups with what was computed for them.
#[derive(Debug, Clone, Copy)]
pub struct TrainingBatch<'a> {
    /// Kept groups \[P\].
    pub groups: &'a [&'a Group],
    /// Advantages.
    pub advantages: &'a Advantages,
    /// Which trajectories stay in the loss `[P][G]`; `None`: all.
    pub kept: Option<&'a Ragged<bool>>,
    /// Factor of the policy term.
    pub policy_factor: f64,
    /// Log-probabilities under the policy at the start of the step, one row per trajectory `[B][T]`. `None`: those that generation gave.
    pub old: Option<&'a Ragged<f32>>,
    /// What the filter dropped, where it stays in the denominators.
    pub dropped: Option<Normalisers>,
    /// Log-probabilities of the reference, one row per trajectory `[B][T]`.
    pub reference: Option<&'a Ragged<f32>>,
}

/// What the updates of one step did.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct UpdateReport {
    /// Optimizer updates taken.
    pub num_updates: usize,
    /// Updates left out because the gradient was not finite.
    pub num_skipped: usize,
    /// Whether each was left out, in order.
    pub skipped: Vec<bool>,
    /// Mean loss over the updates taken.
    pub loss: f64,
    /// Mean norm of the gradient before clipping, over finite ones.
    pub grad_norm: f64,
    /// Mean of each objective metric over the updates taken, by name as logged.
    pub metrics: Vec<(String, f64)>,
}

/// Which tokens are trained on: those of the policy, in scored (and, where asked for, untruncated) trajectories.
pub fn mask_of(group: &Group, mask_truncated: bool) -> impl Iterator<Item = Vec<bool>> {
    group.trajectories.iter().map(move |trajectory| {
        if trajectory.is_scored() && !(mask_truncated && trajectory.is_truncated()) {
            trajectory.loss_mask.clone()
        } else {
            vec![false; trajectory.token_ids.len()]
        }
    })
}

/// Row of each group's first trajectory \[P\].
pub(crate) fn first_rows(groups: &[&Group]) -> Vec<usize> {
    groups
        .iter()
        .scan(0, |row, group| {
            let first = *row;
            *row += group.trajectories.len();
            Some(first)
        })
        .collect()
}

/// The order in which an epoch takes groups into mini-batches.
pub(crate) fn order(shuffle: Option<Key>, epoch: usize, num_groups: usize) -> Vec<usize> {
    match shuffle {
        Some(key) => key.with(epoch as u64).permutation(num_groups),
        None => (0..num_groups).collect(),
    }
}

/// Cuts sequences into micro-batches, in order. By tokens, neighbours with the same prompt (which the learner computes once) stay
/// together where a micro-batch holds them all.
pub fn micro_batches(sequences: &[LearnerSequence<'_>], micro_batch: MicroBatch) -> Vec<Range<usize>> {
    let limit = match micro_batch {
        MicroBatch::Tokens(limit) => limit,
        MicroBatch::Sequences(limit) => {
            let (limit, len) = (limit.max(1), sequences.len());
            return (0..len).step_by(limit).map(|start| start..len.min(start + limit)).collect();
        }
    };
    let mut ranges = Vec::new();
    let (mut start, mut at, mut tokens) = (0, 0, 0);
    for group in sequences.chunk_by(|a, b| a.prompt == b.prompt) {
        let whole =
            group.iter().map(|sequence| sequence.completion.len()).sum::<usize>() + group[0].prompt.len();
        if at > start && tokens + whole > limit && whole <= limit {
            ranges.push(start..at);
            (start, tokens) = (at, 0);
        }
        for (i, sequence) in group.iter().enumerate() {
            let prompt = if i == 0 || at == start { sequence.prompt.len() } else { 0 };
            let mut more = sequence.completion.len() + prompt;
            if at > start && tokens + more > limit {
                ranges.push(start..at);
                (start, tokens) = (at, 0);
                more = sequence.completion.len() + sequence.prompt.len();
            }
            tokens += more;
            at += 1;
        }
    }
    if start < at {
        ranges.push(start..at);
    }
    ranges
}

/// Trains on a batch: `epochs` passes, one optimizer update per mini-batch. `state` moves on with every update.
///
/// Metrics are means over the updates, as verl reduces them.
pub fn update(
    learner: &mut dyn Learner,
    objective: &Objective,
    state: &mut ObjectiveState,
    batch: TrainingBatch<'_>,
    settings: &UpdateSettings,
    learning_rate: f64,
) -> Result<UpdateReport, LearnerError> {
    let mut report = UpdateReport::default();
    let mut totals: Vec<(String, f64, usize)> = Vec::new();
    let mut norms = 0.0;
    let first_row = first_rows(batch.groups);
    for epoch in 0..settings.epochs {
        let order = order(settings.shuffle, epoch, batch.groups.len());
        for (index, range) in mini_batches(order.len(), settings.mini_batch_size).into_iter().enumerate() {
            let places = &order[range];
            let mini = MiniBatch::of(batch, &first_row, places, settings);
            if mini.live().is_empty() {
                // Nothing to learn from: an optimizer step would decay weights and move by old momentum alone.
                continue;
            }
            let key = settings.key.with(epoch as u64).with(index as u64);
            let (outcome, corrected) = mini.pass(learner, objective, state, settings, key)?;
            let step = learner.optimizer_step(learning_rate)?;
            report.skipped.push(step.skipped);
            if step.skipped {
                // Nothing of it is kept: a state that moved on with numbers that are not finite would spoil every later update.
                report.num_skipped += 1;
                continue;
            }
            report.num_updates += 1;
            norms += step.grad_norm;
            report.loss += outcome.loss;
            *state = outcome.state;
            let of_objective =
                named(&outcome.metrics).into_iter().map(|(name, value)| (name.to_owned(), value));
            // What the correction measured of the policy that sampled stands in place of the objective's own figure of that name.
            let of_objective = of_objective
                .filter(|(name, _)| corrected.iter().all(|(other, _)| other != name))
                .collect::<Vec<_>>();
            for (name, value) in of_objective.into_iter().chain(corrected) {
                if value.is_nan() {
                    continue;
                }
                match totals.iter_mut().find(|(known, ..)| *known == name) {
                    Some((_, total, count)) => {
                        *total += value;
                        *count += 1;
                    }
                    None => totals.push((name, value, 1)),
                }
            }
        }
    }
    // Where nothing was to be learned, 0; where every update was left out, there is no number.
    let divisor = if report.skipped.is_empty() { 1.0 } else { report.num_updates as f64 };
    report.loss /= divisor;
    report.grad_norm = norms / divisor;
    report.metrics = totals.into_iter().map(|(name, total, count)| (name, total / count as f64)).collect();
    Ok(report)
}

fn named(metrics: &Metrics) -> Vec<(&'static str, f64)> {
    metrics.named()
}

/// The columns of one optimizer batch.
struct MiniBatch<'a> {
    sequences: Vec<LearnerSequence<'a>>,
    mask: Ragged<bool>,
    /// As generation gave them \[N\].
    behaviour: Vec<f32>,
    /// Under the policy at the start of the step, where that was computed anew \[N\].
    old: Option<Vec<f32>>,
    reference: Option<Vec<f32>>,
    /// One per trajectory \[B\] or per token \[N\].
    advantages: Vec<f64>,
    is_per_token: bool,
    policy_factor: f64,
    sizes: Vec<usize>,
    dropped: Option<Normalisers>,
}

impl<'a> MiniBatch<'a> {
    /// The groups at `places` of the batch.
    fn of(
        batch: TrainingBatch<'a>,
        first_row: &[usize],
        places: &[usize],
        settings: &UpdateSettings,
    ) -> Self {
        let mut mini = Self {
            sequences: Vec::new(),
            mask: Ragged::default(),
            behaviour: Vec::new(),
            old: batch.old.map(|_| Vec::new()),
            reference: batch.reference.map(|_| Vec::new()),
            advantages: Vec::new(),
            is_per_token: matches!(batch.advantages, Advantages::PerToken(_)),
            policy_factor: batch.policy_factor,
            sizes: Vec::with_capacity(places.len()),
            // Each optimizer batch bears its share of what was dropped.
            dropped: batch.dropped.map(|dropped| {
                let share = places.len() as f64 / batch.groups.len().max(1) as f64;
                Normalisers {
                    tokens: dropped.tokens * share,
                    sequences: dropped.sequences * share,
                    groups: dropped.groups * share,
                    dp_size: dropped.dp_size,
                }
            }),
        };
        for &place in places {
            let group = batch.groups[place];
            mini.sizes.push(group.trajectories.len());
            for (i, mut mask_t) in mask_of(group, settings.mask_truncated).enumerate() {
                if batch.kept.is_some_and(|kept| !kept.row(place)[i]) {
                    mask_t.fill(false);
                }
                mini.mask.push_row(mask_t);
            }
            if let Advantages::PerTrajectory(advantages) = batch.advantages {
                mini.advantages.extend_from_slice(advantages.row(place));
            }
            for (i, trajectory) in group.trajectories.iter().enumerate() {
                let row = first_row[place] + i;
                if let Advantages::PerToken(advantages) = batch.advantages {
                    mini.advantages.extend_from_slice(advantages.row(row));
                }
                mini.behaviour.extend_from_slice(&trajectory.logprobs);
                mini.sequences.push(LearnerSequence {
                    prompt: &group.prompt_token_ids,
                    completion: &trajectory.token_ids,
                });
                if let (Some(column), Some(rows)) = (&mut mini.reference, batch.reference) {
                    column.extend_from_slice(rows.row(row));
                }
                if let (Some(column), Some(rows)) = (&mut mini.old, batch.old) {
                    column.extend_from_slice(rows.row(row));
                }
            }
        }
        mini
    }

    /// Sequences with a token to train on; the others cost no forward pass.
    fn live(&self) -> Vec<usize> {
        (0..self.sequences.len()).filter(|&row| self.mask.row(row).contains(&true)).collect()
    }

    fn old(&self) -> &[f32] {
        self.old.as_deref().unwrap_or(&self.behaviour)
    }

    fn advantage(&self) -> AdvantageColumn<'_> {
        if self.is_per_token {
            AdvantageColumn::PerToken(&self.advantages)
        } else {
            AdvantageColumn::PerTrajectory(&self.advantages)
        }
    }

    /// The policy's log-probabilities and entropies over the whole optimizer batch \[N\]; 0 in sequences that are not trained on.
    fn scores(
        &self,
        learner: &mut dyn Learner,
        settings: &UpdateSettings,
    ) -> Result<PolicyScores, LearnerError> {
        let num_tokens = self.mask.num_values();
        let mut all = PolicyScores { logprobs: vec![0.0; num_tokens], entropies: vec![0.0; num_tokens] };
        let live = self.live();
        let sequences: Vec<LearnerSequence<'_>> = live.iter().map(|&row| self.sequences[row]).collect();
        for range in micro_batches(&sequences, settings.micro_batch) {
            let scores = learner.policy_scores(&sequences[range.clone()], 1.0)?;
            let mut from = 0;
            for &row in &live[range] {
                let tokens = self.mask.offsets()[row]..self.mask.offsets()[row + 1];
                let to = from + tokens.len();
                all.logprobs[tokens.clone()].copy_from_slice(&scores.logprobs[from..to]);
                all.entropies[tokens].copy_from_slice(&scores.entropies[from..to]);
                from = to;
            }
        }
        Ok(all)
    }

    /// Forward and backward: correction and choices over the whole, then micro-batch by micro-batch.
    fn pass(
        mut self,
        learner: &mut dyn Learner,
        objective: &Objective,
        state: &ObjectiveState,
        settings: &UpdateSettings,
        key: Key,
    ) -> Result<(tamis_core::objective::Outcome, Vec<(String, f64)>), LearnerError> {
        let judges_policy = |correction: &Correction| {
            correction.mode.is_bypass()
                && (correction.importance.is_some() || !correction.rejections.is_empty())
        };
        let needs_scores =
            objective.needs_selection() || settings.correction.as_ref().is_some_and(judges_policy);
        let scores = if needs_scores { Some(self.scores(learner, settings)?) } else { None };
        let mut weight: Option<Vec<f32>> = None;
        let mut corrected_metrics = Vec::new();
        if let Some(correction) = &settings.correction {
            let old = match &scores {
                Some(scores) if judges_policy(correction) => &scores.logprobs,
                _ => self.old(),
            };
            let columns = SamplerColumns {
                offsets: self.mask.offsets(),
                mask: self.mask.values(),
                old,
                behaviour: &self.behaviour,
            };
            let corrected = correction.correct(&columns)?;
            weight = corrected.weights.map(|weights| weights.iter().map(|&weight| weight as f32).collect());
            corrected_metrics = corrected.metrics.named();
            for row in 0..self.mask.num_rows() {
                let tokens = self.mask.offsets()[row]..self.mask.offsets()[row + 1];
                self.mask.row_mut(row).copy_from_slice(&corrected.mask[tokens]);
            }
        }
        #[expect(clippy::float_cmp, reason = "1 is the factor of a batch without such a shaping, exactly")]
        if self.policy_factor != 1.0 {
            let factor = self.policy_factor as f32;
            let weights = weight.get_or_insert_with(|| vec![1.0; self.mask.num_values()]);
            for weight in weights {
                *weight *= factor;
            }
        }
        let selection = match &scores {
            Some(scores) if objective.needs_selection() => {
                let columns = Columns {
                    old: Some(self.old()),
                    entropy: Some(&scores.entropies),
                    ..Columns::new(
                        self.mask.offsets(),
                        self.mask.values(),
                        &scores.logprobs,
                        self.advantage(),
                    )
                };
                Some(objective.select(&columns, key)?)
            }
            _ => None,
        };
        let outcome =
            self.micro_batches(learner, objective, state, settings, weight.as_deref(), selection.as_ref())?;
        Ok((outcome, corrected_metrics))
    }

    fn micro_batches(
        &self,
        learner: &mut dyn Learner,
        objective: &Objective,
        state: &ObjectiveState,
        settings: &UpdateSettings,
        weight: Option<&[f32]>,
        selection: Option<&Selection>,
    ) -> Result<tamis_core::objective::Outcome, LearnerError> {
        let mask = &self.mask;
        let (mut normalisers, group_tokens) = Normalisers::of(mask, &self.sizes)?;
        if let Some(dropped) = self.dropped {
            normalisers = normalisers.with_dropped(dropped, ZeroGroups::Mask);
        }
        let group_sequences = Normalisers::group_sequences(mask, &self.sizes)?;
        let mut accumulator = Accumulator::new(self.sequences.len());
        let live = self.live();
        let live_sequences: Vec<LearnerSequence<'_>> = live.iter().map(|&row| self.sequences[row]).collect();
        let mut evaluation = Evaluation::default();
        for range in micro_batches(&live_sequences, settings.micro_batch) {
            let (rows, micro) = (&live[range.clone()], &live_sequences[range]);
            let mask_n: Vec<bool> = rows.iter().flat_map(|&row| mask.row(row)).copied().collect();
            let old_n = cut(self.old(), mask, rows);
            let is_decoupled = matches!(objective.policy, PolicyLoss::Decoupled(_));
            let behaviour_n = (self.old.is_some() || is_decoupled).then(|| cut(&self.behaviour, mask, rows));
            let reference_n = self.reference.as_ref().map(|column| cut(column, mask, rows));
            let weight_n = weight.map(|column| cut(column, mask, rows));
            let selection_n = selection.map(|selection| cut(&selection.flags, mask, rows));
            let advantages: Vec<f64> = if self.is_per_token {
                cut(&self.advantages, mask, rows)
            } else {
                rows.iter().map(|&row| self.advantages[row]).collect()
            };
            let advantage = if self.is_per_token {
                AdvantageColumn::PerToken(&advantages)
            } else {
                AdvantageColumn::PerTrajectory(&advantages)
            };
            let group_tokens_b: Vec<f64> = rows.iter().map(|&row| group_tokens[row]).collect();
            let group_sequences_b: Vec<f64> = rows.iter().map(|&row| group_sequences[row]).collect();
            let mut offsets = vec![0];
            offsets.extend(rows.iter().scan(0, |end, &row| {
                *end += mask.row(row).len();
                Some(*end)
            }));
            learner.forward_backward(
                micro,
                &mut |logprobs, entropies, coefficients: &mut Coefficients| {
                    let columns = Columns {
                        old: Some(&old_n),
                        behaviour: behaviour_n.as_deref(),
                        reference: reference_n.as_deref(),
                        entropy: Some(entropies),
                        weight: weight_n.as_deref(),
                        selection: selection_n.as_deref(),
                        group_tokens: Some(&group_tokens_b),
                        group_sequences: Some(&group_sequences_b),
                        ..Columns::new(&offsets, &mask_n, logprobs, advantage)
                    };
                    objective.evaluate(&columns, &normalisers, state, &mut evaluation)?;
                    coefficients.logprob.clone_from(&evaluation.derivatives.logprob);
                    coefficients.entropy.clone_from(&evaluation.derivatives.entropy);
                    for (&row, sums) in rows.iter().zip(&evaluation.sequences) {
                        accumulator.record(row, *sums)?;
                    }
                    Ok(())
                },
            )?;
        }
        Ok(accumulator.finish(objective, state))
    }
}

/// The tokens of some rows of a flat column.
pub(crate) fn cut<T: Copy>(values: &[T], mask: &Ragged<bool>, rows: &[usize]) -> Vec<T> {
    rows.iter().flat_map(|&row| &values[mask.offsets()[row]..mask.offsets()[row + 1]]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sequences by (prompt, its length, length of the completion).
    fn cut(sequences: &[(u32, usize, usize)], micro_batch: MicroBatch) -> Vec<Range<usize>> {
        let tokens: Vec<(Vec<u32>, Vec<u32>)> = sequences
            .iter()
            .map(|&(prompt, len, completion)| (vec![prompt; len], vec![0; completion]))
            .collect();
        let sequences: Vec<_> =
            tokens.iter().map(|(prompt, completion)| LearnerSequence { prompt, completion }).collect();
        micro_batches(&sequences, micro_batch)
    }

    #[test]
    fn micro_batches_fill_up_to_the_budget_in_order() {
        let apart = [(0, 1, 2), (1, 1, 2), (2, 1, 2), (3, 1, 8), (4, 1, 0)];
        assert_eq!(cut(&apart, MicroBatch::Tokens(6)), [0..2, 2..3, 3..4, 4..5]);
        assert_eq!(cut(&apart, MicroBatch::Sequences(2)), [0..2, 2..4, 4..5]);
        assert!(cut(&[], MicroBatch::Tokens(6)).is_empty());
        assert!(cut(&[], MicroBatch::Sequences(6)).is_empty());
    }

    #[test]
    fn a_shared_prompt_counts_once_and_keeps_its_members_together() {
        // 4 + 3 x 2 tokens each: one group fits into 10, and neither is split to fill 12.
        let groups = [(0, 4, 2), (0, 4, 2), (0, 4, 2), (1, 4, 2), (1, 4, 2), (1, 4, 2)];
        assert_eq!(cut(&groups, MicroBatch::Tokens(10)), [0..3, 3..6]);
        assert_eq!(cut(&groups, MicroBatch::Tokens(19)), [0..3, 3..6]);
        assert_eq!(cut(&groups, MicroBatch::Tokens(20)), [0..6; 1]);
        // Too large for one: the prompt counts again in each.
        assert_eq!(cut(&groups, MicroBatch::Tokens(8)), [0..2, 2..3, 3..5, 5..6]);
        assert_eq!(cut(&groups, MicroBatch::Tokens(1)), [0..1, 1..2, 2..3, 3..4, 4..5, 5..6]);
    }
}
