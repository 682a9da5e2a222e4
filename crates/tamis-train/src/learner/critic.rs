//! The critic's part of a step: values of the batch, then its own updates on the returns that advantages were
//! made with.
//!
//! ```text
//! batch -> values -> advantage and returns -> [critic's mini-batches: value loss] -> policy's mini-batches
//! ```

use std::num::NonZeroUsize;

use tamis_core::group::Group;
use tamis_core::objective::{CriticColumns, ValueColumns, ValueMetrics, ValueSums, ValueTerm};
use tamis_core::ragged::Ragged;
use tamis_core::random::Key;
use tamis_core::schedule::mini_batches;

use crate::learner::micro_batch::{MicroBatch, pass_over};
use crate::learner::optimizer_batch::{OptimizerBatch, first_rows, order};
use crate::learner::{CriticLearner, LearnerSequence, Pass};

/// Settings of the critic's updates.
#[derive(Debug, Clone, Copy)]
pub struct CriticSettings {
    /// Groups of one update.
    pub mini_batch_size: NonZeroUsize,
    /// Passes over the batch.
    pub epochs: usize,
    /// Shuffle groups before they are cut into mini-batches.
    pub shuffle: Option<Key>,
    /// Division of a mini-batch into micro-batches.
    pub micro_batch: MicroBatch,
    /// The value loss, with its aggregation.
    pub loss: ValueTerm,
}

/// The batch that the critic learns from; per-token rows are one per trajectory `[B][T]`.
#[derive(Debug, Clone, Copy)]
pub struct CriticBatch<'a> {
    /// Trained groups \[P\].
    pub groups: &'a [&'a Group],
    /// Values under the critic at the start of the step.
    pub old: &'a Ragged<f64>,
    /// Returns: the targets of the values.
    pub returns: &'a Ragged<f64>,
    /// Mask of the scored trajectories that are learned from `[P][G]`; `None`: all.
    pub kept: Option<&'a Ragged<bool>>,
}

/// Results of the critic's updates in one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CriticReport {
    /// Optimizer updates taken.
    pub num_updates: usize,
    /// Updates left out because the gradient was not finite.
    pub num_skipped: usize,
    /// Whether each was left out, in order.
    pub skipped: Vec<bool>,
    /// Mean norm of the gradient before clipping, over finite ones; NaN where none was finite, 0 where there
    /// was nothing to train on.
    pub grad_norm: f64,
    /// Mean of each figure of the value loss over the updates taken that have it (shares and means have none
    /// where no token is trained on), by name as logged.
    pub metrics: Vec<(&'static str, f64)>,
}

/// Values of all trajectories, one row each `[B][T]`.
pub fn values(
    learner: &mut dyn CriticLearner,
    sequences: &[LearnerSequence<'_>],
    micro_batch: MicroBatch,
) -> Pass<Ragged<f64>> {
    pass_over(sequences, micro_batch, |sequences| learner.values(sequences))
}

/// Trains the critic on a batch: `epochs` passes, one optimizer update per mini-batch, over the tokens of the
/// policy in scored trajectories (truncated ones too: what they got is what was still to come). A mini-batch
/// without such a token takes no update.
///
/// Derivatives, loss and metrics do not depend on how a mini-batch is cut into micro-batches. Metrics are
/// means over the updates taken.
pub fn update_critic(
    learner: &mut dyn CriticLearner,
    batch: CriticBatch<'_>,
    settings: &CriticSettings,
    learning_rate: f64,
) -> Pass<CriticReport> {
    let mut report = CriticReport::default();
    let mut totals: Vec<(&'static str, f64, usize)> = Vec::new();
    let mut norms = 0.0;
    let first_row = first_rows(batch.groups);
    for epoch in 0..settings.epochs {
        let order = order(settings.shuffle, epoch, batch.groups.len());
        for range in mini_batches(order.len(), settings.mini_batch_size) {
            let own = OptimizerBatch::of(batch.groups, &first_row, &order[range], false, batch.kept);
            if own.live().is_empty() {
                // Nothing to learn from: an optimizer step would decay weights and move by old momentum
                // alone.
                continue;
            }
            let metrics = pass(learner, batch, &own, settings)?;
            let step = learner.critic_step(learning_rate)?;
            report.skipped.push(step.skipped);
            if step.skipped {
                report.num_skipped += 1;
                continue;
            }
            report.num_updates += 1;
            norms += step.grad_norm;
            for (name, value) in metrics.to_pairs() {
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
    report.grad_norm = if report.skipped.is_empty() { 0.0 } else { norms / report.num_updates as f64 };
    report.metrics = totals.into_iter().map(|(name, total, count)| (name, total / count as f64)).collect();
    Ok(report)
}

/// Forward and backward over one mini-batch.
fn pass(
    learner: &mut dyn CriticLearner,
    batch: CriticBatch<'_>,
    own: &OptimizerBatch<'_>,
    settings: &CriticSettings,
) -> Pass<ValueMetrics> {
    let (old, returns) = (own.gather(batch.old), own.gather(batch.returns));
    let mut all: Vec<ValueSums> = vec![ValueSums::default(); own.sequences.len()];
    let (mut derivatives, mut sums) = (Vec::new(), Vec::new());
    own.for_each_micro(settings.micro_batch, |micro, normalisers| {
        let (old_n, returns_n) = (own.cut(&old, micro.places), own.cut(&returns, micro.places));
        learner.critic_forward_backward(micro.sequences, &mut |predicted, upstream| {
            let value: Vec<f64> = predicted.iter().map(|&value| f64::from(value)).collect();
            let columns = CriticColumns {
                offsets: &micro.offsets,
                mask: &micro.mask,
                values: ValueColumns { value: &value, old: &old_n, returns: &returns_n },
                group_tokens: Some(&micro.group_tokens),
                group_sequences: Some(&micro.group_sequences),
            };
            settings.loss.evaluate(&columns, normalisers, &mut derivatives, &mut sums)?;
            upstream.extend(derivatives.iter().map(|&derivative| derivative as f32));
            for (&place, sums) in micro.places.iter().zip(&sums) {
                all[place] = *sums;
            }
            Ok(())
        })
    })?;
    Ok(ValueMetrics::of(&all))
}

#[cfg(test)]
mod tests;
