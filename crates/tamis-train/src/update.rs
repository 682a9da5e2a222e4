//! From a step's batch to new weights: mini-batches, epochs, micro-batches, and the objective between forward and backward.

use std::num::NonZeroUsize;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tamis_core::group::Group;
use tamis_core::objective::{
    Accumulator, AdvantageColumn, Columns, Evaluation, Metrics, Normalisers, Objective, ObjectiveState,
};
use tamis_core::ragged::Ragged;
use tamis_core::random::Key;
use tamis_core::schedule::mini_batches;

use crate::learner::{Coefficients, Learner, LearnerError, LearnerSequence};

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
}

/// A step's batch: whole groups with what was computed for them.
#[derive(Debug, Clone, Copy)]
pub struct TrainingBatch<'a> {
    /// Kept groups \[P\].
    pub groups: &'a [&'a Group],
    /// Advantages `[P][G]`.
    pub advantages: &'a Ragged<f64>,
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
    /// Mean loss over updates.
    pub loss: f64,
    /// Mean norm of the gradient before clipping, over finite ones.
    pub grad_norm: f64,
    /// Mean of each objective metric over updates, by name as logged.
    pub metrics: Vec<(String, f64)>,
}

/// Which tokens are trained on: those of the policy, in scored (and, where asked for, untruncated) trajectories.
fn mask_of(group: &Group, mask_truncated: bool) -> impl Iterator<Item = Vec<bool>> {
    group.trajectories.iter().map(move |trajectory| {
        if trajectory.is_scored() && !(mask_truncated && trajectory.is_truncated()) {
            trajectory.loss_mask.clone()
        } else {
            vec![false; trajectory.token_ids.len()]
        }
    })
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
/// Old log-probabilities are those kept from generation. Metrics are means over the updates, as verl reduces them.
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
    let first_row: Vec<usize> = batch
        .groups
        .iter()
        .scan(0, |row, group| {
            let first = *row;
            *row += group.trajectories.len();
            Some(first)
        })
        .collect();
    for epoch in 0..settings.epochs {
        let order = match settings.shuffle {
            Some(key) => key.with(epoch as u64).permutation(batch.groups.len()),
            None => (0..batch.groups.len()).collect(),
        };
        for range in mini_batches(order.len(), settings.mini_batch_size) {
            let places = &order[range];
            let outcome = mini_batch(learner, objective, state, batch, &first_row, places, settings)?;
            let step = learner.optimizer_step(learning_rate)?;
            if step.skipped {
                report.num_skipped += 1;
            } else {
                report.num_updates += 1;
                norms += step.grad_norm;
            }
            report.loss += outcome.loss;
            *state = outcome.state;
            for (name, value) in named(&outcome.metrics) {
                if value.is_nan() {
                    continue;
                }
                match totals.iter_mut().find(|(known, ..)| known == name) {
                    Some((_, total, count)) => {
                        *total += value;
                        *count += 1;
                    }
                    None => totals.push((name.to_owned(), value, 1)),
                }
            }
        }
    }
    let num_batches = report.num_updates + report.num_skipped;
    report.loss /= num_batches.max(1) as f64;
    report.grad_norm = norms / report.num_updates as f64;
    report.metrics = totals.into_iter().map(|(name, total, count)| (name, total / count as f64)).collect();
    Ok(report)
}

fn named(metrics: &Metrics) -> Vec<(&'static str, f64)> {
    metrics.named()
}

/// Forward and backward over one mini-batch, the groups at `places` of the batch.
fn mini_batch(
    learner: &mut dyn Learner,
    objective: &Objective,
    state: &ObjectiveState,
    batch: TrainingBatch<'_>,
    first_row: &[usize],
    places: &[usize],
    settings: &UpdateSettings,
) -> Result<tamis_core::objective::Outcome, LearnerError> {
    let mut mask = Ragged::default();
    let mut sizes = Vec::with_capacity(places.len());
    let mut sequences = Vec::new();
    let (mut old, mut advantages, mut reference) = (Vec::new(), Vec::new(), Vec::new());
    for &place in places {
        let group = batch.groups[place];
        sizes.push(group.trajectories.len());
        for mask_t in mask_of(group, settings.mask_truncated) {
            mask.push_row(mask_t);
        }
        advantages.extend_from_slice(batch.advantages.row(place));
        for (i, trajectory) in group.trajectories.iter().enumerate() {
            old.extend_from_slice(&trajectory.logprobs);
            sequences
                .push(LearnerSequence { prompt: &group.prompt_token_ids, completion: &trajectory.token_ids });
            if let Some(rows) = batch.reference {
                reference.extend_from_slice(rows.row(first_row[place] + i));
            }
        }
    }
    let (normalisers, group_tokens) = Normalisers::of(&mask, &sizes)?;
    let mut accumulator = Accumulator::new(sequences.len());
    // Sequences without a token to train on cost no forward pass.
    let live: Vec<usize> =
        (0..sequences.len()).filter(|&row| mask.row(row).iter().any(|&trained| trained)).collect();
    let live_sequences: Vec<LearnerSequence<'_>> = live.iter().map(|&row| sequences[row]).collect();
    let mut evaluation = Evaluation::default();
    for range in micro_batches(&live_sequences, settings.micro_batch) {
        let (rows, micro) = (&live[range.clone()], &live_sequences[range]);
        let cut = |values: &[f32]| -> Vec<f32> {
            rows.iter()
                .flat_map(|&row| &values[mask.offsets()[row]..mask.offsets()[row + 1]])
                .copied()
                .collect()
        };
        let mask_n: Vec<bool> = rows.iter().flat_map(|&row| mask.row(row)).copied().collect();
        let old_n = cut(&old);
        let reference_n = batch.reference.map(|_| cut(&reference));
        let advantages_b: Vec<f64> = rows.iter().map(|&row| advantages[row]).collect();
        let group_tokens_b: Vec<f64> = rows.iter().map(|&row| group_tokens[row]).collect();
        let mut offsets = vec![0];
        offsets.extend(rows.iter().scan(0, |end, &row| {
            *end += mask.row(row).len();
            Some(*end)
        }));
        learner.forward_backward(micro, &mut |logprobs, entropies, coefficients: &mut Coefficients| {
            let columns = Columns {
                old: Some(&old_n),
                reference: reference_n.as_deref(),
                entropy: Some(entropies),
                group_tokens: Some(&group_tokens_b),
                ..Columns::new(&offsets, &mask_n, logprobs, AdvantageColumn::PerTrajectory(&advantages_b))
            };
            objective.evaluate(&columns, &normalisers, state, &mut evaluation)?;
            coefficients.logprob.clear();
            coefficients
                .logprob
                .extend(evaluation.derivatives.logprob.iter().map(|&derivative| derivative as f32));
            coefficients.entropy.clear();
            coefficients
                .entropy
                .extend(evaluation.derivatives.entropy.iter().map(|&derivative| derivative as f32));
            for (&row, sums) in rows.iter().zip(&evaluation.sequences) {
                accumulator.record(row, *sums)?;
            }
            Ok(())
        })?;
    }
    Ok(accumulator.finish(objective, state))
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
