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

use crate::learner::micro_batch::{Cut, MicroBatch, forward_all, rows};
use crate::learner::optimizer_batch::{OptimizerBatch, first_rows};
use crate::learner::updates::{UpdateTally, forward_backward, mini_batches_of};
use crate::learner::{Learner, LearnerSequence, Network, Pass, TokenColumns, Trained};

/// Settings of the critic's updates.
#[derive(Debug, Clone, Copy)]
pub struct CriticSettings {
    /// Number of groups of one update.
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
    /// Number of optimizer updates taken.
    pub num_updates: usize,
    /// Updates left out because the gradient was not finite.
    pub num_skipped: usize,
    /// Whether each was left out, in order.
    pub skipped: Vec<bool>,
    /// Mean norm of the gradient before clipping, over finite ones; NaN if none was finite, 0 if there
    /// was nothing to train on.
    pub grad_norm: f64,
    /// Mean of each figure of the value loss over the updates taken that have it (without trained
    /// tokens there are no shares or means), by name as logged.
    pub metrics: Vec<(&'static str, f64)>,
}

/// Values of all trajectories, one row each `[B][T]`.
pub fn values(
    learner: &mut dyn Learner,
    sequences: &[LearnerSequence<'_>],
    micro_batch: MicroBatch,
) -> Pass<Ragged<f64>> {
    let columns = forward_all(learner, Network::Critic, sequences, micro_batch, 1.0)?;
    Ok(rows(sequences, &columns.values))
}

/// Trains the critic on a batch: `epochs` passes, one optimizer update per mini-batch, over the tokens
/// of the policy in scored trajectories (truncated ones too: their rewards are the returns of their
/// states). A mini-batch without such a token takes no update.
///
/// Derivatives, loss and metrics do not depend on how a mini-batch is cut into micro-batches. Metrics
/// are means over the updates taken.
pub fn update_critic(
    learner: &mut dyn Learner,
    batch: CriticBatch<'_>,
    settings: &CriticSettings,
    learning_rate: f64,
) -> Pass<CriticReport> {
    let mut tally = UpdateTally::default();
    let first_row = first_rows(batch.groups);
    let CriticSettings { mini_batch_size, epochs, shuffle, .. } = *settings;
    for mini in mini_batches_of(batch.groups.len(), mini_batch_size, epochs, shuffle) {
        let own = OptimizerBatch::of(batch.groups, &first_row, &mini.places, false, batch.kept);
        if own.live().is_empty() {
            // Nothing to learn from: an optimizer step would only decay weights and move by old
            // momentum.
            continue;
        }
        let metrics = pass(learner, batch, &own, settings)?;
        if tally.step(learner, Trained::Critic, learning_rate)? {
            tally.add(metrics.to_pairs());
        }
    }
    Ok(CriticReport {
        num_updates: tally.num_updates,
        num_skipped: tally.num_skipped(),
        skipped: tally.skipped.clone(),
        grad_norm: tally.grad_norm(),
        metrics: tally.means(),
    })
}

fn pass(
    learner: &mut dyn Learner,
    batch: CriticBatch<'_>,
    own: &OptimizerBatch<'_>,
    settings: &CriticSettings,
) -> Pass<ValueMetrics> {
    let (old, returns) = (own.gather(batch.old), own.gather(batch.returns));
    let mut all: Vec<ValueSums> = vec![ValueSums::default(); own.sequences.len()];
    let (mut derivatives, mut sums) = (Vec::new(), Vec::new());
    own.for_each_wave(
        Cut::of(learner.info(), settings.micro_batch),
        |_| true,
        |micro, normalisers| {
            let (old_n, returns_n) = (own.cut(&old, micro.places), own.cut(&returns, micro.places));
            forward_backward(learner, Trained::Critic, micro.wave, |predicted| {
                let value: Vec<f64> = predicted.values.iter().map(|&value| f64::from(value)).collect();
                let columns = CriticColumns {
                    offsets: &micro.offsets,
                    mask: &micro.mask,
                    values: ValueColumns { value: &value, old: &old_n, returns: &returns_n },
                    group_tokens: Some(&micro.group_tokens),
                    group_sequences: Some(&micro.group_sequences),
                };
                settings.loss.evaluate(&columns, normalisers, &mut derivatives, &mut sums)?;
                for (&place, sums) in micro.places.iter().zip(&sums) {
                    all[place] = *sums;
                }
                let values = derivatives.iter().map(|&derivative| derivative as f32).collect();
                Ok(TokenColumns { values, ..TokenColumns::default() })
            })
        },
    )?;
    Ok(ValueMetrics::of(&all))
}

#[cfg(test)]
mod tests;
