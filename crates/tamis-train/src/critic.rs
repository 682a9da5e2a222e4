//! The critic's part of a step: values of the batch, then its own updates on the returns that advantages were made with.
//!
//! ```text
//! batch -> values -> advantage and returns -> [critic's mini-batches: value loss] -> policy's mini-batches
//! ```

use std::num::NonZeroUsize;

use tamis_core::group::Group;
use tamis_core::objective::{CriticColumns, Normalisers, ValueColumns, ValueMetrics, ValueSums, ValueTerm};
use tamis_core::ragged::Ragged;
use tamis_core::random::Key;
use tamis_core::schedule::mini_batches;

use crate::learner::{CriticLearner, LearnerError, LearnerSequence};
use crate::update::{MicroBatch, cut, first_rows, mask_of, micro_batches, order};

/// How a batch becomes updates of the critic.
#[derive(Debug, Clone, Copy)]
pub struct CriticSettings {
    /// Groups of one update.
    pub mini_batch_size: NonZeroUsize,
    /// Passes over the batch.
    pub epochs: usize,
    /// Shuffle groups before they are cut into mini-batches.
    pub shuffle: Option<Key>,
    /// How a mini-batch is cut.
    pub micro_batch: MicroBatch,
    /// The value loss, with its aggregation.
    pub loss: ValueTerm,
}

/// What the critic learns from; per-token rows are one per trajectory `[B][T]`.
#[derive(Debug, Clone, Copy)]
pub struct CriticBatch<'a> {
    /// Trained groups \[P\].
    pub groups: &'a [&'a Group],
    /// Values under the critic at the start of the step.
    pub old: &'a Ragged<f64>,
    /// What they should have been.
    pub returns: &'a Ragged<f64>,
}

/// What the critic's updates of one step did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CriticReport {
    /// Optimizer updates taken.
    pub num_updates: usize,
    /// Updates left out because the gradient was not finite.
    pub num_skipped: usize,
    /// Whether each was left out, in order.
    pub skipped: Vec<bool>,
    /// Mean norm of the gradient before clipping, over finite ones; NaN where there was none.
    pub grad_norm: f64,
    /// Mean of each figure of the value loss over the updates taken that have it (shares and means have none where no token is trained
    /// on), by name as logged.
    pub metrics: Vec<(&'static str, f64)>,
}

/// Values of all trajectories, one row each `[B][T]`.
pub fn values(
    learner: &mut dyn CriticLearner,
    sequences: &[LearnerSequence<'_>],
    micro_batch: MicroBatch,
) -> Result<Ragged<f64>, LearnerError> {
    let mut rows = Ragged::default();
    for range in micro_batches(sequences, micro_batch) {
        let said = learner.values(&sequences[range.clone()])?;
        let mut rest = said.as_slice();
        for sequence in &sequences[range] {
            let (row, after) = rest.split_at(sequence.completion.len().min(rest.len()));
            rows.push_row(row.iter().map(|&value| f64::from(value)));
            rest = after;
        }
    }
    Ok(rows)
}

/// Trains the critic on a batch: `epochs` passes, one optimizer update per mini-batch, over the tokens of the policy in scored trajectories
/// (truncated ones too: what they got is what was still to come).
///
/// Derivatives, loss and metrics do not depend on how a mini-batch is cut into micro-batches. Metrics are means over the updates taken.
pub fn update_critic(
    learner: &mut dyn CriticLearner,
    batch: CriticBatch<'_>,
    settings: &CriticSettings,
    learning_rate: f64,
) -> Result<CriticReport, LearnerError> {
    let mut report = CriticReport::default();
    let mut totals: Vec<(&'static str, f64, usize)> = Vec::new();
    let mut norms = 0.0;
    let mask = Ragged::from_rows(batch.groups.iter().flat_map(|group| mask_of(group, false)));
    let first_row = first_rows(batch.groups);
    for epoch in 0..settings.epochs {
        let order = order(settings.shuffle, epoch, batch.groups.len());
        for range in mini_batches(order.len(), settings.mini_batch_size) {
            let metrics = pass(learner, batch, &mask, &first_row, &order[range], settings)?;
            let step = learner.critic_step(learning_rate)?;
            report.skipped.push(step.skipped);
            if step.skipped {
                report.num_skipped += 1;
                continue;
            }
            report.num_updates += 1;
            norms += step.grad_norm;
            for (name, value) in metrics.named() {
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
    report.grad_norm = norms / report.num_updates as f64;
    report.metrics = totals.into_iter().map(|(name, total, count)| (name, total / count as f64)).collect();
    Ok(report)
}

/// Forward and backward over one mini-batch, the groups at `places`.
fn pass(
    learner: &mut dyn CriticLearner,
    batch: CriticBatch<'_>,
    mask: &Ragged<bool>,
    first_row: &[usize],
    places: &[usize],
    settings: &CriticSettings,
) -> Result<ValueMetrics, LearnerError> {
    // Rows of the batch, in the order of the mini-batch.
    let rows: Vec<usize> = places
        .iter()
        .flat_map(|&place| first_row[place]..first_row[place] + batch.groups[place].trajectories.len())
        .collect();
    let sequences: Vec<LearnerSequence<'_>> = places
        .iter()
        .flat_map(|&place| {
            let group = batch.groups[place];
            let prompt = group.prompt_token_ids.as_slice();
            group
                .trajectories
                .iter()
                .map(move |trajectory| LearnerSequence { prompt, completion: &trajectory.token_ids })
        })
        .collect();
    let sizes: Vec<usize> = places.iter().map(|&place| batch.groups[place].trajectories.len()).collect();
    let masks = Ragged::from_rows(rows.iter().map(|&row| mask.row(row)));
    let (normalisers, group_tokens) = Normalisers::of(&masks, &sizes)?;
    let group_sequences = Normalisers::group_sequences(&masks, &sizes)?;
    // Those without a token to train on cost no pass.
    let live: Vec<usize> = (0..rows.len()).filter(|&i| masks.row(i).contains(&true)).collect();
    let live_sequences: Vec<LearnerSequence<'_>> = live.iter().map(|&i| sequences[i]).collect();
    let mut all: Vec<ValueSums> = vec![ValueSums::default(); rows.len()];
    let (mut derivatives, mut sums) = (Vec::new(), Vec::new());
    for range in micro_batches(&live_sequences, settings.micro_batch) {
        let (places, micro) = (&live[range.clone()], &live_sequences[range]);
        let micro_rows: Vec<usize> = places.iter().map(|&i| rows[i]).collect();
        let mask_n = cut(mask.values(), mask, &micro_rows);
        let old_n = cut(batch.old.values(), mask, &micro_rows);
        let returns_n = cut(batch.returns.values(), mask, &micro_rows);
        let group_tokens_b: Vec<f64> = places.iter().map(|&i| group_tokens[i]).collect();
        let group_sequences_b: Vec<f64> = places.iter().map(|&i| group_sequences[i]).collect();
        let mut offsets = vec![0];
        offsets.extend(micro_rows.iter().scan(0, |end, &row| {
            *end += mask.row(row).len();
            Some(*end)
        }));
        learner.critic_forward_backward(micro, &mut |said, upstream| {
            let value: Vec<f64> = said.iter().map(|&value| f64::from(value)).collect();
            let columns = CriticColumns {
                offsets: &offsets,
                mask: &mask_n,
                values: ValueColumns { value: &value, old: &old_n, returns: &returns_n },
                group_tokens: Some(&group_tokens_b),
                group_sequences: Some(&group_sequences_b),
            };
            settings.loss.evaluate(&columns, &normalisers, &mut derivatives, &mut sums)?;
            upstream.extend(derivatives.iter().map(|&derivative| derivative as f32));
            for (&place, sums) in places.iter().zip(&sums) {
                all[place] = *sums;
            }
            Ok(())
        })?;
    }
    Ok(ValueMetrics::of(&all))
}

#[cfg(test)]
mod tests;
